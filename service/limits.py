"""The server's side of a connection: what a client may send and in which time, and answers that leave in one piece."""

import asyncio

from starlette.types import Message, Receive, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import RequestTimeoutError, TooLargeError, error_response

__all__ = ["KEEP_ALIVE_SECONDS", "LARGEST_BODY", "WHOLE", "Protocol", "body_of", "with_body"]

LARGEST_BODY = 4 * 2**20
REQUEST_SECONDS = 30.0  # for a request's headers, and again for its body
KEEP_ALIVE_SECONDS = 75  # more than the 60 s of common proxies: they close an idle connection first
LARGEST_UNASKED = 2 * LARGEST_BODY  # bytes while no request is being answered: headers
LARGEST_REFUSED = 4 * LARGEST_BODY  # of a body that was refused: many clients read no answer before they have sent all
LATE = "undercurrent.late"  # in the scope: the body did not come in time
WHOLE = "undercurrent.whole"  # in the scope: sends a whole answer at once; missing if the server is another
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

    There is a timer only while a request is incomplete; one that comes in a single piece, as most do, starts none.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._incomplete: str | None = "headers"
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(REQUEST_SECONDS, self._overdue)
        self._unasked = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # else it became another protocol's
            self.scope[WHOLE] = _Whole(self.cycle)  # type: ignore[literal-required]

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


class _Whole:
    """Sends a whole answer with one call to the system; uvicorn makes two, and looks at every header again."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    async def __call__(self, status: int, headers: bytes, body: bytes) -> None:
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        always = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        cycle.transport.write(b"".join((STATUS_LINE[status], always, headers, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
