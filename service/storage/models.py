"""Models: the versions that stage updates, re-estimations and changes of a campaign have published."""

from collections.abc import Iterator

from sqlalchemy import func, select

from service.storage.rows import ModelRow, select_newest, select_rows
from service.storage.statements import PAGE
from service.storage.tables import models
from service.storage.transaction import Transaction


def read_model_page(tx: Transaction, campaign: int, before: int | None, limit: int) -> list[ModelRow]:
    """The newest models, or the newest before a version."""
    query = select_rows(ModelRow, models).where(models.c.campaign_id == campaign)
    return tx.read_rows(ModelRow, select_newest(query, models.c.version, before, limit))


def read_models(tx: Transaction, campaign: int) -> Iterator[ModelRow]:
    """All models, in order; queries one page at a time."""
    query = select_rows(ModelRow, models).where(models.c.campaign_id == campaign).order_by(models.c.version)
    after = 0
    while rows := tx.read_rows(ModelRow, query.where(models.c.version > after).limit(PAGE)):
        yield from rows
        after = rows[-1].version


def get_erasure_version(tx: Transaction, campaign: int) -> int:
    """The model of the last erasure, 0 without one: models before it cannot be rebuilt (R22)."""
    own = models.c.campaign_id == campaign, models.c.kind == "erasure"
    return tx.connection.execute(select(func.max(models.c.version)).where(*own)).scalar_one() or 0


def get_regimes_before(tx: Transaction, campaign: int, round: int) -> int | None:
    """The number of regimes in use before a round, None if none had been estimated by then."""
    query = select(models.c.regimes, models.c.kind).where(models.c.campaign_id == campaign, models.c.round < round)
    if tx.connection.execute(query.where(models.c.kind == "estimation").limit(1)).first() is None:
        return None
    return int(tx.connection.execute(query.order_by(models.c.version.desc()).limit(1)).one().regimes)
