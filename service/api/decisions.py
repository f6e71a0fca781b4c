"""The routes that decide and take rewards, and the one that looks up a decision.

Those that write are lean: the framework's handling of parameters and answers would cost several times what a durable
decision does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field
from starlette.types import Scope

from service.access.roles import DECIDERS, READERS, allow
from service.api.campaigns import check_name
from service.base.errors import ErrorDetail, GoneError, NotFoundError
from service.base.times import format_timestamp
from service.engine.encoding import encode_decisions, hash_request, hash_requests
from service.engine.operations import Decide, Reward
from service.engine.recovery import get_campaign, load_config
from service.engine.requests import (
    DecideBatch,
    DecideBatchByPath,
    DecideByPath,
    DecideRequest,
    RewardBatch,
    RewardBatchByPath,
    RewardByPath,
    RewardRequest,
)
from service.engine.worker import Service
from service.storage.reading import find_decision
from service.storage.rows import LiveRow
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
    mode: Annotated[
        Literal["warm_start", "optimistic", "control", "imported"],
        Field(description="how the action was chosen; imported: elsewhere, before the campaign began"),
    ]
    action: str
    propensity: Annotated[float | None, Field(description="null if it was imported without one")]
    belief: Annotated[list[float], Field(description="the probability of each regime")]
    scores: Annotated[list[Score], Field(description="of the actions that were not excluded")]
    decided_at: str


class SkippedItem(BaseModel):
    """An item that was not decided. All of them together name up to 50 fields; the messages go on."""

    item: Annotated[int, Field(description="its place in the batch, counted from 0")]
    decision_id: str
    error: ErrorDetail


class DecisionBatch(BaseModel):
    decisions: Annotated[list[DecisionAnswer], Field(description="in the order of the items")]


class PartialBatch(DecisionBatch):
    """The answer to a batch with `on_error: skip`."""

    skipped: Annotated[list[SkippedItem], Field(description="the items that were not decided")]


class RewardAnswer(BaseModel):
    """The reward is committed; the next stage update learns from it."""

    decision_id: str
    campaign: str
    round: int
    reward: float
    source: Literal["client", "default", "import"]
    received_at: str


class RewardResult(BaseModel):
    """The result of one item: its committed reward, or why it was refused."""

    decision_id: str
    committed: RewardAnswer | None = None
    error: ErrorDetail | None = None


class RewardResults(BaseModel):
    results: list[RewardResult]


class StoredReward(BaseModel):
    reward: float
    source: Literal["client", "default", "import"]
    received_at: str


class StoredDecision(DecisionAnswer):
    """A decision as it was made, with its request and its reward."""

    context: Annotated[dict[str, Any] | None, Field(description="null if it was imported without one")]
    excluded_actions: list[str]
    at: str | None
    reward: StoredReward | None


def add_decision_routes(app: Application, service: Service) -> None:
    """Add the routes. Those that write come twice: a load balancer can send a campaign to one worker by the path."""
    submit = service.submit

    def add(path: str, body: type[BaseModel], by_path: type[BaseModel], answer: Any, *errors: int) -> Adder:
        description: Any = {"tags": ["decisions"], "response_model": answer, "responses": describe_errors(*errors)}
        largest = LARGEST_BODY if path.endswith("/batch") else SMALL_BODY
        add_plain = app.post_lean(path, body, largest=largest, **description)
        add_by_path = app.post_lean(f"/campaigns/{{name}}{path}", by_path, largest=largest, **description)
        return lambda endpoint: add_by_path(add_plain(endpoint))

    @add("/decide", DecideRequest, DecideByPath, DecisionAnswer, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    def decide(body: DecideByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Decide for one customer. The decision is committed before it is returned; a repeated `decision_id` returns
        the same answer."""
        return submit(Decide(check_name(campaign), [(body, hash_request(body))], False))

    @add("/reward", RewardRequest, RewardByPath, RewardAnswer, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    def reward(body: RewardByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Report what a decision earned. The reward is committed, and the next stage update learns from it."""
        return submit(Reward(check_name(campaign), [body], False))

    @add("/decide/batch", DecideBatch, DecideBatchByPath, PartialBatch | DecisionBatch, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    async def decide_batch(body: DecideBatchByPath, campaign: str, scope: Scope) -> bytes:
        """Decide for up to 1,000 customers: all or nothing, and exactly as single calls in this order would. With
        `"on_error": "skip"` bad items are left out, and the others decided."""
        hashes: list[bytes] = []
        for start in range(0, len(body.items), HASHED_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # let others go on
            hashes += hash_requests(body.items[start : start + HASHED_AT_ONCE])
        items = list(zip(body.items, hashes, strict=True))
        return await submit(Decide(check_name(campaign), items, True, skip=body.on_error == "skip"))

    @add("/reward/batch", RewardBatch, RewardBatchByPath, RewardResults, 404, 422)
    @allow(DECIDERS, campaign="body")
    def reward_batch(body: RewardBatchByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Report up to 1,000 rewards, with a result for each."""
        return submit(Reward(check_name(campaign), body.items, True))

    @app.api.get(
        "/campaigns/{name}/decisions/{decision_id:path}",
        tags=["decisions"],
        name="decision",
        responses=describe_errors(404, 410),
    )
    @allow(READERS, campaign="path")
    def get_decision(name: str, decision_id: str) -> StoredDecision:
        """A decision as it was made: its request, answer and explanation, and its reward if one has arrived."""
        with service.store.reading() as tx:
            return load_decision(tx, get_campaign(tx, name), decision_id)


def load_decision(tx: Transaction, campaign: LiveRow, decision_id: str) -> StoredDecision:
    """Load a decision with its request, its answer and its reward."""
    row = find_decision(tx, campaign.campaign_id, decision_id)
    if row is None:
        raise NotFoundError(f"Campaign {campaign.name} has no decision {decision_id!r}")
    if row.erased:
        raise GoneError(f"Decision {decision_id!r} was erased")
    stage_length = load_config(tx, campaign.campaign_id).stage_length
    reward = {"reward": row.reward, "source": row.source, "received_at": _format_time(row.received_at)}
    return StoredDecision(
        **msgspec.json.decode(encode_decisions(campaign.name, stage_length, [row])[0]),
        context=None if row.context is None else msgspec.json.decode(row.context),
        excluded_actions=msgspec.json.decode(row.excluded_actions or "[]"),
        at=_format_time(row.at),
        reward=None if row.reward is None else StoredReward.model_validate(reward),
    )


def _format_time(micros: int | None) -> str | None:
    return None if micros is None else format_timestamp(micros)
