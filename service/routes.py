"""The routes. Those that write are lean: straight from the body's bytes to a lane and back (PERF-NOTES: the framework's
dependency and response machinery costs several times what a durable decision does). OpenAPI describes them all alike.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from json import JSONDecodeError
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import msgspec
from fastapi import Body as BodyField
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette._utils import get_route_path
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from policy import CampaignConfig, PolicyError, StagedPolicy, State, describe
from policy.config import MOST_ROUNDS
from policy.description import ModelDescription
from service import schemas
from service.audit import receiver, tell
from service.auth import PERSONALIZER, Keys, asked, limited_to, require
from service.browsers import Visitors
from service.campaigns import Campaigns, found
from service.description import describe_api
from service.errors import (
    ApiError,
    FieldProblem,
    GoneError,
    InvalidError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    response_of,
)
from service.limits import Sending, body_of, with_body
from service.moments import timestamp
from service.operations import Create, Current, Decide, Reward
from service.requests import ANSWER, Requests
from service.rows import KnownDecision, LiveRow, Row
from service.schema import require_current
from service.schemas import (
    CAMPAIGN_EXAMPLE,
    MAX_BATCH,
    DecideBatch,
    DecideRequest,
    RewardBatch,
    RewardRequest,
)
from service.transaction import Transaction
from service.worker import Service
from service.written import decision_answers, request_hash, request_hashes

__all__ = [
    "Application",
    "Limit",
    "VersionCursor",
    "add_routes",
    "campaign_state",
    "creation",
    "current",
    "possible",
    "stored_decision",
]

MAX_PAGE = 200
MOST_MISTAKES = 1_000
FAILURE = "undercurrent.failure"  # in the scope: an exception that nobody expected
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
NameCursor = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
VersionCursor = Annotated[int | None, Query(ge=1, le=MOST_ROUNDS)]
Body = TypeVar("Body", bound=BaseModel)
Answer = asyncio.Future[bytes]


class _Read(Request):
    """A request whose body is read as those of the lean routes are: UTF-8 only, and no half of a surrogate pair."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from None


class ReadRoute(APIRoute):
    """A route of the framework's own kind, but for how it reads a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await answer(_Read(request.scope, request.receive))

        return read


class LeanRoute(APIRoute):
    """A POST whose endpoint takes the one validated body, and the request if it asks for it, and returns bytes.

    An endpoint that is no coroutine returns a lane's future: its requests need no task.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        taken = [kind for name, kind in get_type_hints(endpoint).items() if name != "return"]
        (body,) = (kind for kind in taken if kind is not Request)
        self._asks = Request in taken
        self._body: type[BaseModel] = body
        self._campaign = next((name for name in ("campaign", "name") if name in body.model_fields), None)
        self._endpoint: Callable[..., Awaitable[bytes]] = endpoint
        self.status = self.status_code or 200
        self.direct = not iscoroutinefunction(endpoint)

    def begin(self, scope: Scope, body: bytes) -> Awaitable[bytes]:
        """What the body asks for, if the request's key is good for its campaign."""
        request = parsed(self._body, body)
        if self._campaign is not None:
            require(scope, getattr(request, self._campaign))
        return self._endpoint(request, Request(scope)) if self._asks else self._endpoint(request)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.begin(scope, await body_of(scope, receive))
        await send({"type": ANSWER, "status": self.status, "body": answer})


class Failing:
    """Between the framework's layers: what failed before them fails in them, is logged and answered like the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if FAILURE in scope:
            raise scope[FAILURE]
        await self._app(scope, receive, send)


class Application(FastAPI):
    """FastAPI, but who may ask is decided before its layers, and a request to a lean route passes none of them."""

    def __init__(self, requests: Requests, visitors: Visitors, **settings: Any) -> None:
        super().__init__(**settings)
        self._visitors = visitors
        self.router.route_class = ReadRoute
        self.add_middleware(Failing)
        self._requests = requests
        self._lean: dict[str, LeanRoute] = {}
        self.keys: Keys | None = None
        self._described: bool | None = None  # as one that asks for keys?

    def add_lean_route(self, path: str, endpoint: Callable[..., Awaitable[bytes]], **settings: Any) -> None:
        """A POST route that OpenAPI describes like any other."""
        self.router.add_api_route(path, endpoint, methods=["POST"], route_class_override=LeanRoute, **settings)
        (route,) = (r for r in self.router.routes if isinstance(r, LeanRoute) and r.path == path)
        self._lean[path] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._requests.watch(self._answer, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def direct(self, scope: Scope, body: bytes, send: Sending) -> bool:
        """Take a whole request that needs no task; not one of any other kind, nor below a proxy's path."""
        route = self._lean.get(scope["path"])
        if route is None or not route.direct or scope["method"] != "POST":
            return False
        self._requests.direct(partial(self._begin, route), scope, body, send)
        return True

    def _begin(self, route: LeanRoute, scope: Scope, body: bytes) -> Answer:
        scope["route"] = route  # as the framework's router does
        self._admit(scope, route.path)
        return cast("Answer", route.begin(scope, body))

    def _admit(self, scope: Scope, path: str) -> None:
        """Refuse who may not ask."""
        if self.keys is not None and self.keys.on:
            self.keys.admit(scope, path, self.routes)
        else:
            self._visitors.admit(scope)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = get_route_path(scope)
        if path.startswith(f"/{PERSONALIZER}"):  # its clients put a slash after an address that ends with one
            scope["path"] = scope["path"].replace(f"/{PERSONALIZER}", PERSONALIZER, 1)
            path = path[1:]
        route = self._lean.get(path) if scope["method"] == "POST" else None
        if route is not None:
            scope["route"] = route
        try:
            self._admit(scope, path)
            if route is not None:
                await route.answer(scope, receive, send)
                return
            receive = await with_body(scope, receive)
        except ApiError as error:
            if route is None:  # so that it is counted where it belongs
                scope["route"] = next((r for r in self.routes if r.matches(scope)[0] is Match.FULL), None)
            await response_of(error)(scope, receive, send)
            return
        except Exception as error:
            scope[FAILURE] = error
        if scope["method"] in ("POST", "PATCH"):
            # The API speaks JSON only, so `curl -d` need not say so.
            kept = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope["headers"] = [*kept, (b"content-type", b"application/json")]
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The document; another one once there is a key, for then every request needs one."""
        keys = self.keys is not None and self.keys.on
        if self.openapi_schema is None or self._described != keys:
            self.openapi_schema, self._described = None, keys
            describe_api(super().openapi(), keys)
        return super().openapi()


def parsed(kind: type[Body], body: bytes) -> Body:
    """The body as its model; an error names every field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        _refuse_long_batch(error)
        if error.error_count() > MOST_MISTAKES:  # writing them all out would take seconds
            told = FieldProblem(field="body", message=f"{error.error_count()} mistakes", allowed="see /docs")
            raise InvalidError([told]) from None
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise InvalidError.of_pydantic(problems) from None
    except PolicyError as error:
        raise InvalidError.of_policy(error) from None


def _refuse_long_batch(error: ValidationError) -> None:
    """A batch of too many items is too large, not wrong."""
    if error.error_count() == 1:
        (problem,) = error.errors(include_url=False)
        if (problem["type"], problem["loc"]) == ("too_long", ("items",)):
            raise TooLargeError(f"The batch has more than {MAX_BATCH} items; send several smaller batches") from None


def add_routes(app: Application, service: Service) -> None:
    """Every route of the API."""
    submit = service.submit
    app.keys = service.keys

    def decide(request: DecideRequest) -> Answer:
        """Decide for one customer. The answer is committed before it leaves; a repeated `decision_id` gets it again."""
        return submit(Decide(request.campaign, [(request, request_hash(request))], False))

    def reward(request: RewardRequest) -> Answer:
        """Report what a decision earned. It is committed, and counts from the next stage update on."""
        return submit(Reward(request.campaign, [request], False))

    def decide_batch(request: DecideBatch) -> Answer:
        """Decide for up to 1,000 customers: exactly what single calls in that order would answer; all or nothing."""
        items = list(zip(request.items, request_hashes(request.items), strict=True))
        return submit(Decide(request.campaign, items, True))

    def reward_batch(request: RewardBatch) -> Answer:
        """Report up to 1,000 rewards, with a result for each."""
        return submit(Reward(request.campaign, request.items, True))

    async def create(
        config: Annotated[CampaignConfig, BodyField(examples=[CAMPAIGN_EXAMPLE])], request: Request
    ) -> bytes:
        """Create a campaign. The answer is its configuration with every default filled in."""
        record = asked(request.scope, "create", config.name, **receiver(config))
        answer: bytes = await submit((await creation(service, config))._replace(record=record))
        tell(record)
        return answer

    for path, endpoint, answers, status, tag in (
        ("/decide", decide, schemas.DecisionAnswer, 200, "decisions"),
        ("/reward", reward, schemas.RewardAnswer, 200, "decisions"),
        ("/decide/batch", decide_batch, schemas.DecisionBatch, 200, "decisions"),
        ("/reward/batch", reward_batch, schemas.RewardResults, 200, "decisions"),
        ("/campaigns", create, CampaignConfig, 201, "campaigns"),
    ):
        app.add_lean_route(path, endpoint, response_model=answers, status_code=status, tags=[tag])

    @app.get("/campaigns", tags=["campaigns"])
    def campaigns(
        request: Request, limit: Limit = 50, cursor: NameCursor = "", archived: bool = False
    ) -> schemas.CampaignPage:
        """The campaigns that your key is good for, by name, a page at a time: those in use, or the archived ones."""
        with service.store.reading() as tx:
            rows = tx.campaign_page(cursor, limit + 1, archived, limited_to(request.scope))
            configs = [Campaigns.config(tx, row.campaign_id) for row in rows[:limit]]
        return schemas.CampaignPage(
            campaigns=[schemas.CampaignSummary(**_summary(r, c)) for r, c in zip(rows, configs, strict=False)],
            next_cursor=rows[limit - 1].name if len(rows) > limit else None,
        )

    @app.get("/campaigns/{name}", tags=["campaigns"])
    def campaign(name: str) -> schemas.CampaignState:
        """Where a campaign stands, and its configuration."""
        return campaign_state(service, name)

    @app.get("/campaigns/{name}/decisions/{decision_id:path}", tags=["decisions"])
    def decision(name: str, decision_id: str) -> schemas.StoredDecision:
        """A decision as it was made: request, answer, explanation, and the reward if it has come."""
        with service.store.reading() as tx:
            row, _ = found(tx, name)
            return stored_decision(tx, service.campaigns, row, decision_id)

    @app.get("/campaigns/{name}/model", tags=["models"])
    async def model(name: str) -> schemas.Model:
        """The model in force: the regimes, and what each coefficient says, in the campaign's own words."""
        policy, state = await current(service, name)
        return _model(policy.config, describe(policy, state))

    @app.get("/campaigns/{name}/stages", tags=["models"])
    def stages(name: str, limit: Limit = 50, cursor: VersionCursor = None) -> schemas.StagePage:
        """The models so far, newest first, a page at a time."""
        with service.store.reading() as tx:
            row, _ = found(tx, name)
            length = Campaigns.config(tx, row.campaign_id).stage_length
            rows = tx.model_page(row.campaign_id, cursor, limit + 1)
        return schemas.StagePage(
            stages=[_stage(model, length) for model in rows[:limit]],
            next_cursor=rows[limit - 1]["version"] if len(rows) > limit else None,
        )

    @app.get("/healthz", tags=["operations"])
    async def healthz() -> schemas.Health:
        """Is the process up?"""
        return schemas.Health()

    @app.get("/readyz", tags=["operations"])
    def readyz() -> schemas.Health:
        """Can it decide: does the database answer and take writes, and is its schema the one this version needs?"""
        require_current(service.store)
        service.store.require_writes()
        return schemas.Health()

    exposition = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", tags=["operations"], response_class=Response, responses={200: exposition})
    async def metrics(request: Request) -> Response:
        """For Prometheus: what all workers have done since the start, and where every campaign stands."""
        content, content_type = await service.exporter.export(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})


async def creation(service: Service, config: CampaignConfig) -> Create:
    """The creation of a campaign, after every check that needs no other campaign."""
    given = config.model_dump_json(exclude_unset=True).encode()
    try:
        policy = await run_in_threadpool(StagedPolicy, config)  # a wide feature map takes a while
    except PolicyError as error:
        raise InvalidError.of_policy(error) from None
    service.sender.check(config)
    return Create(config.name, policy, hashlib.blake2b(given, digest_size=16).digest())


def possible(name: str) -> str:
    """A name that a campaign could have: PostgreSQL's text cannot even ask for one with a zero byte."""
    if "\x00" in name:
        raise NotFoundError(f"There is no campaign {name!r}")
    return name


async def current(service: Service, name: str) -> tuple[StagedPolicy, State]:
    """A campaign's policy and state, as of now; also while the database takes no writes, as long as it can be read."""
    try:
        policy, state = await service.submit(Current(possible(name)))
    except UnavailableError:
        policy, state = await run_in_threadpool(service.campaigns.read, name)
    return policy, state


def campaign_state(service: Service, name: str) -> schemas.CampaignState:
    """Where a campaign stands, and its configuration."""
    with service.store.reading() as tx:
        row, created_at = found(tx, name)
        config = Campaigns.config(tx, row.campaign_id)
    return schemas.CampaignState(**_summary(row, config), created_at=timestamp(created_at), config=config)


def stored_decision(
    tx: Transaction, campaigns: Campaigns, campaign: LiveRow, decision_id: str
) -> schemas.StoredDecision:
    """A decision as it was made: request, answer, explanation, and the reward if it has come."""
    row = campaigns.decision(tx, campaign, decision_id)
    if row is None:
        raise NotFoundError(f"Campaign {campaign.name} has no decision {decision_id!r}")
    if row["erased"]:
        raise GoneError(f"Decision {decision_id!r} was erased")
    stage_length = Campaigns.config(tx, campaign.campaign_id).stage_length
    known = KnownDecision(**{field: row[field] for field in KnownDecision._fields})
    reward = {field: row[field] for field in ("reward", "source")} | {"received_at": _when(row["received_at"])}
    return schemas.StoredDecision(
        **msgspec.json.decode(decision_answers(campaign.name, stage_length, [known])[0]),
        context=None if row["context"] is None else msgspec.json.decode(row["context"]),
        excluded_actions=msgspec.json.decode(row["excluded_actions"] or "[]"),
        at=_when(row["at"]),
        reward=None if row["reward"] is None else schemas.StoredReward.model_validate(reward),
    )


def _when(micros: int | None) -> str | None:
    return None if micros is None else timestamp(micros)


def _summary(row: LiveRow, config: CampaignConfig) -> dict[str, Any]:
    belief = msgspec.json.decode(row.belief)
    return {
        "name": row.name,
        "paused": config.paused,
        "archived_at": _when(row.archived_at),
        "round": row.round,
        "stage": -(-row.round // config.stage_length),
        "model_version": row.model_version,
        "regimes": len(belief),
        "belief": belief,
        "rewards_received": row.arrived,
        "rewards_waiting": row.arrived - row.folded,
        "updated_at": timestamp(row.clock),
        "failure": row.failure,
    }


def _stage(row: Row, stage_length: int) -> schemas.Stage:
    return schemas.Stage(
        model_version=row["version"],
        kind=row["kind"],
        round=row["round"],
        stage=row["round"] // stage_length + 1,
        rewards_folded=row["folded"],
        regimes=row["regimes"],
        seconds=row["seconds"],
        published_at=timestamp(row["published_at"]),
    )


def _model(config: CampaignConfig, found: ModelDescription) -> schemas.Model:
    regimes, labels = [], dict(enumerate(config.regime_labels))
    if found.hmm is not None:
        for h in range(found.regimes):
            emission = [{"symbol": s.symbol, "probability": s.probability} for s in found.hmm.emission[h]]
            regimes.append(
                schemas.Regime(
                    regime=h + 1,
                    label=labels.get(h),
                    share=found.hmm.stationary[h],
                    expected_duration=found.hmm.expected_duration[h],
                    initial=found.hmm.initial[h],
                    transition=list(found.hmm.transition[h]),
                    signals=found.hmm.signal_laws[h],
                    emission=[schemas.SymbolProbability.model_validate(symbol) for symbol in emission],
                )
            )
    return schemas.Model(
        campaign=config.name,
        model_version=found.model_version,
        round=found.round,
        rewards_folded=found.folded,
        regimes=regimes,
        guarded=found.guarded,
        noise_std=found.noise_std,
        ridge=found.ridge,
        centre=found.centre,
        coefficients=[schemas.Coefficient.model_validate(c._asdict()) for c in found.coefficients],
        candidates=[schemas.Candidate.model_validate(c._asdict()) for c in found.candidates],
    )
