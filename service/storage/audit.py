"""The audit log: what administrators did to campaigns, people's data and keys; who it was, when, and by which request.

Rows are only ever added, in the transaction of the change that they tell of: there is none without the other. They
outlive their campaign. None tells a person's identifier, a key's secret, or the path of a webhook, which may be one.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import insert, select

from policy import CampaignConfig
from service.base.logs import REQUEST_ID, administered
from service.storage.tables import audit
from service.storage.transaction import Transaction

__all__ = ["AuditRow", "Record", "add", "by_command", "by_request", "differences", "page", "receiver", "tell"]

COMMAND_LINE = "command line"  # whoever has the database may do anything to it


class Record(NamedTuple):
    """What someone asks for, to be written down once it is done."""

    actor: str
    role: str | None
    action: str
    campaign: str | None
    details: Mapping[str, Any]
    request_id: str | None = None
    outcome: Literal["done", "refused"] = "done"


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


def by_command(what: str, campaign: str | None = None, **details: Any) -> Record:
    """What the command line is told to do."""
    return Record(COMMAND_LINE, None, what, campaign, details)


def by_request(actor: str, role: str | None, what: str, campaign: str | None, details: Mapping[str, Any]) -> Record:
    """What the request at hand asks for."""
    return Record(actor, role, what, campaign, details, REQUEST_ID.get())


def add(tx: Transaction, record: Record | None, now: int, **more: Any) -> None:
    """Write it down, with what is known only now."""
    if record is not None:
        details = json.dumps({**record.details, **more}, separators=(",", ":"))
        tx.connection.execute(insert(audit).values({**record._asdict(), "details": details, "at": now}))


def tell(record: Record, **more: Any) -> None:
    """Log it too, once it is committed."""
    administered(record.action, campaign=record.campaign, by=record.actor, **record.details, **more)


def differences(before: CampaignConfig, after: CampaignConfig) -> dict[str, Any]:
    """The fields that changed: what they were, and what they are."""
    was, is_now = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {name: {"from": _shown(was[name]), "to": _shown(is_now[name])} for name in was if was[name] != is_now[name]}


def receiver(config: CampaignConfig) -> dict[str, Any]:
    """Where a new campaign's alerts go: away from here, so it must be known later."""
    webhook = config.alerts.webhook
    return {} if webhook is None else {"webhook": _host(webhook)}


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("webhook"):
        return {**value, "webhook": _host(value["webhook"])}
    return value


def _host(webhook: str) -> str:
    """Receivers are told apart by secret paths, which need not be kept for ever."""
    return "{0.scheme}://{0.netloc}/…".format(urlsplit(webhook))


def page(
    tx: Transaction,
    before: int | None,
    limit: int,
    campaign: str | None = None,
    between: tuple[int | None, int | None] = (None, None),
) -> list[AuditRow]:
    """The newest rows before a number; about one campaign, or from a time on and before another."""
    query = select(*(audit.c[name] for name in AuditRow._fields)).order_by(audit.c.number.desc()).limit(limit)
    start, end = between
    if before is not None:
        query = query.where(audit.c.number < before)
    if campaign is not None:
        query = query.where(audit.c.campaign == campaign)
    if start is not None:
        query = query.where(audit.c.at >= start)
    if end is not None:
        query = query.where(audit.c.at < end)
    return [AuditRow._make(row) for row in tx.connection.execute(query)]
