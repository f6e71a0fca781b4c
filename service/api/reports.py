"""Reports for people: does a campaign pay, and why is nothing learning?"""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State
from policy.config import MOST_ROUNDS
from service.access.roles import READERS, allow
from service.analysis.checks import Code, Severity
from service.analysis.diagnostics import Diagnosis, diagnose
from service.analysis.report import build_report
from service.api.fields import Timestamp
from service.api.models import load_current
from service.engine.worker import Service
from service.web.application import Application
from service.web.openapi import describe_errors
from service.web.times import QueryTime, make_interval

MAX_VERSIONS = 5
Versions = Annotated[
    list[Annotated[int, Field(ge=1, le=MOST_ROUNDS)]],
    Query(max_length=MAX_VERSIONS, description="models to evaluate, as GET …/stages lists them; may be repeated"),
]


class Refusal(BaseModel):
    """Why there is no number, and what to do about it."""

    code: Literal[
        "no_rewards", "not_eligible", "no_overlap", "too_few",
        "no_control", "mixed_control", "control_near_zero", "erased",
    ]  # fmt: skip
    reason: str
    remedy: str


class Estimate(BaseModel):
    """A number with its 95 % interval."""

    value: float
    standard_error: float
    low: float
    high: float


class Rounds(BaseModel):
    first: int
    last: int


class Decisions(BaseModel):
    total: int
    by_mode: dict[str, int]
    erased: int = Field(description="part of the total, and counted nowhere else")


class Rewards(BaseModel):
    received: int = Field(description="decisions whose reward has come, whether it counts yet or not; no defaults")
    counted: int = Field(description="decisions with a reward that counts, defaults included")
    awaited: int = Field(description="decisions without a reward that counts")
    open: Annotated[
        int,
        Field(
            description="part of awaited: with a default reward, decisions whose wait is not over. Rewards that came"
            " early do not count yet, because they are not like the others"
        ),
    ]
    early: int = Field(description="open decisions whose reward has come; it counts once the wait is over")
    early_count_from: Timestamp | None = Field(description="when the first of them will count, and")
    complete_at: Timestamp | None = Field(description="when the wait of the last open decision is over")
    by_source: dict[str, int] = Field(description="where those that count came from")
    rate: float | None = Field(description="counted / decisions that are neither erased nor open")
    mean: float | None


class ActionRow(BaseModel):
    action: str
    retired: bool
    decisions: int
    rewards: int
    mean_reward: float | None


class Cell(BaseModel):
    """An action in a regime. Each decision is weighted by its belief in that regime."""

    action: str
    decisions: float
    rewards: float = Field(description="weight behind the mean")
    mean_reward: float | None


class RegimeRow(BaseModel):
    """A regime. Each decision is weighted by its belief in it."""

    regime: int
    label: str | None
    decisions: float
    rewards: float = Field(description="weight behind the mean")
    mean_reward: float | None
    actions: list[Cell]


class Regimes(BaseModel):
    """The regimes in use now. Decisions made with a different number of regimes are left out."""

    regimes: list[RegimeRow]
    left_out: int


class Group(BaseModel):
    rewards: int
    mean_reward: float | None = Field(description="weighted if control.share changed")


class Lift(BaseModel):
    """How much more the model's decisions earn than control's, after the warm start and while control was on."""

    control_kind: Literal["uniform", "baseline"] | None
    decided: Group
    control: Group
    difference: Estimate | None = Field(description="per decision; Welch's interval, clustered by subject")
    relative: Estimate | None = Field(description="0.1 means 10 % more than control; Fieller's interval")
    refusal: Refusal | None
    relative_refusal: Refusal | None


class PolicyValue(BaseModel):
    """What a policy would have earned per decision, by three estimators; or why the log cannot tell."""

    policy: Literal["action", "baseline", "model"]
    action: str | None = Field(description="the action that policy `action` always takes")
    model_version: int | None
    after_round: int = Field(description="only later decisions count")
    note: str | None
    decisions: int = Field(description="decisions used")
    effective_sample_size: float = Field(description="how many decisions those are worth after weighting")
    ips: Estimate | None
    snips: Estimate | None
    dr: Estimate | None
    refusal: Refusal | None


class LeftOut(BaseModel):
    """Decisions that say nothing about other policies."""

    erased: int
    imported: int = Field(description="decided elsewhere, with unknown probabilities")
    awaited: int = Field(description="decided here, no reward yet")
    unexplained: int = Field(description="propensity does not follow from the log: run `verify`")


class OffPolicy(BaseModel):
    left_out: LeftOut
    policies: list[PolicyValue]


class Report(BaseModel):
    """A summary of a campaign's decisions in a range of time."""

    campaign: str
    start: str | None = Field(alias="from")
    to: str | None
    rounds: Rounds | None
    decisions: Decisions
    rewards: Rewards
    actions: list[ActionRow]
    regimes: Regimes
    lift: Lift
    off_policy: OffPolicy


class Finding(BaseModel):
    """Something that keeps the campaign from learning, or is worth knowing."""

    code: Code
    severity: Severity
    message: str
    evidence: dict[str, Any] = Field(description="the numbers behind the message")
    advice: str = Field(description="what to do")


class Diagnostics(BaseModel):
    campaign: str
    round: int
    verdict: str = Field(description="in one line")
    findings: list[Finding] = Field(description="worst first")


def add_routes(app: Application, service: Service) -> None:
    @app.api.get("/campaigns/{name}/report", tags=["reports"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def report(
        name: str,
        start: Annotated[QueryTime, Query(alias="from")] = None,
        to: QueryTime = None,
        model_version: Versions = [],  # noqa: B006 - FastAPI copies it
    ) -> Report:
        """The decisions made at or after `from` and before `to`, and what they earned: by action and regime, the lift
        over control, and what other policies would have earned. Where the log cannot tell, the report says why."""
        times = make_interval(start, to)
        now = service.campaigns.clock()
        with service.store.reading() as tx:
            return Report.model_validate(build_report(tx, name, times, model_version, now), from_attributes=True)

    def run(policy: StagedPolicy, state: State) -> Diagnosis:
        with service.store.reading() as tx:
            metrics, campaign = service.campaigns.metrics, policy.config.name
            refused = metrics.refusals.get_share(campaign), metrics.late_rewards.get_share(campaign)
            return diagnose(tx, policy, state, service.campaigns.clock(), *refused)

    @app.api.get("/campaigns/{name}/diagnostics", tags=["campaigns"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def diagnostics(name: str) -> Diagnostics:
        """Why is nothing learning? Missing or constant rewards, signals that do not vary, actions that are never
        eligible, too much or too little exploration, wrong clocks …: what was found, the evidence, and what to do."""
        policy, state = await load_current(service, name)
        diagnosis = await run_in_threadpool(run, policy, state)
        answer = {"campaign": name, "round": state.round, **diagnosis._asdict()}
        return Diagnostics.model_validate(answer, from_attributes=True)
