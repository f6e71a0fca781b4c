"""The routes of Azure Personalizer 1.0: rank, reward and activate, for clients that only change the address.

A rank is a decision of the campaign that fits, and an event is that decision. docs/personalizer.md compares the two.
"""

from typing import Annotated, Any

import msgspec
from fastapi import Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from policy.config import PLAIN_TEXT
from service.access.keys import get_key_campaigns
from service.access.roles import DECIDERS, allow
from service.base.errors import GoneError, InvalidError
from service.compat.messages import EventReward, RankRequest, RankResponse
from service.compat.ranking import Ranker, translate_fields
from service.engine.operations import Reward
from service.engine.requests import RewardItem
from service.engine.worker import Service
from service.web.application import Application
from service.web.openapi import describe_errors

PREFIX = "/personalizer/v1.0"
EventPath = Annotated[str, Path(alias="eventId", min_length=1, max_length=200, pattern=PLAIN_TEXT)]


def add_routes(app: Application, service: Service) -> None:
    ranker = Ranker(service)
    event_settings: dict[str, Any] = {
        "tags": ["personalizer"],
        "status_code": 204,
        "responses": describe_errors(404, 409, 410, 422),
    }

    @app.post_lean(
        PREFIX + "/rank",
        RankRequest,
        201,
        tags=["personalizer"],
        response_model=RankResponse,
        responses=describe_errors(409, 410, 422),
    )
    @allow(DECIDERS, campaign="among")
    async def rank(body: RankRequest, campaign: str, scope: Scope) -> bytes:
        """Decide which action to show, like Azure Personalizer's Rank.

        The campaign that fits decides: it has all of the actions, and all of its variables are among the features, by
        dotted path or by a name that occurs only once. Exactly one campaign must fit; a key that is limited to one
        campaign settles it."""
        return msgspec.json.encode(await ranker.rank(body, get_key_campaigns(scope)))

    @app.api.post(PREFIX + "/events/{eventId:path}/reward", **event_settings)
    @allow(DECIDERS, campaign="among")
    async def reward(request: Request, event_id: EventPath, body: EventReward) -> Response:
        """Report what the action of an event earned. The reward is committed, and the next stage update learns from
        it."""
        event = await run_in_threadpool(ranker.find_event, event_id, get_key_campaigns(request.scope))
        item = RewardItem(decision_id=event_id, reward=body.value)
        try:
            await service.submit(Reward(event.campaign, [item], False))
        except InvalidError as error:
            raise translate_fields(error) from None
        return Response(status_code=204)

    @app.api.post(PREFIX + "/events/{eventId:path}/activate", **event_settings)
    @allow(DECIDERS, campaign="among")
    def activate(request: Request, event_id: EventPath) -> Response:
        """Report that the action of an event was shown. This has no effect: an event without a reward teaches nothing,
        and a campaign with a default reward takes no deferred events."""
        if ranker.find_event(event_id, get_key_campaigns(request.scope)).erased:
            raise GoneError(f"Event {event_id!r} was erased")
        return Response(status_code=204)
