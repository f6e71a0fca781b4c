"""The one error shape of the API (R24), for our own errors and for those the framework makes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from policy import FixedError, PolicyError

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    410: "gone",
    413: "too_large",
    422: "invalid",
    429: "too_many_requests",
    500: "internal_error",
    503: "unavailable",
}

MOST_FIELDS = 50  # that one error names


class ApiError(Exception):
    """An answer that is an error: its status, a message that says what to do, the fields it is about.

    ApiError
    ├── UnauthorizedError      401  no key, or none that is good
    ├── ForbiddenError         403  a good key, but not for this
    ├── NotFoundError          404
    ├── RequestTimeoutError    408  the body did not come
    ├── ConflictError          409
    ├── GoneError              410  it was erased
    ├── TooLargeError          413
    ├── InvalidError           422
    ├── TooManyRequestsError   429
    └── UnavailableError       503  try again: nothing was lost, nothing was counted
    """

    status = 500
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, fields: Sequence["FieldProblem"] = (), public: str | None = None) -> None:
        self.message, self.fields = message, fields
        self.public = public or message  # what a client is told of it
        super().__init__(message)


class UnauthorizedError(ApiError):
    status = 401
    headers: Mapping[str, str] = {"www-authenticate": "Bearer"}


class ForbiddenError(ApiError):
    status = 403


class NotFoundError(ApiError):
    status = 404


class RequestTimeoutError(ApiError):
    status = 408
    headers: Mapping[str, str] = {"connection": "close"}  # what may still come is no new request


class ConflictError(ApiError):
    status = 409

    @classmethod
    def of_fixed(cls, campaign: str, error: FixedError) -> "ConflictError":
        fields = _told(error)
        named = ", ".join(problem.field for problem in fields)
        clone = f"clone it with the change instead: POST /campaigns/{campaign}/clone"
        if all(problem.field in ("actions", "retired_actions") for problem in fields):
            clone = f"POST /campaigns/{campaign}/actions adds one, …/actions/retire retires one; or {clone}"
        return cls(f"{named} cannot change while the campaign lives; {clone}", fields)


class GoneError(ApiError):
    status = 410


class TooLargeError(ApiError):
    status = 413


class InvalidError(ApiError):
    """The request does not fit; built from the policy's own errors, or from pydantic's."""

    status = 422

    def __init__(self, fields: Sequence["FieldProblem"]) -> None:
        told = fields[:MOST_FIELDS]
        rest = f"; and {len(fields) - len(told)} more" if len(fields) > len(told) else ""
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in told) + rest, told)

    @classmethod
    def of_policy(cls, error: PolicyError) -> "InvalidError":
        return cls(_told(error))

    @classmethod
    def of_pydantic(cls, problems: Sequence[Any]) -> "InvalidError":
        return cls([_field_problem(problem) for problem in problems])


class TooManyRequestsError(ApiError):
    status = 429

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.headers = {"retry-after": str(retry_seconds)}


class UnavailableError(ApiError):
    status = 503
    headers: Mapping[str, str] = {"retry-after": "1"}


# What a constraint of pydantic allows, by the keys of its error context; `expected` lists values.
BOUNDS = {
    "ge": "≥",
    "gt": ">",
    "le": "≤",
    "lt": "<",
    "min_length": "length ≥",
    "max_length": "length ≤",
    "multiple_of": "multiple of",
    "pattern": "matching",
}


class FieldProblem(BaseModel):
    """What is wrong with one field of the request, and what it may be."""

    field: str
    message: str
    allowed: Any = None


class ErrorDetail(BaseModel):
    """A stable code for programs, a message for people, and the fields the error is about."""

    code: str
    message: str
    fields: list[FieldProblem] = []


class ErrorBody(BaseModel):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail


def detail_of(error: ApiError) -> ErrorDetail:
    """The error as the body tells it."""
    return ErrorDetail(code=CODES[error.status], message=error.public, fields=list(error.fields))


def _told(error: PolicyError) -> list[FieldProblem]:
    return [FieldProblem(field=p.field, message=p.message, allowed=p.allowed) for p in error.problems]


def _field_problem(problem: Mapping[str, Any]) -> FieldProblem:
    place, *path = problem["loc"]
    context = problem.get("ctx", {})
    if problem["type"] == "json_invalid":  # its path is a character position, no field
        return FieldProblem(field=str(place), message=f"Invalid JSON: {context['error']}", allowed="JSON in UTF-8")
    bounds = [f"{BOUNDS[name]} {value}" for name, value in context.items() if name in BOUNDS]
    field = ""
    for part in path:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    if problem["type"] == "missing":
        allowed = f"?{field}=…" if place == "query" else None  # people look for it in the body
        return FieldProblem(field=field or str(place), message="is required", allowed=allowed)
    return FieldProblem(
        field=field or str(place),
        message=problem["msg"],
        allowed=context.get("expected") or ", ".join(bounds) or None,
    )
