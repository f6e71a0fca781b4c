"""The worlds of benchmarks/worlds.json: what each says about itself holds in what it draws."""

import numpy as np
import pytest

from benchmarks.worlds import load_worlds
from policy import hmm
from policy.features import FeatureMap

WORLDS = load_worlds()


@pytest.fixture(params=list(WORLDS))
def world(request):
    return WORLDS[request.param]


def test_a_seed_gives_the_same_episode_and_another_seed_another(world):
    one, same, other = (world.draw(400, seed) for seed in (1, 1, 2))
    for mine, theirs in zip(one, same, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert not np.array_equal(one.rewards, other.rewards)


def test_rewards_are_the_means_and_noise(world):
    """Every action's rewards average to its values, in the worlds that are measured against the true regime."""
    episode = world.draw(world.rounds, 1)
    noise = episode.rewards - episode.values
    spread = np.asarray(world.noise["std"])
    if world.reference == "regime":
        assert np.abs(noise.mean(axis=0)).max() < 5.0 * spread.max() / np.sqrt(world.rounds)
        if world.noise["law"] == "gaussian":
            assert noise.std(axis=0) == pytest.approx(spread + np.zeros(noise.shape[1]), rel=0.05)
    best = episode.values.argmax(axis=1)
    assert episode.compute_regret(best) == 0.0
    assert len(np.unique(best)) > 1


def test_its_contexts_fit_its_campaign(world):
    episode = world.draw(300, 1)
    for own in ({}, {"regimes": 1}):
        features = FeatureMap(world.build_config(1, **own))
        features.check(features.find_symbols(episode.contexts))
    assert (np.diff(episode.times) > 0.0).all()
    width = world.effects.shape[2] + episode.contexts.values.shape[1]
    assert episode.columns.shape == (300, width)


def count_changes(name):
    return int(np.count_nonzero(np.diff(WORLDS[name].draw(20_000, 3).regimes)))


def test_regimes_move_as_described():
    assert 8 <= count_changes("sticky-silent") <= 35
    assert count_changes("break") == 1
    assert count_changes("weekly") == 20_000 // 100 // 7 * 2
    assert count_changes("seven-days") == 20_000 // 100 - 1
    assert 60 <= count_changes("six-regimes") <= 140
    assert np.unique(WORLDS["six-regimes"].draw(20_000, 3).regimes).size == 6


def measure_shift(name):
    """How far the frequencies of symbols are apart in the first two regimes."""
    world = WORLDS[name]
    episode = world.draw(20_000, 3)
    symbols = FeatureMap(world.build_config(1)).find_symbols(episode.contexts).symbols
    laws = [np.bincount(symbols[episode.regimes == h], minlength=12) for h in (0, 1)]
    return np.abs(laws[0] / laws[0].sum() - laws[1] / laws[1].sum()).sum()


@pytest.mark.parametrize("name", ["sticky-informative", "weekly", "break-shift", "mix-only", "heavy-tails"])
def test_contexts_that_tell_the_regimes_apart(name):
    assert measure_shift(name) > 0.2


@pytest.mark.parametrize("name", ["sticky-silent", "break", "drift"])
def test_contexts_that_are_silent(name):
    assert measure_shift(name) < 0.08


def test_effects_of_the_mix_are_the_same_and_those_of_a_drift_move_slowly():
    assert (WORLDS["mix-only"].effects[0] == WORLDS["mix-only"].effects[1]).all()
    world = WORLDS["drift"]
    episode = world.draw(20_000, 1)
    start, middle, end = (
        episode.values[rows].mean(axis=0) for rows in (slice(500), slice(9_750, 10_250), slice(-500, None))
    )
    first, second = (np.mean(episode.columns @ world.effects[h].T, axis=0) for h in (0, 1))
    assert start == pytest.approx(first, abs=0.1)
    assert middle == pytest.approx(second, abs=0.1)
    assert end == pytest.approx(first, abs=0.1)


def test_minings_reference_is_the_filter_by_the_true_parameters():
    """With the numbers cut in levels the filter would know a little less: here it has the numbers themselves."""
    world = WORLDS["mining-slow"]
    regimes = world._draw_regimes(500, np.random.default_rng(1)).argmax(axis=1)
    _, _, likelihoods = world._draw_variables(regimes, np.random.default_rng(2))
    beliefs = world._filter(likelihoods)
    transition, alone = np.array(world.regimes["transition"]), np.full((3, 1), 1.0)
    evidence = np.ascontiguousarray(likelihoods)
    expected = np.empty_like(beliefs)
    hmm.kernels.filter_path(
        transition, alone, np.full(3, 1 / 3), hmm.check_steps(None, 500), np.zeros(500, np.int16), evidence, expected
    )
    assert beliefs == pytest.approx(expected, abs=1e-12)
    assert (beliefs.argmax(axis=1) == regimes).mean() > 0.9
