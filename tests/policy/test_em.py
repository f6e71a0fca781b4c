"""Baum–Welch against hmmlearn from the same start; what the choice of starts and the smoothing promise."""

import math

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM

from policy import em, hmm, spectral
from policy.errors import ArgumentError
from policy.hmm import HmmParameters
from policy.spectral import NotEstimable

MISSING = -1


def random_parameters(regimes, symbols, generator):
    """Persistent regimes; the initial law is far from uniform, as it must stay what it is."""
    return HmmParameters.check(
        0.7 * np.eye(regimes) + 0.3 * generator.dirichlet(np.ones(regimes), regimes),
        generator.dirichlet(np.full(symbols, 0.7), regimes),
        generator.dirichlet(np.ones(regimes)),
    )


def problem(regimes, symbols, length, seed):
    """A history, and a start that has nothing to do with the truth behind it."""
    generator = np.random.default_rng([regimes, symbols, length, seed])
    truth, start = (random_parameters(regimes, symbols, generator) for _ in range(2))
    return hmm.sample(truth, length, generator)[1], start


def objective(history, parameters, smoothing):
    """The log-likelihood plus the logarithm of the Dirichlet prior (pseudo-counts: exponent = smoothing)."""
    prior = np.log(parameters.transition).sum() + np.log(parameters.emission).sum() if smoothing else 0.0
    return hmm.filter_history(parameters, history).log_likelihood + smoothing * prior


@pytest.mark.parametrize("smoothing", [0.0, 2.0])
@pytest.mark.parametrize(
    ("regimes", "symbols", "length"), [(2, 4, 500), (2, 20, 2000), (3, 4, 2000), (3, 20, 500), (1, 4, 500)]
)
def test_equals_hmmlearn_from_the_same_start(regimes, symbols, length, smoothing):
    """Its initial law is held fixed too; its Dirichlet prior of exponent 1 + a is our pseudo-count a."""
    iterations = 20
    history, start = problem(regimes, symbols, length, 1)
    priors = {"transmat_prior": 1.0 + smoothing, "emissionprob_prior": 1.0 + smoothing}
    fixed = {"params": "te", "init_params": "", "n_iter": iterations, "tol": -math.inf}
    peer = CategoricalHMM(regimes, n_features=symbols, **fixed, **priors)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = start.initial, start.transition, start.emission
    peer.fit(history[:, None].astype(int))
    found = em.fit(history, start, iterations, smoothing=smoothing)
    assert found.parameters.transition == pytest.approx(peer.transmat_, abs=1e-6)
    assert found.parameters.emission == pytest.approx(peer.emissionprob_, abs=1e-6)
    assert found.parameters.initial.tolist() == start.initial.tolist()
    smoothed = hmm.compute_expectations(found.parameters, history).beliefs
    assert found.beliefs is None or (found.beliefs == smoothed).all()  # None only where rounding made it step back
    assert found.beliefs is not None or regimes == 1
    assert len(found.objective) - 1 == iterations or regimes == 1  # a single regime is done after one


@pytest.mark.parametrize("smoothing", [0.0, 3.0])
@pytest.mark.parametrize(("regimes", "symbols"), [(2, 5), (3, 20), (8, 20)])
def test_the_objective_never_falls(regimes, symbols, smoothing):
    """Measured from outside after every iteration, so that stopping at a fall cannot hide one."""
    history, start = problem(regimes, symbols, 600, 2)
    history[::9] = MISSING
    parameters, values = start, [objective(history, start, smoothing)]
    for _ in range(30):
        step = em.fit(history, parameters, 1, smoothing=smoothing)
        assert len(step.objective) == 2
        parameters = step.parameters
        HmmParameters.check(*parameters)
        values.append(objective(history, parameters, smoothing))
        assert step.objective == pytest.approx(values[-2:], rel=1e-12)
    assert (np.diff(values) > 0.0).all()
    whole = em.fit(history, start, 30, smoothing=smoothing)
    assert whole.objective == pytest.approx(values, rel=1e-12)
    assert len(whole.objective) == 31
    assert whole.parameters.emission == pytest.approx(parameters.emission, abs=1e-12)


def test_iterations_and_tolerance():
    history, start = problem(2, 5, 400, 3)
    nothing = em.fit(history, start, 0)
    assert all(map(np.array_equal, nothing.parameters, start))
    assert nothing.objective == (objective(history, start, 0.0),)
    eager, patient = (em.fit(history, start, 500, tolerance=gain) for gain in (1e-3, 1e-6))
    assert 2 <= len(eager.objective) < len(patient.objective) < 501
    gains = np.diff(patient.objective) / np.abs(patient.objective[1:])
    assert gains[-1] <= 1e-6 < gains[:-1].min()


def test_missing_symbols_say_nothing():
    """R22: nothing but missing symbols leaves every law as it was; at the end they cost no likelihood."""
    history, start = problem(3, 5, 300, 4)
    plain, padded = em.fit(history, start, 5), em.fit(np.append(history, [MISSING] * 50), start, 5)
    assert padded.objective[0] == pytest.approx(plain.objective[0], rel=1e-12)
    for silent in ([], [MISSING] * 20):
        kept = em.fit(silent, start, 3)
        assert kept.parameters.emission.tolist() == start.emission.tolist()
        assert kept.parameters.transition == pytest.approx(start.transition, abs=1e-12)
        assert kept.objective[-1] == 0.0


def test_a_regime_never_visited_keeps_its_laws():
    start = HmmParameters.check([[1.0, 0.0], [0.4, 0.6]], [[0.5, 0.5], [0.2, 0.8]], [1.0, 0.0])
    found = em.fit([0, 1, 1, 1], start, 4).parameters
    assert found.transition.tolist() == start.transition.tolist()
    assert found.emission == pytest.approx(np.array([[0.25, 0.75], [0.2, 0.8]]))


@pytest.mark.parametrize("tolerance", [0.0, 1e-7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_start_that_thinks_the_history_impossible_is_left_at_once(tolerance, smoothing):
    """Spectral estimates hold zeros after clipping (R7)."""
    history, _ = problem(2, 3, 500, 5)
    start = HmmParameters.check([[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3, 0.0], [0.1, 0.9, 0.0]], [0.5, 0.5])
    found = em.fit(history, start, 10, smoothing=smoothing, tolerance=tolerance)
    assert found.objective[0] == -math.inf
    assert np.isfinite(found.objective[1:]).all()
    assert len(found.objective) > 2


def paper_like(seed, length, share_missing=0.0):
    """H = 2, X = 20, as in the paper's simulations; regimes that a learner can tell apart."""
    generator = np.random.default_rng(seed)
    emission = generator.dirichlet(np.full(20, 0.7), 2)
    truth = HmmParameters.check([[0.85, 0.15], [0.2, 0.8]], emission, [0.5, 0.5])
    _, history = hmm.sample(truth, length, generator)
    return truth, np.where(generator.random(length) < share_missing, MISSING, history)


@pytest.mark.parametrize("share_missing", [0.0, 0.1])
def test_estimate_recovers_a_known_model(share_missing):
    truth, history = paper_like(1, 20_000, share_missing)
    found, _ = spectral.align(em.estimate(history, 2, 20, 1), truth)
    assert np.abs(found.emission - truth.emission).max() < 0.03
    assert np.abs(found.transition - truth.transition).max() < 0.05
    assert found.initial.tolist() == [0.5, 0.5]
    HmmParameters.check(*found)
    assert found.emission.min() > 0.0  # a symbol not seen yet stays possible


def test_the_likeliest_start_wins(monkeypatch):
    """Spectral, previous and random starts are all tried; the real `fit` runs, and is listened to."""
    seed = 0
    history, previous = problem(4, 12, 500, seed)
    fits, real = [], em.fit

    def listened(symbols, start, *arguments, **options):
        fits.append((start, real(symbols, start, *arguments, **options)))
        return fits[-1][1]

    monkeypatch.setattr(em, "fit", listened)
    found = em.estimate(history, 4, 12, seed, previous)
    *trials, (continued, final) = fits
    assert len(trials) == 2 + em.RANDOM_STARTS
    for expected, (start, _) in zip((spectral.estimate(history, 4, 12, seed), previous), trials, strict=False):
        assert start.emission == pytest.approx(expected.emission, abs=0.01)  # opened: no zeros left
        assert start.emission.min() > 0.0
    best = max((fit for _, fit in trials), key=lambda fit: fit.objective[-1])
    assert continued is best.parameters
    assert found is final.parameters
    reached = objective(history, found, em.SMOOTHING)
    assert all(reached >= fit.objective[-1] for _, fit in trials)
    assert reached == pytest.approx(final.objective[-1], rel=1e-12)


def test_a_previous_estimate_helps():
    """Five regimes, 300 rounds: the other starts often end in a poorer optimum than one at the truth."""
    gains = []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        truth = random_parameters(5, 20, generator)
        _, history = hmm.sample(truth, 300, generator)
        without, given = em.estimate(history, 5, 20, seed), em.estimate(history, 5, 20, seed, truth)
        gains.append(objective(history, given, em.SMOOTHING) - objective(history, without, em.SMOOTHING))
    assert max(gains) > 1.0
    assert np.mean(gains) > 0.0


def test_a_single_regime_counts_symbols():
    """R5: H = 1 has nothing to estimate but frequencies."""
    found = em.estimate([0, 0, 1, MISSING, 0], 1, 3, 1)
    assert found.emission == pytest.approx(np.array([[3.1, 1.1, 0.1]]) / 4.3)
    assert found.transition.tolist() == [[1.0]]


@pytest.mark.parametrize("history", [[], [MISSING] * 100, [1] * 100, [0, 1, MISSING] * 100])
def test_too_few_different_symbols_are_not_estimable(history):
    found = em.estimate(history, 3, 4, 1)
    assert isinstance(found, NotEstimable)
    assert found.reason


WRONG_SYMBOLS = [[0, 1, 5], [0, 1, -2], [0.0, math.nan], ["a"], [[0, 1]]]


def test_bad_input():
    history, start = problem(2, 5, 50, 7)
    fit = {"symbols": history, "start": start, "iterations": 3}
    estimate = {"symbols": history, "regimes": 2, "count": 5, "seed": 1}
    others = [problem(*sizes, 1, 8)[1] for sizes in ((3, 5), (2, 4), (2, 6))]
    for call, arguments, field, values in (
        (em.fit, fit, "symbols", WRONG_SYMBOLS),
        (em.estimate, estimate, "regimes", [0, 6]),
        (em.estimate, estimate, "symbols", WRONG_SYMBOLS),
        (em.estimate, estimate, "previous", others),
    ):
        for value in values:
            with pytest.raises(ArgumentError, match=rf"^{field}: "):
                call(**arguments | {field: value})
