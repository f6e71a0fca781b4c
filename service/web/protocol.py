"""The server's side of a connection: limits on size and time of requests, and answers sent with a single write."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from starlette.types import Message, Receive, Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.base.errors import RequestTimeoutError, TooLargeError
from service.web.errors import make_error_response

LARGEST_BODY = 4 * 2**20
REQUEST_SECONDS = 30.0  # for a request's headers, and again for its body
KEEP_ALIVE_SECONDS = 75  # longer than the 60 s of common proxies, so that they close idle connections first
LARGEST_UNASKED = 2 * LARGEST_BODY  # bytes received while no request is being answered: headers
LARGEST_REFUSED = 4 * LARGEST_BODY  # bytes of a refused body: many clients send all of it before they read
LATE = "undercurrent.late"  # in the scope: the body did not arrive in time
SEND_WHOLE = "undercurrent.whole"  # in the scope: a function that sends a whole answer; only our protocol sets it
SendWhole = Callable[[int, bytes, bytes], None]  # takes the status, the encoded headers and the body
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})  # their bodies are ignored


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Read the whole body. If Content-Length is too large, refuse it before reading."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > LARGEST_BODY:
            raise _make_too_large()
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > LARGEST_BODY:
                break
        body = b"".join(parts)
    if len(body) > LARGEST_BODY:
        raise _make_too_large()
    if LATE in scope or message["type"] == "http.disconnect":
        raise RequestTimeoutError(f"The body did not arrive within {REQUEST_SECONDS:g} s")
    return body


def _make_too_large() -> TooLargeError:
    return TooLargeError(f"The body is larger than {LARGEST_BODY} bytes; send several smaller batches")


async def read_ahead(scope: Scope, receive: Receive) -> Receive:
    """Read the body within the limits, and return a `receive` that gives it to the framework, which has no limits."""
    if scope["method"] in BODILESS:
        return receive
    unread: list[Message] = [{"type": "http.request", "body": await read_body(scope, receive), "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol with time limits; on its own it would wait for headers and bodies forever.

    A timer runs only while a request is incomplete; most requests arrive in one piece and start none. Such a request is
    first offered to the application's `handle_directly`, which may take it without creating a task.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._incomplete: str | None = "headers"
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(REQUEST_SECONDS, self._time_out)
        self._unasked = 0
        self._parsing = False
        self._pending: RequestResponseCycle | None = None  # starts once all received data is parsed
        self._direct: Callable[[Scope, bytes, SendWhole], bool] | None = getattr(self.app, "handle_directly", None)
        self._default_headers: tuple[object, bytes] = (None, b"")

    def data_received(self, data: bytes) -> None:
        self._parsing = True
        super().data_received(data)
        self._parsing = False
        self._enforce_limits(data)
        pending, self._pending = self._pending, None
        if pending is not None and not self._handle_directly(pending):
            self._start_asgi_task(pending, self.app)

    def _enforce_limits(self, data: bytes) -> None:
        """Limit how much may arrive, and by when, before a request is complete."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            incomplete: str | None = "headers"  # or the rest of a refused body
            self._unasked += len(data)
            refused = cycle is not None and cycle.more_body
            if self._unasked > (LARGEST_REFUSED if refused else LARGEST_UNASKED):
                self.transport.close()
        else:
            incomplete = "body" if cycle.more_body else None
            self._unasked = 0
        if incomplete != self._incomplete:
            self._incomplete = incomplete
            self._stop_timer()
            if incomplete is not None:
                self._timer = self.loop.call_later(REQUEST_SECONDS, self._time_out)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._parsing and self._direct is not None and app is self.app:
            self._pending = cycle
        else:
            cycle.scope[SEND_WHOLE] = partial(self._send, cycle)  # type: ignore[literal-required]
            super()._start_asgi_task(cycle, app)

    def _handle_directly(self, cycle: RequestResponseCycle) -> bool:
        """Offer a complete request to the application; return whether it took it."""
        if self._direct is None or cycle.more_body or cycle.waiting_for_100_continue or self.flow.read_paused:
            return False
        scope = cast("Scope", cycle.scope)
        return self._direct(scope, bytes(cycle.body), partial(self._send_now, cycle))

    def _send_now(self, cycle: RequestResponseCycle, status: int, headers: bytes, body: bytes) -> None:
        if self.flow.write_paused:  # the client reads too slowly
            task = self.loop.create_task(self._send(cycle, status, headers, body))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self._write(cycle, status, headers, body)

    async def _send(self, cycle: RequestResponseCycle, status: int, headers: bytes, body: bytes) -> None:
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        self._write(cycle, status, headers, body)

    def _write(self, cycle: RequestResponseCycle, status: int, headers: bytes, body: bytes) -> None:
        """Write a whole answer with one system call; uvicorn makes two, and validates every header."""
        if cycle.disconnected:
            return
        source, encoded = self._default_headers
        if source is not cycle.default_headers:  # the server replaces them every second
            encoded = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
            self._default_headers = cycle.default_headers, encoded
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], encoded, headers, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        cycle.on_response = _do_nothing  # breaks a reference cycle: it refers to the connection

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in the one error shape too (R24)."""
        answer = make_error_response(400, "Invalid HTTP request")
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%bconnection: close\r\n\r\n%b" % (head, bytes(answer.body)))
        self.transport.close()

    def _time_out(self) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:  # the application is waiting for the body: let it answer
            cycle.scope[LATE] = True  # type: ignore[literal-required]
            cycle.more_body = False
            cycle.message_event.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unset_keepalive_if_required()  # after a reset, its timer would keep all of this alive
        super().connection_lost(exc)


def _do_nothing() -> None:
    """Replace a callback that has run."""
