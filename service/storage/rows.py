"""Rows as named fields: one type for each table, and the views that join two of them.

The type of a table has exactly its columns, in their order, so that a new column changes the table, its type here and
a migration, and nothing else: statements take their columns from these types.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from service.storage import tables

REGIME_CHANGE = "regime_change"  # the kind of event that an alert is; the fold ignores it


class DecisionRow(NamedTuple):
    """A decision: the request and its answer."""

    campaign_id: int
    round: int
    decision_id: str
    request_hash: bytes | None  # None if the row does not hold its request: the fold then takes the action as given
    subject: str | None
    context: str | None
    excluded_actions: str | None
    at: int | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    decided_at: int
    erased: bool = False


class RewardRow(NamedTuple):
    """An arrival: the reward of a round from then on."""

    campaign_id: int
    arrival: int
    round: int
    after_round: int
    reward: float | None  # None once it is erased
    source: str
    received_at: int
    amount: float | None = None  # None: the reward
    reward_id: str | None = None
    replaced_by: int = 0  # the arrival that took its place; 0 while it is in force


class Replacement(NamedTuple):
    """The reward in force of a round has been replaced by a new arrival."""

    campaign_id: int
    round: int
    arrival: int


class ModelRow(NamedTuple):
    campaign_id: int
    version: int
    kind: str
    round: int
    arrived: int
    folded: int
    regimes: int
    theta: bytes
    seconds: float
    published_at: int


class JobRow(NamedTuple):
    """A re-estimation that was left to a background job (R16)."""

    campaign_id: int
    input_round: int
    input_arrived: int
    status: str
    owner: str | None
    leased_until: int
    attempts: int
    result: bytes | None
    published_round: int | None
    seconds: float | None
    created_at: int


class EventRow(NamedTuple):
    campaign_id: int
    number: int
    round: int
    kind: str
    body: str
    created_at: int


class MessageRow(NamedTuple):
    """A message to a webhook."""

    campaign_id: int
    event: int
    status: str
    url: str
    attempts: int
    due_at: int
    failure: str | None
    created_at: int
    sent_at: int | None


class RevisionRow(NamedTuple):
    """A change of a campaign: a new configuration, a rollback (`restored`) or an erasure (`erased`)."""

    campaign_id: int
    revision: int
    round: int
    arrived: int
    config: str
    restored: int | None
    erased: int | None
    created_at: int


class SnapshotRow(NamedTuple):
    campaign_id: int
    round: int
    arrived: int
    revision: int
    model_version: int
    state: bytes
    created_at: int


class KeyRow(NamedTuple):
    """A key as it is stored: the hash of its secret, never the secret."""

    id: str
    secret_hash: bytes
    name: str
    role: str
    campaigns: str | None
    rate_limit: float | None
    created_at: int
    revoked_at: int | None = None


class AuditRow(NamedTuple):
    number: int
    at: int
    actor: str
    role: str | None
    action: str
    campaign: str | None
    details: str
    request_id: str | None
    outcome: Literal["done", "refused"]


AppendedRow = DecisionRow | RewardRow | ModelRow | JobRow | EventRow | MessageRow | RevisionRow
APPENDED: Mapping[type[AppendedRow], sa.Table] = {  # in the order that foreign keys need
    DecisionRow: tables.decisions,
    RewardRow: tables.rewards,
    ModelRow: tables.models,
    JobRow: tables.jobs,
    EventRow: tables.events,
    MessageRow: tables.outbox,
    RevisionRow: tables.config_revisions,
}
# What is written, and the names of the statements; a reward is replaced before another one is in force.
WRITTEN: Mapping[type[AppendedRow | Replacement], str] = {
    Replacement: "replaced",
    **{kind: table.name for kind, table in APPENDED.items()},
}
TABLES: Mapping[type[Any], sa.Table] = {
    **APPENDED,
    SnapshotRow: tables.snapshots,
    KeyRow: tables.keys,
    AuditRow: tables.audit,
}


class LiveRow(NamedTuple):
    """A campaign and its current state: its row of `campaigns` and that of `live`."""

    campaign_id: int
    name: str
    version: int
    round: int
    arrived: int
    folded: int
    model_version: int
    belief: str
    clock: int
    last_at: int
    snapshot_round: int
    changes: int
    guarded: bool
    reduced: int
    regime: int | None
    failure: str | None
    created_at: int
    archived_at: int | None


class KnownDecision(NamedTuple):
    """What the answer to a retry needs: a decision that is already in the log, with its reward."""

    campaign_id: int
    decision_id: str
    round: int
    request_hash: bytes | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    decided_at: int
    erased: bool = False
    reward: float | None = None
    source: str | None = None
    received_at: int | None = None
    reward_id: str | None = None

    @classmethod
    def from_row(cls, row: DecisionRow) -> "KnownDecision":
        """What the answer to a new decision needs, which has no reward yet."""
        return cls(
            row.campaign_id, row.decision_id, row.round, row.request_hash, row.model_version, row.mode, row.action,
            row.propensity, row.explanation, row.decided_at,
        )  # fmt: skip


class KnownReward(NamedTuple):
    """What the answer to a repeated amount needs: a reward with an id that is already in the log."""

    campaign_id: int
    round: int
    reward_id: str
    reward: float | None  # of the round, from this arrival on
    amount: float | None
    source: str
    received_at: int

    @property
    def sent(self) -> float | None:
        """What the client sent."""
        return self.reward if self.amount is None else self.amount


def select_rows(kind: type[Any], *sources: sa.Table) -> sa.Select[Any]:
    """Select the columns of a row type, each from the first source that has it."""
    return sa.select(*(next(table.c[name] for table in sources if name in table.c) for name in kind._fields))


def select_newest(query: sa.Select[Any], counter: sa.Column[int], before: int | None, limit: int) -> sa.Select[Any]:
    """Select the rows with the highest values of a counter, newest first; with `before`, only those below it."""
    if before is not None:
        query = query.where(counter < before)
    return query.order_by(counter.desc()).limit(limit)
