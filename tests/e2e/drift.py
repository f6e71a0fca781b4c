"""Decides whether a quantity drifts: a robust slope, its confidence interval, and a verdict.

The slope is that of Theil and Sen: the median of the slopes between all pairs of points, which a few outliers do not
change. A restart resets a process, so both points of a pair belong to the same life. Neighbouring points are
correlated, so the interval comes from a block bootstrap of the residuals. Memory often moves like a random walk, for
which such an interval is too narrow. Therefore a quantity drifts only if the whole interval is above zero and the slope
is above the allowed one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_POINTS = 30  # of a life: more points would only add noise and correlation
RESAMPLES = 400
INTERVAL = (0.5, 99.5)  # percentiles: covers the truth in nine of ten cases where neighbours are strongly correlated
Numbers = npt.NDArray[np.float64]


class Slope(NamedTuple):
    """The change for each unit of x, and its confidence interval."""

    value: float
    low: float
    high: float


class Quantity(NamedTuple):
    """Measurements: the life, x and y of each. A slope up to `allowed` does not matter."""

    name: str
    unit: str
    per: str  # the unit of x
    lives: Sequence[int]
    x: Sequence[float]
    y: Sequence[float]
    allowed: float


class Finding(NamedTuple):
    """The verdict on a quantity."""

    name: str
    unit: str
    per: str
    first: float  # median of the first third
    last: float  # median of the last third
    slope: Slope
    allowed: float

    @property
    def drifts(self) -> bool:
        return self.slope.low > 0 and self.slope.value > self.allowed

    @property
    def verdict(self) -> str:
        if self.drifts:
            return "DRIFTS"
        return "within noise" if self.slope.low <= 0 else "small enough"


def examine(quantity: Quantity) -> Finding:
    y = np.asarray(quantity.y, float)
    third = max(1, y.size // 3)
    slope = estimate_slope(quantity.lives, quantity.x, y)
    first, last = float(np.median(y[:third])), float(np.median(y[-third:]))
    return Finding(quantity.name, quantity.unit, quantity.per, first, last, slope, quantity.allowed)


def estimate_slope(lives: Sequence[int], x: Sequence[float], y: Sequence[float] | Numbers) -> Slope:
    """The slope of Theil and Sen over pairs within a life, and its interval from a block bootstrap."""
    life, x, y = _thin(np.asarray(lives), np.asarray(x, float), np.asarray(y, float))
    left, right = np.triu_indices(x.size, 1)
    pairs = (life[left] == life[right]) & (x[left] != x[right])
    left, right = left[pairs], right[pairs]
    if not left.size:
        raise ValueError("no two points belong to the same life")
    distance = x[right] - x[left]
    value = float(np.median((y[right] - y[left]) / distance))
    residuals = y - value * x
    for each in np.unique(life):
        residuals[life == each] -= np.median(residuals[life == each])
    drawn = _resample(residuals)
    slopes = value + np.median((drawn[:, right] - drawn[:, left]) / distance, axis=1)
    low, high = np.percentile(slopes, INTERVAL)
    return Slope(value, float(low), float(high))


def _thin(life: npt.NDArray[np.int_], x: Numbers, y: Numbers) -> tuple[npt.NDArray[np.int_], Numbers, Numbers]:
    """Replace neighbours by their median, so that no life has too many points."""
    lives, xs, ys = [], [], []
    for each in np.unique(life):
        own = np.flatnonzero(life == each)
        for part in np.array_split(own, min(MOST_POINTS, own.size)):
            lives.append(each)
            xs.append(np.median(x[part]))
            ys.append(np.median(y[part]))
    return np.array(lives), np.array(xs), np.array(ys)


def _resample(residuals: Numbers) -> Numbers:
    """Draw residuals in blocks of neighbours; every call draws the same ones."""
    size = residuals.size
    length = max(1, round(size**0.5))
    starts = np.random.default_rng(7).integers(0, size, (RESAMPLES, -(-size // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :size] % size
    return residuals[places]
