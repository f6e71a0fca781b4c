"""One request and its retries, without any input or output of its own.

A plan is a generator: it yields what to do next (send a request, or pause) and is sent the outcome. The drivers in
`sync_client.py` and `async_client.py` carry it out, so both clients follow the same rules.
"""

import json
import random
import time
from collections.abc import Callable, Generator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from undercurrent_client.errors import (
    ClientError,
    ErrorDetail,
    MismatchError,
    ServiceError,
    UnreachableError,
    make_service_error,
)

SHORTEST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds before a retry; the first one doubles up to the second
RETRIED = frozenset({429, 502, 503, 504})
_KNOWN = frozenset(status.value for status in HTTPStatus)
DEADLINE = 0.25  # seconds until the baseline is returned
IN_TIME = 0.96  # the share of a deadline to wait: coming back takes a moment too
T = TypeVar("T")
A = TypeVar("A")


class Request(NamedTuple):
    """A request to send. The body of a successful answer goes to the file, if there is one."""

    method: str
    path: str
    content: bytes | None = None
    file: Path | None = None


class Answer(NamedTuple):
    """An answer with any status."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Lost(NamedTuple):
    """No answer, or not a whole one."""

    reason: Exception


class Send(NamedTuple):
    """Send the request; the outcome is an `Answer` or `Lost`."""

    request: Request


class Pause(NamedTuple):
    """Do nothing for some seconds."""

    seconds: float


Step = Send | Pause
Outcome = Answer | Lost | None
Plan = Generator[Step, Outcome, T]


class Call(NamedTuple, Generic[T]):
    """A plan to carry out. With a deadline, `fall_back` gives the result if there is no other by then."""

    plan: Plan[T]
    deadline: float | None = None
    fall_back: Callable[[str], T] | None = None

    def get_wait(self) -> float | None:
        """Return how many seconds to wait for the result, so that the fallback is there by the deadline."""
        return None if self.deadline is None else IN_TIME * self.deadline

    def recover(self, error: Exception) -> T:
        """Return the fallback if the service gave no answer; raise the error if it refused the request."""
        refused = isinstance(error, ServiceError) and error.status < 500 and error.status != 429
        if self.fall_back is None or refused:
            raise error
        late = isinstance(error, TimeoutError)
        return self.fall_back(f"no answer within {self.deadline:g} seconds" if late else str(error))


class Core:
    """What both clients know: the address, the key, and how patient they are. Times are in seconds."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = 30.0,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.url, self.key, self.patience, self.deadline = url, key, patience, deadline
        self._clock, self._jitter = clock, jitter

    def ask(self, request: Request, patience: float | None = None) -> Plan[Answer]:
        """Send a request until it is answered; return a successful answer, and raise any other.

        A connection error, 429 and 502 to 504 are followed by another try, if it can begin within `patience` seconds
        of the first failure.
        """
        patience = self.patience if patience is None else patience
        failing_since: float | None = None
        longest = SHORTEST_WAIT
        while True:
            outcome = yield Send(request)
            problem: ClientError
            wait = longest * (0.5 + 0.5 * self._jitter())  # clients that failed together must not return together
            if isinstance(outcome, Answer):
                if 200 <= outcome.status < 300:
                    return outcome
                problem = self.make_error(request, outcome)
                if outcome.status not in RETRIED:
                    raise problem
                wait = wait if problem.retry_after is None else problem.retry_after
            else:
                assert isinstance(outcome, Lost)
                problem = UnreachableError(f"no answer from {self.url} for {patience:g} seconds: {outcome.reason}")
                problem.__cause__ = outcome.reason
            now = self._clock()
            failing_since = now if failing_since is None else failing_since
            if now + wait > failing_since + patience:
                raise problem
            yield Pause(wait)
            longest = min(2 * longest, LONGEST_WAIT)

    def fetch(self, request: Request, kind: type[A], patience: float | None = None) -> Plan[A]:
        """Send a request, and read its answer as JSON of this type."""
        answer = yield from self.ask(request, patience)
        return self.read(request, answer, kind)

    def read(self, request: Request, answer: Answer, kind: type[A]) -> A:
        """Read an answer as JSON of this type."""
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise MismatchError(f"{self.url}{request.path} does not answer as expected: {error}") from None

    def make_error(self, request: Request, answer: Answer) -> ServiceError:
        """Turn a refusal into an error."""
        try:
            detail = msgspec.json.decode(answer.content, type=_Refusal).error
        except msgspec.DecodeError:
            phrase = HTTPStatus(answer.status).phrase if answer.status in _KNOWN else answer.status
            detail = ErrorDetail("", f"{self.url}{request.path} answers {phrase!r}")
        if answer.status in (401, 403):
            wrong = "wrong key" if self.key else "a key is needed"
            detail = msgspec.structs.replace(detail, message=f"{wrong} for {self.url}: {detail.message}")
        return make_service_error(answer.status, detail, _read_retry_after(answer.headers))


class _Refusal(msgspec.Struct):
    error: ErrorDetail


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the seconds of Retry-After, which is a number or a date."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def encode(body: Any) -> bytes:
    """Encode a body as JSON. Numbers that are not finite are a ValueError."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
