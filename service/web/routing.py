"""Routes that know who may call them: the framework's own kind, and lean ones for requests that write."""

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
from service.access.credentials import require_campaign
from service.access.roles import Access, get_access
from service.base.errors import FieldProblem, InvalidError, TooLargeError
from service.engine.requests import MAX_BATCH
from service.web.protocol import read_body
from service.web.requests import ANSWER

MOST_MISTAKES = 1_000  # that an error lists
Body = TypeVar("Body", bound=BaseModel)


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


class LeanRoute(DeclaredRoute):
    """A POST route whose endpoint takes the validated body, and the request if it has such a parameter, and returns
    bytes.

    An endpoint that is not a coroutine returns a lane's future, so its requests need no task.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        parameters = [kind for name, kind in get_type_hints(endpoint).items() if name != "return"]
        (body,) = (kind for kind in parameters if kind is not Request)
        self._takes_request = Request in parameters
        self._body: type[BaseModel] = body
        self._campaign: str | None = None  # the field of the body that names the campaign
        if self.access.campaign == "body":
            self._campaign = next(name for name in ("campaign", "name") if name in body.model_fields)
        self._endpoint: Callable[..., Awaitable[bytes]] = endpoint
        self.status = self.status_code or 200
        self.is_direct = not iscoroutinefunction(endpoint)

    def start(self, scope: Scope, body: bytes) -> Awaitable[bytes]:
        """Validate the body, check that the request's key covers its campaign, and call the endpoint."""
        request = parse_body(self._body, body)
        if self._campaign is not None:
            require_campaign(scope, getattr(request, self._campaign))
        return self._endpoint(request, Request(scope)) if self._takes_request else self._endpoint(request)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.start(scope, await read_body(scope, receive))
        await send({"type": ANSWER, "status": self.status, "body": answer})


def get_path(scope: Scope) -> str:
    """Return the path of a request below the path that a reverse proxy mounts the service at."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


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


def parse_body(kind: type[Body], body: bytes) -> Body:
    """Parse a body as its model; the error names every invalid field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        _refuse_long_batch(error)
        if error.error_count() > MOST_MISTAKES:  # listing them all would take seconds
            problem = FieldProblem(field="body", message=f"{error.error_count()} mistakes", allowed="see /docs")
            raise InvalidError([problem]) from None
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise InvalidError.from_pydantic(problems) from None
    except PolicyError as error:
        raise InvalidError.from_policy(error) from None


def _refuse_long_batch(error: ValidationError) -> None:
    """Report a batch with too many items as too large rather than invalid."""
    if error.error_count() == 1:
        (problem,) = error.errors(include_url=False)
        if (problem["type"], problem["loc"]) == ("too_long", ("items",)):
            raise TooLargeError(f"The batch has more than {MAX_BATCH} items; send several smaller batches") from None
