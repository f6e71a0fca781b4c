"""The closed-form regret bounds of the two theorems."""

import math

from policy.bounds.arguments import check_arguments
from policy.bounds.beliefs import belief_error_sum
from policy.errors import ArgumentError


def general_regret_bound(
    *,
    horizon: int,
    threshold: float,
    stage_length: int,
    ridge: float,
    regimes: int,
    symbols: int,
    dimension: int,
    risk: float,
    c_theta: float,
    gamma: float,
    c_eta: float,
) -> float:
    """The closed-form bound of theorem:total-regret-bound: eq:3terms, with eq:Gsum for G_sum.

    T_0 - 1 stands where eq:3terms has its upper bound T_B (1 + ln(2/δ)). The paper bounds all bonuses by
    their form beyond the first stage, which forgets what rounds T_0..l pay under their own bonus
    1 + √d/λ; as regret is at most 2 per round, 2 max(0, l - T_0 + 1) would make up for it. That
    term is of lower order and is not in the paper's number, nor in this one.
    """
    check_arguments(horizon=horizon, threshold=threshold, stage_length=stage_length, dimension=dimension)
    check_arguments(regimes=regimes, symbols=symbols, risk=risk, c_theta=c_theta, gamma=gamma, c_eta=c_eta)
    stages = -(-horizon // stage_length)
    log_volume = _log_volume(stages * stage_length, ridge, dimension * regimes)
    g_sum = math.sqrt(2 * stages * stage_length * (1 + stage_length / ridge) * log_volume / ridge)
    belief = float(belief_error_sum(horizon, risk / 2, regimes, symbols))
    widest = (
        ridge * math.sqrt(regimes) * c_theta
        + 4 * math.sqrt(horizon * stages * (1 + stages * gamma) / (risk * (1 - gamma)))
        + math.sqrt(4 * stages / risk * horizon * c_eta)
        + 2 * stages * gamma / (1 - gamma)
        + belief
    )
    return (2 + 4 * horizon / ridge) * (threshold - 1) + 2 * belief + 2 * g_sum * widest


def simplified_regret_bound(
    *,
    horizon: int,
    threshold: float,
    ridge: float,
    regimes: int,
    symbols: int,
    dimension: int,
    risk: float,
    c_theta: float,
    v_eta: float,
) -> float:
    """The closed-form bound of theorem:total-regret-bound-simplified: eq:regret-bound-final-simplified."""
    check_arguments(horizon=horizon, threshold=threshold, dimension=dimension)
    check_arguments(regimes=regimes, symbols=symbols, risk=risk, c_theta=c_theta, v_eta=v_eta)
    log_volume = _log_volume(horizon, ridge, dimension * regimes)
    belief = float(belief_error_sum(horizon, risk / 2, regimes, symbols))
    deviation = math.sqrt(2 * math.log(2 / risk) + log_volume)
    widest = belief / math.sqrt(ridge) + math.sqrt(ridge * regimes) * c_theta + v_eta * deviation
    potential = math.sqrt(2 * horizon * log_volume)
    return (2 + 4 * horizon / ridge) * (threshold - 1) + 2 * belief + 2 * potential * widest


def _log_volume(rounds: int, ridge: float, columns: int) -> float:
    """The bound on ln det(G) / det(λI) after `rounds` rounds: lm:determinant-trace-inequality-bis."""
    if not 1 <= ridge < math.inf:
        raise ArgumentError("ridge", f"{ridge}", "a number ≥ 1 (lm:bound-cum-sum)")
    return columns * math.log1p(rounds / (columns * ridge))
