"""Does a quantity drift? A robust slope, what chance could make of it, and a verdict.

The slope is Theil and Sen's: the median of the slopes between all pairs of points, so that a few outliers do not
matter. A process that is started again begins anew, so pairs are only made within a life. Neighbouring points are
alike, so the interval comes from residuals that are drawn again in blocks. A random walk, as memory often is, still
fools such an interval; hence a quantity drifts only if the interval lies above zero and the slope above what is stated
as allowed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Finding", "Quantity", "Slope", "examined", "slope_of"]

MOST_POINTS = 30  # of a life: what is finer is noise, and neighbours are more alike
RESAMPLES = 400
INTERVAL = (0.5, 99.5)  # percentiles: the truth is inside in nine of ten cases where neighbours are much alike
Numbers = npt.NDArray[np.float64]


class Slope(NamedTuple):
    """A change for each unit of x, and the interval that chance makes of it."""

    value: float
    low: float
    high: float


class Quantity(NamedTuple):
    """Measurements of one thing: lives, x and y of each. `allowed` is the slope up to which it does not matter."""

    name: str
    unit: str
    per: str  # what x counts
    lives: Sequence[int]
    x: Sequence[float]
    y: Sequence[float]
    allowed: float


class Finding(NamedTuple):
    """What became of a quantity. Slopes are for each unit of x."""

    name: str
    unit: str
    per: str
    points: int
    first: float  # median of the first third
    last: float  # and of the last
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


def examined(quantity: Quantity) -> Finding:
    """The verdict on a quantity."""
    y = np.asarray(quantity.y, float)
    third = max(1, y.size // 3)
    slope = slope_of(quantity.lives, quantity.x, y)
    first, last = float(np.median(y[:third])), float(np.median(y[-third:]))
    return Finding(quantity.name, quantity.unit, quantity.per, y.size, first, last, slope, quantity.allowed)


def slope_of(lives: Sequence[int], x: Sequence[float], y: Sequence[float] | Numbers) -> Slope:
    """Theil and Sen's slope over pairs within a life, and its interval by a bootstrap of blocks."""
    life, x, y = _thinned(np.asarray(lives), np.asarray(x, float), np.asarray(y, float))
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
    drawn = _blocks(residuals)
    slopes = value + np.median((drawn[:, right] - drawn[:, left]) / distance, axis=1)
    low, high = np.percentile(slopes, INTERVAL)
    return Slope(value, float(low), float(high))


def _thinned(life: npt.NDArray[np.int_], x: Numbers, y: Numbers) -> tuple[npt.NDArray[np.int_], Numbers, Numbers]:
    """Medians of neighbours, so that no life has too many points."""
    lives, xs, ys = [], [], []
    for each in np.unique(life):
        own = np.flatnonzero(life == each)
        for part in np.array_split(own, min(MOST_POINTS, own.size)):
            lives.append(each)
            xs.append(np.median(x[part]))
            ys.append(np.median(y[part]))
    return np.array(lives), np.array(xs), np.array(ys)


def _blocks(residuals: Numbers) -> Numbers:
    """Residuals drawn again, in blocks that keep neighbours together; the same draws every time."""
    size = residuals.size
    length = max(1, round(size**0.5))
    starts = np.random.default_rng(7).integers(0, size, (RESAMPLES, -(-size // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :size] % size
    return residuals[places]
