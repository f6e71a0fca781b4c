"""Routes that carry who may call them, in two kinds: the framework's own, and lean ones for what writes."""

from collections.abc import Awaitable, Callable, Coroutine
from inspect import iscoroutinefunction
from json import JSONDecodeError
from typing import Any, TypeVar, get_type_hints

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Receive, Scope, Send

from policy import PolicyError
from service.access.auth import require
from service.access.roles import Access, get_access
from service.base.errors import FieldProblem, InvalidError, TooLargeError
from service.engine.requests import MAX_BATCH
from service.web.protocol import body_of
from service.web.requests import ANSWER

__all__ = ["DeclaredRoute", "LeanRoute", "find_access", "find_route", "get_path"]

MOST_MISTAKES = 1_000
Body = TypeVar("Body", bound=BaseModel)


class _Read(Request):
    """A request whose body is read as those of the lean routes are: UTF-8 only, and no half of a surrogate pair."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from None


class DeclaredRoute(APIRoute):
    """A route of the framework's own kind, but for how it reads a body, whose endpoint declares who may call it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.access = get_access(endpoint)
        super().__init__(path, endpoint, **settings)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await answer(_Read(request.scope, request.receive))

        return read


class LeanRoute(DeclaredRoute):
    """A POST whose endpoint takes the one validated body, and the request if it asks for it, and returns bytes.

    An endpoint that is no coroutine returns a lane's future: its requests need no task.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        taken = [kind for name, kind in get_type_hints(endpoint).items() if name != "return"]
        (body,) = (kind for kind in taken if kind is not Request)
        self._asks = Request in taken
        self._body: type[BaseModel] = body
        self._campaign: str | None = None  # the field of the body that names the campaign
        if self.access.campaign == "body":
            self._campaign = next(name for name in ("campaign", "name") if name in body.model_fields)
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


def get_path(scope: Scope) -> str:
    """Return the path of a request below the path that a reverse proxy mounts the service at."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def find_route(scope: Scope, routes: list[BaseRoute]) -> tuple[BaseRoute | None, str | None]:
    """Find the route that answers a request, and the campaign that the path names."""
    for route in routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return route, found.get("path_params", {}).get("name")
    return None, None


def find_access(route: BaseRoute) -> Access:
    """Return who may call a route. Mounted files declare it too; anything else is an error."""
    access = getattr(route.app if isinstance(route, Mount) else route, "access", None)
    if not isinstance(access, Access):
        raise TypeError(f"{route} does not declare who may call it")
    return access


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
