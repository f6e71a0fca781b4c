"""What a worker keeps in memory of its campaigns: their state, and which decision ids they have.

It only saves time. The live row of a campaign tells whether its entry is still true, and the log has the rest (R23).
"""

import threading
from collections.abc import Iterable

from service.engine.fold import Replay
from service.engine.ids import Hashes, Ids, decode_block, hash_ids
from service.engine.recovery import find_open_job, recover_position
from service.engine.snapshots import compute_spacing
from service.engine.unit import Unit
from service.engine.work import Entry
from service.storage.events import count_events
from service.storage.fibers import in_fiber
from service.storage.reading import LoggedDecision, find_decision
from service.storage.rows import LiveRow
from service.storage.snapshots import read_id_blocks
from service.storage.store import Store, WouldBlockError
from service.storage.transaction import Transaction

CACHED_CAMPAIGNS = 1_000
MOST_BYTES_OF_IDS = 100_000_000  # beyond this, only the ids of cached campaigns are kept
MOST_ROUNDS_BEHIND = 1_000  # rounds of other workers that the event loop folds: some milliseconds


class Cache:
    """The campaigns that a worker has used lately. Lanes of PostgreSQL are threads, hence the lock."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._entries: dict[int, Entry] = {}  # by campaign id, the least recently used first
        self._numbers: dict[str, int] = {}  # campaign ids by name: a hint for prefetching, which may be out of date
        self._ids: dict[int, Ids] = {}  # by campaign id; always true, but perhaps not of the newest rounds
        self.snapshots_owed: set[int] = set()  # campaigns that need a snapshot before the next one is due
        self.generation = store.generation  # of the server that all this was read from

    def check_generation(self) -> None:
        """Forget everything after a failover: commits on the old server may be lost."""
        if self.generation != self._store.generation:
            with self._lock:
                self._entries, self._ids, self.generation = {}, {}, self._store.generation

    # --- entries -----------------------------------------------------------------------------------------------

    def load_entry(self, tx: Transaction, row: LiveRow) -> Entry:
        """Return a locked campaign: from the cache, with what is new folded in, or else recovered from a snapshot."""
        entry, ids = self._entries.get(row.campaign_id), self._ids.get(row.campaign_id)
        if (entry is not None and entry.version > row.version) or (ids is not None and ids.count > row.round):
            # The database has gone back in time: a backup was restored, or a standby took over too early.
            self.forget([row.campaign_id])
            entry = None
        return self._catch_up(tx, row, entry)

    def read_entry(self, tx: Transaction, row: LiveRow) -> Entry:
        """Return a campaign as of its live row or slightly later, for a thread that has no lock on it.

        A fold appends to the history, and a lane may be doing just that to the cached one, so it starts from a copy.
        """
        self.check_generation()
        entry = self._entries.get(row.campaign_id)
        if entry is not None and entry.version >= row.version:
            return entry
        if entry is not None:
            state = entry.state
            own = state._replace(history=state.history.copy(state.round, state.arrived))
            entry = entry._replace(position=entry.position._replace(state=own))
        current = self._catch_up(tx, row, entry)
        if row.campaign_id not in self._entries:  # after a restart: saves the next reader the fold
            self._store_entry(row, current)
        return current

    def _catch_up(self, tx: Transaction, row: LiveRow, entry: Entry | None) -> Entry:
        if entry is not None and entry.version == row.version:
            return entry
        has_only_rounds = entry is not None and entry.changes == row.changes
        if in_fiber() and not (entry and has_only_rounds and row.round - entry.state.round <= MOST_ROUNDS_BEHIND):
            raise WouldBlockError
        if entry is not None and has_only_rounds:  # other workers have decided and taken rewards, nothing else
            before = entry.state
            tx.prefetch_log(row.campaign_id, (before.round, row.round), (before.arrived, row.arrived))
            replay = Replay(entry.position, tx, row.campaign_id, eventful=False)
            ids = [decision.decision_id for part in replay.parts() for decision in part.rows]
            entry = entry._replace(version=row.version, position=replay.position)
            self._add_ids(row.campaign_id, before.round, hash_ids(ids))
        else:
            position = recover_position(tx, row.campaign_id, () if entry is None else (entry.position,))
            job, events = find_open_job(tx, row.campaign_id), count_events(tx, row.campaign_id)
            entry = Entry(row.version, position, row.changes, job, events)
        state = entry.state
        folded, live = (state.round, state.arrived, state.model_version), (row.round, row.arrived, row.model_version)
        if folded != live:
            problem = f"log and live row of campaign {row.name!r} disagree: (round, rewards, model) {folded}, {live}"
            raise RuntimeError(f"{problem}; run `undercurrent verify {row.name}`")
        return entry

    def _store_entry(self, row: LiveRow, entry: Entry) -> None:
        with self._lock:
            self._entries.pop(row.campaign_id, None)
            self._entries[row.campaign_id] = entry
            self._numbers[row.name] = row.campaign_id
            if len(self._entries) > CACHED_CAMPAIGNS:
                oldest = next(iter(self._entries))
                del self._entries[oldest]
                self._ids.pop(oldest, None)
            if len(self._numbers) > 2 * CACHED_CAMPAIGNS:  # rarely: it takes as long as a small transaction
                self._numbers = {name: number for name, number in self._numbers.items() if number in self._entries}

    def keep(self, unit: Unit, entry: Entry) -> None:
        """Keep what a unit of work has committed."""
        new = unit.new_ids
        self._add_ids(unit.row.campaign_id, entry.state.round - new.size, new)
        self._store_entry(unit.row, entry)

    def forget(self, campaigns: Iterable[int]) -> None:
        """Forget campaigns that were deleted, or whose last transaction may or may not have been committed."""
        with self._lock:
            for number in campaigns:
                self._entries.pop(number, None)
                self._ids.pop(number, None)

    def find_numbers(self, names: Iterable[str]) -> list[int]:
        """Return the ids of the campaigns, as far as they are known."""
        return [self._numbers[name] for name in names if name in self._numbers]

    def is_quick(self, name: str) -> bool:
        """Is the campaign in memory, and never re-estimated inline? Then a decision takes microseconds."""
        number = self._numbers.get(name)
        entry = None if number is None else self._entries.get(number)
        return entry is not None and entry.position.policy.config.beliefs.estimation != "inline"

    # --- decision ids ------------------------------------------------------------------------------------------

    def load_ids(self, tx: Transaction, row: LiveRow) -> Ids:
        """Return the ids of a campaign's decisions: all up to the row's round, and perhaps later ones."""
        self.check_generation()
        ids = self._ids.get(row.campaign_id)
        if ids is not None and ids.count >= row.round:
            return ids
        if ids is None:
            ids = Ids()
            for last_round, block in read_id_blocks(tx, row.campaign_id):
                hashes = decode_block(block)
                if hashes is None or hashes.size != last_round - ids.count:  # damaged; the log has all ids
                    break
                ids.extend(ids.count, hashes)
        known = ids.count
        new = hash_ids(tx.read_decision_ids(row.campaign_id, known))
        if new.size > compute_spacing(known):  # as after a migration; the next snapshot comes with a block
            self.snapshots_owed.add(row.campaign_id)
        with self._lock:
            if sum(each.nbytes for each in self._ids.values()) > MOST_BYTES_OF_IDS:
                self._ids = {number: each for number, each in self._ids.items() if number in self._entries}
            cached = self._ids.setdefault(row.campaign_id, ids)  # another thread may have loaded them meanwhile
            if cached.count < known:
                cached = self._ids[row.campaign_id] = ids
            cached.extend(known, new)
        return cached

    def _add_ids(self, campaign: int, after_round: int, hashes: Hashes) -> None:
        """Add the ids of committed decisions after a round."""
        with self._lock:
            ids = self._ids.get(campaign)
            if ids is not None and ids.count >= after_round:  # otherwise they are loaded when they are needed
                ids.extend(after_round, hashes)

    def guess_rounds(self, name: str, decision_ids: Iterable[str]) -> tuple[int, list[int]]:
        """Return the id of a campaign and the rounds that have these decisions, as far as memory tells."""
        number = self._numbers.get(name, 0)
        ids = self._ids.get(number)
        return number, [] if ids is None else ids.find_rounds(hash_ids(decision_ids))

    def get_decision(self, tx: Transaction, row: LiveRow, decision_id: str) -> LoggedDecision | None:
        """Return a decision by its id, with its request and its reward."""
        for round in self.load_ids(tx, row).find_rounds(hash_ids([decision_id])):
            decision = find_decision(tx, row.campaign_id, round)
            if decision is not None and decision.decision_id == decision_id:
                return decision
        return None
