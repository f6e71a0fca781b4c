"""Baum–Welch from the spectral estimate, the previous one and a few random starts; the likeliest result is kept.

The initial law stays fixed: one sequence says almost nothing about its first regime.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy

from policy import kernels, spectral
from policy.arrays import FloatArray, SmallInts
from policy.errors import ArgumentError
from policy.hmm import NO_EVIDENCE, HmmParameters, check_steps, check_symbols, spell_out_gaps
from policy.kept import Kept

RANDOM_STARTS = 4  # EM from one random start often ends in a poor optimum (docs/performance-notes.md)
TRIAL_ITERATIONS = 10  # for every start, before the likeliest goes on
ITERATIONS = 40
TOLERANCE = 1e-6  # relative gain in log-likelihood below which iterating stops
SMOOTHING = 0.1  # pseudo-counts per cell: a symbol not seen yet stays possible


class EmFit(NamedTuple):
    """Fitted parameters, and the objective before each iteration and at the end (never falling).

    `beliefs` (rows × H, gaps spelled out) are smoothed under those parameters; None if rounding made EM step back.
    """

    parameters: HmmParameters
    objective: tuple[float, ...]
    beliefs: FloatArray | None


def fit(
    symbols: npt.ArrayLike,
    start: HmmParameters,
    iterations: int,
    *,
    smoothing: float = 0.0,
    tolerance: float = 0.0,
    steps: npt.ArrayLike | None = None,
    kept: Kept | None = None,
) -> EmFit:
    """At most `iterations` of Baum–Welch from `start`; `kept` is what is known of rounds before these.

    `smoothing` is a Dirichlet pseudo-count added to each expected transition and emission count; the objective is
    then the log-likelihood plus that prior's logarithm. It stops early when the gain falls below `tolerance`
    (relative), or when rounding makes the objective fall, which EM never does. The best parameters seen are kept.
    """
    start = HmmParameters.check(*start)
    observed = check_symbols(symbols, start.emission.shape[1])
    observed, moves, _ = spell_out_gaps(observed, check_steps(steps, observed.size))
    beliefs = np.empty((observed.size, start.initial.size))
    transitions, emissions = np.empty_like(start.transition), np.empty_like(start.emission)
    current, best, size = start, start, (0,) * start.initial.size
    trace: list[float] = []
    for iteration in range(iterations + 1):
        value = expect(size, current, moves, observed, NO_EVIDENCE, beliefs, transitions, emissions, kept)
        if smoothing > 0.0:
            value += smoothing * log_prior(current)
        if trace and not value >= trace[-1]:
            break
        best = current
        gain = value - trace[-1] if trace else np.inf
        trace.append(value)
        if iteration == iterations or (np.isfinite(value) and gain <= tolerance * abs(value)):
            break
        current = maximise(transitions, emissions, smoothing, current)
    return EmFit(best, tuple(trace), beliefs if best is current else None)


def expect(
    size: tuple[int, ...],
    parameters: HmmParameters,
    moves: SmallInts,
    observed: SmallInts,
    evidence: FloatArray,
    beliefs: FloatArray,
    transitions: FloatArray,
    emissions: FloatArray,
    kept: Kept | None,
) -> float:
    """The E-step (kernels.forward_backward), with the counts of rounds before these; returns the log-likelihood.

    For the earlier rounds, that is their expected log-likelihood under the posteriors that they left with.
    """
    if kept is None:
        return float(
            kernels.forward_backward(size, *parameters, moves, observed, evidence, beliefs, transitions, emissions)
        )
    transition, emission, _ = parameters
    value = float(
        kernels.forward_backward(
            size, transition, emission, kept.edge, moves, observed, evidence, beliefs, transitions, emissions
        )
    )
    if moves.size and moves[0]:  # the move into the first row
        predicted = kept.edge @ transition
        ratio = np.divide(beliefs[0], predicted, out=np.zeros_like(predicted), where=predicted > 0.0)
        transitions += kept.edge[:, None] * transition * ratio
    transitions += kept.transitions
    emissions += kept.emissions
    return value + float(xlogy(kept.transitions, transition).sum() + xlogy(kept.emissions, emission).sum())


def maximise(transitions: FloatArray, emissions: FloatArray, smoothing: float, current: HmmParameters) -> HmmParameters:
    """The M-step: parameters from expected counts; the initial law stays."""
    return HmmParameters(
        _normalise(transitions + smoothing, current.transition),
        _normalise(emissions + smoothing, current.emission),
        current.initial,
    )


def log_prior(parameters: HmmParameters) -> float:
    """The logarithm of the Dirichlet prior with one pseudo-count per cell, up to a constant."""
    if min(parameters.transition.min(), parameters.emission.min()) <= 0.0:
        return -math.inf
    return float(np.log(parameters.transition).sum() + np.log(parameters.emission).sum())


def _normalise(counts: FloatArray, fallback: FloatArray) -> FloatArray:
    """Divide rows by their sums; a regime that was never visited keeps its row of `fallback`."""
    totals = counts.sum(axis=1, keepdims=True)
    if totals.min() > 0.0:
        shares: FloatArray = counts / totals
        return shares
    return np.where(totals > 0.0, counts / np.where(totals > 0.0, totals, 1.0), fallback)


def estimate(
    symbols: npt.ArrayLike,
    regimes: int,
    count: int,
    seed: int,
    previous: HmmParameters | None = None,
    steps: npt.ArrayLike | None = None,
) -> HmmParameters | spectral.NotEstimable:
    """The likeliest EM fit over several starts; needs at least as many symbols as there are regimes to tell apart."""
    if not 1 <= regimes <= count:
        raise ArgumentError("regimes", f"{regimes}", f"1 to the number of symbols, {count}")
    if previous is not None and previous.emission.shape != (regimes, count):
        raise ArgumentError("previous", f"emission {previous.emission.shape}", f"{(regimes, count)}")
    observed = check_symbols(symbols, count)
    seen = observed[observed >= 0]
    if np.unique(seen).size < regimes:
        return spectral.NotEstimable(f"fewer than {regimes} different symbols so far")
    # Box C needs one step of the chain per round.
    box_c = spectral.estimate(observed, regimes, count, seed) if steps is None else None
    starts = [box_c] if isinstance(box_c, HmmParameters) else []
    if previous is not None:
        starts.append(previous)
    starts += [
        _random_start(seen, regimes, count, seed, observed.size * RANDOM_STARTS + i) for i in range(RANDOM_STARTS)
    ]
    trials = [
        fit(observed, open_zeros(start), TRIAL_ITERATIONS, smoothing=SMOOTHING, tolerance=TOLERANCE, steps=steps)
        for start in starts
    ]
    likeliest = max(trials, key=lambda trial: trial.objective[-1]).parameters
    return fit(observed, likeliest, ITERATIONS, smoothing=SMOOTHING, tolerance=TOLERANCE, steps=steps).parameters


def count_operations(rounds: int, regimes: int, symbols: int) -> int:
    """What `estimate` costs, in the unit of costs.py; about half of the iterations are made before it stops."""
    passes = (RANDOM_STARTS + 2) * (TRIAL_ITERATIONS + 1) + ITERATIONS + 1
    return passes // 2 * count_pass_operations(rounds, regimes) + spectral.count_operations(rounds, symbols)


def count_pass_operations(rounds: int, regimes: int) -> int:
    """What an iteration of Baum–Welch costs."""
    return rounds * (1 + regimes) // 8 + 150


def open_zeros(start: HmmParameters) -> HmmParameters:
    """Mix every row with a little of the uniform law, because EM never leaves a probability of 0."""
    return HmmParameters(
        0.999 * start.transition + 0.001 / start.transition.shape[1],
        0.999 * start.emission + 0.001 / start.emission.shape[1],
        start.initial,
    )


def _random_start(seen: SmallInts, regimes: int, count: int, seed: int, counter: int) -> HmmParameters:
    """Persistent regimes whose emissions scatter around the symbols' frequencies."""
    generator = spectral.random_stream(seed, kernels.EM_DRAW, counter)
    frequencies = np.bincount(seen, minlength=count) + 0.5
    emission = generator.dirichlet(np.ones(count), regimes) * frequencies
    transition = np.full((regimes, regimes), 0.2 / max(regimes - 1, 1))
    np.fill_diagonal(transition, 0.8 if regimes > 1 else 1.0)
    return HmmParameters(transition, emission / emission.sum(axis=1, keepdims=True), np.full(regimes, 1.0 / regimes))
