"""The lift as it builds up: every end against a plain computation, and intervals that hold what they promise."""

import numpy as np
import pytest
from scipy.special import stdtrit

from policy.lift import ALONE, LEAST, Compared, cumulative_lift


def rounds(generator, count=900, people=60, share=0.3, effect=0.5, own=1.0):
    """Rounds of people who come back: each is in one group for good, and has habits."""
    clusters = np.where(generator.random(count) < 0.6, generator.integers(0, people, count), ALONE)
    habits, assigned = generator.normal(size=people) * own, generator.random(people) < share
    alone = clusters == ALONE
    controlled = np.where(alone, generator.random(count) < share, assigned[clusters])
    noise = generator.normal(size=count) + np.where(alone, generator.normal(size=count) * own, habits[clusters])
    return Compared(10.0 + noise + effect * ~controlled, controlled, np.full(count, share), clusters)


def plain(rows, end):
    """Weighted means, cluster-robust variances and Welch's interval, row by row."""
    found = []
    for group, chance in ((False, 1.0 - rows.share), (True, rows.share)):
        mine = [i for i in range(end) if rows.controlled[i] == group]
        weight = sum(1.0 / chance[i] for i in mine)
        mean = sum(rows.rewards[i] / chance[i] for i in mine) / weight
        sums: dict = {}
        for i in mine:
            key = ("alone", i) if rows.clusters[i] == ALONE else rows.clusters[i]
            sums[key] = sums.get(key, 0.0) + (rows.rewards[i] - mean) / chance[i]
        variance = sum(value**2 for value in sums.values()) / weight**2 * len(sums) / (len(sums) - 1)
        found.append((len(mine), mean, variance, len(sums)))
    (_, mean, variance, clusters), (_, other, doubt, others) = found
    freedom = (variance + doubt) ** 2 / (variance**2 / (clusters - 1) + doubt**2 / (others - 1))
    half = stdtrit(freedom, 0.975) * np.sqrt(variance + doubt)
    return found, mean - other, half


def test_every_end_is_what_a_plain_computation_gives():
    rows = rounds(np.random.default_rng(1))
    changed = np.where(np.arange(900) < 400, 0.1, 0.3)  # the share of the control changed on the way
    rows = rows._replace(share=changed)
    ends = np.array([150, 399, 400, 401, 650, 650, 900])
    lifts = cumulative_lift(rows, ends)
    for i, end in enumerate(ends.tolist()):
        groups, difference, half = plain(rows, end)
        for found, (count, mean, variance, clusters) in zip((lifts.decided, lifts.control), groups, strict=True):
            assert (found.rewards[i], found.clusters[i]) == (count, clusters)
            assert found.mean[i] == pytest.approx(mean, rel=1e-12)
            assert found.variance[i] == pytest.approx(variance, rel=1e-9)
        assert lifts.difference[i] == pytest.approx(difference, rel=1e-9)
        assert lifts.high[i] - lifts.low[i] == pytest.approx(2 * half, rel=2e-5)


def test_no_interval_rests_on_a_few():
    rows = rounds(np.random.default_rng(2))
    ends = np.arange(901)
    lifts = cumulative_lift(rows, ends)
    enough = (lifts.decided.clusters >= LEAST) & (lifts.control.clusters >= LEAST)
    assert 0 < np.flatnonzero(enough)[0] < 900
    for column in (lifts.difference, lifts.low, lifts.high):
        assert (np.isnan(column) == ~enough).all()
    assert np.isnan(lifts.control.mean[0])
    nothing = Compared(np.empty(0), np.empty(0, np.bool_), np.empty(0), np.empty(0, np.int64))
    assert np.isnan(cumulative_lift(nothing, np.zeros(3, np.int64)).difference).all()


def test_intervals_hold_the_truth_in_95_of_100_campaigns():
    """People who come back make decisions alike: an interval that took them for strangers would be too narrow."""
    generator, inside, naive = np.random.default_rng(3), 0, 0
    campaigns = 400
    for _ in range(campaigns):
        rows = rounds(generator, count=600, people=120, effect=0.5)
        for clusters, robust in ((rows.clusters, True), (np.full(600, ALONE), False)):
            lifts = cumulative_lift(rows._replace(clusters=clusters), np.array([600]))
            held = bool(lifts.low[0] <= 0.5 <= lifts.high[0])
            inside, naive = inside + (held and robust), naive + (held and not robust)
    assert 0.92 <= inside / campaigns <= 0.98
    assert naive < inside
