"""`GET /campaigns/{name}/regimes`: what each regime looks like, and whether its label can be trusted."""

from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel, Field
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig, StagedPolicy, State
from policy.regimes import describe_regimes, likeliest_regime, why_no_regimes
from policy.staged import RECENT
from service.access.roles import READERS, allow
from service.api.routes import current
from service.api.schemas import SymbolProbability
from service.engine.recovery import get_campaign
from service.engine.worker import Service
from service.storage.tables import models
from service.storage.transaction import Transaction
from service.web.openapi import describe_errors

__all__ = ["Regimes", "add_regime_routes"]


class LevelShare(BaseModel):
    signal: str
    level: str
    probability: float
    average: Annotated[float, Field(description="over all regimes, by their shares of time")]


class ExpectedReward(BaseModel):
    action: str
    expected_reward: Annotated[float, Field(description="of the model, for the customers seen in this regime")]
    retired: bool


class Regime(BaseModel):
    """What one regime looks like. Shares and means are weighted by the belief in it."""

    regime: int
    label: Annotated[str | None, Field(description="the campaign's own name for it")]
    words: Annotated[str, Field(description="all of it in one sentence")]
    belief: Annotated[float, Field(description="that it reigns now")]
    share: Annotated[float | None, Field(description="of all decisions so far")]
    recent_share: Annotated[float | None, Field(description="of the last `recent_rounds` decisions")]
    long_run_share: Annotated[float, Field(description="that the model expects in the long run")]
    expected_duration: Annotated[float | None, Field(description="in `duration_unit`; null: it never ends")]
    expected_seconds: Annotated[float | None, Field(description="the same in time, if the campaign has a clock")]
    typical: Annotated[list[SymbolProbability], Field(description="the likeliest combinations of the signals' levels")]
    more_often: Annotated[list[LevelShare], Field(description="levels seen more often than on average")]
    best_action: Annotated[str | None, Field(description="by expected reward; null in the warm start")]
    expected_rewards: Annotated[list[ExpectedReward], Field(description="of every action; empty in the warm start")]
    mean_reward: Annotated[float | None, Field(description="observed, whatever the actions")]
    reward_weight: Annotated[float, Field(description="how many rewards that mean stands for")]


class CurrentRegime(BaseModel):
    """The likeliest regime now."""

    regime: int
    label: str | None
    belief: float
    since_round: Annotated[int | None, Field(description="from this round on it has been the likeliest")]


class Regimes(BaseModel):
    """The regimes of the model in force."""

    campaign: str
    round: int
    model_version: int
    duration_unit: Literal["decisions", "periods"]
    recent_rounds: int = RECENT
    current: CurrentRegime | None
    regimes: Annotated[list[Regime], Field(description="empty with one regime, or before the first estimate")]
    note: Annotated[str | None, Field(description="why there are none")]
    labels_note: Annotated[str | None, Field(description="why the labels should be checked")]


def add_regime_routes(app: FastAPI, service: Service) -> None:
    """The route about regimes."""

    @app.get("/campaigns/{name}/regimes", tags=["models"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def regimes(name: str) -> Regimes:
        """What each regime looks like: its customers, its share of time, what it earns and its best action."""
        policy, state = await current(service, name)
        return await run_in_threadpool(_regimes, service, policy, state)


def _regimes(service: Service, policy: StagedPolicy, state: State) -> Regimes:
    config = policy.config
    described, likeliest = describe_regimes(policy, state), likeliest_regime(state)
    labels = {regime.regime: regime.label for regime in described}
    labels_note = None
    if described and config.regime_labels and config.beliefs.estimator != "given":
        with service.store.reading() as tx:
            labels_note = _labels_note(tx, get_campaign(tx, config.name)[0].campaign_id, config, len(described))
    return Regimes(
        campaign=config.name,
        round=state.round,
        model_version=state.model_version,
        duration_unit="periods" if config.clock else "decisions",
        current=CurrentRegime(**likeliest._asdict(), label=labels[likeliest.regime]) if described else None,
        regimes=[Regime.model_validate(regime, from_attributes=True) for regime in described],
        note=why_no_regimes(policy, state),
        labels_note=labels_note,
    )


def _labels_note(tx: Transaction, campaign: int, config: CampaignConfig, regimes: int) -> str | None:
    """Labels follow the numbers, which re-estimations keep (R6): what they cannot follow is told here."""
    revisions, labels = tx.revisions_after(campaign, 0), list(config.regime_labels)
    given = None
    for row in reversed(revisions):
        if msgspec.json.decode(row.config).get("regime_labels") != labels:
            break
        given = row
    if given is None:  # they were changed just now
        return None
    went_back = any(row.restored is not None and row.revision > given.revision for row in revisions)
    check = "Check that they fit, and set regime_labels again if not"
    before = select(models.c.regimes).where(models.c.campaign_id == campaign, models.c.round < given.round)
    estimated = tx.connection.execute(before.where(models.c.kind == "estimation").limit(1)).one_or_none()
    if estimated is None:
        return f"The labels were given before the regimes were estimated. {check}."
    then = int(tx.connection.execute(before.order_by(models.c.version.desc()).limit(1)).scalar_one())
    if then != regimes:
        words = f"with {then} regime{'s' if then > 1 else ''} in use, at round {given.round}; now there are {regimes}"
        return f"The labels were given {words}. Regimes keep their numbers where they can. {check}."
    return f"The campaign was rolled back after the labels were given. {check}." if went_back else None
