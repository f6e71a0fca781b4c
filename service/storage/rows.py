"""Rows as the code knows them: what is read from the tables, and what is appended to them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from service.storage.tables import config_revisions, decisions, events, jobs, models, outbox, rewards

__all__ = [
    "APPENDED",
    "REGIME_CHANGE",
    "ClaimedJob",
    "DecisionRow",
    "JobRow",
    "KeyRow",
    "KnownDecision",
    "LiveRow",
    "NewDecision",
    "NewEvent",
    "NewJob",
    "NewMessage",
    "NewModel",
    "NewRevision",
    "NewReward",
    "NewRow",
    "RevisionRow",
    "RewardRow",
    "Row",
    "rows_of",
]

REGIME_CHANGE = "regime_change"  # the kind of its event, which the fold does not heed
Row = Mapping[str, Any]
Made = TypeVar("Made", bound=tuple[Any, ...])


class LiveRow(NamedTuple):
    """A campaign and where it stands, locked until the transaction ends."""

    campaign_id: int
    name: str
    version: int
    round: int
    arrived: int
    folded: int
    settled: int
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
    archived_at: int | None


class KnownDecision(NamedTuple):
    """A decision that is already in the log, with its reward."""

    decision_id: str
    round: int
    request_hash: bytes | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    decided_at: int
    erased: bool
    reward: float | None = None
    source: str | None = None
    received_at: int | None = None


class DecisionRow(NamedTuple):
    """A decision as the fold reads it: the request, and what was answered."""

    round: int
    context: str | None
    excluded_actions: str | None
    subject: str | None
    at: int | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    request_hash: bytes | None  # None if the row does not carry its request: it can only be followed
    decision_id: str


class RewardRow(NamedTuple):
    """A reward as the fold reads it."""

    arrival: int
    round: int
    after_round: int
    reward: float | None  # None once it is erased


class JobRow(NamedTuple):
    """A re-estimation that was left to a background job (R16)."""

    input_round: int
    input_arrived: int
    status: str
    result: bytes | None
    published_round: int | None
    seconds: float | None


class RevisionRow(NamedTuple):
    """A change of a campaign as the fold reads it.

    The configuration from then on, the model it went back to, or how many decisions were erased.
    """

    revision: int
    round: int
    arrived: int
    config: str
    restored: int | None
    erased: int | None
    created_at: int


class ClaimedJob(NamedTuple):
    """A job that was taken over, and how often it had been tried before."""

    campaign_id: int
    campaign: str
    input_round: int
    attempts: int


class KeyRow(NamedTuple):
    """A key as it is stored: not the secret, only its hash."""

    id: str
    secret_hash: bytes
    name: str
    role: str
    campaigns: str | None
    rate_limit: float | None
    created_at: int
    revoked_at: int | None = None


class NewDecision(NamedTuple):
    campaign_id: int
    round: int
    decision_id: str
    request_hash: bytes | None
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


class NewReward(NamedTuple):
    campaign_id: int
    round: int
    arrival: int
    after_round: int
    reward: float
    source: str
    received_at: int


class NewModel(NamedTuple):
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


class NewJob(NamedTuple):
    campaign_id: int
    input_round: int
    input_arrived: int
    status: str
    owner: str
    leased_until: int
    attempts: int
    created_at: int


class NewEvent(NamedTuple):
    campaign_id: int
    number: int
    round: int
    kind: str
    body: str
    created_at: int


class NewMessage(NamedTuple):
    campaign_id: int
    event: int
    status: str
    url: str
    attempts: int
    due_at: int
    created_at: int


class NewRevision(NamedTuple):
    campaign_id: int
    revision: int
    round: int
    arrived: int
    config: str
    restored: int | None
    erased: int | None
    created_at: int


def rows_of(kind: type[Made], *columns: Iterable[Any]) -> Iterator[Made]:
    """A named tuple for each place of the columns, up to the shortest's end; its constructor takes thrice as long."""
    return map(tuple.__new__, repeat(kind), zip(*columns, strict=False))


NewRow = NewDecision | NewReward | NewModel | NewJob | NewEvent | NewMessage | NewRevision
APPENDED: dict[type[NewRow], sa.Table] = {  # in the order that foreign keys need
    NewDecision: decisions,
    NewReward: rewards,
    NewModel: models,
    NewJob: jobs,
    NewEvent: events,
    NewMessage: outbox,
    NewRevision: config_revisions,
}
