"""History: the last rounds played, column by column, shared between the states that grow from one another.

A row is a round; row 0 is that after round `first`, because older rounds may have left (window.py). They are not
forgotten in the log, and what they have taught is kept in sums (kept.py).

Appending to the newest state costs O(1): older states simply see fewer rows. Appending to an older one copies first,
so a state never changes under its owner. An arrival may revise the reward of a row; the value before it is kept beside
it, so that older states find theirs.
"""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from policy.arrays import BoolArray, FloatArray, IntArray, SmallInts
from policy.encoding import Contexts

_NO_ROWS = np.empty(0, np.int64)
_NO_REWARDS = np.empty(0)
LONG_AGO = 0  # the time of what happened before a campaign kept times


class Gone(NamedTuple):
    """How much has left a history."""

    rounds: int = 0
    arrivals: int = 0  # the first ones
    revisions: int = 0  # among these
    excluded: int = 0  # rewards of rounds that have left


_NOTHING = Gone()


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
    rows: int
    arrived: int  # all arrivals, also those that have left
    gone: Gone
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
        # Rows in the order their rewards arrived, -1 for rounds that have left; the first is arrival `gone.arrivals`.
        self._order = np.empty(capacity, np.int64)
        # Arrivals that revised a reward or came after their round had left, ascending; the first `_revised` are filled.
        self._revisions = _NO_ROWS
        self._before = _NO_REWARDS  # what each of them replaced
        self._revised = 0
        self.excluded = _NO_ROWS
        self.rows = 0
        self.arrived = 0
        self.gone = _NOTHING

    @property
    def first(self) -> int:
        """The number of rounds before row 0."""
        return self.gone.rounds

    @property
    def rounds(self) -> int:
        """The number of rounds so far, with those that have left."""
        return self.gone.rounds + self.rows

    # --- rewards -----------------------------------------------------------------------------------------------

    def get_arrivals(self, start: int, stop: int) -> IntArray:
        """The rows whose first reward is among arrivals number start … stop-1, in round order, if they count."""
        if start == stop:
            return _NO_ROWS
        return self._leave_out(np.sort(self.get_first_arrivals(start, stop)))

    def get_first_arrivals(self, start: int, stop: int) -> IntArray:
        """The same rows in order of arrival, including those that do not count."""
        start = max(start, self.gone.arrivals)
        rows = self._get_rows(start, stop)
        if not self._revised:
            return _leave_out_gone(rows)
        low, high = np.searchsorted(self._revisions[: self._revised], (start, stop))
        return _leave_out_gone(np.delete(rows, self._revisions[low:high] - start))

    def _get_rows(self, start: int, stop: int) -> IntArray:
        """The rows of arrivals number start … stop-1, as far as they are still here; -1 for rounds that have left."""
        gone = self.gone.arrivals
        return self._order[max(start - gone, 0) : max(stop - gone, 0)]

    def _get_revised_rows(self, low: int, high: int) -> IntArray:
        return self._order[self._revisions[low:high] - self.gone.arrivals]

    def _leave_out(self, rows: IntArray) -> IntArray:
        """The rows that have a reward and are not excluded."""
        rows = rows[~np.isnan(self.rewards[rows])]
        if not self.excluded.size:
            return rows
        places = np.searchsorted(self.excluded, rows)  # it is sorted, and may be long
        counted: BoolArray = self.excluded[np.minimum(places, self.excluded.size - 1)] != rows
        return rows[counted]

    def get_arrival_order(self, arrived: int) -> IntArray:
        """The row of each of the first `arrived` rewards, including excluded ones; a row may come several times.

        -1 where the round has left; the first arrivals may have left too.
        """
        return self._get_rows(0, arrived)

    def get_rewards(self, arrived: int) -> FloatArray:
        """The rewards of the rows (T or more) as they were after the first `arrived` arrivals.

        Rows that had none by then may have one here. The column itself if nothing was revised since, so only for those
        that append to it; other threads take a copy.
        """
        is_newest = self._find_revision(arrived) == self._revised
        return self.rewards if is_newest else self.copy_rewards(arrived)

    def copy_rewards(self, arrived: int) -> FloatArray:
        """The same as a copy, right even if another thread appends arrivals meanwhile."""
        rewards = self.rewards.copy()  # first: whatever it has of later arrivals is replaced by what was before them
        low, high = self._find_revision(arrived), self._revised
        rows, before = self._get_revised_rows(low, high), self._before[low:high]
        if self.gone.rounds:
            rows, before = rows[rows >= 0], before[rows >= 0]
        rewards[rows[::-1]] = before[::-1]  # in this order the earliest of a row is assigned last
        return rewards

    def count_first_arrivals(self, arrived: int) -> int:
        """How many of the first `arrived` arrivals were the first reward of their round, and are not excluded."""
        return arrived - self.count_revisions(arrived) - self.excluded.size - self.gone.excluded

    def count_revisions(self, arrived: int) -> int:
        """How many of the first `arrived` arrivals revised a reward, or came after their round had left."""
        return self.gone.revisions + self._find_revision(arrived)

    def _find_revision(self, arrived: int) -> int:
        """How many of the revisions that are here are among the first `arrived` arrivals."""
        if not self._revised or self._revisions[self._revised - 1] < arrived:
            return self._revised
        return int(np.searchsorted(self._revisions[: self._revised], arrived))

    def get_revisions(self, arrived: int) -> tuple[IntArray, FloatArray]:
        """The revisions among the first `arrived` arrivals, and the reward that each of them replaced."""
        count = self._find_revision(arrived)
        return self._revisions[:count], self._before[:count]

    def get_differences(self, start: int, stop: int) -> tuple[IntArray, FloatArray]:
        """The rows rewarded before arrival number `start` that arrivals up to stop-1 revised, and by how much.

        In round order, without those that do not count.
        """
        low, high = self._find_revision(start), self._find_revision(stop)
        if low == high:
            return _NO_ROWS, _NO_REWARDS
        rows = _leave_out_gone(np.unique(self._get_revised_rows(low, high)))
        rows = self._leave_out(np.setdiff1d(rows, self.get_first_arrivals(start, stop), assume_unique=True))
        return rows, self.get_rewards(stop)[rows] - self.get_rewards(start)[rows]

    def take_back(self, start: int, stop: int, rewards: FloatArray) -> None:
        """Let arrivals number start … stop-1 have revised nothing: `rewards` (T or more) are those before them.

        For a history that no other state shares. Later arrivals then revise from there.
        """
        low, high = self._find_revision(start), self._find_revision(stop)
        revised = self._get_revised_rows(low, self._revised)
        taken, later = revised[: high - low], revised[high - low :]
        rows = _leave_out_gone(np.setdiff1d(taken, self.get_first_arrivals(start, stop)))
        self._before[low:high] = np.where(np.isin(taken, rows), rewards[taken], self._before[low:high])
        again, places = np.unique(later, return_index=True)
        places, again = places[np.isin(again, rows)], np.intersect1d(again, rows)
        self._before[high + places] = rewards[again]
        rows = np.setdiff1d(rows, again)
        self.rewards[rows] = rewards[rows]

    def exclude_erased(self, rounds: int, start: int, stop: int) -> Self:
        """This history, or a copy that excludes the erased rewards among arrivals number start … stop-1."""
        rows = _leave_out_gone(self._get_rows(start, stop))
        erased = rows[np.isnan(self.rewards[rows])] if rows.size else rows
        if not erased.size:
            return self
        other = self.copy(rounds, stop)
        other.excluded = np.union1d(self.excluded, erased)
        return other

    def add_reward(self, row: int, reward: float, came: int = LONG_AGO) -> None:
        """Append an arrival: the first reward of a row, or one that replaces it.

        A negative row is a round that has left: its reward keeps its number among the arrivals, and is not used.
        """
        if row < 0 or self.rewarded[row]:
            self._revisions = _get_grown(self._revisions, self._revised)
            self._before = _get_grown(self._before, self._revised)
            self._revisions[self._revised] = self.arrived
            self._before[self._revised] = np.nan if row < 0 else self.rewards[row]
            self._revised += 1  # before the reward changes, see `copy_rewards`
        else:
            self.came[row] = came
        place = self.arrived - self.gone.arrivals
        self._order = _get_grown(self._order, place)
        self._order[place] = max(row, -1)
        if row >= 0:
            self.rewards[row], self.rewarded[row] = reward, True
        self.arrived += 1

    def mark_rewarded(self, start: int, stop: int) -> None:
        """Count rows start … stop-1, whose rewards are in the column already, as arrived in round order.

        All rows before them must have come in that order too.
        """
        self._order[start:stop] = np.arange(start, stop)
        self.rewarded[start:stop] = True
        self.arrived = self.gone.arrivals + stop

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
        gone: Gone = _NOTHING,
    ) -> Self:
        """A history from its columns (T rows each); `rewards` are the newest of the rows in `arrivals`.

        `times`: when each row was decided, and when the first reward of each row in `arrivals` came.
        """
        history = cls(levels.shape[1], values.shape[1], beliefs.shape[1], _get_capacity(actions.size))
        history.append(Contexts(levels, values, symbols), steps, actions, beliefs)
        history.gone = gone
        history._set_rewards(arrivals, rewards, revisions or (_NO_ROWS, _NO_REWARDS))
        if times is not None:
            history.times[: times[0].size] = times[0]
            history.came[arrivals[arrivals >= 0]] = times[1][arrivals >= 0]
        history.excluded = _NO_ROWS if excluded is None else excluded
        return history

    @property
    def is_timed(self) -> bool:
        """Are there times? They only grow, so the last one tells."""
        return self.rows > 0 and bool(self.times[self.rows - 1] > LONG_AGO)

    def forget_times(self) -> None:
        """Drop all times, of a history that no other state shares."""
        self.times[:], self.came[:] = LONG_AGO, LONG_AGO

    def cut(self, rounds: int, arrived: int) -> Self:
        """This history if it has exactly this length, else a copy cut to it."""
        return self if rounds == self.rounds and arrived == self.arrived else self.copy(rounds, arrived)

    def copy(self, rounds: int, arrived: int, capacity: int | None = None) -> Self:
        """A copy of the first rounds and arrivals, with as much room as here unless `capacity` says otherwise."""
        other = self._copy_rows(0, rounds - self.first, capacity or self._capacity)
        arrivals = self.get_arrival_order(arrived)
        other.gone, other.excluded = self.gone, self.excluded
        other._set_rewards(arrivals, self.list_newest_rewards(arrived), self.get_revisions(arrived))
        if self.is_timed:
            rows = _leave_out_gone(arrivals)
            other.came[rows] = self.came[rows]
        return other

    def let_leave(self, leaving: int, rounds: int, arrived: int, learned: int) -> Self:
        """A copy of the first rounds and arrivals without the first `leaving` rows.

        Their rewards have taught what they could; those after the first `learned` arrivals came too late for that.
        """
        order, (revisions, before) = self.get_arrival_order(arrived), self.get_revisions(arrived)
        numbers = self.gone.arrivals + np.arange(order.size)
        late = numbers[(order >= 0) & (order < leaving) & (numbers >= learned) & ~np.isin(numbers, revisions)]
        revisions, before = np.append(revisions, late), np.append(before, np.full(late.size, np.nan))
        sequence = np.argsort(revisions)
        revisions, before = revisions[sequence], before[sequence]
        order = np.where(order < leaving, -1, order - leaving)
        staying = np.flatnonzero(order >= 0)
        start = int(staying[0]) if staying.size else order.size
        unneeded = int(np.searchsorted(revisions, self.gone.arrivals + start))
        other = self._copy_rows(leaving, rounds - self.first, _get_capacity(rounds - self.first - leaving))
        other.excluded = self.excluded[self.excluded >= leaving] - leaving
        other.gone = Gone(
            self.gone.rounds + leaving,
            self.gone.arrivals + start,
            self.gone.revisions + unneeded,
            self.gone.excluded + self.excluded.size - other.excluded.size,
        )
        newest = self.copy_rewards(arrived)[leaving:]
        other._set_rewards(order[start:], newest[order[start:]], (revisions[unneeded:], before[unneeded:]))
        if self.is_timed:
            rows = _leave_out_gone(order[start:])
            other.came[rows] = self.came[rows + leaving]
        return other

    def list_newest_rewards(self, arrived: int) -> FloatArray:
        """The reward that the row of each arrival had after the first `arrived`; NaN where the round has left."""
        order, rewards = self.get_arrival_order(arrived), self.copy_rewards(arrived)
        return np.where(order >= 0, rewards[order], np.nan) if self.gone.rounds else rewards[order]

    def list_first_times(self, arrived: int) -> IntArray:
        """When the first reward came of the row of each of the first `arrived` arrivals."""
        order = self.get_arrival_order(arrived)
        return np.where(order >= 0, self.came[order], LONG_AGO) if self.gone.rounds else self.came[order]

    def _copy_rows(self, start: int, stop: int, capacity: int) -> Self:
        """A history of some of the rows, without their rewards."""
        other, count = type(self)(*self.shape, capacity), stop - start
        other.contexts.write(0, self.contexts.rows(start, stop))
        other.steps[:count] = self.steps[start:stop]
        other.actions[:count] = self.actions[start:stop]
        other.beliefs[:count] = self.beliefs[start:stop]
        if self.is_timed:
            other.times[:count] = self.times[start:stop]
        other.rows = count
        return other

    def _set_rewards(self, arrivals: IntArray, rewards: FloatArray, revisions: tuple[IntArray, FloatArray]) -> None:
        here = arrivals >= 0
        self.rewards[arrivals[here]], self.rewarded[arrivals[here]] = rewards[here], True
        if arrivals.size > self._order.size:
            self._order = np.empty(_get_capacity(arrivals.size), np.int64)
        self._order[: arrivals.size] = arrivals
        self.arrived = self.gone.arrivals + arrivals.size
        self._revisions, self._before = revisions[0].copy(), revisions[1].copy()
        self._revised = self._revisions.size

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows."""
        if self.rows + count > self._capacity:
            self.__dict__ = self.copy(self.rounds, self.arrived, _get_capacity(self.rows + count)).__dict__

    def append(self, contexts: Contexts, steps: SmallInts, actions: npt.NDArray[Any], beliefs: FloatArray) -> None:
        self.reserve(actions.size)
        start, stop = self.rows, self.rows + actions.size
        self.contexts.write(start, contexts)
        self.steps[start:stop] = steps
        self.actions[start:stop] = actions
        self.beliefs[start:stop, : beliefs.shape[1]] = beliefs
        self.rows = stop


def _leave_out_gone(rows: IntArray) -> IntArray:
    """The rows that are still here."""
    here: IntArray = rows[rows >= 0]
    return here
