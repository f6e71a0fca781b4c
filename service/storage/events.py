"""Events of a campaign: failures, imports, changes of regime."""

from sqlalchemy import func, select

from service.storage.tables import events
from service.storage.transaction import Transaction


def read_event_bodies(tx: Transaction, campaign: int, kind: str) -> list[str]:
    """The bodies (JSON) of the events of a kind, in order."""
    query = select(events.c.body).where(events.c.campaign_id == campaign, events.c.kind == kind)
    return list(tx.connection.execute(query.order_by(events.c.number)).scalars())


def count_events(tx: Transaction, campaign: int) -> int:
    query = select(func.coalesce(func.max(events.c.number), 0)).where(events.c.campaign_id == campaign)
    return int(tx.connection.execute(query).scalar_one())
