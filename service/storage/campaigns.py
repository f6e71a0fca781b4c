"""Campaigns and the revisions of their configurations."""

from collections.abc import Collection, Sequence

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from service.storage.rows import LiveRow, RevisionRow, select_newest, select_rows
from service.storage.statements import LIVE_COLUMNS, LIVE_ROWS, PAGE
from service.storage.tables import campaigns, config_revisions, live
from service.storage.transaction import Transaction


def add_campaign(tx: Transaction, name: str, request_hash: bytes, config: str, belief: str, now: int) -> bool:
    """Add a campaign; False if another worker has just created one of that name."""
    values = {"name": name, "request_hash": request_hash, "created_at": now}
    new = (sqlite.insert if tx.embedded else postgresql.insert)(campaigns).values(values)
    campaign = tx.connection.execute(new.on_conflict_do_nothing().returning(campaigns.c.id)).scalar_one_or_none()
    if campaign is None:
        return False
    revision = RevisionRow(
        campaign_id=campaign, revision=1, round=0, arrived=0, config=config, restored=None, erased=None, created_at=now
    )
    tx.append([revision])
    first = dict.fromkeys(LIVE_COLUMNS, 0) | {
        "campaign_id": campaign,
        "version": 1,
        "belief": belief,
        "clock": now,
        "last_at": -(2**62),  # any time is later
        "regime": None,
        "failure": None,
    }
    tx.connection.execute(insert(live).values(first))
    return True


def get_creation_hash(tx: Transaction, campaign: int) -> bytes:
    """The hash of the request that created a campaign."""
    query = select(campaigns.c.request_hash).where(campaigns.c.id == campaign)
    return bytes(tx.connection.execute(query).scalar_one())


def set_archived(tx: Transaction, campaign: int, at: int | None) -> None:
    """Archive a campaign as of a time, or with None reopen it."""
    tx.connection.execute(update(campaigns).where(campaigns.c.id == campaign).values(archived_at=at))


def delete_campaign(tx: Transaction, campaign: int) -> None:
    """Delete a campaign and all its rows."""
    tx.connection.execute(campaigns.delete().where(campaigns.c.id == campaign))


def find_campaign(tx: Transaction, name: str) -> LiveRow | None:
    """The campaign of that name, without a lock."""
    return next(iter(tx.read_rows(LiveRow, LIVE_ROWS.where(campaigns.c.name == name))), None)


def read_campaigns(tx: Transaction) -> list[LiveRow]:
    """All campaigns, by name."""
    return tx.read_rows(LiveRow, LIVE_ROWS.order_by(campaigns.c.name))


def read_campaign_page(
    tx: Transaction, after: str, limit: int, archived: bool | None = None, among: Collection[str] | None = None
) -> list[LiveRow]:
    """A page of campaigns by name, beginning after a name.

    `archived` selects only those that are (True) or are not (False), `among` only those with one of these names.
    """
    query = LIVE_ROWS.where(campaigns.c.name > after).order_by(campaigns.c.name).limit(limit)
    if archived is not None:
        query = query.where(campaigns.c.archived_at.is_not(None) if archived else campaigns.c.archived_at.is_(None))
    if among is not None:
        query = query.where(campaigns.c.name.in_(among))
    return tx.read_rows(LiveRow, query)


# --- revisions --------------------------------------------------------------------------------------------------------


def get_config(tx: Transaction, campaign: int) -> str:
    """The current configuration, as JSON."""
    (newest,) = read_revision_page(tx, campaign, None, 1)
    return newest.config


def get_config_at(tx: Transaction, campaign: int, round: int) -> str:
    """The configuration that a round was decided with, as JSON."""
    own = (config_revisions.c.campaign_id == campaign) & (config_revisions.c.round < round)
    query = select(config_revisions.c.config).where(own).order_by(config_revisions.c.revision.desc()).limit(1)
    return str(tx.connection.execute(query).scalar_one())


def read_revision_page(tx: Transaction, campaign: int, before: int | None, limit: int) -> list[RevisionRow]:
    """The newest revisions, or the newest before one of them."""
    query = select_rows(RevisionRow, config_revisions).where(config_revisions.c.campaign_id == campaign)
    return tx.read_rows(RevisionRow, select_newest(query, config_revisions.c.revision, before, limit))


def get_newest_revisions(tx: Transaction, campaign_ids: Sequence[int]) -> dict[int, RevisionRow]:
    """The newest revision of each of these campaigns, by the campaign's id."""
    table, other = config_revisions, config_revisions.alias()
    newest = select(func.max(other.c.revision)).where(other.c.campaign_id == table.c.campaign_id).scalar_subquery()
    query = select_rows(RevisionRow, table).where(table.c.revision == newest)
    revisions: dict[int, RevisionRow] = {}
    for start in range(0, len(campaign_ids), PAGE):
        part = table.c.campaign_id.in_(campaign_ids[start : start + PAGE])
        revisions |= {row.campaign_id: row for row in tx.read_rows(RevisionRow, query.where(part))}
    return revisions
