"""Linear bandits with a model for each action: LinUCB, Thompson sampling, and two that forget.

- LinUCB (Li et al. 2010): argmax of θ̂ᵀx + β ‖x‖_{V⁻¹}, with V = λI + Σ x xᵀ over the rounds that played the action.
- Thompson sampling (Agrawal & Goyal 2013): θ ~ N(θ̂, β² V⁻¹). Each action has its own θ, so that is one normal number
  in place of the 1 before β.
- D-LinUCB (Russac, Vernade & Cappé 2019): weights γ^age in V and θ̂; the width is ‖x‖ in V⁻¹ W V⁻¹, where W has weights
  γ^(2 age).
- SW-LinUCB (Cheung, Simchi-Levi & Zhu 2019): sums over the last w rounds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from benchmarks.worlds import Episode, World
from policy.arrays import FloatArray, IntArray

RIDGE = 1.0  # λ


def play_optimistically(world: World, episode: Episode, setting: Mapping[str, float], seed: int) -> IntArray:
    """Play LinUCB with a `scale` β, a `discount` γ (1 for none) and a `window` (0 for none)."""
    return _play(episode, setting, np.ones_like(episode.rewards))


def play_by_sampling(world: World, episode: Episode, setting: Mapping[str, float], seed: int) -> IntArray:
    """Play Thompson sampling with a `scale` β."""
    return _play(episode, setting, np.random.default_rng([seed, 2]).normal(size=episode.rewards.shape))


def _play(episode: Episode, setting: Mapping[str, float], draws: FloatArray) -> IntArray:
    discount, window = setting.get("discount", 1.0), int(setting.get("window", 0))
    actions = np.empty(len(draws), np.int64)
    play_rounds(episode.columns, episode.rewards, draws, discount, window, RIDGE, setting["scale"], actions)
    return actions


def _jit(function: Any) -> Any:
    return njit(cache=True, error_model="numpy")(function)


@_jit
def play_rounds(columns, rewards, draws, discount, window, ridge, scale, actions):  # type: ignore[no-untyped-def]
    """Fill the actions (T). columns: T × d. rewards, draws: T × K; a draw is multiplied into the width of its round."""
    count, size = rewards.shape[1], columns.shape[1]
    gram, squared = np.zeros((count, size, size)), np.zeros((count, size, size))
    moment, lower, solved = np.zeros((count, size)), np.empty((size, size)), np.empty(size)
    for a in range(count):
        for i in range(size):
            gram[a, i, i] = squared[a, i, i] = ridge
    for t in range(columns.shape[0]):
        best, chosen = -np.inf, 0
        for a in range(count):
            solve(gram[a], columns[t], lower, solved)
            mean, width = 0.0, 0.0
            for i in range(size):
                mean += solved[i] * moment[a, i]
                row = 0.0
                if discount < 1.0:
                    for j in range(size):
                        row += squared[a, i, j] * solved[j]
                else:
                    row = columns[t, i]
                width += solved[i] * row
            score = mean + scale * draws[t, a] * np.sqrt(max(width, 0.0))
            if score > best:
                best, chosen = score, a
        actions[t] = chosen
        if discount < 1.0:
            fade(gram, ridge, discount)
            fade(squared, ridge, discount**2)
            moment *= discount
        add(columns[t], 1.0, rewards[t, chosen], gram[chosen], squared[chosen], moment[chosen])
        if 0 < window <= t:
            old = actions[t - window]
            add(columns[t - window], -1.0, rewards[t - window, old], gram[old], squared[old], moment[old])


@_jit
def fade(gram, ridge, discount):  # type: ignore[no-untyped-def]
    """Discount the sums (K × d × d), but not the ridge in them."""
    gram *= discount
    for a in range(gram.shape[0]):
        for i in range(gram.shape[1]):
            gram[a, i, i] += (1.0 - discount) * ridge


@_jit
def add(x, weight, reward, gram, squared, moment):  # type: ignore[no-untyped-def]
    """Add a round (x: d) with a weight, -1 to take it out again."""
    for i in range(x.size):
        if x[i] != 0.0:
            for j in range(x.size):
                gram[i, j] += weight * x[i] * x[j]
                squared[i, j] += weight * x[i] * x[j]
            moment[i] += weight * x[i] * reward


@_jit
def solve(matrix, x, lower, solved):  # type: ignore[no-untyped-def]
    """Fill `solved` (d) with matrix⁻¹ x by the Cholesky factor, for which `lower` (d × d) is room."""
    size = x.size
    for i in range(size):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]
    for i in range(size):
        total = x[i]
        for k in range(i):
            total -= lower[i, k] * solved[k]
        solved[i] = total / lower[i, i]
    for i in range(size - 1, -1, -1):
        total = solved[i]
        for k in range(i + 1, size):
            total -= lower[k, i] * solved[k]
        solved[i] = total / lower[i, i]
