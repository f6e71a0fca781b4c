"""What a worker keeps in memory of its campaigns, so that a decision need not fold the log.

It only saves time. The live row of a campaign tells whether its entry is still true, and the log has the rest (R23).
"""

import threading
from collections.abc import Iterable

from policy import costs
from service.engine.fold import Replay
from service.engine.recovery import find_open_job, recover_position
from service.engine.work import Entry
from service.storage.events import count_events
from service.storage.loop import News
from service.storage.rows import LiveRow
from service.storage.store import Store
from service.storage.transaction import LongWorkError, Transaction

CACHED_CAMPAIGNS = 1_000
MOST_ROWS_BEHIND = 100  # rows of other workers that the event loop folds: a millisecond


class Cache:
    """The campaigns that a worker has used lately. Threads use it too, hence the lock."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._entries: dict[int, Entry] = {}  # by campaign id, the least recently used first
        self._ids: dict[str, int] = {}  # of campaigns that nobody else seems to change
        self.snapshots_owed: set[int] = set()  # campaigns that need a snapshot before the next one is due
        self.generation = store.generation  # of the server that all this was read from

    def check_generation(self) -> None:
        """Forget everything after a failover: commits on the old server may be lost."""
        if self.generation != self._store.generation:
            with self._lock:
                self._entries, self.generation = {}, self._store.generation

    def get_row(self, name: str) -> LiveRow | None:
        """Return the live row as this worker left it. It counts only once a write has found the same version (R23)."""
        entry = self._entries.get(self._ids.get(name, 0))
        return None if entry is None else entry.row

    def doubt(self, name: str) -> None:
        """Note that the campaign may have changed: its live row must be read."""
        self._ids.pop(name, None)

    def find_news(self, row: LiveRow) -> News | None:
        """Return what other workers have added since, if the event loop can fold it."""
        entry = self._entries.get(row.campaign_id)
        if entry is None or entry.row.version >= row.version or not _is_near(entry, row):
            return None
        return News(row.campaign_id, (entry.state.round, row.round), (entry.state.arrived, row.arrived))

    def load_entry(self, tx: Transaction, row: LiveRow, is_quick: bool = False) -> Entry:
        """Return a locked campaign: from the cache, with what is new folded in, or else recovered from a snapshot."""
        entry = self._entries.get(row.campaign_id)
        if entry is not None and entry.row.version > row.version:
            # The database has gone back in time: a backup was restored, or a standby took over too early.
            self.forget([row.campaign_id])
            entry = None
        return self._catch_up(tx, row, entry, is_quick)

    def read_entry(self, tx: Transaction, row: LiveRow) -> Entry:
        """Return a campaign as of its live row or slightly later, for a thread that has no lock on it.

        A fold appends to the history, and a gather may be doing just that to the cached one, so it starts from a copy.
        """
        self.check_generation()
        entry = self._entries.get(row.campaign_id)
        if entry is not None and entry.row.version >= row.version:
            return entry
        if entry is not None:
            state = entry.state
            own = state._replace(history=state.history.copy(state.round, state.arrived))
            entry = entry._replace(position=entry.position._replace(state=own))
        current = self._catch_up(tx, row, entry, is_quick=False)
        if row.campaign_id not in self._entries:  # after a restart: saves the next reader the fold
            self.keep(current)
        return current

    def _catch_up(self, tx: Transaction, row: LiveRow, entry: Entry | None, is_quick: bool) -> Entry:
        if entry is not None and entry.row.version == row.version:
            return entry
        if is_quick and not (entry and _is_near(entry, row)):
            raise LongWorkError
        if entry is not None and entry.row.changes == row.changes:  # others have decided and taken rewards, only
            replay = Replay(entry.position, tx, row.campaign_id, eventful=False)
            entry = entry._replace(row=row, position=replay.run())
        else:
            position = recover_position(tx, row.campaign_id, () if entry is None else (entry.position,))
            job, events = find_open_job(tx, row.campaign_id), count_events(tx, row.campaign_id)
            entry = Entry(row, position, job, events)
        state = entry.state
        folded, live = (state.round, state.arrived, state.model_version), (row.round, row.arrived, row.model_version)
        if folded != live and is_quick:  # without a lock, others may write between two reads
            raise LongWorkError
        if folded != live:
            problem = f"log and live row of campaign {row.name!r} disagree: (round, rewards, model) {folded}, {live}"
            raise RuntimeError(f"{problem}; run `undercurrent verify {row.name}`")
        return entry

    def keep(self, entry: Entry) -> None:
        """Keep a campaign as it is in the database."""
        row = entry.row
        with self._lock:
            self._entries.pop(row.campaign_id, None)
            self._entries[row.campaign_id], self._ids[row.name] = entry, row.campaign_id
            if len(self._entries) > CACHED_CAMPAIGNS:
                oldest = self._entries.pop(next(iter(self._entries)))
                self._ids.pop(oldest.row.name, None)

    def note_snapshot(self, campaign: int, round: int) -> None:
        """Note that a campaign has a snapshot of a round, which changes no version."""
        with self._lock:
            if (entry := self._entries.get(campaign)) is not None:
                self._entries[campaign] = entry._replace(row=entry.row._replace(snapshot_round=round))

    def forget(self, campaigns: Iterable[int]) -> None:
        """Forget campaigns that were deleted, or whose last transaction may or may not have been committed."""
        with self._lock:
            for number in campaigns:
                self._entries.pop(number, None)


def _is_near(entry: Entry, row: LiveRow) -> bool:
    """Have other workers only added rounds and rewards since, and so few that the event loop can fold them?"""
    if entry.row.changes != row.changes:
        return False
    rounds, rewards = row.round - entry.state.round, row.arrived - entry.state.arrived
    is_short = rounds <= MOST_ROWS_BEHIND and rewards <= MOST_ROWS_BEHIND
    return is_short and costs.is_quick(entry.position.policy, entry.state, rounds, row.clock)
