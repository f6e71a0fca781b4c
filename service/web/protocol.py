"""The server's side of a connection: what a client may send and in which time, and answers that leave in one piece."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from starlette.types import Message, Receive, Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.base.errors import RequestTimeoutError, TooLargeError
from service.web.errors import error_response

__all__ = ["KEEP_ALIVE_SECONDS", "LARGEST_BODY", "WHOLE", "Protocol", "Sending", "body_of", "with_body"]

LARGEST_BODY = 4 * 2**20
REQUEST_SECONDS = 30.0  # for a request's headers, and again for its body
KEEP_ALIVE_SECONDS = 75  # more than the 60 s of common proxies: they close an idle connection first
LARGEST_UNASKED = 2 * LARGEST_BODY  # bytes while no request is being answered: headers
LARGEST_REFUSED = 4 * LARGEST_BODY  # of a body that was refused: many clients read no answer before they have sent all
LATE = "undercurrent.late"  # in the scope: the body did not come in time
WHOLE = "undercurrent.whole"  # in the scope: sends a whole answer at once; missing if the server is another
Sending = Callable[[int, bytes, bytes], None]  # a whole answer: its status, its headers as they are sent, its body
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})  # nobody reads what they may bring


async def body_of(scope: Scope, receive: Receive) -> bytes:
    """The whole body. One that says it is too large is refused before any of it is read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > LARGEST_BODY:
            raise _too_large()
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
        raise _too_large()
    if LATE in scope or message["type"] == "http.disconnect":
        raise RequestTimeoutError(f"The body was not complete within {REQUEST_SECONDS:g} s")
    return body


def _too_large() -> TooLargeError:
    return TooLargeError(f"The body is larger than {LARGEST_BODY} bytes; send several smaller batches")


async def with_body(scope: Scope, receive: Receive) -> Receive:
    """`receive` for the framework, whose routes would read a body of any size: it is read here, within the limits."""
    if scope["method"] in BODILESS:
        return receive
    unread: list[Message] = [{"type": "http.request", "body": await body_of(scope, receive), "more_body": False}]

    async def again() -> Message:
        return unread.pop() if unread else await receive()

    return again


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, which would wait for headers and bodies for ever.

    There is a timer only while a request is incomplete; one that comes in a single piece, as most do, starts none. Such
    a request is first offered to the application's `direct`, which may take it without a task of its own.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._incomplete: str | None = "headers"
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(REQUEST_SECONDS, self._overdue)
        self._unasked = 0
        self._parsing = False
        self._begun: RequestResponseCycle | None = None  # whose answering waits until all that came is parsed
        self._direct: Callable[[Scope, bytes, Sending], bool] | None = getattr(self.app, "direct", None)
        self._always: tuple[object, bytes] = (None, b"")

    def data_received(self, data: bytes) -> None:
        self._parsing = True
        super().data_received(data)
        self._parsing = False
        self._limit(data)
        begun, self._begun = self._begun, None
        if begun is not None and not self._taken(begun):
            self._start_asgi_task(begun, self.app)

    def _limit(self, data: bytes) -> None:
        """How much may come, and by when, before a request is complete."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            incomplete: str | None = "headers"  # or the rest of a body that nobody wants
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
                self._timer = self.loop.call_later(REQUEST_SECONDS, self._overdue)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._parsing and self._direct is not None and app is self.app:
            self._begun = cycle
        else:
            cycle.scope[WHOLE] = partial(self._send, cycle)  # type: ignore[literal-required]
            super()._start_asgi_task(cycle, app)

    def _taken(self, cycle: RequestResponseCycle) -> bool:
        """Did the application take the request directly? Only if it is whole, and nobody waits for leave to send it."""
        if self._direct is None or cycle.more_body or cycle.waiting_for_100_continue or self.flow.read_paused:
            return False
        scope = cast("Scope", cycle.scope)
        return self._direct(scope, bytes(cycle.body), partial(self._send_directly, cycle))

    def _send_directly(self, cycle: RequestResponseCycle, status: int, headers: bytes, body: bytes) -> None:
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
        """A whole answer with one call to the system; uvicorn makes two, and looks at every header again."""
        if cycle.disconnected:
            return
        of, always = self._always
        if of is not cycle.default_headers:  # the server has new ones every second
            always = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
            self._always = cycle.default_headers, always
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], always, headers, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        cycle.on_response = _nothing  # it knows the connection, which knows the cycle

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered in the one shape too (R24)."""
        answer = error_response(400, "This is no HTTP request, or its headers contradict each other")
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%bconnection: close\r\n\r\n%b" % (head, bytes(answer.body)))
        self.transport.close()

    def _overdue(self) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:  # the application waits for the body: let it answer
            cycle.scope[LATE] = True  # type: ignore[literal-required]
            cycle.more_body = False
            cycle.message_event.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unset_keepalive_if_required()  # which would hold all of this for as long, after a reset connection
        super().connection_lost(exc)


def _nothing() -> None:
    """There is nothing more to do after the answer."""
