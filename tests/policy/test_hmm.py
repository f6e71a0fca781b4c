"""The filter, smoother, likelihood and sampler against all state paths, hmmlearn, and each other."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import hmm
from policy.errors import ArgumentError
from policy.hmm import HmmParameters

MISSING = -1
TWO = HmmParameters.check([[0.9, 0.1], [0.25, 0.75]], [[0.6, 0.3, 0.1], [0.05, 0.15, 0.8]], [0.3, 0.7])


def random_parameters(regimes, symbols, generator, concentration=1.0):
    return HmmParameters.check(
        generator.dirichlet(np.ones(regimes), regimes),
        generator.dirichlet(np.full(symbols, concentration), regimes),
        generator.dirichlet(np.ones(regimes)),
    )


class Enumerated(NamedTuple):
    filtered: np.ndarray
    smoothed: np.ndarray
    transitions: np.ndarray
    emissions: np.ndarray
    log_likelihood: float


def path_weights(parameters, symbols, steps):
    """All paths of the chain, the probability of each with the symbols, and the place of every row in a path."""
    places = np.cumsum(steps, dtype=int)
    length = places[-1] + 1 if len(symbols) else 0
    paths = np.array(list(itertools.product(range(parameters.initial.size), repeat=length)), int)
    weights = parameters.initial[paths[:, 0]] if length else np.ones(1)
    weights = weights * parameters.transition[paths[:, :-1], paths[:, 1:]].prod(axis=1)
    for place, symbol in zip(places, symbols, strict=True):
        if symbol != MISSING:
            weights *= parameters.emission[paths[:, place], symbol]
    return paths, weights, places


def enumerated(parameters, symbols, steps):
    """The definitions of everything the module computes, without any recursion."""
    regimes, length = parameters.initial.size, len(symbols)
    filtered, smoothed = np.empty((length, regimes)), np.empty((length, regimes))
    transitions, emissions = np.zeros((regimes, regimes)), np.zeros_like(parameters.emission)
    for t in range(length):
        paths, weights, places = path_weights(parameters, symbols[: t + 1], steps[: t + 1])
        filtered[t] = np.bincount(paths[:, places[t]], weights, regimes) / weights.sum()
    paths, weights, places = path_weights(parameters, symbols, steps)
    law = weights / weights.sum()
    for move in range(1, paths.shape[1]):
        np.add.at(transitions, (paths[:, move - 1], paths[:, move]), law)
    for t, symbol in enumerate(symbols):
        smoothed[t] = np.bincount(paths[:, places[t]], law, regimes)
        if symbol != MISSING:
            emissions[:, symbol] += smoothed[t]
    return Enumerated(filtered, smoothed, transitions, emissions, math.log(weights.sum()))


@pytest.mark.parametrize("regimes", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 6])
@pytest.mark.parametrize("clocked", [False, True])
def test_everything_equals_enumeration_over_all_state_paths(regimes, length, clocked):
    """Eqs. Bayes-est-1, Bayes-est-2 and forward–backward, with an initial law far from uniform (R5, R22).

    On a clock the chain moves any number of times between rows, or not at all (R27).
    """
    generator = np.random.default_rng([regimes, length])
    for missing in (0.0, 0.3, 1.0):
        for _ in range(5):
            parameters = random_parameters(regimes, 4, generator, 0.5)
            symbols = np.where(generator.random(length) < missing, MISSING, generator.integers(0, 4, length))
            steps = generator.permutation([0, 0, 1, 2, 3])[: length - 1] if clocked else [1] * (length - 1)
            steps = np.array([0, *steps][:length], int)
            expected = enumerated(parameters, symbols, steps)
            given_steps = steps if clocked else None
            filtered = hmm.filter_history(parameters, symbols, given_steps)
            smoothed = hmm.compute_expectations(parameters, symbols, given_steps)
            assert filtered.beliefs == pytest.approx(expected.filtered, abs=1e-12)
            assert smoothed.beliefs == pytest.approx(expected.smoothed, abs=1e-12)
            assert smoothed.transitions == pytest.approx(expected.transitions, abs=1e-12)
            assert smoothed.emissions == pytest.approx(expected.emissions, abs=1e-12)
            for total in (filtered.log_likelihood, smoothed.log_likelihood):
                assert total == pytest.approx(expected.log_likelihood, abs=1e-12)


def every_row(symbols):
    return np.minimum(np.arange(len(symbols)), 1)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(2, 3), st.lists(st.integers(-1, 3), max_size=6))
def test_a_symbol_of_probability_zero_only_predicts(seed, regimes, symbols):
    """Filter and smoother take it as missing; the log-likelihood is -inf; nothing is NaN."""
    generator = np.random.default_rng(seed)
    emission = np.where(generator.random((regimes, 4)) < 0.6, 0.0, 1.0)
    emission[:, 0] += emission.sum(axis=1) == 0.0
    transition = np.where(generator.random((regimes, regimes)) < 0.4, 0.0, 1.0) + np.eye(regimes)
    parameters = HmmParameters.check(
        transition / transition.sum(axis=1, keepdims=True),
        emission / emission.sum(axis=1, keepdims=True),
        np.eye(regimes)[0],
    )
    possible = []
    for symbol in symbols:
        longer = [*possible, symbol]
        reachable = path_weights(parameters, longer, every_row(longer))[1].sum() > 0.0
        possible.append(symbol if reachable else MISSING)
    expected = enumerated(parameters, possible, every_row(possible))
    filtered, smoothed = hmm.filter_history(parameters, symbols), hmm.compute_expectations(parameters, symbols)
    assert filtered.beliefs == pytest.approx(expected.filtered, abs=1e-12)
    assert smoothed.beliefs == pytest.approx(expected.smoothed, abs=1e-12)
    total = expected.log_likelihood if possible == symbols else -math.inf
    assert filtered.log_likelihood == smoothed.log_likelihood == pytest.approx(total, abs=1e-12)


def as_hmmlearn(parameters):
    peer = CategoricalHMM(parameters.initial.size, n_features=parameters.emission.shape[1], init_params="")
    peer.startprob_, peer.transmat_ = parameters.initial, parameters.transition
    peer.emissionprob_ = parameters.emission
    return peer


@pytest.mark.parametrize(("regimes", "symbols"), [(1, 3), (2, 5), (3, 20), (8, 60)])
def test_equals_hmmlearn(regimes, symbols):
    generator = np.random.default_rng([regimes, symbols])
    parameters = random_parameters(regimes, symbols, generator)
    _, history = hmm.sample(parameters, 120, generator)
    column, peer = history[:, None].astype(int), as_hmmlearn(parameters)
    filtered = [peer.predict_proba(column[:t])[-1] for t in range(1, history.size + 1)]
    result = hmm.filter_history(parameters, history)
    assert result.beliefs == pytest.approx(np.array(filtered), abs=1e-10)
    assert result.log_likelihood == pytest.approx(peer.score(column), rel=1e-12)
    assert hmm.compute_expectations(parameters, history).beliefs == pytest.approx(peer.predict_proba(column), abs=1e-10)


def test_a_million_steps():
    """Laws stay laws, the likelihood keeps its digits, and 300 contexts give the belief of them all (R5)."""
    parameters = random_parameters(3, 20, np.random.default_rng(4))
    _, symbols = hmm.sample(parameters, 10**6, np.random.default_rng(5))
    filtered, smoothed = hmm.filter_history(parameters, symbols), hmm.compute_expectations(parameters, symbols)
    for beliefs in (filtered.beliefs, smoothed.beliefs):
        assert np.isfinite(beliefs).all()
        assert beliefs.min() >= 0.0
        assert np.abs(beliefs.sum(axis=1) - 1.0).max() < 1e-9
    expected = as_hmmlearn(parameters).score(symbols[:, None].astype(int))
    assert filtered.log_likelihood == pytest.approx(expected, rel=1e-11)
    assert smoothed.log_likelihood == filtered.log_likelihood
    recent = hmm.filter_history(parameters._replace(initial=np.full(3, 1 / 3)), symbols[-300:])
    assert recent.beliefs[-1] == pytest.approx(filtered.beliefs[-1], abs=1e-12)


@pytest.mark.parametrize("rare", [1e-300, 1e-200, 1e-90, 1e-60])
def test_likelihoods_far_below_the_smallest_float(rare):
    parameters = HmmParameters.check([[0.5, 0.5], [0.5, 0.5]], [[rare, 1 - rare], [rare, 1 - rare]], [0.2, 0.8])
    result = hmm.compute_expectations(parameters, [0] * 1000)
    assert result.log_likelihood == pytest.approx(1000 * math.log(rare), rel=1e-12)
    assert result.beliefs[1:] == pytest.approx(0.5)


@pytest.mark.parametrize("favoured", [300, 325, 330, 335])
def test_smoother_survives_a_belief_that_almost_underflows(favoured):
    """Regimes that never change: the filter goes down to 9^-favoured for the second one and comes back up."""
    frozen = HmmParameters.check(np.eye(2), [[0.9, 0.1], [0.1, 0.9]], [0.5, 0.5])
    result = hmm.compute_expectations(frozen, [0] * favoured + [1] * (favoured + 40))
    assert result.beliefs[:, 1] == pytest.approx(1.0, abs=1e-9)
    assert result.transitions == pytest.approx(np.diag([0.0, 2.0 * favoured + 39]), abs=1e-6)


def test_an_empty_history_and_a_single_regime():
    """R5: H = 1 has belief [1] whatever comes."""
    for smooth_or_filter in (hmm.filter_history, hmm.compute_expectations):
        assert smooth_or_filter(TWO, []).beliefs.shape == (0, 2)
        assert smooth_or_filter(TWO, []).log_likelihood == 0.0
        one = smooth_or_filter(HmmParameters.check([[1.0]], [[0.25, 0.75, 0.0]], [1.0]), [0, 1, MISSING, 1])
        assert one.beliefs.tolist() == [[1.0]] * 4
        assert one.log_likelihood == pytest.approx(math.log(0.25 * 0.75 * 0.75))


def test_one_by_one_equals_the_whole_history_to_the_last_bit():
    """R15; and the first step has no transition (R5)."""
    _, symbols = hmm.sample(TWO, 200, np.random.default_rng(6))
    symbols[::7] = MISSING
    belief, beliefs = TWO.initial, hmm.filter_history(TWO, symbols).beliefs
    for t, symbol in enumerate(symbols):
        (belief,) = hmm.filter_history(TWO._replace(initial=belief), [symbol], [min(t, 1)]).beliefs
        assert belief.tobytes() == beliefs[t].tobytes()


def within_five_standard_errors(counts, law):
    """Frequencies of independent draws; an impossible outcome must not occur at all."""
    total = counts.sum()
    assert (np.abs(counts / total - law) <= 5.0 * np.sqrt(law * (1.0 - law) / total)).all()


def test_sampling_frequencies():
    parameters = HmmParameters.check(
        [[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.0, 0.75]],
        [[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.05, 0.0, 0.95]],
        [0.2, 0.0, 0.8],
    )
    generator = np.random.default_rng(8)
    regimes, symbols = hmm.sample(parameters, 300_000, generator)
    for h in range(3):
        within_five_standard_errors(np.bincount(regimes[1:][regimes[:-1] == h], minlength=3), parameters.transition[h])
        within_five_standard_errors(np.bincount(symbols[regimes == h], minlength=4), parameters.emission[h])
    starts = [hmm.sample(parameters, 1, generator)[0][0] for _ in range(5000)]
    within_five_standard_errors(np.bincount(starts, minlength=3), parameters.initial)


def test_stationary_law():
    assert hmm.stationary_law(np.array([[0.85, 0.15], [0.2, 0.8]])) == pytest.approx([4 / 7, 3 / 7])
    assert hmm.stationary_law(np.array([[1.0]])) == pytest.approx([1.0])
    assert hmm.stationary_law(np.roll(np.eye(5), 1, axis=1)) == pytest.approx(np.full(5, 0.2))
    assert hmm.stationary_law(np.array([[0.5, 0.5], [0.0, 1.0]])) == pytest.approx([0.0, 1.0], abs=1e-12)
    for seed in range(20):
        transition = random_parameters(8, 2, np.random.default_rng(seed)).transition
        law = hmm.stationary_law(transition)
        assert law.sum() == pytest.approx(1.0)
        assert law @ transition == pytest.approx(law, abs=1e-12)


GOOD = {"transition": TWO.transition, "emission": TWO.emission, "initial": TWO.initial}
NO_ARRAYS = ["text", {"a": 1}, object(), [[0.5, 0.5], [1.0]], [], None]
WRONG_SHAPES = {
    "transition": [[[1.0]], [0.5, 0.5], [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], np.eye(3)],
    "emission": [[0.5, 0.5], [[0.5, 0.5]], np.full((3, 2), 0.5), np.empty((2, 0)), np.ones((1, 2, 1))],
    "initial": [[[0.5, 0.5]], [0.5, 0.25, 0.25], [1.0], 1.0],
}


@pytest.mark.parametrize("field", GOOD)
def test_a_wrong_probability_or_shape_is_an_error_that_names_its_field(field):
    """The field that disagrees with the other two, not whichever is looked at first."""
    wrong = WRONG_SHAPES[field] + NO_ARRAYS
    for probability in (math.nan, math.inf, -0.1, 0.123, None, "a half"):  # 0.123: they no longer sum to 1
        wrong.append(GOOD[field].tolist())
        row = wrong[-1] if field == "initial" else wrong[-1][1]
        row[0] = probability
    for value in wrong:
        with pytest.raises(ArgumentError) as caught:
            HmmParameters.check(**{**GOOD, field: value})
        assert [problem.field for problem in caught.value.problems] == [field], value


WRONG_SYMBOLS = [[3], [-2], [2**40], [0.0], [math.nan], ["a"], "012", [True], [None], None, 1, [[0, 1]], [[0], [1, 2]]]


def test_wrong_symbols_steps_and_counts_are_an_error():
    """Allowed with three symbols: -1 (missing), 0, 1, 2."""
    for take, symbols in itertools.product((hmm.filter_history, hmm.compute_expectations), WRONG_SYMBOLS):
        with pytest.raises(ArgumentError, match=r"^symbols: "):
            take(TWO, symbols)
    for steps in ([0], [0, -1], [0.0, 1.0]):
        with pytest.raises(ArgumentError, match=r"^steps: "):
            hmm.filter_history(TWO, [0, 1], steps)
    with pytest.raises(ArgumentError, match=r"^count: "):
        hmm.sample(TWO, -1, np.random.default_rng(0))
