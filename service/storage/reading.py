"""The log as people and systems read it: decisions with their rewards, by time, a page at a time; nothing hot."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import select

from service.storage.statements import PAGE, REWARDED
from service.storage.tables import decisions, models, rewards
from service.storage.transaction import Transaction

__all__ = [
    "DecisionColumns",
    "LoggedDecision",
    "decision_columns",
    "logged",
    "model_columns",
    "reward_columns",
    "rounds_between",
    "subject_decisions",
]

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


_COLUMNS = [(decisions if name in decisions.c else rewards).c[name].label(name) for name in LoggedDecision._fields]


def rounds_between(tx: Transaction, campaign: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The rounds decided from `start` on and before `end` (microseconds), as (before the first, last): half open."""
    return (
        0 if start is None else tx.last_decided(campaign, start - 1),
        tx.last_decided(campaign, 2**62 if end is None else end - 1),
    )


def logged(
    tx: Transaction, campaign: int, after: int = 0, last: int | None = None, page: int = PAGE
) -> Iterator[list[LoggedDecision]]:
    """The decisions after a round, up to the last one asked for, in order, a page at a time."""
    own = decisions.c.campaign_id == campaign
    query = select(*_COLUMNS).select_from(REWARDED).where(own).order_by(decisions.c.round).limit(page)
    if last is not None:
        query = query.where(decisions.c.round <= last)
    while rows := tx.connection.execute(query.where(decisions.c.round > after)).all():
        yield [LoggedDecision._make(row) for row in rows]
        after = rows[-1][0]


def subject_decisions(tx: Transaction, campaign: int, subject: str) -> list[LoggedDecision]:
    """Everything about one person."""
    own = sa.and_(decisions.c.campaign_id == campaign, decisions.c.subject == subject)
    query = select(*_COLUMNS).select_from(REWARDED).where(own).order_by(decisions.c.round)
    return [LoggedDecision._make(row) for row in tx.connection.execute(query)]


class DecisionColumns(NamedTuple):
    """Decisions column by column, in any order."""

    round: list[int]
    decided_at: list[int]
    mode: list[str]
    action: list[str]
    subject: list[str | None]
    belief: list[tuple[float, ...]]  # empty where it was erased


def decision_columns(tx: Transaction, campaign: int, after: int, last: int) -> DecisionColumns:
    """What pictures need of the decisions after a round, up to the last one."""
    table = decisions.c
    belief = tx.cut(table.explanation, len(BELIEF) + 1, "]")
    query = select(table.round, table.decided_at, table.mode, table.action, table.subject, belief.label("belief"))
    *columns, beliefs = tx.columns(query.where(table.campaign_id == campaign, table.round > after, table.round <= last))
    lists = [msgspec.json.decode(column) for column in columns]
    # Each belief is a text in a JSON array, and JSON itself.
    return DecisionColumns._make([*lists, msgspec.json.decode(beliefs.replace('"', ""), type=list[tuple[float, ...]])])


def reward_columns(tx: Transaction, campaign: int, after: int, last: int) -> tuple[list[int], list[float | None]]:
    """The rounds and values of the rewards after the so-manieth, up to the last one; None if one was erased."""
    query = select(rewards.c.round, rewards.c.reward).where(
        rewards.c.campaign_id == campaign, rewards.c.arrival > after, rewards.c.arrival <= last
    )
    rounds, values = map(msgspec.json.decode, tx.columns(query))
    return rounds, values


def model_columns(tx: Transaction, campaign: int, after: int, last: int) -> list[tuple[int, int, int, int, str]]:
    """(version, round, published_at, regimes, kind) of the models after a version, up to the last one, in order."""
    table = models.c
    query = select(table.version, table.round, table.published_at, table.regimes, table.kind)
    columns = tx.columns(query.where(table.campaign_id == campaign, table.version > after, table.version <= last))
    return sorted(zip(*map(msgspec.json.decode, columns), strict=True))
