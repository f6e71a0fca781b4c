"""Down-sampling that keeps every regime change: where regimes change, buckets that start there, sums over buckets."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policy.arrays import FloatArray, IntArray
from service.engine.alerts import find_regime_changes


class Changes(NamedTuple):
    """Regime changes in order, one array a field; rows and regimes count from 0."""

    since: IntArray  # the first row in which the new regime is the most likely
    before: IntArray
    after: IntArray

    def select(self, mask: npt.NDArray[np.bool_]) -> "Changes":
        return Changes(*(column[mask] for column in self))


def find_lasting_changes(beliefs: FloatArray, regimes: npt.NDArray[np.int8], rounds: int) -> Changes:
    """The changes after which the new regime stayed the most likely for `rounds` rounds, as alerts count them.

    `beliefs` is rows × the largest number of regimes; `regimes` is the number in use in each row. Where that number
    changes, counting starts again, because the old regime numbers mean nothing then. There is no change before the
    first estimate, while all regimes are equally likely (R5), nor with one regime. An erased row (0 regimes) repeats
    the row before it.
    """
    rows = np.arange(regimes.size)
    known = np.maximum.accumulate(np.where(regimes > 0, rows, 0))
    regimes, beliefs = regimes[known], beliefs[known]
    uneven = np.flatnonzero(beliefs.max(axis=1) * regimes > 1.0 + 1e-12)
    first = int(uneven[0]) if uneven.size else rows.size
    eras = np.append(np.flatnonzero(np.diff(regimes[first:], prepend=0)) + first, rows.size).tolist()
    changes = [
        (start + change.since_round - 1, change.before, change.after)
        for start, end in pairwise(eras)
        if regimes[start] > 1
        for change in find_regime_changes(beliefs[start:end, : regimes[start]], 0, rounds, None)[0]
    ]
    return Changes(*np.array(changes, np.int64).reshape(-1, 3).T)


def bucket_starts(first: int, end: int, points: int, changes: IntArray) -> IntArray:
    """The first row of each bucket of the rows first … end-1: one at every change, the others evenly spaced.

    There are at most `points` buckets, or one more than there are changes if that is more.
    """
    if first >= end:
        return np.empty(0, np.int64)
    inner = changes[(changes > first) & (changes < end)]
    corners = np.concatenate(([first], inner, [end]))
    lengths = np.diff(corners)
    spare = max(0, points - lengths.size)
    # Each stretch between two changes gets one bucket, and its share of the spare ones by its length.
    shares = np.minimum(1 + spare * lengths // (end - first), lengths)
    place = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
    starts: IntArray = np.repeat(corners[:-1], shares) + place * np.repeat(lengths, shares) // np.repeat(shares, shares)
    return starts


def tally(
    buckets: IntArray, count: int, codes: npt.NDArray[np.integer], kinds: int, weights: FloatArray | None = None
) -> FloatArray:
    """The number of rows of each kind in each bucket, or the sum of their weights: buckets × kinds."""
    table: FloatArray = np.bincount(buckets * kinds + codes, weights, count * kinds).astype(np.float64)
    return table.reshape(count, kinds)


def mean_beliefs(beliefs: FloatArray, regimes: npt.NDArray[np.int8], starts: IntArray) -> FloatArray:
    """The mean belief over the rows of each bucket that have one; NaN where none has."""
    known = np.add.reduceat((regimes > 0).astype(np.float64), starts)
    with np.errstate(invalid="ignore"):
        mean: FloatArray = np.add.reduceat(beliefs, starts, axis=0) / known[:, None]
    return mean
