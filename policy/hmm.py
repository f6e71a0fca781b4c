"""The hidden Markov model: parameters, filter, smoother, likelihood, sampling.

Emission is H×X here and everywhere in the API (R9), the transpose of the paper's E. A missing symbol is -1: the
filter only predicts there. Symbols of probability 0 are treated as missing by filter and smoother,
and make the log-likelihood -inf.
"""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from policy import kernels
from policy.arrays import FloatArray, IndexArray, SmallInts
from policy.errors import ArgumentError

MISSING = -1  # the code of a missing symbol
RECENT = 300  # contexts that give the belief after a re-estimation: the filter forgets exponentially fast (R5)
NO_EVIDENCE = np.empty((0, 0))  # beyond the symbols; see kernels.filter_path


class HmmParameters(NamedTuple):
    """transition H×H (rows sum to 1), emission H×X (rows sum to 1), initial H."""

    transition: FloatArray
    emission: FloatArray
    initial: FloatArray

    @classmethod
    def check(cls, transition: npt.ArrayLike, emission: npt.ArrayLike, initial: npt.ArrayLike) -> Self:
        """Parameters from anything array-like; an ArgumentError names the part that is not a law."""
        parts = {"transition": transition, "emission": emission, "initial": initial}
        arrays = {}
        for field, value in parts.items():
            try:
                arrays[field] = np.ascontiguousarray(value, np.float64)
            except (TypeError, ValueError):
                raise ArgumentError(field, "not an array of numbers") from None
        # H is what two of the three parts agree on, so the error names the odd one out.
        regimes = sorted(array.shape[0] if array.ndim else 0 for array in arrays.values())[1]
        symbols = arrays["emission"].shape[1] if arrays["emission"].ndim == 2 else 0
        shapes = {"transition": (regimes, regimes), "emission": (regimes, symbols), "initial": (regimes,)}
        for field, array in arrays.items():
            if array.shape != shapes[field] or array.size == 0:
                raise ArgumentError(field, f"shape {array.shape}", "transition H×H, emission H×X, initial H")
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise ArgumentError(field, "holds a negative or non-finite number", "probabilities")
            if np.abs(array.sum(axis=-1) - 1.0).max() > 1e-6:
                raise ArgumentError(field, "does not sum to 1", "rows that sum to 1")
        return cls(**arrays)

    def permute(self, order: IndexArray) -> "HmmParameters":
        """The same model with regime h renamed: the new h is the old order[h]."""
        return HmmParameters(
            np.ascontiguousarray(self.transition[np.ix_(order, order)]),
            np.ascontiguousarray(self.emission[order]),
            np.ascontiguousarray(self.initial[order]),
        )


class Beliefs(NamedTuple):
    """beliefs T×H and the log-likelihood of the symbols."""

    beliefs: FloatArray
    log_likelihood: float


class Expectations(NamedTuple):
    """What the E-step needs: smoothed beliefs T×H, expected transitions H×H and emissions H×X."""

    beliefs: FloatArray
    transitions: FloatArray
    emissions: FloatArray
    log_likelihood: float


def check_symbols(symbols: npt.ArrayLike, count: int) -> SmallInts:
    """Symbols as the kernels take them; every one in -1 (missing), 0 … count-1."""
    try:
        array = np.asarray(symbols)
    except ValueError:
        raise ArgumentError("symbols", "not a list of numbers", "a list of whole numbers") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError("symbols", f"{array.dtype} of shape {array.shape}", "a list of whole numbers")
    if array.size and (array.min() < -1 or array.max() >= count):
        raise ArgumentError("symbols", f"{array.min()} to {array.max()}", f"-1 (missing) or 0 to {count - 1}")
    return np.ascontiguousarray(array, np.int16)


def check_steps(steps: npt.ArrayLike | None, count: int) -> SmallInts:
    """How often the chain moves before each row (T); by default once per row, and not before the first."""
    if steps is None:
        usual = np.ones(count, np.int16)
        usual[:1] = 0
        return usual
    array = np.asarray(steps)
    if array.shape != (count,) or (count and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise ArgumentError("steps", f"{array.dtype} of shape {array.shape}", f"{count} whole numbers ≥ 0")
    return np.ascontiguousarray(array, np.int16)


def filter_history(parameters: HmmParameters, symbols: npt.ArrayLike, steps: npt.ArrayLike | None = None) -> Beliefs:
    """P(h_t | x_1 … x_t) for every t, from the initial law."""
    observed = check_symbols(symbols, HmmParameters.check(*parameters).emission.shape[1])
    beliefs = np.empty((observed.size, parameters.initial.size))
    moves = check_steps(steps, observed.size)
    total = kernels.filter_path(*parameters, moves, observed, NO_EVIDENCE, beliefs)
    return Beliefs(beliefs, float(total))


class SpelledOut(NamedTuple):
    """A history in which the chain moves at most once per row: longer gaps become rows with missing symbols."""

    symbols: SmallInts
    steps: SmallInts
    rows: IndexArray  # positions of the original rows


def spell_out_gaps(symbols: SmallInts, steps: SmallInts) -> SpelledOut:
    """Turn k steps between two rows into k-1 missing observations and one step, as forward–backward and EM need."""
    if steps.size == 0 or steps.max() <= 1:
        return SpelledOut(symbols, steps, np.arange(symbols.size))
    rows = np.maximum(steps, 1).astype(np.intp).cumsum() - 1
    out = np.full(rows[-1] + 1, MISSING, np.int16)
    out[rows] = symbols
    moves = np.ones(rows[-1] + 1, np.int16)
    moves[rows] = np.minimum(steps, 1)
    return SpelledOut(out, moves, rows)


def compute_expectations(
    parameters: HmmParameters, symbols: npt.ArrayLike, steps: npt.ArrayLike | None = None
) -> Expectations:
    """Forward–backward over the whole history: P(h_t | x_1 … x_T) for every t, and expected counts."""
    observed = check_symbols(symbols, HmmParameters.check(*parameters).emission.shape[1])
    full = spell_out_gaps(observed, check_steps(steps, observed.size))
    beliefs = np.empty((full.symbols.size, parameters.initial.size))
    transitions, emissions = np.empty_like(parameters.transition), np.empty_like(parameters.emission)
    size = (0,) * parameters.initial.size
    total = kernels.forward_backward(
        size, *parameters, full.steps, full.symbols, NO_EVIDENCE, beliefs, transitions, emissions
    )
    original = beliefs if full.rows.size == full.symbols.size else beliefs[full.rows]
    return Expectations(original, transitions, emissions, float(total))


def filter_recent(parameters: HmmParameters, symbols: SmallInts, steps: SmallInts) -> FloatArray:
    """The beliefs (at most RECENT × H) of the last contexts, filtered from a uniform one (R5); symbols, steps: T."""
    recent = steps[-RECENT:].copy()
    recent[:1] = 0
    return filter_history(parameters, symbols[-RECENT:], recent).beliefs


def sample(parameters: HmmParameters, count: int, generator: np.random.Generator) -> tuple[SmallInts, SmallInts]:
    """Regimes and symbols of `count` steps."""
    if count < 0:
        raise ArgumentError("count", f"{count}", "≥ 0")
    # Two uniforms per step, turned into draws by inverting cumulative laws.
    uniforms = generator.random((count, 2))
    regimes, symbols = np.empty(count, np.int16), np.empty(count, np.int16)
    kernels.sample_path(*parameters, uniforms, regimes, symbols)
    return regimes, symbols


def stationary_law(transition: FloatArray) -> FloatArray:
    """The law π with π M = π, by least squares with the constraint that it sums to 1."""
    size = transition.shape[0]
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    law = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0].clip(min=0.0)
    stationary: FloatArray = law / law.sum()
    return stationary
