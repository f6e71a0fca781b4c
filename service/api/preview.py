"""Previews (a decision tried without being made) and explanations of past decisions, each regime by regime."""

from typing import Annotated, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from policy.state import Score as PolicyScore
from service.access.roles import READERS, allow
from service.analysis.preview import PastDecision, TriedDecision, explain_decision, preview_decision
from service.api.decisions import Score, StoredDecision, load_decision
from service.engine.recovery import get_campaign
from service.engine.requests import CONTEXT_EXAMPLE, Customer, ReadTime, Text
from service.engine.worker import Service
from service.web.openapi import describe_errors


class PreviewRequest(Customer):
    """A request as for `/decide`, without an id."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"context": CONTEXT_EXAMPLE}]})

    at: Annotated[ReadTime | None, Field(description="time of the decision, with a time zone; default: now")] = None


class RegimeScores(BaseModel):
    """The score of each action if this regime were certain."""

    regime: Annotated[int, Field(description="counted from 1")]
    label: str | None
    action: Annotated[str, Field(description="the action with the highest score, which would be chosen")]
    scores: list[Score]


class Preview(BaseModel):
    """What `/decide` would answer now. Nothing was decided."""

    campaign: str
    round: Annotated[int, Field(description="the round that this decision would be")]
    stage: int
    model_version: int
    mode: Literal["warm_start", "optimistic", "control"]
    action: Annotated[str, Field(description="the action that this round's random draw gives")]
    propensity: float
    belief_before: Annotated[list[float], Field(description="the current belief")]
    belief: Annotated[list[float], Field(description="the belief after this context")]
    scores: Annotated[list[Score], Field(description="of the actions that were not excluded")]
    regimes: Annotated[list[RegimeScores], Field(description="what would be chosen in each regime")]
    paused: Annotated[bool, Field(description="if true, `/decide` would refuse")]
    archived: Annotated[bool, Field(description="if true, `/decide` would refuse")]
    estimation_left_out: Annotated[
        bool, Field(description="a re-estimation is due but too large for a preview; see docs/data.md")
    ]


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"decision_id": "order-1001"}]})

    decision_id: Text


class Explanation(StoredDecision):
    """A decision as it was made, and what the same model would have chosen in each regime."""

    regimes: Annotated[list[RegimeScores] | None, Field(description="null if the model cannot be rebuilt")]
    regimes_missing: Annotated[str | None, Field(description="why regimes is null")]


def add_preview_routes(app: FastAPI, service: Service) -> None:
    """Add the two routes."""

    @app.post("/campaigns/{name}/preview", tags=["decisions"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def preview(name: str, body: PreviewRequest) -> Preview:
        """Try a context: the belief step, the scores and the action, without deciding.

        The answer is what `/decide` would give for the same request now, even if the campaign is paused. Nothing
        changes, and the round does not advance."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            return preview_answer(name, preview_decision(tx, row, service.campaigns, body))

    @app.post("/campaigns/{name}/explain", tags=["decisions"], responses=describe_errors(404, 410, 422))
    @allow(READERS, campaign="path")
    def explain(name: str, body: ExplainRequest) -> Explanation:
        """Why this action? The decision, its request and reward, and what would have been chosen in each regime.

        The model that made the decision is rebuilt from the log. For an old decision this may take seconds."""
        with service.store.reading() as tx:
            row = get_campaign(tx, name)
            decision = load_decision(tx, row, body.decision_id)
            regimes, missing = explain_decision(tx, row, service.campaigns, past_decision(decision))
        answer = decision.model_dump() | {"regimes": regimes, "regimes_missing": missing}
        return Explanation.model_validate(answer, from_attributes=True)


def preview_answer(name: str, tried: TriedDecision) -> Preview:
    """The answer of the route."""
    decision = tried.decision._asdict() | {"scores": tried.decision.scores}
    return Preview.model_validate({"campaign": name} | decision | tried._asdict(), from_attributes=True)


def past_decision(decision: StoredDecision) -> PastDecision:
    """The parts of a decision that explaining it needs."""
    scores = [PolicyScore(**score.model_dump()) for score in decision.scores]
    return PastDecision(**decision.model_dump(include=set(PastDecision._fields) - {"scores"}), scores=scores)
