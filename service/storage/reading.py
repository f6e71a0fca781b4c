"""The log as people and files read it: decisions with their rewards by time, and columns for charts."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import select

from service.base.waits import Wait
from service.storage.rows import RewardRow, select_rows
from service.storage.statements import DECISIONS_WITH_REWARDS, PAGE
from service.storage.tables import decisions, models, rewards
from service.storage.transaction import Transaction

BELIEF = '{"belief":'  # how every explanation begins


class LoggedDecision(NamedTuple):
    """A decision with its request and its reward; of an erased one little is left (R22)."""

    round: int
    decision_id: str
    decided_at: int
    at: int | None
    subject: str | None
    context: str | None
    excluded_actions: str | None
    model_version: int
    mode: str
    action: str
    propensity: float  # 0 if it is not known
    explanation: str
    erased: bool
    reward: float | None
    source: str | None
    after_round: int | None  # rounds decided when the reward came
    received_at: int | None

    def close_book(self, wait: Wait | None) -> "LoggedDecision":
        """The decision with the default reward if its wait is over and none has come (R20)."""
        if wait is None or self.reward is not None or self.erased or not wait.is_over(self.decided_at):
            return self
        return self._replace(reward=wait.default, source="default", received_at=wait.get_end(self.decided_at))


_LOGGED = select_rows(LoggedDecision, decisions, rewards).select_from(DECISIONS_WITH_REWARDS)


def find_rounds_between(tx: Transaction, campaign: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The rounds decided from `start` on and before `end` (microseconds), as (the round before the first, the last)."""
    return (
        0 if start is None else tx.get_last_round(campaign, start - 1),
        tx.get_last_round(campaign, 2**62 if end is None else end - 1),
    )


def find_decision(tx: Transaction, campaign: int, decision_id: str, wait: Wait) -> LoggedDecision | None:
    """The decision with an id, with its request and its reward."""
    if "\x00" in decision_id:  # PostgreSQL's text cannot hold it, so it cannot even be looked up
        return None
    query = _LOGGED.where(decisions.c.campaign_id == campaign, decisions.c.decision_id == decision_id)
    return next((row.close_book(wait) for row in tx.read_rows(LoggedDecision, query)), None)


def get_decided_at(tx: Transaction, campaign: int, round: int) -> int:
    """The time at which a round was decided."""
    query = select(decisions.c.decided_at).where(decisions.c.campaign_id == campaign, decisions.c.round == round)
    return int(tx.connection.execute(query).scalar_one())


def read_decision_pages(
    tx: Transaction, campaign: int, after: int = 0, last: int | None = None, page: int = PAGE, wait: Wait | None = None
) -> Iterator[list[LoggedDecision]]:
    """The decisions after a round and up to the last one, in order, a page at a time.

    With `wait`, those whose wait is over have the default reward if none has come.
    """
    query = _LOGGED.where(decisions.c.campaign_id == campaign).order_by(decisions.c.round).limit(page)
    if last is not None:
        query = query.where(decisions.c.round <= last)
    while rows := tx.read_rows(LoggedDecision, query.where(decisions.c.round > after)):
        yield [row.close_book(wait) for row in rows]
        after = rows[-1].round


def read_subject_decisions(tx: Transaction, campaign: int, subject: str, wait: Wait) -> list[LoggedDecision]:
    """The decisions for one person, in order."""
    query = _LOGGED.where(decisions.c.campaign_id == campaign, decisions.c.subject == subject)
    return [row.close_book(wait) for row in tx.read_rows(LoggedDecision, query.order_by(decisions.c.round))]


def read_reward_history(tx: Transaction, campaign: int, rounds: Sequence[int]) -> dict[int, list[RewardRow]]:
    """Every reward that came for these rounds, in order, by round; only of rounds with several, or with ids."""
    history: dict[int, list[RewardRow]] = {}
    for start in range(0, len(rounds), PAGE):
        own = rewards.c.campaign_id == campaign, rewards.c.round.in_(rounds[start : start + PAGE])
        for row in tx.read_rows(RewardRow, select_rows(RewardRow, rewards).where(*own).order_by(rewards.c.arrival)):
            history.setdefault(row.round, []).append(row)
    return {round: rows for round, rows in history.items() if len(rows) > 1 or rows[0].reward_id is not None}


class WrongReward(NamedTuple):
    """A reward whose row does not fit the others of its round."""

    round: int
    arrival: int
    replaced_by: int
    next_arrival: int  # what `replaced_by` must be
    reward: float | None
    total: float | None  # what the reward must be, if it adds an amount


def find_wrong_rewards(tx: Transaction, campaign: int) -> list[WrongReward]:
    """The rewards that are not marked as replaced by the next one of their round, or are not the sum that they say."""
    order: Any = {"partition_by": rewards.c.round, "order_by": rewards.c.arrival}
    total = sa.func.lag(rewards.c.reward).over(**order) + rewards.c.amount
    rows = (
        select(rewards.c.round, rewards.c.arrival, rewards.c.replaced_by, rewards.c.reward)
        .add_columns(sa.func.coalesce(sa.func.lead(rewards.c.arrival).over(**order), 0).label("next_arrival"))
        .add_columns(total.label("total"))
        .where(rewards.c.campaign_id == campaign)
        .subquery()
    )
    query = select(*(rows.c[name] for name in WrongReward._fields))
    is_wrong = (rows.c.replaced_by != rows.c.next_arrival) | (rows.c.total != rows.c.reward)
    return tx.read_rows(WrongReward, query.where(is_wrong).order_by(rows.c.arrival))


# --- columns for charts -----------------------------------------------------------------------------------------------


class DecisionColumns(NamedTuple):
    """Decisions column by column, in any order."""

    round: list[int]
    decided_at: list[int]
    mode: list[str]
    action: list[str]
    subject: list[str | None]
    belief: list[tuple[float, ...]]  # empty where it was erased


class ModelSummary(NamedTuple):
    version: int
    round: int
    published_at: int
    regimes: int
    kind: str


def read_decision_columns(tx: Transaction, campaign: int, after: int, last: int) -> DecisionColumns:
    """The columns of the decisions after a round and up to the last one."""
    table = decisions.c
    find = sa.func.instr if tx.embedded else sa.func.strpos
    belief = sa.func.substr(table.explanation, len(BELIEF) + 1, find(table.explanation, "]") - len(BELIEF))
    query = select(table.round, table.decided_at, table.mode, table.action, table.subject, belief.label("belief"))
    columns = _read_columns(tx, query.where(table.campaign_id == campaign, table.round > after, table.round <= last))
    # Each belief is a text in a JSON array, and JSON itself.
    beliefs = msgspec.json.decode(columns.pop("belief").replace('"', ""), type=list[tuple[float, ...]])
    return DecisionColumns(**{name: msgspec.json.decode(text) for name, text in columns.items()}, belief=beliefs)


def read_reward_columns(tx: Transaction, campaign: int, after: int, last: int) -> tuple[list[int], list[float | None]]:
    """The rounds that got a reward after an arrival number and up to the last one, and the newest; None if erased."""
    is_newest = (rewards.c.replaced_by == 0) | (rewards.c.replaced_by > last)
    query = select(rewards.c.round, rewards.c.reward).where(
        rewards.c.campaign_id == campaign, rewards.c.arrival > after, rewards.c.arrival <= last, is_newest
    )
    columns = _read_columns(tx, query)
    return msgspec.json.decode(columns["round"]), msgspec.json.decode(columns["reward"])


def read_model_summaries(tx: Transaction, campaign: int, after: int, last: int) -> list[ModelSummary]:
    """The models after a version and up to the last one, in order."""
    query = select_rows(ModelSummary, models).where(
        models.c.campaign_id == campaign, models.c.version > after, models.c.version <= last
    )
    return tx.read_rows(ModelSummary, query.order_by(models.c.version))


def _read_columns(tx: Transaction, query: sa.Select[Any]) -> dict[str, str]:
    """The columns of a query by name, each as a JSON array, with the rows in an undefined order.

    The database writes them several times faster than Python builds rows, and other threads run meanwhile.
    """
    rows = query.subquery()
    arrays = [
        (sa.func.json_group_array(column) if tx.embedded else sa.cast(sa.func.json_agg(column), sa.Text)).label(name)
        for name, column in rows.c.items()
    ]
    return {name: text or "[]" for name, text in tx.connection.execute(select(*arrays)).mappings().one().items()}
