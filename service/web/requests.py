"""What happens to every request: it gets an id, its answer gets headers, and it is timed, counted and logged."""

import logging
import os
import re
from itertools import count
from time import perf_counter

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.logs import REQUEST_ID
from service.engine.metrics import Metrics
from service.web.headers import KIND, encode_headers

HEADER = b"x-request-id"
ALLOWED = re.compile(rb"[!-~]{1,128}")  # visible ASCII: safe in a header and in a log
NO_ROUTE = "other"  # no route, or mounted files; callers could invent any number of paths
SLOW_SECONDS = 1.0
log = logging.getLogger("undercurrent.request")


class Requests:
    """Gives every request an id and every answer its headers; times and counts them, and logs the notable ones."""

    def __init__(self, metrics: Metrics, access_log: bool, https: bool = False) -> None:
        self._metrics, self._access_log, self._headers = metrics, access_log, encode_headers(https)
        self.json_headers = [(b"content-type", b"application/json"), *self._headers["api"]]
        self._prefix, self._numbers = os.urandom(6).hex().encode(), count(1)

    async def watch(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `answer` answer a request. If it fails after it has sent a status, the exception is logged here."""
        started, status = perf_counter(), 0
        request_id = self.identify(scope)

        async def receive_timed() -> Message:
            nonlocal started
            message = await receive()
            if message["type"] == "http.request":
                started = perf_counter()  # the time to send the body does not count
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
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
            route = scope.get("route")
            template = route.path_format if isinstance(route, Route) else NO_ROUTE
            self.finish(template, scope["method"], status or 500, started, error)

    def identify(self, scope: Scope) -> bytes:
        """Return the caller's request id if it sent a valid one, else a new one; log records get it too."""
        request_id = None
        for name, value in scope["headers"]:
            if name == HEADER:
                request_id = value if ALLOWED.fullmatch(value) else None
                break
        if request_id is None:
            request_id = b"%b-%x" % (self._prefix, next(self._numbers))
        REQUEST_ID.set(request_id.decode())
        return request_id

    def add_headers(self, response: Response) -> list[tuple[bytes, bytes]]:
        """Return the headers of an error's response with those of every answer, but not its length."""
        return [*(header for header in response.raw_headers if header[0] != b"content-length"), *self._headers["api"]]

    def finish(self, route: str, method: str, status: int, started: float, error: BaseException | None) -> None:
        """Count a request that was answered, and log it if it is notable. `route` is a template."""
        seconds = perf_counter() - started
        self._metrics.count_request(route, method, status, seconds)
        if error is not None or status >= 500 or seconds > SLOW_SECONDS or self._access_log:
            _log_request(route, method, status, seconds, error)


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
