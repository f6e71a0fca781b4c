"""Checks of the arguments that the bounds share."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from policy.arrays import FloatArray, IntArray
from policy.errors import ArgumentError


def smallest_singular(matrix: FloatArray) -> tuple[float, float]:
    """(smallest singular value over the rows, the value up to which it counts as zero in floating point)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    smallest = values[-1] if len(matrix) <= matrix.shape[1] else 0.0
    return float(smallest), float(values[0] * max(matrix.shape) * np.finfo(np.float64).eps)


def check_matrix(field: str, value: ArrayLike, rows: int | None = None, columns: int | None = None) -> FloatArray:
    """A matrix of finite numbers; None allows any number of rows or columns."""
    matrix = np.asarray(value, dtype=np.float64)
    fits = matrix.ndim == 2 and matrix.size > 0
    if not (fits and rows in (None, matrix.shape[0]) and columns in (None, matrix.shape[1])):
        wanted = f"a matrix of {rows or 'any'} rows and {columns or 'any'} columns"
        raise ArgumentError(field, f"shape {matrix.shape}", wanted)
    if not np.isfinite(matrix).all():
        raise ArgumentError(field, "holds a value that is not finite", "finite numbers")
    return matrix


def check_probabilities(field: str, value: ArrayLike, rows: int, columns: int | None = None) -> FloatArray:
    """A matrix whose rows are laws."""
    matrix = check_matrix(field, value, rows, columns)
    if matrix.min() < 0 or np.abs(matrix.sum(axis=1) - 1).max() > 1e-6:
        raise ArgumentError(field, "not probabilities", "numbers ≥ 0 that sum to 1 in each row")
    return matrix


def check_transition(value: ArrayLike) -> FloatArray:
    """A square matrix whose rows are laws (H × H)."""
    regimes = np.atleast_1d(value).shape[0]
    return check_probabilities("transition", value, regimes, regimes)


def check_whole_numbers(field: str, value: ArrayLike, least: int) -> IntArray:
    """Whole numbers ≥ least."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu" or (numbers.size and numbers.min() < least):
        raise ArgumentError(field, f"{value!r}", f"whole numbers ≥ {least}")
    return numbers.astype(np.int64, copy=False)


_COUNT = (lambda value: isinstance(value, int | np.integer) and value >= 1, "a whole number ≥ 1")
_POSITIVE = (lambda value: 0 < value < math.inf, "a positive number")
_NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "a number ≥ 0")
_ALLOWED: dict[str, tuple[Callable[[Any], object], str]] = {
    "regimes": _COUNT,
    "symbols": _COUNT,
    "dimension": _COUNT,
    "horizon": _COUNT,
    "stage_length": _COUNT,
    "risk": (lambda value: 0 < value < 1, "a number strictly between 0 and 1"),
    "gamma": (lambda value: 0 <= value < 1, "a number ≥ 0 and < 1"),
    "threshold": (lambda value: 1 <= value < math.inf, "a number of rounds ≥ 1"),
    "ridge": _POSITIVE,
    "c0": _POSITIVE,
    "c_theta": _POSITIVE,
    "c_eta": _NOT_NEGATIVE,
    "v_eta": _NOT_NEGATIVE,
}


def check_arguments(**values: float) -> None:
    """Each argument must be what its name allows."""
    for field, value in values.items():
        holds, allowed = _ALLOWED[field]
        if not holds(value):
            raise ArgumentError(field, f"{value}", allowed)
