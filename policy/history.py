"""History: the rounds played so far, column by column, shared between the states that grow from one another.

Appending to the newest state costs O(1): older states simply see fewer rows. Appending to an older one copies first,
so a state never changes under its owner. An arrival may revise the reward of a row; the value before it is kept beside
it, so that older states find theirs.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from policy.arrays import BoolArray, FloatArray, IntArray, SmallInts
from policy.encoding import Contexts

_NO_ROWS = np.empty(0, np.int64)
_NO_REWARDS = np.empty(0)
LONG_AGO = 0  # the time of what happened before a campaign kept times


def _get_capacity(rounds: int) -> int:
    """Rows to allocate for a number of rounds: a quarter to spare, a compromise between memory and copying."""
    return max(64, rounds * 5 // 4)


def _get_grown(column: npt.NDArray[Any], filled: int) -> npt.NDArray[Any]:
    """The column, or a longer copy if it is full."""
    if filled < column.size:
        return column
    longer = np.empty(_get_capacity(filled + 1), column.dtype)
    longer[:filled] = column[:filled]
    return longer


class History:
    """Columns with spare room at the end; `rounds` and `arrived` say how much is filled."""

    contexts: Contexts
    steps: SmallInts  # moves of the chain before each row: 1, or what the clock says; 0 before the first
    actions: SmallInts
    beliefs: FloatArray  # of record: as decided, or as last recomputed (R4)
    times: IntArray  # when each row was decided, in microseconds; LONG_AGO if that does not matter
    came: IntArray  # when its first reward came
    rewards: FloatArray  # the newest of each row: NaN where none has arrived, or where it was erased (R22)
    rewarded: BoolArray  # has a reward arrived, if only an erased one?
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
        self.times = np.zeros(capacity, np.int64)
        self.came = np.zeros(capacity, np.int64)
        self.rewards = np.full(capacity, np.nan)
        self.rewarded = np.zeros(capacity, np.bool_)
        self._order = np.empty(capacity, np.int64)  # rows in the order their rewards arrived
        self._revisions = _NO_ROWS  # arrivals that revised a reward, ascending; the first `_revised` are filled
        self._before = _NO_REWARDS  # what each of them replaced
        self._revised = 0
        self.excluded = _NO_ROWS
        self.rounds = 0
        self.arrived = 0

    # --- rewards -----------------------------------------------------------------------------------------------

    def get_arrivals(self, start: int, stop: int) -> IntArray:
        """The rows whose first reward is among arrivals number start … stop-1, in round order, if they count."""
        if start == stop:
            return _NO_ROWS
        return self._leave_out(np.sort(self.get_first_arrivals(start, stop)))

    def get_first_arrivals(self, start: int, stop: int) -> IntArray:
        """The same rows in order of arrival, including those that do not count."""
        rows = self._order[start:stop]
        if not self._revised:
            return rows
        low, high = np.searchsorted(self._revisions[: self._revised], (start, stop))
        return np.delete(rows, self._revisions[low:high] - start)

    def _leave_out(self, rows: IntArray) -> IntArray:
        """The rows that have a reward and are not excluded."""
        rows = rows[~np.isnan(self.rewards[rows])]
        if not self.excluded.size:
            return rows
        places = np.searchsorted(self.excluded, rows)  # it is sorted, and may be long
        counted: BoolArray = self.excluded[np.minimum(places, self.excluded.size - 1)] != rows
        return rows[counted]

    def get_arrival_order(self, arrived: int) -> IntArray:
        """The row of each of the first `arrived` rewards, including excluded ones; a row may come several times."""
        return self._order[:arrived]

    def get_rewards(self, arrived: int) -> FloatArray:
        """The rewards of the rows (T or more) as they were after the first `arrived` arrivals.

        Rows that had none by then may have one here. The column itself if nothing was revised since, so only for those
        that append to it; other threads take a copy.
        """
        is_newest = self.count_revisions(arrived) == self._revised
        return self.rewards if is_newest else self.copy_rewards(arrived)

    def copy_rewards(self, arrived: int) -> FloatArray:
        """The same as a copy, right even if another thread appends arrivals meanwhile."""
        rewards = self.rewards.copy()  # first: whatever it has of later arrivals is replaced by what was before them
        later = slice(self.count_revisions(arrived), self._revised)
        # In this order the earliest of a row is assigned last.
        rewards[self._order[self._revisions[later]][::-1]] = self._before[later][::-1]
        return rewards

    def count_revisions(self, arrived: int) -> int:
        """How many of the first `arrived` arrivals revised a reward."""
        if not self._revised or self._revisions[self._revised - 1] < arrived:
            return self._revised
        return int(np.searchsorted(self._revisions[: self._revised], arrived))

    def get_revisions(self, arrived: int) -> tuple[IntArray, FloatArray]:
        """Those arrivals, and the reward that each of them replaced."""
        count = self.count_revisions(arrived)
        return self._revisions[:count], self._before[:count]

    def get_differences(self, start: int, stop: int) -> tuple[IntArray, FloatArray]:
        """The rows rewarded before arrival number `start` that arrivals up to stop-1 revised, and by how much.

        In round order, without those that do not count.
        """
        low, high = self.count_revisions(start), self.count_revisions(stop)
        if low == high:
            return _NO_ROWS, _NO_REWARDS
        rows = np.unique(self._order[self._revisions[low:high]])
        rows = self._leave_out(np.setdiff1d(rows, self.get_first_arrivals(start, stop), assume_unique=True))
        return rows, self.get_rewards(stop)[rows] - self.get_rewards(start)[rows]

    def take_back(self, start: int, stop: int, rewards: FloatArray) -> None:
        """Let arrivals number start … stop-1 have revised nothing: `rewards` (T or more) are those before them.

        For a history that no other state shares. Later arrivals then revise from there.
        """
        low, high = self.count_revisions(start), self.count_revisions(stop)
        revised = self._order[self._revisions[low : self._revised]]
        taken, later = revised[: high - low], revised[high - low :]
        rows = np.setdiff1d(taken, self.get_first_arrivals(start, stop))
        self._before[low:high] = np.where(np.isin(taken, rows), rewards[taken], self._before[low:high])
        again, places = np.unique(later, return_index=True)
        places, again = places[np.isin(again, rows)], np.intersect1d(again, rows)
        self._before[high + places] = rewards[again]
        rows = np.setdiff1d(rows, again)
        self.rewards[rows] = rewards[rows]

    def exclude_erased(self, rounds: int, start: int, stop: int) -> Self:
        """This history, or a copy that excludes the erased rewards among arrivals number start … stop-1."""
        rows = self._order[start:stop]
        erased = rows[np.isnan(self.rewards[rows])] if rows.size else rows
        if not erased.size:
            return self
        other = self.copy(rounds, stop)
        other.excluded = np.union1d(self.excluded, erased)
        return other

    def add_reward(self, row: int, reward: float, came: int = LONG_AGO) -> None:
        """Append an arrival: the first reward of a row, or one that replaces it."""
        if self.rewarded[row]:
            self._revisions = _get_grown(self._revisions, self._revised)
            self._before = _get_grown(self._before, self._revised)
            self._revisions[self._revised], self._before[self._revised] = self.arrived, self.rewards[row]
            self._revised += 1  # before the reward changes, see `copy_rewards`
        else:
            self.came[row] = came
        self._order = _get_grown(self._order, self.arrived)
        self._order[self.arrived] = row
        self.rewards[row], self.rewarded[row] = reward, True
        self.arrived += 1

    def mark_rewarded(self, start: int, stop: int) -> None:
        """Count rows start … stop-1, whose rewards are in the column already, as arrived in round order."""
        self._order[start:stop] = np.arange(start, stop)
        self.rewarded[start:stop] = True
        self.arrived = stop

    # --- rows --------------------------------------------------------------------------------------------------

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
        revisions: tuple[IntArray, FloatArray] | None = None,
        times: tuple[IntArray, IntArray] | None = None,
    ) -> Self:
        """A history from its columns (T rows each); `rewards` are the newest of the rows in `arrivals`.

        `times`: when each row was decided, and when the first reward of each row in `arrivals` came.
        """
        history = cls(levels.shape[1], values.shape[1], beliefs.shape[1], _get_capacity(actions.size))
        history.append(Contexts(levels, values, symbols), steps, actions, beliefs)
        history._set_rewards(arrivals, rewards, revisions or (_NO_ROWS, _NO_REWARDS))
        if times is not None:
            history.times[: times[0].size], history.came[arrivals] = times
        history.excluded = _NO_ROWS if excluded is None else excluded
        return history

    @property
    def is_timed(self) -> bool:
        """Are there times? They only grow, so the last one tells."""
        return self.rounds > 0 and bool(self.times[self.rounds - 1] > LONG_AGO)

    def forget_times(self) -> None:
        """Drop all times, of a history that no other state shares."""
        self.times[:], self.came[:] = LONG_AGO, LONG_AGO

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
        rows = self._order[:arrived]
        other._set_rewards(rows, self.copy_rewards(arrived)[rows], self.get_revisions(arrived))
        if self.is_timed:
            other.times[:rounds], other.came[rows] = self.times[:rounds], self.came[rows]
        other.rounds, other.excluded = rounds, self.excluded
        return other

    def _set_rewards(self, arrivals: IntArray, rewards: FloatArray, revisions: tuple[IntArray, FloatArray]) -> None:
        self.rewards[arrivals], self.rewarded[arrivals] = rewards, True
        if arrivals.size > self._order.size:
            self._order = np.empty(_get_capacity(arrivals.size), np.int64)
        self._order[: arrivals.size] = arrivals
        self.arrived = arrivals.size
        self._revisions, self._before = revisions[0].copy(), revisions[1].copy()
        self._revised = self._revisions.size

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
