"""The HMM environment: drawn frequencies, true beliefs, rewards and both regrets against its parameters."""

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


def cells_of(environment: Environment, episode: Episode) -> np.ndarray:
    """Which row of `environment.levels` each round's context is."""
    sizes = [len(variable["levels"]) for variable in environment.variables]
    return np.ravel_multi_index(tuple(episode.contexts.levels.T), sizes)


def regime_means(environment: Environment, episode: Episode) -> np.ndarray:
    """T×K: the mean reward of every action in the regime of the round."""
    return environment.means[episode.regimes, :, cells_of(environment, episode)]


def assert_frequencies(counts: np.ndarray, law: np.ndarray) -> None:
    """Independent draws: every count within 5 standard errors; what is expected less than 10 times is pooled."""
    total = counts.sum()
    rare = total * law < 10
    counts, law = np.append(counts[~rare], counts[rare].sum()), np.append(law[~rare], law[rare].sum())
    assert (np.abs(counts - total * law) <= 5 * np.sqrt(total * law * (1 - law)) + 1e-9).all()


# --- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward_model", ["regime", "belief"])
def test_a_seed_gives_one_episode(environment: Environment, reward_model: str) -> None:
    first, again, other = (environment.draw(500, np.random.default_rng(seed), reward_model) for seed in (3, 3, 4))
    for name in Episode._fields[1:]:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    for mine, same in zip(first.contexts, again.contexts, strict=True):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(first.contexts.symbols, other.contexts.symbols)
    assert not np.array_equal(first.regimes, other.regimes)
    assert not np.array_equal(first.rewards, other.rewards)


def test_shapes(environment: Environment, episode: Episode) -> None:
    actions, regimes = len(environment.actions), len(environment.regimes)
    assert episode.contexts.levels.shape == (LONG, len(environment.variables))
    assert episode.contexts.values.shape == (LONG, 0)
    assert episode.contexts.symbols.shape == episode.regimes.shape == episode.oracle.shape == (LONG,)
    assert episode.beliefs.shape == (LONG, regimes)
    assert episode.values.shape == episode.rewards.shape == (LONG, actions)


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(ValueError, match=r"'weather'.*credit-card, nelson, three-regimes"):
        load_environment("weather")


def tiny(**changes: Any) -> dict[str, Any]:
    """A world of one's own, as data."""
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
    environment = build_environment(tiny())
    episode = environment.draw(20_000, np.random.default_rng(1))
    up, down = environment.means[:, :, environment.levels[:, 0] == 1].transpose(0, 2, 1)  # large, any mood
    np.testing.assert_allclose(up, [[0.5, 0.8]] * 3, atol=1e-15)
    np.testing.assert_allclose(down, [[0.3, 0.1]] * 3, atol=1e-15)
    np.testing.assert_array_equal(episode.contexts.symbols, episode.contexts.levels[:, 1])
    assert_frequencies(np.bincount(episode.contexts.levels[:, 0]), np.array([0.25, 0.75]))
    assert_frequencies(np.bincount(episode.contexts.symbols[episode.regimes == 1]), np.array([0.5, 0.3, 0.2]))


@pytest.mark.parametrize("count", [2, 4])
def test_emission_must_fit_the_signals(count: int) -> None:
    """Otherwise symbols without a context would be drawn."""
    with pytest.raises((ValueError, PolicyError), match="emission"):
        build_environment(tiny(emission=[[1 / count] * count] * 2))


# --- the hidden chain and what it emits -------------------------------------------------------------------------------


def test_chains_are_stationary_and_emissions_tell_regimes_apart(environment: Environment) -> None:
    hmm = environment.hmm
    np.testing.assert_allclose(hmm.initial, stationary_law(hmm.transition), atol=1e-12)
    assert np.linalg.matrix_rank(hmm.emission) == len(environment.regimes)


def test_the_regimes_follow_the_stationary_law(environment: Environment, episode: Episode) -> None:
    transition, law = environment.hmm.transition, environment.hmm.initial
    # Regimes persist: with second eigenvalue ρ the variance of a frequency is (1 + ρ) / (1 − ρ) times the binomial.
    persistence = np.sort(np.abs(np.linalg.eigvals(transition)))[-2]
    deviation = np.sqrt(law * (1 - law) / LONG * (1 + persistence) / (1 - persistence))
    shares = np.bincount(episode.regimes, minlength=len(law)) / LONG
    assert (np.abs(shares - law) <= 5 * deviation).all()


def test_the_first_regime_follows_the_initial_law(environment: Environment) -> None:
    generator = np.random.default_rng(5)
    starts = [environment.draw(1, generator).regimes[0] for _ in range(2000)]
    assert_frequencies(np.bincount(starts, minlength=len(environment.regimes)), environment.hmm.initial)


def test_transitions_follow_the_matrix(environment: Environment, episode: Episode) -> None:
    moves = np.zeros(environment.hmm.transition.shape)
    np.add.at(moves, (episode.regimes[:-1], episode.regimes[1:]), 1)
    for counts, law in zip(moves, environment.hmm.transition, strict=True):
        assert_frequencies(counts, law)


def test_symbols_follow_the_regimes_emission(environment: Environment, episode: Episode) -> None:
    for regime, law in enumerate(environment.hmm.emission):
        symbols = episode.contexts.symbols[episode.regimes == regime]
        assert_frequencies(np.bincount(symbols, minlength=law.size), law)


def test_symbols_are_row_major_over_the_signals(credit_card: Environment) -> None:
    contexts = credit_card.draw(2000, np.random.default_rng(1)).contexts
    revenue, risk = contexts.levels[:, 3], contexts.levels[:, 4]
    np.testing.assert_array_equal(contexts.symbols, 4 * risk + revenue)


def test_credit_card_profiles_follow_the_counts_given_the_symbol(credit_card: Environment) -> None:
    episode = credit_card.draw(LONG, np.random.default_rng(12))
    counts = load_profiles().astype(float)  # age × education × marital status × revenue × risk
    cells = cells_of(credit_card, episode)
    for risk, revenue in product(range(5), range(4)):
        law = np.zeros(counts.shape)
        law[:, :, :, revenue, risk] = counts[:, :, :, revenue, risk] / counts[:, :, :, revenue, risk].sum()
        drawn = np.bincount(cells[episode.contexts.symbols == 4 * risk + revenue], minlength=law.size)
        assert (drawn[law.ravel() == 0] == 0).all()
        assert_frequencies(drawn, law.ravel())


def test_profiles_do_not_depend_on_the_regime_given_the_symbol(credit_card: Environment) -> None:
    episode = credit_card.draw(LONG, np.random.default_rng(13))
    counts = load_profiles().astype(float)
    age, ages = episode.contexts.levels[:, 0], np.arange(5)
    laws = counts.sum(axis=(1, 2)) / counts.sum(axis=(0, 1, 2))  # age × revenue × risk: P(age | symbol)
    mean = np.tensordot(ages, laws, 1)
    variance = np.tensordot(ages**2, laws, 1) - mean**2
    place = episode.contexts.levels[:, 3], episode.contexts.levels[:, 4]
    for regime in range(2):
        here = episode.regimes == regime
        surprise = (age - mean[place])[here].sum() / np.sqrt(variance[place][here].sum())
        assert abs(surprise) <= 5


def test_segments_of_the_three_regimes_setting_follow_their_probabilities() -> None:
    contexts = load_environment("three-regimes").draw(LONG, np.random.default_rng(14)).contexts
    for symbol in range(12):
        assert_frequencies(np.bincount(contexts.levels[contexts.symbols == symbol, 2]), np.array([0.3, 0.5, 0.2]))


def test_contexts_in_words_encode_back(environment: Environment, episode: Episode) -> None:
    rows = range(300)
    encoded = FeatureMap(build_config("paper-complex", environment, 1)).encode(
        [environment.describe_context(episode, row) for row in rows]
    )
    np.testing.assert_array_equal(encoded.levels, episode.contexts.levels[:300])
    np.testing.assert_array_equal(encoded.symbols, episode.contexts.symbols[:300])


# --- mean rewards, straight from the tables ---------------------------------------------------------------------------

# (age, education, marital status, revenue, risk): per regime the mean of No action, Call, Email. No action is the
# intercept and the five main effects; the others add their own effect and two interactions.
PAPER_MEANS = {
    ("3", "university", "other", "4", "1"): (
        (0.05 + 0.017 + 0.017 + 0.033 + 0.033 + 0.067, 0.217 - 0.2 - 0.2 - 0.2, 0.217 + 0.025 + 0.05 + 0.025),
        (0.017 + 0.017 + 0.017 + 0.033 + 0.033 + 0.067, 0.184 + 0.15 + 0.25 + 0.1, 0.184 - 0.1 + 0.15 + 0.05),
    ),
    ("1", "others", "single", "1", "5"): (
        (0.05, 0.05 - 0.2 + 0.4 + 0.2, 0.05 + 0.025 - 0.25 - 0.1),
        (0.017, 0.017 + 0.15 - 0.3 - 0.2, 0.017 - 0.1 + 0.05 + 0.1),
    ),
    ("2", "graduate school", "married", "2", "3"): (
        (0.05 + 0.008 + 0.033 + 0.017 + 0.033, 0.141 - 0.2, 0.141 + 0.025),
        (0.017 + 0.008 + 0.033 + 0.017 + 0.033, 0.108 + 0.15, 0.108 - 0.1),
    ),
    ("4", "high school", "single", "3", "4"): (
        (0.05 + 0.008 + 0.025 + 0.017, 0.1 - 0.2 + 0.3, 0.1 + 0.025 - 0.2),
        (0.017 + 0.008 + 0.025 + 0.017, 0.067 + 0.15 - 0.1, 0.067 - 0.1 + 0.1),
    ),
    ("5", "others", "other", "4", "2"): (
        (0.05 + 0.033 + 0.033 + 0.05, 0.166 - 0.2 - 0.1 - 0.2, 0.166 + 0.025 + 0.025 + 0.025),
        (0.017 + 0.033 + 0.033 + 0.05, 0.133 + 0.15 + 0.2 + 0.1, 0.133 - 0.1 + 0.1 + 0.05),
    ),
}


@pytest.mark.parametrize("profile", PAPER_MEANS)
def test_credit_card_means_are_the_papers(credit_card: Environment, profile: tuple[str, ...]) -> None:
    assert credit_card.regimes == ("Inflation", "Recession")
    assert credit_card.actions == ("No action", "Call", "Email")
    assert [variable["name"] for variable in credit_card.variables] == [
        "age", "education", "marital_status", "revenue", "risk",
    ]  # fmt: skip
    places = [v["levels"].index(level) for v, level in zip(credit_card.variables, profile, strict=True)]
    cell = int(np.flatnonzero((credit_card.levels == places).all(axis=1))[0])
    np.testing.assert_allclose(credit_card.means[:, :, cell], PAPER_MEANS[profile], atol=1e-15)


def test_nelson_rewards_are_free_of_context() -> None:
    environment = load_environment("nelson")
    assert environment.means.shape == (2, 3, 4)
    expected = np.array([[0.1, 0.1 + 0.3, 0.1 - 0.2], [0.2, 0.2 - 0.25, 0.2 + 0.2]])
    np.testing.assert_allclose(environment.means, np.repeat(expected[:, :, None], 4, axis=2), atol=1e-15)
    episode = environment.draw(300, np.random.default_rng(2))
    np.testing.assert_allclose(episode.values, episode.beliefs @ expected, atol=1e-14)


def test_three_regimes_means_by_hand() -> None:
    environment = load_environment("three-regimes")
    assert environment.regimes == ("Growth", "Slump", "Promotion")
    cell = int(np.flatnonzero((environment.levels == [3, 2, 1]).all(axis=1))[0])  # top spend, daily, regular
    np.testing.assert_allclose(
        environment.means[:, :, cell],
        [
            [0.25, 0.25 + 0.15 + 0.1, 0.25 - 0.1 + 0.3, 0.25 - 0.2 - 0.1],
            [0.10, 0.10 - 0.1 + 0.1, 0.10 + 0.15 + 0.1, 0.10 + 0.1 - 0.2],
            [0.15, 0.15 + 0.0 - 0.1, 0.15 - 0.2 + 0.1, 0.15 + 0.2 + 0.1],
        ],
        atol=1e-15,
    )


def test_every_regime_has_its_own_best_action_somewhere(environment: Environment) -> None:
    best = environment.means.argmax(axis=1)  # regimes × cells
    assert all((best[h] != best[g]).any() for h in range(len(best)) for g in range(h))


# --- noise and the two reward models ----------------------------------------------------------------------------------


def test_noise_is_centred_scaled_and_independent(environment: Environment, episode: Episode) -> None:
    noise = episode.rewards - regime_means(environment, episode)
    std = environment.noise_std
    assert (np.abs(noise.mean(axis=0)) <= 5 * std / LONG**0.5).all()
    assert (np.abs(noise.std(axis=0) - std) <= 5 * std / (2 * LONG) ** 0.5).all()
    across = np.corrcoef(noise.T) - np.eye(len(environment.actions))
    assert (np.abs(across) <= 5 / LONG**0.5).all()
    over_time = (noise[1:] * noise[:-1]).mean(axis=0) / std**2
    assert (np.abs(over_time) <= 5 / LONG**0.5).all()
    assert load_environment("credit-card").noise_std == 0.2  # a standard deviation, not a variance


def test_belief_model_has_the_values_as_means(environment: Environment) -> None:
    by_regime, by_belief = (environment.draw(400, np.random.default_rng(8), model) for model in ("regime", "belief"))
    np.testing.assert_array_equal(by_regime.contexts.levels, by_belief.contexts.levels)
    np.testing.assert_array_equal(by_regime.values, by_belief.values)
    noise = by_regime.rewards - regime_means(environment, by_regime)
    np.testing.assert_allclose(by_belief.rewards - by_belief.values, noise, atol=1e-14)
    assert not np.allclose(by_belief.rewards, by_regime.rewards)


def test_values_are_the_rewards_expected_given_the_contexts_so_far(episode: Episode) -> None:
    """In the regime model too: the deviations average to 0; batches of 1,000 rounds are nearly independent."""
    batches = (episode.rewards - episode.values).reshape(50, 1000, -1).mean(axis=1)
    assert (np.abs(batches.mean(axis=0)) <= 5 * batches.std(axis=0, ddof=1) / 50**0.5).all()


@pytest.mark.parametrize("rounds", [1, 2, 6])
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


def test_the_oracle_has_no_regret(environment: Environment, episode: Episode) -> None:
    means = environment.means[:, :, cells_of(environment, episode)[:200]]
    by_hand = [
        max(range(len(environment.actions)), key=lambda a, t=t: float(episode.beliefs[t] @ means[:, a, t]))
        for t in range(200)
    ]
    np.testing.assert_array_equal(episode.oracle[:200], by_hand)
    assert (episode.compute_pseudo_regret(episode.oracle) == 0).all()
    assert (episode.compute_actual_regret(episode.oracle) == 0).all()


def test_nobody_beats_the_oracle_on_true_beliefs(environment: Environment, episode: Episode) -> None:
    generator = np.random.default_rng(3)
    count = len(environment.actions)
    for actions in [*(np.full(LONG, a) for a in range(count)), generator.integers(count, size=LONG)]:
        curve = episode.compute_pseudo_regret(actions)
        assert curve[0] >= 0
        assert (np.diff(curve) >= 0).all()
        assert curve[-1] > 0


def test_regrets_by_hand(credit_card: Environment) -> None:
    episode = credit_card.draw(4, np.random.default_rng(21))
    actions = np.array([2, 0, 1, 1], np.int16)
    for table, curve in (
        (episode.values, episode.compute_pseudo_regret(actions)),
        (episode.rewards, episode.compute_actual_regret(actions)),
    ):
        gaps = [table[t, episode.oracle[t]] - table[t, actions[t]] for t in range(4)]
        np.testing.assert_allclose(curve, [gaps[0], sum(gaps[:2]), sum(gaps[:3]), sum(gaps)], atol=1e-14)
    np.testing.assert_array_equal(
        episode.compute_pseudo_regret(actions[:2]), episode.compute_pseudo_regret(actions)[:2]
    )


def test_uniform_play_pays_what_is_expected_given_the_contexts(environment: Environment) -> None:
    surplus, variance = 0.0, 0.0
    for seed in range(30):
        episode = environment.draw(2000, np.random.default_rng(seed))
        actions = np.random.default_rng([seed, 1]).integers(len(environment.actions), size=2000)
        expected = (episode.values.max(axis=1) - episode.values.mean(axis=1)).sum()
        surplus += episode.compute_pseudo_regret(actions)[-1] - expected
        variance += episode.values.var(axis=1).sum()
    assert abs(surplus) <= 5 * variance**0.5


# --- hostile variants of the credit-card environment ------------------------------------------------------------------


@pytest.fixture(scope="module", params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> Environment:
    return load_environment(request.param)


@pytest.fixture(scope="module")
def hostile_episode(hostile: Environment) -> Episode:
    return hostile.draw(LONG, np.random.default_rng(31))


def expected_rewards(environment: Environment, episode: Episode) -> np.ndarray:
    return episode.values if environment.reward_model == "belief" else regime_means(environment, episode)


def test_hostile_variants_change_what_they_say_and_nothing_else(hostile: Environment, credit_card: Environment) -> None:
    assert (hostile.actions, hostile.signals, hostile.variables) == (
        credit_card.actions, credit_card.signals, credit_card.variables,
    )  # fmt: skip
    np.testing.assert_array_equal(hostile.hmm.emission, credit_card.hmm.emission)
    same_chain = np.array_equal(hostile.hmm.transition, credit_card.hmm.transition)
    assert same_chain == (hostile.name != "iid")
    assert (hostile.reward_law != "gaussian") == (hostile.name in ("binary", "sparse"))
    assert (hostile.reward_model == "belief") == (hostile.name == "belief-rewards")
    assert (hostile.mean_delay > 0 and hostile.loss > 0) == (hostile.name == "delayed")
    if hostile.name not in ("binary", "sparse", "quiet-regimes"):
        np.testing.assert_array_equal(hostile.means, credit_card.means)
    else:  # the best action changes with the regime in the first two as it does in the original
        best = hostile.means.argmax(axis=1)
        assert (best[0] != best[1]).any() == (hostile.name != "quiet-regimes")


def test_hostile_rewards_have_the_means_they_should(hostile: Environment, hostile_episode: Episode) -> None:
    """Given regime and context (or belief), for each action and each risk level: within 5 standard errors."""
    deviations = hostile_episode.rewards - expected_rewards(hostile, hostile_episode)
    for risk in range(5):
        here = deviations[hostile_episode.contexts.levels[:, 4] == risk]
        assert (np.abs(here.mean(axis=0)) <= 5 * here.std(axis=0) / len(here) ** 0.5).all()
    batches = (hostile_episode.rewards - hostile_episode.values).reshape(50, 1000, -1).mean(axis=1)
    assert (np.abs(batches.mean(axis=0)) <= 5 * batches.std(axis=0, ddof=1) / 50**0.5).all()


def test_a_hostile_seed_gives_one_episode(hostile: Environment) -> None:
    first, again = (hostile.draw(300, np.random.default_rng(5)) for _ in range(2))
    for name in Episode._fields[1:]:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_binary_rewards_are_0_or_1_with_their_means_as_probabilities() -> None:
    environment = load_environment("binary")
    assert 0.0 < environment.means.min() < environment.means.max() < 1.0
    rewards = environment.draw(LONG, np.random.default_rng(32)).rewards
    assert np.unique(rewards).tolist() == [0.0, 1.0]


def test_sparse_rewards_are_mostly_0_and_else_lognormal() -> None:
    environment = load_environment("sparse")
    assert environment.means.min() > 0.0
    episode = environment.draw(LONG, np.random.default_rng(33))
    assert pytest.approx(0.05) == SPARSE_SHARE
    zero = episode.rewards == 0.0
    share = SPARSE_SHARE * (1 - SPARSE_SHARE) / episode.rewards.size
    assert abs(zero.mean() - (1 - SPARSE_SHARE)) <= 5 * share**0.5
    assert (episode.rewards >= 0.0).all()
    logs = np.log(episode.rewards[~zero] * SPARSE_SHARE / expected_rewards(environment, episode)[~zero])
    count = logs.size
    assert abs(logs.mean() + SPARSE_LOG_STD**2 / 2) <= 5 * SPARSE_LOG_STD / count**0.5
    assert abs(logs.std() - SPARSE_LOG_STD) <= 5 * SPARSE_LOG_STD / (2 * count) ** 0.5


def test_quiet_regimes_show_in_the_contexts_and_in_no_reward(credit_card: Environment) -> None:
    environment = load_environment("quiet-regimes")
    np.testing.assert_array_equal(environment.means[0], environment.means[1])
    np.testing.assert_array_equal(environment.hmm.transition, credit_card.hmm.transition)
    # Both earn the stationary mean of the original's regimes, to the digits of its tables.
    mixed = np.tensordot(credit_card.hmm.initial, credit_card.means, 1)
    np.testing.assert_allclose(environment.means[0], mixed, atol=2e-3)


def test_iid_has_equal_rows_and_no_memory() -> None:
    environment = load_environment("iid")
    rows = environment.hmm.transition
    np.testing.assert_allclose(rows, np.tile(environment.hmm.initial, (2, 1)), atol=1e-12)
    symbols = environment.draw(LONG, np.random.default_rng(34)).contexts.symbols
    law = environment.hmm.initial @ environment.hmm.emission
    assert_frequencies(np.bincount(symbols, minlength=law.size), law)
    assert_frequencies(np.bincount(symbols[1:][symbols[:-1] == 0], minlength=law.size), law)


def test_belief_rewards_follow_the_belief() -> None:
    environment = load_environment("belief-rewards")
    episode = environment.draw(400, np.random.default_rng(35))
    by_regime = environment.draw(400, np.random.default_rng(35), "regime")
    noise = by_regime.rewards - regime_means(environment, by_regime)
    np.testing.assert_allclose(episode.rewards, episode.values + noise, atol=1e-14)


def test_delays_are_geometric_and_a_tenth_never_come(hostile: Environment, hostile_episode: Episode) -> None:
    delays = hostile_episode.delays
    if hostile.name != "delayed":
        assert delays.size == 0
        return
    assert delays.shape == (LONG,)
    assert (hostile.mean_delay, hostile.loss) == (50.0, 0.1)
    lost = delays == -1
    assert abs(lost.mean() - 0.1) <= 5 * (0.1 * 0.9 / LONG) ** 0.5
    known = delays[~lost]
    assert known.min() == 0
    stay = 50 / 51  # P(one round longer)
    assert abs(known.mean() - 50.0) <= 5 * (50 * 51 / known.size) ** 0.5
    for rounds in (1, 10, 50, 200):
        chance = stay**rounds
        assert abs((known >= rounds).mean() - chance) <= 5 * (chance * (1 - chance) / known.size) ** 0.5
    # A tenth is lost whatever the regime and the reward.
    for regime in range(2):
        here = lost[hostile_episode.regimes == regime]
        assert abs(here.mean() - 0.1) <= 5 * (0.09 / here.size) ** 0.5


def test_delivery_changes_no_draw_of_contexts_and_rewards(credit_card: Environment) -> None:
    late, prompt = (e.draw(500, np.random.default_rng(36)) for e in (load_environment("delayed"), credit_card))
    np.testing.assert_array_equal(late.rewards, prompt.rewards)
    np.testing.assert_array_equal(late.contexts.levels, prompt.contexts.levels)
