"""The routes that decide and take rewards, and the one that looks up a decision.

Those that write are lean: the framework's handling of parameters and answers would cost several times what a durable
decision does.
"""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from service.access.roles import DECIDERS, READERS, allow
from service.base.errors import ErrorDetail, GoneError, NotFoundError
from service.base.times import format_timestamp
from service.engine.campaigns import Campaigns
from service.engine.encoding import encode_decisions, hash_request, hash_requests
from service.engine.operations import Decide, Reward
from service.engine.recovery import get_campaign, load_config
from service.engine.requests import DecideBatch, DecideRequest, RewardBatch, RewardRequest
from service.engine.worker import Service
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction
from service.web.application import Answer, Application
from service.web.openapi import describe_errors


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


class DecisionBatch(BaseModel):
    decisions: list[DecisionAnswer]


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
    submit = service.submit

    @app.post_lean(
        "/decide", tags=["decisions"], response_model=DecisionAnswer, responses=describe_errors(404, 409, 410, 422)
    )
    @allow(DECIDERS, campaign="body")
    def decide(request: DecideRequest) -> Answer:
        """Decide for one customer. The decision is committed before it is returned; a repeated `decision_id` returns
        the same answer."""
        return submit(Decide(request.campaign, [(request, hash_request(request))], False))

    @app.post_lean(
        "/reward", tags=["decisions"], response_model=RewardAnswer, responses=describe_errors(404, 409, 410, 422)
    )
    @allow(DECIDERS, campaign="body")
    def reward(request: RewardRequest) -> Answer:
        """Report what a decision earned. The reward is committed, and the next stage update learns from it."""
        return submit(Reward(request.campaign, [request], False))

    @app.post_lean(
        "/decide/batch", tags=["decisions"], response_model=DecisionBatch, responses=describe_errors(404, 409, 410, 422)
    )
    @allow(DECIDERS, campaign="body")
    def decide_batch(request: DecideBatch) -> Answer:
        """Decide for up to 1,000 customers: all or nothing, and exactly as single calls in this order would."""
        items = list(zip(request.items, hash_requests(request.items), strict=True))
        return submit(Decide(request.campaign, items, True))

    @app.post_lean(
        "/reward/batch", tags=["decisions"], response_model=RewardResults, responses=describe_errors(404, 422)
    )
    @allow(DECIDERS, campaign="body")
    def reward_batch(request: RewardBatch) -> Answer:
        """Report up to 1,000 rewards, with a result for each."""
        return submit(Reward(request.campaign, request.items, True))

    @app.get(
        "/campaigns/{name}/decisions/{decision_id:path}",
        tags=["decisions"],
        name="decision",
        responses=describe_errors(404, 410),
    )
    @allow(READERS, campaign="path")
    def get_decision(name: str, decision_id: str) -> StoredDecision:
        """A decision as it was made: its request, answer and explanation, and its reward if one has arrived."""
        with service.store.reading() as tx:
            return load_decision(tx, service.campaigns, get_campaign(tx, name), decision_id)


def load_decision(tx: Transaction, campaigns: Campaigns, campaign: LiveRow, decision_id: str) -> StoredDecision:
    """Load a decision with its request, its answer and its reward."""
    row = campaigns.cache.get_decision(tx, campaign, decision_id)
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
