"""The routes that take rewards: of a decision, amounts that add up, corrections, and rewards that name a subject."""

from collections.abc import Awaitable
from typing import Literal

from pydantic import BaseModel, Field
from starlette.types import Scope

from service.access.roles import DECIDERS, allow
from service.api.campaigns import check_name
from service.api.decisions import make_adder
from service.base.errors import ErrorDetail
from service.engine import operations, requests
from service.engine.worker import Service
from service.web.application import Application


class RewardAnswer(BaseModel):
    """The reward is committed; the next stage update learns from it."""

    decision_id: str
    campaign: str
    round: int
    reward: float = Field(description="what the decision has earned altogether")
    source: Literal["client", "correction", "subject", "default", "import"]
    received_at: str


class IdentifiedReward(RewardAnswer):
    """A reward that was sent with an id."""

    amount: float = Field(description="what was sent")
    reward_id: str


class RewardResult(BaseModel):
    """The result of one item: its committed reward, or why it was refused."""

    decision_id: str
    committed: IdentifiedReward | RewardAnswer | None = None
    error: ErrorDetail | None = None


class RewardResults(BaseModel):
    results: list[RewardResult]


class CreditAnswer(BaseModel):
    """The decisions that the reward was credited to, in order; their amounts add up to it."""

    credited: list[IdentifiedReward]


def add_routes(app: Application, service: Service) -> None:
    submit, add = service.submit, make_adder(app)
    either = IdentifiedReward | RewardAnswer

    @add("/reward", requests.RewardRequest, requests.RewardByPath, either, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    def reward(body: requests.RewardByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Report what a decision earned. The reward is committed, and the next stage update learns from it.

        The first reward of a decision counts, and an equal one changes nothing. With `"mode": "add"` amounts add up;
        each has its own `reward_id`."""
        return submit(operations.Reward(check_name(campaign), [body], False))

    @add("/reward/correct", requests.CorrectionRequest, requests.CorrectionByPath, IdentifiedReward, 404, 409, 410, 422)
    @allow(DECIDERS, campaign="body")
    def correct_reward(body: requests.CorrectionByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Correct what a decision earned: a cancelled sale, or one after the wait. Possible within
        `rewards.correct_seconds` after the decision."""
        return submit(operations.Reward(check_name(campaign), [body], False))

    @add("/reward/subject", requests.SubjectRewardRequest, requests.SubjectRewardByPath, CreditAnswer, 404, 409, 422)
    @allow(DECIDERS, campaign="body")
    def credit_reward(body: requests.SubjectRewardByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Report what a person earned without naming a decision: it is added to the last or first of their decisions
        within `rewards.wait_seconds`, or evenly to all, as `rewards.credit` says."""
        return submit(operations.Credit(check_name(campaign), body))

    @add("/reward/batch", requests.RewardBatch, requests.RewardBatchByPath, RewardResults, 404, 422)
    @allow(DECIDERS, campaign="body")
    def reward_batch(body: requests.RewardBatchByPath, campaign: str, scope: Scope) -> Awaitable[bytes]:
        """Report up to 1,000 rewards, with a result for each."""
        return submit(operations.Reward(check_name(campaign), body.items, True))
