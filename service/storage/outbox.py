"""Messages to webhooks, and the alerts they are about, as rows: what waits, what is taken, how it ended."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, and_, exists, or_, select, tuple_, update

from service.storage.rows import REGIME_CHANGE
from service.storage.tables import campaigns, events, outbox
from service.storage.transaction import Transaction

__all__ = ["AlertRow", "Message", "alert_page", "claim", "finish", "next_due", "put_off", "recall"]


class Message(NamedTuple):
    """A message that one sender has taken for one attempt."""

    campaign_id: int
    event: int
    attempts: int  # this one included
    url: str
    campaign: str
    round: int
    body: str  # of the event
    created_at: int

    @property
    def delivery(self) -> str:
        """The same at every attempt, and no other's: a campaign's name may come again, its id never does (R23)."""
        return f"{self.campaign}-{self.campaign_id}-{self.event}"


class AlertRow(NamedTuple):
    """A change of regime, and how its message fares; `status` is None where none was to be sent."""

    number: int
    round: int
    body: str
    created_at: int
    status: str | None
    attempts: int | None
    failure: str | None
    sent_at: int | None


def next_due(tx: Transaction, last: bool = False) -> int | None:
    """When the next attempt is due, or the last one of all that wait; None if nothing waits."""
    order = outbox.c.due_at.desc() if last else outbox.c.due_at
    query = select(outbox.c.due_at).where(outbox.c.status == "waiting").order_by(order).limit(1)
    due: int | None = tx.connection.execute(query).scalar_one_or_none()
    return due


def recall(tx: Transaction, now: int, latest: int) -> None:
    """What waits for longer than any delay is of a clock that has gone back since: it is due now."""
    late = outbox.c.status == "waiting", outbox.c.due_at > latest
    tx.connection.execute(update(outbox).where(*late).values(due_at=now))


def claim(tx: Transaction, now: int, until: int, most: int, busy: Collection[str] = ()) -> list[Message]:
    """Messages that are due, ours until then: whoever dies with one leaves it to be taken again.

    Of each address the first one only, and none of those that are busy: a receiver that hangs holds up nobody else.
    """
    other = outbox.alias()
    earlier = or_(
        other.c.due_at < outbox.c.due_at, and_(other.c.due_at == outbox.c.due_at, _order(other) < _order(outbox))
    )
    not_first = exists().where(other.c.status == "waiting", other.c.url == outbox.c.url, earlier)
    about = and_(events.c.campaign_id == outbox.c.campaign_id, events.c.number == outbox.c.event)
    due = (
        select(outbox.c.campaign_id, outbox.c.event, outbox.c.attempts + 1, outbox.c.url)
        .add_columns(campaigns.c.name, events.c.round, events.c.body, events.c.created_at)
        .join_from(outbox, events, about)
        .join(campaigns, campaigns.c.id == outbox.c.campaign_id)
        .where(outbox.c.status == "waiting", outbox.c.due_at <= now, outbox.c.url.not_in(busy), ~not_first)
        .order_by(outbox.c.due_at)
        .limit(most)
        .with_for_update(of=outbox, skip_locked=True)
    )
    taken = [Message._make(row) for row in tx.connection.execute(due)]
    for message in taken:
        tx.connection.execute(_row(message).values(attempts=message.attempts, due_at=until))
    return taken


def _order(table: FromClause) -> ColumnElement[Any]:
    return tuple_(table.c.campaign_id, table.c.event)


def finish(tx: Transaction, message: Message, now: int) -> None:
    """It was sent, whoever has taken it meanwhile."""
    tx.connection.execute(_row(message).values(status="sent", failure=None, sent_at=now))


def put_off(tx: Transaction, message: Message, failure: str, due: int | None) -> None:
    """It was not sent: to be tried again then, or no more. One that was taken again meanwhile is left alone."""
    status: dict[str, Any] = {"status": "failed"} if due is None else {"due_at": due}
    ours = outbox.c.attempts == message.attempts
    tx.connection.execute(_row(message).where(ours).values(failure=failure, **status))


def _row(message: Message) -> Any:
    ours = and_(outbox.c.campaign_id == message.campaign_id, outbox.c.event == message.event)
    return update(outbox).where(ours, outbox.c.status == "waiting")


def alert_page(tx: Transaction, campaign: int, before: int | None, limit: int) -> Sequence[AlertRow]:
    """The newest changes of regime before an event's number."""
    about = and_(outbox.c.campaign_id == events.c.campaign_id, outbox.c.event == events.c.number)
    columns = [(events if name in events.c else outbox).c[name] for name in AlertRow._fields]
    query = select(*columns).select_from(events.outerjoin(outbox, about)).order_by(events.c.number.desc()).limit(limit)
    query = query.where(events.c.campaign_id == campaign, events.c.kind == REGIME_CHANGE)
    if before is not None:
        query = query.where(events.c.number < before)
    return [AlertRow._make(row) for row in tx.connection.execute(query)]
