"""The lift over control after any number of rounds, for many numbers at once in a few passes.

A round of the model counts by 1/(1-c) and one of the control by 1/c, with c the control's share in that round, so that
both groups stand for the same rounds where it changed; with one share these are plain means. Rounds of one subject
share a control assignment (R13): they are one cluster, and the variance is cluster-robust. The interval is Welch's.
"""

import math
from typing import NamedTuple

import numpy as np

from policy.arrays import BoolArray, FloatArray, IntArray

ALONE = -1  # the cluster of a round without a subject
LEAST = 20  # the least effective number of decisions or clusters behind a published number
NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal law


class Compared(NamedTuple):
    """Rewarded rounds after the warm start while control was on, in order."""

    rewards: FloatArray
    controlled: BoolArray
    share: FloatArray  # of the control, > 0
    clusters: IntArray  # numbers ≥ 0, or ALONE


class Group(NamedTuple):
    """One group at each of the ends: rewards, their weighted mean (NaN before the first) and its variance."""

    rewards: IntArray
    mean: FloatArray
    variance: FloatArray
    clusters: IntArray

    def times(self, exponent: int) -> "Group":
        """The same in units that are smaller by a power of two."""
        mean, variance = np.ldexp(self.mean, exponent), np.ldexp(self.variance, 2 * exponent)
        return self._replace(mean=mean, variance=variance)


class Lifts(NamedTuple):
    """The difference of the means at each of the ends and its 95 % interval; NaN while a group is too small."""

    decided: Group
    control: Group
    difference: FloatArray
    low: FloatArray
    high: FloatArray


def cumulative_lift(rows: Compared, ends: IntArray) -> Lifts:
    """The lift of the first ends[0], ends[1], … rows."""
    rewards, exponent = in_units(rows.rewards)
    rows = rows._replace(rewards=rewards)
    level = float(rewards[0]) if rewards.size else 0.0  # near the rewards: their squares would hide the variance
    decided = _group(rows, ~rows.controlled, 1.0 - rows.share, level, ends)
    control = _group(rows, rows.controlled, rows.share, level, ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = decided.variance + control.variance
        spread = sum(group.variance**2 / (group.clusters - 1) for group in (decided, control))
        freedom = np.where(spread > 0.0, variance**2 / spread, np.inf)  # Satterthwaite's
        half = _student(freedom) * np.sqrt(variance)
    enough = (decided.clusters >= LEAST) & (control.clusters >= LEAST)
    difference, half = np.where(enough, decided.mean - control.mean, np.nan), np.where(enough, half, np.nan)
    lifts = (np.ldexp(numbers, exponent) for numbers in (difference, difference - half, difference + half))
    return Lifts(decided.times(exponent), control.times(exponent), *lifts)


def in_units(rewards: FloatArray) -> tuple[FloatArray, int]:
    """Rewards divided by a power of two, and its exponent: exact, and their squares can neither overflow nor vanish."""
    exponent = math.frexp(float(np.abs(rewards).max(initial=0.0)))[1]
    return np.ldexp(rewards, -exponent), exponent


def _group(rows: Compared, mine: BoolArray, chance: FloatArray, level: float, ends: IntArray) -> Group:
    places = np.flatnonzero(mine)
    weights = 1.0 / chance[places]
    values = weights * (rows.rewards[places] - level)
    before_weight, before_value, first = _before(weights, values, rows.clusters[places])
    counts = np.searchsorted(places, ends)

    def total(steps: FloatArray) -> FloatArray:
        sums: FloatArray = np.concatenate(([0.0], np.cumsum(steps)))[counts]
        return sums

    # Sums over clusters of W², WX and X², where W and X are a cluster's sums so far: each row adds to its own.
    squares = total(weights * (2.0 * before_weight + weights))
    products = total(weights * (before_value + values) + values * before_weight)
    values_squared = total(values * (2.0 * before_value + values))
    whole, clusters = total(weights), total(first.astype(np.float64)).astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total(values) / whole
        spread = np.maximum(values_squared - 2.0 * mean * products + mean**2 * squares, 0.0)
        variance = spread / whole**2 * clusters / np.maximum(clusters - 1, 1)
    return Group(counts, level + mean, variance, clusters)


def _before(weights: FloatArray, values: FloatArray, clusters: IntArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The sums of each row's cluster before that row, and whether it is the first row of its cluster."""
    own = np.where(clusters == ALONE, -1 - np.arange(clusters.size), clusters)
    order = np.argsort(own, kind="stable")
    begins = np.diff(own[order], prepend=np.iinfo(np.int64).min) != 0
    start = np.maximum.accumulate(np.where(begins, np.arange(order.size), 0))
    sums = []
    for steps in (weights[order], values[order]):
        running = np.cumsum(steps) - steps
        whole = np.empty_like(running)
        whole[order] = running - running[start]
        sums.append(whole)
    first = np.empty(order.size, np.bool_)
    first[order] = begins
    return sums[0], sums[1], first


def _student(freedom: FloatArray) -> FloatArray:
    """The 97.5 % quantile of Student's law: the first terms of its expansion, good to 2e-5 from 19 degrees on."""
    z, n = NORMAL, 1.0 / freedom
    series: FloatArray = z + n / 4 * (
        z**3 + z + n / 24 * (5 * z**5 + 16 * z**3 + 3 * z + n / 4 * (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z))
    )
    return series
