"""Process gathered operations: all campaigns' operations share one transaction, and each gets its own outcome.

What a transaction did is cached only once it is committed.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
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
from service.engine.recovery import get_campaign
from service.engine.snapshots import compute_spacing
from service.engine.turn import AnyOperation, Turn, list_decision_ids
from service.engine.unit import Unit
from service.engine.work import Entry, Job
from service.storage import audit
from service.storage.campaigns import add_campaign
from service.storage.engines import DATABASE_ERRORS
from service.storage.rows import LiveRow
from service.storage.statements import Query
from service.storage.store import Store, WouldBlockError
from service.storage.transaction import Transaction

_encode = msgspec.json.Encoder().encode
log = logging.getLogger("undercurrent")


class Processed(NamedTuple):
    """For each operation its result or the exception that it failed with; and work for the background."""

    outcomes: list[object]
    work: list[Job | Snapshot]


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
        """Carry out all operations in one transaction.

        A bad request fails alone. A database failure fails them all and drops what was cached (R18).
        """
        started = time.perf_counter()
        outcomes: list[object] = [None] * len(operations)
        by_campaign: dict[str, list[int]] = {}
        for i, operation in enumerate(operations):
            by_campaign.setdefault(operation.campaign, []).append(i)
        locked: list[int] = []
        written: list[tuple[Unit, Entry]] = []
        try:
            with self.store.writing() as tx:
                rows, now = tx.lock_campaigns(by_campaign, self._prefetch(operations, by_campaign)), self.clock()
                self.cache.check_generation()
                locked = [row.campaign_id for row in rows.values()]
                for name, places in by_campaign.items():
                    numbered = [(i, operations[i]) for i in places]
                    unit = self._serve_campaign(tx, rows.get(name), numbered, outcomes, now)
                    if unit is not None:
                        written.append((unit, unit.write()))
        except WouldBlockError:  # nothing was done
            raise
        except BaseException:
            self.cache.forget([*locked, *self.cache.find_numbers(by_campaign)])
            raise
        self.metrics.count_transaction(len(operations), time.perf_counter() - started)
        pairs = zip(operations, outcomes, strict=True)
        if deleted := [op.campaign for op, outcome in pairs if isinstance(op, Delete) and outcome is None]:
            self.metrics.forget(deleted)
        for unit, entry in written:
            self._finish_unit(unit, entry)
        return Processed(outcomes, [work for unit, entry in written for work in self._list_work(unit, entry)])

    def _prefetch(self, operations: Sequence[AnyOperation], by_campaign: dict[str, list[int]]) -> Iterator[Query]:
        """Yield the queries that the operations will need, if the campaigns are those that we know by name."""
        for name, places in by_campaign.items():
            number, rounds = self.cache.guess_rounds(name, list_decision_ids([operations[i] for i in places]))
            if rounds:
                yield Transaction.build_known_decisions_query(number, rounds)

    def _serve_campaign(
        self,
        tx: Transaction,
        row: LiveRow | None,
        numbered: Sequence[tuple[int, AnyOperation]],
        outcomes: list[object],
        now: int,
    ) -> Unit | None:
        """Carry out the operations on one campaign; return its unit of work, which is still to be written."""
        while row is None and numbered:  # until one of them creates it
            (i, operation), *numbered = numbered
            if isinstance(operation, Create):
                row, outcomes[i] = self._create(tx, operation, now)
            else:
                outcomes[i] = NotFoundError(f"There is no campaign {operation.campaign!r}")
        if row is None or not numbered:
            return None
        turn = Turn(tx, row, [operation for _, operation in numbered], self.cache, self.owner, self.clock, now)
        try:
            results = _serve(turn)
        except (*DATABASE_ERRORS, WouldBlockError):
            raise
        except Exception as error:  # a campaign that cannot be loaded must not fail the others
            turn.loaded_unit, results = None, [error] * len(numbered)
        for (i, _), result in zip(numbered, results, strict=False):
            outcomes[i] = result
        if turn.is_deleted:
            return self._serve_campaign(tx, None, numbered[len(results) :], outcomes, now)
        return turn.loaded_unit

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

    def _finish_unit(self, unit: Unit, entry: Entry) -> None:
        """Do what follows the commit."""
        self.cache.keep(unit, entry)
        self.metrics.count_unit(unit)
        if unit.rows.messages:
            self._on_messages()
        for event in unit.failures:
            log.warning(event.kind, extra={"campaign": unit.row.name, "round": event.round})

    def _list_work(self, unit: Unit, entry: Entry) -> Iterator[Job | Snapshot]:
        """Yield the work for the background: new jobs, and a snapshot if one is due."""
        row, (revision, _, state) = unit.row, entry.position
        yield from unit.progress.new_jobs
        owed = self.cache.snapshots_owed
        if any(each.restored is not None for each in unit.rows.revisions):
            # A fold from an older snapshot might have to start before the restored model.
            owed.add(row.campaign_id)
        is_due = state.round >= row.snapshot_round + compute_spacing(row.snapshot_round)
        if (is_due or row.campaign_id in owed) and row.campaign_id not in self.snapshots_under_way:
            self.snapshots_under_way.add(row.campaign_id)
            owed.discard(row.campaign_id)
            yield Snapshot(row.name, row.campaign_id, revision, state, self.cache.generation)

    def read_state(self, name: str) -> tuple[StagedPolicy, State]:
        """Read a campaign's policy and state without a lock, for when the database takes no writes."""
        with self.store.reading() as tx:
            _, policy, state = self.cache.read_entry(tx, get_campaign(tx, name)).position
        return policy, state


def _serve(turn: Turn) -> list[object]:
    """Carry out a turn's operations in order, those of one type next to each other together."""
    outcomes: list[object] = []
    for kind, run in groupby(turn.operations, type):
        outcomes += HANDLERS[kind](turn, list(run))
        if turn.is_deleted:
            break
    return outcomes
