"""The application around the routes: FastAPI, with a lean way to the routes that write."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from json import JSONDecodeError
from typing import Any, TypeVar, cast, get_type_hints

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette._utils import get_route_path
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from policy import PolicyError
from service.access.auth import PERSONALIZER, Keys, require
from service.access.browsers import Visitors
from service.base.errors import (
    ApiError,
    FieldProblem,
    InvalidError,
    TooLargeError,
)
from service.engine.requests import MAX_BATCH
from service.web.errors import response_of
from service.web.openapi import describe_api
from service.web.protocol import Sending, body_of, with_body
from service.web.requests import ANSWER, Requests

MOST_MISTAKES = 1_000
FAILURE = "undercurrent.failure"  # in the scope: an exception that nobody expected
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
