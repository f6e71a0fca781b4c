"""The numba kernels behind everything: one implementation for service and simulator.

All compiled code lives in this one file because numba's disk cache notices a change only in the file that holds
the kernel. Sums run in the order written, so one-by-one, batch, replay and restart agree to the last bit (R15): of
fastmath only what `_plus` does. Shapes: T rounds, V variables, K actions, H regimes, X symbols, D columns of z.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "ACTION_DRAW",
    "COMPLEX",
    "CONTROL",
    "CONTROL_DRAW",
    "CONTROL_ROUND",
    "CONTROL_SUBJECT",
    "ELLIPTICAL",
    "EM_DRAW",
    "OPTIMISTIC",
    "PLAIN",
    "ROTATION_DRAW",
    "SIMPLIFIED",
    "TABLED",
    "TABLED_ELLIPTICAL",
    "WARM_START",
    "WARM_START_DRAW",
    "Chance",
    "Exploration",
    "Plan",
    "Statistics",
    "belief_path",
    "decide_rounds",
    "filter_path",
    "fold_profiles",
    "forward_backward",
    "hash_counter",
    "pair_counts",
    "play_rounds",
    "profile_columns",
    "profile_moments",
    "profile_predictions",
    "refactor",
    "reward_evidence",
    "row_columns",
    "sample_path",
    "span_gram",
    "triple_moments",
    "uniform",
    "update_statistics",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Modes of a decision, as codes.
WARM_START, OPTIMISTIC, CONTROL = 0, 1, 2
# Purposes of the counter-based hash (R11); each random use has its own stream.
WARM_START_DRAW, CONTROL_ROUND, CONTROL_SUBJECT, CONTROL_DRAW, ACTION_DRAW, ROTATION_DRAW, EM_DRAW = range(1, 8)

# Forms of the bonus: the first two scale ‖G⁻¹z‖₂, the next two ‖z‖_{G⁻¹}; the tabled ones take given columns.
COMPLEX, SIMPLIFIED, PLAIN, ELLIPTICAL, TABLED, TABLED_ELLIPTICAL = range(6)

# Columns of Plan.terms.
_VARIABLE, _VALUE, _START, _WIDTH, _PER_REGIME, _POSITIONS = range(6)
# Columns of Statistics.counters.
_FOLDED, _SINCE_FACTORED = 0, 1

# A rank-one update divides by 1 + q and loses log10(q) digits: past this q factor anew. Also anew every so often,
# which bounds the drift of the downdated inverse.
_LARGEST_QUADRATIC = 1e4
_FACTOR_EVERY = 512
# So many rank-one steps go into the inverse in one pass: fewer visits to memory.
_STEPS = 4


class Plan(NamedTuple):
    """The feature map as tables (features.py builds it): what a context and an action switch on in z(b, a, x)."""

    terms: IntArray  # one row a term: variable or -1, number or -1, start, width, per regime?, map; with actions last
    positions: IntArray  # level -> position inside the term's block, -1 where the level has no column
    sizes: IntArray  # H, K, shared width, per-regime width, terms without actions
    null: FloatArray  # D×D projector on the directions no z ever has (collinear one-hot blocks), see `_factor`


class Chance(NamedTuple):
    """What the random part of a decision depends on besides the scores (R11–R13)."""

    seed: int
    control_share: float
    control_baseline: bool
    floor: float


class Exploration(NamedTuple):
    """The confidence bonus ε_{t,a} (bonus.py): a form, its scale C, ℓ, and for TABLED its two columns."""

    form: int
    scale: float
    stage_length: int
    table: FloatArray  # (additive, factor) a row of the call


class Statistics(NamedTuple):
    """The reward model's arrays, updated in place: Σ z zᵀ + λI, Σ z r, its inverse, θ̂, and counters."""

    gram: FloatArray
    moment: FloatArray
    inverse: FloatArray
    theta: FloatArray
    counters: IntArray  # rewards folded; rank-one updates since the last factorisation, -1 before the first
    units: FloatArray  # what is subtracted from every reward, and the noise σ̂; (0, 1) where neither is estimated


def _jit(function: Any) -> Any:
    return njit(cache=True, nogil=True, error_model="numpy")(function)


def _inline(function: Any) -> Any:
    """For the small pieces of the hot loops: merged into their callers, where arrays need no reference counting."""
    return njit(nogil=True, error_model="numpy", inline="always")(function)


def _intrinsic(function: Any) -> Any:
    """For what numba cannot say: the function gives the types, and the instructions in LLVM's language."""
    return intrinsic(function)


# --- eight numbers at a time ----------------------------------------------------------------------------------
# What the compiler makes of a loop over a short row is mostly checks and remainders. So the linear algebra is written
# in blocks: eight neighbours of a table's row, held in one or a few vector registers while rows are added to them.
# Sums are chains, ((x + ab) + cd) + …, which can be fused in one way only: wherever compiled, the bits are the same.

_WIDE = 8
_DOUBLES = ir.VectorType(ir.DoubleType(), _WIDE)


class _Block(types.Type):
    """Eight numbers side by side, as a numba type."""

    def __init__(self) -> None:
        super().__init__("block")


@register_model(_Block)
class _BlockModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _DOUBLES)


_block = _Block()


def _everywhere(builder: Any, number: Any) -> Any:
    """A block, or its indices, with one number in every place."""
    empty = ir.Constant(ir.VectorType(number.type, _WIDE), ir.Undefined)
    first = builder.insert_element(empty, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), _WIDE), [0] * _WIDE))


def _place(context: Any, builder: Any, kind: Any, table: Any, row: Any, start: Any) -> tuple[Any, Any]:
    """Where table[row, start] is, and how many numbers the row has from there on."""
    assert kind.layout == "C", "blocks are neighbours in memory"
    array = context.make_array(kind)(context, builder, table)
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    place = builder.gep(array.data, [builder.add(builder.mul(row, width), start)])
    return builder.bitcast(place, _DOUBLES.as_pointer()), builder.sub(width, start)


@_intrinsic
def _zeros(typing):  # type: ignore[no-untyped-def]
    return _block(), lambda context, builder, signature, arguments: ir.Constant(_DOUBLES, [0.0] * _WIDE)


def _inside(builder: Any, left: Any) -> Any:
    """Which numbers of a block are still in a row that has so many left."""
    index = ir.Constant(ir.VectorType(ir.IntType(64), _WIDE), list(range(_WIDE)))
    return builder.icmp_signed("<", index, _everywhere(builder, left))


@_intrinsic
def _read(typing, table, row, start):  # type: ignore[no-untyped-def]
    """The block table[row, start:start+8] of a C-contiguous table, zeros beyond the row's end."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place, left = _place(context, builder, signature.args[0], *arguments)
        inside, align = _inside(builder, left), ir.IntType(32)
        law = ir.FunctionType(_DOUBLES, [place.type, align, inside.type, _DOUBLES])
        load = cgutils.get_or_insert_function(builder.module, law, "llvm.masked.load.v8f64.p0v8f64")
        return builder.call(load, [place, align(8), inside, ir.Constant(_DOUBLES, [0.0] * _WIDE)])

    return _block(table, types.int64, types.int64), generate


@_intrinsic
def _write(typing, table, row, start, block):  # type: ignore[no-untyped-def]
    """table[row, start:start+8] = block, as far as the row goes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place, left = _place(context, builder, signature.args[0], *arguments[:3])
        inside, align = _inside(builder, left), ir.IntType(32)
        law = ir.FunctionType(ir.VoidType(), [_DOUBLES, place.type, align, inside.type])
        store = cgutils.get_or_insert_function(builder.module, law, "llvm.masked.store.v8f64.p0v8f64")
        builder.call(store, [arguments[3], place, align(8), inside])
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64, _block), generate


@_intrinsic
def _take(typing, table, row, start):  # type: ignore[no-untyped-def]
    """`_read` of a block that is whole, as all of a work table (`_table`) are."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(_place(context, builder, signature.args[0], *arguments)[0], align=8)

    return _block(table, types.int64, types.int64), generate


@_intrinsic
def _put(typing, table, row, start, block):  # type: ignore[no-untyped-def]
    """`_write` of a block that is whole."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[3], _place(context, builder, signature.args[0], *arguments[:3])[0], align=8)
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64, _block), generate


@_intrinsic
def _plus(typing, block, weight, other):  # type: ignore[no-untyped-def]
    """block + weight · other, a product and its addition in one instruction where the machine has it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        block, weight, other = arguments
        factor = weight if signature.args[1] == _block else _everywhere(builder, weight)
        return builder.fadd(block, builder.fmul(factor, other, flags=("contract",)), flags=("contract",))

    return _block(block, _block if weight == _block else types.float64, other), generate


@_intrinsic
def _total(typing, block):  # type: ignore[no-untyped-def]
    """The sum of the eight, in pairs: an order that no machine changes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        terms = [builder.extract_element(arguments[0], ir.IntType(32)(i)) for i in range(_WIDE)]
        while len(terms) > 1:
            terms = [builder.fadd(*terms[i : i + 2]) for i in range(0, len(terms), 2)]
        return terms[0]

    return types.float64(block), generate


# --- chance (R11) --------------------------------------------------------------------------------------------


@_jit
def _mix(z):  # type: ignore[no-untyped-def]
    """The finaliser of the splitmix64 generator: a bijection of 64-bit words with full avalanche."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_jit
def hash_counter(seed, purpose, counter):  # type: ignore[no-untyped-def]
    """64 random bits, a pure function of (seed, purpose, counter) (R11)."""
    step = np.uint64(0x9E3779B97F4A7C15)
    z = _mix(np.uint64(seed) + step)
    z = _mix((z ^ np.uint64(purpose)) + step)
    return _mix((z ^ np.uint64(counter)) + step)


@_jit
def uniform(seed, purpose, counter):  # type: ignore[no-untyped-def]
    """A number in [0, 1) from the top 53 bits of the hash."""
    return np.float64(hash_counter(seed, purpose, counter) >> np.uint64(11)) * 2.0**-53


# --- features ------------------------------------------------------------------------------------------------
# Rows of tables are reached by index, not as views: a view costs numba a reference count, twice, each time.


@_inline
def _active_columns(plan, levels, values, beliefs, row, action, columns, weights, n):  # type: ignore[no-untyped-def]
    """Append the non-zero (column, weight) pairs of z(b, a, x) of a row to the n written so far; return their number.

    action > 0 gives the terms with actions at that action (the baseline 0 has none); action = -1 gives the terms
    without. z of an action is the two together, so a scorer computes the second part once for all actions.
    """
    terms, positions = plan.terms, plan.positions
    regimes, shared, per_regime, without = plan.sizes[0], plan.sizes[2], plan.sizes[3], plan.sizes[4]
    first, last, place = (without, terms.shape[0], action - 1) if action > 0 else (0, without if action else 0, 0)
    for i in range(first, last):
        column, weight = terms[i, _START] + place * terms[i, _WIDTH], 1.0
        if terms[i, _VARIABLE] >= 0:
            position = positions[terms[i, _POSITIONS] + levels[row, terms[i, _VARIABLE]]]
            if position < 0:
                continue
            column += position
        if terms[i, _VALUE] >= 0:
            weight = values[row, terms[i, _VALUE]]
        if terms[i, _PER_REGIME] == 1:
            for h in range(regimes):
                columns[n] = shared + h * per_regime + column
                weights[n] = beliefs[row, h] * weight
                n += 1
        else:
            columns[n] = column
            weights[n] = weight
            n += 1
    return n


@_inline
def _row_columns(plan, levels, values, beliefs, row, action, columns, weights):  # type: ignore[no-untyped-def]
    """All of z(b, a, x) of a row: the terms without actions, then those with."""
    n = _active_columns(plan, levels, values, beliefs, row, -1, columns, weights, 0)
    return _active_columns(plan, levels, values, beliefs, row, action, columns, weights, n)


@_jit
def row_columns(plan, levels, values, beliefs, row, action, columns, weights):  # type: ignore[no-untyped-def]
    """`_row_columns` for callers outside compiled code."""
    return _row_columns(plan, levels, values, beliefs, row, action, columns, weights)


@_inline
def _write_out(columns, weights, n, dense):  # type: ignore[no-untyped-def]
    """A sparse z into the row `dense`, which must be zero."""
    for i in range(n):
        dense[0, columns[i]] = weights[i]


@_inline
def _add_square(gram, columns, weights, n, dense):  # type: ignore[no-untyped-def]
    """gram += z zᵀ, with z also written out in `dense`, which is cleared."""
    width = gram.shape[1]
    whole = width // _WIDE * _WIDE
    for j in range(0, whole, _WIDE):
        block = _take(dense, 0, j)
        for i in range(n):
            _put(gram, columns[i], j, _plus(_take(gram, columns[i], j), weights[i], block))
    if whole < width:
        block = _take(dense, 0, whole)
        for i in range(n):
            _write(gram, columns[i], whole, _plus(_read(gram, columns[i], whole), weights[i], block))
    for i in range(n):
        dense[0, columns[i]] = 0.0


@_jit
def span_gram(plan, levels, values, actions, beliefs, gram):  # type: ignore[no-untyped-def]
    """gram += Σ z zᵀ over the given rows: features.py finds the directions that no z ever has with it."""
    columns, weights, _, dense = _scratch(plan)
    for row in range(levels.shape[0]):
        n = _row_columns(plan, levels, values, beliefs, row, actions[row], columns, weights)
        _write_out(columns, weights, n, dense)
        _add_square(gram, columns, weights, n, dense)


@_jit
def _scratch(plan):  # type: ignore[no-untyped-def]
    """Room for the active columns and weights of a z, for a few vectors of its length, and for z written out."""
    limit, size = plan.terms.shape[0] * plan.sizes[0], plan.null.shape[0]
    return np.empty(limit, np.int64), np.empty(limit), _table(_STEPS, size), _table(1, size)


@_jit
def _table(rows, columns):  # type: ignore[no-untyped-def]
    """Zeros, each row in whole cache lines: blocks meet neither the edge of a row nor that of a line."""
    width = (columns + _WIDE - 1) // _WIDE * _WIDE
    memory = np.zeros(rows * width + _WIDE)
    first = -(memory.ctypes.data // 8) % _WIDE
    return memory[first : first + rows * width].reshape((rows, width))


@_jit
def _padded(matrix):  # type: ignore[no-untyped-def]
    """A copy of the matrix in a work table."""
    table = _table(matrix.shape[0], matrix.shape[1])
    _copy(matrix, table)
    return table


@_jit
def _copy(source, target):  # type: ignore[no-untyped-def]
    """Between a matrix and its work table, either way."""
    for i in range(source.shape[0]):
        for j in range(min(source.shape[1], target.shape[1])):
            target[i, j] = source[i, j]


# --- LinUCB --------------------------------------------------------------------------------------------------


@_inline
def _add_rows(out, row, scales, column, matrix, first, last, start, stop, sign):  # type: ignore[no-untyped-def]
    """out[row] += sign · Σ scales[k, column] · matrix[k] over k in first … last-1, in blocks that reach start … stop-1.

    All of them work tables. Two blocks side by side, because each waits for its own sum.
    """
    for j in range(start // _WIDE * _WIDE, stop, 2 * _WIDE):
        right = min(j + _WIDE, (stop - 1) // _WIDE * _WIDE)
        a, b = _take(out, row, j), _take(out, row, right)
        for k in range(first, last):
            scale = sign * scales[k, column]
            a, b = _plus(a, scale, _take(matrix, k, j)), _plus(b, scale, _take(matrix, k, right))
        _put(out, row, j, a)
        _put(out, row, right, b)


@_jit
def _downdate(inverse, steps, held):  # type: ignore[no-untyped-def]
    """inverse -= Σ s sᵀ over the first `held` rows of steps; two rows and four steps at a time."""
    size, width = inverse.shape
    whole = width // _WIDE * _WIDE
    for i in range(0, size - 1, 2):
        for k in range(0, held - 3, 4):
            a, b, c, d = -steps[k, i], -steps[k + 1, i], -steps[k + 2, i], -steps[k + 3, i]
            e, f, g, h = -steps[k, i + 1], -steps[k + 1, i + 1], -steps[k + 2, i + 1], -steps[k + 3, i + 1]
            for j in range(0, whole, _WIDE):
                p, q, r, s = _take(steps, k, j), _take(steps, k + 1, j), _take(steps, k + 2, j), _take(steps, k + 3, j)
                upper, lower = _plus(_take(inverse, i, j), a, p), _plus(_take(inverse, i + 1, j), e, p)
                _put(inverse, i, j, _plus(_plus(_plus(upper, b, q), c, r), d, s))
                _put(inverse, i + 1, j, _plus(_plus(_plus(lower, f, q), g, r), h, s))
        for k in range(held // 4 * 4, held):
            a, b = -steps[k, i], -steps[k, i + 1]
            for j in range(0, whole, _WIDE):
                p = _take(steps, k, j)
                _put(inverse, i, j, _plus(_take(inverse, i, j), a, p))
                _put(inverse, i + 1, j, _plus(_take(inverse, i + 1, j), b, p))
    for i in range(size // 2 * 2, size):
        for k in range(held):
            for j in range(0, whole, _WIDE):
                _put(inverse, i, j, _plus(_take(inverse, i, j), -steps[k, i], _take(steps, k, j)))
    for i in range(size if whole < width else 0):  # what is left of each row
        block = _read(inverse, i, whole)
        for k in range(held):
            block = _plus(block, -steps[k, i], _take(steps, k, whole))
        _write(inverse, i, whole, block)


@_inline
def _scale(table, row, factor):  # type: ignore[no-untyped-def]
    """table[row] *= factor."""
    for j in range(0, table.shape[1], _WIDE):
        _put(table, row, j, _plus(_zeros(), factor, _take(table, row, j)))


@_jit
def _factor(statistics, null, ridge):  # type: ignore[no-untyped-def]
    """Inverse and θ̂ = G⁻¹ Σ z r (eq. estimate-theta) by Cholesky.

    One-hot blocks are collinear, so G keeps eigenvalues λ for ever in directions that no z has; at λ = 1e-9 that
    ruins the inverse. Adding the projector on those directions changes neither G⁻¹z nor θ̂ and cures it. Every
    pivot of a matrix ⪰ λI is ≥ λ, so a smaller one is rounding and is set to λ.
    """
    gram, moment, inverse, theta = statistics.gram, statistics.moment, statistics.inverse, statistics.theta
    size = gram.shape[0]
    # G = RᵀR with R in the upper triangle; Σ z r goes along as one more column, which ends as R⁻ᵀ Σ z r.
    upper, lower, solved, pivots = _table(size, size + 1), _table(size, size), _table(1, size + 1), np.empty(size)
    for i in range(size):
        for j in range(size):
            upper[i, j] = gram[i, j] + null[i, j]
        upper[i, size] = moment[i]
        lower[i, i] = 1.0
    for i in range(size):
        _add_rows(upper, i, upper, i, upper, 0, i, i, size + 1, -1.0)
        pivots[i] = np.sqrt(max(upper[i, i], ridge))
        _scale(upper, i, 1.0 / pivots[i])
        for j in range(i // _WIDE * _WIDE, i):  # the block reached below the diagonal
            upper[i, j] = 0.0
    # W = R⁻ᵀ, lower triangular, by forward substitution.
    for i in range(size):
        _add_rows(lower, i, upper, i, lower, 0, i, 0, i, -1.0)
        _scale(lower, i, 1.0 / pivots[i])
    # θ̂ by back substitution, more accurate than the product with the inverse.
    solved[0, size] = -1.0
    for i in range(size - 1, -1, -1):
        total = _zeros()
        for j in range(i // _WIDE * _WIDE, size + 1, _WIDE):
            total = _plus(total, _take(upper, i, j), _take(solved, 0, j))
        solved[0, i] = theta[i] = -_total(total) / pivots[i]
    # G⁻¹ = WᵀW, a row at a time in a row that is free now.
    for i in range(size):
        for j in range(0, i + 1, _WIDE):
            _put(solved, 0, j, _zeros())
        _add_rows(solved, 0, lower, i, lower, i, size, 0, i + 1, 1.0)
        for j in range(i + 1):
            inverse[i, j] = inverse[j, i] = solved[0, j]


@_jit
def _combine(matrix, columns, weights, n, vectors, out):  # type: ignore[no-untyped-def]
    """vectors[out] = Σ weights[i] · matrix[columns[i]] over the first n."""
    for j in range(0, matrix.shape[1], _WIDE):
        block = _zeros()
        for i in range(n):
            block = _plus(block, weights[i], _read(matrix, columns[i], j))
        _put(vectors, out, j, block)


@_inline
def _square(matrix, columns, weights, start, stop, vectors):  # type: ignore[no-untyped-def]
    """‖vectors[0] + Σ weights[i] · matrix[columns[i]]‖² over i in start … stop-1."""
    total = _zeros()
    for j in range(0, matrix.shape[1], _WIDE):
        block = _take(vectors, 0, j)
        for i in range(start, stop):
            block = _plus(block, weights[i], _read(matrix, columns[i], j))
        total = _plus(total, block, block)
    return _total(total)


@_inline
def _rank_one(inverse, theta, columns, weights, n, reward, steps, held):  # type: ignore[no-untyped-def]
    """Sherman–Morrison: θ̂ after one more round, and into steps[held] the s that takes its inverse down by s sᵀ.

    `inverse` still lacks the `held` steps before it. False if the step would lose too many digits.
    """
    width = inverse.shape[1]
    _combine(inverse, columns, weights, n, steps, held)
    for k in range(held):
        inner = 0.0
        for i in range(n):
            inner += weights[i] * steps[k, columns[i]]
        for j in range(0, width, _WIDE):
            _put(steps, held, j, _plus(_take(steps, held, j), -inner, _take(steps, k, j)))
    quadratic, estimate = 0.0, 0.0
    for i in range(n):
        quadratic += weights[i] * steps[held, columns[i]]
        estimate += weights[i] * theta[columns[i]]
    if not quadratic < _LARGEST_QUADRATIC:
        return False
    gain = (reward - estimate) / (1.0 + quadratic)
    for j in range(theta.shape[0]):
        theta[j] += gain * steps[held, j]
    _scale(steps, held, 1.0 / np.sqrt(1.0 + quadratic))
    return True


@_jit
def update_statistics(plan, statistics, ridge, levels, values, actions, beliefs, rewards, rows):  # type: ignore[no-untyped-def]
    """A stage update: fold the given rows in order (R1, R2), then renew G⁻¹ and θ̂.

    Few rows (always so at ℓ = 1) go in by rank-one updates with periodic re-factorisation, many by one Cholesky.
    """
    _update(plan, statistics, ridge, levels, values, actions, beliefs, rewards, rows, 0, rows.shape[0], _scratch(plan))


@_inline
def _update(  # type: ignore[no-untyped-def]
    plan, statistics, ridge, levels, values, actions, beliefs, rewards, rows, start, stop, scratch
):  # fmt: skip
    """update_statistics for rows[start:stop], or for rows start … stop-1 themselves where `rows` is empty."""
    gram, moment, inverse, theta = statistics.gram, statistics.moment, statistics.inverse, statistics.theta
    columns, weights, vectors, dense = scratch
    since, centre = statistics.counters[_SINCE_FACTORED], statistics.units[0]
    one_by_one, held = since >= 0 and stop - start <= gram.shape[0], 0
    for place in range(start, stop):
        row = rows[place] if rows.shape[0] else place
        reward = rewards[row] - centre
        n = _row_columns(plan, levels, values, beliefs, row, actions[row], columns, weights)
        _write_out(columns, weights, n, dense)
        for i in range(n):
            moment[columns[i]] += weights[i] * reward
        if one_by_one:
            since += 1
            one_by_one = since < _FACTOR_EVERY and _rank_one(inverse, theta, columns, weights, n, reward, vectors, held)
            held += 1
        _add_square(gram, columns, weights, n, dense)  # late: a block just written number by number is slow to read
        if one_by_one and (held == _STEPS or place == stop - 1):
            _downdate(inverse, vectors, held)
            held = 0
    statistics.counters[_FOLDED] += stop - start
    if not one_by_one:
        _factor(statistics, plan.null, ridge)
        since = 0
    statistics.counters[_SINCE_FACTORED] = since


@_inline
def _score(  # type: ignore[no-untyped-def]
    plan, inverse, theta, elliptical, levels, values, beliefs, row, eligible, allowed, estimates, norms, scratch
):  # fmt: skip
    """Estimate θ̂ᵀz and norm (‖z‖_{G⁻¹} if elliptical, else ‖G⁻¹z‖₂) of every action that eligible[allowed] has."""
    columns, weights, vectors, _ = scratch
    n = _active_columns(plan, levels, values, beliefs, row, -1, columns, weights, 0)
    common_estimate, common_quadratic = 0.0, 0.0
    for i in range(n):
        common_estimate += weights[i] * theta[columns[i]]
    if elliptical:
        for i in range(n):
            line, inner = columns[i], 0.0
            for j in range(n):
                inner += weights[j] * inverse[line, columns[j]]
            common_quadratic += weights[i] * inner
    else:
        _combine(inverse, columns, weights, n, vectors, 0)
    for action in range(eligible.shape[1]):
        if not eligible[allowed, action]:
            estimates[action] = np.nan
            norms[action] = np.nan
            continue
        m = _active_columns(plan, levels, values, beliefs, row, action, columns, weights, n)
        estimate = common_estimate
        for i in range(n, m):
            estimate += weights[i] * theta[columns[i]]
        estimates[action] = estimate
        if elliptical:
            quadratic = common_quadratic
            for i in range(n, m):
                line, cross, own = columns[i], 0.0, 0.0
                for j in range(n):
                    cross += weights[j] * inverse[line, columns[j]]
                for j in range(n, m):
                    own += weights[j] * inverse[line, columns[j]]
                quadratic += weights[i] * (2.0 * cross + own)
            norms[action] = np.sqrt(max(quadratic, 0.0))
        else:
            norms[action] = np.sqrt(_square(inverse, columns, weights, n, m, vectors))


@_jit
def _choose(chance, t, warm, scores, eligible, allowed, subject, has_subject, law):  # type: ignore[no-untyped-def]
    """Draw the action and give its marginal propensity (R12) and mode."""
    arms = eligible.shape[1]
    count, baseline = 0, -1
    best, ties = -np.inf, 0
    for a in range(arms):
        if eligible[allowed, a]:
            count += 1
            if baseline < 0:
                baseline = a
            if scores[a] > best:
                best, ties = scores[a], 1
            elif scores[a] == best:
                ties += 1
    for a in range(arms):
        law[a] = 0.0
        if eligible[allowed, a]:
            greedy = 1.0 / ties if scores[a] == best else 0.0
            law[a] = 1.0 / count if warm else chance.floor + (1.0 - count * chance.floor) * greedy
    mode, purpose = (WARM_START, WARM_START_DRAW) if warm else (OPTIMISTIC, ACTION_DRAW)
    if not warm and chance.control_share > 0.0:
        if has_subject:
            assigned = uniform(chance.seed, CONTROL_SUBJECT, subject)
        else:
            assigned = uniform(chance.seed, CONTROL_ROUND, t)
        if assigned < chance.control_share:
            mode, purpose = CONTROL, CONTROL_DRAW
    draw = uniform(chance.seed, purpose, t)
    chosen, total = -1, 0.0
    for a in range(arms):
        if not eligible[allowed, a]:
            continue
        mine = _control(chance, a, baseline, count) if mode == CONTROL else law[a]
        if mine > 0.0:
            # The last action with positive probability takes what rounding leaves over.
            if chosen < 0 or draw >= total:
                chosen = a
            total += mine
    propensity = law[chosen]
    if not warm and chance.control_share > 0.0:
        share = chance.control_share
        propensity = share * _control(chance, chosen, baseline, count) + (1.0 - share) * propensity
    return chosen, propensity, mode


@_jit
def _control(chance, action, baseline, count):  # type: ignore[no-untyped-def]
    """The control's probability of an eligible action; without the baseline, the first eligible one stands in."""
    if chance.control_baseline:
        return 1.0 if action == baseline else 0.0
    return 1.0 / count


@_inline
def _is_warm(t, warm_rounds, stage_length, folded):  # type: ignore[no-untyped-def]
    """R8: so many rounds at least, and on until half as many rewards were folded."""
    return t <= max(warm_rounds, stage_length + 1) or 2 * folded < warm_rounds


@_inline
def _is_elliptical(form):  # type: ignore[no-untyped-def]
    return form in (PLAIN, ELLIPTICAL, TABLED_ELLIPTICAL)


@_inline
def _bonus(exploration, t, row, norm):  # type: ignore[no-untyped-def]
    """ε_{t,a}, with s_t = ⌈t/ℓ⌉ (R1)."""
    form, scale, length = exploration.form, exploration.scale, exploration.stage_length
    stage = (t + length - 1) // length
    if form == COMPLEX:  # eq. simplified-boxa
        return scale * stage * np.sqrt(np.float64(length)) * norm
    if form == SIMPLIFIED:
        return scale * np.sqrt(np.float64(stage * length)) * norm
    if form == PLAIN:  # Box D
        return scale * np.log(np.float64(t)) * norm
    if form == ELLIPTICAL:
        return scale * norm
    return exploration.table[row, 0] + exploration.table[row, 1] * norm


@_jit
def decide_rounds(  # type: ignore[no-untyped-def]
    terms, positions, sizes, seed, control_share, control_baseline, floor, warm_rounds,
    form, scale, stage_length, table, inverse, theta, centre, folded, transition, emission, belief, gaps,
    codes, numbers, eligible, subjects, first_round,
    start, levels, values, symbols, steps, actions, beliefs, answers,
):  # fmt: skip
    """Decide consecutive rounds that share one reward model and one HMM, and record them from row `start` on.

    Arrays one by one, which numba takes four times faster than named tuples of them: this is the hot path. Recorded in
    the history's columns: context (codes hold levels and symbol), steps of the chain (`gaps`, or 1 each where that is
    empty), action, belief. Into answers go (action, mode, propensity, K estimates, K bonuses, H beliefs) a row.
    `subjects` holds (hash, present?) a row.
    """
    plan = Plan(terms, positions, sizes, inverse)  # of `null` only the size is needed here
    chance = Chance(seed, control_share, control_baseline, floor)
    exploration = Exploration(form, scale, stage_length, table)
    stop, arms, variables = start + codes.shape[0], eligible.shape[1], levels.shape[1]
    for i in range(codes.shape[0]):
        for v in range(variables):
            levels[start + i, v] = codes[i, v]
        for v in range(numbers.shape[1]):
            values[start + i, v] = numbers[i, v]
        symbols[start + i] = codes[i, variables]
        steps[start + i] = gaps[i] if gaps.shape[0] else (1 if start + i else 0)
    belief_path(transition, emission, belief, steps[start:stop], symbols[start:stop], beliefs[start:stop])
    scratch = _scratch(plan)
    estimates, bonuses, scores, law = np.empty(arms), np.empty(arms), np.empty(arms), np.empty(arms)
    elliptical = _is_elliptical(form)
    for row in range(start, stop):
        i = row - start
        t = first_round + i
        _score(plan, inverse, theta, elliptical, levels, values, beliefs, row, eligible, i, estimates, bonuses, scratch)
        for a in range(arms):
            bonuses[a] = _bonus(exploration, t, i, bonuses[a])
            scores[a] = estimates[a] + bonuses[a]
            answers[i, 3 + a] = centre + estimates[a]
            answers[i, 3 + arms + a] = bonuses[a]
        for h in range(belief.shape[0]):
            answers[i, 3 + 2 * arms + h] = beliefs[row, h]
        actions[row], answers[i, 2], answers[i, 1] = _choose(
            chance, t, _is_warm(t, warm_rounds, stage_length, folded), scores, eligible, i,
            subjects[i, 0], subjects[i, 1] == 1, law,
        )  # fmt: skip
        answers[i, 0] = actions[row]


@_jit
def play_rounds(  # type: ignore[no-untyped-def]
    plan, chance, exploration, statistics, start, stop, folded, ridge, warm_rounds,
    levels, values, beliefs, reward_table, actions, rewards,
):  # fmt: skip
    """Play rounds start+1 … stop (rows start … stop-1) with every reward known at once; return the rows folded.

    The same scores, draws and stage updates as one-by-one decisions, without leaving compiled code. `folded` rows
    are in the statistics already; folded = -1 asks to rebuild them from all rows at the next stage update (R4).
    """
    scratch, every_row = _scratch(plan), np.empty(0, np.int64)
    # In work tables, because they are used often.
    published, (gram, moment, inverse, theta, counters, units) = statistics, statistics
    statistics = Statistics(_padded(gram), moment, _padded(inverse), theta, counters, units)
    arms, stage_length = reward_table.shape[1], exploration.stage_length
    elliptical = _is_elliptical(exploration.form)
    estimates, scores, law = np.empty(arms), np.empty(arms), np.empty(arms)
    eligible = np.ones((1, arms), np.bool_)
    for row in range(start, stop):
        t = row + 1
        if row > 0 and row % stage_length == 0:
            if folded < 0:
                _reset(statistics, ridge)
                folded = 0
            _update(plan, statistics, ridge, levels, values, actions, beliefs, rewards, every_row, folded, row, scratch)
            folded = row
        _score(plan, statistics.inverse, statistics.theta, elliptical, levels, values, beliefs, row, eligible, 0,
               estimates, scores, scratch)  # fmt: skip
        for a in range(arms):
            scores[a] = estimates[a] + _bonus(exploration, t, row - start, scores[a])
        warm = _is_warm(t, warm_rounds, stage_length, statistics.counters[_FOLDED])
        action, _, _ = _choose(chance, t, warm, scores, eligible, 0, np.uint64(0), False, law)
        actions[row] = action
        rewards[row] = reward_table[row - start, action]
    _copy(statistics.gram, published.gram)
    _copy(statistics.inverse, published.inverse)
    return folded


@_jit
def _reset(statistics, ridge):  # type: ignore[no-untyped-def]
    """As before any reward; θ̂ and G⁻¹ follow at the factorisation that this asks for."""
    statistics.gram[:, :] = 0.0
    for i in range(statistics.gram.shape[0]):
        statistics.gram[i, i] = ridge
    statistics.moment[:] = 0.0
    statistics.counters[_FOLDED] = 0
    statistics.counters[_SINCE_FACTORED] = -1


# --- hidden Markov model -------------------------------------------------------------------------------------


@_jit
def filter_path(transition, emission, start, steps, symbols, evidence, beliefs):  # type: ignore[no-untyped-def]
    """`_filter` for callers that do not know H when they are compiled."""
    return _filter(start.shape[0], transition, emission, start, steps, symbols, evidence, beliefs)


@_inline
def _filter(regimes, transition, emission, start, steps, symbols, evidence, beliefs):  # type: ignore[no-untyped-def]
    """Filter symbols one after the other into beliefs (T×H) by Bayes' rule; returns the log-likelihood.

    Before row t the chain moves steps[t] times: eq. Bayes-est-1 is 0 steps, eq. Bayes-est-2 is 1; a clock may
    give any number. A missing symbol (-1), or one the estimate thinks impossible, only predicts. `evidence` (T×H, or
    empty) multiplies the emission probabilities: what else each row tells about its regime.
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
        if likelihood > 1e-290:
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
        product *= likelihood  # logarithms are dear: one for many steps
        if product < 1e-100:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@_jit
def belief_path(transition, emission, belief, steps, symbols, beliefs):  # type: ignore[no-untyped-def]
    """The beliefs after each of the next symbols; without parameters, before the first estimate, they stay (R5)."""
    if transition.shape[0] == 0:
        for t in range(symbols.shape[0]):
            for h in range(belief.shape[0]):
                beliefs[t, h] = belief[h]
    else:
        filter_path(transition, emission, belief, steps, symbols, np.empty((0, 0)), beliefs)


@_jit
def forward_backward(  # type: ignore[no-untyped-def]
    size, transition, emission, initial, steps, symbols, evidence, beliefs, pairs, emitted
):  # fmt: skip
    """Smoothed beliefs P(h_t | x_1 … x_T) into beliefs (T×H); returns the log-likelihood.

    On the way back it sums the expected transition (pairs, H×H) and emission (emitted, H×X) counts that EM needs.
    `steps` are 0 or 1 here: longer gaps are written out as missing symbols (hmm.written_out). `size` is any tuple of
    length H: its length is known at compile time, which unrolls the loops over regimes.
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
            # The inverse of less than 1e-290 would overflow: scale all down, and back below.
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


# --- rewards by profile --------------------------------------------------------------------------------------
# Rounds with the same context and action share a profile, so sums over rounds become sums over far fewer profiles.
# z(b, a, x) = Σ_h b(h) z_h with z_h = z(e_h, a, x), hence z zᵀ = Σ_{h,g} b(h) b(g) z_h z_gᵀ.


@_jit
def reward_evidence(profiles, rewards, predictions, noise, evidence):  # type: ignore[no-untyped-def]
    """exp(-(r - θᵀz_h)² / 2σ²) of every row and regime, scaled to 1 at the best one; returns the scales' logarithm.

    A row without a reward (NaN) tells nothing.
    """
    total, precision, regimes = 0.0, 0.5 / (noise * noise), evidence.shape[1]
    for t in range(profiles.shape[0]):
        least = np.inf
        for h in range(regimes):
            error = rewards[t] - predictions[profiles[t], h]
            evidence[t, h] = error * error * precision
            least = min(least, evidence[t, h])
        if np.isnan(rewards[t]):
            for h in range(regimes):
                evidence[t, h] = 1.0
            continue
        for h in range(regimes):
            evidence[t, h] = np.exp(least - evidence[t, h]) if evidence[t, h] > least else 1.0
        total -= least
    return total


@_jit
def profile_moments(profiles, rewards, beliefs, vertices, seconds, totals):  # type: ignore[no-untyped-def]
    """Σ b bᵀ (or Σ diag b, if `vertices`) and Σ b r of every profile, over the rows that have a reward."""
    regimes = totals.shape[1]
    seconds[:, :, :] = 0.0
    totals[:, :] = 0.0
    for t in range(profiles.shape[0]):
        if np.isnan(rewards[t]):
            continue
        p = profiles[t]
        for h in range(regimes):
            totals[p, h] += beliefs[t, h] * rewards[t]
            if vertices:
                seconds[p, h, h] += beliefs[t, h]
            else:
                for g in range(regimes):
                    seconds[p, h, g] += beliefs[t, h] * beliefs[t, g]


@_jit
def profile_columns(plan, levels, values, actions):  # type: ignore[no-untyped-def]
    """The active columns of every profile: (columns, weights, owners) P×n, and their numbers.

    An owner is the regime a column belongs to, H for shared ones; weights are those of z_h, before any belief.
    """
    limit, profiles = plan.terms.shape[0] * plan.sizes[0], levels.shape[0]
    regimes, shared, per_regime = plan.sizes[0], plan.sizes[2], plan.sizes[3]
    every = np.ones((profiles, regimes))
    line, weight = np.empty(limit, np.int64), np.empty(limit)
    columns, owners = np.empty((profiles, limit), np.int64), np.empty((profiles, limit), np.int64)
    weights, counts = np.empty((profiles, limit)), np.empty(profiles, np.int64)
    for p in range(profiles):
        counts[p] = _row_columns(plan, levels, values, every, p, actions[p], line, weight)
        for i in range(counts[p]):
            columns[p, i] = line[i]
            weights[p, i] = weight[i]
            owners[p, i] = (line[i] - shared) // per_regime if line[i] >= shared else regimes
    return columns, weights, owners, counts


@_jit
def fold_profiles(columns, weights, owners, counts, seconds, totals, gram, moment):  # type: ignore[no-untyped-def]
    """gram += Σ z zᵀ and moment += Σ z r from the profiles' moments; gram must be symmetric."""
    regimes = totals.shape[1]
    # Row and column H of the margins belong to the shared columns: sums over the regimes.
    margins, sums = np.empty((regimes + 1, regimes + 1)), np.empty(regimes + 1)
    for p in range(counts.shape[0]):
        sums[regimes] = 0.0
        margins[regimes, :] = 0.0
        for h in range(regimes):
            sums[h] = totals[p, h]
            sums[regimes] += sums[h]
            margins[h, regimes] = 0.0
            for g in range(regimes):
                margins[h, g] = seconds[p, h, g]
                margins[h, regimes] += margins[h, g]
                margins[regimes, g] += margins[h, g]
            margins[regimes, regimes] += margins[h, regimes]
        if margins[regimes, regimes] == 0.0:
            continue
        for i in range(counts[p]):
            line, owner, weight = columns[p, i], owners[p, i], weights[p, i]
            moment[line] += weight * sums[owner]
            for j in range(i + 1):  # each pair once, in the lower triangle; the upper one below
                other = columns[p, j]
                term = weight * weights[p, j] * margins[owner, owners[p, j]]
                if other <= line:
                    gram[line, other] += term
                else:
                    gram[other, line] += term
    for i in range(gram.shape[0]):
        for j in range(i):
            gram[j, i] = gram[i, j]


@_jit
def profile_predictions(columns, weights, owners, counts, theta, predictions):  # type: ignore[no-untyped-def]
    """θᵀz_h of every profile and regime."""
    regimes = predictions.shape[1]
    for p in range(counts.shape[0]):
        common = 0.0
        for h in range(regimes):
            predictions[p, h] = 0.0
        for i in range(counts[p]):
            if owners[p, i] == regimes:
                common += weights[p, i] * theta[columns[p, i]]
            else:
                predictions[p, owners[p, i]] += weights[p, i] * theta[columns[p, i]]
        for h in range(regimes):
            predictions[p, h] += common


@_jit
def refactor(statistics, null, ridge):  # type: ignore[no-untyped-def]
    """G⁻¹ and θ̂ anew from G and Σ z r, for callers outside compiled code."""
    _factor(statistics, null, ridge)
    statistics.counters[_SINCE_FACTORED] = 0


# --- symbol moments ------------------------------------------------------------------------------------------


@_jit
def pair_counts(symbols, p31, p32):  # type: ignore[no-untyped-def]
    """Counts of (x_{s+1}, x_{s-1}) and (x_{s+1}, x_s) over s = 2 … t-1 (Box C, step 1); returns how many s.

    Triples with a missing symbol are left out.
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


@_jit
def triple_moments(symbols, left, right, middle, moments):  # type: ignore[no-untyped-def]
    """Σ_s left[x_{s+1}] ⊗ right[x_{s-1}] ⊗ middle[x_s] (H×H×H): Box C's third moment, projected before it is summed.

    Summed by x_s first, because the third factor depends on nothing else: O(t·H² + X·H³) work, O(X·H²) memory.
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


@_jit
def _draw(law, number):  # type: ignore[no-untyped-def]
    """The index that a uniform number falls on; the last possible one takes what rounding leaves over."""
    chosen, total = 0, 0.0
    for i in range(law.shape[0]):
        if law[i] > 0.0 and number >= total:
            chosen = i
        total += law[i]
    return chosen


@_jit
def sample_path(transition, emission, initial, uniforms, regimes, symbols):  # type: ignore[no-untyped-def]
    """Draw a chain and its symbols from two uniform numbers a step."""
    for t in range(uniforms.shape[0]):
        law = initial if t == 0 else transition[regimes[t - 1]]
        regimes[t] = _draw(law, uniforms[t, 0])
        symbols[t] = _draw(emission[regimes[t]], uniforms[t, 1])
