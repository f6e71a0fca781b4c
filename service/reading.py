"""The log as people and systems read it: decisions with their rewards, by time, a page at a time; nothing hot."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import select

from service.errors import FieldProblem, InvalidError
from service.store import PAGE, REWARDED, Transaction
from service.tables import decisions, rewards

__all__ = ["LoggedDecision", "interval", "logged", "rounds_between", "subject_decisions"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def interval(start: datetime | None, to: datetime | None) -> tuple[int | None, int | None]:
    """What a query names `from` and `to`, in microseconds."""
    begin, end = (None if moment is None else _micros(moment, name) for name, moment in (("from", start), ("to", to)))
    if begin is not None and end is not None and begin > end:
        raise InvalidError([FieldProblem(field="to", message="lies before `from`", allowed="a later time")])
    return begin, end


def _micros(moment: datetime, name: str) -> int:
    try:
        return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        problem = FieldProblem(field=name, message=f"{moment} is out of range", allowed="the years 1 to 9999, in UTC")
        raise InvalidError([problem]) from None


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
