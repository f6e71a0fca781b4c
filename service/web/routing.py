"""Routes that know who may call them: the framework's own kind, and lean ones, which are answered without it."""

from collections.abc import Awaitable, Callable, Coroutine
from inspect import Parameter, Signature
from json import JSONDecodeError
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

from service.access.keys import require_campaign
from service.access.roles import Access, allow, get_access
from service.base.errors import FieldProblem, InvalidError
from service.web.bodies import SMALL_BODY, Validator

# Takes the validated body, the name of the campaign ("" if the body names none) and the scope; gives the answer's JSON.
LeanEndpoint = Callable[[Any, str, Scope], Awaitable[bytes]]


class StrictRequest(Request):
    """A request whose JSON is read as strictly as on lean routes: UTF-8 only, without lone surrogates."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from None


class DeclaredRoute(APIRoute):
    """One of the framework's routes whose endpoint declares who may call it, with strict JSON."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.access = get_access(endpoint)
        super().__init__(path, endpoint, **settings)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


class LeanRoute:
    """A POST route that is answered without the framework, which only describes it."""

    def __init__(self, path: str, body: Any, endpoint: LeanEndpoint, status: int, largest: int) -> None:
        self.path, self.status, self.largest = path, status, largest
        self.access = get_access(endpoint)
        if "{name}" in path:
            self.access = self.access._replace(campaign="path")
        self._endpoint, self._body = endpoint, body
        self._validator = Validator(body)
        names = ("campaign", "name") if self.access.campaign in ("path", "body") else ()
        # The field of the body that names the campaign.
        self._field = next((name for name in names if name in getattr(body, "model_fields", ())), None)

    async def answer(self, body: bytes, named: str | None, scope: Scope) -> bytes:
        """Validate the body, check that the request's key covers its campaign, and call the endpoint.

        `named` is the campaign that the path names."""
        validate = self._validator
        content = validate.validate(body) if len(body) <= SMALL_BODY else await validate.validate_large(body)
        campaign = None if self._field is None else getattr(content, self._field)
        if named is None:
            if campaign is not None:
                require_campaign(scope, campaign)
        elif campaign is not None and campaign != named:
            raise InvalidError(
                [FieldProblem(field="campaign", message="is not the campaign of the path", allowed=named)]
            )
        return await self._endpoint(content, named or campaign or "", scope)

    def make_description(self) -> Callable[..., None]:
        """Make a function with the signature that the framework describes in the OpenAPI document."""

        @allow(*self.access)
        def describe() -> None:
            raise NotImplementedError

        names = {"name": str, "body": self._body} if "{name}" in self.path else {"body": self._body}
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in names.items()]
        describe.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        describe.__name__, describe.__doc__ = self._endpoint.__name__, self._endpoint.__doc__
        return describe


def get_path(scope: Scope) -> str:
    """Return the path of a request below the path that a reverse proxy mounts the service at."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def find_route(scope: Scope, routes: list[BaseRoute]) -> tuple[BaseRoute | None, str | None]:
    """Find the route that answers a request, and the campaign that the path names."""
    for route in routes:
        match, child_scope = route.matches(scope)
        if match is Match.FULL:
            return route, child_scope.get("path_params", {}).get("name")
    return None, None


def find_access(route: BaseRoute) -> Access:
    """Return who may call a route. Mounted files declare it too; anything else is an error."""
    access = getattr(route.app if isinstance(route, Mount) else route, "access", None)
    if not isinstance(access, Access):
        raise TypeError(f"{route} does not declare who may call it")
    return access
