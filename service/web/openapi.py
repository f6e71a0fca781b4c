"""What the OpenAPI document says beside what the framework finds out: the errors of each route, and who needs a key."""

from collections.abc import Mapping
from typing import Any

from policy.changes import CHANGEABLE
from service.access.auth import PUBLIC, READING, RULES, declare_security
from service.base.errors import ErrorBody
from service.web.protocol import BODILESS

__all__ = ["describe_api"]

# The errors that are a route's own. Those that follow from its kind are added: keys, rate limits, bodies, the database.
ERRORS: dict[tuple[str, str], tuple[int, ...]] = {
    ("POST", "/decide"): (404, 409, 410, 422),
    ("POST", "/decide/batch"): (404, 409, 410, 422),
    ("POST", "/reward"): (404, 409, 410, 422),
    ("POST", "/reward/batch"): (404, 422),
    ("POST", "/personalizer/v1.0/rank"): (409, 410, 422),
    ("POST", "/personalizer/v1.0/events/{eventId}/reward"): (404, 409, 410, 422),
    ("POST", "/personalizer/v1.0/events/{eventId}/activate"): (404, 409, 410, 422),
    ("GET", "/campaigns"): (422,),
    ("POST", "/campaigns"): (409, 422),
    ("POST", "/campaigns/check"): (409, 422),
    ("GET", "/campaigns/{name}"): (404,),
    ("PATCH", "/campaigns/{name}"): (404, 409, 422),
    ("DELETE", "/campaigns/{name}"): (404, 409, 422),
    ("GET", "/campaigns/{name}/decisions"): (404, 422, 429),
    ("GET", "/campaigns/{name}/decisions/{decision_id}"): (404, 410),
    ("GET", "/campaigns/{name}/model"): (404,),
    ("GET", "/campaigns/{name}/stages"): (404, 422),
    ("GET", "/campaigns/{name}/revisions"): (404, 422),
    ("GET", "/campaigns/{name}/alerts"): (404, 422),
    ("GET", "/campaigns/{name}/report"): (404, 422),
    ("GET", "/campaigns/{name}/regimes"): (404,),
    ("GET", "/campaigns/{name}/diagnostics"): (404,),
    ("GET", "/campaigns/{name}/series"): (404, 422),
    ("POST", "/campaigns/{name}/preview"): (404, 422),
    ("POST", "/campaigns/{name}/explain"): (404, 410, 422),
    ("POST", "/campaigns/{name}/archive"): (404,),
    ("POST", "/campaigns/{name}/unarchive"): (404,),
    ("POST", "/campaigns/{name}/rollback"): (404, 409, 422),
    ("POST", "/campaigns/{name}/actions"): (404, 409, 422),
    ("POST", "/campaigns/{name}/actions/retire"): (404, 409, 422),
    ("POST", "/campaigns/{name}/import"): (404, 409, 422),
    ("POST", "/campaigns/{name}/clone"): (404, 409, 422),
    ("POST", "/subjects/erase"): (422,),
    ("POST", "/subjects/export"): (422,),
    ("GET", "/audit"): (422,),
    ("GET", "/metrics"): (),
    ("GET", "/healthz"): (),
    ("GET", "/readyz"): (),
}
WITHOUT_DATABASE = {("GET", "/healthz"), ("GET", "/metrics")}  # what the latter can tell without it, it tells
MEANINGS = {
    401: "No key, or none that is known",
    403: "A good key, but not for this",
    404: "There is no such campaign, decision or event",
    408: "The body did not come in time",
    409: "It does not fit what is there",
    410: "It was erased",
    413: "The body is too large",
    422: "The request is not right; each field that is wrong is named",
    429: "Too many requests",
    503: "Not now: nothing was changed, or a retry finds out",
}
NULL = {"type": "null"}
# With these comes a header that says more.
HEADERS = {
    401: {"WWW-Authenticate": {"description": "how to send a key", "schema": {"const": "Bearer"}}},
    429: {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}},
    503: {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}},
}


def describe_api(schema: dict[str, Any], keys: bool) -> None:
    """Complete the framework's document, of a service that asks for keys or of one that does not."""
    schema["components"]["schemas"].update(_error_shape())
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's own shape, which no error has
        schema["components"]["schemas"].pop(name, None)
    schema["components"]["responses"] = {str(status): _response(status) for status in MEANINGS}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            good = {status: answer for status, answer in operation["responses"].items() if status < "300"}
            told = {str(status): {"$ref": f"#/components/responses/{status}"} for status in _errors(method, path)}
            operation["responses"] = good | told
    _describe_patches(schema)
    declare_security(schema, keys)


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


def _errors(method: str, path: str) -> list[int]:
    request = (method.upper(), path)
    rule = next(rule for (m, p), rule in RULES.items() if (m, p.replace(":path}", "}")) == request)
    found = {*ERRORS[request]}
    if rule.roles is not PUBLIC:
        found |= {401, 429}
        if not (rule.roles is READING and rule.campaign == "list"):  # whose answer holds what the key is good for
            found.add(403)
    if request[0] not in BODILESS:
        found |= {408, 413}
    if request not in WITHOUT_DATABASE:
        found.add(503)
    return sorted(found)


def _response(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    return {"description": MEANINGS[status], "content": content} | (
        {"headers": HEADERS[status]} if status in HEADERS else {}
    )


def _error_shape() -> dict[str, Any]:
    shape = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**shape.pop("$defs"), "ErrorBody": shape}
