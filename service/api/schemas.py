"""What the API takes and gives: request and response models, with examples that work as they stand."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from policy import CampaignConfig
from policy.config import MOST_ROUNDS, PLAIN_TEXT
from service import __version__
from service.base.errors import ErrorDetail
from service.engine.requests import RequestBody

__all__ = [
    "CampaignPage",
    "CampaignState",
    "DecisionAnswer",
    "DecisionBatch",
    "Health",
    "Imported",
    "Model",
    "RewardAnswer",
    "RewardResults",
    "StagePage",
    "StoredDecision",
]


class Score(BaseModel):
    """What an action was worth: the reward expected of it, and what learning about it is worth."""

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
    propensity: Annotated[float | None, Field(description="null if it was imported without")]
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
    """What became of one item: its committed reward, or why it was refused."""

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

    context: Annotated[dict[str, Any] | None, Field(description="null if it was imported without")]
    excluded_actions: list[str]
    at: str | None
    reward: StoredReward | None


PATCH_EXAMPLE: dict[str, Any] = {
    "rewards": {"wait_seconds": 259_200},
    "control": {"share": 0.1},
    "bonus": {"scale": 0.8},
}
CLONE_EXAMPLE: dict[str, Any] = {"name": "spring-offers-2", "stage_length": 50}


class ActionRequest(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"action": "message"}]})

    action: Annotated[str, Strict(), Field(min_length=1, max_length=100, pattern=PLAIN_TEXT)]


class RollbackRequest(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"model_version": 3}]})

    model_version: Annotated[int, Strict(), Field(ge=1, le=MOST_ROUNDS, description="as GET …/stages lists them")]


class Imported(BaseModel):
    """What was imported, now or when it was first sent."""

    campaign: str
    import_id: str
    rows: int
    rewards: int


class CampaignSummary(BaseModel):
    """Where a campaign stands."""

    name: str
    paused: bool
    archived_at: str | None
    round: Annotated[int, Field(description="decisions so far")]
    stage: Annotated[int, Field(description="of the last decision")]
    model_version: int
    regimes: Annotated[int, Field(description="in use")]
    belief: list[float]
    rewards_received: int
    rewards_waiting: Annotated[int, Field(description="committed, folded by the next stage update")]
    updated_at: Annotated[str, Field(description="the last decision or reward")]
    failure: Annotated[
        str | None, Field(description="of the last update, if it failed: the campaign goes on without it")
    ]


class CampaignState(CampaignSummary):
    created_at: str
    config: CampaignConfig


class CampaignPage(BaseModel):
    campaigns: list[CampaignSummary]
    next_cursor: Annotated[str | None, Field(description="for the next page; null on the last")]


class Revision(BaseModel):
    """A change of a campaign."""

    revision: int
    round: Annotated[int, Field(description="decisions made before it")]
    changed: Annotated[dict[str, Any], Field(description="the fields that got another value, with that value")]
    restored_model_version: Annotated[int | None, Field(description="of a rollback: the model it went back to")]
    erased_decisions: Annotated[int | None, Field(description="of an erasure: how many decisions were erased")]
    created_at: str


class RevisionPage(BaseModel):
    revisions: Annotated[list[Revision], Field(description="newest first")]
    next_cursor: int | None


class Stage(BaseModel):
    """One model: of a stage update, a re-estimation, an action that was added, a rollback, or an erasure."""

    model_version: int
    kind: Literal["update", "estimation", "actions", "rollback", "erasure"]
    round: Annotated[int, Field(description="decisions made before it")]
    stage: Annotated[int, Field(description="the first stage that it decides in")]
    rewards_folded: int
    regimes: int
    seconds: Annotated[float, Field(description="it took to make")]
    published_at: str


class StagePage(BaseModel):
    stages: Annotated[list[Stage], Field(description="newest first")]
    next_cursor: int | None


class Coefficient(BaseModel):
    """What a column of the feature map adds to the expected reward."""

    term: str
    action: Annotated[str | None, Field(description="only for this action")]
    level: Annotated[str | None, Field(description="only at this level of the term's variable")]
    regime: Annotated[int | None, Field(description="only in this regime, counted from 1")]
    estimate: float
    standard_error: float | None


class SymbolProbability(BaseModel):
    symbol: Annotated[dict[str, str], Field(description="a level of each signal")]
    probability: float


class Regime(BaseModel):
    """What one regime looks like."""

    regime: int
    label: Annotated[str | None, Field(description="the campaign's own name for it")]
    share: Annotated[float, Field(description="of the time, in the long run")]
    expected_duration: Annotated[float | None, Field(description="in decisions, or in periods of the clock")]
    initial: float
    transition: Annotated[list[float], Field(description="to each regime")]
    signals: Annotated[dict[str, dict[str, float]], Field(description="how often each level of each signal is seen")]
    emission: list[SymbolProbability]


class Candidate(BaseModel):
    """A number of regimes that was tried: what it gained over one regime, in nats."""

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
    regimes: Annotated[list[Regime], Field(description="empty with one regime, or before the first estimate")]
    guarded: Annotated[bool, Field(description="more regimes were tried and do not pay")]
    noise_std: float | None
    ridge: float
    centre: Annotated[float, Field(description="expected reward = centre + the coefficients of the active columns")]
    coefficients: list[Coefficient]
    candidates: list[Candidate]


class Health(BaseModel):
    """The service is up, and which one it is."""

    status: Literal["ok"] = "ok"
    version: str = __version__
