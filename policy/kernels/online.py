"""Online EM: the smoothed statistics of a hidden chain, kept up to date by a forward recursion alone (Cappé 2011)."""

import numpy as np

from policy.kernels.compiling import inline, jit


@jit
def online_em(  # type: ignore[no-untyped-def]
    transition, emission, steps, symbols, exponent, smoothing, learns, moved, emitted, belief, counts
):  # fmt: skip
    """Take the next symbols into the statistics; where `learns`, the parameters follow after every row.

    transition: H × H, emission: H × X: the parameters, replaced in place. steps: T, how often the chain moves before
    each row. symbols: T, -1 if missing. exponent: the n-th move weighs n^-exponent, and so does the n-th symbol; with
    an exponent of 1 all weigh alike. smoothing: pseudo-counts per cell.
    The statistics are replaced in place. They are averages given that the chain is in regime k now, and given all
    symbols so far: moved, H × H × H, the share [i, j, k] of moves from i to j; emitted, H × X × H, the share [i, x, k]
    of rows with regime i and symbol x. belief: H, the filter. counts: 2, the moves and the symbols so far.
    """
    origin, predicted = np.empty(moved.shape[1:]), np.empty(belief.shape[0])
    for t in range(symbols.shape[0]):
        for _ in range(steps[t]):
            counts[0] += 1
            _move(transition, counts[0] ** -exponent, origin, predicted, belief, moved, emitted)
        if symbols[t] >= 0:
            counts[1] += 1
            _see(emission, symbols[t], counts[1] ** -exponent, predicted, belief, emitted)
        if learns:
            average_law(moved, belief, counts[0], smoothing, transition)
            average_law(emitted, belief, counts[1], smoothing, emission)


@inline
def _move(transition, weight, origin, predicted, belief, moved, emitted):  # type: ignore[no-untyped-def]
    """One step of the chain, which enters the statistics of moves with a weight.

    origin: H × H, filled with P(regime g before | regime k now).
    """
    regimes = belief.shape[0]
    for k in range(regimes):
        mass = 0.0
        for g in range(regimes):
            mass += belief[g] * transition[g, k]
        predicted[k] = mass
        for g in range(regimes):
            origin[g, k] = belief[g] * transition[g, k] / mass if mass > 0.0 else 0.0
    for k in range(regimes):
        belief[k] = predicted[k]
    _carry(origin, predicted, moved)
    _carry(origin, predicted, emitted)
    for i in range(regimes):
        for j in range(regimes):
            for k in range(regimes):
                moved[i, j, k] *= 1.0 - weight
            moved[i, j, j] += weight * origin[i, j]


@inline
def _carry(origin, scratch, shares):  # type: ignore[no-untyped-def]
    """From averages given the regime before to averages given the regime now."""
    regimes = origin.shape[0]
    for i in range(shares.shape[0]):
        for j in range(shares.shape[1]):
            for k in range(regimes):
                share = 0.0
                for g in range(regimes):
                    share += shares[i, j, g] * origin[g, k]
                scratch[k] = share
            for k in range(regimes):
                shares[i, j, k] = scratch[k]


@inline
def _see(emission, symbol, weight, scratch, belief, emitted):  # type: ignore[no-untyped-def]
    """One symbol by Bayes' rule, which enters the statistics of emissions with a weight."""
    regimes, likelihood = belief.shape[0], 0.0
    for k in range(regimes):
        scratch[k] = belief[k] * emission[k, symbol]
        likelihood += scratch[k]
    if likelihood > 0.0:
        for k in range(regimes):
            belief[k] = scratch[k] / likelihood
    for i in range(emitted.shape[0]):
        for x in range(emitted.shape[1]):
            for k in range(regimes):
                emitted[i, x, k] *= 1.0 - weight
        emitted[i, symbol, i] += weight


@jit
def average_law(shares, belief, count, smoothing, law):  # type: ignore[no-untyped-def]
    """The M-step: fill the rows of a law (H × J) with expected counts and pseudo-counts, divided by their sums.

    shares: H × J × H, averages over `count` events given the regime now. belief: H.
    """
    for i in range(law.shape[0]):
        total = 0.0
        for j in range(law.shape[1]):
            mean = 0.0
            for k in range(belief.shape[0]):
                mean += shares[i, j, k] * belief[k]
            law[i, j] = count * mean + smoothing
            total += law[i, j]
        for j in range(law.shape[1]):
            law[i, j] /= total
