"""The settings and confidence bonuses of the two theorems."""

import math

import numpy as np
from numpy.typing import ArrayLike

from policy.arrays import FloatArray
from policy.bounds.arguments import check_arguments, check_whole_numbers
from policy.bounds.beliefs import ERROR, SUM, tabulate


def general_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound: T^(3/4) and its ceiling, in exact integers."""
    check_arguments(horizon=horizon)
    cube = int(horizon) ** 3
    root = math.isqrt(math.isqrt(cube))
    return float(horizon) ** 0.75, root if root**4 == cube else root + 1


def simplified_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound-simplified: √T and 1."""
    check_arguments(horizon=horizon)
    return math.sqrt(horizon), 1


def general_bonus(
    rounds: ArrayLike,
    *,
    stage_length: int,
    ridge: float,
    regimes: int,
    symbols: int,
    dimension: int,
    horizon: int,
    risk: float,
    c_theta: float,
    gamma: float,
    c_eta: float,
) -> tuple[FloatArray, FloatArray]:
    """(additive, factor) with ε_{t,a} = additive_t + factor_t ‖G⁻¹z‖₂: theorem:total-regret-bound.

    G is that of the last stage end, factor the theorem's f_t; the first stage has 1 + √d/λ and 0.
    Rounds beyond the horizon follow the same formula, without the theorem's guarantee.
    """
    check_arguments(stage_length=stage_length, ridge=ridge, regimes=regimes, symbols=symbols, dimension=dimension)
    check_arguments(horizon=horizon, risk=risk, c_theta=c_theta, gamma=gamma, c_eta=c_eta)
    t = check_whole_numbers("rounds", rounds, 1)
    law = (risk / 2, regimes, symbols)  # half the risk for the beliefs, half for the deviations
    ended = (t - 1) // stage_length  # s_t - 1
    folded = ended * stage_length
    stages = -(-horizon // stage_length)  # s_T: each stage's two deviations have risk δ / (4 s_T)
    factor = (
        ridge * math.sqrt(regimes) * c_theta
        + 4 * np.sqrt(stages / (risk * (1 - gamma)) * folded * (1 + (ended + 1) * gamma))
        + np.sqrt(4 * stages / risk * c_eta * folded)
        + 2 * gamma / (1 - gamma) * ended
        + tabulate(SUM, folded, law)
    )
    first = ended == 0
    additive = np.where(first, 1 + math.sqrt(dimension) / ridge, tabulate(ERROR, t, law))
    return additive, np.where(first, 0.0, factor)


def simplified_bonus(
    rounds: ArrayLike,
    *,
    ridge: float,
    regimes: int,
    symbols: int,
    dimension: int,
    risk: float,
    c_theta: float,
    v_eta: float,
) -> tuple[FloatArray, FloatArray]:
    """(additive, factor) with ε_{t,a} = additive_t + factor_t ‖z‖_{G⁻¹}: eq:def-esp-simple.

    Box B has stages of one round: G is that of round t - 1, and round 1 has 1 + √d/λ and 0.
    """
    check_arguments(ridge=ridge, regimes=regimes, symbols=symbols, dimension=dimension)
    check_arguments(risk=risk, c_theta=c_theta, v_eta=v_eta)
    t = check_whole_numbers("rounds", rounds, 1)
    law = (risk / 2, regimes, symbols)
    columns = dimension * regimes
    # lm:linucb-dev at t - 1 would do with t - 1 in the logarithm; the paper states t.
    deviation = np.sqrt(2 * math.log(2 / risk) + columns * np.log1p(t / (ridge * columns)))
    bias = tabulate(SUM, t - 1, law) / math.sqrt(ridge) + math.sqrt(ridge * regimes) * c_theta
    first = t == 1
    additive = np.where(first, 1 + math.sqrt(dimension) / ridge, tabulate(ERROR, t, law))
    return additive, np.where(first, 0.0, bias + v_eta * deviation)
