"""The application: an ASGI application that answers lean routes itself, and hands all other requests to FastAPI."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from service.access.browsers import Visitors
from service.access.gate import Keys
from service.access.keys import PERSONALIZER
from service.base.errors import ApiError
from service.web.bodies import BODILESS, LARGEST_BODY, read_ahead, read_body
from service.web.errors import make_exception_response, make_failure_response, make_response
from service.web.openapi import describe_api
from service.web.requests import HEADER, Requests
from service.web.routing import DeclaredRoute, LeanEndpoint, LeanRoute, find_access, find_route, get_path
from service.web.translation import Translator

CAMPAIGNS = "/campaigns/"
DOUBLED = "/" + PERSONALIZER  # its clients add a slash to a base address that ends with one
NAMED = CAMPAIGNS + "{name}/"  # the lean routes below name their campaign in the path
E = TypeVar("E", bound=LeanEndpoint)


class Application:
    """FastAPI, with lean routes and access control in front of it. Routes are added to `api`, or by `post_lean`."""

    def __init__(self, api: FastAPI, requests: Requests, keys: Keys, visitors: Visitors) -> None:
        api.router.route_class = DeclaredRoute
        self.api = api
        self.describers: list[Callable[[dict[str, Any]], None]] = []  # each completes the OpenAPI document
        self.translators: list[Translator] = []  # for routes whose errors have the shape of another protocol
        self._requests, self._keys, self._visitors = requests, keys, visitors
        self.lean: dict[str, LeanRoute] = {}  # by path
        self._named: dict[str, LeanRoute] = {}  # by what follows the campaign's name in the path
        self._described: tuple[bool, dict[str, Any]] | None = None

    def post_lean(
        self, path: str, body: Any, status: int = 200, largest: int = LARGEST_BODY, **description: Any
    ) -> Callable[[E], E]:
        """Add a route for POST that the framework only describes, like any other. Its bodies have `largest` bytes."""

        def add(endpoint: E) -> E:
            route = LeanRoute(path, body, endpoint, status, largest)
            if path.startswith(NAMED):
                self._named[path.removeprefix(NAMED)] = route
            else:
                self.lean[path] = route
            describe = route.make_description()
            self.api.add_api_route(path, describe, methods=["POST"], status_code=status, **description)
            return endpoint

        return add

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        path = get_path(scope)
        if path.startswith(DOUBLED):
            scope["path"] = scope["path"].replace(DOUBLED, PERSONALIZER, 1)
            path = path[1:]
        if scope["method"] == "POST":
            route, campaign = self.lean.get(path), None
            if route is None and path.startswith(CAMPAIGNS):
                campaign, _, action = path[len(CAMPAIGNS) :].partition("/")
                route = self._named.get(action) if campaign else None
            if route is not None:
                await self._answer(route, path, campaign, scope, receive, send)
                return
        await self._requests.watch(self._pass_on, scope, receive, send)

    async def _answer(
        self, route: LeanRoute, path: str, campaign: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request to a lean route. Nothing here may be slow: this is most of what a decision costs."""
        requests, started, failure = self._requests, perf_counter(), None
        request_id = requests.identify(scope)
        try:
            if self._keys.on:
                self._keys.admit(scope, path, route.access, campaign)
            else:
                self._visitors.admit(scope)
            body = await read_body(scope["headers"], receive, route.largest)
            started = perf_counter()
            status, headers = route.status, requests.json_headers
            answer = await route.answer(body, campaign, scope)
        except Exception as error:
            response, failure = make_exception_response(error)
            status, headers, answer = response.status_code, requests.add_headers(response), bytes(response.body)
        requests.finish(route.path, "POST", status, started, failure)  # who has an answer finds it counted
        headers = [*headers, (b"content-length", b"%d" % len(answer)), (HEADER, request_id)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the framework answer a request that may be made."""
        path = get_path(scope)
        for translator in self.translators:
            if path.startswith(translator.prefix):
                send = translator.wrap(send, path)
        try:
            if self._keys.on:
                route, campaign = find_route(scope, self.api.routes)
                self._keys.admit(scope, path, None if route is None else find_access(route), campaign)
            else:
                self._visitors.admit(scope)
            if scope["method"] not in BODILESS:
                receive = await read_ahead(scope["headers"], receive)
        except ApiError as error:
            scope["route"], _ = find_route(scope, self.api.routes)  # the metrics count requests by route
            await make_response(error)(scope, receive, send)
            return
        except Exception:  # as the framework does: answer, then let it be logged
            await make_failure_response()(scope, receive, send)
            raise
        if scope["method"] in ("POST", "PATCH"):
            # Every body is JSON, so a client such as `curl -d` need not say so.
            kept = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope["headers"] = [*kept, (b"content-type", b"application/json")]
        await self.api(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document. It changes when the first key is created: from then on requests need one."""
        if self._described is None or self._described[0] != self._keys.on:
            self.api.openapi_schema = None
            schema = self.api.openapi()
            describe_api(schema, self.api.routes, self._keys.on)
            for describe in self.describers:
                describe(schema)
            self._described = self._keys.on, schema
        return self._described[1]
