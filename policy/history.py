"""History: the rounds played so far, column by column, shared between the states that grow from one another.

Appending to the newest state costs O(1): older states simply see fewer rows. Appending to an older one copies first,
so a state never changes under its owner.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from policy.arrays import BoolArray, FloatArray, IntArray, SmallInts
from policy.encoding import Contexts

_NO_ROWS = np.empty(0, np.int64)


def _get_capacity(rounds: int) -> int:
    """Rows to allocate for a number of rounds: a quarter to spare, a compromise between memory and copying."""
    return max(64, rounds * 5 // 4)


class History:
    """Columns with spare room at the end; `rounds` and `arrived` say how much is filled."""

    contexts: Contexts
    steps: SmallInts  # moves of the chain before each row: 1, or what the clock says; 0 before the first
    actions: SmallInts
    beliefs: FloatArray  # of record: as decided, or as last recomputed (R4)
    rewards: FloatArray  # NaN where none has arrived, or where it was erased (R22)
    # Rows whose folded rewards no longer count after a rollback (R21) or an erasure: sorted, never changed in place.
    excluded: IntArray
    rounds: int
    arrived: int
    shape: tuple[int, int, int]  # categorical variables, numeric variables, most regimes

    def __init__(self, variables: int, numbers: int, regimes: int, capacity: int = 64) -> None:
        self._capacity = capacity
        self.shape = (variables, numbers, regimes)
        self.contexts = Contexts(
            np.empty((capacity, variables), np.int16), np.empty((capacity, numbers)), np.empty(capacity, np.int16)
        )
        self.steps = np.empty(capacity, np.int16)
        self.actions = np.empty(capacity, np.int16)
        self.beliefs = np.zeros((capacity, regimes))  # columns beyond the regimes in use stay 0
        self.rewards = np.full(capacity, np.nan)
        self._order = np.empty(capacity, np.int64)  # rows in the order their rewards arrived
        self.excluded = _NO_ROWS
        self.rounds = 0
        self.arrived = 0

    def get_arrivals(self, start: int, stop: int) -> IntArray:
        """The rows of arrivals number start … stop-1, in round order, without those that do not count."""
        if start == stop:
            return _NO_ROWS
        rows = np.sort(self._order[start:stop])
        rows = rows[~np.isnan(self.rewards[rows])]
        if not self.excluded.size:
            return rows
        places = np.searchsorted(self.excluded, rows)  # it is sorted, and may be long
        counted: BoolArray = self.excluded[np.minimum(places, self.excluded.size - 1)] != rows
        return rows[counted]

    def get_arrival_order(self, arrived: int) -> IntArray:
        """The rows of the first `arrived` rewards in order of arrival, including excluded ones."""
        return self._order[:arrived]

    def exclude_erased(self, rounds: int, start: int, stop: int) -> Self:
        """This history, or a copy that excludes the erased rewards among arrivals number start … stop-1."""
        rows = self._order[start:stop]
        erased = rows[np.isnan(self.rewards[rows])] if rows.size else rows
        if not erased.size:
            return self
        other = self.copy(rounds, stop)
        other.excluded = np.union1d(self.excluded, erased)
        return other

    @classmethod
    def restore(
        cls,
        levels: SmallInts,
        values: FloatArray,
        symbols: SmallInts,
        steps: SmallInts,
        actions: SmallInts,
        beliefs: FloatArray,
        *,
        arrivals: IntArray,
        rewards: FloatArray,
        excluded: IntArray | None = None,
    ) -> Self:
        """A history from its columns (T rows each); `rewards` belong to the rows in `arrivals`."""
        history = cls(levels.shape[1], values.shape[1], beliefs.shape[1], _get_capacity(actions.size))
        history.append(Contexts(levels, values, symbols), steps, actions, beliefs)
        history.rewards[arrivals] = rewards
        history._order[: arrivals.size] = arrivals
        history.arrived = arrivals.size
        history.excluded = _NO_ROWS if excluded is None else excluded
        return history

    def cut(self, rounds: int, arrived: int) -> Self:
        """This history if it has exactly this length, else a copy cut to it."""
        return self if rounds == self.rounds and arrived == self.arrived else self.copy(rounds, arrived)

    def copy(self, rounds: int, arrived: int, capacity: int | None = None) -> Self:
        """A copy of the first rounds and arrivals, with as much room as here unless `capacity` says otherwise."""
        other = type(self)(*self.shape, capacity or self._capacity)
        other.contexts.write(0, self.contexts.rows(0, rounds))
        other.steps[:rounds] = self.steps[:rounds]
        other.actions[:rounds] = self.actions[:rounds]
        other.beliefs[:rounds] = self.beliefs[:rounds]
        rows = other._order[:arrived] = self._order[:arrived]
        other.rewards[rows] = self.rewards[rows]
        other.rounds, other.arrived, other.excluded = rounds, arrived, self.excluded
        return other

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows."""
        if self.rounds + count > self._capacity:
            self.__dict__ = self.copy(self.rounds, self.arrived, _get_capacity(self.rounds + count)).__dict__

    def append(self, contexts: Contexts, steps: SmallInts, actions: npt.NDArray[Any], beliefs: FloatArray) -> None:
        self.reserve(actions.size)
        start, stop = self.rounds, self.rounds + actions.size
        self.contexts.write(start, contexts)
        self.steps[start:stop] = steps
        self.actions[start:stop] = actions
        self.beliefs[start:stop, : beliefs.shape[1]] = beliefs
        self.rounds = stop

    def add_reward(self, row: int, reward: float) -> None:
        self.rewards[row] = reward
        self._order[self.arrived] = row
        self.arrived += 1

    def mark_rewarded(self, start: int, stop: int) -> None:
        """Count rows start … stop-1, whose rewards are in the column already, as arrived in round order."""
        self._order[start:stop] = np.arange(start, stop)
        self.arrived = stop
