"""The law of delays: against its definition, against what is known without truncation, and against simulation."""

import numpy as np
import pytest

from policy.defaults import PRIOR_DELAYS, PRIOR_POINTS
from policy.delays import SLICES, estimate_law, find_ages

WAIT = 14.0


def sample(count, mean, seed=0, spread=20.0):
    """Delays that have come by now, of rounds spread evenly over the last days, and how old their rounds are."""
    generator = np.random.default_rng(seed)
    ages, delays = generator.uniform(0.0, spread, count), generator.exponential(mean, count)
    seen = (delays <= ages) & (delays <= WAIT)
    return delays[seen], ages[seen]


def compute_by_definition(delays, limits, u):
    """F(u) = Π (1 - n(v) / N(v)) over v > u, one delay at a time."""
    grid = WAIT * np.arange(1, PRIOR_POINTS + 1) / PRIOR_POINTS
    each, product = PRIOR_DELAYS / PRIOR_POINTS, 1.0
    for v in sorted({*delays, *grid}):
        if v > u:
            here = sum(d == v for d in delays) + each * sum(g == v for g in grid)
            seen = sum(d <= v <= a for d, a in zip(delays, limits, strict=True)) + each * sum(g <= v for g in grid)
            product *= 1.0 - here / seen
    return product


@pytest.mark.parametrize("mean", [0.01, 2.0, 30.0])
def test_the_law_follows_its_definition(mean):
    delays, limits = sample(60, mean)
    delays = np.round(delays, 1)  # ties, also with the rounds' ages
    limits = np.maximum(limits, delays)
    law = estimate_law(delays, limits, WAIT)
    expected = [compute_by_definition(delays, limits, u) for u in law.points]
    np.testing.assert_allclose(law.reached, expected, atol=1e-12)
    assert (np.diff(law.points) > 0).all()
    assert (np.diff(law.reached) >= 0).all()
    assert law.reached[-1] == 1.0


def test_without_any_delay_the_prior_speaks():
    law = estimate_law(np.empty(0), np.empty(0), WAIT)
    np.testing.assert_allclose(law.reached, law.points / WAIT)


def test_without_truncation_it_is_the_share_that_has_come():
    delays, _ = sample(20_000, 2.0)
    law = estimate_law(delays, np.full(delays.size, 100.0), WAIT)
    shares = np.searchsorted(np.sort(delays), law.points, side="right") / delays.size
    np.testing.assert_allclose(law.reached, shares, atol=1e-3)


def test_truncated_delays_give_the_true_law():
    """Most rounds are too young to show a long delay, so that the plain share of short ones would be far too large."""
    delays, limits = sample(40_000, 4.0, spread=16.0)
    law = estimate_law(delays, limits, WAIT)
    true = (1.0 - np.exp(-law.points / 4.0)) / (1.0 - np.exp(-WAIT / 4.0))
    plain = np.searchsorted(np.sort(delays), law.points, side="right") / delays.size
    assert np.abs(plain - true).max() > 0.05
    np.testing.assert_allclose(law.reached, true, atol=0.02)


@pytest.mark.parametrize(("mean", "count"), [(0.001, 500), (2.0, 0), (2.0, 3), (2.0, 5000), (50.0, 5000)])
def test_slices_enter_at_ages_that_rise_within_the_wait(mean, count):
    wait = WAIT * 1e6
    delays, limits = sample(count, mean)
    ages = find_ages(estimate_law(delays * 1e6, limits * 1e6, wait), wait)
    assert ages.dtype == np.int64
    assert ages.size == SLICES
    assert ages[0] == 0
    assert (np.diff(ages) >= 0).all()
    assert ages[-1] <= wait


def test_the_weight_of_a_round_is_the_law_rounded_to_slices():
    wait = WAIT * 1e6
    delays, limits = sample(5000, 2.0)
    law = estimate_law(delays * 1e6, limits * 1e6, wait)
    ages = find_ages(law, wait)
    for age in np.linspace(0.0, wait, 200)[1:]:
        weight = np.searchsorted(ages, age, side="right") / SLICES
        known = law.reached[np.searchsorted(law.points, age, side="right") - 1]
        assert weight == 1 / SLICES or abs(weight - known) <= 0.5 / SLICES + 1e-9
