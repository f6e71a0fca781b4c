"""Every request as it is seen from outside: its id, how long it took, what became of it."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from time import perf_counter

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.errors import ApiError
from service.base.logs import REQUEST_ID
from service.engine.metrics import Metrics
from service.web.errors import failure_response, response_of
from service.web.headers import KIND, by_kind
from service.web.protocol import WHOLE, Sending

__all__ = ["ANSWER", "Requests"]

HEADER = b"x-request-id"
ANSWER = "undercurrent.answer"  # a message of ours: a whole answer in JSON, to be sent in one piece
ALLOWED = re.compile(rb"[!-~]{1,128}")  # visible ASCII: safe in a header and in a log
NO_ROUTE = "other"  # what no route answers, and mounted files: their paths are the caller's to invent
SLOW_SECONDS = 1.0
log = logging.getLogger("undercurrent.request")


class Requests:
    """Gives every request its id and every answer its headers; counts, times and, if need be, logs it."""

    def __init__(self, metrics: Metrics, access_log: bool, https: bool = False) -> None:
        self._metrics, self._access_log, self._headers = metrics, access_log, by_kind(https)
        self._whole = _written([(b"content-type", b"application/json"), *self._headers["api"]])
        self._prefix, self._numbers = os.urandom(6).hex().encode(), count(1)

    async def watch(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `answer` answer. Its unexpected exception ends here once a status is sent: this is where it is logged."""
        begun, status = perf_counter(), 0
        request_id = self._id(scope["headers"])
        REQUEST_ID.set(request_id.decode())

        async def receiving() -> Message:
            nonlocal begun
            message = await receive()
            if message["type"] == "http.request":
                begun = perf_counter()  # a slow sender is no slow answer
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == ANSWER:
                status, body = message["status"], message["body"]
                if WHOLE in scope:
                    await scope[WHOLE](status, self._with_own(body, request_id), body)
                    return
                headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
                await sending({"type": "http.response.start", "status": status, "headers": headers})
                message = {"type": "http.response.body", "body": body}
            elif message["type"] == "http.response.start":
                status = message["status"]
                fixed = self._headers[scope.get(KIND, "api")]
                message["headers"] = [*message.get("headers", ()), *fixed, (HEADER, request_id)]
            await send(message)

        error: Exception | None = None
        try:
            await answer(scope, receiving, sending)
        except Exception as unexpected:
            if not status:  # then the server logs it, and sends a bare 500
                raise
            error = unexpected
        finally:
            scope.pop(WHOLE, None)  # it knows the scope: nothing of the request would go before the collector comes
            self._over(scope, begun, status or 500, error)

    def direct(
        self, answer: Callable[[Scope, bytes], "asyncio.Future[bytes]"], scope: Scope, body: bytes, send: Sending
    ) -> None:
        """What `watch` does, without a task: for a request that came whole, whose answer is a future's result."""
        begun, request_id = perf_counter(), self._id(scope["headers"])
        token = REQUEST_ID.set(request_id.decode())
        try:
            future = answer(scope, body)
        except Exception as error:
            self._leave(scope, begun, request_id, send, error)
        else:  # called in a copy of this context: with the id
            future.add_done_callback(partial(self._come, scope, begun, request_id, send))
        finally:
            REQUEST_ID.reset(token)

    def _come(
        self, scope: Scope, begun: float, request_id: bytes, send: Sending, future: "asyncio.Future[bytes]"
    ) -> None:
        self._leave(scope, begun, request_id, send, future.exception() or future.result())

    def _leave(
        self, scope: Scope, begun: float, request_id: bytes, send: Sending, outcome: bytes | BaseException
    ) -> None:
        """Send what came of a request: its answer, an error of ours, or that something failed."""
        failure = None
        if isinstance(outcome, bytes):
            status = scope["route"].status
            send(status, self._with_own(outcome, request_id), outcome)
        else:
            response, failure = _told(outcome)
            status = response.status_code
            headers = [*response.raw_headers, *self._headers["api"], (HEADER, request_id)]
            send(status, _written(headers), bytes(response.body))
        self._over(scope, begun, status, failure)

    def _with_own(self, body: bytes, request_id: bytes) -> bytes:
        """The headers of an answer in JSON, as they are sent."""
        return b"%bcontent-length: %d\r\n%b: %b\r\n" % (self._whole, len(body), HEADER, request_id)

    def _over(self, scope: Scope, begun: float, status: int, error: BaseException | None) -> None:
        """Count a request that was answered, and tell of it if it is worth it."""
        seconds = perf_counter() - begun
        route, method = scope.get("route"), scope["method"]
        template = route.path_format if isinstance(route, Route) else NO_ROUTE
        self._metrics.request(template, method, status, seconds)
        if error is not None or status >= 500 or seconds > SLOW_SECONDS or self._access_log:
            _tell(template, method, status, seconds, error)

    def _id(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The caller's, if it sent a good one."""
        for name, value in headers:
            if name == HEADER:
                if ALLOWED.fullmatch(value):
                    return value
                break
        return b"%b-%x" % (self._prefix, next(self._numbers))


def _told(outcome: BaseException) -> tuple[Response, BaseException | None]:
    """An error as it is answered; and what failed, if nobody expected it."""
    if isinstance(outcome, ApiError):
        try:
            return response_of(outcome), None
        except Exception as unexpected:
            outcome = unexpected
    return failure_response(), outcome


def _written(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _tell(route: str, method: str, status: int, seconds: float, error: BaseException | None) -> None:
    fields = {"method": method, "route": route, "status": status, "milliseconds": round(1_000 * seconds, 3)}
    if error is not None:
        log.error("request failed", extra=fields, exc_info=error)
    elif status >= 500:
        log.warning("request failed", extra=fields)
    elif seconds > SLOW_SECONDS:
        log.warning("slow request", extra=fields)
    else:
        log.info("request", extra=fields)
