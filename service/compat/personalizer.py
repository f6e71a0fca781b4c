"""The routes of Azure Personalizer 1.0: rank, reward and activate, for clients that only change the address.

A rank is a decision of the campaign that fits, and an event is that decision. docs/personalizer.md compares the two.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from policy import CampaignConfig
from policy.config import PLAIN_TEXT
from policy.logging_law import Logged, compute_logging_law, list_floors
from service.access.keys import get_key_campaigns
from service.access.roles import DECIDERS, allow
from service.base.errors import ApiError, ConflictError, FieldProblem, GoneError, InvalidError, NotFoundError
from service.base.times import format_duration
from service.compat.matching import Directory, Shape, Wanted, flatten_features
from service.compat.messages import EventReward, RankRequest, RankResponse
from service.engine.encoding import hash_request
from service.engine.handlers import ChangedCampaignError
from service.engine.operations import Decide, Reward
from service.engine.requests import DecideItem, RewardItem
from service.engine.worker import Service
from service.storage.campaigns import get_config_at, read_campaign_page, read_campaigns
from service.storage.rows import KnownDecision
from service.web.application import Application
from service.web.openapi import describe_errors

PREFIX = "/personalizer/v1.0"
EventPath = Annotated[str, Path(alias="eventId", min_length=1, max_length=200, pattern=PLAIN_TEXT)]
TRIES = 5  # a campaign that changes between being matched and deciding is matched again
# What a client of Personalizer calls the fields of our own requests.
THEIR_NAMES = {"context": "contextFeatures", "excluded_actions": "excludedActions", "reward": "value"}


def add_routes(app: Application, service: Service) -> None:
    ranker = Ranker(service)
    tags: Any = ["personalizer"]
    post = partial(app.api.post, tags=tags, status_code=204, responses=describe_errors(404, 409, 410, 422))
    ranked: Any = {"response_model": RankResponse, "responses": describe_errors(409, 410, 422)}

    @app.post_lean(PREFIX + "/rank", RankRequest, 201, tags=tags, **ranked)
    @allow(DECIDERS, campaign="among")
    async def rank(body: RankRequest, campaign: str, scope: Scope) -> bytes:
        """Decide which action to show, like Azure Personalizer's Rank.

        The campaign that fits decides: it has all of the actions, and all of its variables are among the features, by
        dotted path or by a name that occurs only once. Exactly one campaign must fit; a key that is limited to one
        campaign settles it."""
        return msgspec.json.encode(await ranker.rank(body, get_key_campaigns(scope)))

    @post(PREFIX + "/events/{eventId:path}/reward")
    @allow(DECIDERS, campaign="among")
    async def reward(request: Request, event_id: EventPath, body: EventReward) -> Response:
        """Report what the action of an event earned. The reward is committed, and the next stage update learns from
        it."""
        campaign, _ = await run_in_threadpool(ranker.find_event, event_id, get_key_campaigns(request.scope))
        item = RewardItem(decision_id=event_id, reward=body.value)
        try:
            await service.submit(Reward(campaign, [item], False))
        except InvalidError as error:
            raise _translate_fields(error) from None
        return Response(status_code=204)

    @post(PREFIX + "/events/{eventId:path}/activate")
    @allow(DECIDERS, campaign="among")
    def activate(request: Request, event_id: EventPath) -> Response:
        """Report that the action of an event was shown. This has no effect: an event without a reward teaches nothing,
        and a campaign with a default reward takes no deferred events."""
        _, decision = ranker.find_event(event_id, get_key_campaigns(request.scope))
        if decision.erased:
            raise GoneError(f"Event {event_id!r} was erased")
        return Response(status_code=204)


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


class Ranker:
    """Decides ranks, and finds the decisions of events. `among` are the campaigns that the key covers, None for all."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._directory = Directory(service.store)

    async def rank(self, body: RankRequest, among: Collection[str] | None) -> dict[str, Any]:
        """Decide by the campaign that fits; return the ranking of the actions."""
        wanted = Wanted(_list_distinct_actions(body), flatten_features(body.contextFeatures or ()), among)
        excluded = set(body.excludedActions or ())
        eligible = [action for action in wanted.actions if action not in excluded]
        for _ in range(TRIES):
            shape = await self._find_shape(body, wanted)
            operation = _make_operation(shape, body.eventId, wanted.values, eligible)
            try:
                answer = msgspec.json.decode(await self._service.submit(operation), type=_Answer)
            except InvalidError as error:
                raise _translate_fields(error) from None
            except (ChangedCampaignError, NotFoundError, ConflictError) as error:
                refusal: ApiError = error
                await self._directory.keep_up(time.monotonic())
                if self._directory.get_shape(shape.row.campaign_id) is shape:  # the campaign has not changed
                    raise
                continue
            config = shape.config
            if answer.round <= shape.revision.round:  # decided earlier, perhaps with another configuration
                config = await run_in_threadpool(self._load_config_at, shape.row.campaign_id, answer.round)
            return _make_ranking(wanted.actions, config, answer)
        raise refusal

    def find_event(self, event_id: str, among: Collection[str] | None) -> tuple[str, KnownDecision]:
        """Find an event by its id alone: the campaign and the decision."""
        with self._service.store.reading() as tx:
            rows = read_campaigns(tx) if among is None else read_campaign_page(tx, "", len(among), among=among)
            names = {row.campaign_id: row.name for row in rows}
            decisions = tx.get_known_decisions([(campaign, event_id) for campaign in names])
        if not decisions:
            where = "" if among is None else " among the campaigns that this key covers"
            raise NotFoundError(f"There is no event {event_id!r}{where}")
        if len(decisions) > 1:
            campaigns = ", ".join(repr(names[decision.campaign_id]) for decision in decisions)
            raise ConflictError(
                f"Campaigns {campaigns} all have an event {event_id!r}; use a key limited to one of them"
            )
        return names[decisions[0].campaign_id], decisions[0]

    async def _find_shape(self, body: RankRequest, wanted: Wanted) -> Shape:
        """Find the campaign to decide, or the one that has already decided this event (R17)."""
        for since in (self._service.changed_at, time.monotonic()):  # what did not fit may fit by now
            await self._directory.keep_up(since)
            try:
                shape = self._directory.match(wanted)
                if body.deferActivation and shape.config.rewards.default is not None:
                    raise _refuse_deferred(shape)
            except ApiError as error:
                refusal = error
                continue
            # An archived campaign that fits as well may have decided this event.
            archived = self._directory.list_archived(wanted)
            return (archived and await self._find_decided(body.eventId, archived)) or shape
        decided = await self._find_decided(body.eventId, wanted.among)
        if decided is None:
            raise refusal
        return decided

    async def _find_decided(self, event_id: str | None, among: Collection[str] | None) -> Shape | None:
        if event_id is None:
            return None
        try:
            _, decision = await run_in_threadpool(self.find_event, event_id, among)
        except NotFoundError:
            return None
        return self._directory.get_shape(decision.campaign_id)

    def _load_config_at(self, campaign: int, round: int) -> CampaignConfig:
        with self._service.store.reading() as tx:
            return CampaignConfig.model_validate_json(get_config_at(tx, campaign, round))


def _translate_fields(error: InvalidError) -> InvalidError:
    """Name the fields of an error as Personalizer's clients do."""
    problems = []
    for problem in error.fields:
        first, dot, rest = problem.field.partition(".")
        problems.append(problem.model_copy(update={"field": f"{THEIR_NAMES.get(first, first)}{dot}{rest}"}))
    return InvalidError(problems)


def _list_distinct_actions(body: RankRequest) -> list[str]:
    actions = [action.id for action in body.actions]
    if repeated := sorted(action for action, count in Counter(actions).items() if count > 1):
        message = f"repeated: {', '.join(repeated)}"
        raise InvalidError([FieldProblem(field="actions", message=message, allowed="distinct ids")])
    return actions


def _refuse_deferred(shape: Shape) -> InvalidError:
    rules = shape.config.rewards
    message = (
        f"campaign {shape.row.name!r} takes no deferred events: without a reward it counts {rules.default:g} after"
        f" {format_duration(rules.wait_seconds or 0.0)}, so it would learn that from an event that is never shown"
    )
    return InvalidError(
        [FieldProblem(field="deferActivation", message=message, allowed="false, or a campaign without rewards.default")]
    )


def _make_operation(shape: Shape, event_id: str | None, values: Mapping[str, Any], eligible: Sequence[str]) -> Decide:
    context = shape.select_context(values)
    excluded = tuple(action for action in shape.config.actions if action not in eligible)
    item = DecideItem(context=context, decision_id=event_id, excluded_actions=excluded)
    expected = (shape.row.campaign_id, shape.revision.revision)
    return Decide(shape.row.name, [(item, _hash_rank(context, eligible))], False, expected)


def _hash_rank(context: Mapping[str, Any], eligible: Sequence[str]) -> bytes:
    """Hash what makes two ranks the same (R17). The campaign's other actions do not count: it may get more of them."""
    item = DecideItem.model_construct(context=dict(context), excluded_actions=tuple(eligible), subject=None, at=None)
    return hashlib.blake2b(hash_request(item), digest_size=16, person=b"rank").digest()


def _make_ranking(actions: Sequence[str], config: CampaignConfig, answer: _Answer) -> dict[str, Any]:
    """Rank the chosen action first, then the others by probability; excluded actions keep their place.

    Personalizer does the same: `rewardActionId` is first in `ranking`, unless an excluded action is.
    """
    scores = {one.action: one.score for one in answer.scores}
    probabilities = _compute_probabilities(config, answer, scores)
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


def _compute_probabilities(config: CampaignConfig, answer: _Answer, scores: Mapping[str, float]) -> dict[str, float]:
    """Compute the probability of each eligible action (R12)."""
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
    return {action: law[0, place].item() for place, action in enumerate(config.actions) if action in scores}
