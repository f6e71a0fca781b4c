"""The application around the routes: FastAPI, with a lean way to the routes that write."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.auth import PERSONALIZER, Keys
from service.access.browsers import Visitors
from service.base.errors import ApiError
from service.web.errors import response_of
from service.web.openapi import describe_api
from service.web.protocol import Sending, with_body
from service.web.requests import Requests
from service.web.routing import DeclaredRoute, LeanRoute, find_access, find_route, get_path

__all__ = ["Answer", "Application"]

FAILURE = "undercurrent.failure"  # in the scope: an exception that nobody expected
Answer = asyncio.Future[bytes]
LeanEndpoint = TypeVar("LeanEndpoint", bound=Callable[..., Awaitable[bytes]])


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

    def __init__(self, requests: Requests, keys: Keys, visitors: Visitors, **settings: Any) -> None:
        super().__init__(**settings)
        self.keys = keys
        self._visitors = visitors
        self.router.route_class = DeclaredRoute
        self.add_middleware(Failing)
        self._requests = requests
        self._lean: dict[str, LeanRoute] = {}
        self._described: bool | None = None  # as one that asks for keys?

    def post_lean(self, path: str, **settings: Any) -> Callable[[LeanEndpoint], LeanEndpoint]:
        """Like `post`, for an endpoint that returns the bytes of its answer; OpenAPI describes it like any other."""

        def add(endpoint: LeanEndpoint) -> LeanEndpoint:
            self.router.add_api_route(path, endpoint, methods=["POST"], route_class_override=LeanRoute, **settings)
            self._lean[path] = cast("LeanRoute", self.router.routes[-1])
            return endpoint

        return add

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
        self._admit(scope, route.path, route)
        return cast("Answer", route.begin(scope, body))

    def _admit(self, scope: Scope, path: str, lean: LeanRoute | None) -> None:
        """Refuse who may not ask."""
        if not self.keys.on:
            self._visitors.admit(scope)
            return
        route, campaign = (lean, None) if lean is not None else find_route(scope, self.routes)
        self.keys.admit(scope, path, None if route is None else find_access(route), campaign)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = get_path(scope)
        if path.startswith(f"/{PERSONALIZER}"):  # its clients put a slash after an address that ends with one
            scope["path"] = scope["path"].replace(f"/{PERSONALIZER}", PERSONALIZER, 1)
            path = path[1:]
        route = self._lean.get(path) if scope["method"] == "POST" else None
        if route is not None:
            scope["route"] = route
        try:
            self._admit(scope, path, route)
            if route is not None:
                await route.answer(scope, receive, send)
                return
            receive = await with_body(scope, receive)
        except ApiError as error:
            if route is None:  # so that it is counted where it belongs
                scope["route"], _ = find_route(scope, self.routes)
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
        if self.openapi_schema is None or self._described != self.keys.on:
            self.openapi_schema, self._described = None, self.keys.on
            describe_api(super().openapi(), self.routes, self.keys.on)
        return super().openapi()
