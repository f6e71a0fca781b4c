"""The rule behind regime alerts: a different regime has been the most likely for `alerts.rounds` decisions in a row.

The first regime is only remembered; each later one is a change. The regime announced last is all that must be stored,
so restarts, other workers, batches and single requests find the same changes at the same rounds.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from policy import State
from policy.arrays import FloatArray

FIRST_LOOK = 32  # rows to look back at first; then twice as many each time


class Announced(NamedTuple):
    """The number of regimes in use, and the one that was announced last, counted from 0."""

    regimes: int
    regime: int | None


class RegimeChange(NamedTuple):
    """Another regime is the most likely, and has been for long enough. Regimes are counted from 0."""

    before: int
    after: int
    round: int  # when it had lasted long enough
    since_round: int
    belief: list[float]


def count_regimes(state: State) -> int:
    """Count the regimes in use; 0 before the first estimate. When the count changes, regimes are numbered anew."""
    return 0 if state.hmm is None else state.belief.size


def find_regime_changes(
    beliefs: FloatArray, decided: int, rounds: int, announced: int | None, first: int = 0
) -> tuple[list[RegimeChange], int | None]:
    """Find the changes in the rows from `decided` on; return them and the regime announced last after them.

    `beliefs` (rows × regimes) are the beliefs of record after the `first` rounds, oldest first. Older rows are read
    only as far as needed, so that the cost of a decision does not grow with them.
    """
    changes: list[RegimeChange] = []
    likeliest = beliefs[decided:].argmax(axis=1)
    edges = np.flatnonzero(np.diff(likeliest, prepend=-1, append=-1)) + decided
    for start, end in pairwise(edges.tolist()):  # adjacent rows with the same most likely regime
        regime = int(likeliest[start - decided])
        if regime == announced or end < rounds:
            continue
        if start == decided:  # the run may have started earlier; often one row shows that it is too short
            if end - start < rounds and beliefs[end - rounds].argmax() != regime:
                continue
            start = _find_start(beliefs, decided, regime)
        complete = max(start + rounds - 1, decided)
        if complete < end:
            if announced is not None:
                since, belief = first + start + 1, beliefs[complete].tolist()
                changes.append(RegimeChange(announced, regime, first + complete + 1, since, belief))
            announced = regime
    return changes, announced


def _find_start(beliefs: FloatArray, row: int, regime: int) -> int:
    """Find the first of the adjacent rows before `row` with this most likely regime; `row` itself if there is none."""
    look = FIRST_LOOK
    while row > 0:
        first = max(0, row - look)
        others = np.flatnonzero(beliefs[first:row].argmax(axis=1) != regime)
        if others.size:
            return first + int(others[-1]) + 1
        row, look = first, 2 * look
    return 0
