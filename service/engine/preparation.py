"""Prepare operations that take long, in a thread and without a lock: rollbacks, imports and erasures.

Nothing is written here. The operation carries what was prepared; carried out under the lock, it is quick.
"""

from collections.abc import Collection, Iterable, Sequence

from service.base.errors import FieldProblem, InvalidError
from service.engine.campaigns import Campaigns
from service.engine.fold import Replay
from service.engine.imports import Importing
from service.engine.operations import Erase, Import, ReadState, RollBack
from service.engine.recovery import get_campaign, load_first_position, rebuild_model, recover_position
from service.engine.requests import ImportRow
from service.engine.work import Entry
from service.storage.campaigns import read_revision_page
from service.storage.erasure import read_subject_rounds
from service.storage.events import count_events
from service.storage.models import read_model_page


def prepare_rollback(campaigns: Campaigns, name: str, version: int) -> RollBack | ReadState:
    """Rebuild an earlier model (R21). If the model in force is that one already, the request is a retry."""
    with campaigns.store.scanning() as tx:
        row = get_campaign(tx, name)
        stored = read_model_page(tx, row.campaign_id, version + 1, 1)
        if not 1 <= version < row.model_version or not stored:
            allowed = f"1 to {row.model_version - 1}" if row.model_version > 1 else "there is no earlier model yet"
            problem = f"{version} is no earlier model"
            raise InvalidError([FieldProblem(field="model_version", message=problem, allowed=allowed)])
        (newest,) = read_revision_page(tx, row.campaign_id, None, 1)
        (in_force,) = read_model_page(tx, row.campaign_id, None, 1)
        if (newest.restored, in_force.kind) == (version, "rollback"):
            return ReadState(name)
        return RollBack(name, row.campaign_id, rebuild_model(tx, row, version), newest.revision)


def prepare_import(campaigns: Campaigns, name: str, import_id: str, rows: Iterable[ImportRow]) -> Import:
    """Follow past decisions from elsewhere in memory, as if the campaign had made them."""

    def find_known_ids(names: Sequence[str]) -> Collection[str]:
        with campaigns.store.reading() as tx:
            row = get_campaign(tx, name)
            known = tx.get_known_decisions([(row.campaign_id, decision_id) for decision_id in names])
            return {decision.decision_id for decision in known}

    with campaigns.store.reading() as tx:  # a short one: databases end transactions that are idle for long
        row = get_campaign(tx, name)
        position = recover_position(tx, row.campaign_id)  # not the cached one, which a gather may be appending to
        entry = Entry(row, position, None, count_events(tx, row.campaign_id))
        unit = Importing(tx, row, entry, campaigns.owner, campaigns.clock())
    return Import(name, row.campaign_id, unit, unit.take_all(import_id, rows, find_known_ids))


def prepare_erasure(campaigns: Campaigns, name: str, subject: str) -> Erase | None:
    """Fold the campaign as if it had never decided for a subject; None if it has not."""
    with campaigns.store.scanning() as tx:
        row = get_campaign(tx, name)
        rounds = read_subject_rounds(tx, row.campaign_id, subject)
        if not rounds:
            return None
        start = load_first_position(tx, row.campaign_id)
        replay = Replay(start, tx, row.campaign_id, erasing=rounds)
        return Erase(name, row.campaign_id, subject, rounds, replay.run(), replay.inputs)
