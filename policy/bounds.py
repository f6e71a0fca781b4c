"""The theory in numbers: belief error, the theorems' bonuses and regret bounds, thresholds, checks of the assumptions.

One name per thing: `risk` is δ, `regimes` H, `symbols` X, `dimension` d, `horizon` T, `ridge` λ, `stage_length` ℓ,
`threshold` T₀, `emission` H × X. Citations such as eq:Tdelta are the paper's labels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from policy.arrays import BoolArray, FloatArray, IntArray
from policy.errors import ArgumentError
from policy.hmm import HmmParameters

# C₀ is the least of three constants, one of which (Δ') has no closed form; this is the least of the other two.
KNOWN_C0 = 1 / (56 * 9 * 102)
Law = tuple[float, int, int]  # (risk, regimes, symbols): all that U_belief depends on besides the round
_BLOCK = 1024  # rounds per tabulated block
_ROUNDING = 1e-9  # slack on an assumption of the form "at most"


# --- arguments --------------------------------------------------------------------------------------------------------

_COUNT = (lambda value: isinstance(value, int | np.integer) and value >= 1, "a whole number ≥ 1")
_POSITIVE = (lambda value: 0 < value < math.inf, "a positive number")
_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "a number ≥ 0")
_ALLOWED: dict[str, tuple[Callable[[Any], object], str]] = {
    **dict.fromkeys(("regimes", "symbols", "dimension", "horizon", "stage_length"), _COUNT),
    **dict.fromkeys(("ridge", "c0", "c_theta"), _POSITIVE),
    **dict.fromkeys(("c_eta", "v_eta"), _NOT_NEGATIVE),
    "risk": (lambda value: 0 < value < 1, "a number strictly between 0 and 1"),
    "gamma": (lambda value: 0 <= value < 1, "a number ≥ 0 and < 1"),
    "threshold": (lambda value: 1 <= value < math.inf, "a number of rounds ≥ 1"),
}


def _check_arguments(**values: float) -> None:
    """Each argument must be what its name allows."""
    for field, value in values.items():
        holds, allowed = _ALLOWED[field]
        if not holds(value):
            raise ArgumentError(field, f"{value}", allowed)


def _check_whole_numbers(field: str, value: ArrayLike, least: int) -> IntArray:
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu" or (numbers.size and numbers.min() < least):
        raise ArgumentError(field, f"{value!r}", f"whole numbers ≥ {least}")
    return numbers.astype(np.int64, copy=False)


# --- the error of estimated beliefs -----------------------------------------------------------------------------------


def belief_error(t: ArrayLike, risk: float, regimes: int, symbols: int) -> FloatArray:
    """U_belief(t, δ) of lm:beliefestimationerror, elementwise over t >= 1.

    >>> belief_error([1, 100], risk=0.05, regimes=2, symbols=20).round(3)
    array([ 0.  , 24.02])
    """
    rounds = np.asarray(t, dtype=np.float64)
    if not np.all((rounds >= 1) & (rounds < np.inf)):
        raise ArgumentError("t", f"{t!r}", "rounds ≥ 1")
    _check_arguments(risk=risk, regimes=regimes, symbols=symbols)
    return _belief_error(rounds, (risk, regimes, symbols))


def belief_error_sum(n: ArrayLike, risk: float, regimes: int, symbols: int) -> FloatArray:
    """The sum of U_belief(τ, δ) over τ = 1 … n, elementwise over n >= 0; the first call costs O(n)."""
    counts = _check_whole_numbers("n", n, 0)
    _check_arguments(risk=risk, regimes=regimes, symbols=symbols)
    return _tabulate(_SUM, counts, (risk, regimes, symbols))


def _belief_error(t: FloatArray, law: Law) -> FloatArray:
    risk, regimes, symbols = law
    log_t = np.log(t)
    confidence = math.log(6 * symbols / risk) + log_t + np.log1p(t)  # ln(6 X t(t+1) / δ)
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
def _block(index: int, law: Law) -> tuple[FloatArray, FloatArray]:
    ends = _block_ends(law)
    for k in range(min(len(ends) - 1, index), index + 1):
        errors = _belief_error(np.arange(k * _BLOCK + 1, (k + 1) * _BLOCK + 1, dtype=np.float64), law)
        sums = np.cumsum(np.concatenate(([ends[k]], errors)))[1:]
        ends[k + 1] = float(sums[-1])  # threads that race here write the same number
    return errors, sums


def _tabulate(column: int, rounds: IntArray, law: Law) -> FloatArray:
    """U_belief (column _ERROR) or its sum over rounds 1 … n (_SUM) at each of the given rounds; 0 at round 0."""
    if rounds.size == 0:
        return np.zeros(rounds.shape)
    if rounds.size == 1:  # as in a live decision
        index, place = divmod(rounds.item() - 1, _BLOCK)
        return np.full(rounds.shape, _block(index, law)[column][place] if index >= 0 else 0.0)
    places = np.maximum(rounds - 1, 0)
    first, last = int(places.min()) // _BLOCK, int(places.max()) // _BLOCK
    table = np.concatenate([_block(index, law)[column] for index in range(first, last + 1)])
    return np.where(rounds > 0, table[places - first * _BLOCK], 0.0)


# --- the two theorems -------------------------------------------------------------------------------------------------


def general_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound: T^(3/4) and its ceiling, in exact integers."""
    _check_arguments(horizon=horizon)
    cube = int(horizon) ** 3
    root = math.isqrt(math.isqrt(cube))
    return float(horizon) ** 0.75, root if root**4 == cube else root + 1


def simplified_settings(horizon: int) -> tuple[float, int]:
    """(ridge, stage_length) of theorem:total-regret-bound-simplified: √T and 1."""
    _check_arguments(horizon=horizon)
    return math.sqrt(horizon), 1


@dataclass(frozen=True, kw_only=True)
class _Theorem:
    """What both theorems assume to be known."""

    ridge: float
    regimes: int
    symbols: int
    dimension: int
    risk: float
    c_theta: float

    def __post_init__(self) -> None:
        _check_arguments(**vars(self))

    @property
    def _law(self) -> Law:
        return self.risk / 2, self.regimes, self.symbols  # half the risk for the beliefs, half for the deviations

    def _add_first_stage(self, t: IntArray, first: BoolArray, factor: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(additive, factor) of rounds t: 1 + √d/λ and 0 in the first stage."""
        additive = np.where(first, 1 + math.sqrt(self.dimension) / self.ridge, _tabulate(_ERROR, t, self._law))
        return additive, np.where(first, 0.0, factor)

    def _log_volume(self, rounds: int) -> float:
        """The bound on ln det(G) / det(λI) after `rounds` rounds: lm:determinant-trace-inequality-bis."""
        if not self.ridge >= 1:
            raise ArgumentError("ridge", f"{self.ridge}", "a number ≥ 1 (lm:bound-cum-sum)")
        columns = self.dimension * self.regimes
        return columns * math.log1p(rounds / (columns * self.ridge))


@dataclass(frozen=True, kw_only=True)
class General(_Theorem):
    """theorem:total-regret-bound."""

    stage_length: int
    horizon: int
    gamma: float
    c_eta: float

    def compute_bonus(self, rounds: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """(additive, factor) with ε_{t,a} = additive_t + factor_t ‖G⁻¹z‖₂.

        G is that of the last stage end, factor the theorem's f_t. Rounds beyond the horizon follow the same formula,
        without the theorem's guarantee.
        """
        t, gamma, risk = _check_whole_numbers("rounds", rounds, 1), self.gamma, self.risk
        ended = (t - 1) // self.stage_length  # s_t - 1
        folded = ended * self.stage_length
        stages = -(-self.horizon // self.stage_length)  # s_T: each stage's two deviations have risk δ / (4 s_T)
        factor = (
            self.ridge * math.sqrt(self.regimes) * self.c_theta
            + 4 * np.sqrt(stages / (risk * (1 - gamma)) * folded * (1 + (ended + 1) * gamma))
            + np.sqrt(4 * stages / risk * self.c_eta * folded)
            + 2 * gamma / (1 - gamma) * ended
            + _tabulate(_SUM, folded, self._law)
        )
        return self._add_first_stage(t, ended == 0, factor)

    def bound_regret(self, threshold: float) -> float:
        """The closed form: eq:3terms, with eq:Gsum for G_sum.

        T_0 - 1 stands where eq:3terms has its upper bound T_B (1 + ln(2/δ)). The paper bounds all bonuses by
        their form beyond the first stage, which forgets what rounds T_0..l pay under their own bonus
        1 + √d/λ; as regret is at most 2 per round, 2 max(0, l - T_0 + 1) would make up for it. That
        term is of lower order and is not in the paper's number, nor in this one.
        """
        _check_arguments(threshold=threshold)
        horizon, ridge, length, gamma = self.horizon, self.ridge, self.stage_length, self.gamma
        stages = -(-horizon // length)
        g_sum = math.sqrt(2 * stages * length * (1 + length / ridge) * self._log_volume(stages * length) / ridge)
        belief = float(belief_error_sum(horizon, *self._law))
        widest = (
            ridge * math.sqrt(self.regimes) * self.c_theta
            + 4 * math.sqrt(horizon * stages * (1 + stages * gamma) / (self.risk * (1 - gamma)))
            + math.sqrt(4 * stages / self.risk * horizon * self.c_eta)
            + 2 * stages * gamma / (1 - gamma)
            + belief
        )
        return (2 + 4 * horizon / ridge) * (threshold - 1) + 2 * belief + 2 * g_sum * widest


@dataclass(frozen=True, kw_only=True)
class Simplified(_Theorem):
    """theorem:total-regret-bound-simplified. Box B has stages of one round: G is that of round t - 1."""

    v_eta: float

    def compute_bonus(self, rounds: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """(additive, factor) with ε_{t,a} = additive_t + factor_t ‖z‖_{G⁻¹}: eq:def-esp-simple."""
        t, ridge, columns = _check_whole_numbers("rounds", rounds, 1), self.ridge, self.dimension * self.regimes
        # lm:linucb-dev at t - 1 would do with t - 1 in the logarithm; the paper states t.
        deviation = np.sqrt(2 * math.log(2 / self.risk) + columns * np.log1p(t / (ridge * columns)))
        bias = _tabulate(_SUM, t - 1, self._law) / math.sqrt(ridge) + math.sqrt(ridge * self.regimes) * self.c_theta
        return self._add_first_stage(t, t == 1, bias + self.v_eta * deviation)

    def bound_regret(self, horizon: int, threshold: float) -> float:
        """The closed form: eq:regret-bound-final-simplified."""
        _check_arguments(horizon=horizon, threshold=threshold)
        log_volume, ridge = self._log_volume(horizon), self.ridge
        belief = float(belief_error_sum(horizon, *self._law))
        deviation = math.sqrt(2 * math.log(2 / self.risk) + log_volume)
        widest = belief / math.sqrt(ridge) + math.sqrt(ridge * self.regimes) * self.c_theta + self.v_eta * deviation
        potential = math.sqrt(2 * horizon * log_volume)
        return (2 + 4 * horizon / ridge) * (threshold - 1) + 2 * belief + 2 * potential * widest


# --- what the theory asks of the parameters ---------------------------------------------------------------------------


class Thresholds(NamedTuple):
    """From which round on the estimates are close."""

    estimation: float  # T̃ of eq:closedform-tildeT: from it (times 1 + ln(1/δ)) on, spectral estimates are close
    alignment: float  # T_Δ of eq:Tdelta: from it on, the alignment step cannot confuse two regimes
    log_belief: float  # ln T_B of eq:closedformT; T_B itself holds exp(L_1 C_1 + L_2 C_2), beyond any float


def compute_thresholds(hmm: HmmParameters, c0: float = KNOWN_C0) -> Thresholds:
    """The thresholds of an HMM within assumption:regularity-hmm, of which they need all but the stationary start."""
    _check_arguments(c0=c0)
    (M, E, _), (H, X) = hmm, hmm.emission.shape
    # The paper calls σ_min(M) an eigenvalue; its proof (sec:details-how-HMM) needs the singular value.
    (sigma_m, zero_m), (sigma_e, zero_e) = _smallest_singular(M), _smallest_singular(E)
    if not (H >= 2 and M.min() > 0 and sigma_m > zero_m):
        raise ArgumentError("transition", "not regular", "2 regimes or more, positive entries, invertible")
    if not (E.min() > 0 and sigma_e > zero_e):
        raise ArgumentError("emission", "not regular", "positive entries, linearly independent rows")
    separation = min(np.linalg.norm(E[i] - E[j]) for i in range(H) for j in range(i))  # Δ of sec:align
    eps, sigma = M.min(), np.float64(sigma_e * sigma_m) * M.min()  # ε_M, and σ of sec:details-how-HMM
    with np.errstate(over="ignore", divide="ignore"):  # numpy's floats, whose overflow is inf
        c3 = 16 / eps**1.5 * (1 + 12 / (eps**2 * sigma**3) + 256 / (eps**2 * sigma**2))
        c1 = 21 / sigma**2 * c3  # C_1 and C_2 of sec:proof-beliefestimationerror
        c2 = 4 / sigma * (math.sqrt(H) + 21 * H / sigma**2) * c3
        samples = max(
            16 * H ** (1 / 3) / (c0 ** (2 / 3) * eps ** (1 / 3)), 3 * H / (c0**2 * eps * sigma**2), np.float64(1.0)
        )
        estimation = float(2 * (12 / (eps * sigma) ** 2) ** 2 * (math.log(2 * X) + 1) * samples)
        alignment = float(1 + np.ceil(32 * c1**2 * math.log(6 * X) / separation**2))
        self_bounding = (  # ln(6 T (1 + ln T)), the form behind eq:Tttgeq
            math.log(6) + math.log(T) + math.log1p(math.log(T)) for T in (estimation, alignment)
        )
        l0 = 4 * (1 - eps) / eps**2  # L_0, L_1, L_2 of proposition:bound-estimated-belief
        l1 = 4 * ((1 - eps) / eps) ** 2 / E.min()
        l2 = 4 * (1 - eps) ** 2 / eps**3
        forgetting = np.log1p(1 / np.log1p(-eps / (1 - eps)) ** 2)
        log_belief = float(max(*self_bounding, l1 * c1 + l2 * c2, math.sqrt(2) * l0, forgetting))
    return Thresholds(estimation, alignment, log_belief)


def compute_forgetting_rate(transition: FloatArray) -> float:
    """γ of assumption:strong-mixing-hmm, by assumption:strong-mixing-condition with K(x, h) ~ ν_h(x)."""
    return float(1 - transition.min() / transition.max())


def _smallest_singular(matrix: FloatArray) -> tuple[float, float]:
    """(smallest singular value over the rows, the value up to which it counts as zero in floating point)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    smallest = values[-1] if len(matrix) <= matrix.shape[1] else 0.0
    return float(smallest), float(values[0] * max(matrix.shape) * np.finfo(np.float64).eps)


class AssumptionCheck(NamedTuple):
    """One assumption of the paper: the parameters' value, what is required of it, and whether that holds."""

    name: str
    holds: bool
    value: float
    requirement: str
    label: str


def check_assumptions(
    hmm: HmmParameters, features: FloatArray, theta: FloatArray, c_theta: float
) -> list[AssumptionCheck]:
    """Which of the paper's assumptions hold; `features` has a row per φ(a, x), `theta` a row per regime."""
    M, E, pi = hmm
    linear, regular, checks = "assumption:bound-R-linear", "assumption:regularity-hmm", []

    def at_most(name: str, values: FloatArray, limit: float, label: str) -> None:
        value = float(values.max())
        checks.append(AssumptionCheck(name, value <= limit + _ROUNDING, value, f"at most {limit:g}", label))

    def positive(name: str, value: float, zero: float = 0.0) -> None:
        checks.append(AssumptionCheck(name, value > zero, value, "above 0", regular))

    at_most("feature norm", np.linalg.norm(features, axis=1), 1, linear)
    at_most("mean reward", np.abs(features @ theta.T), 1, linear)
    at_most("parameter norm", np.linalg.norm(theta, axis=1), c_theta, linear)
    positive("emission rank", *_smallest_singular(E))
    positive("smallest emission", float(E.min()))
    positive("transition invertible", *_smallest_singular(M))
    positive("smallest transition", float(M.min()))
    at_most("initial law stationary", np.abs(pi @ M - pi).sum(), 0, regular)
    gamma = compute_forgetting_rate(M)
    checks.append(AssumptionCheck("forgetting rate", gamma < 1, gamma, "below 1", "assumption:strong-mixing-hmm"))
    return checks
