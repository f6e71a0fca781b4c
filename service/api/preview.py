"""Trying a context without deciding, and explaining a decision: both with what would be chosen in each regime.

Nothing is written and no lock is taken. What the next decision would do first, at a stage's end, is worked out for the
answer and forgotten.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from policy import CampaignConfig, Decision, PolicyError, Request, StagedPolicy, State
from policy.state import Score as PolicyScore
from service.access.roles import READERS, allow
from service.api.routes import stored_decision
from service.api.schemas import Score, StoredDecision
from service.base.errors import ConflictError, InvalidError
from service.engine.campaigns import Campaigns
from service.engine.recovery import get_campaign, load_config, load_first_position, numbers_match, rebuild_model
from service.engine.requests import CONTEXT_EXAMPLE, Customer, ReadTime, Text
from service.engine.unit import Unit
from service.engine.worker import Service
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction
from service.web.openapi import describe_errors

__all__ = ["add_preview_routes"]


class PreviewRequest(Customer):
    """A request as `/decide` takes it, without an id."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"context": CONTEXT_EXAMPLE}]})

    at: Annotated[ReadTime | None, Field(description="when it would happen, if not now; with a time zone")] = None


class RegimeScores(BaseModel):
    """What each action would be worth if the regime were known for certain."""

    regime: Annotated[int, Field(description="counted from 1")]
    label: str | None
    action: Annotated[str, Field(description="with the highest score: what would be chosen")]
    scores: list[Score]


class Preview(BaseModel):
    """What `/decide` would answer now. Nothing was decided."""

    campaign: str
    round: Annotated[int, Field(description="that it would be")]
    stage: int
    model_version: int
    mode: Literal["warm_start", "optimistic", "control"]
    action: Annotated[str, Field(description="as this round's draw gives it")]
    propensity: float
    belief_before: Annotated[list[float], Field(description="as the campaign stands")]
    belief: Annotated[list[float], Field(description="after this context")]
    scores: Annotated[list[Score], Field(description="of the actions that were not excluded")]
    regimes: Annotated[list[RegimeScores], Field(description="what would be chosen in each regime")]
    paused: Annotated[bool, Field(description="then `/decide` would refuse")]
    archived: Annotated[bool, Field(description="then `/decide` would refuse")]
    estimation_left_out: Annotated[
        bool, Field(description="a re-estimation is due that is too large for a preview; see docs/data.md")
    ]


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"decision_id": "order-1001"}]})

    decision_id: Text


class Explanation(StoredDecision):
    """A decision as it was made, and what the same model would have chosen in each regime."""

    regimes: Annotated[list[RegimeScores] | None, Field(description="null if that cannot be found again")]
    regimes_missing: Annotated[str | None, Field(description="why not")]


def add_preview_routes(app: FastAPI, service: Service) -> None:
    """Previews and explanations."""

    @app.post("/campaigns/{name}/preview", tags=["decisions"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def preview(name: str, body: PreviewRequest) -> Preview:
        """Try a context: the belief step, the scores and the action, without a decision.

        It is what `/decide` would answer to the same request now, paused or not. The round does not move, whatever is
        asked."""
        with service.store.reading() as tx:
            row, _ = get_campaign(tx, name)
            return Trial(tx, row, service.campaigns).preview(body)

    @app.post("/campaigns/{name}/explain", tags=["decisions"], responses=describe_errors(404, 410, 422))
    @allow(READERS, campaign="path")
    def explain(name: str, body: ExplainRequest) -> Explanation:
        """Why this action? The decision, its request and reward, and what would have been chosen in each regime.

        The model that made the decision is found again; if that was long ago, its part of the log is folded, which may
        take seconds."""
        with service.store.reading() as tx:
            row, _ = get_campaign(tx, name)
            decision = stored_decision(tx, service.campaigns, row, body.decision_id)
            regimes, missing = _counterfactual(tx, row, service.campaigns, decision)
        return Explanation(**decision.model_dump(), regimes=regimes, regimes_missing=missing)


class Trial(Unit):
    """A campaign on which the next round is tried. It is never written, and shares its history with the real one."""

    def __init__(self, tx: Transaction, row: LiveRow, campaigns: Campaigns) -> None:
        super().__init__(tx, row, campaigns.read_entry(tx, row), campaigns.owner, campaigns.clock())
        self._left_out = False

    def preview(self, item: Customer) -> Preview:
        """What deciding for the item would answer."""
        before = self.state.belief.tolist()
        (request,), _, _ = self._requests([item], [""])
        try:
            self.policy.prepare([request], [""])  # whatever is wrong with it is told before any work
        except PolicyError as error:
            raise InvalidError.of_policy(error) from None
        self.cross()
        context, excluded, subject, at = request
        decision = self.policy.preview(self.state, context, excluded_actions=excluded, subject=subject, at=at)
        return self._answer(decision, before, request)

    def _answer(self, decision: Decision, before: list[float], request: Request) -> Preview:
        config = self.policy.config
        return Preview(
            campaign=self.row.name,
            round=decision.round,
            stage=decision.stage,
            model_version=decision.model_version,
            mode=decision.mode,  # type: ignore[arg-type]
            action=decision.action,
            propensity=decision.propensity,
            belief_before=before,
            belief=list(decision.belief),
            scores=_scores(decision.scores),
            regimes=_in_each_regime(self.policy, self.state, request, config),
            paused=config.paused,
            archived=self.row.archived_at is not None,
            estimation_left_out=self._left_out,
        )

    def _take(self, round: int, value: float, source: str, after: int | None = None) -> None:
        if self.state.history is self.entry.state.history:  # the campaign's own, which only it may add to
            history = self.state.history.copy(self.state.round, self.state.arrived)
            self.state = self.state._replace(history=history)
        super()._take(round, value, source, after)

    def estimate(self) -> None:
        """A large one is left out: the decision would leave it to a job, and go on without it (R16)."""
        if self._large_estimation:
            self._left_out = True
            self.state = self.policy.without_estimation(self.state)
        else:
            self._estimate_now()


def _counterfactual(
    tx: Transaction, row: LiveRow, campaigns: Campaigns, decision: StoredDecision
) -> tuple[list[RegimeScores] | None, str | None]:
    """What the model of a decision would have chosen in each regime, or why nobody knows."""
    if decision.mode == "imported" or decision.context is None:
        return None, "It was imported: no model of this campaign has made it."
    if decision.model_version < tx.erasure_version(row.campaign_id):
        return None, "Decisions that its model had learned from were erased since: the model cannot be made again."
    try:
        policy, state = _model_of(tx, row, campaigns, decision)
    except ConflictError:
        return None, f"What is stored of its model does not fit the log: run `undercurrent verify {row.name}`."
    request = Request(decision.context, decision.excluded_actions)
    (again,) = policy.scores_under(state, np.array([decision.belief]), request)
    if not _same(decision.scores, again):
        return None, f"The log does not give these scores again: run `undercurrent verify {row.name}`."
    return _in_each_regime(policy, state, request, load_config(tx, row.campaign_id)), None


def _model_of(
    tx: Transaction, row: LiveRow, campaigns: Campaigns, decision: StoredDecision
) -> tuple[StagedPolicy, State]:
    """The policy of a decision's round and the state before it, as far as scores depend on them."""
    version, campaign = decision.model_version, row.campaign_id
    state = campaigns.read_entry(tx, row).state
    if state.model_version != version:
        state = (rebuild_model(tx, row, version) if version else load_first_position(tx, campaign)).state
    # A configuration may have changed since the model was published; another set of actions is another model.
    revisions = tx.revisions_after(campaign, 0)
    config = [revision.config for revision in revisions if revision.round < decision.round][-1]
    return StagedPolicy(CampaignConfig.model_validate_json(config)), state._replace(round=decision.round - 1)


def _same(stored: Sequence[Score], again: Sequence[PolicyScore]) -> bool:
    """Within R15's tolerance."""
    if [score.action for score in stored] != [score.action for score in again]:
        return False
    mine, theirs = ([(score.estimate, score.bonus) for score in scores] for scores in (stored, again))
    return numbers_match(mine, theirs)


def _in_each_regime(
    policy: StagedPolicy, state: State, request: Request, labelled: CampaignConfig
) -> list[RegimeScores]:
    labels = dict(enumerate(labelled.regime_labels))
    each = policy.scores_under(state, np.eye(state.belief.size), request)
    return [
        RegimeScores(
            regime=h + 1,
            label=labels.get(h),
            action=max(scores, key=lambda score: score.score).action,
            scores=_scores(scores),
        )
        for h, scores in enumerate(each)
    ]


def _scores(scores: Sequence[PolicyScore]) -> list[Score]:
    return [Score.model_validate(score._asdict()) for score in scores]
