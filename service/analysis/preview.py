"""Trying a context without deciding, and explaining a past decision: both with the scores under each regime.

Nothing is written and no lock is taken. If the next decision would end a stage, the stage update is computed for the
preview and thrown away.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from policy import CampaignConfig, Decision, PolicyError, Request, StagedPolicy, State
from policy.state import Score
from service.base.errors import ConflictError, InvalidError
from service.engine.campaigns import Campaigns
from service.engine.recovery import load_config, load_first_position, numbers_match, rebuild_model
from service.engine.requests import Customer
from service.engine.unit import Unit
from service.storage.models import get_erasure_version
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction


class TriedDecision(NamedTuple):
    """What deciding would answer now."""

    decision: Decision
    belief_before: list[float]
    regimes: list[dict[str, Any]]  # the scores if one regime were certain
    paused: bool
    archived: bool
    estimation_left_out: bool  # a re-estimation is due that is too large for a preview


class PastDecision(NamedTuple):
    """The parts of a stored decision that its scores depend on, and its scores."""

    round: int
    model_version: int
    mode: str
    context: Mapping[str, Any] | None  # None if it was imported without
    excluded_actions: Sequence[str]
    belief: Sequence[float]
    scores: Sequence[Score]


def preview_decision(tx: Transaction, row: LiveRow, campaigns: Campaigns, customer: Customer) -> TriedDecision:
    """What deciding for this customer would answer now, paused or not."""
    return _Trial(tx, row, campaigns).preview(customer)


class _Trial(Unit):
    """A unit of work that tries the next round. It is never written, and shares its history with the campaign's."""

    def __init__(self, tx: Transaction, row: LiveRow, campaigns: Campaigns) -> None:
        super().__init__(tx, row, campaigns.cache.read_entry(tx, row), campaigns.owner, campaigns.clock())
        self._left_out = False

    def preview(self, customer: Customer) -> TriedDecision:
        belief_before = self.state.belief.tolist()
        (request,), _, _ = self.build_requests([customer], [""])
        try:
            self.policy.prepare([request], [""])  # refuse a bad request before doing any work
        except PolicyError as error:
            raise InvalidError.from_policy(error) from None
        self.cross(self.now)
        context, excluded, subject, at = request
        decision = self.policy.preview(
            self.state, context, excluded_actions=excluded, subject=subject, at=at, now=self.now
        )
        config = self.policy.config
        return TriedDecision(
            decision,
            belief_before,
            _score_regimes(self.policy, self.state, request, config.regime_labels),
            config.paused,
            self.row.archived_at is not None,
            self._left_out,
        )

    def take_reward(self, *arguments: Any, **named: Any) -> None:
        if self.state.history is self.entry.state.history:  # only the campaign itself may add to its history
            history = self.state.history.copy(self.state.round, self.state.arrived)
            self.state = self.state._replace(history=history)
        super().take_reward(*arguments, **named)

    def estimate(self) -> None:
        """Leave out a large re-estimation: the decision would give it to a background job and go on (R16)."""
        if self.is_estimation_large:
            self._left_out = True
            self.state = self.policy.skip_estimation(self.state)
        else:
            self.estimate_inline()


def explain_decision(
    tx: Transaction, row: LiveRow, campaigns: Campaigns, decision: PastDecision
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """What the model of a decision would have chosen in each regime; or None, and why that is unknown."""
    if decision.mode == "imported" or decision.context is None:
        return None, "The decision was imported: no model of this campaign made it."
    if decision.model_version < get_erasure_version(tx, row.campaign_id):
        return None, "Decisions that its model learned from have been erased, so the model cannot be rebuilt."
    try:
        policy, state = _rebuild_model(tx, row, campaigns, decision)
    except ConflictError:
        return None, f"The stored model does not fit the log: run `undercurrent verify {row.name}`."
    request = Request(decision.context, decision.excluded_actions)
    (scores,) = policy.score_under(state, np.array([decision.belief]), request)
    if not _is_same(decision.scores, scores):
        return None, f"The log does not reproduce these scores: run `undercurrent verify {row.name}`."
    return _score_regimes(policy, state, request, load_config(tx, row.campaign_id).regime_labels), None


def _rebuild_model(
    tx: Transaction, row: LiveRow, campaigns: Campaigns, decision: PastDecision
) -> tuple[StagedPolicy, State]:
    """The policy of a decision's round and the state before it, as far as scores depend on them."""
    version, campaign = decision.model_version, row.campaign_id
    state = campaigns.cache.read_entry(tx, row).state
    if state.model_version != version:
        state = (rebuild_model(tx, row, version) if version else load_first_position(tx, campaign)).state
    # The configuration may have changed since the model was published; a different set of actions is a new model.
    revisions = tx.read_revisions(campaign, 0)
    config = [revision.config for revision in revisions if revision.round < decision.round][-1]
    return StagedPolicy(CampaignConfig.model_validate_json(config)), state._replace(round=decision.round - 1)


def _is_same(stored: Sequence[Score], recomputed: Sequence[Score]) -> bool:
    """Whether scores agree within R15's tolerance."""
    if [score.action for score in stored] != [score.action for score in recomputed]:
        return False
    old, new = ([(score.estimate, score.bonus) for score in scores] for scores in (stored, recomputed))
    return numbers_match(old, new)


def _score_regimes(
    policy: StagedPolicy, state: State, request: Request, regime_labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The scores in each regime, if it were certain, and the action with the highest one."""
    labels, every = dict(enumerate(regime_labels, 1)), policy.score_under(state, np.eye(state.belief.size), request)
    best = [max(scores, key=attrgetter("score")).action for scores in every]
    return [
        {"regime": regime, "label": labels.get(regime), "action": action, "scores": scores}
        for regime, (action, scores) in enumerate(zip(best, every, strict=True), 1)
    ]
