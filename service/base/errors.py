"""The errors of the API (R24), and the one JSON shape they all have."""

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

MOST_FIELDS = 50  # named by one error


class ApiError(Exception):
    """An error answer: its status, a message that says what to do, and the fields it is about."""

    status = 500
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, fields: Sequence["FieldProblem"] = (), public: str | None = None) -> None:
        self.message, self.fields = message, fields
        self.public = public or message  # the message for clients
        super().__init__(message)


class UnauthorizedError(ApiError):
    status = 401  # no key, or an invalid one
    headers: Mapping[str, str] = {"www-authenticate": "Bearer"}


class ForbiddenError(ApiError):
    status = 403  # a valid key that may not do this


class NotFoundError(ApiError):
    status = 404


class RequestTimeoutError(ApiError):
    status = 408  # the body did not arrive
    headers: Mapping[str, str] = {"connection": "close"}  # bytes that still arrive are not a new request


class ConflictError(ApiError):
    status = 409

    @classmethod
    def from_fixed(cls, campaign: str, error: FixedError) -> "ConflictError":
        fields = _list_problems(error)
        named = ", ".join(problem.field for problem in fields)
        clone = f"clone it with the change instead: POST /campaigns/{campaign}/clone"
        if all(problem.field in ("actions", "retired_actions") for problem in fields):
            clone = f"POST /campaigns/{campaign}/actions adds one, …/actions/retire retires one; or {clone}"
        return cls(f"{named} cannot change during the life of a campaign; {clone}", fields)


class GoneError(ApiError):
    status = 410  # erased on request


class TooLargeError(ApiError):
    status = 413


class InvalidError(ApiError):
    """The request is invalid; built from errors of the policy or of pydantic."""

    status = 422

    def __init__(self, fields: Sequence["FieldProblem"]) -> None:
        named = fields[:MOST_FIELDS]
        rest = f"; and {len(fields) - len(named)} more" if len(fields) > len(named) else ""
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in named) + rest, named)

    @classmethod
    def from_policy(cls, error: PolicyError) -> "InvalidError":
        return cls(_list_problems(error))

    @classmethod
    def from_pydantic(cls, problems: Sequence[Any]) -> "InvalidError":
        return cls([_describe_problem(problem) for problem in problems])


class TooManyRequestsError(ApiError):
    status = 429

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.headers = {"retry-after": str(retry_seconds)}


class UnavailableError(ApiError):
    status = 503  # temporarily unavailable; safe to retry
    headers: Mapping[str, str] = {"retry-after": "1"}


# The words for pydantic's constraints, by the key in the error's context.
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

# What is allowed where pydantic does not say so: by a missing field, or by the kind of problem.
EXPECTED = {
    "reward_id": "your id of this amount: repeated under it, it counts once",
    "timezone_aware": "a time with its zone, like 2026-11-18T09:30:00Z",
    "float_type": "a number",
    "finite_number": "a finite number",
}


class FieldProblem(BaseModel):
    """What is wrong with one field of the request, and which values are allowed."""

    field: str
    message: str
    allowed: Any = None


class ErrorDetail(BaseModel):
    """A stable code for programs, a message for people, and the fields the error is about."""

    code: str
    message: str
    fields: list[FieldProblem] = []


class ErrorBody(BaseModel):
    """The body of every answer with a status of 400 or above."""

    error: ErrorDetail


def build_error_detail(error: ApiError) -> ErrorDetail:
    return ErrorDetail(code=CODES[error.status], message=error.public, fields=list(error.fields))


def list_bad_items(first: ApiError, bad: Mapping[int, ApiError]) -> ApiError:
    """The error of a batch with bad items: the first one's status, and the fields of all of them.

    If there are too many, each item is named by its first problem before any is named by a second.
    """
    by_item = [
        list(error.fields) or [FieldProblem(field=f"items[{i}].decision_id", message=error.message)]
        for i, error in bad.items()
    ]
    problems = [problem for item in by_item for problem in item]
    if len(problems) > MOST_FIELDS:
        problems = [item[0] for item in by_item] + [problem for item in by_item for problem in item[1:]]
    return InvalidError(problems) if isinstance(first, InvalidError) else type(first)(first.message, problems)


def _list_problems(error: PolicyError) -> list[FieldProblem]:
    return [FieldProblem(field=p.field, message=p.message, allowed=p.allowed) for p in error.problems]


def _describe_problem(problem: Mapping[str, Any]) -> FieldProblem:
    place, *path = problem["loc"]
    context = problem.get("ctx", {})
    if problem["type"] == "json_invalid":  # its path is a character position, not a field
        return FieldProblem(field=str(place), message=f"Invalid JSON: {context['error']}", allowed="JSON in UTF-8")
    bounds = [f"{BOUNDS[name]} {value}" for name, value in context.items() if name in BOUNDS]
    field = ""
    for part in path:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    if problem["type"] == "missing":
        # Say of a parameter that it belongs in the query, not in the body.
        allowed = f"?{field}=…" if place == "query" else EXPECTED.get(field)
        return FieldProblem(field=field or str(place), message="is required", allowed=allowed)
    return FieldProblem(
        field=field or str(place),
        message=problem["msg"],
        allowed=context.get("expected") or ", ".join(bounds) or EXPECTED.get(problem["type"]),
    )
