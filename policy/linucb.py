"""The reward model: sufficient statistics G and Σ z r, their stage update, θ̂ and G⁻¹ (eq. estimate-theta).

Plain LinUCB (Box D) is the same with H = 1. The arrays live in `kernels.Statistics`; here they are created, copied and
updated; arguments never change.
A narrow G is factored by the kernels' own loops, a wide one by LAPACK (blocks.py).
"""

import numpy as np

from policy import blocks, kernels
from policy.arrays import FloatArray, IntArray, SmallInts
from policy.delays import SLICES
from policy.encoding import Contexts
from policy.errors import ArgumentError
from policy.exposure import Due
from policy.features import FeatureMap
from policy.kernels import Statistics


def create_statistics(dimension: int, ridge: float) -> Statistics:
    """Before any reward: G = λI, θ̂₀ = (1/λ)·1 (Box A)."""
    if not (np.isfinite(ridge) and ridge > 0.0):
        raise ArgumentError("ridge", f"{ridge}", "a number > 0")
    gram, inverse = np.zeros((dimension, dimension)), np.zeros((dimension, dimension))
    np.fill_diagonal(gram, ridge)
    np.fill_diagonal(inverse, 1.0 / ridge)
    return Statistics(
        gram=gram,
        moment=np.zeros(dimension),
        inverse=inverse,
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


def count_operations(statistics: Statistics, features: FeatureMap, ridge: float, rows: int, *, anew: bool) -> int:
    """What folding `rows` rewards costs, in the unit of costs.py; `anew`: into statistics without any."""
    since = -1 if anew else int(statistics.counters[kernels.SINCE_FACTORED])
    if not rows and since >= 0:
        return 0
    size = features.dimension
    copying, squares = size * size // 80 + 100, rows * features.most_active**2 // 60
    if 0 <= since < kernels.FACTOR_EVERY - rows and rows <= kernels.count_most_steps(size):
        return copying + squares + rows * size * size // 1000
    if size > kernels.NARROW and _uses_loops(statistics.gram, ridge):
        return copying + squares + size**3 // 500
    return copying + squares + features.blocks.count_operations(for_inverse=True)


def update_statistics(
    statistics: Statistics,
    features: FeatureMap,
    ridge: float,
    contexts: Contexts,
    actions: SmallInts,
    beliefs: FloatArray,
    rewards: FloatArray,
    rows: IntArray,
    revised: tuple[IntArray, FloatArray] | None = None,
) -> Statistics:
    """Statistics after folding `rows` of the history, in the order given (R1, R2).

    `revised` are rows that are in the statistics already, and by how much their rewards have changed.
    """
    has_revised = revised is not None and revised[0].size > 0
    if not (rows.size or has_revised) and is_current(statistics):
        return statistics
    fresh = copy_statistics(statistics)
    if revised is not None and has_revised:
        kernels.revise_statistics(features.plan, fresh, contexts.levels, contexts.values, actions, beliefs, *revised)
    if not kernels.update_statistics(
        features.plan, fresh, ridge, contexts.levels, contexts.values, actions, beliefs, rewards, rows
    ):
        factor(fresh, features, ridge)
    return fresh


def fold_slices(
    statistics: Statistics,
    features: FeatureMap,
    ridge: float,
    contexts: Contexts,
    actions: SmallInts,
    beliefs: FloatArray,
    due: Due,
    default: float,
) -> Statistics:
    """Statistics after folding what is due of rounds that enter in slices, in round order (exposure.py)."""
    if not due.rows.size and is_current(statistics):
        return statistics
    fresh, share = copy_statistics(statistics), 1.0 / SLICES
    rewards = due.slices * share * (default - statistics.units[0]) + due.changes
    if not kernels.fold_slices(
        features.plan, fresh, ridge, contexts.levels, contexts.values, actions, beliefs,
        due.rows, due.slices, share, rewards,
    ):  # fmt: skip
        factor(fresh, features, ridge)
    return fresh


def factor(statistics: Statistics, features: FeatureMap, ridge: float) -> None:
    """Renew θ̂ and the inverse from G and Σ z r."""
    gram, moment, inverse, theta, counters, _ = statistics
    if _uses_loops(gram, ridge):
        kernels.factor(statistics, features.plan.null, ridge)
    else:
        eliminated = blocks.eliminate(features.blocks, gram, moment, features.plan.null, for_inverse=True)
        blocks.invert(features.blocks, eliminated, inverse)
        theta[:], counters[kernels.SINCE_FACTORED] = eliminated.theta, 0


def solve(gram: FloatArray, moment: FloatArray, features: FeatureMap, ridge: float) -> FloatArray:
    """θ̂ = G⁻¹ Σ z r (eq. estimate-theta) without the inverse, which is most of the work."""
    if not _uses_loops(gram, ridge):
        return blocks.eliminate(features.blocks, gram, moment, features.plan.null).theta
    theta = np.empty(moment.size)
    kernels.solve(gram, moment, features.plan.null, ridge, theta)
    return theta


def _uses_loops(gram: FloatArray, ridge: float) -> bool:
    """Is G narrow, or so badly scaled that it needs the loops' care for small pivots?"""
    return len(gram) <= kernels.NARROW or bool(ridge < 1e-13 * len(gram) * gram.diagonal().max())
