"""Online EM (Cappé 2011, "Online EM algorithm for hidden Markov models"): estimates that keep no history.

A short batch is fitted by `em.estimate`, because from a symmetric start EM never tells the regimes apart. From then on
every round updates the smoothed sufficient statistics and, through them, the parameters; nothing old is read again.
"""

from typing import NamedTuple

import numpy as np

from policy import em, kernels
from policy.arrays import FloatArray, IndexArray, IntArray, SmallInts
from policy.errors import ArgumentError
from policy.hmm import HmmParameters

# The n-th round weighs n^-EXPONENT. In the paper's environment 0.8 has the smallest belief error from round 2,000 on;
# Cappé's 0.6 has two and a half times as much, 1 twice as much (seeds 3001–3008).
EXPONENT = 0.8
ALIKE = 1.0  # with this exponent all rounds weigh the same: for the rounds of the first batch


class OnlineStatistics(NamedTuple):
    """What online EM has learned, in averages given the regime k after the last round; see `kernels.online_em`."""

    moved: FloatArray  # H × H × H: moves from i to j, given k
    emitted: FloatArray  # H × X × H: regime i with symbol x, given k
    belief: FloatArray  # H: the filter under the parameters as they were
    initial: FloatArray  # H: the law before round 1, as the first batch left it
    counts: IntArray  # 3: moves of the chain, symbols, rounds

    @property
    def rounds(self) -> int:
        """The rounds in the statistics."""
        return int(self.counts[2])

    def permute(self, order: IndexArray) -> "OnlineStatistics":
        """The same statistics with regime h renamed: the new h is the old order[h]."""
        return OnlineStatistics(
            np.ascontiguousarray(self.moved[np.ix_(order, order, order)]),
            np.ascontiguousarray(self.emitted[order][:, :, order]),
            np.ascontiguousarray(self.belief[order]),
            np.ascontiguousarray(self.initial[order]),
            self.counts,
        )

    def widen(self, places: IndexArray, size: int) -> "OnlineStatistics":
        """The same statistics with `size` symbols, of which the old ones are at `places`."""
        emitted = np.zeros((self.belief.size, size, self.belief.size))
        emitted[:, places] = self.emitted
        return self._replace(emitted=emitted)


def start(parameters: HmmParameters, steps: SmallInts, symbols: SmallInts) -> OnlineStatistics:
    """The statistics of the first rounds (T) under parameters fitted to them."""
    regimes, count = parameters.emission.shape
    empty = OnlineStatistics(
        np.zeros((regimes, regimes, regimes)),
        np.zeros((regimes, count, regimes)),
        parameters.initial,
        parameters.initial,
        np.zeros(3, np.int64),
    )
    return _take(empty, parameters, steps, symbols, ALIKE, learns=False)


def advance(statistics: OnlineStatistics, steps: SmallInts, symbols: SmallInts) -> OnlineStatistics:
    """The statistics after the next rounds (T); the parameters follow after each of them."""
    return _take(statistics, maximise(statistics), steps, symbols, EXPONENT, learns=True)


def maximise(statistics: OnlineStatistics) -> HmmParameters:
    """The M-step: the parameters that the statistics imply, with the smoothing of batch EM; the initial law stays."""
    moved, emitted, belief, initial, counts = statistics
    transition, emission = np.empty(moved.shape[:2]), np.empty(emitted.shape[:2])
    for shares, count, law in ((moved, counts[0], transition), (emitted, counts[1], emission)):
        kernels.average_law(shares, belief, count, em.SMOOTHING, law)
    return HmmParameters(transition, emission, initial)


def count_operations(rounds: int, regimes: int, symbols: int) -> int:
    """What `advance` costs, in the unit of costs.py."""
    return rounds * (regimes**2 * (regimes + symbols) // 20 + 1) + 100


def check(statistics: OnlineStatistics, regimes: int, symbols: int, rounds: int) -> None:
    """Refuse statistics of another campaign or of later rounds: the kernels check no bounds."""
    shapes = tuple(part.shape for part in statistics)
    expected = ((regimes,) * 3, (regimes, symbols, regimes), (regimes,), (regimes,), (3,))
    if shapes != expected or not 0 <= statistics.rounds <= rounds:
        raise ArgumentError("statistics", "are of another campaign, or of later rounds", "those of this campaign")


def _take(
    before: OnlineStatistics,
    parameters: HmmParameters,
    steps: SmallInts,
    symbols: SmallInts,
    exponent: float,
    *,
    learns: bool,
) -> OnlineStatistics:
    moved, emitted, belief, initial, counts = before
    after = OnlineStatistics(moved.copy(), emitted.copy(), belief.copy(), initial, counts.copy())
    kernels.online_em(
        parameters.transition.copy(), parameters.emission.copy(), steps, symbols, exponent, em.SMOOTHING, learns,
        after.moved, after.emitted, after.belief, after.counts,
    )  # fmt: skip
    after.counts[2] += symbols.size
    return after
