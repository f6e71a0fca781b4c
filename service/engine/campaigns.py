"""The use-cases: what a gathered batch of requests does, in one transaction; and how a campaign's state is found again.

The only place that joins policy and store. `process` is what a lane runs: it decides in memory, writes once, and keeps
in its cache only what was committed.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any
from uuid import uuid4

import msgspec

from policy import FixedError, PolicyError, StagedPolicy, State
from service.base.errors import (
    ApiError,
    ConflictError,
    ErrorDetail,
    FieldProblem,
    InvalidError,
    NotFoundError,
    UnavailableError,
    build_error_detail,
)
from service.engine.encoding import describe_reward, encode_decisions
from service.engine.fold import Erased, Heard, Position, Replay
from service.engine.ids import Hashes, Ids, hash_ids, read_block
from service.engine.imports import Importing
from service.engine.metrics import Metrics
from service.engine.operations import (
    MAINTENANCE,
    Archive,
    Change,
    Changing,
    Create,
    Current,
    Decide,
    Delete,
    Erase,
    FinishJob,
    Import,
    KeepSnapshot,
    Operation,
    Outcome,
    Reduce,
    Reward,
    RollBack,
    Snapshot,
)
from service.engine.recovery import (
    find_open_job,
    get_campaign,
    load_first_position,
    rebuild_job_input,
    rebuild_model,
    recover_position,
)
from service.engine.requests import ImportRow
from service.engine.retention import reduced
from service.engine.unit import Entry, Job, Unit, snapshot_row
from service.storage import audit
from service.storage.campaigns import add_campaign, delete_campaign, get_config, get_creation_hash, read_revision_page
from service.storage.engines import DATABASE_ERRORS
from service.storage.erasure import read_subject_rounds
from service.storage.events import count_events
from service.storage.fibers import in_fiber
from service.storage.jobs import finish_job
from service.storage.models import read_model_page
from service.storage.reading import LoggedDecision, find_decision
from service.storage.rows import LiveRow, MessageRow
from service.storage.snapshots import (
    IdBlock,
    SnapshotPoint,
    add_id_block,
    add_snapshot,
    get_last_round_in_blocks,
    read_id_blocks,
    read_snapshot_points,
)
from service.storage.statements import Query
from service.storage.store import Store, WouldBlockError
from service.storage.transaction import Transaction

__all__ = [
    "Campaigns",
    "MovedError",
    "answer_repeated_creation",
]

SNAPSHOT_ROUNDS = 1_000  # at least between two snapshots; and a fifth of all rounds, so that their cost is constant
MOST_ROUNDS_TO_FOLD = 50_000  # after a restart: a few seconds
RECENT_SNAPSHOTS = 3
CACHED_CAMPAIGNS = 1_000
MOST_BYTES_OF_IDS = 100_000_000  # beyond those of cached campaigns: others may be asked for an id too
MOST_ROUNDS_BEHIND = 1_000  # that the event loop folds of what other workers have decided: some milliseconds
_encode = msgspec.json.Encoder().encode
log = logging.getLogger("undercurrent")


class MovedError(UnavailableError):
    """The campaign is not the one that was meant, or not as it was."""


class Campaigns:
    """The campaigns of one database, as one worker sees them."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        owner: str | None = None,
        metrics: Metrics | None = None,
        queued: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.clock = store, clock
        self.metrics = metrics or Metrics()
        self.owner = owner or uuid4().hex
        self._queued = queued  # is told, in whichever thread, of messages that were committed
        self._cache: dict[int, Entry] = {}
        self._numbers: dict[str, int] = {}  # ids by name: what to ask for ahead, never what to believe
        self._ids: dict[int, Ids] = {}  # never wrong, but perhaps of fewer rounds than there are by now
        self._lock = threading.Lock()  # lanes of PostgreSQL are threads
        self._snapshots_under_way: set[int] = set()
        self._snapshots_owed: set[int] = set()
        self._generation = store.generation  # of which all this is

    def process(self, operations: Sequence[Operation]) -> tuple[list[Outcome], list[Job | Snapshot]]:
        """All operations in one transaction: an outcome each, and what to do in the background afterwards.

        A bad request fails alone. A database error fails them all and drops what was cached (R18).
        """
        begun = time.perf_counter()
        outcomes: list[Outcome] = [None] * len(operations)
        by_campaign: dict[str, list[int]] = {}
        for i, operation in enumerate(operations):
            by_campaign.setdefault(operation.campaign, []).append(i)
        touched: list[int] = []
        kept: list[tuple[Unit, Entry]] = []
        try:
            with self.store.writing() as tx:
                ahead = chain.from_iterable(
                    self._ahead(name, [operations[i] for i in places]) for name, places in by_campaign.items()
                )
                rows, now = tx.lock_campaigns(by_campaign, ahead), self.clock()
                self._believe_only_this_server()
                touched = [row.campaign_id for row in rows.values()]
                for name, places in by_campaign.items():
                    unit = self._serve_all(tx, rows.get(name), [(i, operations[i]) for i in places], outcomes, now)
                    if unit is not None:
                        kept.append((unit, unit.write()))
        except WouldBlockError:  # nothing was done
            raise
        except BaseException:
            self._forget([*touched, *(self._numbers[name] for name in by_campaign if name in self._numbers)])
            raise
        self.metrics.transaction(len(operations), time.perf_counter() - begun)
        if deleted := [o.campaign for o, told in zip(operations, outcomes, strict=True) if _deletes(o, told)]:
            self.metrics.forget(deleted)
        for unit, entry in kept:
            self._keep(unit, entry)
            self.metrics.committed(unit)
            if unit.new_rows[MessageRow]:
                self._queued()
            for event in unit.failures:
                log.warning(event.kind, extra={"campaign": unit.row.name, "round": event.round})
        return outcomes, [work for unit, entry in kept for work in self._afterwards(unit, entry)]

    def _serve_all(
        self,
        tx: Transaction,
        row: LiveRow | None,
        numbered: Sequence[tuple[int, Operation]],
        outcomes: list[Outcome],
        now: int,
    ) -> Unit | None:
        """All operations on one campaign; what it did to it is still to be written."""
        for place, (i, operation) in enumerate(numbered):
            if row is not None:
                break
            if not isinstance(operation, Create):
                outcomes[i] = NotFoundError(f"There is no campaign {operation.campaign!r}")
                continue
            made = self._create(tx, operation, now)
            row = tx.lock_campaigns([operation.campaign]).get(operation.campaign)
            if row is None:
                raise UnavailableError(f"Campaign {operation.campaign} was deleted just now; try again")
            outcomes[i] = made or self._maintain(tx, row, operation)
            numbered = numbered[place + 1 :]
            break
        if row is None or not numbered:
            return None
        try:
            unit, results = self._serve(tx, row, [operation for _, operation in numbered], now)
        except (*DATABASE_ERRORS, WouldBlockError):
            raise
        except Exception as error:  # a campaign that cannot be loaded is no reason to refuse the others
            unit, results = None, [error] * len(numbered)
        for (i, _), result in zip(numbered, results, strict=False):
            outcomes[i] = result
        if len(results) < len(numbered):  # the last of them has deleted the campaign
            return self._serve_all(tx, None, numbered[len(results) :], outcomes, now)
        return unit

    def _ahead(self, name: str, operations: Sequence[Operation]) -> Iterator[Query]:
        """What the operations on a campaign will ask, if it is still the one of that name."""
        number = self._numbers.get(name)
        ids = None if number is None else self._ids.get(number)
        if number is not None and ids is not None and (rounds := ids.rounds_of(hash_ids(_ids(operations)))):
            yield Transaction.build_known_decisions_query(number, rounds)

    def _keep(self, unit: Unit, entry: Entry) -> None:
        """What was committed."""
        new = unit.new_ids
        self._learn(unit.row.campaign_id, entry.state.round - new.size, new)
        self._remember(unit.row, entry)

    def _learn(self, campaign: int, after: int, hashes: Hashes) -> None:
        """The ids of decisions that were committed, here or elsewhere, after a round."""
        with self._lock:
            ids = self._ids.get(campaign)
            if ids is not None and ids.count >= after:  # else they are read when they are needed
                ids.extend(after, hashes)

    def _believe_only_this_server(self) -> None:
        """What was committed on another, which has failed since, may be lost."""
        if self._generation != self.store.generation:
            with self._lock:
                self._cache, self._ids, self._generation = {}, {}, self.store.generation

    def _forget(self, campaigns: Iterable[int]) -> None:
        """What is known of campaigns that are gone, or of which nobody knows what became of the last transaction."""
        with self._lock:
            for number in campaigns:
                self._cache.pop(number, None)
                self._ids.pop(number, None)

    def _remember(self, row: LiveRow, entry: Entry) -> None:
        with self._lock:
            self._cache.pop(row.campaign_id, None)
            self._cache[row.campaign_id] = entry
            self._numbers[row.name] = row.campaign_id
            if len(self._cache) > CACHED_CAMPAIGNS:
                quiet = next(iter(self._cache))  # for longest
                del self._cache[quiet]
                self._ids.pop(quiet, None)
            if len(self._numbers) > 2 * CACHED_CAMPAIGNS:  # now and then: it takes as long as a small transaction
                self._numbers = {name: number for name, number in self._numbers.items() if number in self._cache}

    def load_ids(self, tx: Transaction, row: LiveRow) -> Ids:
        """The ids of a campaign's decisions, all that the row knows of and perhaps later ones."""
        self._believe_only_this_server()
        ids = self._ids.get(row.campaign_id)
        if ids is not None and ids.count >= row.round:
            return ids
        if ids is None:
            ids = Ids()
            for last, block in read_id_blocks(tx, row.campaign_id):
                hashes = read_block(block)
                if hashes is None or hashes.size != last - ids.count:  # damaged: the log has them all
                    break
                ids.extend(ids.count, hashes)
        known = ids.count
        new = hash_ids(tx.read_decision_ids(row.campaign_id, known))
        if new.size > _spacing(known):  # no block has them, as after a migration: the next snapshot brings one
            self._snapshots_owed.add(row.campaign_id)
        with self._lock:
            if sum(kept.nbytes for kept in self._ids.values()) > MOST_BYTES_OF_IDS:
                self._ids = {number: kept for number, kept in self._ids.items() if number in self._cache}
            kept = self._ids.setdefault(row.campaign_id, ids)  # another thread may have read them meanwhile
            if kept.count < known:
                kept = self._ids[row.campaign_id] = ids
            kept.extend(known, new)
        return kept

    def get_decision(self, tx: Transaction, row: LiveRow, decision_id: str) -> LoggedDecision | None:
        """A decision by its id, with its request and its reward."""
        for round in self.load_ids(tx, row).rounds_of(hash_ids([decision_id])):
            decision = find_decision(tx, row.campaign_id, round)
            if decision is not None and decision.decision_id == decision_id:
                return decision
        return None

    def is_in_memory(self, name: str) -> bool:
        """Is the campaign in memory, as far as is known, and nothing long due? Then deciding takes microseconds."""
        number = self._numbers.get(name)
        entry = None if number is None else self._cache.get(number)
        return entry is not None and entry.position.policy.config.beliefs.estimation != "inline"

    def snapshot_ended(self, campaign: int) -> None:
        """It was kept, or could not be: another may be started."""
        self._snapshots_under_way.discard(campaign)

    def _afterwards(self, unit: Unit, entry: Entry) -> Iterable[Job | Snapshot]:
        row, (revision, _, state) = unit.row, entry.position
        yield from unit.new_jobs
        due = row.snapshot_round + _spacing(row.snapshot_round)
        if unit.went_back:  # its fold would have to begin before the model it went back to
            self._snapshots_owed.add(row.campaign_id)
        wanted = state.round >= due or row.campaign_id in self._snapshots_owed
        if wanted and row.campaign_id not in self._snapshots_under_way:
            self._snapshots_under_way.add(row.campaign_id)
            self._snapshots_owed.discard(row.campaign_id)
            yield Snapshot(row.name, row.campaign_id, revision, state, self._generation)

    def _create(self, tx: Transaction, operation: Create, now: int) -> bytes | None:
        config = operation.policy.config.model_dump_json()
        belief = _encode(operation.policy.initial_state().belief.tolist()).decode()
        added = add_campaign(tx, operation.campaign, operation.request_hash, config, belief, now)
        if not added:
            return None
        audit.add_record(tx, operation.record, now)
        return config.encode()

    def _serve(
        self, tx: Transaction, row: LiveRow, operations: Sequence[Operation], now: int
    ) -> tuple[Unit | None, list[Outcome]]:
        """The operations on one campaign, in order; decisions next to each other are made together."""
        unit: Unit | None = None
        outcomes: list[Outcome] = []
        for kind, group in groupby(operations, type):
            run = list(group)
            if kind in MAINTENANCE:
                outcomes += [self._maintain(tx, row, operation) for operation in run]
                continue
            if kind is Delete and (unit.row if unit else row).archived_at is not None:
                delete_campaign(tx, row.campaign_id)
                audit.add_record(tx, run[0].record, now, rounds=(unit.row if unit else row).round)  # type: ignore[union-attr]
                self._forget([row.campaign_id])
                return None, [*outcomes, None]
            if unit is None:
                entry, ids = self._entry(tx, row), self.load_ids(tx, row)
                unit = Unit(tx, row, entry, self.owner, now)
                unit.look_up(ids, _ids(operations))
            if kind is Decide:
                outcomes += _decide(unit, run)  # type: ignore[arg-type]
            elif kind is Reward:
                outcomes += [_reward(unit, operation) for operation in run]  # type: ignore[arg-type]
            elif kind is Current:
                outcomes += [(unit.policy, unit.state) for _ in run]
            else:
                outcomes += [_changed(tx, unit, operation) for operation in run]  # type: ignore[arg-type]
                if kind is Import:
                    unit.look_up(ids, _ids(operations))  # some may have come with it
        return unit, outcomes

    def _maintain(self, tx: Transaction, row: LiveRow, operation: Operation) -> Outcome:
        if isinstance(operation, Create):
            return answer_repeated_creation(tx, row, operation)
        if isinstance(operation, FinishJob):
            if operation.generation in (None, self._generation):  # else its input may never have been: it is done again
                finish_job(
                    tx,
                    operation.campaign_id,
                    operation.input_round,
                    operation.status,
                    operation.result,
                    operation.seconds,
                )
        elif isinstance(operation, KeepSnapshot):
            self._keep_snapshot(tx, row, operation)
        elif isinstance(operation, Reduce):
            return reduced(tx, row, self.clock())
        return None

    def _keep_snapshot(self, tx: Transaction, row: LiveRow, operation: KeepSnapshot) -> None:
        state, moments = operation.state, read_snapshot_points(tx, row.campaign_id)
        newest = moments[0] if moments else SnapshotPoint(0, 0, 0)
        if operation.campaign_id != row.campaign_id or newest >= (state.round, state.arrived, operation.revision):
            return  # another worker was faster
        if operation.generation != self._generation or state.round > row.round or state.arrived > row.arrived:
            return  # it is of a moment that never was, for this database
        add_snapshot(
            tx,
            snapshot_row(row.campaign_id, operation.revision, state, operation.encoded, self.clock()),
            keep=_kept([round for round, _, _ in moments]),
        )
        if (last := get_last_round_in_blocks(tx, row.campaign_id)) < state.round:
            add_id_block(tx, row.campaign_id, IdBlock(state.round, self.load_ids(tx, row).block(last, state.round)))

    # --- finding a campaign's state again ----------------------------------------------------------------------

    def _entry(self, tx: Transaction, row: LiveRow) -> Entry:
        """The campaign as of its locked row: from the cache, else by folding what is new since then or a snapshot."""
        entry, ids = self._cache.get(row.campaign_id), self._ids.get(row.campaign_id)
        if (entry is not None and entry.version > row.version) or (ids is not None and ids.count > row.round):
            # The database is at an earlier moment than it was: a backup was restored, or a standby took over too soon.
            self._forget([row.campaign_id])
            entry = None
        return self._caught_up(tx, row, entry)

    def read_entry(self, tx: Transaction, row: LiveRow) -> Entry:
        """The campaign as of its live row, or a moment later, for a thread that has no lock on it.

        What the lanes hold is only read. Folding would append to the history that one of them may be appending to,
        so it begins with a copy.
        """
        self._believe_only_this_server()
        entry = self._cache.get(row.campaign_id)
        if entry is not None and entry.version >= row.version:
            return entry
        if entry is not None:
            revision, policy, state = entry.position
            own = state._replace(history=state.history.copy(state.round, state.arrived))
            entry = entry._replace(position=Position(revision, policy, own))
        found = self._caught_up(tx, row, entry)
        if row.campaign_id not in self._cache:  # after a restart: the next one need not fold again
            self._remember(row, found)
        return found

    def read_current(self, name: str) -> tuple[StagedPolicy, State]:
        """A campaign's policy and state without a lock, for when the lanes cannot write."""
        with self.store.reading() as tx:
            _, policy, state = self.read_entry(tx, get_campaign(tx, name)).position
        return policy, state

    def _caught_up(self, tx: Transaction, row: LiveRow, entry: Entry | None) -> Entry:
        if entry is not None and entry.version == row.version:
            return entry
        if in_fiber() and not (
            entry and entry.changes == row.changes and row.round - entry.state.round <= MOST_ROUNDS_BEHIND
        ):
            raise WouldBlockError
        if entry is not None and entry.changes == row.changes:  # others have decided and taken rewards, nothing else
            before, heard = entry.state, Heard(tx)
            tx.prefetch_log(row.campaign_id, (before.round, row.round), (before.arrived, row.arrived))
            replay = Replay(entry.position, heard, row.campaign_id, eventful=False)
            replay.run()
            entry = entry._replace(version=row.version, position=replay.position)
            self._learn(row.campaign_id, before.round, hash_ids(heard.ids))
        else:
            start = recover_position(tx, row.campaign_id, () if entry is None else (entry.position,))
            job, events = find_open_job(tx, row.campaign_id), count_events(tx, row.campaign_id)
            entry = Entry(row.version, start, row.changes, job, events)
        state = entry.state
        found, expected = (state.round, state.arrived, state.model_version), (row.round, row.arrived, row.model_version)
        if found != expected:
            message = f"log and live row of campaign {row.name!r} disagree: (round, rewards, model) {found}, {expected}"
            raise RuntimeError(f"{message}; run `undercurrent verify {row.name}`")
        return entry

    def rebuild_job_input(self, campaign: int, input_round: int) -> Position:
        """The moment that a job of another worker, which died, was to start from."""
        with self.store.scanning() as tx:
            return rebuild_job_input(tx, campaign, input_round)

    def prepare_rollback(self, name: str, version: int) -> RollBack | Current:
        """The moment at which a model of a campaign was published, rebuilt from the nearest older snapshot (R21).

        If the model in force is a rollback to it, there is nothing to do: the request is a retry.
        """
        with self.store.scanning() as tx:
            row = get_campaign(tx, name)
            stored = next(iter(read_model_page(tx, row.campaign_id, version + 1, 1)), None)
            if not 1 <= version < row.model_version or stored is None:
                allowed = f"1 to {row.model_version - 1}" if row.model_version > 1 else "there is no earlier model yet"
                raise InvalidError(
                    [FieldProblem(field="model_version", message=f"{version} is no earlier model", allowed=allowed)]
                )
            (newest,) = read_revision_page(tx, row.campaign_id, None, 1)
            (in_force,) = read_model_page(tx, row.campaign_id, None, 1)
            if (newest.restored, in_force.kind) == (version, "rollback"):
                return Current(name)
            return RollBack(name, row.campaign_id, rebuild_model(tx, row, version), newest.revision)

    def prepare_import(self, name: str, import_id: str, rows: Iterable[ImportRow]) -> Import:
        """A campaign warm-started with rows from elsewhere, which takes a while; nothing is written yet."""
        with self.store.reading() as tx:  # not for as long as it takes: databases end transactions that do nothing
            row = get_campaign(tx, name)
            start = recover_position(tx, row.campaign_id, ())  # not the lane's own, which goes on meanwhile
            entry = Entry(row.version, start, row.changes, None, count_events(tx, row.campaign_id))
            made = Importing(tx, row, entry, self.owner, self.clock())
        return Import(name, row.campaign_id, made, made.take_all(import_id, rows, self._known_ids))

    def _known_ids(self, campaign: str, names: Sequence[str]) -> Collection[str]:
        with self.store.reading() as tx:
            row = get_campaign(tx, campaign)
            return tx.get_known_decisions(row.campaign_id, self.load_ids(tx, row).rounds_of(hash_ids(names)))

    def prepare_erasure(self, name: str, subject: str) -> Erase | None:
        """The campaign folded as if it had never known someone, which takes a while; None if it never has."""
        with self.store.scanning() as tx:
            row = get_campaign(tx, name)
            rounds = read_subject_rounds(tx, row.campaign_id, subject)
            if not rounds:
                return None
            replay = Replay(load_first_position(tx, row.campaign_id), Erased(tx, rounds), row.campaign_id, given=True)
            replay.run()
            return Erase(name, row.campaign_id, subject, rounds, replay.position, replay.inputs)


def answer_repeated_creation(tx: Transaction, row: LiveRow, operation: Create) -> bytes | ConflictError:
    """What creating a campaign comes to whose name is taken."""
    if get_creation_hash(tx, row.campaign_id) == operation.request_hash:
        return get_config(tx, row.campaign_id).encode()  # a retry of the request that created it
    return ConflictError(f"There is already a campaign {row.name!r}; choose another name")


def _deletes(operation: Operation, outcome: Outcome) -> bool:
    """Has it deleted its campaign?"""
    return isinstance(operation, Delete) and outcome is None


def _ids(operations: Sequence[Operation]) -> list[str]:
    """The decision ids that clients name."""
    ids: list[str] = []
    for operation in operations:
        if isinstance(operation, Decide):
            ids += [item.decision_id for item, _ in operation.items if item.decision_id is not None]
        elif isinstance(operation, Reward):
            ids += [item.decision_id for item in operation.items]
    return ids


def _decide(unit: Unit, run: Sequence[Decide]) -> list[Outcome]:
    """Decisions that came one after the other: together if all are good, else each alone."""
    if len(run) > 1:
        try:
            with unit.attempt():
                _require_meant(unit, run)
                known = unit.decide([item for operation in run for item in operation.items])
                made = iter(encode_decisions(run[0].campaign, unit.policy.config.stage_length, known))
                return [_body(operation, list(islice(made, len(operation.items)))) for operation in run]
        except DATABASE_ERRORS:
            raise
        except Exception:
            pass  # it is found when each is tried alone: not here, or it would be the context of another's error
        return [outcome for operation in run for outcome in _decide(unit, [operation])]
    (operation,) = run
    try:
        with unit.attempt():
            _require_meant(unit, run)
            known = unit.decide(operation.items, operation.batch)
            return [_body(operation, encode_decisions(operation.campaign, unit.policy.config.stage_length, known))]
    except DATABASE_ERRORS:  # then the transaction is lost, whoever else is in it (R18)
        raise
    except PolicyError as error:
        return [InvalidError.from_policy(error)]
    except Exception as error:
        return [error]


def _require_meant(unit: Unit, run: Sequence[Decide]) -> None:
    if any(operation.meant not in (None, (unit.row.campaign_id, unit.revision)) for operation in run):
        raise MovedError(f"Campaign {unit.row.name} was changed just now; try again")


def _body(operation: Decide, made: Sequence[str]) -> bytes:
    return (f'{{"decisions":[{",".join(made)}]}}' if operation.batch else made[0]).encode()


def _changed(tx: Transaction, unit: Unit, operation: Changing) -> Outcome:
    """What has changed is told by reading the campaign again; if anything has, it is written down who did it."""
    outcome, told = None, dict[str, Any]()
    row, revision, state = unit.row, unit.revision, unit.state
    try:
        with unit.attempt():
            if isinstance(operation, Delete):
                raise ConflictError(f"Campaign {operation.campaign} is in use; archive it first")
            if isinstance(operation, Archive):
                unit.archive(operation.archived)
            elif isinstance(operation, Change):
                before = unit.policy.config
                unit.change(operation.change(before))
                told = {"changed": audit.describe_changes(before, unit.policy.config)}
            elif operation.campaign_id != unit.row.campaign_id:
                raise NotFoundError(f"There is no campaign {operation.campaign!r}")
            elif isinstance(operation, Erase):
                outcome = unit.erase(operation.subject, operation.rounds, operation.rebuilt, operation.inputs)
                told = {"decisions": outcome}
            elif isinstance(operation, Import):
                unit.adopt(operation.made)
            else:
                unit.roll_back(operation.past, operation.seen)
            if (unit.row, unit.revision) != (row, revision) or unit.state is not state:
                audit.add_record(tx, operation.record, unit.now, **told)
    except DATABASE_ERRORS:
        raise
    except FixedError as error:
        return ConflictError.from_fixed(operation.campaign, error)
    except PolicyError as error:
        return InvalidError.from_policy(error)
    except Exception as error:
        return error
    return outcome


def _reward(unit: Unit, operation: Reward) -> Outcome:
    results = []
    for item in operation.items:
        error: ApiError | None = None
        try:
            committed = describe_reward(operation.campaign, unit.reward(item.decision_id, item.reward))
        except PolicyError as refused:
            error = InvalidError.from_policy(refused)
        except ApiError as refused:
            error = refused
        if error is not None:
            unit.refused += 1
        if not operation.batch:
            return error or _encode(committed)
        detail: ErrorDetail | None = build_error_detail(error) if error else None
        results.append(
            {
                "decision_id": item.decision_id,
                "committed": None if error else committed,
                "error": detail.model_dump(mode="json") if detail else None,
            }
        )
    return _encode({"results": results})


def _spacing(round: int) -> int:
    """How many rounds after that one the next snapshot is due."""
    return min(max(SNAPSHOT_ROUNDS, round // 5), MOST_ROUNDS_TO_FOLD)


def _kept(rounds: Sequence[int]) -> set[int]:
    """Of the snapshots so far, newest first: the last few, and the first one after every power of two (R21)."""
    firsts = {round.bit_length(): round for round in rounds}
    return {*rounds[: RECENT_SNAPSHOTS - 1], *firsts.values()}
