"""`GET /campaigns/{name}/series`: the numbers behind the charts of a campaign's page."""

from typing import Annotated, Literal

import msgspec
from fastapi import Query, Response
from pydantic import BaseModel, Field

from service.access.roles import READERS, allow
from service.analysis.columns import ColumnCache
from service.analysis.series import MAX_POINTS, Beliefs, compute_series
from service.engine.worker import Service
from service.web.application import Application
from service.web.openapi import describe_errors
from service.web.times import QueryTime, make_interval

MIN_POINTS = 10


class Rewards(BaseModel):
    count: int
    sum: float


class Lift(BaseModel):
    """How much more a decision of the model earns than one of control, from the start of the range to the end of the
    bucket. Only decisions after the warm start and while control was on count."""

    decided_rewards: int
    decided_mean: float | None
    control_rewards: int
    control_mean: float | None
    difference: float | None = Field(description="null until each group has 20 rewards (one per subject)")
    low: float | None = Field(description="lower end of the 95 % interval")
    high: float | None


class Bucket(BaseModel):
    """Consecutive rounds."""

    first_round: int
    last_round: int
    first_decided_at: str
    last_decided_at: str
    belief: list[float] | None = Field(description="mean probability of each regime; null if erased")
    last_belief: list[float] | None = Field(description="belief in the last round")
    actions: dict[str, int] = Field(description="decisions by action")
    modes: dict[str, int] = Field(description="decisions by mode")
    models: int = Field(description="models published before one of these rounds")
    rewards: Rewards
    decided: Rewards = Field(description="rewards of the model's decisions, after the warm start")
    control: Rewards = Field(description="rewards of control's decisions")
    lift: Lift


class RegimeChange(BaseModel):
    """A different regime became the most likely and stayed so for at least `alert_rounds` rounds."""

    since_round: int = Field(description="the first round of the new regime; a bucket starts here")
    round: int = Field(description="the round in which it had lasted `alert_rounds` rounds")
    decided_at: str = Field(description="time of since_round")
    before: int = Field(description="regimes count from 1")
    after: int
    before_label: str | None
    after_label: str | None


class RegimesInUse(BaseModel):
    round: int = Field(description="the first round with this number of regimes")
    regimes: int


class Publication(BaseModel):
    model_version: int
    kind: Literal["update", "estimation", "actions", "rollback", "erasure"]
    round: int = Field(description="decisions made before it")
    regimes: int
    published_at: str


class Note(BaseModel):
    """A change to the campaign made by a person."""

    revision: int
    kind: Literal["created", "configuration", "rollback", "erasure"]
    round: int = Field(description="decisions made before it")
    changed: list[str] = Field(description="configuration fields with a new value")
    restored_model_version: int | None
    erased_decisions: int | None
    created_at: str


class Series(BaseModel):
    """A campaign over time, in buckets of rounds."""

    campaign: str
    round: int = Field(description="decisions so far")
    first_round: int | None = Field(description="first round of the range; null without decisions")
    last_round: int | None
    beliefs: Beliefs
    regimes: int = Field(description="number of regimes in use now")
    regime_labels: list[str]
    action_names: list[str]
    alert_rounds: int
    buckets: list[Bucket]
    regime_changes: list[RegimeChange] = Field(description="all in the range, unless some were left out")
    regime_changes_left_out: int = Field(description="beyond 2,000 changes, the shortest-lived are left out")
    regimes_in_use: list[RegimesInUse] = Field(description="at the start, and wherever it changed")
    models: dict[str, int] = Field(description="models published in the range, by kind")
    publications: list[Publication] = Field(description="except stage updates; the newest 200, in order")
    revisions: list[Note] = Field(description="the newest 200, in order")


def add_routes(app: Application, service: Service) -> None:
    cache = ColumnCache()

    @app.api.get(
        "/campaigns/{name}/series", tags=["reports"], response_model=Series, responses=describe_errors(404, 422)
    )
    @allow(READERS, campaign="path")
    def series(
        name: str,
        start: Annotated[QueryTime, Query(alias="from")] = None,
        to: QueryTime = None,
        points: Annotated[int, Query(ge=MIN_POINTS, le=MAX_POINTS, description="maximum number of buckets")] = 400,
        beliefs: Annotated[
            Beliefs, Query(description="the beliefs of the decisions, or today's beliefs about the same rounds")
        ] = "as_decided",
    ) -> Response:
        """The decisions made at or after `from` and before `to`, in buckets of rounds: beliefs, actions, rewards and
        the cumulative lift over control. Every regime change starts a new bucket."""
        times = make_interval(start, to)
        with service.store.reading() as tx:
            answer = compute_series(tx, service.campaigns, cache, name, times, points, beliefs)
        return Response(msgspec.json.encode(answer), media_type="application/json")
