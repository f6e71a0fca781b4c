"""The routes about a campaign's models: the one in force, those before it, and going back to one of them."""

from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, Strict
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State, describe
from policy.config import MOST_ROUNDS
from service.access.roles import ADMINS, READERS, allow
from service.api.campaigns import CampaignState, apply_change, check_name
from service.api.fields import Limit, NumberCursor, Timestamp
from service.base.errors import UnavailableError
from service.engine import operations, preparation, recovery, requests
from service.engine.worker import Service
from service.storage import models, rows
from service.web.application import Application
from service.web.openapi import describe_errors


class Stage(BaseModel):
    """One model: of a stage update, a re-estimation, an added action, a rollback, or an erasure."""

    model_version: int
    kind: Literal["update", "estimation", "actions", "rollback", "erasure"]
    round: int = Field(description="decisions made before it")
    stage: int = Field(description="the first stage that it decides in")
    rewards_folded: int
    regimes: int
    seconds: float = Field(description="how long it took to compute")
    published_at: Timestamp


class StagePage(BaseModel):
    stages: list[Stage] = Field(description="newest first")
    next_cursor: int | None


class Coefficient(BaseModel):
    """What a column of the feature map adds to the expected reward."""

    term: str
    action: str | None = Field(description="only for this action")
    level: str | None = Field(description="only at this level of the term's variable")
    regime: int | None = Field(description="only in this regime, counted from 1")
    estimate: float
    standard_error: float | None


class SymbolProbability(BaseModel):
    symbol: dict[str, str] = Field(description="a level of each signal")
    probability: float


class ModelRegime(BaseModel):
    """What one regime looks like."""

    regime: int
    label: str | None = Field(description="the campaign's own name for it")
    share: float = Field(description="of the time, in the long run")
    expected_duration: float | None = Field(description="in decisions, or in periods of the clock")
    initial: float
    transition: list[float] = Field(description="to each regime")
    signals: dict[str, dict[str, float]] = Field(description="how often each level of each signal occurs")
    emission: list[SymbolProbability]


class Candidate(BaseModel):
    """A number of regimes that was tried: its gain over a single regime, in nats."""

    regimes: int
    statistics: str
    symbol_gain: float
    reward_gain: float
    in_use: bool


class Model(BaseModel):
    """The model in force, in the campaign's own words."""

    campaign: str
    model_version: int
    round: int
    rewards_folded: int
    regimes: list[ModelRegime] = Field(description="empty with one regime, or before the first estimate")
    guarded: bool = Field(description="more regimes were tried and did not pay")
    noise_std: float | None
    ridge: float
    centre: float = Field(description="expected reward = centre + the coefficients of the active columns")
    coefficients: list[Coefficient]
    candidates: list[Candidate]


class RollbackRequest(requests.RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"model_version": 3}]})

    model_version: Annotated[int, Strict(), Field(ge=1, le=MOST_ROUNDS, description="as GET …/stages lists them")]


def add_routes(app: Application, service: Service) -> None:
    @app.api.get("/campaigns/{name}/model", tags=["models"], name="model", responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def get_model(name: str) -> Model:
        """The model in force: the regimes, and the meaning of each coefficient in the campaign's own words."""
        policy, state = await load_current(service, name)
        return _describe_model(policy, state)

    @app.api.get("/campaigns/{name}/stages", tags=["models"], name="stages", responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def list_stages(name: str, limit: Limit = 50, cursor: NumberCursor = None) -> StagePage:
        """The models so far, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = recovery.get_campaign(tx, name)
            length = recovery.load_config(tx, row.campaign_id).stage_length
            rows = models.read_model_page(tx, row.campaign_id, cursor, limit + 1)
        return StagePage(
            stages=[_describe_stage(model, length) for model in rows[:limit]],
            next_cursor=rows[limit - 1].version if len(rows) > limit else None,
        )

    @app.api.post("/campaigns/{name}/rollback", tags=["models"], responses=describe_errors(404, 409, 422))
    @allow(ADMINS, campaign="path")
    async def rollback(name: str, body: RollbackRequest, request: Request) -> CampaignState:
        """Put an earlier model back in force, as a new version. Rewards folded after it no longer count."""
        version = body.model_version
        operation = await run_in_threadpool(preparation.prepare_rollback, service.campaigns, check_name(name), version)
        return await apply_change(service, request, "rollback", operation, model_version=version)


async def load_current(service: Service, name: str) -> tuple[StagedPolicy, State]:
    """Load a campaign's current policy and state. This works as long as the database can be read."""
    try:
        policy, state = await service.submit(operations.ReadState(check_name(name)))
    except UnavailableError:
        policy, state = await run_in_threadpool(service.campaigns.read_state, name)
    return policy, state


def _describe_stage(row: rows.ModelRow, stage_length: int) -> Stage:
    named = {"model_version": row.version, "stage": row.round // stage_length + 1, "rewards_folded": row.folded}
    return Stage.model_validate(row._asdict() | named)


def _describe_model(policy: StagedPolicy, state: State) -> Model:
    model, labels = describe(policy, state), dict(enumerate(policy.config.regime_labels))
    regimes: list[dict[str, Any]] = []
    if (hmm := model.hmm) is not None:
        regimes = [
            {
                "regime": h + 1,
                "label": labels.get(h),
                "share": hmm.stationary[h],
                "expected_duration": hmm.expected_duration[h],
                "initial": hmm.initial[h],
                "transition": hmm.transition[h],
                "signals": hmm.signal_laws[h],
                "emission": hmm.emission[h],
            }
            for h in range(model.regimes)
        ]
    named = {"campaign": policy.config.name, "rewards_folded": model.folded, "regimes": regimes}
    return Model.model_validate(model._asdict() | named, from_attributes=True)
