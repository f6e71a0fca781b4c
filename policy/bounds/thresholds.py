"""From which round on the estimates are close, and the constants of an HMM behind that."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from policy.bounds.arguments import check_arguments, check_probabilities, check_transition, smallest_singular
from policy.errors import ArgumentError

# C₀ is the least of three constants, one of which (Δ') has no closed form; this is the least of the other two.
KNOWN_C0 = 1 / (56 * 9 * 102)


def forgetting_rate(transition: ArrayLike) -> float:
    """γ of assumption:strong-mixing-hmm, by assumption:strong-mixing-condition with K(x, h) ~ ν_h(x)."""
    M = check_transition(transition)
    return float(1 - M.min() / M.max())


def estimation_threshold(transition: ArrayLike, emission: ArrayLike, *, c0: float = KNOWN_C0) -> float:
    """T̃ of eq:closedform-tildeT, from which (times 1 + ln(1/δ)) spectral estimates are close."""
    check_arguments(c0=c0)
    hmm = _regular(transition, emission)
    with np.errstate(over="ignore", divide="ignore"):
        samples = max(
            16 * hmm.regimes ** (1 / 3) / (c0 ** (2 / 3) * hmm.epsilon ** (1 / 3)),
            3 * hmm.regimes / (c0**2 * hmm.epsilon * hmm.sigma**2),
            np.float64(1.0),
        )
        return float(2 * (12 / (hmm.epsilon * hmm.sigma) ** 2) ** 2 * (math.log(2 * hmm.symbols) + 1) * samples)


def alignment_threshold(transition: ArrayLike, emission: ArrayLike) -> float:
    """T_Δ of eq:Tdelta, from which the alignment step cannot confuse two regimes."""
    hmm = _regular(transition, emission)
    with np.errstate(over="ignore", divide="ignore"):
        return float(1 + np.ceil(32 * hmm.c1**2 * math.log(6 * hmm.symbols) / hmm.separation**2))


def log_belief_threshold(transition: ArrayLike, emission: ArrayLike, *, c0: float = KNOWN_C0) -> float:
    """ln T_B of eq:closedformT; T_B itself holds exp(L_1 C_1 + L_2 C_2), beyond any float."""
    hmm = _regular(transition, emission)
    eps = hmm.epsilon
    self_bounding = (  # ln(6 T (1 + ln T)), the form behind eq:Tttgeq
        math.log(6) + math.log(T) + math.log1p(math.log(T))
        for T in (estimation_threshold(transition, emission, c0=c0), alignment_threshold(transition, emission))
    )
    with np.errstate(over="ignore", divide="ignore"):
        l0 = 4 * (1 - eps) / eps**2  # L_0, L_1, L_2 of proposition:bound-estimated-belief
        l1 = 4 * ((1 - eps) / eps) ** 2 / hmm.smallest_emission
        l2 = 4 * (1 - eps) ** 2 / eps**3
        forgetting = np.log1p(1 / np.log1p(-eps / (1 - eps)) ** 2)
        return float(max(*self_bounding, l1 * hmm.c1 + l2 * hmm.c2, math.sqrt(2) * l0, forgetting))


class _RegularHmm(NamedTuple):
    """The constants of an HMM within assumption:regularity-hmm; numpy floats, whose overflow is inf."""

    regimes: int
    symbols: int
    epsilon: np.float64  # ε_M, the smallest transition
    smallest_emission: np.float64  # e_{ν,min}
    sigma: np.float64  # σ_min(E) σ_min(M) ε_M of sec:details-how-HMM
    separation: np.float64  # Δ of sec:align
    c1: np.float64  # C_1 and C_2 of sec:proof-beliefestimationerror
    c2: np.float64


def _regular(transition: ArrayLike, emission: ArrayLike) -> _RegularHmm:
    """The constants; the assumption also requires a stationary initial law, on which none of them depends."""
    M = check_transition(transition)
    E = check_probabilities("emission", emission, len(M))
    H = len(M)
    # The paper calls σ_min(M) an eigenvalue; its proof (sec:details-how-HMM) needs the singular value.
    sigma_m, zero_m = smallest_singular(M)
    sigma_e, zero_e = smallest_singular(E)
    if not (H >= 2 and M.min() > 0 and sigma_m > zero_m):
        raise ArgumentError("transition", "not regular", "2 regimes or more, positive entries, invertible")
    if not (E.min() > 0 and sigma_e > zero_e):
        raise ArgumentError("emission", "not regular", "positive entries, linearly independent rows")
    separation = min(np.linalg.norm(E[i] - E[j]) for i in range(H) for j in range(i))
    eps, sigma = M.min(), np.float64(sigma_e * sigma_m) * M.min()
    with np.errstate(over="ignore", divide="ignore"):
        c3 = 16 / eps**1.5 * (1 + 12 / (eps**2 * sigma**3) + 256 / (eps**2 * sigma**2))
        c1 = 21 / sigma**2 * c3
        c2 = 4 / sigma * (math.sqrt(H) + 21 * H / sigma**2) * c3
    return _RegularHmm(H, E.shape[1], eps, E.min(), sigma, np.float64(separation), c1, c2)
