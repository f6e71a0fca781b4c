"""The routes of Azure Personalizer 1.0: rank, reward and activate, for clients that only change the address.

A rank is a decision of the campaign that fits (matching.py), an event is that decision. docs/personalizer.md compares.
"""

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from fastapi import Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, Strict
from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig
from policy.config import PLAIN_TEXT
from policy.logging_law import Logged, compute_logging_law, list_floors
from service.access.credentials import get_key_campaigns
from service.access.roles import DECIDERS, allow
from service.base.errors import ApiError, ConflictError, FieldProblem, GoneError, InvalidError, NotFoundError
from service.compat.matching import Directory, Shape, values_of
from service.engine.campaigns import Campaigns, MovedError
from service.engine.encoding import hash_request
from service.engine.operations import Decide, Reward
from service.engine.requests import DecideItem, RewardItem
from service.engine.requests import Reward as Value
from service.engine.requests import Text as EventId
from service.engine.worker import Service
from service.storage.campaigns import get_config_at, read_campaign_page, read_campaigns
from service.storage.transaction import Transaction
from service.web.application import Application
from service.web.openapi import describe_errors

__all__ = ["add_personalizer_routes"]

PREFIX = "/personalizer/v1.0"
MOST_ACTIONS = 64  # that a campaign can have
TRIES = 5  # a campaign that changes between being matched and deciding is matched again
# What a client of Personalizer calls the fields of our own requests.
THEIR_NAMES = {"context": "contextFeatures", "excluded_actions": "excludedActions", "reward": "value"}
RANK_EXAMPLE: dict[str, Any] = {
    "eventId": "75269AD0-BFEE-4598-8196-C57383D38E10",
    "contextFeatures": [{"customer": {"risk": "low", "revenue": 36_000}}, {"device": {"mobile": True}}],
    "actions": [
        {"id": "none", "features": []},
        {"id": "email", "features": [{"channel": "online"}]},
        {"id": "call", "features": [{"channel": "phone"}]},
    ],
    "excludedActions": ["call"],
    "deferActivation": False,
}
ANSWER_EXAMPLE: dict[str, Any] = {
    "ranking": [
        {"id": "email", "probability": 0.95},
        {"id": "none", "probability": 0.05},
        {"id": "call", "probability": 0.0},
    ],
    "eventId": "75269AD0-BFEE-4598-8196-C57383D38E10",
    "rewardActionId": "email",
}


class RankableAction(BaseModel):
    """One of the campaign's actions."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Strict(), Field(min_length=1, max_length=256)]
    features: Annotated[
        list[Any] | None, Field(description="accepted and not used: campaigns have no action features")
    ] = None


class RankRequest(BaseModel):
    """Actions to choose from, and what is known about the customer."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [RANK_EXAMPLE]})

    actions: Annotated[list[RankableAction], Field(min_length=1, max_length=MOST_ACTIONS)]
    contextFeatures: Annotated[  # noqa: N815
        list[dict[str, Any]] | None,
        Field(description="objects, nested or not, that hold a value for each of the campaign's variables"),
    ] = None
    excludedActions: Annotated[  # noqa: N815
        list[str] | None, Field(description="of the actions, those this customer must not get")
    ] = None
    eventId: Annotated[  # noqa: N815
        EventId | None, Field(description="your id; the same one with the same request always gets the same answer")
    ] = None
    deferActivation: Annotated[  # noqa: N815
        bool | None,
        Strict(),
        Field(description="true if it may never be shown; only for a campaign without a default reward"),
    ] = None


class RankedAction(BaseModel):
    id: str
    probability: Annotated[float, Field(description="that this one is the answer; 0 if it was excluded")]


class RankResponse(BaseModel):
    """The action to show, and how likely each was."""

    model_config = ConfigDict(json_schema_extra={"examples": [ANSWER_EXAMPLE]})

    ranking: Annotated[
        list[RankedAction], Field(description="the chosen one, the others by probability; excluded ones in their place")
    ]
    eventId: str  # noqa: N815
    rewardActionId: str  # noqa: N815


class EventReward(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"value": 1.0}]})

    value: Value


class _Score(msgspec.Struct):
    action: str
    score: float


class _Answer(msgspec.Struct):
    """Of a decision's answer, what a ranking is made from."""

    decision_id: str
    round: int
    mode: str
    action: str
    propensity: float
    scores: list[_Score]


class Event(NamedTuple):
    """A decision, found by its id alone."""

    campaign_id: int
    campaign: str
    erased: bool


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode
EventPath = Annotated[str, Path(alias="eventId", min_length=1, max_length=200, pattern=PLAIN_TEXT)]


def add_personalizer_routes(app: Application, service: Service) -> None:
    """The three routes that a client of Personalizer calls."""
    directory = Directory(service.store)

    def event(event_id: str, among: Collection[str] | None) -> Event:
        """The event, among the campaigns that the key is good for."""
        with service.store.reading() as tx:
            found = events_of(tx, service.campaigns, event_id, among)
        if not found:
            whose = "" if among is None else " among the campaigns that this key is good for"
            raise NotFoundError(f"There is no event {event_id!r}{whose}")
        if len(found) > 1:
            names = ", ".join(repr(one.campaign) for one in found)
            raise ConflictError(f"Campaigns {names} all have an event {event_id!r}; use a key limited to one of them")
        return found[0]

    async def shape_for(
        body: RankRequest, actions: Sequence[str], values: Mapping[str, Any], request: Request
    ) -> Shape:
        """The campaign to decide, or the one that has decided this event already (R17)."""
        among = get_key_campaigns(request.scope)
        for since in (service.changed_at, time.monotonic()):  # what does not fit may fit by now
            await directory.keep_up(since)
            try:
                shape = directory.matched(actions, values, among)
                if body.deferActivation and shape.config.rewards.default is not None:
                    raise _deferred(shape)
            except ApiError as refusal:
                refused = refusal
                continue
            # An archived one that would fit as well may have decided it before.
            before = directory.archived(actions, values, among)
            return (before and await decided(body.eventId, before)) or shape
        known = await decided(body.eventId, among)
        if known is None:
            raise refused
        return known

    async def decided(event_id: str | None, among: Collection[str] | None) -> Shape | None:
        """The campaign that has decided an event, of all or among some names."""
        try:
            known = await run_in_threadpool(event, event_id, among) if event_id is not None else None
        except NotFoundError:
            return None
        return None if known is None else directory.shape(known.campaign_id)

    @app.post_lean(
        PREFIX + "/rank",
        tags=["personalizer"],
        status_code=201,
        response_model=RankResponse,
        responses=describe_errors(409, 410, 422),
    )
    @allow(DECIDERS, campaign="among")
    async def rank(body: RankRequest, request: Request) -> bytes:
        """Decide which action to show, as Azure Personalizer's Rank does, by the campaign that fits: it has all of the
        actions, and its variables are all among the features (by dotted path, or by name where only one has it).
        Exactly one campaign must fit; a key that is limited to one settles it."""
        actions = _distinct([action.id for action in body.actions])
        values = values_of(body.contextFeatures or ())
        eligible = [action for action in actions if action not in set(body.excludedActions or ())]
        for _ in range(TRIES):
            shape = await shape_for(body, actions, values, request)
            context = shape.context(values)
            item = DecideItem(
                context=context,
                decision_id=body.eventId,
                excluded_actions=tuple(action for action in shape.config.actions if action not in eligible),
            )
            operation = Decide(
                shape.name, [(item, _digest(context, eligible))], False, (shape.campaign_id, shape.revision)
            )
            try:
                answer = _decode(await service.submit(operation))
            except InvalidError as error:
                raise _in_their_words(error) from None
            except (MovedError, NotFoundError, ConflictError) as error:
                refused: ApiError = error
                await directory.keep_up(time.monotonic())
                if directory.shape(shape.campaign_id) is shape:  # the campaign is as it was: it is the request
                    raise
                continue
            config = shape.config
            if answer.round <= shape.round:  # decided before: the chances were those of then
                config = await run_in_threadpool(config_then, shape.campaign_id, answer.round)
            return _encode(_ranking(actions, config, answer))
        raise refused

    def config_then(campaign: int, round: int) -> CampaignConfig:
        with service.store.reading() as tx:
            return CampaignConfig.model_validate_json(get_config_at(tx, campaign, round))

    @app.post(
        PREFIX + "/events/{eventId:path}/reward",
        tags=["personalizer"],
        status_code=204,
        responses=describe_errors(404, 409, 410, 422),
    )
    @allow(DECIDERS, campaign="among")
    async def reward(request: Request, event_id: EventPath, body: EventReward) -> Response:
        """Report what the action of an event earned. It is committed, and counts from the next stage update on."""
        found = await run_in_threadpool(event, event_id, get_key_campaigns(request.scope))
        item = RewardItem(decision_id=event_id, reward=body.value)
        try:
            await service.submit(Reward(found.campaign, [item], False))
        except InvalidError as error:
            raise _in_their_words(error) from None
        return Response(status_code=204)

    @app.post(
        PREFIX + "/events/{eventId:path}/activate",
        tags=["personalizer"],
        status_code=204,
        responses=describe_errors(404, 409, 410, 422),
    )
    @allow(DECIDERS, campaign="among")
    def activate(request: Request, event_id: EventPath) -> Response:
        """Report that the action of an event was shown. Nothing depends on it: an event without a reward teaches
        nothing, and a campaign with a default reward takes no deferred events."""
        if event(event_id, get_key_campaigns(request.scope)).erased:
            raise GoneError(f"Event {event_id!r} was erased")
        return Response(status_code=204)


# --- in and out -------------------------------------------------------------------------------------------------------


def _distinct(actions: list[str]) -> list[str]:
    if repeated := sorted({action for action in actions if actions.count(action) > 1}):
        message = f"repeated: {', '.join(repeated)}"
        raise InvalidError([FieldProblem(field="actions", message=message, allowed="distinct ids")])
    return actions


def _deferred(shape: Shape) -> InvalidError:
    rules = shape.config.rewards
    message = (
        f"campaign {shape.name!r} takes no deferred events: it counts {rules.default:g} when no reward has come after"
        f" {rules.wait_seconds:g} s, so an event that is never shown would teach it that"
    )
    return InvalidError(
        [FieldProblem(field="deferActivation", message=message, allowed="false, or a campaign without rewards.default")]
    )


def _digest(context: Mapping[str, Any], eligible: Sequence[str]) -> bytes:
    """What makes two ranks the same (R17): not which other actions the campaign has, for it may get more of them."""
    item = DecideItem.model_construct(context=dict(context), excluded_actions=tuple(eligible), subject=None, at=None)
    return hashlib.blake2b(hash_request(item), digest_size=16, person=b"rank").digest()


def _in_their_words(error: InvalidError) -> InvalidError:
    """The fields of our own requests as the client knows them."""
    told = []
    for problem in error.fields:
        first, dot, rest = problem.field.partition(".")
        told.append(problem.model_copy(update={"field": f"{THEIR_NAMES.get(first, first)}{dot}{rest}"}))
    return InvalidError(told)


def _ranking(actions: Sequence[str], config: CampaignConfig, answer: _Answer) -> dict[str, Any]:
    """The chosen action, then the others by probability; those that could not be chosen keep their place.

    So does Personalizer: `rewardActionId` is first in `ranking`, unless an excluded action is.
    """
    scores = {one.action: one.score for one in answer.scores}
    chances = _law(config, answer)
    ranked = sorted(
        (action for action in actions if action in scores),
        key=lambda action: (action != answer.action, -chances[action], -scores[action]),
    )
    following = iter(ranked)
    ordered = [next(following) if action in scores else action for action in actions]
    return {
        "ranking": [{"id": action, "probability": chances.get(action, 0.0)} for action in ordered],
        "eventId": answer.decision_id,
        "rewardActionId": answer.action,
    }


def _law(config: CampaignConfig, answer: _Answer) -> dict[str, float]:
    """The probability of each eligible action (R12)."""
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
    return {action: chance for action, chance in zip(config.actions, law[0].tolist(), strict=True) if action in scores}


def events_of(tx: Transaction, campaigns: Campaigns, decision_id: str, among: Collection[str] | None) -> list[Event]:
    """The decisions of that id, of all campaigns or of some."""
    rows = read_campaigns(tx) if among is None else read_campaign_page(tx, "", len(among), among=among)
    found = [(row, campaigns.get_decision(tx, row, decision_id)) for row in rows]
    return [Event(row.campaign_id, row.name, decision.erased) for row, decision in found if decision is not None]
