"""The error of estimated beliefs, U_belief(t, δ) of lm:beliefestimationerror, and its running sum."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from policy.arrays import FloatArray, IntArray
from policy.bounds.arguments import check_arguments, check_whole_numbers
from policy.errors import ArgumentError

Law = tuple[float, int, int]  # (risk, regimes, symbols): all that U_belief depends on besides the round
_BLOCK = 1024  # rounds per tabulated block


def belief_error(t: ArrayLike, risk: float, regimes: int, symbols: int) -> FloatArray:
    """U_belief(t, δ) of lm:beliefestimationerror, elementwise over t >= 1.

    >>> belief_error([1, 100], risk=0.05, regimes=2, symbols=20).round(3)
    array([ 0.  , 24.02])
    """
    rounds = np.asarray(t, dtype=np.float64)
    if not np.all((rounds >= 1) & (rounds < np.inf)):
        raise ArgumentError("t", f"{t!r}", "rounds ≥ 1")
    check_arguments(risk=risk, regimes=regimes, symbols=symbols)
    return _belief_error(rounds, (risk, regimes, symbols))


def belief_error_sum(n: ArrayLike, risk: float, regimes: int, symbols: int) -> FloatArray:
    """The sum of U_belief(τ, δ) over τ = 1 … n, elementwise over n >= 0; the first call costs O(n)."""
    counts = check_whole_numbers("n", n, 0)
    check_arguments(risk=risk, regimes=regimes, symbols=symbols)
    return tabulate(SUM, counts, (risk, regimes, symbols))


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
ERROR, SUM = 0, 1


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


def tabulate(column: int, rounds: IntArray, law: Law) -> FloatArray:
    """U_belief (column ERROR) or its sum over rounds 1 … n (SUM) at each of the given rounds; 0 at round 0."""
    if rounds.size == 0:
        return np.zeros(rounds.shape)
    if rounds.size == 1:  # as in a live decision
        index, place = divmod(rounds.item() - 1, _BLOCK)
        return np.full(rounds.shape, _block(index, law)[column][place] if index >= 0 else 0.0)
    places = np.maximum(rounds - 1, 0)
    first, last = int(places.min()) // _BLOCK, int(places.max()) // _BLOCK
    table = np.concatenate([_block(index, law)[column] for index in range(first, last + 1)])
    return np.where(rounds > 0, table[places - first * _BLOCK], 0.0)
