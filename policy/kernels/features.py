"""The feature map z(b, a, x) as tables, and its non-zero columns.

Rows of tables are reached by index, not as views: a view costs numba two changes of a reference count.
"""

from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray, IntArray, SmallInts
from policy.kernels.compiling import inline, jit

# Columns of Plan.terms.
_VARIABLE, _VALUE, _START, _WIDTH, _PER_REGIME, _POSITIONS = range(6)


class Plan(NamedTuple):
    """The feature map as tables: which columns of z(b, a, x) a context and an action switch on."""

    # One row per term, those with actions last: variable or -1, number or -1, first column, width, 1 if per regime,
    # offset into `positions`.
    terms: IntArray
    positions: IntArray  # level -> position inside the term's block, -1 if the level has no column
    sizes: IntArray  # H, K, shared width, per-regime width, number of terms without actions
    null: FloatArray  # D × D projector on the directions that no z has (collinear one-hot blocks)


class Inputs(NamedTuple):
    """What z depends on besides the action, a row per round."""

    levels: SmallInts  # T × V
    values: FloatArray  # T × numeric variables
    beliefs: FloatArray  # T × H


@inline
def active_columns(plan, inputs, row, action, columns, weights, n):  # type: ignore[no-untyped-def]
    """Append the non-zero (column, weight) pairs of z(b, a, x) of a row after the first n; returns their new number.

    action > 0 appends the terms with actions, at that action (the baseline 0 has none); action = -1 appends the terms
    without actions. z is the two together, so a scorer computes the second part once for all actions.
    columns, weights: terms · H, see `column_room`.
    """
    terms, positions = plan.terms, plan.positions
    levels, values, beliefs = inputs.levels, inputs.values, inputs.beliefs
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


@inline
def all_columns(plan, inputs, row, action, columns, weights):  # type: ignore[no-untyped-def]
    """All non-zero pairs of z(b, a, x) of a row: the terms without actions, then those with; returns their number."""
    n = active_columns(plan, inputs, row, -1, columns, weights, 0)
    return active_columns(plan, inputs, row, action, columns, weights, n)


@jit
def row_columns(plan, levels, values, beliefs, row, action, columns, weights):  # type: ignore[no-untyped-def]
    """`all_columns` for callers outside compiled code; the shapes are those of `Inputs`."""
    return all_columns(plan, Inputs(levels, values, beliefs), row, action, columns, weights)


@jit
def column_room(plan):  # type: ignore[no-untyped-def]
    """Room for the non-zero columns of one z, and their weights."""
    limit = plan.terms.shape[0] * plan.sizes[0]
    return np.empty(limit, np.int64), np.empty(limit)


@inline
def add_square(gram, columns, weights, n):  # type: ignore[no-untyped-def]
    """gram (D × D) += z zᵀ, z given by its first n non-zero columns."""
    for i in range(n):
        for j in range(n):
            gram[columns[i], columns[j]] += weights[i] * weights[j]


@jit
def span_gram(plan, levels, values, actions, beliefs, gram):  # type: ignore[no-untyped-def]
    """gram (D × D) += Σ z zᵀ over the given rows: its null space holds the directions that no z has.

    levels: T × V. values: T × numeric variables. actions: T. beliefs: T × H.
    """
    inputs = Inputs(levels, values, beliefs)
    columns, weights = column_room(plan)
    for row in range(levels.shape[0]):
        n = all_columns(plan, inputs, row, actions[row], columns, weights)
        add_square(gram, columns, weights, n)
