"""The law that a decision was drawn from (R12): the probability of every action, recomputed from the log."""

from typing import NamedTuple

import numpy as np

from policy.arrays import BoolArray, FloatArray, IndexArray
from policy.defaults import TRIAL_SHARE

TOLERANCE = 1e-12  # between a stored propensity and the one that its law gives
NEARLY = 1e-9  # scores this close, relative to the largest, may have been equal or not before they were stored


class Logged(NamedTuple):
    """Decisions as logged; scores are NaN where an action was not eligible."""

    scores: FloatArray  # T×K
    warm: BoolArray  # T: decided in the warm start
    taken: IndexArray  # T: the action's place
    propensity: FloatArray  # T
    share: FloatArray  # T: of the control
    baseline: BoolArray  # T: the control plays the baseline
    floors: FloatArray  # T×F: those that may have been in force


def compute_logging_law(logged: Logged) -> tuple[FloatArray, BoolArray]:
    """The probability of every eligible action (R12), NaN for the others; and where it agrees with the propensity.

    The propensity itself shows which floor was in force (a trial has its own), and which scores were tied: adding the
    mean reward before storing them can create or hide ties.
    """
    scores, warm, taken, _, share, baseline, floors = logged
    eligible = ~np.isnan(scores)
    count = np.maximum(eligible.sum(axis=1), 1)[:, None]
    finite = np.where(eligible, scores, -np.inf)
    best, largest = finite.max(axis=1), np.abs(np.where(eligible, scores, 0.0)).max(axis=1)
    tied, near = finite == best[:, None], finite >= (best - NEARLY * largest)[:, None]
    alone = near & (np.arange(scores.shape[1]) == taken[:, None])
    control = np.where(baseline[:, None], mark_first_eligible(eligible), 1.0 / count)
    law = np.broadcast_to(1.0 / count, scores.shape).copy()
    known = warm & _agrees(law, logged)
    for winners in (tied, alone, near & ~alone, near):
        ties = winners.sum(axis=1)
        for floor in floors.T[:, :, None]:
            sought = ~(known | warm) & (ties > 0)
            if not sought.any():
                break
            policy = floor + (1.0 - count * floor) * (winners / np.maximum(ties, 1)[:, None])
            mixed = share[:, None] * control + (1.0 - share[:, None]) * policy
            explained = sought & _agrees(mixed, logged)
            law[explained], known[explained] = mixed[explained], True
    known &= eligible[np.arange(taken.size), taken]
    return np.where(eligible, law, np.nan), known


def list_floors(floor: float, active: int) -> tuple[float, float]:
    """The floors that may be in force with `active` actions in use: the configured one, and that of a trial (R12)."""
    return floor, max(floor, TRIAL_SHARE / active)


def mark_first_eligible(eligible: BoolArray) -> FloatArray:
    """The law of a baseline control: all on the first eligible action, usually the baseline."""
    first: FloatArray = (eligible & (eligible.cumsum(axis=1) == 1)).astype(np.float64)
    return first


def _agrees(law: FloatArray, logged: Logged) -> BoolArray:
    agrees: BoolArray = np.abs(law[np.arange(logged.taken.size), logged.taken] - logged.propensity) <= TOLERANCE
    return agrees
