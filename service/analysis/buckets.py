"""Down-sampling without losing a regime change: where the regime changed, buckets that begin there, sums over them."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.engine.alerts import find_regime_changes

__all__ = ["Changes", "bucket_starts", "lasting_changes", "mean_beliefs", "tallied"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Changes(NamedTuple):
    """Where another regime became the likeliest and stayed so, in order; rows and regimes count from 0."""

    since: IntArray  # the first row of it
    before: IntArray
    after: IntArray

    def picked(self, which: npt.NDArray[np.bool_]) -> "Changes":
        return Changes(*(column[which] for column in self))


def lasting_changes(beliefs: FloatArray, regimes: npt.NDArray[np.int8], rounds: int) -> Changes:
    """The changes that lasted so many rounds, by the rule of the regime alerts (alerts.py).

    `beliefs` is rows × most regimes, `regimes` says how many are in use in a row. Where their number changes, the rule
    begins anew: the old numbers mean nothing then. Before the first estimate, while all are equally likely (R5), and
    with one regime there is none. A row of which nothing is known (0 regimes) counts as the one before it.
    """
    rows = np.arange(regimes.size)
    known = np.maximum.accumulate(np.where(regimes > 0, rows, 0))
    regimes, beliefs = regimes[known], beliefs[known]
    different = np.flatnonzero(beliefs.max(axis=1) * regimes > 1.0 + 1e-12)  # more likely than 1 in so many
    first = int(different[0]) if different.size else rows.size
    eras = np.append(np.flatnonzero(np.diff(regimes[first:], prepend=0)) + first, rows.size).tolist()
    found = [
        (start + change.since_round - 1, change.before, change.after)
        for start, end in pairwise(eras)
        if regimes[start] > 1
        for change in find_regime_changes(beliefs[start:end, : regimes[start]], 0, rounds, None)[0]
    ]
    return Changes(*np.array(found, np.int64).reshape(-1, 3).T)


def bucket_starts(first: int, end: int, points: int, changes: IntArray) -> IntArray:
    """Where buckets of the rows first … end-1 begin: at every change, and else as even as `points` of them allow.

    Where there are more changes than points, there are as many buckets as they need.
    """
    if first >= end:
        return np.empty(0, np.int64)
    inner = changes[(changes > first) & (changes < end)]
    corners = np.concatenate(([first], inner, [end]))
    lengths = np.diff(corners)
    spare = max(0, points - lengths.size)
    # Each stretch between two changes gets one, and its share of the others by its length.
    shares = np.minimum(1 + spare * lengths // (end - first), lengths)
    place = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
    starts: IntArray = np.repeat(corners[:-1], shares) + place * np.repeat(lengths, shares) // np.repeat(shares, shares)
    return starts


def tallied(
    buckets: IntArray, count: int, codes: npt.NDArray[np.integer], kinds: int, weights: FloatArray | None = None
) -> FloatArray:
    """How many rows of each kind a bucket has, or the sum of their weights: buckets × kinds."""
    table: FloatArray = np.bincount(buckets * kinds + codes, weights, count * kinds).astype(np.float64)
    return table.reshape(count, kinds)


def mean_beliefs(beliefs: FloatArray, regimes: npt.NDArray[np.int8], starts: IntArray) -> FloatArray:
    """The mean over each bucket's rows of which the belief is known; NaN where there is none."""
    known = np.add.reduceat((regimes > 0).astype(np.float64), starts)
    with np.errstate(invalid="ignore"):
        mean: FloatArray = np.add.reduceat(beliefs, starts, axis=0) / known[:, None]
    return mean
