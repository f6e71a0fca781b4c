"""The campaign's clock: how many steps the hidden chain takes before each decision."""

import math
from collections.abc import Sequence

import numpy as np

from policy.arrays import IntArray, SmallInts
from policy.config import Clock
from policy.errors import ContextError, format_value
from policy.state import State

LONGEST_GAP = 32  # periods between two decisions that count, each as a missing observation
NO_GAPS, NO_PERIODS = np.empty(0, np.int16), np.empty(0, np.int64)


def check_time(at: float | None, field: str) -> float:
    """A time in seconds as a float; raises ContextError naming `field` if it is not one."""
    real = isinstance(at, int | float | np.integer | np.floating) and not isinstance(at, bool)
    if at is None or not real or not -1e12 <= at <= 1e12:
        allowed = "seconds: the campaign has a clock"
        raise ContextError.of(field, f"{format_value(at)} is not a time", allowed)
    return float(at)


def count_steps(
    clock: Clock | None, state: State, times: Sequence[float | None], field: str = "at"
) -> tuple[SmallInts, IntArray]:
    """Steps of the chain before each decision, and the period it falls in; both empty without a clock.

    Decisions in one period share a regime. The chain moves once for each period that has passed, up to LONGEST_GAP. A
    time earlier than the last one counts as the last one (R27). An error names `field`, formatted with the position.
    """
    if clock is None:
        return NO_GAPS, NO_PERIODS
    gaps, periods = np.zeros(len(times), np.int16), np.empty(len(times), np.int64)
    last, is_first = state.period, state.round == 0
    for i, at in enumerate(times):
        now = math.floor(check_time(at, field.format(i)) / clock.period_seconds)
        if not is_first and now > last:
            gaps[i] = min(now - last, LONGEST_GAP)
        last = periods[i] = now if is_first else max(now, last)
        is_first = False
    return gaps, periods
