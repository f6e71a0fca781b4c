"""What we add to the framework's OpenAPI document: the errors of each route, and which routes need a key."""

from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute

from service.access.keys import PERSONALIZER
from service.access.roles import READERS
from service.base.errors import ErrorBody
from service.web.bodies import BODILESS
from service.web.routing import DeclaredRoute

MEANINGS = {
    401: "The key is missing or not valid",
    403: "The key does not allow this",
    404: "No such campaign, decision or event",
    408: "The body did not arrive in time",
    409: "The request conflicts with the current state",
    410: "The decision was erased",
    413: "The body is too large",
    422: "The request is invalid; the answer names each invalid field",
    429: "Too many requests",
    503: "Temporarily unavailable; safe to retry",
}
KEY_DESCRIPTION = "A key, made with `undercurrent keys create`. A service without keys needs none."
# The headers that come with an error.
HEADERS = {
    401: {"WWW-Authenticate": {"description": "how to send a key", "schema": {"const": "Bearer"}}},
    429: {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}},
    503: {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}},
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare a route's own errors: its `responses`, to which 503 is added because the database may be unavailable.

    The document adds those that follow from the route's method and access (no key, a body that is too large …).
    """
    return {status: {"description": MEANINGS[status], "model": ErrorBody} for status in sorted({*statuses, 503})}


def describe_api(schema: dict[str, Any], routes: Iterable[BaseRoute], keys: bool) -> None:
    """Complete the framework's document. `keys` says whether requests need a key."""
    components = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's error shape, which we do not use
        components["schemas"].pop(name, None)
    components["responses"] = {str(status): _response(status) for status in MEANINGS}
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": KEY_DESCRIPTION},
        "personalizer": {
            "type": "apiKey",
            "in": "header",
            "name": "Ocp-Apim-Subscription-Key",
            "description": KEY_DESCRIPTION,
        },
    }
    optional: list[dict[str, list[str]]] = [] if keys else [{}]
    schema["security"] = [{"key": []}, *optional]
    for route in routes:
        if isinstance(route, DeclaredRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = schema["paths"][route.path_format][method.lower()]
                good = {status: answer for status, answer in operation["responses"].items() if status < "400"}
                errors = {str(n): {"$ref": f"#/components/responses/{n}"} for n in _list_errors(route, method)}
                operation["responses"] = good | errors
                if route.access.is_public:
                    operation["security"] = []
                elif route.path.startswith(PERSONALIZER):
                    operation["security"] = [{"personalizer": []}, {"key": []}, *optional]


def _list_errors(route: DeclaredRoute, method: str) -> list[int]:
    """List a route's own errors, and those that follow from its method and from who may call it."""
    errors = {int(status) for status in route.responses if int(status) >= 400}
    if not route.access.is_public:
        errors |= {401, 429}
        # Every key may list campaigns: the answer holds those that the key covers.
        if not (route.access.roles == READERS and route.access.campaign == "list"):
            errors.add(403)
    if method not in BODILESS:
        errors |= {408, 413}
    return sorted(errors)


def _response(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    return {"description": MEANINGS[status], "content": content} | (
        {"headers": HEADERS[status]} if status in HEADERS else {}
    )
