"""The routes about a person: what is stored about them, and its erasure (R22).

The person is named in the body, never in an address, and in no log.
"""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from service.access.keys import get_key_campaigns, make_record
from service.access.roles import ADMINS, allow
from service.api.decisions import RewardArrival, StoredReward, describe_logged
from service.api.fields import Timestamp
from service.base.errors import NotFoundError
from service.engine import preparation, recovery, requests
from service.engine.worker import Service
from service.storage import audit, erasure, reading
from service.storage.transaction import Transaction
from service.web.application import Application
from service.web.openapi import describe_errors

log = logging.getLogger("undercurrent")


class SubjectRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"subject": "customer-4711"}]})

    subject: requests.Text = Field(description="as it was given to /decide")


class Erasure(BaseModel):
    campaign: str
    erased_decisions: int


class Erasures(BaseModel):
    """What was erased, and where. A repeated request has nothing left to erase."""

    erased_decisions: int
    campaigns: list[Erasure]


class KeptDecision(BaseModel):
    """A stored decision about the person."""

    decision_id: str
    round: int
    decided_at: Timestamp
    at: Timestamp | None
    context: dict[str, Any] | None
    excluded_actions: list[str]
    mode: str
    action: str
    propensity: float | None
    belief: list[float]
    scores: list[dict[str, Any]]
    reward: StoredReward | None
    reward_history: list[RewardArrival]


class Kept(BaseModel):
    campaign: str
    decisions: list[KeptDecision]


class SubjectData(BaseModel):
    """Everything stored about a person, in the campaigns that the key covers."""

    subject: str
    campaigns: list[Kept]


def add_routes(app: Application, service: Service) -> None:
    @app.api.post("/subjects/erase", tags=["subjects"], responses=describe_errors(422))
    @allow(ADMINS, campaign="list")
    async def erase(body: SubjectRequest, request: Request) -> Erasures:
        """Erase a person's contexts and rewards, and what was learned from them, in every campaign that the key covers.

        Decisions keep their round, id and action. Each campaign's model is rebuilt from the remaining data. This takes
        as long as folding its whole log; the campaign goes on deciding meanwhile.
        """
        names = await run_in_threadpool(_find_campaigns, service, body.subject, request)
        counts = {name: await _erase(service, name, body.subject, request) for name in names}
        if not await run_in_threadpool(service.store.empty_journal):
            log.warning("SQLite's journal keeps erased data until it is overwritten, because of a long read")
        campaigns = [Erasure(campaign=name, erased_decisions=count) for name, count in counts.items() if count]
        return Erasures(erased_decisions=sum(counts.values()), campaigns=campaigns)

    @app.api.post("/subjects/export", tags=["subjects"], responses=describe_errors(422))
    @allow(ADMINS, campaign="list")
    def export(body: SubjectRequest, request: Request) -> SubjectData:
        """Everything stored about a person, to answer their request for access."""
        with service.store.reading() as tx:
            names = erasure.read_subject_campaigns(tx, body.subject, get_key_campaigns(request.scope))
            rows = {name: _read_decisions(service, tx, name, body.subject) for name in names}
            kept = [{"campaign": name, "decisions": _describe_all(tx, name, rows[name])} for name in names]
        count = sum(map(len, rows.values()))
        record = make_record(request.scope, "export subject", campaigns=names, decisions=count)
        with service.store.writing() as tx:  # no export without a record
            audit.add_record(tx, record, service.campaigns.clock())
        audit.log_record(record)
        return SubjectData.model_validate({"subject": body.subject, "campaigns": kept})


def _read_decisions(service: Service, tx: Transaction, name: str, subject: str) -> list[reading.LoggedDecision]:
    row = recovery.get_campaign(tx, name)
    wait = recovery.load_wait(tx, row, service.campaigns.clock())
    return reading.read_subject_decisions(tx, row.campaign_id, subject, wait)


def _describe_all(tx: Transaction, name: str, rows: Sequence[reading.LoggedDecision]) -> list[dict[str, Any]]:
    campaign = recovery.get_campaign(tx, name).campaign_id
    history = reading.read_reward_history(tx, campaign, [row.round for row in rows])
    return [describe_logged(row, history.get(row.round, [])) for row in rows]


def _find_campaigns(service: Service, subject: str, request: Request) -> list[str]:
    with service.store.reading() as tx:
        return erasure.read_subject_campaigns(tx, subject, get_key_campaigns(request.scope))


async def _erase(service: Service, campaign: str, subject: str, request: Request) -> int:
    """Erase a person from a campaign; return the number of decisions erased."""
    record, count = make_record(request.scope, "erase", campaign), None
    while count is None:  # another erasure came first, which this one's fold does not include
        try:
            operation = await run_in_threadpool(preparation.prepare_erasure, service.campaigns, campaign, subject)
            count = 0 if operation is None else await service.submit(replace(operation, record=record))
        except NotFoundError:  # the campaign was deleted meanwhile
            return 0
    if count:
        audit.log_record(record, decisions=count)
    return int(count)
