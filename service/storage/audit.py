"""The audit log: what administrators did to campaigns, people's data and keys, when, and in which request.

Rows are only added, in the same transaction as the change they describe, and they outlive their campaign. They never
contain a person's identifier, a key's secret, or the path of a webhook, which may be a secret.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import insert

from policy import CampaignConfig
from service.base.logs import REQUEST_ID
from service.storage.rows import AuditRow, select_newest, select_rows
from service.storage.tables import audit
from service.storage.transaction import Transaction

COMMAND_LINE = "command line"  # anyone with access to the database may do anything


class Record(NamedTuple):
    """An administrative action, to be stored when it is done."""

    actor: str
    role: str | None
    action: str
    campaign: str | None
    details: Mapping[str, Any]
    request_id: str | None = None
    outcome: Literal["done", "refused"] = "done"


def record_command(action: str, campaign: str | None = None, **details: Any) -> Record:
    """The record of a command on the command line."""
    return Record(COMMAND_LINE, None, action, campaign, details)


def record_request(
    actor: str, role: str | None, action: str, campaign: str | None, details: Mapping[str, Any]
) -> Record:
    """The record of the current request."""
    return Record(actor, role, action, campaign, details, REQUEST_ID.get())


def add_record(tx: Transaction, record: Record | None, now: int, **more: Any) -> None:
    """Store a record; `more` are details that were not known before."""
    if record is not None:
        details = json.dumps({**record.details, **more}, separators=(",", ":"))
        tx.connection.execute(insert(audit).values({**record._asdict(), "details": details, "at": now}))


def log_record(record: Record, **more: Any) -> None:
    """Write a record to the log as well, once it is committed."""
    fields = {"campaign": record.campaign, "by": record.actor, **record.details, **more}
    logging.getLogger("undercurrent.admin").info(record.action, extra=fields)


def describe_changes(before: CampaignConfig, after: CampaignConfig) -> dict[str, Any]:
    """The fields that differ between two configurations, each with both values."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {
        name: {"from": _hide_path(old[name]), "to": _hide_path(new[name])} for name in old if old[name] != new[name]
    }


def describe_receiver(config: CampaignConfig) -> dict[str, Any]:
    """The host that a new campaign's alerts are sent to: data leaves the service, so the audit log must say where."""
    webhook = config.alerts.webhook
    return {} if webhook is None else {"webhook": _get_host(webhook)}


def _hide_path(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("webhook"):
        return {**value, "webhook": _get_host(value["webhook"])}
    return value


def _get_host(webhook: str) -> str:
    """The address without its path, which is often a secret."""
    return "{0.scheme}://{0.netloc}/…".format(urlsplit(webhook))


def read_audit_page(
    tx: Transaction,
    before: int | None,
    limit: int,
    campaign: str | None = None,
    between: tuple[int | None, int | None] = (None, None),
) -> list[AuditRow]:
    """The newest rows, or the newest before a number; of one campaign, or from a time on and before another."""
    query = select_newest(select_rows(AuditRow, audit), audit.c.number, before, limit)
    start, end = between
    if campaign is not None:
        query = query.where(audit.c.campaign == campaign)
    if start is not None:
        query = query.where(audit.c.at >= start)
    if end is not None:
        query = query.where(audit.c.at < end)
    return tx.read_rows(AuditRow, query)
