"""The reward model: sufficient statistics G and Σ z r, their stage update, θ̂ and G⁻¹ (eq. estimate-theta).

Plain LinUCB (Box D) is the same with H = 1. The arrays live in `kernels.Statistics`; here they are created, copied and
updated; arguments never change.
"""

import numpy as np

from policy import kernels
from policy.arrays import FloatArray, IntArray, SmallInts
from policy.encoding import Contexts
from policy.errors import ArgumentError
from policy.features import FeatureMap
from policy.kernels import Statistics


def create_statistics(dimension: int, ridge: float) -> Statistics:
    """Before any reward: G = λI, θ̂₀ = (1/λ)·1 (Box A)."""
    if not (np.isfinite(ridge) and ridge > 0.0):
        raise ArgumentError("ridge", f"{ridge}", "a number > 0")
    return Statistics(
        gram=np.eye(dimension) * ridge,
        moment=np.zeros(dimension),
        inverse=np.eye(dimension) / ridge,
        theta=np.full(dimension, 1.0 / ridge),
        counters=np.array([0, -1], np.int64),
        units=np.array([0.0, 1.0]),
    )


def copy_statistics(statistics: Statistics) -> Statistics:
    """A copy that kernels may change in place."""
    gram, moment, inverse, theta, counters, units = statistics
    return Statistics(gram.copy(), moment.copy(), inverse.copy(), theta.copy(), counters.copy(), units.copy())


def is_current(statistics: Statistics) -> bool:
    """Would an update without rewards leave every bit as it is? True once they have been factored."""
    return bool(statistics.counters[1] >= 0)


def count_operations(dimension: int, rows: int, is_current: bool) -> int:
    """What folding `rows` rewards costs, in the unit of costs.py; `is_current`: of statistics once factored."""
    if not rows and is_current:
        return 0
    passes = rows if is_current and rows <= dimension else dimension
    return dimension * dimension * passes // 300 + rows


def update_statistics(
    statistics: Statistics,
    features: FeatureMap,
    ridge: float,
    contexts: Contexts,
    actions: SmallInts,
    beliefs: FloatArray,
    rewards: FloatArray,
    rows: IntArray,
) -> Statistics:
    """Statistics after folding `rows` of the history, in the order given (R1, R2)."""
    if not rows.size and is_current(statistics):
        return statistics
    fresh = copy_statistics(statistics)
    kernels.update_statistics(
        features.plan, fresh, ridge, contexts.levels, contexts.values, actions, beliefs, rewards, rows
    )
    return fresh
