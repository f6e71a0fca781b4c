"""`GET /campaigns/{name}/regimes`: what each regime looks like, and whether its label can be trusted."""

from typing import Annotated, Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State
from policy.hmm import RECENT
from service.access.roles import READERS, allow
from service.analysis.regimes import RegimesSummary, summarize_regimes
from service.api.models import SymbolProbability, load_current
from service.engine.worker import Service
from service.web.openapi import describe_errors


class LevelShare(BaseModel):
    signal: str
    level: str
    probability: float
    average: Annotated[float, Field(description="average over all regimes, weighted by their shares")]


class ExpectedReward(BaseModel):
    action: str
    expected_reward: Annotated[float, Field(description="by the model, for the customers seen in this regime")]
    retired: bool


class Regime(BaseModel):
    """What one regime looks like. Shares and means are weighted by the belief in it."""

    regime: int
    label: Annotated[str | None, Field(description="from regime_labels")]
    words: Annotated[str, Field(description="a description in one sentence")]
    belief: Annotated[float, Field(description="probability that it is the current regime")]
    share: Annotated[float | None, Field(description="share of all decisions so far")]
    recent_share: Annotated[float | None, Field(description="share of the last `recent_rounds` decisions")]
    long_run_share: Annotated[float, Field(description="share that the model expects in the long run")]
    expected_duration: Annotated[float | None, Field(description="in `duration_unit`; null if the regime never ends")]
    expected_seconds: Annotated[float | None, Field(description="the same in seconds, if the campaign has a clock")]
    typical: Annotated[list[SymbolProbability], Field(description="the most likely combinations of signal levels")]
    more_often: Annotated[list[LevelShare], Field(description="levels seen more often than on average")]
    best_action: Annotated[str | None, Field(description="by expected reward; null during the warm start")]
    expected_rewards: Annotated[list[ExpectedReward], Field(description="of every action; empty during the warm start")]
    mean_reward: Annotated[float | None, Field(description="observed, over all actions")]
    reward_weight: Annotated[float, Field(description="number of rewards behind that mean")]


class CurrentRegime(BaseModel):
    """The most likely regime now."""

    regime: int
    label: str | None
    belief: float
    since_round: Annotated[int | None, Field(description="it has been the most likely since this round")]


class Regimes(BaseModel):
    """The regimes of the model in force."""

    campaign: str
    round: int
    model_version: int
    duration_unit: Literal["decisions", "periods"]
    recent_rounds: int = RECENT
    current: CurrentRegime | None
    regimes: Annotated[list[Regime], Field(description="empty with one regime, or before the first estimate")]
    note: Annotated[str | None, Field(description="why there are no regimes")]
    labels_note: Annotated[str | None, Field(description="why the labels should be checked")]


def add_regime_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    def summarize(policy: StagedPolicy, state: State) -> RegimesSummary:
        with service.store.reading() as tx:
            return summarize_regimes(tx, policy, state)

    @app.get("/campaigns/{name}/regimes", tags=["models"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def regimes(name: str) -> Regimes:
        """What each regime looks like: its customers, its share of time, what it earns and its best action."""
        policy, state = await load_current(service, name)
        summary = await run_in_threadpool(summarize, policy, state)
        labels = {regime.regime: regime.label for regime in summary.regimes}
        now = summary.current
        return Regimes(
            campaign=name,
            round=state.round,
            model_version=state.model_version,
            duration_unit="periods" if policy.config.clock else "decisions",
            current=CurrentRegime(**now._asdict(), label=labels[now.regime]) if labels else None,
            regimes=[Regime.model_validate(regime, from_attributes=True) for regime in summary.regimes],
            note=summary.note,
            labels_note=summary.labels_note,
        )
