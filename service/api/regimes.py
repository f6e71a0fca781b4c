"""A campaign's regimes: what each looks like, whether its label can be trusted, and the alerts about changes."""

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State
from policy.hmm import RECENT
from service.access.roles import READERS, allow
from service.analysis.regimes import RegimesSummary, summarize_regimes
from service.api.fields import Limit, NumberCursor, Timestamp
from service.api.models import SymbolProbability, load_current
from service.engine import recovery, webhooks
from service.engine.worker import Service
from service.storage.events import AlertRow, read_alert_page
from service.web.application import Application
from service.web.openapi import describe_errors


class LevelShare(BaseModel):
    signal: str
    level: str
    probability: float
    average: float = Field(description="average over all regimes, weighted by their shares")


class ExpectedReward(BaseModel):
    action: str
    expected_reward: float = Field(description="by the model, for the customers seen in this regime")
    retired: bool


class Regime(BaseModel):
    """What one regime looks like. Shares and means are weighted by the belief in it."""

    regime: int
    label: str | None = Field(description="from regime_labels")
    words: str = Field(description="a description in one sentence")
    belief: float = Field(description="probability that it is the current regime")
    share: float | None = Field(description="share of all decisions so far")
    recent_share: float | None = Field(description="share of the last `recent_rounds` decisions")
    long_run_share: float = Field(description="share that the model expects in the long run")
    expected_duration: float | None = Field(description="in `duration_unit`; null if the regime never ends")
    expected_seconds: float | None = Field(description="the same in seconds, if the campaign has a clock")
    typical: list[SymbolProbability] = Field(description="the most likely combinations of signal levels")
    more_often: list[LevelShare] = Field(description="levels seen more often than on average")
    best_action: str | None = Field(description="by expected reward; null during the warm start")
    expected_rewards: list[ExpectedReward] = Field(description="of every action; empty during the warm start")
    mean_reward: float | None = Field(description="observed, over all actions")
    reward_weight: float = Field(description="number of rewards behind that mean")


class NamedRegime(BaseModel):
    """A regime, counted from 1, and its current label."""

    regime: int
    label: str | None


class CurrentRegime(NamedRegime):
    """The most likely regime now."""

    belief: float
    since_round: int | None = Field(description="it has been the most likely since this round")


class Regimes(BaseModel):
    """The regimes of the model in force."""

    campaign: str
    round: int
    model_version: int
    duration_unit: Literal["decisions", "periods"]
    recent_rounds: int = RECENT
    current: CurrentRegime | None
    regimes: list[Regime] = Field(description="empty with one regime, or before the first estimate")
    note: str | None = Field(description="why there are no regimes")
    labels_note: str | None = Field(description="why the labels should be checked")


class Delivery(BaseModel):
    """The message to the webhook that was configured when the alert was raised."""

    status: Literal["waiting", "sent", "failed"]
    attempts: int
    failure: str | None = Field(description="of the last attempt")
    sent_at: Timestamp | None


class Alert(BaseModel):
    """A different regime has been the most likely for `alerts.rounds` decisions in a row."""

    number: int = Field(description="of the event; the newest has the highest")
    round: int = Field(description="in which the alert was raised")
    since_round: int = Field(description="the first round in which the new regime was the most likely")
    before: NamedRegime = Field(alias="from")
    after: NamedRegime = Field(alias="to")
    belief: list[float] = Field(description="in that round, one probability for each regime")
    created_at: Timestamp
    delivery: Delivery | None = Field(description="null where no webhook was configured")


class AlertPage(BaseModel):
    alerts: list[Alert] = Field(description="newest first")
    next_cursor: int | None


def add_routes(app: Application, service: Service) -> None:
    def summarize(policy: StagedPolicy, state: State) -> RegimesSummary:
        with service.store.reading() as tx:
            return summarize_regimes(tx, policy, state)

    @app.api.get("/campaigns/{name}/regimes", tags=["models"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def regimes(name: str) -> Regimes:
        """What each regime looks like: its customers, its share of time, what it earns and its best action."""
        policy, state = await load_current(service, name)
        summary = await run_in_threadpool(summarize, policy, state)
        labels, now = {regime.regime: regime.label for regime in summary.regimes}, summary.current
        named = {
            "campaign": name,
            "round": state.round,
            "model_version": state.model_version,
            "duration_unit": "periods" if policy.config.clock else "decisions",
            "current": {**now._asdict(), "label": labels[now.regime]} if labels else None,
        }
        return Regimes.model_validate(summary._asdict() | named, from_attributes=True)

    @app.api.get("/campaigns/{name}/alerts", tags=["campaigns"], name="alerts", responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def list_alerts(name: str, limit: Limit = 50, cursor: NumberCursor = None) -> AlertPage:
        """Lasting changes of the most likely regime, newest first, a page at a time."""
        with service.store.reading() as tx:
            row = recovery.get_campaign(tx, name)
            labels = dict(enumerate(recovery.load_config(tx, row.campaign_id).regime_labels, 1))
            rows = read_alert_page(tx, row.campaign_id, cursor, limit + 1)
        return AlertPage(
            alerts=[_describe_alert(row, labels) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def _describe_alert(row: AlertRow, labels: dict[int, str]) -> Alert:
    change: dict[str, Any] = msgspec.json.decode(row.body)
    regimes = {way: webhooks.describe_regime(change[way], labels) for way in ("from", "to")}
    fields = row._asdict()
    return Alert.model_validate(change | fields | regimes | {"delivery": fields if row.status else None})
