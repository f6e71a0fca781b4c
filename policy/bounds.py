"""The theory in numbers: belief error, thresholds, the theorems' bonuses, regret bounds, assumption checks.

One name per thing: `risk` is delta, `regimes` H, `symbols` X, `dimension` d, `horizon` T, `ridge` lambda,
`stage_length` l, `threshold` T_0, `emission` H x X. Citations such as eq:Tdelta are the paper's labels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.errors import ArgumentError

__all__ = [
    "KNOWN_C0",
    "AssumptionCheck",
    "alignment_threshold",
    "belief_error",
    "belief_error_sum",
    "check_assumptions",
    "estimation_threshold",
    "forgetting_rate",
    "general_bonus",
    "general_regret_bound",
    "general_settings",
    "log_belief_threshold",
    "simplified_bonus",
    "simplified_regret_bound",
    "simplified_settings",
]

Floats = NDArray[np.float64]
Law = tuple[float, int, int]  # (risk, regimes, symbols): all that U_belief depends on besides the round

# C_0 is the least of three constants, one (Delta') without closed form; this is the least of the other two.
KNOWN_C0 = 1 / (56 * 9 * 102)

_BLOCK = 1024  # rounds per tabulated block
_ROUNDING = 1e-9  # slack on an assumption of the form "at most"


def belief_error(t: ArrayLike, risk: float, regimes: int, symbols: int) -> Floats:
    """U_belief(t, delta) of lm:beliefestimationerror, elementwise over t >= 1.

    >>> belief_error([1, 100], risk=0.05, regimes=2, symbols=20).round(3)
    array([ 0.  , 24.02])
    """
    rounds = np.asarray(t, dtype=np.float64)
    if not np.all((rounds >= 1) & (rounds < np.inf)):
        raise ArgumentError("t", f"found {t!r}", "rounds from 1 on")
    _require(risk=risk, regimes=regimes, symbols=symbols)
    return _belief_error(rounds, (risk, regimes, symbols))


def belief_error_sum(n: ArrayLike, risk: float, regimes: int, symbols: int) -> Floats:
    """The sum of U_belief(tau, delta) over tau = 1..n, elementwise over n >= 0; the first call costs O(n)."""
    counts = _whole("n", n, 0)
    _require(risk=risk, regimes=regimes, symbols=symbols)
    return _tabulated(_SUM, counts, (risk, regimes, symbols))


def _belief_error(t: Floats, law: Law) -> Floats:
    risk, regimes, symbols = law
    log_t = np.log(t)
    confidence = math.log(6 * symbols / risk) + log_t + np.log1p(t)  # ln(6 X t(t+1) / delta)
    spectral = regimes * math.sqrt(symbols) * np.sqrt(2 * confidence / t)
    return np.asarray(log_t * (spectral + np.exp(-np.sqrt(t - 1))))


# The bonuses need U_belief and its running sum at every round, so both are tabulated in blocks of rounds:
# `_block_ends` keeps one sum per block ever reached, `_block` the blocks in use. A new round costs O(1), the
# first after a restart O(t), and memory stays small. Sums run in round order on a fixed grid: a round has the
# same bits alone, in a batch or after a restart (R15).
_ERROR, _SUM = 0, 1


@lru_cache(maxsize=256)
def _block_ends(law: Law) -> dict[int, float]:
    return {0: 0.0}


@lru_cache(maxsize=256)
def _block(index: int, law: Law) -> tuple[Floats, Floats]:
    ends = _block_ends(law)
    for k in range(min(len(ends) - 1, index), index + 1):
        errors = _belief_error(np.arange(k * _BLOCK + 1, (k + 1) * _BLOCK + 1, dtype=np.float64), law)
        sums = np.cumsum(np.concatenate(([ends[k]], errors)))[1:]
        ends[k + 1] = float(sums[-1])  # threads that race here write the same number
    return errors, sums


def _tabulated(column: int, rounds: NDArray[np.int64], law: Law) -> Floats:
    """U_belief or its running sum at the given rounds; 0 at round 0."""
    if rounds.size == 0:
        return np.zeros(rounds.shape)
    if rounds.size == 1:  # what a live decision asks for
        index, place = divmod(rounds.item() - 1, _BLOCK)
        return np.full(rounds.shape, _block(index, law)[column][place] if index >= 0 else 0.0)
    places = np.maximum(rounds - 1, 0)
    first, last = int(places.min()) // _BLOCK, int(places.max()) // _BLOCK
    table = np.concatenate([_block(index, law)[column] for index in range(first, last + 1)])
    return np.where(rounds > 0, table[places - first * _BLOCK], 0.0)


def forgetting_rate(transition: ArrayLike) -> float:
    """gamma of assumption:strong-mixing-hmm, by assumption:strong-mixing-condition with K(x, h) ~ nu_h(x)."""
    M = _transition(transition)
    return float(1 - M.min() / M.max())


def estimation_threshold(transition: ArrayLike, emission: ArrayLike, *, c0: float = KNOWN_C0) -> float:
    """T-tilde of eq:closedform-tildeT, from which (times 1 + ln(1/delta)) spectral estimates are close."""
    _require(c0=c0)
    hmm = _regular(transition, emission)
    with np.errstate(over="ignore", divide="ignore"):
        samples = max(
            16 * hmm.regimes ** (1 / 3) / (c0 ** (2 / 3) * hmm.epsilon ** (1 / 3)),
            3 * hmm.regimes / (c0**2 * hmm.epsilon * hmm.sigma**2),
            np.float64(1.0),
        )
        return float(2 * (12 / (hmm.epsilon * hmm.sigma) ** 2) ** 2 * (math.log(2 * hmm.symbols) + 1) * samples)


def alignment_threshold(transition: ArrayLike, emission: ArrayLike) -> float:
    """T_Delta of eq:Tdelta, from which the alignment step cannot confuse two regimes."""
    hmm = _regular(transition, emission)
    with np.errstate(over="ignore", divide="ignore"):
        return float(1 + np.ceil(32 * hmm.c1**2 * math.log(6 * hmm.symbols) / hmm.separation**2))


def log_belief_threshold(transition: ArrayLike, emission: ArrayLike, *, c0: float = KNOWN_C0) -> float:
    """ln T_B of eq:closedformT; T_B itself holds exp(L_1 C_1 + L_2 C_2), beyond any float."""
    hmm = _regular(transition, emission)
    eps = hmm.epsilon
    self_bounding = (  # ln(6 T (1 + ln T)), the form behind eq:Tttgeq
        math.log(6) + math.log(T) + math.log1p(math.log(T))
        for T in (
            estimation_threshold(transition, emission, c0=c0),
            alignment_threshold(transition, emission),
        )
    )
    with np.errstate(over="ignore", divide="ignore"):
        l0 = 4 * (1 - eps) / eps**2  # L_0, L_1, L_2 of proposition:bound-estimated-belief
        l1 = 4 * ((1 - eps) / eps) ** 2 / hmm.smallest_emission
        l2 = 4 * (1 - eps) ** 2 / eps**3
        forgetting = np.log1p(1 / np.log1p(-eps / (1 - eps)) ** 2)
        return float(max(*self_bounding, l1 * hmm.c1 + l2 * hmm.c2, math.sqrt(2) * l0, forgetting))


def general_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound: T^(3/4) and its ceiling, in exact integers."""
    _require(horizon=horizon)
    cube = int(horizon) ** 3
    root = math.isqrt(math.isqrt(cube))
    return float(horizon) ** 0.75, root if root**4 == cube else root + 1


def simplified_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound-simplified: sqrt(T) and 1."""
    _require(horizon=horizon)
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
) -> tuple[Floats, Floats]:
    """(additive, factor) with eps_{t,a} = additive_t + factor_t ||G^{-1} z||_2: theorem:total-regret-bound.

    G is that of the last stage end, factor the theorem's f_t; the first stage has 1 + sqrt(d)/lambda and 0.
    Rounds beyond the horizon follow the same formula, without the theorem's guarantee.
    """
    _require(stage_length=stage_length, ridge=ridge, regimes=regimes, symbols=symbols, dimension=dimension)
    _require(horizon=horizon, risk=risk, c_theta=c_theta, gamma=gamma, c_eta=c_eta)
    t = _whole("rounds", rounds, 1)
    law = (risk / 2, regimes, symbols)  # half the risk for the beliefs, half for the deviations
    ended = (t - 1) // stage_length  # s_t - 1
    folded = ended * stage_length
    stages = -(-horizon // stage_length)  # s_T: each stage's two deviations have risk delta / (4 s_T)
    factor = (
        ridge * math.sqrt(regimes) * c_theta
        + 4 * np.sqrt(stages / (risk * (1 - gamma)) * folded * (1 + (ended + 1) * gamma))
        + np.sqrt(4 * stages / risk * c_eta * folded)
        + 2 * gamma / (1 - gamma) * ended
        + _tabulated(_SUM, folded, law)
    )
    first = ended == 0
    additive = np.where(first, 1 + math.sqrt(dimension) / ridge, _tabulated(_ERROR, t, law))
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
) -> tuple[Floats, Floats]:
    """(additive, factor) with eps_{t,a} = additive_t + factor_t ||z||_{G^{-1}}: eq:def-esp-simple.

    Box B has stages of one round: G is that of round t - 1, and round 1 has 1 + sqrt(d)/lambda and 0.
    """
    _require(ridge=ridge, regimes=regimes, symbols=symbols, dimension=dimension)
    _require(risk=risk, c_theta=c_theta, v_eta=v_eta)
    t = _whole("rounds", rounds, 1)
    law = (risk / 2, regimes, symbols)
    columns = dimension * regimes
    # lm:linucb-dev at t - 1 would do with t - 1 in the logarithm; the paper states t.
    deviation = np.sqrt(2 * math.log(2 / risk) + columns * np.log1p(t / (ridge * columns)))
    bias = _tabulated(_SUM, t - 1, law) / math.sqrt(ridge) + math.sqrt(ridge * regimes) * c_theta
    first = t == 1
    additive = np.where(first, 1 + math.sqrt(dimension) / ridge, _tabulated(_ERROR, t, law))
    return additive, np.where(first, 0.0, bias + v_eta * deviation)


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

    T_0 - 1 stands where eq:3terms has its upper bound T_B (1 + ln(2/delta)). The paper bounds all bonuses by
    their form beyond the first stage, which forgets what rounds T_0..l pay under their own bonus
    1 + sqrt(d)/lambda; as regret is at most 2 per round, 2 max(0, l - T_0 + 1) would make up for it. That
    term is of lower order and is not in the paper's number, nor in this one.
    """
    _require(horizon=horizon, threshold=threshold, stage_length=stage_length, dimension=dimension)
    _require(regimes=regimes, symbols=symbols, risk=risk, c_theta=c_theta, gamma=gamma, c_eta=c_eta)
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
    _require(horizon=horizon, threshold=threshold, dimension=dimension)
    _require(regimes=regimes, symbols=symbols, risk=risk, c_theta=c_theta, v_eta=v_eta)
    log_volume = _log_volume(horizon, ridge, dimension * regimes)
    belief = float(belief_error_sum(horizon, risk / 2, regimes, symbols))
    deviation = math.sqrt(2 * math.log(2 / risk) + log_volume)
    widest = belief / math.sqrt(ridge) + math.sqrt(ridge * regimes) * c_theta + v_eta * deviation
    potential = math.sqrt(2 * horizon * log_volume)
    return (2 + 4 * horizon / ridge) * (threshold - 1) + 2 * belief + 2 * potential * widest


def _log_volume(rounds: int, ridge: float, columns: int) -> float:
    """The bound on ln det(G) / det(lambda I) after so many rounds: lm:determinant-trace-inequality-bis."""
    if not 1 <= ridge < math.inf:
        raise ArgumentError("ridge", f"found {ridge}", "a number from 1 on, as lm:bound-cum-sum asks")
    return columns * math.log1p(rounds / (columns * ridge))


@dataclass(frozen=True)
class AssumptionCheck:
    """One assumption of the paper: the parameters' value, what is required of it, and whether that holds."""

    name: str
    holds: bool
    value: float
    requirement: str
    label: str


def check_assumptions(
    transition: ArrayLike,
    emission: ArrayLike,
    initial: ArrayLike,
    *,
    features: ArrayLike | None = None,
    theta: ArrayLike | None = None,
    c_theta: float | None = None,
) -> list[AssumptionCheck]:
    """Which of the paper's assumptions hold: of the HMM and, as far as given, of the reward model.

    `features` has a row per phi(a, x), `theta` a row per regime. Violations are reported, not refused.
    """
    M = _transition(transition)
    E = _probabilities("emission", emission, len(M))
    pi = _probabilities("initial", np.asarray(initial)[None], 1, len(M))
    checks: list[AssumptionCheck] = []

    def at_most(name: str, values: Floats, limit: float, label: str) -> None:
        value = float(values.max())
        checks.append(AssumptionCheck(name, value <= limit + _ROUNDING, value, f"at most {limit:g}", label))

    def positive(name: str, value: float, zero: float = 0.0) -> None:
        checks.append(AssumptionCheck(name, value > zero, value, "above 0", "assumption:regularity-hmm"))

    phi = None if features is None else _matrix("features", features)
    parameters = None if theta is None else _matrix("theta", theta, len(M), None if phi is None else phi.shape[1])
    if phi is not None:
        at_most("feature norm", np.linalg.norm(phi, axis=1), 1, "assumption:bound-R-linear")
    if phi is not None and parameters is not None:
        at_most("mean reward", np.abs(phi @ parameters.T), 1, "assumption:bound-R-linear")
    if parameters is not None and c_theta is not None:
        at_most("parameter norm", np.linalg.norm(parameters, axis=1), c_theta, "assumption:bound-R-linear")
    positive("emission rank", *_smallest_singular(E))
    positive("smallest emission", float(E.min()))
    positive("transition invertible", *_smallest_singular(M))
    positive("smallest transition", float(M.min()))
    at_most("initial law stationary", np.abs(pi @ M - pi).sum(axis=1), 0, "assumption:regularity-hmm")
    gamma = forgetting_rate(M)
    checks.append(AssumptionCheck("forgetting rate", gamma < 1, gamma, "below 1", "assumption:strong-mixing-hmm"))
    return checks


class _RegularHmm(NamedTuple):
    """The constants of an HMM within assumption:regularity-hmm; numpy floats, whose overflow is inf."""

    regimes: int
    symbols: int
    epsilon: np.float64  # eps_M, the smallest transition
    smallest_emission: np.float64  # e_{nu,min}
    sigma: np.float64  # sigma_min(E) sigma_min(M) eps_M of sec:details-how-HMM
    separation: np.float64  # Delta of sec:align
    c1: np.float64  # C_1 and C_2 of sec:proof-beliefestimationerror
    c2: np.float64


def _regular(transition: ArrayLike, emission: ArrayLike) -> _RegularHmm:
    """The constants; the stationary initial law that the assumption also asks for enters none of them."""
    M = _transition(transition)
    E = _probabilities("emission", emission, len(M))
    H = len(M)
    # The paper calls sigma_min(M) an eigenvalue; its proof (sec:details-how-HMM) needs the singular value.
    sigma_m, zero_m = _smallest_singular(M)
    sigma_e, zero_e = _smallest_singular(E)
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


def _smallest_singular(matrix: Floats) -> tuple[float, float]:
    """(smallest singular value over the rows, the value up to which it counts as zero in floating point)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    smallest = values[-1] if len(matrix) <= matrix.shape[1] else 0.0
    return float(smallest), float(values[0] * max(matrix.shape) * np.finfo(np.float64).eps)


def _matrix(field: str, value: ArrayLike, rows: int | None = None, columns: int | None = None) -> Floats:
    matrix = np.asarray(value, dtype=np.float64)
    fits = matrix.ndim == 2 and matrix.size > 0
    if not (fits and rows in (None, matrix.shape[0]) and columns in (None, matrix.shape[1])):
        wanted = f"a matrix of {rows or 'any'} rows and {columns or 'any'} columns"
        raise ArgumentError(field, f"found the shape {matrix.shape}", wanted)
    if not np.isfinite(matrix).all():
        raise ArgumentError(field, "found a value that is not finite", "finite numbers")
    return matrix


def _probabilities(field: str, value: ArrayLike, rows: int, columns: int | None = None) -> Floats:
    matrix = _matrix(field, value, rows, columns)
    if matrix.min() < 0 or np.abs(matrix.sum(axis=1) - 1).max() > 1e-6:
        raise ArgumentError(field, "found no probabilities", "entries from 0 on that sum to 1")
    return matrix


def _transition(value: ArrayLike) -> Floats:
    regimes = np.atleast_1d(value).shape[0]
    return _probabilities("transition", value, regimes, regimes)


def _whole(field: str, value: ArrayLike, least: int) -> NDArray[np.int64]:
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu" or (numbers.size and numbers.min() < least):
        raise ArgumentError(field, f"found {value!r}", f"whole numbers from {least} on")
    return numbers.astype(np.int64, copy=False)


_COUNT = (lambda value: isinstance(value, int | np.integer) and value >= 1, "a whole number from 1 on")
_POSITIVE = (lambda value: 0 < value < math.inf, "a positive number")
_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "a number from 0 on")
_ALLOWED: dict[str, tuple[Callable[[Any], object], str]] = {
    "regimes": _COUNT,
    "symbols": _COUNT,
    "dimension": _COUNT,
    "horizon": _COUNT,
    "stage_length": _COUNT,
    "risk": (lambda value: 0 < value < 1, "a number strictly between 0 and 1"),
    "gamma": (lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    "threshold": (lambda value: 1 <= value < math.inf, "a number of rounds from 1 on"),
    "ridge": _POSITIVE,
    "c0": _POSITIVE,
    "c_theta": _POSITIVE,
    "c_eta": _NOT_NEGATIVE,
    "v_eta": _NOT_NEGATIVE,
}


def _require(**values: float) -> None:
    for field, value in values.items():
        holds, allowed = _ALLOWED[field]
        if not holds(value):
            raise ArgumentError(field, f"found {value}", allowed)
