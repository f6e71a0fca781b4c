"""What a restart begins with: snapshots of a campaign's state, and blocks of the hashes of its decision ids."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import func, insert, select, update

from service.storage.rows import SnapshotRow, select_rows
from service.storage.tables import id_blocks, jobs, live, snapshots
from service.storage.transaction import Transaction


class SnapshotPoint(NamedTuple):
    """The point of the log that a snapshot is of; points compare by their order in the log."""

    round: int
    arrived: int
    revision: int


class IdBlock(NamedTuple):
    last_round: int
    hashes: bytes


def read_snapshot_points(tx: Transaction, campaign: int) -> list[SnapshotPoint]:
    """The point of every snapshot, newest first."""
    query = select_rows(SnapshotPoint, snapshots).where(snapshots.c.campaign_id == campaign)
    return tx.read_rows(SnapshotPoint, query.order_by(snapshots.c.round.desc()))


def get_snapshot(tx: Transaction, campaign: int, round: int) -> bytes:
    """The encoded state of the snapshot of a round."""
    query = select(snapshots.c.state).where(snapshots.c.campaign_id == campaign, snapshots.c.round == round)
    return bytes(tx.connection.execute(query).scalar_one())


def add_snapshot(tx: Transaction, row: SnapshotRow, keep: Iterable[int]) -> None:
    """Add a snapshot, and delete the older ones but for those of the rounds to keep."""
    own = snapshots.c.campaign_id == row.campaign_id
    kept = [round for round in keep if round < row.round]
    tx.connection.execute(snapshots.delete().where(own, snapshots.c.round.not_in(kept)))
    tx.connection.execute(insert(snapshots).values(row._asdict()))
    tx.connection.execute(update(live).where(live.c.campaign_id == row.campaign_id).values(snapshot_round=row.round))
    # A result that a snapshot contains is no longer needed: the fold starts after it.
    tx.connection.execute(
        update(jobs)
        .where(jobs.c.campaign_id == row.campaign_id, jobs.c.published_round < row.round)
        .values(result=None)
    )


def read_id_blocks(tx: Transaction, campaign: int) -> Iterator[IdBlock]:
    """The blocks of ids, in order."""
    query = select_rows(IdBlock, id_blocks).where(id_blocks.c.campaign_id == campaign)
    for row in tx.connection.execute(query.order_by(id_blocks.c.last_round)):
        yield IdBlock(row.last_round, bytes(row.hashes))


def get_last_round_in_blocks(tx: Transaction, campaign: int) -> int:
    """The round up to which ids are in blocks."""
    query = select(func.coalesce(func.max(id_blocks.c.last_round), 0)).where(id_blocks.c.campaign_id == campaign)
    return int(tx.connection.execute(query).scalar_one())


def add_id_block(tx: Transaction, campaign: int, block: IdBlock) -> None:
    tx.connection.execute(insert(id_blocks).values(campaign_id=campaign, **block._asdict()))
