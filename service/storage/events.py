"""Events of a campaign (failures, imports, changes of regime), and the outbox: messages about them to webhooks."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, and_, exists, func, select, tuple_, update

from service.storage.rows import REGIME_CHANGE, select_newest, select_rows
from service.storage.tables import campaigns, events, outbox
from service.storage.transaction import Transaction


class Message(NamedTuple):
    """A message that a sender has claimed for one attempt."""

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
        """A unique id, the same at every attempt. Campaign names may be used again, their ids never are (R23)."""
        return f"{self.campaign}-{self.campaign_id}-{self.event}"


class AlertRow(NamedTuple):
    """A change of regime and the state of its message; `status` is None if there was no message to send."""

    number: int
    round: int
    body: str
    created_at: int
    status: str | None
    attempts: int | None
    failure: str | None
    sent_at: int | None


def read_event_bodies(tx: Transaction, campaign: int, kind: str) -> list[str]:
    """The bodies (JSON) of the events of a kind, in order."""
    query = select(events.c.body).where(events.c.campaign_id == campaign, events.c.kind == kind)
    return list(tx.connection.execute(query.order_by(events.c.number)).scalars())


def count_events(tx: Transaction, campaign: int) -> int:
    query = select(func.coalesce(func.max(events.c.number), 0)).where(events.c.campaign_id == campaign)
    return int(tx.connection.execute(query).scalar_one())


def get_next_due(tx: Transaction, last: bool = False) -> int | None:
    """The time of the next attempt, or with `last` of the last one planned; None if no message waits."""
    order = outbox.c.due_at.desc() if last else outbox.c.due_at
    query = select(outbox.c.due_at).where(outbox.c.status == "waiting").order_by(order).limit(1)
    due: int | None = tx.connection.execute(query).scalar_one_or_none()
    return due


def reset_late_messages(tx: Transaction, now: int, latest: int) -> None:
    """Make messages due now that would wait longer than any delay: their time is from a clock that has gone back."""
    late = outbox.c.status == "waiting", outbox.c.due_at > latest
    tx.connection.execute(update(outbox).where(*late).values(due_at=now))


def claim_messages(tx: Transaction, now: int, until: int, most: int, busy: Collection[str] = ()) -> list[Message]:
    """Claim messages that are due, until that time: if the sender dies, they are claimed again afterwards.

    At most one for each address, and none for `busy` addresses, so that a receiver that hangs delays no other.
    """
    other = outbox.alias()
    earlier = _get_order(other) < _get_order(outbox)
    not_first = exists().where(other.c.status == "waiting", other.c.url == outbox.c.url, earlier)
    about = and_(events.c.campaign_id == outbox.c.campaign_id, events.c.number == outbox.c.event)
    due = (
        select(outbox.c.campaign_id, outbox.c.event, (outbox.c.attempts + 1).label("attempts"), outbox.c.url)
        .add_columns(campaigns.c.name.label("campaign"), events.c.round, events.c.body, events.c.created_at)
        .join_from(outbox, events, about)
        .join(campaigns, campaigns.c.id == outbox.c.campaign_id)
        .where(outbox.c.status == "waiting", outbox.c.due_at <= now, outbox.c.url.not_in(busy), ~not_first)
        .order_by(outbox.c.due_at)
        .limit(most)
        .with_for_update(of=outbox, skip_locked=True)
    )
    claimed = [Message(**row) for row in tx.connection.execute(due).mappings()]
    for message in claimed:
        tx.connection.execute(_update(message).values(attempts=message.attempts, due_at=until))
    return claimed


def _get_order(table: FromClause) -> ColumnElement[Any]:
    return tuple_(table.c.due_at, table.c.campaign_id, table.c.event)


def mark_sent(tx: Transaction, message: Message, now: int) -> None:
    """Mark a message as sent, even if another sender has claimed it meanwhile."""
    tx.connection.execute(_update(message).values(status="sent", failure=None, sent_at=now))


def mark_failed(tx: Transaction, message: Message, failure: str, due: int | None) -> None:
    """Store why an attempt failed, and the time of the next one, or None for no more.

    A message that another sender has claimed meanwhile is left alone.
    """
    status: dict[str, Any] = {"status": "failed"} if due is None else {"due_at": due}
    ours = outbox.c.attempts == message.attempts
    tx.connection.execute(_update(message).where(ours).values(failure=failure, **status))


def _update(message: Message) -> Any:
    ours = and_(outbox.c.campaign_id == message.campaign_id, outbox.c.event == message.event)
    return update(outbox).where(ours, outbox.c.status == "waiting")


def read_alert_page(tx: Transaction, campaign: int, before: int | None, limit: int) -> list[AlertRow]:
    """The newest changes of regime, or the newest before the number of an event."""
    about = and_(outbox.c.campaign_id == events.c.campaign_id, outbox.c.event == events.c.number)
    query = select_rows(AlertRow, events, outbox).select_from(events.outerjoin(outbox, about))
    query = query.where(events.c.campaign_id == campaign, events.c.kind == REGIME_CHANGE)
    return tx.read_rows(AlertRow, select_newest(query, events.c.number, before, limit))
