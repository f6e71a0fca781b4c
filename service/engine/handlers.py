"""How each operation is carried out: a table from the type of an operation to its handler.

A handler takes a run of operations of its type and returns for each its result, or the exception that it failed with.
A database failure is raised instead: then the transaction is lost, for all that share it (R18).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import msgspec

from policy import FixedError, PolicyError, StagedPolicy, State
from service.base.errors import (
    MOST_FIELDS,
    ApiError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    build_error_detail,
    list_bad_items,
)
from service.engine.changes import adopt, archive, change_config, erase, restore_model
from service.engine.encoding import describe_reward, encode_decisions
from service.engine.operations import (
    Archive,
    Change,
    Create,
    Credit,
    Decide,
    Delete,
    Erase,
    FinishJob,
    Import,
    KeepSnapshot,
    Operation,
    ReadState,
    Reduce,
    Reward,
    RollBack,
)
from service.engine.recovery import build_snapshot_row, choose_snapshots_to_keep
from service.engine.requests import DecideItem
from service.engine.retention import reduce_oldest
from service.engine.rewarding import LateError
from service.engine.sales import Sale
from service.engine.turn import AnyOperation, Turn
from service.engine.unit import Unit
from service.storage import audit
from service.storage.campaigns import delete_campaign, get_config, get_creation_hash
from service.storage.engines import DATABASE_ERRORS
from service.storage.jobs import finish_job
from service.storage.rows import LiveRow
from service.storage.snapshots import SnapshotPoint, add_snapshot, read_snapshot_points
from service.storage.transaction import Transaction

T = TypeVar("T")
Op = TypeVar("Op", bound=AnyOperation)
C = TypeVar("C", Change, RollBack, Erase, Import, Archive)
Handler: TypeAlias = Callable[[Turn, Sequence[Op]], list[T | Exception]]
# Any: that a handler's operations are of the key's type is more than an annotation can say; `_handles` checks the rest.
HANDLERS: dict[type[AnyOperation], Callable[[Turn, Sequence[Any]], Sequence[object]]] = {}
Changed: TypeAlias = tuple[T, Mapping[str, object]]  # the result of a change, and what the audit log says about it
NOTHING: Mapping[int, ApiError] = {}
LONGEST_MESSAGE = 500  # characters about an item that was skipped
_encode = msgspec.json.Encoder().encode


class ChangedCampaignError(UnavailableError):
    """The campaign is not the expected one, or was changed."""


def _handles(kind: type[Operation[T]]) -> Callable[[Handler[Op, T]], Handler[Op, T]]:
    """Enter a handler in the table."""

    def register(handler: Handler[Op, T]) -> Handler[Op, T]:
        HANDLERS[kind] = handler
        return handler

    return register


def _handles_each(kind: type[Operation[T]]) -> Callable[[Callable[[Turn, Op], T | Exception]], Handler[Op, T]]:
    """Enter a function of one operation in the table."""

    def register(handle: Callable[[Turn, Op], T | Exception]) -> Handler[Op, T]:
        def handler(turn: Turn, run: Sequence[Op]) -> list[T | Exception]:
            return [handle(turn, operation) for operation in run]

        return _handles(kind)(handler)

    return register


def _changes(kind: type[Operation[T]]) -> Callable[[Callable[[Turn, C], Changed[T]]], Handler[C, T]]:
    """Enter a change in the table: if it has changed anything, it is recorded in the audit log."""

    def register(change: Callable[[Turn, C], Changed[T]]) -> Handler[C, T]:
        def handle(turn: Turn, operation: C) -> T | Exception:
            unit = turn.unit
            row, revision, state = unit.row, unit.revision, unit.state
            try:
                with unit.attempt():
                    result, details = change(turn, operation)
                    if (unit.row, unit.revision) != (row, revision) or unit.state is not state:
                        audit.add_record(turn.tx, operation.record, unit.now, **details)
                    return result
            except DATABASE_ERRORS:
                raise
            except FixedError as error:
                return ConflictError.from_fixed(operation.campaign, error)
            except PolicyError as error:
                return InvalidError.from_policy(error)
            except Exception as error:
                return error

        return _handles_each(kind)(handle)

    return register


# --- requests --------------------------------------------------------------------------------------------------


@_handles(Decide)
def _decide(turn: Turn, run: Sequence[Decide]) -> list[bytes | Exception]:
    """Decide all requests of the run together; if any is bad, each alone, so that only that one fails."""
    unit = turn.unit
    if len(run) > 1:
        try:
            with unit.attempt():
                _require_expected(unit, run)
                known = unit.decide([item for operation in run for item in operation.items])
                answers = iter(encode_decisions(run[0].campaign, unit.policy.config.stage_length, known))
                return [_join(operation, list(islice(answers, len(operation.items)))) for operation in run]
        except DATABASE_ERRORS:
            raise
        except Exception:
            pass  # the loop below is not in here, or this error would be the context of another request's
    return [_decide_alone(unit, operation) for operation in run]


def _decide_alone(unit: Unit, operation: Decide) -> bytes | Exception:
    try:
        with unit.attempt():
            _require_expected(unit, [operation])
            return _decide_items(unit, operation, operation.items)
    except DATABASE_ERRORS:
        raise
    except PolicyError as error:
        if not operation.batch:
            unit.count_refusal(error)
        refusal: ApiError = InvalidError.from_policy(error)
    except ApiError as error:
        refusal = error
    except Exception as error:
        return error
    is_about_items = operation.batch and isinstance(refusal, InvalidError | ConflictError | GoneError)
    bad = unit.find_bad_items(operation.items) if is_about_items else {}
    if bad and operation.skip:
        return _decide_others(unit, operation, bad)
    return list_bad_items(refusal, bad) if bad else refusal


def _decide_items(
    unit: Unit, operation: Decide, items: Sequence[tuple[DecideItem, bytes]], skipped: Mapping[int, ApiError] = NOTHING
) -> bytes:
    if not items:
        return _join(operation, [], skipped)
    known = unit.decide(items, operation.batch)
    return _join(operation, encode_decisions(operation.campaign, unit.policy.config.stage_length, known), skipped)


def _decide_others(unit: Unit, operation: Decide, bad: Mapping[int, ApiError]) -> bytes | Exception:
    """Decide the items of a batch that are not bad."""
    try:
        with unit.attempt():
            good = [item for i, item in enumerate(operation.items) if i not in bad]
            return _decide_items(unit, operation, good, bad)
    except DATABASE_ERRORS:
        raise
    except Exception as error:
        return error


def _require_expected(unit: Unit, run: Sequence[Decide]) -> None:
    for operation in run:
        if operation.expected is not None and operation.expected != (unit.row.campaign_id, unit.revision):
            raise ChangedCampaignError(f"Campaign {unit.row.name} was changed just now; try again")


def _join(operation: Decide, answers: Sequence[str], skipped: Mapping[int, ApiError] = NOTHING) -> bytes:
    if not operation.batch:
        return answers[0].encode()
    decisions = f'"decisions":[{",".join(answers)}]'
    if not operation.skip:
        return f"{{{decisions}}}".encode()
    errors, room = list[Mapping[str, object]](), MOST_FIELDS  # for fields of all items together: each may be long
    for i, error in skipped.items():
        detail = build_error_detail(error)
        shown = detail.model_copy(update={"message": detail.message[:LONGEST_MESSAGE], "fields": detail.fields[:room]})
        room -= len(shown.fields)
        decision_id = operation.items[i][0].decision_id
        errors.append({"item": i, "decision_id": decision_id, "error": shown.model_dump(mode="json")})
    return f'{{{decisions},"skipped":{_encode(errors).decode()}}}'.encode()


@_handles_each(Reward)
def _reward(turn: Turn, operation: Reward) -> bytes | Exception:
    unit, results = turn.unit, []
    for item in operation.items:
        error: ApiError | None = None
        try:
            committed = describe_reward(operation.campaign, unit.reward(item))
        except (PolicyError, ApiError) as refused:
            error = _refuse_reward(unit, refused)
        if not operation.batch:
            return error or _encode(committed)
        results.append(
            {
                "decision_id": item.decision_id,
                "committed": None if error else committed,
                "error": build_error_detail(error).model_dump(mode="json") if error else None,
            }
        )
    return _encode({"results": results})


@_handles_each(Credit)
def _credit(turn: Turn, operation: Credit) -> bytes | Exception:
    unit, item = turn.unit, operation.item
    try:
        at = unit.now if item.at is None else unit.check_time(item.at, "at")
        taken = unit.credit(Sale(item.subject, item.reward, item.reward_id, at))
    except (PolicyError, ApiError) as refused:
        return _refuse_reward(unit, refused)
    return _encode({"credited": [describe_reward(operation.campaign, each) for each in taken]})


def _refuse_reward(unit: Unit, error: PolicyError | ApiError) -> ApiError:
    """Count a reward that is refused."""
    if isinstance(error, LateError):
        unit.late += 1
    else:
        unit.refused += 1
    return InvalidError.from_policy(error) if isinstance(error, PolicyError) else error


@_handles_each(ReadState)
def _read_state(turn: Turn, operation: ReadState) -> tuple[StagedPolicy, State]:
    return turn.unit.policy, turn.unit.state


# --- changes ---------------------------------------------------------------------------------------------------


@_changes(Change)
def _change(turn: Turn, operation: Change) -> Changed[None]:
    before = turn.unit.policy.config
    change_config(turn.unit, operation.change(before))
    return None, {"changed": audit.describe_changes(before, turn.unit.policy.config)}


@_changes(RollBack)
def _roll_back(turn: Turn, operation: RollBack) -> Changed[None]:
    _require_same_campaign(turn, operation)
    restore_model(turn.tx, turn.unit, operation.past, operation.newest_revision)
    return None, {}


@_changes(Erase)
def _erase(turn: Turn, operation: Erase) -> Changed[int | None]:
    _require_same_campaign(turn, operation)
    count = erase(turn.tx, turn.unit, operation)
    return count, {"decisions": count}


@_changes(Import)
def _import(turn: Turn, operation: Import) -> Changed[None]:
    _require_same_campaign(turn, operation)
    adopt(turn.unit, operation.unit)
    turn.look_up_again()  # later operations may name imported decisions
    return None, {}


@_changes(Archive)
def _archive(turn: Turn, operation: Archive) -> Changed[None]:
    archive(turn.tx, turn.unit, operation.archived)
    return None, {}


def _require_same_campaign(turn: Turn, operation: RollBack | Erase | Import) -> None:
    if operation.campaign_id != turn.row.campaign_id:
        raise NotFoundError(f"There is no campaign {operation.campaign!r}")


@_handles(Delete)
def _delete(turn: Turn, run: Sequence[Delete]) -> list[Exception | None]:
    """Delete the campaign; the outcomes end there, because what follows finds no campaign."""
    outcomes: list[Exception | None] = []
    for operation in run:
        if turn.row.archived_at is None:
            outcomes.append(ConflictError(f"Campaign {operation.campaign} is in use; archive it first"))
            continue
        delete_campaign(turn.tx, turn.row.campaign_id)
        audit.add_record(turn.tx, operation.record, turn.now, rounds=turn.row.round)
        turn.cache.forget([turn.row.campaign_id])
        turn.is_deleted = True
        return [*outcomes, None]
    return outcomes


# --- maintenance, which needs no state -------------------------------------------------------------------------


@_handles_each(Create)
def _create(turn: Turn, operation: Create) -> bytes | Exception:
    return answer_repeated_creation(turn.tx, turn.row, operation)


def answer_repeated_creation(tx: Transaction, row: LiveRow, operation: Create) -> bytes | ConflictError:
    """Answer the creation of a campaign whose name is taken: a retry gets the first answer, all else a conflict."""
    if get_creation_hash(tx, row.campaign_id) == operation.request_hash:
        return get_config(tx, row.campaign_id).encode()
    return ConflictError(f"There is already a campaign {row.name!r}; choose another name")


@_handles_each(FinishJob)
def _finish_job(turn: Turn, operation: FinishJob) -> None:
    # After a failover the job's input may be lost; then the job is run again.
    if operation.generation in (None, turn.cache.generation):
        status, estimate, seconds = operation.result
        finish_job(turn.tx, operation.campaign_id, operation.input_round, status, estimate, seconds)
        if turn.loaded_unit is not None:
            turn.loaded_unit.look_for_job_again()


@_handles_each(KeepSnapshot)
def _keep_snapshot(turn: Turn, operation: KeepSnapshot) -> None:
    tx, row, snapshot, state = turn.tx, turn.row, operation.snapshot, operation.snapshot.state
    points = read_snapshot_points(tx, row.campaign_id)
    point = SnapshotPoint(state.round, state.arrived, snapshot.revision)
    if snapshot.campaign_id != row.campaign_id or (points and points[0] >= point):
        return  # another worker was faster
    if snapshot.generation != turn.cache.generation or point.round > row.round or point.arrived > row.arrived:
        return  # this database never had the state
    add_snapshot(
        tx,
        build_snapshot_row(row.campaign_id, snapshot.revision, state, operation.encoded, turn.clock()),
        keep=choose_snapshots_to_keep([older.round for older in points]),
    )
    turn.cache.note_snapshot(row.campaign_id, state.round)


@_handles_each(Reduce)
def _reduce(turn: Turn, operation: Reduce) -> bool:
    return reduce_oldest(turn.tx, turn.row, turn.clock())
