"""Recover a campaign from the database: its row, its configuration, and its state at any position in the log.

A state is rebuilt by folding the log from a snapshot, or from the beginning if no snapshot will do (R21). When to take
snapshots, and which of them to keep, is decided here too.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np
import numpy.typing as npt

from policy import CampaignConfig, CodecError, StagedPolicy, State, decode
from service.base.errors import ConflictError, NotFoundError
from service.base.waits import Wait
from service.engine.course import FAILED_PUBLICATION, Position
from service.engine.fold import MissingInput, Replay
from service.storage.campaigns import find_campaign, get_config, read_revision_page
from service.storage.models import read_model_page
from service.storage.rows import LiveRow, SnapshotRow
from service.storage.snapshots import get_snapshot, read_snapshot_points
from service.storage.transaction import Transaction

TOLERANCE = 1e-9  # across machines (R15)
SNAPSHOT_ROUNDS = 1_000  # the least distance of two snapshots; a fifth of all rounds later on, for constant cost
MOST_ROUNDS_TO_FOLD = 50_000  # after a restart: a few seconds
RECENT_SNAPSHOTS = 3


def get_campaign(tx: Transaction, name: str) -> LiveRow:
    # PostgreSQL's text type cannot hold a zero byte, so such a name cannot even be looked up.
    row = None if "\x00" in name else find_campaign(tx, name)
    if row is None:
        raise NotFoundError(f"There is no campaign {name!r}")
    return row


def load_config(tx: Transaction, campaign: int) -> CampaignConfig:
    """Return the configuration in force."""
    return CampaignConfig.model_validate_json(get_config(tx, campaign))


def load_wait(tx: Transaction, row: LiveRow, now: int) -> Wait:
    """Return until when the campaign waits for rewards, seen from now or, if that is later, its last transaction."""
    rules = load_config(tx, row.campaign_id).rewards
    return Wait.build(rules.default, rules.wait_seconds, max(now, row.clock))


def load_positions(tx: Transaction, campaign: int) -> Iterator[Position]:
    """Yield the positions that a fold can start from: the snapshots, newest first, then the beginning.

    Damaged snapshots are skipped (R21).
    """
    configs = {row.revision: row.config for row in tx.read_revisions(campaign, 0)}
    for round, _, revision in read_snapshot_points(tx, campaign):
        try:
            state = decode(get_snapshot(tx, campaign, round))
        except CodecError:
            continue
        yield Position(revision, _load_policy(configs[revision]), state)
    yield load_first_position(tx, campaign)


def load_first_position(tx: Transaction, campaign: int) -> Position:
    """Return the position before the first round."""
    (first,) = read_revision_page(tx, campaign, 2, 1)
    policy = _load_policy(first.config)
    return Position(first.revision, policy, policy.initial_state())


def _load_policy(config: str) -> StagedPolicy:
    return StagedPolicy(CampaignConfig.model_validate_json(config))


def recover_position(tx: Transaction, campaign: int, cached: Iterable[Position] = ()) -> Position:
    """Fold the log to its end, starting from a cached position if that works, else from a stored one."""
    for start in chain(cached, load_positions(tx, campaign)):
        with suppress(MissingInput):
            return Replay(start, tx, campaign).run()
    raise AssertionError("a fold from the beginning has every input")


def rebuild_model(tx: Transaction, row: LiveRow, version: int) -> Position:
    """Return the position at which a model was published, and check the model against the stored coefficients."""
    (stored,) = read_model_page(tx, row.campaign_id, version + 1, 1)
    for start in load_positions(tx, row.campaign_id):
        if start.state.model_version >= version:
            continue
        with suppress(MissingInput):
            replay = Replay(start, tx, row.campaign_id)
            past = _fold_to_model(replay, version)
            exact = past.revision >= replay.exact_from  # an erasure since then changes earlier models (R22)
            if exact and not coefficients_match(stored.theta, past.state):
                problem = f"Model {version} of campaign {row.name} differs from what its log gives, so one is damaged"
                advice = f"Choose another version; `undercurrent verify {row.name}` gives details"
                raise ConflictError(f"{problem}. {advice}")
            return past
    raise AssertionError("the log contains every model")


def _fold_to_model(replay: Replay, version: int) -> Position:
    for _ in chain(replay.parts(), [None]):  # the last part may be followed by changes
        for _, position in replay.models:
            if position.state.model_version == version:
                return position
        replay.models.clear()
    raise AssertionError("the log contains every model")


def rebuild_job_input(tx: Transaction, campaign: int, input_round: int) -> Position:
    """Return the position that a re-estimation job starts from, for taking over the job of a dead worker."""
    for start in load_positions(tx, campaign):
        if start.state.round > input_round:
            continue
        with suppress(MissingInput):
            replay = Replay(start, tx, campaign)
            for _ in replay.parts():
                if input_round in replay.inputs:
                    return replay.inputs[input_round]
    raise AssertionError("a job is logged with the round that needs it")


def find_open_job(tx: Transaction, campaign: int) -> int | None:
    """Return the input round of the job whose result is not in force, or whose failure is not logged yet."""
    job = tx.get_newest_job(campaign)
    if job is None or job.status in ("published", "nothing"):
        return None
    if job.status == "failed" and any(
        kind == FAILED_PUBLICATION for _, kind in tx.read_events(campaign, job.input_round)
    ):
        return None
    return job.input_round


def coefficients_match(stored: bytes, state: State) -> bool:
    """Are the stored coefficients those of the state?"""
    theta = state.statistics.theta
    return len(stored) == 8 * theta.size and numbers_match(np.frombuffer(stored, "<f8"), theta)


def numbers_match(stored: npt.ArrayLike, computed: npt.ArrayLike) -> bool:
    """Are the numbers equal? On one machine to the bit, across machines within R15's tolerance."""
    one, other = np.asarray(stored), np.asarray(computed)
    if one.shape != other.shape:
        return False
    # Equal bits are the usual case, and allclose takes ten times as long.
    return bool((one == other).all() or np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE))


def compute_spacing(round: int) -> int:
    """Compute how many rounds after a snapshot of this round the next one is due."""
    return min(max(SNAPSHOT_ROUNDS, round // 5), MOST_ROUNDS_TO_FOLD)


def choose_snapshots_to_keep(rounds: Sequence[int]) -> set[int]:
    """Choose from snapshots, newest first: the last few, and the first one after every power of two."""
    firsts = {round.bit_length(): round for round in rounds}
    return {*rounds[: RECENT_SNAPSHOTS - 1], *firsts.values()}


def build_snapshot_row(campaign: int, revision: int, state: State, encoded: bytes, now: int) -> SnapshotRow:
    return SnapshotRow(
        campaign_id=campaign,
        round=state.round,
        arrived=state.arrived,
        revision=revision,
        model_version=state.model_version,
        state=encoded,
        created_at=now,
    )
