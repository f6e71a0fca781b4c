"""What we add to the framework's OpenAPI document: the errors of each route, and which routes need a key."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute

from policy.changes import CHANGEABLE
from service.access.auth import PERSONALIZER
from service.access.roles import READERS
from service.base.errors import ErrorBody
from service.web.protocol import BODILESS
from service.web.routing import DeclaredRoute

__all__ = ["describe_api", "describe_errors"]

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
NULL = {"type": "null"}
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
                good = {status: answer for status, answer in operation["responses"].items() if status < "300"}
                errors = {str(n): {"$ref": f"#/components/responses/{n}"} for n in _list_errors(route, method)}
                operation["responses"] = good | errors
                if route.access.is_public:
                    operation["security"] = []
                elif route.path.startswith(PERSONALIZER):
                    operation["security"] = [{"personalizer": []}, {"key": []}, *optional]
    _describe_patches(schema)


def _describe_patches(schema: dict[str, Any]) -> None:
    """The bodies that hold some fields of a configuration: any of them to clone, a few to change a living campaign."""
    schemas = schema["components"]["schemas"]
    whole = _partial({"$ref": "#/components/schemas/CampaignConfig-Input"}, schemas)
    clone = whole | {"required": ["name"]}
    living: dict[str, Any] = {}
    for field in CHANGEABLE:
        part, _, inner = field.partition(".")
        if inner:  # of this part some fields only
            one = whole["properties"][part]["anyOf"][0]["properties"][inner]
            living.setdefault(part, _nullable(_object({})))["anyOf"][0]["properties"][inner] = one
        else:
            living[part] = whole["properties"][part]
    for path, method, patch in (
        ("/campaigns/{name}/clone", "post", clone),
        ("/campaigns/{name}", "patch", _object(living)),
    ):
        content = schema["paths"][path][method]["requestBody"]["content"]["application/json"]
        content["schema"] = patch | {key: content["schema"][key] for key in ("title", "examples")}


def _partial(part: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a configuration of which any fields may be given, null for their defaults; lists are given whole."""
    found = schemas[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if "anyOf" in found:
        return {"anyOf": [_partial(one, schemas) for one in found["anyOf"]]}
    if "properties" not in found:
        return part
    needed = found.get("required", ())
    parts = {name: _partial(one, schemas) for name, one in found["properties"].items()}
    return _object({name: part if name in needed else _nullable(part) for name, part in parts.items()})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _nullable(part: dict[str, Any]) -> dict[str, Any]:
    kinds = part.get("anyOf", [part])
    return {"anyOf": kinds if NULL in kinds else [*kinds, NULL]}


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
