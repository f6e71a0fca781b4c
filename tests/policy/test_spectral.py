"""Box C against exact moments, a plain tensor version and its rate; alignment against all permutations."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from policy import hmm, kernels, spectral
from policy.errors import ArgumentError
from policy.hmm import HmmParameters
from policy.spectral import NotEstimable

MISSING = -1


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """More BLAS threads than free cores make a small decomposition ten times slower."""
    with threadpool_limits(1):
        yield


def separated(regimes, symbols, generator):
    """A random HMM whose regimes persist and mostly emit symbols of their own."""
    scattered = generator.dirichlet(np.full(symbols, 3.0), regimes)
    own = np.where(np.arange(symbols) % regimes == np.arange(regimes)[:, None], scattered, 0.0)
    emission = 0.9 * own / own.sum(axis=1, keepdims=True) + 0.1 * scattered
    transition = 0.7 * np.eye(regimes) + 0.3 * generator.dirichlet(np.full(regimes, 5.0), regimes)
    return HmmParameters.check(transition, emission, hmm.stationary_law(transition))


def largest_error(found, truth):
    aligned, _ = spectral.align(found, truth)
    return max(np.abs(aligned.emission - truth.emission).max(), np.abs(aligned.transition - truth.transition).max())


def triple_law(parameters):
    """P(x_1, x_2, x_3) of the chain that starts from its stationary law."""
    M, E = parameters.transition, parameters.emission
    return np.einsum("g,gh,hk,gx,hy,kz->xyz", hmm.stationary_law(M), M, M, E, E, E)


@pytest.mark.parametrize(
    ("transition", "emission", "denominator"),
    [
        ([[6, 2], [4, 4]], [[4, 2, 2, 0, 0], [0, 1, 1, 2, 4]], 3 * 16 * 512),
        ([[5, 2, 1], [1, 5, 2], [2, 1, 5]], [[4, 2, 2, 0], [0, 2, 2, 4], [2, 4, 0, 2]], 3 * 64 * 64),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_exact_moments_give_the_exact_model(transition, emission, denominator, seed):
    """Triples in their exact proportions, with missing symbols between them; M is not symmetric."""
    truth = HmmParameters.check(
        np.array(transition) / 8, np.array(emission) / 8, np.full(len(transition), 1 / len(transition))
    )
    counts = triple_law(truth) * denominator
    assert counts == pytest.approx(np.round(counts), abs=1e-6)
    triples = np.repeat(np.argwhere(counts > 0.5), np.round(counts[counts > 0.5]).astype(int), axis=0)
    history = np.hstack([triples, np.full((len(triples), 1), MISSING)]).ravel()
    found = spectral.estimate(history, len(transition), truth.emission.shape[1], seed)
    assert largest_error(found, truth) < 1e-9
    assert found.initial == pytest.approx(truth.initial)  # uniform, whatever the chain's own law


@pytest.mark.parametrize(("regimes", "symbols"), [(1, 4), (2, 12), (3, 9), (4, 9)])
def test_equals_box_c_written_with_the_whole_tensor(regimes, symbols):
    """Box C line by line with P₃₁₂ (X×X×X), made proper as the published code does (spectral.estimate says why)."""
    generator = np.random.default_rng([regimes, symbols])
    _, x = hmm.sample(separated(regimes, symbols, generator), 300, generator)
    p31, p32 = np.zeros((symbols, symbols)), np.zeros((symbols, symbols))
    p312 = np.zeros((symbols, symbols, symbols))
    np.add.at(p31, (x[2:], x[:-2]), 1 / (x.size - 2))
    np.add.at(p32, (x[2:], x[1:-1]), 1 / (x.size - 2))
    np.add.at(p312, (x[2:], x[:-2], x[1:-1]), 1 / (x.size - 2))
    u3, _, u1 = np.linalg.svd(p31)
    u3, u1, u2 = u3[:, :regimes], u1[:regimes].T, np.linalg.svd(p32)[2][:regimes].T
    u2 = u2 * [1 if max(column, key=abs) > 0 else -1 for column in u2.T]
    for attempt in range(8):
        gaussian = spectral.random_stream(3, kernels.ROTATION_DRAW, attempt).standard_normal((regimes, regimes))
        q, r = np.linalg.qr(gaussian)
        gamma = q * np.sign(np.diag(r))
        b = [u3.T @ (p312 @ (u2 @ row)) @ u1 @ np.linalg.inv(u3.T @ p31 @ u1) for row in gamma]
        values, R = np.linalg.eig(b[0])
        if np.isrealobj(values):
            break
    L = np.array([np.diag(np.linalg.inv(R) @ part @ R) for part in b])
    O = u2 @ np.linalg.inv(gamma) @ L  # noqa: E741
    E = np.clip(O, 0, None) / np.clip(O, 0, None).sum(axis=0)
    M = (np.linalg.inv(u3.T @ E) @ R).T
    M = M * np.sign(M.sum(axis=1, keepdims=True))
    assert regimes < 3 or (O.min() < 0.0 and M.min() < 0.0)  # so that clipping or not, and its order, matter
    M = np.abs(M)
    found = spectral.estimate(x, regimes, symbols, 3)
    assert found.transition == pytest.approx(M / M.sum(axis=1, keepdims=True), abs=1e-9)
    assert found.emission == pytest.approx(E.T, abs=1e-9)


@pytest.mark.parametrize(("regimes", "symbols"), [(2, 20), (3, 5)])
@pytest.mark.slow
def test_error_falls_like_one_over_the_square_root_of_t(regimes, symbols):
    """The rate behind the belief-estimation lemma; medians over models, because some Γ are unlucky."""
    lengths = np.array([10**3, 10**4, 10**5, 10**6])
    errors = []
    for seed in range(11):
        generator = np.random.default_rng([regimes, symbols, seed])
        truth = separated(regimes, symbols, generator)
        _, history = hmm.sample(truth, int(lengths[-1]), generator)
        found = [spectral.estimate(history[:length], regimes, symbols, seed) for length in lengths]
        errors.append([largest_error(part, truth) for part in found])
    typical = np.median(errors, axis=0)
    for decades in (slice(None), slice(1, None)):  # 10³ is too short for the limit to show when X = 60
        slope = np.polyfit(np.log(lengths[decades]), np.log(typical[decades]), 1)[0]
        assert -0.75 < slope < -0.3
    assert typical[-1] < 0.01


def test_missing_symbols_cost_data_not_correctness():
    """R22: only complete triples count, wherever they stand."""
    generator = np.random.default_rng(11)
    truth = separated(3, 12, generator)
    _, history = hmm.sample(truth, 200_000, generator)
    holed = np.where(generator.random(history.size) < 0.1, MISSING, history)
    assert largest_error(spectral.estimate(holed, 3, 12, 1), truth) < 0.03
    first, second, gap = history[:50_000], history[50_000:], [MISSING]
    one = spectral.estimate(np.concatenate([first, gap, second, gap, gap]), 3, 12, 1)
    other = spectral.estimate(np.concatenate([gap, second, gap, first]), 3, 12, 1)
    assert largest_error(one, other) < 1e-9


def exactly_independent(symbols):
    """A history in which each of the X³ triples occurs exactly once (a de Bruijn sequence, opened)."""
    seen, history = set(), [0, 0]
    while True:
        for symbol in range(symbols - 1, -1, -1):
            if (triple := (history[-2], history[-1], symbol)) not in seen:
                seen.add(triple)
                history.append(symbol)
                break
        else:
            assert len(seen) == symbols**3
            return history


SHORT = [([], 1), ([], 2), ([0, 1], 1), ([0, 1, 2], 2), ([0, 1, 2, 3], 3)]
INCOMPLETE = [([MISSING] * 1000, 1), ([0, 1, MISSING] * 1000, 2)]
POOR = [([2] * 1000, 2), ([2] * 1000, 3), ([0, 1] * 1000, 3), (exactly_independent(4), 2), (exactly_independent(4), 3)]


@pytest.mark.parametrize(("history", "regimes"), SHORT + INCOMPLETE + POOR)
def test_too_little_to_tell_regimes_apart_is_not_estimable(history, regimes):
    """R7: too short, no complete triples, constant, periodic with too few phases, independent."""
    for seed in range(5):
        found = spectral.estimate(history, regimes, 4, seed)
        assert isinstance(found, NotEstimable)
        assert found.reason


@st.composite
def histories(draw):
    symbols = draw(st.integers(1, 8))
    history = draw(st.lists(st.integers(-1, symbols - 1), max_size=60))
    return history, draw(st.integers(1, symbols)), symbols, draw(st.integers(0, 2**53 - 1))


@settings(max_examples=150)
@given(histories())
def test_any_history_gives_laws_or_not_estimable(case):
    """And the same again for the same seed (R11), to the last bit."""
    found, again = spectral.estimate(*case), spectral.estimate(*case)
    if isinstance(found, NotEstimable):
        assert found == again
    else:
        assert [part.shape for part in found] == [(case[1], case[1]), (case[1], case[2]), (case[1],)]
        HmmParameters.check(*found)
        assert [part.tobytes() for part in found] == [part.tobytes() for part in again]


@pytest.mark.parametrize(
    ("before", "regimes", "ties"),
    [
        *((regimes, regimes, ties) for regimes in (1, 2, 3, 5, 8) for ties in (False, True)),
        *((before, regimes, False) for before, regimes in ((1, 2), (2, 3), (2, 4), (3, 4), (2, 8))),
    ],
)
def test_alignment_is_the_best_of_all_permutations(before, regimes, ties):
    """R6: the smallest largest distance, then the smallest total, of the regimes there were; more come after them."""
    generator = np.random.default_rng([before, regimes, ties])
    orders = np.array(list(itertools.permutations(range(regimes), before)))
    plain = 0
    for _ in range(5 if before == 8 else 20):
        new, previous = (generator.dirichlet(np.ones(3), count) for count in (regimes, before))
        if ties:  # distances from a handful of values
            new, previous = (np.eye(3)[generator.integers(0, 3, regimes)] for _ in range(2))
        distances = np.linalg.norm(previous[:, None] - new[None], axis=2)
        costs = distances[np.arange(before), orders]
        largest = costs.max(axis=1)
        total = costs.sum(axis=1)[largest == largest.min()].min()
        laws = [(np.full((n, n), 1 / n), law, np.full(n, 1 / n)) for n, law in ((regimes, new), (before, previous))]
        found, reference = (HmmParameters(*law) for law in laws)
        aligned, order = spectral.align(found, reference)
        assert sorted(order) == list(range(regimes))
        assert aligned.emission.tolist() == new[order].tolist()
        chosen = distances[np.arange(before), order[:before]]
        assert chosen.max() == largest.min()
        assert chosen.sum() == pytest.approx(total, abs=1e-12)
        plain += distances[linear_sum_assignment(distances)].max() > largest.min()
        if before < regimes:
            with pytest.raises(ArgumentError, match=r"^new: "):
                spectral.align(reference, found)
    assert plain > 0 or ties or before < 4  # the smallest total alone would often be another answer


def test_bad_input():
    for regimes in (0, -1, 4):
        with pytest.raises(ArgumentError, match=r"^regimes: .*allowed: 1 to the number of symbols, 3"):
            spectral.estimate([0, 1, 2], regimes, 3, 1)
    for symbols in ([0, 3, 1], [0, -2, 1], [0.0, 1.0, 0.0], ["a"], [[0, 1]], np.array([0.0, np.nan])):
        with pytest.raises(ArgumentError, match=r"^symbols: "):
            spectral.estimate(symbols, 2, 3, 1)
    generator = np.random.default_rng(15)
    for regimes, count in ((1, 5), (2, 4)):
        with pytest.raises(ArgumentError, match=r"^new: "):
            spectral.align(separated(regimes, count, generator), separated(2, 5, generator))
