"""The hidden Markov model: filter, smoother, sampling, and the counts behind the spectral estimate."""

import numpy as np

from policy.kernels.chance import draw_index
from policy.kernels.compiling import inline, jit


@jit
def filter_path(transition, emission, start, steps, symbols, evidence, beliefs):  # type: ignore[no-untyped-def]
    """Filter with any number of regimes H; returns the log-likelihood. Arguments as in `_filter`."""
    return _filter(start.shape[0], transition, emission, start, steps, symbols, evidence, beliefs)


@inline
def _filter(regimes, transition, emission, start, steps, symbols, evidence, beliefs):  # type: ignore[no-untyped-def]
    """Fill beliefs (T × H) by Bayes' rule, one symbol after the other; returns the log-likelihood.

    transition: H × H. emission: H × X. start: H. symbols: T, -1 if missing. evidence: T × H, multiplied into the
    emission probabilities, or empty. steps: T, how often the chain moves before each row: 0 is eq. Bayes-est-1, 1 is
    eq. Bayes-est-2, and a clock may give any number. A missing symbol, or one of probability 0, only predicts.
    """
    more = evidence.shape[0] > 0
    belief, predicted, weight = start.copy(), np.empty(regimes), np.empty(regimes)
    total, product = 0.0, 1.0
    for t in range(symbols.shape[0]):
        symbol = symbols[t]
        for h in range(regimes):
            predicted[h] = belief[h]
        for _ in range(steps[t]):
            for h in range(regimes):
                mass = 0.0
                for g in range(regimes):
                    mass += belief[g] * transition[g, h]
                predicted[h] = mass
            for h in range(regimes):
                belief[h] = predicted[h]
        likelihood = 0.0
        if symbol >= 0 or more:
            for h in range(regimes):
                weight[h] = emission[h, symbol] if symbol >= 0 else 1.0
                if more:
                    weight[h] *= evidence[t, h]
                likelihood += predicted[h] * weight[h]
        if likelihood > 1e-290:  # eqs. Bayes-est-1 and Bayes-est-2: the posterior is the prediction times the emission
            scale = 1.0 / likelihood
            for h in range(regimes):
                belief[h] = predicted[h] * weight[h] * scale
        elif likelihood > 0.0:  # its inverse could overflow
            for h in range(regimes):
                belief[h] = predicted[h] * weight[h] / likelihood
        else:
            mass = 0.0
            for h in range(regimes):
                mass += predicted[h]
            for h in range(regimes):
                belief[h] = predicted[h] / mass
        for h in range(regimes):
            beliefs[t, h] = belief[h]
        if symbol < 0 and not more:
            continue
        if likelihood < 1e-100:
            total += np.log(likelihood) if likelihood > 0.0 else -np.inf
            continue
        product *= likelihood  # logarithms are slow: take one for many steps
        if product < 1e-100:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@jit
def belief_path(transition, emission, belief, steps, symbols, beliefs):  # type: ignore[no-untyped-def]
    """Fill beliefs (T × H) with those after each of the next symbols; before the first estimate they stay (R5).

    transition: H × H and emission: H × X, or 0 × 0 before the first estimate. belief: H. steps, symbols: T.
    """
    if transition.shape[0] == 0:
        for t in range(symbols.shape[0]):
            for h in range(belief.shape[0]):
                beliefs[t, h] = belief[h]
    else:
        filter_path(transition, emission, belief, steps, symbols, np.empty((0, 0)), beliefs)


@jit
def forward_backward(  # type: ignore[no-untyped-def]
    size, transition, emission, initial, steps, symbols, evidence, beliefs, pairs, emitted
):  # fmt: skip
    """Fill beliefs (T × H) with the smoothed P(h_t | x_1 … x_T); returns the log-likelihood.

    Also fills the expected counts that EM needs: of transitions (pairs, H × H) and emissions (emitted, H × X).
    The other arguments are those of `_filter`, but steps are 0 or 1: longer gaps become missing symbols first.
    size: any tuple of length H. Its length is known at compile time, which unrolls the loops over regimes.
    """
    regimes, last = len(size), symbols.shape[0] - 1
    total = _filter(regimes, transition, emission, initial, steps, symbols, evidence, beliefs)
    ratio, smoothed, filtered = np.empty(regimes), np.empty(regimes), np.empty(regimes)
    pairs[:, :] = 0.0
    emitted[:, :] = 0.0
    if last < 0:
        return total
    for h in range(regimes):
        smoothed[h] = beliefs[last, h]
        if symbols[last] >= 0:
            emitted[h, symbols[last]] += smoothed[h]
    # Rauch–Tung–Striebel form: the smoothed law of t from the filtered law of t and the smoothed law of t+1.
    for t in range(last - 1, -1, -1):
        symbol, scale, back = symbols[t], 1.0, 1.0
        if steps[t + 1] == 0:  # the same regime as the next row
            for h in range(regimes):
                beliefs[t, h] = smoothed[h]
                if symbol >= 0:
                    emitted[h, symbol] += smoothed[h]
            continue
        for h in range(regimes):
            filtered[h] = beliefs[t, h]
        for h in range(regimes):
            predicted = 0.0
            for g in range(regimes):
                predicted += filtered[g] * transition[g, h]
            # The inverse of less than 1e-290 would overflow: scale everything down here, and back up below.
            if 0.0 < predicted < 1e-290:
                scale, back = 2.0**-200, 2.0**200
            ratio[h] = predicted
        for h in range(regimes):
            ratio[h] = smoothed[h] * (scale / ratio[h]) if ratio[h] > 0.0 else 0.0
        for g in range(regimes):
            mine, mass = filtered[g] * back, 0.0
            for h in range(regimes):
                joint = mine * (transition[g, h] * ratio[h])
                pairs[g, h] += joint
                mass += joint
            smoothed[g] = mass
            beliefs[t, g] = mass
            if symbol >= 0:
                emitted[g, symbol] += mass
    return total


@jit
def pair_counts(symbols, p31, p32):  # type: ignore[no-untyped-def]
    """Counts of (x_{s+1}, x_{s-1}) and (x_{s+1}, x_s) over s = 2 … t-1 (Box C, step 1); returns the number of s.

    symbols: T. Filled here: p31, p32, X × X. Triples with a missing symbol are left out.
    """
    p31[:, :] = 0.0
    p32[:, :] = 0.0
    used = 0
    for s in range(1, symbols.shape[0] - 1):
        if symbols[s - 1] >= 0 and symbols[s] >= 0 and symbols[s + 1] >= 0:
            p31[symbols[s + 1], symbols[s - 1]] += 1.0
            p32[symbols[s + 1], symbols[s]] += 1.0
            used += 1
    return used


@jit
def triple_moments(symbols, left, right, middle, moments):  # type: ignore[no-untyped-def]
    """Fill moments (H × H × H) with Σ_s left[x_{s+1}] ⊗ right[x_{s-1}] ⊗ middle[x_s].

    This is the third moment of Box C, projected before it is summed. symbols: T. left, right, middle: X × H. The sum is
    taken by x_s first, because the third factor depends on nothing else: O(T·H² + X·H³) work, O(X·H²) memory.
    """
    count, regimes = middle.shape
    by_middle = np.zeros((count, regimes, regimes))
    for s in range(1, symbols.shape[0] - 1):
        before, now, after = symbols[s - 1], symbols[s], symbols[s + 1]
        if before < 0 or now < 0 or after < 0:
            continue
        for i in range(regimes):
            for j in range(regimes):
                by_middle[now, i, j] += left[after, i] * right[before, j]
    moments[:, :, :] = 0.0
    for now in range(count):
        for i in range(regimes):
            for j in range(regimes):
                for k in range(regimes):
                    moments[i, j, k] += by_middle[now, i, j] * middle[now, k]


@jit
def sample_path(transition, emission, initial, uniforms, regimes, symbols):  # type: ignore[no-untyped-def]
    """Draw a chain (regimes, T) and its symbols (T) from two uniform numbers per step (uniforms, T × 2).

    transition: H × H. emission: H × X. initial: H.
    """
    for t in range(uniforms.shape[0]):
        law = initial if t == 0 else transition[regimes[t - 1]]
        regimes[t] = draw_index(law, uniforms[t, 0])
        symbols[t] = draw_index(emission[regimes[t]], uniforms[t, 1])
