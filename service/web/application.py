"""The application: FastAPI, with access control in front of it and a shortcut to the lean routes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from service.access.browsers import Visitors
from service.access.credentials import PERSONALIZER
from service.access.gate import Keys
from service.base.errors import ApiError
from service.web.errors import make_failure_response, make_response
from service.web.openapi import describe_api
from service.web.protocol import SendWhole, read_ahead
from service.web.requests import Requests
from service.web.routing import DeclaredRoute, LeanRoute, find_access, find_route, get_path

Answer = asyncio.Future[bytes]
LeanEndpoint = TypeVar("LeanEndpoint", bound=Callable[..., Awaitable[bytes]])


class Application(FastAPI):
    """FastAPI, except that access is checked before its middleware runs, and lean routes bypass the middleware."""

    def __init__(self, requests: Requests, keys: Keys, visitors: Visitors, **settings: Any) -> None:
        super().__init__(**settings)
        self.router.route_class = DeclaredRoute
        self.keys = keys
        self._requests, self._visitors = requests, visitors
        self._lean: dict[str, LeanRoute] = {}
        self.describers: list[Callable[[dict[str, Any]], None]] = []  # each completes the OpenAPI document
        self._described_with_keys: bool | None = None

    def post_lean(self, path: str, **settings: Any) -> Callable[[LeanEndpoint], LeanEndpoint]:
        """Like `post`, for an endpoint that returns the bytes of its answer. OpenAPI describes it like any other."""

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

    def handle_directly(self, scope: Scope, body: bytes, send: SendWhole) -> bool:
        """Handle a complete request without a task, if its route allows that and no proxy prefixes its path."""
        route = self._lean.get(scope["path"])
        if route is None or not route.is_direct or scope["method"] != "POST":
            return False
        self._requests.handle_directly(partial(self._start, route), scope, body, send)
        return True

    def _start(self, route: LeanRoute, scope: Scope, body: bytes) -> Answer:
        scope["route"] = route  # as the framework's router does
        self._admit(scope, route.path, route)
        return cast("Answer", route.start(scope, body))

    def _admit(self, scope: Scope, path: str, lean: LeanRoute | None) -> None:
        """Refuse a request that its sender may not make."""
        if not self.keys.on:
            self._visitors.admit(scope)
            return
        route, campaign = (lean, None) if lean is not None else find_route(scope, self.routes)
        self.keys.admit(scope, path, None if route is None else find_access(route), campaign)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = get_path(scope)
        if path.startswith(f"/{PERSONALIZER}"):  # its clients add a slash to a base address that ends with one
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
            receive = await read_ahead(scope, receive)
        except ApiError as error:
            if route is None:  # the metrics count requests by route
                scope["route"], _ = find_route(scope, self.routes)
            await make_response(error)(scope, receive, send)
            return
        except Exception:  # as the framework does: answer, then let it be logged
            await make_failure_response()(scope, receive, send)
            raise
        if scope["method"] in ("POST", "PATCH"):
            # Every body is JSON, so a client such as `curl -d` need not say so.
            kept = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope["headers"] = [*kept, (b"content-type", b"application/json")]
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document. It changes when the first key is created: from then on requests need one."""
        if self.openapi_schema is None or self._described_with_keys != self.keys.on:
            self.openapi_schema, self._described_with_keys = None, self.keys.on
            schema = super().openapi()
            describe_api(schema, self.routes, self.keys.on)
            for describe in self.describers:
                describe(schema)
        return super().openapi()
