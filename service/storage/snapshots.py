"""Snapshots of a campaign's state, which a restart begins with."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import insert, select, update

from service.storage.rows import SnapshotRow, select_rows
from service.storage.tables import jobs, live, snapshots
from service.storage.transaction import Transaction


class SnapshotPoint(NamedTuple):
    """The point of the log that a snapshot is of; points compare by their order in the log."""

    round: int
    arrived: int
    revision: int


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
