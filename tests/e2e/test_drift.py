"""The statistics of `make soak` on artificial series: a leak is found, and noise is not a leak."""

import numpy as np
import pytest

from tests.e2e.drift import Quantity, estimate_slope, examine

LIVES, POINTS = 4, 75
LIFE = np.repeat(range(LIVES), POINTS)
DECISIONS = np.arange(LIVES * POINTS) * 200.0  # 60,000, as in ten minutes


def draw_noise(seed, correlation=0.8):
    """Correlated neighbours with a few outliers."""
    rng = np.random.default_rng(seed)
    values, last = [], 0.0
    for shock in rng.normal(size=LIFE.size):
        last = correlation * last + shock
        values.append(last)
    return np.array(values) + 20 * (rng.random(LIFE.size) < 0.02)


def draw_memory(seed, leak):
    """Each life has its own level, and a restart frees what leaked."""
    level = np.random.default_rng(seed).normal(240e6, 5e6, LIVES)[LIFE]
    return level + 200e3 * draw_noise(seed) + leak * (DECISIONS - DECISIONS[LIFE * POINTS])


def examine_memory(y, allowed=100.0, x=DECISIONS):
    return examine(Quantity("memory", "bytes", "decision", LIFE, x, y, allowed))


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_leak_is_found(seed):
    """300 bytes a decision are 18 MB in ten minutes; a restart frees a quarter of that each time."""
    finding = examine_memory(draw_memory(seed, 300.0))
    assert finding.drifts
    assert finding.verdict == "DRIFTS"
    assert finding.slope.value == pytest.approx(300, rel=0.1)


def test_noise_does_not_drift():
    """Two of 20 intervals may miss the truth, but even then the slope is far below the allowed one."""
    findings = [examine_memory(draw_memory(seed, 0.0)) for seed in range(20)]
    assert sum(each.slope.low <= 0 <= each.slope.high for each in findings) >= 18
    assert not any(each.drifts for each in findings)


def test_a_small_slope_that_is_certain_is_allowed():
    finding = examine_memory(40 * DECISIONS + draw_noise(1), allowed=100.0)
    assert finding.slope.low > 39
    assert (finding.drifts, finding.verdict) == (False, "small enough")
    assert examine_memory(-300 * DECISIONS + draw_noise(1)).verdict == "within noise"  # a fall does no harm


def test_restarts_do_not_count():
    """The level may change at a restart; that is no growth within a life."""
    flat = np.array([1.0, 0.5, 3.0, 2.0])[LIFE] * 1e8
    assert estimate_slope(LIFE, DECISIONS, flat) == (0.0, 0.0, 0.0)
    assert examine_memory(flat).verdict == "within noise"


def test_outliers_do_not_matter():
    y = np.full(LIFE.size, 5.0) + 0.01 * draw_noise(2)
    y[-10:] += 1_000  # ten of 300, all at the end
    assert abs(estimate_slope(np.zeros(LIFE.size, int), DECISIONS, y).value) < 1e-5


def test_first_and_last_part_are_medians_of_thirds():
    finding = examine(Quantity("handles", "", "hour", [0] * 9, range(9), [1, 2, 3, 0, 0, 0, 7, 9, 8], 0.0))
    assert (finding.first, finding.last) == (2, 8)


def test_a_slope_needs_two_points_of_a_life():
    with pytest.raises(ValueError, match="same life"):
        estimate_slope([0, 1], [0.0, 1.0], [1.0, 2.0])
