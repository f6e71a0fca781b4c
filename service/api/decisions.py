"""The routes that decide, and those that look up, try or explain a decision.

Those that write are lean: the framework's handling of parameters and answers would cost several times what a durable
decision does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Scope

from service.access.roles import DECIDERS, READERS, allow
from service.analysis.preview import PastDecision, TriedDecision, explain_decision, preview_decision
from service.api.campaigns import check_name
from service.api.fields import Timestamp
from service.base.errors import ErrorDetail, GoneError, NotFoundError
from service.engine import encoding, operations, recovery, requests
from service.engine.worker import Service
from service.storage import reading, rows
from service.storage.transaction import Transaction
from service.web.application import Application
from service.web.bodies import LARGEST_BODY, SMALL_BODY
from service.web.openapi import describe_errors
from service.web.routing import LeanEndpoint

HASHED_AT_ONCE = 100  # of a batch: a millisecond or two, if each has 64 variables
Adder = Callable[[LeanEndpoint], LeanEndpoint]


class Score(BaseModel):
    """The reward expected of an action, and a bonus for what choosing it would teach."""

    action: str
    estimate: float
    bonus: float
    score: float


class DecisionAnswer(BaseModel):
    """The action to take, how likely it was, and why."""

    decision_id: str
    campaign: str
    round: int
    stage: int
    model_version: int
    mode: Literal["warm_start", "optimistic", "control", "imported"] = Field(
        description="how the action was chosen; imported: elsewhere, before the campaign began"
    )
    action: str
    propensity: float | None = Field(description="null if it was imported without one")
    belief: list[float] = Field(description="the probability of each regime")
    scores: list[Score] = Field(description="of the actions that were not excluded")
    decided_at: Timestamp


class SkippedItem(BaseModel):
    """An item that was not decided. All of them together name up to 50 fields; the messages go on."""

    item: int = Field(description="its place in the batch, counted from 0")
    decision_id: str
    error: ErrorDetail


class DecisionBatch(BaseModel):
    decisions: list[DecisionAnswer] = Field(description="in the order of the items")


class PartialBatch(DecisionBatch):
    """The answer to a batch with `on_error: skip`."""

    skipped: list[SkippedItem] = Field(description="the items that were not decided")


class RewardArrival(BaseModel):
    """A reward that came for a decision."""

    reward: float = Field(description="of the decision, from then on")
    amount: float = Field(description="what was sent: less than the reward if it was added to earlier amounts")
    reward_id: str | None
    source: Literal["client", "correction", "subject", "default", "import"]
    received_at: Timestamp


class StoredReward(BaseModel):
    """The reward in force."""

    reward: float
    source: Literal["client", "correction", "subject", "default", "import"]
    received_at: Timestamp


class StoredDecision(DecisionAnswer):
    """A decision as it was made, with its request and its reward."""

    context: dict[str, Any] | None = Field(description="null if it was imported without one")
    excluded_actions: list[str]
    at: Timestamp | None
    reward: StoredReward | None
    reward_history: list[RewardArrival] = Field(
        description="every reward that came, in order; empty unless amounts were added or corrected"
    )


class PreviewRequest(requests.Customer):
    """A request as for `/decide`, without an id."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"context": requests.CONTEXT_EXAMPLE}]})

    at: requests.ReadTime | None = Field(default=None, description="its time, with a time zone; default: now")


class RegimeScores(BaseModel):
    """The score of each action if this regime were certain."""

    regime: int = Field(description="counted from 1")
    label: str | None
    action: str = Field(description="the action with the highest score, which would be chosen")
    scores: list[Score]


class Preview(BaseModel):
    """What `/decide` would answer now. Nothing was decided."""

    campaign: str
    round: int = Field(description="the round that this decision would be")
    stage: int
    model_version: int
    mode: Literal["warm_start", "optimistic", "control"]
    action: str = Field(description="the action that this round's random draw gives")
    propensity: float
    belief_before: list[float] = Field(description="the current belief")
    belief: list[float] = Field(description="the belief after this context")
    scores: list[Score] = Field(description="of the actions that were not excluded")
    regimes: list[RegimeScores] = Field(description="what would be chosen in each regime")
    paused: bool = Field(description="if true, `/decide` would refuse")
    archived: bool = Field(description="if true, `/decide` would refuse")
    estimation_left_out: bool = Field(description="a re-estimation is due but too large for a preview (docs/data.md)")


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"decision_id": "order-1001"}]})

    decision_id: requests.Text


class Explanation(StoredDecision):
    """A decision as it was made, and what the same model would have chosen in each regime."""

    regimes: list[RegimeScores] | None = Field(description="null if the model cannot be rebuilt")
    regimes_missing: str | None = Field(description="why regimes is null")


def make_adder(app: Application) -> Callable[..., Adder]:
    """Make a decorator for routes that come twice: a load balancer can send a campaign to one worker by the path."""

    def add(path: str, body: type[BaseModel], by_path: type[BaseModel], answer: Any, *errors: int) -> Adder:
        description: Any = {"tags": ["decisions"], "response_model": answer, "responses": describe_errors(*errors)}
        largest = LARGEST_BODY if path.endswith("/batch") else SMALL_BODY
        add_plain = app.post_lean(path, body, largest=largest, **description)
        add_by_path = app.post_lean(f"/campaigns/{{name}}{path}", by_path, largest=largest, **description)
        return lambda endpoint: add_by_path(add_plain(endpoint))

    return add


def add_routes(app: Application, service: Service) -> None:
    _add_writing(app, service)
    _add_trying(app, service)
    tags: Any = ["decisions"]

    @app.api.get("/campaigns/{name}/decisions/{decision_id:path}", tags=tags, responses=describe_errors(404, 410))
    @allow(READERS, campaign="path")
    def decision(name: str, decision_id: str) -> StoredDecision:
        """A decision as it was made: its request, answer and explanation, and its reward if one has arrived."""
        with service.store.reading() as tx:
            return load_decision(tx, recovery.get_campaign(tx, name), decision_id, service.campaigns.clock())


def _add_writing(app: Application, service: Service) -> None:
    submit, add = service.submit, make_adder(app)

    @add("/decide", requests.DecideRequest, requests.DecideByPath, DecisionAnswer, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    def decide(body: requests.DecideByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Decide for one customer. The decision is committed before it is returned; a repeated `decision_id` returns
        the same answer."""
        return submit(operations.Decide(check_name(campaign), [(body, encoding.hash_request(body))], False))

    batch_answer = PartialBatch | DecisionBatch

    @add("/decide/batch", requests.DecideBatch, requests.DecideBatchByPath, batch_answer, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    async def decide_batch(body: requests.DecideBatchByPath, campaign: str, scope: Scope) -> bytes:
        """Decide for up to 1,000 customers: all or nothing, and exactly as single calls in this order would. With
        `"on_error": "skip"` bad items are left out, and the others decided."""
        hashes: list[bytes] = []
        for start in range(0, len(body.items), HASHED_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # let others go on
            hashes += encoding.hash_requests(body.items[start : start + HASHED_AT_ONCE])
        items = list(zip(body.items, hashes, strict=True))
        return await submit(operations.Decide(check_name(campaign), items, True, skip=body.on_error == "skip"))


def _add_trying(app: Application, service: Service) -> None:
    @app.api.post("/campaigns/{name}/preview", tags=["decisions"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def preview(name: str, body: PreviewRequest) -> Preview:
        """Try a context: the belief step, the scores and the action, without deciding.

        The answer is what `/decide` would give for the same request now, even if the campaign is paused. Nothing
        changes, and the round does not advance."""
        with service.store.reading() as tx:
            row = recovery.get_campaign(tx, name)
            return describe_preview(name, preview_decision(tx, row, service.campaigns, body))

    @app.api.post("/campaigns/{name}/explain", tags=["decisions"], responses=describe_errors(404, 410, 422))
    @allow(READERS, campaign="path")
    def explain(name: str, body: ExplainRequest) -> Explanation:
        """Why this action? The decision, its request and reward, and what would have been chosen in each regime.

        The model that made the decision is rebuilt from the log. For an old decision this may take seconds."""
        with service.store.reading() as tx:
            row = recovery.get_campaign(tx, name)
            decision = load_decision(tx, row, body.decision_id, service.campaigns.clock())
            past = PastDecision(*(getattr(decision, field) for field in PastDecision._fields))
            regimes, missing = explain_decision(tx, row, service.campaigns, past)
        answer = decision.model_dump() | {"regimes": regimes, "regimes_missing": missing}
        return Explanation.model_validate(answer, from_attributes=True)


def load_decision(tx: Transaction, campaign: rows.LiveRow, decision_id: str, now: int) -> StoredDecision:
    wait = recovery.load_wait(tx, campaign, now)
    row = reading.find_decision(tx, campaign.campaign_id, decision_id, wait)
    if row is None:
        raise NotFoundError(f"Campaign {campaign.name} has no decision {decision_id!r}")
    if row.erased:
        raise GoneError(f"Decision {decision_id!r} was erased")
    stage = (row.round - 1) // recovery.load_config(tx, campaign.campaign_id).stage_length + 1
    history = reading.read_reward_history(tx, campaign.campaign_id, [row.round]).get(row.round, [])
    return StoredDecision.model_validate(describe_logged(row, history) | {"campaign": campaign.name, "stage": stage})


def describe_logged(row: reading.LoggedDecision, history: Sequence[rows.RewardRow] = ()) -> dict[str, Any]:
    """Decode a decision of the log: its request, its explanation, and its reward if there is one."""
    fields = row._asdict()
    return fields | {
        "context": None if row.context is None else msgspec.json.decode(row.context),
        "excluded_actions": msgspec.json.decode(row.excluded_actions or "[]"),
        "propensity": row.propensity or None,
        "reward": None if row.reward is None else fields,
        "reward_history": [
            arrival._asdict() | {"amount": arrival.reward if arrival.amount is None else arrival.amount}
            for arrival in history
        ],
        **msgspec.json.decode(row.explanation),
    }


def describe_preview(name: str, tried: TriedDecision) -> Preview:
    decision = tried.decision._asdict() | {"scores": tried.decision.scores}
    return Preview.model_validate({"campaign": name} | decision | tried._asdict(), from_attributes=True)
