"""The errors of the client.

ClientError
├── UnreachableError          no answer, although the request was repeated until the client's patience ran out
├── MismatchError             the server is not an Undercurrent service, or has a different version
├── QueueError                the file of a reward queue cannot be used
└── ServiceError              the service refused the request: status, code, message, fields
    ├── AccessError           401, 403: the key is missing, unknown or not sufficient
    ├── NotFoundError         404
    ├── ConflictError         409: for example, the id was used for a different request
    ├── GoneError             410: the decision was erased
    ├── TooLargeError         413
    ├── InvalidError          422: `fields` says which fields are wrong, why, and what is allowed
    ├── TooManyRequestsError  429: `retry_after` says how many seconds to wait
    └── UnavailableError      502, 503, 504: temporarily unavailable, and safe to retry
"""

from collections.abc import Sequence
from typing import Any

import msgspec


class ClientError(Exception):
    """Any error of this client."""


class UnreachableError(ClientError):
    """Nothing answered."""


class MismatchError(ClientError):
    """The server is not an Undercurrent service, or has a different version."""


class QueueError(ClientError):
    """The file of a reward queue is damaged or in use."""


class FieldProblem(msgspec.Struct, frozen=True):
    """What is wrong with one field of a request, and which values are allowed."""

    field: str
    message: str
    allowed: Any = None


class ErrorDetail(msgspec.Struct, frozen=True):
    """An error as the service writes it."""

    code: str
    message: str
    fields: tuple[FieldProblem, ...] = ()


class ServiceError(ClientError):
    """An answer other than success. The code is empty if the answer is not in the service's own format."""

    def __init__(self, status: int, detail: ErrorDetail, retry_after: float | None = None) -> None:
        self.status, self.retry_after = status, retry_after
        self.code, self.message = detail.code, detail.message
        self.fields: Sequence[FieldProblem] = detail.fields
        problems = [
            f"{problem.field}: {problem.message}" + (f" (allowed: {problem.allowed})" if problem.allowed else "")
            for problem in detail.fields
        ]
        super().__init__(f"{'; '.join(problems) or detail.message} ({status})")


class AccessError(ServiceError):
    """The key is missing, unknown or not sufficient (401, 403)."""


class NotFoundError(ServiceError):
    """There is no such campaign or decision (404)."""


class ConflictError(ServiceError):
    """The request conflicts with the current state (409)."""


class GoneError(ServiceError):
    """The decision was erased (410)."""


class TooLargeError(ServiceError):
    """The request is too large (413)."""


class InvalidError(ServiceError):
    """The request is invalid (422)."""


class TooManyRequestsError(ServiceError):
    """The key's rate limit is exceeded (429)."""


class UnavailableError(ServiceError):
    """The service is temporarily unavailable, and it is safe to retry (502, 503, 504)."""


KINDS: dict[int, type[ServiceError]] = {
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: TooLargeError,
    422: InvalidError,
    429: TooManyRequestsError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}
# The HTTP status that stands for the code of one item's error in a batch.
STATUSES = {"not_found": 404, "conflict": 409, "gone": 410, "too_large": 413, "invalid": 422}


def make_service_error(status: int, detail: ErrorDetail, retry_after: float | None = None) -> ServiceError:
    """Make the error of the class that belongs to a status."""
    return KINDS.get(status, ServiceError)(status, detail, retry_after)


def make_item_error(detail: ErrorDetail) -> ServiceError:
    """Make the error of one item of a batch."""
    return make_service_error(STATUSES.get(detail.code, 400), detail)
