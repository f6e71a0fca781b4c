"""When to take a snapshot of a campaign's state, and which of the older ones to keep (R21)."""

from collections.abc import Sequence

from policy import State
from service.storage.rows import SnapshotRow

SNAPSHOT_ROUNDS = 1_000  # the least distance of two snapshots; a fifth of all rounds later on, for constant cost
MOST_ROUNDS_TO_FOLD = 50_000  # after a restart: a few seconds
RECENT_SNAPSHOTS = 3


def compute_spacing(round: int) -> int:
    """Compute how many rounds after a snapshot of this round the next one is due."""
    return min(max(SNAPSHOT_ROUNDS, round // 5), MOST_ROUNDS_TO_FOLD)


def choose_snapshots_to_keep(rounds: Sequence[int]) -> set[int]:
    """Choose from snapshots, newest first: the last few, and the first one after every power of two."""
    firsts = {round.bit_length(): round for round in rounds}
    return {*rounds[: RECENT_SNAPSHOTS - 1], *firsts.values()}


def build_snapshot_row(campaign: int, revision: int, state: State, encoded: bytes, now: int) -> SnapshotRow:
    """Build the row of a snapshot."""
    return SnapshotRow(
        campaign_id=campaign,
        round=state.round,
        arrived=state.arrived,
        revision=revision,
        model_version=state.model_version,
        state=encoded,
        created_at=now,
    )
