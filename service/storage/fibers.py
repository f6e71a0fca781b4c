"""Fibers: code that waits for PostgreSQL as it would in a thread, while the event loop goes on.

A transaction of one decision waits twice and works for half a millisecond. Handing it to another thread and back took
more time than the work itself. A fiber (a greenlet) stays on the loop's thread: where it must wait for a socket, it
yields to the loop, which resumes it when there is an answer.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any

import psycopg
from greenlet import getcurrent, greenlet
from psycopg.abc import RV, PQGen
from psycopg.waiting import Ready, Wait

READING, WRITING = Wait.R, Wait.W


class _Fiber(greenlet):  # type: ignore[misc]
    """Runs on a loop's thread and yields to the loop whenever it waits."""

    loop: asyncio.AbstractEventLoop


def run_in_fiber(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run the work on the loop's thread up to its first wait; the loop resumes it."""
    fiber = _Fiber(work)
    fiber.loop = loop
    fiber.switch()


def in_fiber() -> bool:
    """Is this code in a fiber? Then waiting for anything but a socket would block the loop."""
    return isinstance(getcurrent(), _Fiber)


def wait_for(socket: int, what: int) -> int:
    """Wait until a socket is ready to read or write, as requested; returns which."""
    fiber = getcurrent()
    if not isinstance(fiber, _Fiber):  # a thread of its own
        poll = select.poll()
        poll.register(socket, (select.POLLIN if what & READING else 0) | (select.POLLOUT if what & WRITING else 0))
        ((_, events),) = poll.poll()
        writable = bool(events & select.POLLOUT) and bool(what & WRITING)
        return (READING if events & ~select.POLLOUT else 0) | (WRITING if writable else 0)
    loop = fiber.loop
    if what & READING:
        loop.add_reader(socket, _resume, fiber, socket, what, READING)
    if what & WRITING:
        loop.add_writer(socket, _resume, fiber, socket, what, WRITING)
    found: int = fiber.parent.switch()
    return found


def _resume(fiber: _Fiber, socket: int, what: int, found: int) -> None:
    """Resume the fiber from the loop itself: uvloop's callback for the socket must return first."""
    if what & READING:
        fiber.loop.remove_reader(socket)
    if what & WRITING:
        fiber.loop.remove_writer(socket)
    fiber.loop.call_soon(fiber.switch, found)


class Connection(psycopg.Connection[Any]):
    """A connection that waits as a fiber, whatever it waits for."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if not in_fiber():
            return super().wait(gen, interval, timeout)
        try:
            needed = next(gen)
            while True:
                needed = gen.send(Ready(wait_for(self.pgconn.socket, needed)))
        except StopIteration as end:
            value: RV = end.value
            return value
