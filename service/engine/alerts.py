"""When another regime has been the likeliest for long enough: the rule behind the regime alerts, and nothing else.

A regime is told of once it is the likeliest in as many beliefs of record in a row as `alerts.rounds` says. The first
one is only noted; every other one is a change. All that must be remembered is the regime told last, so a restart,
another worker, a batch and one-by-one requests find the same changes at the same rounds.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policy import State

__all__ = ["RegimeChange", "Told", "count_regimes", "find_regime_changes"]

FIRST_LOOK = 32  # rows looked back at; twice as many each time it is not enough
FloatArray = npt.NDArray[np.float64]


class Told(NamedTuple):
    """What was told last: how many regimes there were to choose from, and which one it was, counted from 0."""

    regimes: int
    regime: int | None


class RegimeChange(NamedTuple):
    """Another regime is the likeliest, and stays so. Regimes are counted from 0."""

    before: int
    after: int
    round: int  # in which that had lasted long enough
    since_round: int
    belief: list[float]


def count_regimes(state: State) -> int:
    """Those that contexts tell apart: none before the first estimate. When it changes, the old numbers mean nothing."""
    return 0 if state.hmm is None else state.belief.size


def find_regime_changes(
    beliefs: FloatArray, decided: int, rounds: int, told: int | None
) -> tuple[list[RegimeChange], int | None]:
    """The changes that the rows from `decided` on bring, and the regime told last after them.

    `beliefs` (rows × regimes) are those of record, the newest last. Of the older ones no more than needed are read:
    a decision's cost must not grow with them.
    """
    changes: list[RegimeChange] = []
    for start, end, regime in _runs(beliefs, decided):
        if regime == told or end < rounds:
            continue
        if start == decided:  # it may have begun earlier; if its oldest row is another's, that answers at once
            if end - start < rounds and beliefs[end - rounds].argmax() != regime:
                continue
            start = _begun(beliefs, decided, regime)
        complete = max(start + rounds - 1, decided)
        if complete < end:
            if told is not None:
                changes.append(RegimeChange(told, regime, complete + 1, start + 1, beliefs[complete].tolist()))
            told = regime
    return changes, told


def _runs(beliefs: FloatArray, first: int) -> Iterator[tuple[int, int, int]]:
    """Rows next to each other, from the first on, in which the same regime is the likeliest: start, end, regime."""
    start = first
    for regime, run in groupby(beliefs[first:].argmax(axis=1).tolist()):
        end = start + sum(1 for _ in run)
        yield start, end, regime
        start = end


def _begun(beliefs: FloatArray, row: int, regime: int) -> int:
    """The first of the rows right before that one in which the regime is the likeliest; the row itself if none is."""
    look = FIRST_LOOK
    while row > 0:
        first = max(0, row - look)
        others = np.flatnonzero(beliefs[first:row].argmax(axis=1) != regime)
        if others.size:
            return first + int(others[-1]) + 1
        row, look = first, 2 * look
    return 0
