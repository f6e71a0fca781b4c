"""What a candidate keeps of the rounds that have left the window: sums over them, so that its cost stays constant.

This is incremental EM (Neal and Hinton 1998): the E-step runs over the window, and the M-step uses its sums and these
(equations of joint.py, with each round's posterior as it was when the round left). θ̂, M and E need nothing else of a
round. How rounds leave is in window.py.
"""

from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray, IndexArray

# Places in `Kept.rewards` …
CENTRE, KNOWN, WEIGHT, TOTAL, SQUARES, LARGEST = range(6)
# … and rows of `Kept.actions`.
RESIDUALS, PLAYED, DEVIATIONS = range(3)


class Kept(NamedTuple):
    """Sums over the rounds that have left, of one candidate. r is a reward less the centre, w the round's weight."""

    transitions: FloatArray  # H × H: expected moves of the chain, those into the first of the rounds too
    emissions: FloatArray  # H × X: expected symbols
    edge: FloatArray  # H: the filtered law of the regime after the last of them, from which the next E-step starts
    gram: FloatArray  # D × D: Σ w z zᵀ, without λI
    moment: FloatArray  # D: Σ w z r
    columns: FloatArray  # D: Σ w z, by which the moment follows when the centre moves
    rewards: FloatArray  # 6: the centre, how many rewards are known, Σ w, Σ w r, Σ w r², the largest squared residual
    actions: FloatArray  # 3 × K: of each action Σ of squared residuals, known rewards, and those unlike the usual ones

    @property
    def known(self) -> int:
        """Rewards in the sums."""
        return int(self.rewards[KNOWN])

    def move_centre(self, centre: float) -> "Kept":
        """The same sums with another centre of the rewards."""
        by = centre - self.rewards[CENTRE]
        rewards = self.rewards.copy()
        weight, total = rewards[WEIGHT], rewards[TOTAL]
        rewards[CENTRE] = centre
        rewards[TOTAL] = total - by * weight
        rewards[SQUARES] += by * (by * weight - 2.0 * total)
        return self._replace(moment=self.moment - by * self.columns, rewards=rewards)

    def permute(self, order: IndexArray, shared: int) -> "Kept":
        """The same sums with regime h renamed: the new h is the old order[h]. The first `shared` columns belong to all.

        The other columns come regime by regime (features.py).
        """
        each = (self.moment.size - shared) // order.size
        own = shared + each * order[:, None] + np.arange(each)
        places = np.concatenate((np.arange(shared), own.ravel()))
        return self._replace(
            transitions=self.transitions[np.ix_(order, order)],
            emissions=self.emissions[order],
            edge=self.edge[order],
            gram=self.gram[np.ix_(places, places)],
            moment=self.moment[places],
            columns=self.columns[places],
        )

    def add(self, later: "Kept") -> "Kept":
        """The sums of these rounds and of the next ones to leave, with the same centre."""
        rewards = self.rewards + later.rewards
        rewards[CENTRE] = later.rewards[CENTRE]
        rewards[LARGEST] = max(self.rewards[LARGEST], later.rewards[LARGEST])
        return Kept(
            self.transitions + later.transitions,
            self.emissions + later.emissions,
            later.edge,
            self.gram + later.gram,
            self.moment + later.moment,
            self.columns + later.columns,
            rewards,
            self.actions + later.actions,
        )

    def widen(self, columns: tuple[IndexArray, int], symbols: tuple[IndexArray, int], actions: int) -> "Kept":
        """The same sums with more columns and symbols, whose old ones have the places given, and more actions."""
        (places, size), (codes, count) = columns, symbols
        gram, moment, sums = np.zeros((size, size)), np.zeros(size), np.zeros(size)
        gram[np.ix_(places, places)], moment[places], sums[places] = self.gram, self.moment, self.columns
        emissions = np.zeros((self.edge.size, count))
        emissions[:, codes] = self.emissions
        by_action = np.zeros((len(self.actions), actions))
        by_action[:, : self.actions.shape[1]] = self.actions
        return self._replace(emissions=emissions, gram=gram, moment=moment, columns=sums, actions=by_action)

    def has_shapes(self, regimes: int, symbols: int, dimension: int, actions: int) -> bool:
        """Are these sums of a campaign of this size?"""
        expected = (
            (regimes, regimes), (regimes, symbols), (regimes,), (dimension, dimension), (dimension,), (dimension,),
            (LARGEST + 1,), (DEVIATIONS + 1, actions),
        )  # fmt: skip
        return tuple(part.shape for part in self) == expected
