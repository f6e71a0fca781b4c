"""Changes to a campaign that are not decisions or rewards: configuration, rollback, erasure, import, archiving."""

import time

from msgspec.structs import replace

from policy import CampaignConfig, StagedPolicy, encode
from policy.changes import adapt_state, resume_after_erasure, roll_back
from service.base.errors import ConflictError
from service.engine.course import Position
from service.engine.fold import MissingInput, Replay
from service.engine.operations import Erase
from service.engine.recovery import build_snapshot_row
from service.engine.unit import Unit
from service.storage.campaigns import set_archived
from service.storage.erasure import erase_rounds, read_subject_rounds
from service.storage.rows import RevisionRow
from service.storage.snapshots import add_snapshot
from service.storage.transaction import Transaction


def change_config(unit: Unit, config: CampaignConfig) -> None:
    """Use another configuration from the next round on (R14)."""
    unit.require_open("cannot change")
    if config == unit.policy.config:
        return
    version, started, policy = unit.state.model_version, time.perf_counter(), StagedPolicy(config)
    unit.state, unit.policy = adapt_state(unit.policy, policy, unit.state), policy
    unit.record_model("actions", version, time.perf_counter() - started)
    if unit.state.model_version > version:
        unit.drop_job()
    _add_revision(unit)


def restore_model(tx: Transaction, unit: Unit, past: Position, newest_revision: int) -> None:
    """Put an earlier model in force again (R21). It was rebuilt when `newest_revision` was the newest one."""
    unit.require_open("cannot change")
    if _has_erasure_after(tx, unit, newest_revision):
        raise ConflictError(f"Decisions of campaign {unit.row.name} were erased just now; try again")
    version, started = unit.state.model_version, time.perf_counter()
    unit.state = roll_back(unit.policy, unit.state, past.policy, past.state)
    unit.record_model("rollback", version, time.perf_counter() - started)
    unit.drop_job()
    _add_revision(unit, restored=past.state.model_version)


def erase(tx: Transaction, unit: Unit, operation: Erase) -> int | None:
    """Erase all decisions for a subject, and all that was learned from them (R22); return how many there were.

    The operation has the campaign at an earlier position, folded as if the rounds had never been. Only the log after it
    is folded here. Returns None if that is impossible, because of another erasure or a rollback since then.
    """
    campaign, started, version = unit.row.campaign_id, time.perf_counter(), unit.state.model_version
    if _has_erasure_after(tx, unit, operation.prepared.revision):
        return None
    # Retention may have removed the subject from some rounds meanwhile; the request was about those too.
    rounds = sorted({*operation.rounds, *read_subject_rounds(tx, campaign, operation.subject)})
    try:
        replay = Replay(operation.prepared, tx, campaign, erasing=rounds, inputs=operation.inputs)
        replay.run()
    except MissingInput:
        return None
    reached = replay.revision, replay.state.round, replay.state.arrived
    if reached != (unit.revision, unit.state.round, unit.state.arrived):
        raise RuntimeError(f"the log of campaign {unit.row.name!r} cannot be folded; run verify")
    erase_rounds(tx, campaign, rounds)  # after everything that can fail
    is_erased = set(rounds)
    unit.known = {
        name: decision._replace(erased=True, reward=None) if decision.round in is_erased else decision
        for name, decision in unit.known.items()
    }
    unit.state = resume_after_erasure(unit.policy, replay.state)._replace(model_version=version + 1)
    unit.record_model("erasure", version, time.perf_counter() - started)
    unit.drop_job()
    _add_revision(unit, erased=len(rounds))
    # Now, not in the background: no older snapshot can be used any more.
    add_snapshot(tx, build_snapshot_row(campaign, unit.revision, unit.state, encode(unit.state), unit.now), keep=())
    return len(rounds)


def adopt(unit: Unit, other: Unit) -> None:
    """Take over what another unit of work has done in memory to the same campaign, from the same position."""
    unit.require_open("cannot change")
    if unit.row.version != other.row.version or unit.has_changed:
        raise ConflictError(f"Campaign {unit.row.name} was changed meanwhile; try again")
    progress, unit.state = other.progress, other.state
    unit.progress = replace(
        unit.progress,
        timings=progress.timings,
        last_at=progress.last_at,
        failure=progress.failure,
        announced=progress.announced,
    )
    unit.rows.extend(other.rows)
    unit.now = max(unit.now, other.now)  # the time of those rows
    unit.flush()


def archive(tx: Transaction, unit: Unit, archived: bool) -> None:
    """Archive the campaign, or reopen it."""
    if archived != (unit.row.archived_at is not None):
        unit.row = unit.row._replace(archived_at=unit.now if archived else None)
        set_archived(tx, unit.row.campaign_id, unit.row.archived_at)


def _has_erasure_after(tx: Transaction, unit: Unit, revision: int) -> bool:
    unit.flush()
    return any(row.erased is not None for row in tx.read_revisions(unit.row.campaign_id, revision))


def _add_revision(unit: Unit, restored: int | None = None, erased: int | None = None) -> None:
    unit.revision += 1
    unit.rows.revisions.append(
        RevisionRow(
            campaign_id=unit.row.campaign_id,
            revision=unit.revision,
            round=unit.state.round,
            arrived=unit.state.arrived,
            config=unit.policy.config.model_dump_json(),
            restored=restored,
            erased=erased,
            created_at=unit.now,
        )
    )
