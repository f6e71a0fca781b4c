"""What happens to every request: it gets an id, its answer gets headers, and it is timed, counted and logged."""

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
from service.web.errors import make_failure_response, make_response
from service.web.headers import KIND, encode_headers
from service.web.protocol import SEND_WHOLE, SendWhole

HEADER = b"x-request-id"
ANSWER = "undercurrent.answer"  # our own ASGI message: a whole answer in JSON
ALLOWED = re.compile(rb"[!-~]{1,128}")  # visible ASCII: safe in a header and in a log
NO_ROUTE = "other"  # no route, or mounted files; callers could invent any number of paths
SLOW_SECONDS = 1.0
log = logging.getLogger("undercurrent.request")


class Requests:
    """Gives every request an id and every answer its headers; times and counts them, and logs the notable ones."""

    def __init__(self, metrics: Metrics, access_log: bool, https: bool = False) -> None:
        self._metrics, self._access_log, self._headers = metrics, access_log, encode_headers(https)
        self._json_headers = _encode_headers([(b"content-type", b"application/json"), *self._headers["api"]])
        self._prefix, self._numbers = os.urandom(6).hex().encode(), count(1)

    async def watch(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `answer` answer a request. If it fails after it has sent a status, the exception is logged here."""
        started, status = perf_counter(), 0
        request_id = self._get_id(scope["headers"])
        REQUEST_ID.set(request_id.decode())

        async def receive_timed() -> Message:
            nonlocal started
            message = await receive()
            if message["type"] == "http.request":
                started = perf_counter()  # the time to send the body does not count
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == ANSWER:
                status, body = message["status"], message["body"]
                if SEND_WHOLE in scope:
                    await scope[SEND_WHOLE](status, self._encode_json_headers(body, request_id), body)
                    return
                headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
                await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
                message = {"type": "http.response.body", "body": body}
            elif message["type"] == "http.response.start":
                status = message["status"]
                fixed = self._headers[scope.get(KIND, "api")]
                message["headers"] = [*message.get("headers", ()), *fixed, (HEADER, request_id)]
            await send(message)

        error: Exception | None = None
        try:
            await answer(scope, receive_timed, send_with_headers)
        except Exception as unexpected:
            if not status:  # the server logs it and answers 500
                raise
            error = unexpected
        finally:
            scope.pop(SEND_WHOLE, None)  # breaks a reference cycle: it refers to the scope
            self._finish(scope, started, status or 500, error)

    def handle_directly(
        self, answer: Callable[[Scope, bytes], "asyncio.Future[bytes]"], scope: Scope, body: bytes, send: SendWhole
    ) -> None:
        """Do what `watch` does without a task, for a complete request whose answer is a future's result."""
        started, request_id = perf_counter(), self._get_id(scope["headers"])
        token = REQUEST_ID.set(request_id.decode())
        try:
            future = answer(scope, body)
        except Exception as error:
            self._send_outcome(scope, started, request_id, send, error)
        else:  # the callback runs in a copy of this context, which has the id
            future.add_done_callback(partial(self._send_result, scope, started, request_id, send))
        finally:
            REQUEST_ID.reset(token)

    def _send_result(
        self, scope: Scope, started: float, request_id: bytes, send: SendWhole, future: "asyncio.Future[bytes]"
    ) -> None:
        self._send_outcome(scope, started, request_id, send, future.exception() or future.result())

    def _send_outcome(
        self, scope: Scope, started: float, request_id: bytes, send: SendWhole, outcome: bytes | BaseException
    ) -> None:
        """Send the answer of a request, or the error that it ended with."""
        failure = None
        if isinstance(outcome, bytes):
            status = scope["route"].status
            send(status, self._encode_json_headers(outcome, request_id), outcome)
        else:
            response, failure = _make_error_response(outcome)
            status = response.status_code
            headers = [*response.raw_headers, *self._headers["api"], (HEADER, request_id)]
            send(status, _encode_headers(headers), bytes(response.body))
        self._finish(scope, started, status, failure)

    def _encode_json_headers(self, body: bytes, request_id: bytes) -> bytes:
        """Encode the headers of an answer in JSON."""
        return b"%bcontent-length: %d\r\n%b: %b\r\n" % (self._json_headers, len(body), HEADER, request_id)

    def _finish(self, scope: Scope, started: float, status: int, error: BaseException | None) -> None:
        """Count a request that was answered, and log it if it is notable."""
        seconds = perf_counter() - started
        route, method = scope.get("route"), scope["method"]
        template = route.path_format if isinstance(route, Route) else NO_ROUTE
        self._metrics.count_request(template, method, status, seconds)
        if error is not None or status >= 500 or seconds > SLOW_SECONDS or self._access_log:
            _log_request(template, method, status, seconds, error)

    def _get_id(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the caller's request id if it sent a valid one, else a new one."""
        for name, value in headers:
            if name == HEADER:
                if ALLOWED.fullmatch(value):
                    return value
                break
        return b"%b-%x" % (self._prefix, next(self._numbers))


def _make_error_response(outcome: BaseException) -> tuple[Response, BaseException | None]:
    """Make the response for an exception; return the exception too if it was unexpected."""
    if isinstance(outcome, ApiError):
        try:
            return make_response(outcome), None
        except Exception as unexpected:
            outcome = unexpected
    return make_failure_response(), outcome


def _encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _log_request(route: str, method: str, status: int, seconds: float, error: BaseException | None) -> None:
    fields = {"method": method, "route": route, "status": status, "milliseconds": round(1_000 * seconds, 3)}
    if error is not None:
        log.error("request failed", extra=fields, exc_info=error)
    elif status >= 500:
        log.warning("request failed", extra=fields)
    elif seconds > SLOW_SECONDS:
        log.warning("slow request", extra=fields)
    else:
        log.info("request", extra=fields)
