"""The ridge regression behind LinUCB: G = Σ z zᵀ + λI, its inverse and θ̂ (eq. estimate-theta).

Inner loops run along rows, four rows at a time: the compiler turns these into vector instructions. Each number is a
chain ((x + ab) + cd) + … in the order written, so the bits are the same wherever the loop is compiled (R15).
"""

from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray, IntArray
from policy.kernels.compiling import inline, jit
from policy.kernels.features import Inputs, add_square, all_columns, column_room

# Columns of Statistics.counters.
FOLDED, SINCE_FACTORED = 0, 1

# A rank-one update divides by 1 + q and loses log10(q) digits: factor anew if q is larger than this.
_LARGEST_QUADRATIC = 1e4
# Factor anew after this many rank-one updates, which bounds the drift of the inverse.
FACTOR_EVERY = 512
# Columns up to which the loops here factor G as fast as LAPACK, to which wider maps are left (blocks.py).
NARROW = 160
# A wide map takes up to a row for this many columns by rank-one updates; with more rows, factoring is faster.
_COLUMNS_PER_ROW = 8
# Rank-one updates are subtracted from the inverse four at a time: fewer passes over it.
_STEPS = 4


class Statistics(NamedTuple):
    """The reward model's arrays, updated in place."""

    gram: FloatArray  # G = Σ z zᵀ + λI, D × D
    moment: FloatArray  # Σ z r, D
    inverse: FloatArray  # of G + P, see `solve`, D × D
    theta: FloatArray  # θ̂, D
    # Rewards (or slices of rounds) folded; rank-one updates since the last factorisation, -1 before the first.
    counters: IntArray
    # Centre subtracted from every reward, noise σ̂, noise of each action; (0, 1) where they are not estimated.
    units: FloatArray


class Scratch(NamedTuple):
    """Memory that the loops use over and over."""

    columns: IntArray  # non-zero columns of a z
    weights: FloatArray  # their weights
    vectors: FloatArray  # _STEPS rows of D numbers, then zeros up to a multiple of four


@jit
def count_most_steps(size):  # type: ignore[no-untyped-def]
    """The most rows that go into a G of `size` columns by rank-one updates."""
    return size if size <= NARROW else size // _COLUMNS_PER_ROW


@jit
def make_scratch(plan):  # type: ignore[no-untyped-def]
    """Scratch memory for a feature map."""
    columns, weights = column_room(plan)
    return Scratch(columns, weights, np.zeros((_STEPS, (plan.null.shape[0] + 3) // 4 * 4)))


@inline
def _add_scaled_rows(out, row, scales, column, matrix, first, last, start, stop, sign):  # type: ignore[no-untyped-def]
    """out[row, start:stop] += sign · Σ_k scales[k, column] · matrix[k, start:stop], k = first … last-1.

    out, scales, matrix: tables of D rows and D columns or more; they may be the same one.
    """
    whole = first + (last - first) // 4 * 4
    for k in range(first, whole, 4):
        a, b = sign * scales[k, column], sign * scales[k + 1, column]
        c, d = sign * scales[k + 2, column], sign * scales[k + 3, column]
        for j in range(start, stop):
            total = (out[row, j] + a * matrix[k, j]) + b * matrix[k + 1, j]
            out[row, j] = (total + c * matrix[k + 2, j]) + d * matrix[k + 3, j]
    for k in range(whole, last):
        a = sign * scales[k, column]
        for j in range(start, stop):
            out[row, j] += a * matrix[k, j]


@jit
def _downdate(inverse, steps, held):  # type: ignore[no-untyped-def]
    """inverse (D × D) -= Σ s sᵀ over the first `held` rows s of steps (_STEPS × D or wider)."""
    size = inverse.shape[0]
    for i in range(size):
        if held == _STEPS:
            a, b, c, d = steps[0, i], steps[1, i], steps[2, i], steps[3, i]
            for j in range(size):
                left = (inverse[i, j] - a * steps[0, j]) - b * steps[1, j]
                inverse[i, j] = (left - c * steps[2, j]) - d * steps[3, j]
        else:
            for k in range(held):
                a = steps[k, i]
                for j in range(size):
                    inverse[i, j] -= a * steps[k, j]


@jit
def solve(gram, moment, null, ridge, theta):  # type: ignore[no-untyped-def]
    """Fill θ̂ = G⁻¹ Σ z r (eq. estimate-theta) by Cholesky: G + P = RᵀR; returns R, D × (D + 1), and its diagonal.

    One-hot blocks are collinear, so G keeps eigenvalues λ for ever in directions that no z has; at λ = 1e-9 that
    ruins the inverse. Adding the projector P = null (D × D) on those directions changes neither G⁻¹z nor θ̂ and cures
    it. Every pivot of a matrix ⪰ λI is ≥ λ, so a smaller one is rounding and is set to λ.
    """
    size = gram.shape[0]
    # Σ z r goes along as one more column, which ends as R⁻ᵀ Σ z r.
    upper, pivots = np.zeros((size, size + 1)), np.empty(size)
    for i in range(size):
        for j in range(i, size):
            upper[i, j] = gram[i, j] + null[i, j]
        upper[i, size] = moment[i]
    for i in range(size):
        _add_scaled_rows(upper, i, upper, i, upper, 0, i, i, size + 1, -1.0)
        pivots[i] = np.sqrt(max(upper[i, i], ridge))
        scale = 1.0 / pivots[i]
        for j in range(i, size + 1):
            upper[i, j] *= scale
    # By back substitution, more accurate than the product with the inverse.
    for i in range(size - 1, -1, -1):
        left = upper[i, size]
        for j in range(i + 1, size):
            left -= upper[i, j] * theta[j]
        theta[i] = left / pivots[i]
    return upper, pivots


@jit
def factor(statistics, null, ridge):  # type: ignore[no-untyped-def]
    """Renew θ̂ and the inverse from G and Σ z r; null: D × D, see `Plan`."""
    inverse, size = statistics.inverse, statistics.gram.shape[0]
    upper, pivots = solve(statistics.gram, statistics.moment, null, ridge, statistics.theta)
    # W = R⁻ᵀ, lower triangular, by forward substitution.
    lower = np.eye(size)
    for i in range(size):
        _add_scaled_rows(lower, i, upper, i, lower, 0, i, 0, i, -1.0)
        scale = 1.0 / pivots[i]
        for j in range(i + 1):
            lower[i, j] *= scale
    # (G + P)⁻¹ = WᵀW, row by row in the lower triangle, then mirrored.
    for i in range(size):
        for j in range(i + 1):
            inverse[i, j] = 0.0
        _add_scaled_rows(inverse, i, lower, i, lower, i, size, 0, i + 1, 1.0)
        for j in range(i):
            inverse[j, i] = inverse[i, j]
    statistics.counters[SINCE_FACTORED] = 0


@inline
def _add_rows(matrix, columns, weights, start, stop, vectors, base, out):  # type: ignore[no-untyped-def]
    """vectors[out] = vectors[base] + Σ weights[i] · matrix[columns[i]] over i = start … stop-1.

    matrix: D × D. columns, weights: those of `Scratch`. vectors: _STEPS rows of D numbers or more.
    """
    size = matrix.shape[1]
    whole = start + (stop - start) // 4 * 4
    for i in range(start, whole, 4):
        a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        p, q, r, s = columns[i], columns[i + 1], columns[i + 2], columns[i + 3]
        for j in range(size):
            total = (vectors[base, j] + a * matrix[p, j]) + b * matrix[q, j]
            vectors[out, j] = (total + c * matrix[r, j]) + d * matrix[s, j]
        base = out
    for i in range(whole, stop):
        a, p = weights[i], columns[i]
        for j in range(size):
            vectors[out, j] = vectors[base, j] + a * matrix[p, j]
        base = out
    if base != out:
        for j in range(size):
            vectors[out, j] = vectors[base, j]


@inline
def combine_rows(matrix, columns, weights, n, vectors, out):  # type: ignore[no-untyped-def]
    """vectors[out] = Σ weights[i] · matrix[columns[i]] over the first n columns; matrix: D × D."""
    for j in range(matrix.shape[1]):
        vectors[out, j] = 0.0
    _add_rows(matrix, columns, weights, 0, n, vectors, out, out)


@inline
def norm_with(matrix, columns, weights, start, stop, vectors):  # type: ignore[no-untyped-def]
    """‖vectors[0] + Σ weights[i] · matrix[columns[i]]‖₂ over i = start … stop-1; overwrites vectors[1].

    Four sums side by side, because each addition waits for the one before it.
    """
    _add_rows(matrix, columns, weights, start, stop, vectors, 0, 1)
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for j in range(0, vectors.shape[1], 4):
        a += vectors[1, j] * vectors[1, j]
        b += vectors[1, j + 1] * vectors[1, j + 1]
        c += vectors[1, j + 2] * vectors[1, j + 2]
        d += vectors[1, j + 3] * vectors[1, j + 3]
    return np.sqrt((a + b) + (c + d))


@inline
def _prepare_step(inverse, theta, columns, weights, n, weight, reward, steps, held):  # type: ignore[no-untyped-def]
    """Sherman–Morrison: move θ̂ by weight · z zᵀ and reward · z, and put into steps[held] the s with inverse -= s sᵀ.

    columns, weights: z by its first n non-zero columns. weight: 1, or ≥ 0 if the round is only partly in. theta: D.
    steps: _STEPS rows of D numbers or more.
    `inverse` (D × D) does not hold the `held` steps before this one yet. Returns False if the step would lose too
    many digits; θ̂ is then unchanged.
    """
    size = inverse.shape[1]
    combine_rows(inverse, columns, weights, n, steps, held)
    for k in range(held):
        inner = 0.0
        for i in range(n):
            inner += weights[i] * steps[k, columns[i]]
        for j in range(size):
            steps[held, j] -= inner * steps[k, j]
    quadratic, estimate = 0.0, 0.0
    for i in range(n):
        quadratic += weights[i] * steps[held, columns[i]]
        estimate += weights[i] * theta[columns[i]]
    quadratic *= weight
    if not quadratic < _LARGEST_QUADRATIC:
        return False
    gain = (reward - weight * estimate) / (1.0 + quadratic)
    scale = np.sqrt(weight) / np.sqrt(1.0 + quadratic)
    for j in range(size):
        theta[j] += gain * steps[held, j]
        steps[held, j] *= scale
    return True


@jit
def update_statistics(plan, statistics, ridge, levels, values, actions, beliefs, rewards, rows):  # type: ignore[no-untyped-def]
    """A stage update: fold the given rows in order (R1, R2) and renew the inverse and θ̂.

    levels: T × V. values: T × numeric variables. actions, rewards: T. beliefs: T × H. rows: those of T to fold.
    Few rows (always so at ℓ = 1) go in by rank-one updates with periodic factorisation, many by one Cholesky. Returns
    False if that is left to the caller, because the map is wide.
    """
    inputs = Inputs(levels, values, beliefs)
    return update_rows(plan, statistics, ridge, inputs, actions, rewards, rows, 0, rows.shape[0], make_scratch(plan))


@inline
def update_rows(plan, statistics, ridge, inputs, actions, rewards, rows, start, stop, scratch):  # type: ignore[no-untyped-def]
    """`update_statistics` for rows[start:stop], or for the rows start … stop-1 themselves if `rows` is empty."""
    gram, moment, inverse, theta = statistics.gram, statistics.moment, statistics.inverse, statistics.theta
    columns, weights, vectors = scratch.columns, scratch.weights, scratch.vectors
    since, centre = statistics.counters[SINCE_FACTORED], statistics.units[0]
    size = gram.shape[0]
    one_by_one, held = since >= 0 and stop - start <= count_most_steps(size), 0
    for place in range(start, stop):
        row = rows[place] if rows.shape[0] else place
        reward = rewards[row] - centre
        n = all_columns(plan, inputs, row, actions[row], columns, weights)
        for i in range(n):
            moment[columns[i]] += weights[i] * reward  # Σ z r of eq. estimate-theta
        if one_by_one:
            since += 1
            one_by_one = since < FACTOR_EVERY and _prepare_step(
                inverse, theta, columns, weights, n, 1.0, reward, vectors, held
            )
            held += 1
        add_square(gram, columns, weights, n)  # G of eq. estimate-theta
        if one_by_one and (held == _STEPS or place == stop - 1):
            _downdate(inverse, vectors, held)
            held = 0
    statistics.counters[FOLDED] += stop - start
    statistics.counters[SINCE_FACTORED] = since if one_by_one else -1
    if not one_by_one and size <= NARROW:
        factor(statistics, plan.null, ridge)
    return one_by_one or size <= NARROW


@jit
def revise_statistics(plan, statistics, levels, values, actions, beliefs, rows, differences):  # type: ignore[no-untyped-def]
    """Rewards that were folded before have changed: Σ z r moves by z times the difference, θ̂ with it; G stays.

    levels, values, actions, beliefs: as in `update_statistics`. rows: those of T that changed. differences: by how
    much. Many are left to the update that follows, which then factors G anew.
    """
    inputs, scratch = Inputs(levels, values, beliefs), make_scratch(plan)
    moment, theta, counters = statistics.moment, statistics.theta, statistics.counters
    columns, weights, vectors = scratch.columns, scratch.weights, scratch.vectors
    if rows.shape[0] > count_most_steps(moment.shape[0]):
        counters[SINCE_FACTORED] = -1
    for place in range(rows.shape[0]):
        n = all_columns(plan, inputs, rows[place], actions[rows[place]], columns, weights)
        for i in range(n):
            moment[columns[i]] += weights[i] * differences[place]
        if counters[SINCE_FACTORED] >= 0:
            counters[SINCE_FACTORED] += 1
            combine_rows(statistics.inverse, columns, weights, n, vectors, 0)
            for j in range(theta.shape[0]):
                theta[j] += differences[place] * vectors[0, j]  # G⁻¹ z times the difference


@jit
def fold_slices(plan, statistics, ridge, levels, values, actions, beliefs, rows, slices, share, rewards):  # type: ignore[no-untyped-def]
    """`update_statistics` for rounds that enter in slices (policy/exposure.py): G += Σ w z zᵀ and Σ z r += Σ rewards z.

    levels, values, actions, beliefs: as there. rows: those of T to fold. slices: how many slices of each, w = slices ·
    share, perhaps none. rewards: of each row, what these slices and newly arrived rewards add, less w times the centre.
    """
    inputs, scratch = Inputs(levels, values, beliefs), make_scratch(plan)
    gram, moment, inverse, theta = statistics.gram, statistics.moment, statistics.inverse, statistics.theta
    columns, weights, vectors = scratch.columns, scratch.weights, scratch.vectors
    since, size, count = statistics.counters[SINCE_FACTORED], statistics.gram.shape[0], rows.shape[0]
    one_by_one, held = since >= 0 and count <= count_most_steps(size), 0
    for place in range(count):
        weight = slices[place] * share
        n = all_columns(plan, inputs, rows[place], actions[rows[place]], columns, weights)
        for i in range(n):
            moment[columns[i]] += weights[i] * rewards[place]
        if one_by_one:
            since += 1
            one_by_one = since < FACTOR_EVERY and _prepare_step(
                inverse, theta, columns, weights, n, weight, rewards[place], vectors, held
            )
            held += 1
        for i in range(n):
            for j in range(n):
                gram[columns[i], columns[j]] += weight * weights[i] * weights[j]
        if one_by_one and (held == _STEPS or place == count - 1):
            _downdate(inverse, vectors, held)
            held = 0
        statistics.counters[FOLDED] += slices[place]
    statistics.counters[SINCE_FACTORED] = since if one_by_one else -1
    if not one_by_one and size <= NARROW:
        factor(statistics, plan.null, ridge)
    return one_by_one or size <= NARROW


@jit
def reset_statistics(statistics, ridge):  # type: ignore[no-untyped-def]
    """Forget all rewards; the next update factors G, which renews the inverse and θ̂."""
    statistics.gram[:, :] = 0.0
    for i in range(statistics.gram.shape[0]):
        statistics.gram[i, i] = ridge
    statistics.moment[:] = 0.0
    statistics.counters[FOLDED] = 0
    statistics.counters[SINCE_FACTORED] = -1
