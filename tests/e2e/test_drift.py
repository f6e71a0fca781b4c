"""The statistics behind `make soak`, on made-up series: a planted leak is found, and noise is no leak."""

import numpy as np
import pytest

from tests.e2e.drift import Quantity, examined, slope_of

LIVES, POINTS = 4, 75
LIFE = np.repeat(range(LIVES), POINTS)
DECISIONS = np.arange(LIVES * POINTS) * 200.0  # 60,000, as in ten minutes


def noise(seed, alike=0.8):
    """Neighbours are alike, and now and then something is far off."""
    rng = np.random.default_rng(seed)
    found, last = [], 0.0
    for shock in rng.normal(size=LIFE.size):
        last = alike * last + shock
        found.append(last)
    return np.array(found) + 20 * (rng.random(LIFE.size) < 0.02)


def memory(seed, leak):
    """A restart gives back what leaked; each life settles on a level of its own."""
    level = np.random.default_rng(seed).normal(240e6, 5e6, LIVES)[LIFE]
    return level + 200e3 * noise(seed) + leak * (DECISIONS - DECISIONS[LIFE * POINTS])


def finding(y, allowed=100.0, x=DECISIONS):
    return examined(Quantity("memory", "bytes", "decision", LIFE, x, y, allowed))


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_leak_is_found(seed):
    """300 bytes a decision: 18 MB in ten minutes, of which a restart gives back a quarter each time."""
    found = finding(memory(seed, 300.0))
    assert found.drifts
    assert found.verdict == "DRIFTS"
    assert found.slope.value == pytest.approx(300, rel=0.1)


def test_noise_does_not_drift():
    """Of 20 intervals two may miss the truth, and then the slope is still far below what matters."""
    found = [finding(memory(seed, 0.0)) for seed in range(20)]
    assert sum(each.slope.low <= 0 <= each.slope.high for each in found) >= 18
    assert not any(each.drifts for each in found)


def test_a_small_slope_that_is_certain_is_allowed():
    found = finding(40 * DECISIONS + noise(1), allowed=100.0)
    assert found.slope.low > 39
    assert (found.drifts, found.verdict) == (False, "small enough")
    assert finding(-300 * DECISIONS + noise(1)).verdict == "within noise"  # falling is no harm


def test_restarts_are_no_slope():
    """Memory falls at every restart, or starts higher: neither is growth within a life."""
    flat = np.array([1.0, 0.5, 3.0, 2.0])[LIFE] * 1e8
    assert slope_of(LIFE, DECISIONS, flat) == (0.0, 0.0, 0.0)
    assert finding(flat).verdict == "within noise"


def test_outliers_do_not_matter():
    y = np.full(LIFE.size, 5.0) + 0.01 * noise(2)
    y[-10:] += 1_000  # ten of 300, all at the end
    assert abs(slope_of(np.zeros(LIFE.size, int), DECISIONS, y).value) < 1e-5


def test_first_and_last_part_are_medians_of_thirds():
    found = examined(Quantity("handles", "", "hour", [0] * 9, range(9), [1, 2, 3, 0, 0, 0, 7, 9, 8], 0.0))
    assert (found.first, found.last) == (2, 8)


def test_no_pair_is_an_error():
    with pytest.raises(ValueError, match="same life"):
        slope_of([0, 1], [0.0, 1.0], [1.0, 2.0])
