"""Process operations: those of all campaigns share one transaction, and each gets its own outcome.

What a transaction did is cached only once it is committed.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from typing import NamedTuple
from uuid import uuid4

import msgspec

from policy import StagedPolicy, State
from service.base.errors import NotFoundError, UnavailableError
from service.engine.cache import Cache
from service.engine.handlers import HANDLERS, answer_repeated_creation
from service.engine.metrics import Metrics
from service.engine.operations import Create, Delete, Snapshot
from service.engine.recovery import compute_spacing, get_campaign
from service.engine.turn import AnyOperation, Turn, list_decision_ids, list_reward_ids
from service.engine.unit import Unit
from service.engine.work import Job
from service.storage import audit
from service.storage.campaigns import add_campaign
from service.storage.engines import DATABASE_ERRORS
from service.storage.loop import EmbeddedConnection, LoopConnection
from service.storage.rows import KnownDecision, KnownReward, LiveRow
from service.storage.store import Store
from service.storage.transaction import LongWorkError, Transaction

_encode = msgspec.json.Encoder().encode
log = logging.getLogger("undercurrent")


class Postponed(Enum):
    """Why nothing was done to a campaign in a quick transaction."""

    LONG = "it needs long work"
    HELD = "another worker holds it, or has just changed it"


class Processed(NamedTuple):
    """For each operation its result or the exception that it failed with; and work for the background."""

    outcomes: list[object]
    work: list[Job | Snapshot]


class Batch:
    """Operations that share a transaction, and what has come of them so far.

    `is_quick`: do only what takes a few milliseconds.
    """

    def __init__(self, operations: Sequence[AnyOperation], is_quick: bool = False) -> None:
        self.operations, self.is_quick = operations, is_quick
        self.outcomes: list[object] = [None] * len(operations)
        self.places: dict[str, list[int]] = {}  # of each campaign's operations
        for i, operation in enumerate(operations):
            self.places.setdefault(operation.campaign, []).append(i)
        self.started = time.perf_counter()
        self.rows: dict[str, LiveRow] = {}
        self.read: set[str] = set()  # campaigns whose row was read; the others' came from memory
        self.units: list[Unit] = []

    def set_all(self, name: str, outcome: object) -> None:
        """Give all operations on a campaign the same outcome."""
        for i in self.places[name]:
            self.outcomes[i] = outcome


class Campaigns:
    """The campaigns of one database, as one worker sees them.

    `clock` gives microseconds since 1970. `on_messages` is called, in any thread, when a webhook's message was
    committed.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        metrics: Metrics | None = None,
        on_messages: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.clock = store, clock
        self.metrics = metrics or Metrics()
        self.owner = uuid4().hex
        self.cache = Cache(store)
        self._on_messages = on_messages
        self.snapshots_under_way: set[int] = set()  # campaign ids; the background removes them

    def process(self, operations: Sequence[AnyOperation]) -> Processed:
        """Carry out all operations in one transaction, in a thread.

        A bad request fails alone. A database failure fails them all and drops what was cached (R18).
        """
        batch = Batch(operations)
        with self._forgetting_unless_committed(batch), self.store.writing() as tx:
            self._work_out(batch, tx)
            for unit in batch.units:
                unit.write(tx)
        return self._finish(batch)

    async def gather(self, operations: Sequence[AnyOperation]) -> Processed:
        """Do the same on the event loop; only requests, and only what is quick.

        A campaign that this worker was the last to write is not read again: writing it succeeds only if nobody has
        changed it since, and if it has none of the new ids. Otherwise it is read, and tried again.
        """
        return await self.write(Batch(operations, is_quick=True))

    async def write(self, batch: Batch) -> Processed:
        """Work out a batch unless it was prepared, and write the campaigns that nobody has changed since."""
        with self._forgetting_unless_committed(batch):
            async with self.store.gathering() as connection:
                self.cache.check_generation()
                if batch.is_quick:
                    tx = await self._work_out_quickly(batch, connection)
                else:
                    tx = await connection.begin(())
                    rows = await connection.read_campaigns(batch.places)
                    same = {(row.campaign_id, row.version) for row in rows.values()}
                    self._postpone(batch, [u for u in batch.units if (u.row.campaign_id, u.row.version) not in same])
                for unit in batch.units:
                    unit.write(tx)
                written = await connection.write(tx)
        unwritten = [unit for unit in batch.units if unit.row.campaign_id not in written]
        self._postpone(batch, [unit for unit in unwritten if unit.has_changed or unit.row.name not in batch.read])
        return self._finish(batch)

    @contextmanager
    def _forgetting_unless_committed(self, batch: Batch) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.cache.forget([row.campaign_id for row in batch.rows.values()])
            raise

    async def _work_out_quickly(self, batch: Batch, connection: LoopConnection | EmbeddedConnection) -> Transaction:
        """Read what must be read, and carry out the operations in memory."""
        batch.rows = rows = {name: row for name in batch.places if (row := self.cache.get_row(name)) is not None}
        unread = batch.places.keys() - rows.keys()
        news = []
        if unread:
            read = await connection.read_campaigns(unread)
            rows |= read
            batch.read |= read.keys()
            news = [new for row in read.values() if (new := self.cache.find_news(row)) is not None]
        wanted = _list_wanted(batch, rows)
        known = await connection.get_known_decisions(wanted) if wanted else []
        identified = _list_identified(batch, rows)
        rewards = await connection.get_known_rewards(identified) if identified else []
        tx = await connection.begin(news)
        self._serve_all(batch, tx, known, rewards)
        return tx

    def _postpone(self, batch: Batch, units: Sequence[Unit]) -> None:
        """Leave out campaigns that another worker holds or has changed, or whose row was not confirmed."""
        for unit in units:
            self.cache.doubt(unit.row.name)
            batch.set_all(unit.row.name, Postponed.HELD)
            batch.units.remove(unit)

    def prepare(self, operations: Sequence[AnyOperation]) -> Batch:
        """Work out requests, which may take long, without writing or locking anything."""
        batch = Batch(operations)
        with self.store.reading() as tx:
            self._work_out(batch, tx)
        return batch

    def _work_out(self, batch: Batch, tx: Transaction) -> None:
        """Lock the campaigns, and carry out the operations in memory."""
        batch.rows = tx.lock_campaigns(batch.places)
        batch.read |= batch.rows.keys()
        self.cache.check_generation()
        known = tx.get_known_decisions(_list_wanted(batch, batch.rows))
        self._serve_all(batch, tx, known, tx.get_known_rewards(_list_identified(batch, batch.rows)))

    def _serve_all(
        self, batch: Batch, tx: Transaction, decisions: Sequence[KnownDecision], rewards: Sequence[KnownReward]
    ) -> None:
        now = self.clock()
        known: dict[int, dict[str, KnownDecision]] = {}
        for decision in decisions:
            known.setdefault(decision.campaign_id, {})[decision.decision_id] = decision
        identified: dict[int, list[KnownReward]] = {}
        for reward in rewards:
            identified.setdefault(reward.campaign_id, []).append(reward)
        for name, places in batch.places.items():
            row = batch.rows.get(name)
            if row is None:
                self._serve_missing(batch, tx, places, now)
            else:
                own = known.get(row.campaign_id, {}), identified.get(row.campaign_id, ())
                self._serve_campaign(batch, tx, row, places, own, now)

    def _serve_missing(self, batch: Batch, tx: Transaction, places: Sequence[int], now: int) -> None:
        """Carry out operations on a campaign that does not exist, until one of them creates it."""
        for count, i in enumerate(places, start=1):
            operation = batch.operations[i]
            if isinstance(operation, Create):
                row, batch.outcomes[i] = self._create(tx, operation, now)
                self._serve_campaign(batch, tx, row, places[count:], ({}, ()), now)
                return
            batch.outcomes[i] = NotFoundError(f"There is no campaign {operation.campaign!r}")

    def _serve_campaign(
        self,
        batch: Batch,
        tx: Transaction,
        row: LiveRow,
        places: Sequence[int],
        known: tuple[dict[str, KnownDecision], Sequence[KnownReward]],
        now: int,
    ) -> None:
        """Carry out the operations on one campaign; `known` is what the log has of what they name."""
        operations = [batch.operations[i] for i in places]
        turn = Turn(tx, row, operations, self.cache, self.owner, self.clock, now, *known, batch.is_quick)
        try:
            results = _serve(turn)
        except DATABASE_ERRORS:
            raise
        except LongWorkError:
            batch.set_all(row.name, Postponed.LONG)
            return
        except Exception as error:  # a campaign that cannot be loaded must not fail the others
            batch.set_all(row.name, error)
            return
        for i, result in zip(places, results, strict=False):
            batch.outcomes[i] = result
        if turn.is_deleted:
            self._serve_missing(batch, tx, places[len(results) :], now)
        elif turn.loaded_unit is not None:
            batch.units.append(turn.loaded_unit)

    def _finish(self, batch: Batch) -> Processed:
        """Do what follows the commit."""
        done = sum(not isinstance(outcome, Postponed) for outcome in batch.outcomes)
        if done:
            self.metrics.count_transaction(done, time.perf_counter() - batch.started)
        pairs = zip(batch.operations, batch.outcomes, strict=True)
        if deleted := [op.campaign for op, outcome in pairs if isinstance(op, Delete) and outcome is None]:
            self.metrics.forget(deleted)
        for unit in batch.units:
            self._finish_unit(unit)
        return Processed(batch.outcomes, [work for unit in batch.units for work in self._list_work(unit)])

    def _create(self, tx: Transaction, operation: Create, now: int) -> tuple[LiveRow, object]:
        config = operation.policy.config.model_dump_json()
        belief = _encode(operation.policy.initial_state().belief.tolist()).decode()
        is_new = add_campaign(tx, operation.campaign, operation.request_hash, config, belief, now)
        if is_new:
            audit.add_record(tx, operation.record, now)
        row = tx.lock_campaigns([operation.campaign]).get(operation.campaign)
        if row is None:
            raise UnavailableError(f"Campaign {operation.campaign} was deleted just now; try again")
        return row, config.encode() if is_new else answer_repeated_creation(tx, row, operation)

    def _finish_unit(self, unit: Unit) -> None:
        """Do what follows the commit."""
        self.cache.keep(unit.after)
        self.metrics.count_unit(unit)
        if unit.rows.messages:
            self._on_messages()
        for event in unit.failures:
            log.warning(event.kind, extra={"campaign": unit.row.name, "round": event.round})

    def _list_work(self, unit: Unit) -> Iterator[Job | Snapshot]:
        """Yield the work for the background: new jobs, and a snapshot if one is due."""
        row, state = unit.row, unit.state
        yield from unit.progress.new_jobs
        owed = self.cache.snapshots_owed
        if unit.rows.revisions and any(each.restored is not None for each in unit.rows.revisions):
            # A fold from an older snapshot might have to start before the restored model.
            owed.add(row.campaign_id)
        is_due = state.round >= row.snapshot_round + compute_spacing(row.snapshot_round)
        if (is_due or row.campaign_id in owed) and row.campaign_id not in self.snapshots_under_way:
            self.snapshots_under_way.add(row.campaign_id)
            owed.discard(row.campaign_id)
            yield Snapshot(row.name, row.campaign_id, unit.revision, state, self.cache.generation)

    def read_state(self, name: str) -> tuple[StagedPolicy, State]:
        """Read a campaign's policy and state without a lock, for when the database takes no writes."""
        with self.store.reading() as tx:
            _, policy, state = self.cache.read_entry(tx, get_campaign(tx, name)).position
        return policy, state


def _list_wanted(batch: Batch, rows: Mapping[str, LiveRow]) -> list[tuple[int, str]]:
    """List the decisions to look up: campaign and id. A write finds by itself whether a new id is new."""
    return [
        (row.campaign_id, decision_id)
        for name, row in rows.items()
        for decision_id in list_decision_ids([batch.operations[i] for i in batch.places[name]], name in batch.read)
    ]


def _list_identified(batch: Batch, rows: Mapping[str, LiveRow]) -> list[tuple[int, str, str]]:
    """List the rewards with an id to look up: campaign, decision id and reward id."""
    return [
        (row.campaign_id, *ids)
        for name, row in rows.items()
        for ids in list_reward_ids([batch.operations[i] for i in batch.places[name]])
    ]


def _serve(turn: Turn) -> list[object]:
    """Carry out a turn's operations in order, those of one type next to each other together."""
    outcomes: list[object] = []
    for kind, run in groupby(turn.operations, type):
        outcomes += HANDLERS[kind](turn, list(run))
        if turn.is_deleted:
            break
    return outcomes
