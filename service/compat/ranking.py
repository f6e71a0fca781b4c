"""Ranks as decisions: finds the campaign that a rank means, decides, and gives the probability of every action."""

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig
from policy.logging_law import Logged, compute_logging_law, list_floors
from service.base.errors import ApiError, ConflictError, FieldProblem, InvalidError, NotFoundError
from service.compat.matching import Directory, Shape, flatten_features
from service.compat.messages import RankRequest
from service.engine.encoding import hash_request
from service.engine.handlers import ChangedCampaignError
from service.engine.operations import Decide
from service.engine.requests import DecideItem
from service.engine.worker import Service
from service.storage.campaigns import get_config_at, read_campaign_page, read_campaigns

TRIES = 5  # a campaign that changes between being matched and deciding is matched again
# What a client of Personalizer calls the fields of our own requests.
THEIR_NAMES = {"context": "contextFeatures", "excluded_actions": "excludedActions", "reward": "value"}


class _Score(msgspec.Struct):
    action: str
    score: float


class _Answer(msgspec.Struct):
    """The fields of a decision's answer that a ranking needs."""

    decision_id: str
    round: int
    mode: str
    action: str
    propensity: float
    scores: list[_Score]


class Event(NamedTuple):
    """A decision that was found by its id alone."""

    campaign_id: int
    campaign: str
    erased: bool


_decode = msgspec.json.Decoder(_Answer).decode


class Ranker:
    """Decides ranks, and finds the decisions of events. `among` are the campaigns that the key covers, None for all."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._directory = Directory(service.store)

    async def rank(self, body: RankRequest, among: Collection[str] | None) -> dict[str, Any]:
        """Decide by the campaign that fits; return the ranking of the actions."""
        actions = _require_distinct([action.id for action in body.actions])
        values = flatten_features(body.contextFeatures or ())
        excluded = set(body.excludedActions or ())
        eligible = [action for action in actions if action not in excluded]
        for _ in range(TRIES):
            shape = await self._find_shape(body, actions, values, among)
            try:
                answer = _decode(await self._service.submit(_make_operation(shape, body.eventId, values, eligible)))
            except InvalidError as error:
                raise translate_fields(error) from None
            except (ChangedCampaignError, NotFoundError, ConflictError) as error:
                refusal: ApiError = error
                await self._directory.keep_up(time.monotonic())
                if self._directory.get_shape(shape.campaign_id) is shape:  # the campaign has not changed
                    raise
                continue
            config = shape.config
            if answer.round <= shape.round:  # decided earlier, perhaps with another configuration
                config = await run_in_threadpool(self._load_config_at, shape.campaign_id, answer.round)
            return _make_ranking(actions, config, answer)
        raise refusal

    def find_event(self, event_id: str, among: Collection[str] | None) -> Event:
        """Find the decision of an event."""
        with self._service.store.reading() as tx:
            rows = read_campaigns(tx) if among is None else read_campaign_page(tx, "", len(among), among=among)
            names = {row.campaign_id: row.name for row in rows}
            decisions = tx.get_known_decisions([(campaign, event_id) for campaign in names])
        events = [Event(one.campaign_id, names[one.campaign_id], one.erased) for one in decisions]
        if not events:
            where = "" if among is None else " among the campaigns that this key covers"
            raise NotFoundError(f"There is no event {event_id!r}{where}")
        if len(events) > 1:
            campaigns = ", ".join(repr(event.campaign) for event in events)
            raise ConflictError(
                f"Campaigns {campaigns} all have an event {event_id!r}; use a key limited to one of them"
            )
        return events[0]

    async def _find_shape(
        self, body: RankRequest, actions: Sequence[str], values: Mapping[str, Any], among: Collection[str] | None
    ) -> Shape:
        """Find the campaign to decide, or the one that has already decided this event (R17)."""
        for since in (self._service.changed_at, time.monotonic()):  # what did not fit may fit by now
            await self._directory.keep_up(since)
            try:
                shape = self._directory.match(actions, values, among)
                if body.deferActivation and shape.config.rewards.default is not None:
                    raise _refuse_deferred(shape)
            except ApiError as error:
                refusal = error
                continue
            # An archived campaign that fits as well may have decided this event.
            archived = self._directory.list_archived(actions, values, among)
            return (archived and await self._find_decided(body.eventId, archived)) or shape
        decided = await self._find_decided(body.eventId, among)
        if decided is None:
            raise refusal
        return decided

    async def _find_decided(self, event_id: str | None, among: Collection[str] | None) -> Shape | None:
        """Find the campaign that has decided an event."""
        if event_id is None:
            return None
        try:
            event = await run_in_threadpool(self.find_event, event_id, among)
        except NotFoundError:
            return None
        return self._directory.get_shape(event.campaign_id)

    def _load_config_at(self, campaign: int, round: int) -> CampaignConfig:
        with self._service.store.reading() as tx:
            return CampaignConfig.model_validate_json(get_config_at(tx, campaign, round))


def translate_fields(error: InvalidError) -> InvalidError:
    """Name the fields of an error as Personalizer's clients do."""
    problems = []
    for problem in error.fields:
        first, dot, rest = problem.field.partition(".")
        problems.append(problem.model_copy(update={"field": f"{THEIR_NAMES.get(first, first)}{dot}{rest}"}))
    return InvalidError(problems)


def _require_distinct(actions: list[str]) -> list[str]:
    if repeated := sorted(action for action, count in Counter(actions).items() if count > 1):
        message = f"repeated: {', '.join(repeated)}"
        raise InvalidError([FieldProblem(field="actions", message=message, allowed="distinct ids")])
    return actions


def _refuse_deferred(shape: Shape) -> InvalidError:
    rules = shape.config.rewards
    message = (
        f"campaign {shape.name!r} takes no deferred events: without a reward it counts {rules.default:g} after"
        f" {rules.wait_seconds:g} s, so it would learn that from an event that is never shown"
    )
    return InvalidError(
        [FieldProblem(field="deferActivation", message=message, allowed="false, or a campaign without rewards.default")]
    )


def _make_operation(shape: Shape, event_id: str | None, values: Mapping[str, Any], eligible: Sequence[str]) -> Decide:
    context = shape.select_context(values)
    excluded = tuple(action for action in shape.config.actions if action not in eligible)
    item = DecideItem(context=context, decision_id=event_id, excluded_actions=excluded)
    return Decide(shape.name, [(item, _hash_rank(context, eligible))], False, (shape.campaign_id, shape.revision))


def _hash_rank(context: Mapping[str, Any], eligible: Sequence[str]) -> bytes:
    """Hash what makes two ranks the same (R17). The campaign's other actions do not count: it may get more of them."""
    item = DecideItem.model_construct(context=dict(context), excluded_actions=tuple(eligible), subject=None, at=None)
    return hashlib.blake2b(hash_request(item), digest_size=16, person=b"rank").digest()


def _make_ranking(actions: Sequence[str], config: CampaignConfig, answer: _Answer) -> dict[str, Any]:
    """Rank the chosen action first, then the others by probability; excluded actions keep their place.

    Personalizer does the same: `rewardActionId` is first in `ranking`, unless an excluded action is.
    """
    scores = {one.action: one.score for one in answer.scores}
    probabilities = _compute_probabilities(config, answer)
    ranked = iter(
        sorted(
            (action for action in actions if action in scores),
            key=lambda action: (action != answer.action, -probabilities[action], -scores[action]),
        )
    )
    ordered = [next(ranked) if action in scores else action for action in actions]
    return {
        "ranking": [{"id": action, "probability": probabilities.get(action, 0.0)} for action in ordered],
        "eventId": answer.decision_id,
        "rewardActionId": answer.action,
    }


def _compute_probabilities(config: CampaignConfig, answer: _Answer) -> dict[str, float]:
    """Compute the probability of each eligible action (R12)."""
    scores = {one.action: one.score for one in answer.scores}
    control, active = config.control, len(config.actions) - len(config.retired_actions)
    law, _ = compute_logging_law(
        Logged(
            scores=np.array([[scores.get(action, np.nan) for action in config.actions]]),
            warm=np.array([answer.mode == "warm_start"]),
            taken=np.array([config.actions.index(answer.action)]),
            propensity=np.array([answer.propensity]),
            share=np.array([control.share]),
            baseline=np.array([control.kind == "baseline"]),
            floors=np.array([list_floors(config.propensity_floor, active)]),
        )
    )
    return {
        action: probability
        for action, probability in zip(config.actions, law[0].tolist(), strict=True)
        if action in scores
    }
