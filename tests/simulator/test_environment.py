"""Simulated worlds: drawn frequencies, true beliefs, rewards and both regrets, checked against the parameters."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from policy import FeatureMap, PolicyError
from policy.hmm import stationary_law
from simulator.environment import (
    ENVIRONMENTS,
    HOSTILE,
    SPARSE_LOG_STD,
    SPARSE_SHARE,
    Environment,
    Episode,
    build_environment,
    load_environment,
)
from simulator.prepare import load_profiles
from simulator.presets import build_config

LONG = 50_000


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> Environment:
    return load_environment(request.param)


@pytest.fixture(scope="module")
def episode(environment: Environment) -> Episode:
    """Long enough for frequencies; drawing costs milliseconds."""
    return environment.draw(LONG, np.random.default_rng(11))


@pytest.fixture(scope="module")
def credit_card() -> Environment:
    return load_environment("credit-card")


@pytest.fixture(scope="module", params=ENVIRONMENTS + HOSTILE)
def any_environment(request: pytest.FixtureRequest) -> Environment:
    return load_environment(request.param)


def find_cells(environment: Environment, episode: Episode) -> np.ndarray:
    """The row of `environment.levels` for each round's context."""
    sizes = [len(variable["levels"]) for variable in environment.variables]
    return np.ravel_multi_index(tuple(episode.contexts.levels.T), sizes)


def expected_rewards(environment: Environment, episode: Episode) -> np.ndarray:
    """T×K: the mean of every reward, given the regime and the context, or the belief and the context."""
    if environment.reward_model == "belief":
        return episode.values
    return environment.means[episode.regimes, :, find_cells(environment, episode)]


def assert_frequencies(counts: np.ndarray, law: np.ndarray) -> None:
    """Independent draws: every count within 5 standard errors; outcomes expected fewer than 10 times are pooled."""
    total = counts.sum()
    rare = total * law < 10
    counts, law = np.append(counts[~rare], counts[rare].sum()), np.append(law[~rare], law[rare].sum())
    assert (np.abs(counts - total * law) <= 5 * np.sqrt(total * law * (1 - law)) + 1e-9).all()


def assert_centred(deviations: np.ndarray) -> None:
    """Every column has mean 0, within 5 standard errors."""
    assert (np.abs(deviations.mean(axis=0)) <= 5 * deviations.std(axis=0, ddof=1) / len(deviations) ** 0.5).all()


# --- seeds and data ---------------------------------------------------------------------------------------------------


def test_a_seed_gives_one_episode(any_environment: Environment) -> None:
    first, again, other = (any_environment.draw(300, np.random.default_rng(seed)) for seed in (3, 3, 4))
    for mine, same in zip((*first.contexts, *first[1:]), (*again.contexts, *again[1:]), strict=True):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(first.contexts.symbols, other.contexts.symbols)
    assert not np.array_equal(first.regimes, other.regimes)
    assert not np.array_equal(first.rewards, other.rewards)


def describe_tiny(**changes: Any) -> dict[str, Any]:
    """A small world, as data."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "regimes": ["up", "down"],
        "actions": ["wait", "ask"],
        "variables": [
            {"name": "size", "levels": ["s", "l"], "probabilities": [0.25, 0.75]},
            {"name": "mood", "levels": ["low", "mid", "high"]},
        ],
        "signals": ["mood"],
        "transition": [[0.9, 0.1], [0.3, 0.7]],
        "initial": [0.75, 0.25],
        "emission": [[0.1, 0.3, 0.6], [0.5, 0.3, 0.2]],
        "noise_std": 0.1,
        "rewards": {
            "up": {"intercept": 0.5, "actions": {"ask": 0.2}, "actions:size": {"ask": [0.0, 0.1]}},
            "down": {"size": [0.0, 0.3], "actions": {"ask": -0.2}},
        },
    }
    return {**fields, **changes}


def test_an_environment_is_data() -> None:
    environment = build_environment(describe_tiny(initial=[0.2, 0.8]))  # not its stationary law, (0.75, 0.25)
    generator = np.random.default_rng(1)
    episode = environment.draw(20_000, generator)
    up, down = environment.means[:, :, environment.levels[:, 0] == 1].transpose(0, 2, 1)  # large, any mood
    np.testing.assert_allclose(up, [[0.5, 0.8]] * 3, atol=1e-15)
    np.testing.assert_allclose(down, [[0.3, 0.1]] * 3, atol=1e-15)
    np.testing.assert_array_equal(episode.contexts.symbols, episode.contexts.levels[:, 1])
    assert_frequencies(np.bincount(episode.contexts.levels[:, 0]), np.array([0.25, 0.75]))
    assert_frequencies(np.bincount(episode.contexts.symbols[episode.regimes == 1]), np.array([0.5, 0.3, 0.2]))
    starts = [environment.draw(1, generator).regimes[0] for _ in range(2000)]
    assert_frequencies(np.bincount(starts), np.array([0.2, 0.8]))


@pytest.mark.parametrize("count", [2, 4])
def test_emission_must_fit_the_signals(count: int) -> None:
    """Otherwise symbols without a context would be drawn."""
    with pytest.raises((ValueError, PolicyError), match="emission"):
        build_environment(describe_tiny(emission=[[1 / count] * count] * 2))


# --- the hidden chain and its emissions -------------------------------------------------------------------------------


def test_chains_are_stationary_and_emissions_distinguish_regimes(environment: Environment) -> None:
    hmm = environment.hmm
    np.testing.assert_allclose(hmm.initial, stationary_law(hmm.transition), atol=1e-12)
    assert np.linalg.matrix_rank(hmm.emission) == len(environment.regimes)


def test_transitions_and_symbols_follow_their_laws(environment: Environment, episode: Episode) -> None:
    moves = np.zeros(environment.hmm.transition.shape)
    np.add.at(moves, (episode.regimes[:-1], episode.regimes[1:]), 1)
    for regime, law in enumerate(environment.hmm.emission):
        assert_frequencies(moves[regime], environment.hmm.transition[regime])
        symbols = episode.contexts.symbols[episode.regimes == regime]
        assert_frequencies(np.bincount(symbols, minlength=law.size), law)


def test_credit_card_profiles_follow_the_counts_given_the_symbol(credit_card: Environment) -> None:
    episode = credit_card.draw(LONG, np.random.default_rng(12))
    levels, symbols = episode.contexts.levels, episode.contexts.symbols
    np.testing.assert_array_equal(symbols, 4 * levels[:, 4] + levels[:, 3])  # row-major over risk, revenue
    counts = load_profiles().astype(float)  # age × education × marital status × revenue × risk
    cells = find_cells(credit_card, episode)
    for risk, revenue in product(range(5), range(4)):
        law = np.zeros(counts.shape)
        law[:, :, :, revenue, risk] = counts[:, :, :, revenue, risk] / counts[:, :, :, revenue, risk].sum()
        drawn = np.bincount(cells[symbols == 4 * risk + revenue], minlength=law.size)
        assert (drawn[law.ravel() == 0] == 0).all()
        assert_frequencies(drawn, law.ravel())
    # Given the symbol, the regime makes no difference to the age.
    age, ages = levels[:, 0], np.arange(5)
    laws = counts.sum(axis=(1, 2)) / counts.sum(axis=(0, 1, 2))  # age × revenue × risk: P(age | symbol)
    mean = np.tensordot(ages, laws, 1)[levels[:, 3], levels[:, 4]]
    variance = np.tensordot(ages**2, laws, 1)[levels[:, 3], levels[:, 4]] - mean**2
    for regime in range(2):
        here = episode.regimes == regime
        assert abs((age - mean)[here].sum() / np.sqrt(variance[here].sum())) <= 5


def test_segments_of_the_three_regimes_setting_follow_their_probabilities() -> None:
    contexts = load_environment("three-regimes").draw(LONG, np.random.default_rng(14)).contexts
    for symbol in range(12):
        assert_frequencies(np.bincount(contexts.levels[contexts.symbols == symbol, 2]), np.array([0.3, 0.5, 0.2]))


def test_described_contexts_encode_back(environment: Environment, episode: Episode) -> None:
    contexts = [environment.describe_context(episode, row) for row in range(300)]
    encoded = FeatureMap(build_config("paper-complex", environment, 1)).encode(contexts)
    np.testing.assert_array_equal(encoded.levels, episode.contexts.levels[:300])
    np.testing.assert_array_equal(encoded.symbols, episode.contexts.symbols[:300])


# --- mean rewards, by hand from the tables ----------------------------------------------------------------------------

# By environment and levels: per regime the mean of every action. The first is the intercept and the main effects; the
# others add their own effect and their interactions. Credit card: age, education, marital status, revenue, risk.
MEANS = {
    ("credit-card", "3", "university", "other", "4", "1"): (
        (0.05 + 0.017 + 0.017 + 0.033 + 0.033 + 0.067, 0.217 - 0.2 - 0.2 - 0.2, 0.217 + 0.025 + 0.05 + 0.025),
        (0.017 + 0.017 + 0.017 + 0.033 + 0.033 + 0.067, 0.184 + 0.15 + 0.25 + 0.1, 0.184 - 0.1 + 0.15 + 0.05),
    ),
    ("credit-card", "1", "others", "single", "1", "5"): (
        (0.05, 0.05 - 0.2 + 0.4 + 0.2, 0.05 + 0.025 - 0.25 - 0.1),
        (0.017, 0.017 + 0.15 - 0.3 - 0.2, 0.017 - 0.1 + 0.05 + 0.1),
    ),
    ("credit-card", "2", "graduate school", "married", "2", "3"): (
        (0.05 + 0.008 + 0.033 + 0.017 + 0.033, 0.141 - 0.2, 0.141 + 0.025),
        (0.017 + 0.008 + 0.033 + 0.017 + 0.033, 0.108 + 0.15, 0.108 - 0.1),
    ),
    ("credit-card", "4", "high school", "single", "3", "4"): (
        (0.05 + 0.008 + 0.025 + 0.017, 0.1 - 0.2 + 0.3, 0.1 + 0.025 - 0.2),
        (0.017 + 0.008 + 0.025 + 0.017, 0.067 + 0.15 - 0.1, 0.067 - 0.1 + 0.1),
    ),
    ("credit-card", "5", "others", "other", "4", "2"): (
        (0.05 + 0.033 + 0.033 + 0.05, 0.166 - 0.2 - 0.1 - 0.2, 0.166 + 0.025 + 0.025 + 0.025),
        (0.017 + 0.033 + 0.033 + 0.05, 0.133 + 0.15 + 0.2 + 0.1, 0.133 - 0.1 + 0.1 + 0.05),
    ),
    ("three-regimes", "top", "daily", "regular"): (
        (0.25, 0.25 + 0.15 + 0.1, 0.25 - 0.1 + 0.3, 0.25 - 0.2 - 0.1),
        (0.10, 0.10 - 0.1 + 0.1, 0.10 + 0.15 + 0.1, 0.10 + 0.1 - 0.2),
        (0.15, 0.15 + 0.0 - 0.1, 0.15 - 0.2 + 0.1, 0.15 + 0.2 + 0.1),
    ),
    **dict.fromkeys(
        [("nelson", traffic) for traffic in ("low", "normal", "high", "peak")],  # the context makes no difference
        ((0.1, 0.1 + 0.3, 0.1 - 0.2), (0.2, 0.2 - 0.25, 0.2 + 0.2)),
    ),
}


def test_means_by_hand() -> None:
    for (name, *profile), means in MEANS.items():
        environment = load_environment(name)
        places = [v["levels"].index(level) for v, level in zip(environment.variables, profile, strict=True)]
        cell = int(np.flatnonzero((environment.levels == places).all(axis=1))[0])
        np.testing.assert_allclose(environment.means[:, :, cell], means, atol=1e-15)


def test_the_best_action_depends_on_the_regime(environment: Environment) -> None:
    best = environment.means.argmax(axis=1)  # regimes × cells
    assert all((best[h] != best[g]).any() for h in range(len(best)) for g in range(h))


# --- noise and the two reward models ----------------------------------------------------------------------------------


def test_noise_is_centred_scaled_and_independent(environment: Environment, episode: Episode) -> None:
    noise = episode.rewards - expected_rewards(environment, episode)
    std = environment.noise_std
    assert_centred(noise)
    assert (np.abs(noise.std(axis=0) - std) <= 5 * std / (2 * LONG) ** 0.5).all()
    across = np.corrcoef(noise.T) - np.eye(len(environment.actions))
    assert (np.abs(across) <= 5 / LONG**0.5).all()
    over_time = (noise[1:] * noise[:-1]).mean(axis=0) / std**2
    assert (np.abs(over_time) <= 5 / LONG**0.5).all()


def test_the_belief_model_has_the_values_as_means(environment: Environment) -> None:
    by_regime, by_belief = (environment.draw(400, np.random.default_rng(8), model) for model in ("regime", "belief"))
    np.testing.assert_array_equal(by_regime.contexts.levels, by_belief.contexts.levels)
    np.testing.assert_array_equal(by_regime.values, by_belief.values)
    noise = by_regime.rewards - expected_rewards(environment, by_regime)
    np.testing.assert_allclose(by_belief.rewards - by_belief.values, noise, atol=1e-14)
    assert not np.allclose(by_belief.rewards, by_regime.rewards)


def test_rewards_have_the_means_they_should(any_environment: Environment) -> None:
    """For each action and each symbol group given the regime; and for each action given the contexts so far."""
    episode = any_environment.draw(LONG, np.random.default_rng(31))
    deviations = episode.rewards - expected_rewards(any_environment, episode)
    for level in range(len(any_environment.variables[-1]["levels"])):
        assert_centred(deviations[episode.contexts.levels[:, -1] == level])
    # Regimes persist, but batches of 1,000 rounds are nearly independent.
    assert_centred((episode.rewards - episode.values).reshape(50, 1000, -1).mean(axis=1))


@pytest.mark.parametrize("rounds", [1, 6])
def test_true_beliefs_against_enumeration(environment: Environment, rounds: int) -> None:
    transition, emission, initial = environment.hmm
    episode = environment.draw(rounds, np.random.default_rng(rounds))
    symbols = episode.contexts.symbols
    for t in range(1, rounds + 1):
        belief = np.zeros(initial.size)
        for path in product(range(initial.size), repeat=t):
            weight = initial[path[0]] * emission[path[0], symbols[0]]
            for i in range(1, t):
                weight *= transition[path[i - 1], path[i]] * emission[path[i], symbols[i]]
            belief[path[-1]] += weight
        np.testing.assert_allclose(episode.beliefs[t - 1], belief / belief.sum(), atol=1e-12)


# --- regret -----------------------------------------------------------------------------------------------------------


def test_the_oracle_has_no_regret_and_nobody_beats_it(environment: Environment, episode: Episode) -> None:
    means = environment.means[:, :, find_cells(environment, episode)[:200]]
    by_hand = [(episode.beliefs[t] @ means[:, :, t]).argmax() for t in range(200)]
    np.testing.assert_array_equal(episode.oracle[:200], by_hand)
    assert (episode.compute_regrets(episode.oracle) == 0).all()
    count = len(environment.actions)
    for actions in [*(np.full(LONG, a) for a in range(count)), np.random.default_rng(3).integers(count, size=LONG)]:
        curve = episode.compute_regrets(actions)[0]
        assert curve[0] >= 0
        assert (np.diff(curve) >= 0).all()
        assert curve[-1] > 0


def test_regrets_by_hand(credit_card: Environment) -> None:
    episode = credit_card.draw(4, np.random.default_rng(21))
    actions = np.array([2, 0, 1, 1], np.int16)
    pseudo, actual = episode.compute_regrets(actions)
    for table, curve in ((episode.values, pseudo), (episode.rewards, actual)):
        gaps = [table[t, episode.oracle[t]] - table[t, actions[t]] for t in range(4)]
        np.testing.assert_allclose(curve, [gaps[0], sum(gaps[:2]), sum(gaps[:3]), sum(gaps)], atol=1e-14)
    np.testing.assert_array_equal(episode.compute_regrets(actions[:2])[0], pseudo[:2])


# --- hostile variants of the credit-card environment ------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_variants_change_one_thing(name: str, credit_card: Environment) -> None:
    hostile = load_environment(name)
    for field in ("actions", "signals", "variables"):
        assert getattr(hostile, field) == getattr(credit_card, field)
    np.testing.assert_array_equal(hostile.hmm.emission, credit_card.hmm.emission)
    assert np.array_equal(hostile.hmm.transition, credit_card.hmm.transition) == (name != "iid")
    assert (hostile.reward_law != "gaussian") == (name in ("binary", "sparse"))
    assert (hostile.reward_model == "belief") == (name == "belief-rewards")
    assert hostile.delivery[:3] == (("geometric", 50.0, 0.1) if name == "delayed" else (None, 0.0, 0.0))
    if name == "quiet-regimes":  # regimes affect contexts but no reward: the stationary mean, to the tables' digits
        np.testing.assert_array_equal(hostile.means[0], hostile.means[1])
        mean = np.tensordot(credit_card.hmm.initial, credit_card.means, 1)
        np.testing.assert_allclose(hostile.means[0], mean, atol=2e-3)
    elif name in ("binary", "sparse"):
        best = hostile.means.argmax(axis=1)
        assert (best[0] != best[1]).any()
    else:
        np.testing.assert_array_equal(hostile.means, credit_card.means)


def test_binary_rewards_are_0_or_1_and_sparse_ones_mostly_0_and_otherwise_lognormal() -> None:
    """Their means: test_rewards_have_the_means_they_should."""
    environment = load_environment("binary")
    assert 0.0 < environment.means.min() < environment.means.max() < 1.0
    assert np.unique(environment.draw(LONG, np.random.default_rng(32)).rewards).tolist() == [0.0, 1.0]
    environment = load_environment("sparse")
    assert environment.means.min() > 0.0
    episode = environment.draw(LONG, np.random.default_rng(33))
    zero = episode.rewards == 0.0
    variance = SPARSE_SHARE * (1 - SPARSE_SHARE) / episode.rewards.size
    assert abs(zero.mean() - 0.95) <= 5 * variance**0.5
    assert (episode.rewards >= 0.0).all()
    logs = np.log(episode.rewards[~zero] * SPARSE_SHARE / expected_rewards(environment, episode)[~zero])
    assert abs(logs.mean() + SPARSE_LOG_STD**2 / 2) <= 5 * SPARSE_LOG_STD / logs.size**0.5
    assert abs(logs.std() - SPARSE_LOG_STD) <= 5 * SPARSE_LOG_STD / (2 * logs.size) ** 0.5


def test_iid_contexts_have_no_memory() -> None:
    environment = load_environment("iid")
    np.testing.assert_allclose(environment.hmm.transition, np.tile(environment.hmm.initial, (2, 1)), atol=1e-12)
    symbols = environment.draw(LONG, np.random.default_rng(34)).contexts.symbols
    law = environment.hmm.initial @ environment.hmm.emission
    assert_frequencies(np.bincount(symbols[1:][symbols[:-1] == 0], minlength=law.size), law)


def test_delays_are_geometric_and_a_tenth_of_the_rewards_never_arrives(credit_card: Environment) -> None:
    assert credit_card.draw(10, np.random.default_rng(1)).delays.tolist() == [0] * 10
    episode = load_environment("delayed").draw(LONG, np.random.default_rng(31))
    lost = episode.delays == -1
    for regime in range(2):
        here = lost[episode.regimes == regime]
        assert abs(here.mean() - 0.1) <= 5 * (0.09 / here.size) ** 0.5
    delays = episode.delays[~lost]
    assert abs(delays.mean() - 50.0) <= 5 * (50 * 51 / delays.size) ** 0.5
    for rounds in (1, 10, 50, 200):
        chance = (50 / 51) ** rounds
        assert abs((delays >= rounds).mean() - chance) <= 5 * (chance * (1 - chance) / delays.size) ** 0.5
    # Delays change no draw of contexts and rewards.
    prompt = credit_card.draw(LONG, np.random.default_rng(31))
    np.testing.assert_array_equal(episode.rewards, prompt.rewards)
    np.testing.assert_array_equal(episode.contexts.levels, prompt.contexts.levels)
