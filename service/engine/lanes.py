"""Lanes: the requests that are waiting share one transaction and one commit, without a timer (R18, R19).

SQLite has one writer, so there is one lane for the database, and its transactions run on the event loop itself: handing
a commit of a fraction of a millisecond to a thread and back costs several times that. PostgreSQL has a lane for each
campaign. Its transactions run on the event loop too, in fibers, which step aside while they wait for the database;
those that may take long, because the campaign is not in memory or its configuration changes, have threads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import accumulate
from typing import Any

from service.engine.campaigns import Campaigns
from service.engine.operations import Decide, Operation, Outcome, Reward, Snapshot
from service.engine.unit import Job
from service.storage.fibers import run_in_fiber
from service.storage.store import WouldBlockError

__all__ = ["Lanes"]

LARGEST_GATHER = 1_000  # decisions and rewards; a single batch may have as many
MOST_FIBERS = 6  # at a time: while one works, the others' transactions are with the database
Work = tuple[list[Outcome], list[Job | Snapshot]]


class _Lane:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Operation, asyncio.Future[Any]]] = []
        self.running = False

    def take(self, count: int) -> tuple[list[Operation], list[asyncio.Future[Any]]]:
        """The first that wait: they wait no more."""
        gathered, self.waiting = self.waiting[:count], self.waiting[count:]
        return [operation for operation, _ in gathered], [future for _, future in gathered]


class Lanes:
    """Takes operations from the event loop, gathers what waits, and hands the outcomes back."""

    def __init__(self, campaigns: Campaigns, background: Callable[[Job | Snapshot], None], threads: int = 8) -> None:
        self._process, self._campaigns, self._store = campaigns.process, campaigns, campaigns.store
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not a request's: what many share must not carry the id of one
        self._lanes: dict[str, _Lane] = {}
        self._pool = None if campaigns.store.embedded else ThreadPoolExecutor(threads, "lane")
        self._fibers = 0
        self._queue: deque[tuple[str, _Lane]] = deque()  # lanes that wait for one of them to end
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """The operation's outcome, once it is committed."""
        key = "" if self._pool is None else operation.campaign
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        future = self._loop.create_future()
        lane.waiting.append((operation, future))
        if not lane.running:
            lane.running = True
            self._idle.clear()
            self._loop.call_soon(self._gather, key, lane, 0, context=self._context)
        return future

    def _gather(self, key: str, lane: _Lane, seen: int) -> None:
        """Wait as long as every turn of the loop brings another request that was already on its way; no timer."""
        count = len(lane.waiting)
        if seen < count < LARGEST_GATHER:
            self._loop.call_soon(self._gather, key, lane, count, context=self._context)
        else:
            self._run(key, lane)

    def _run(self, key: str, lane: _Lane) -> None:
        weights = accumulate(len(o.items) if isinstance(o, (Decide, Reward)) else 1 for o, _ in lane.waiting)
        count = max(1, sum(weight <= LARGEST_GATHER for weight in weights))
        if self._pool is None:
            self._work(key, lane, *lane.take(count))
            return
        short = all(isinstance(o, (Decide, Reward)) for o, _ in lane.waiting[:count]) and self._campaigns.is_in_memory(
            key
        )
        if short and self._fibers >= MOST_FIBERS:
            self._queue.append((key, lane))
        elif short and self._store.has_spare_connection:
            self._fibers += 1
            run_in_fiber(self._loop, partial(self._work_in_fiber, key, lane, *lane.take(count)))
        else:
            self._work_in_thread(key, lane, *lane.take(count))

    def _work(
        self, key: str, lane: _Lane, operations: Sequence[Operation], futures: Sequence[asyncio.Future[Any]]
    ) -> None:
        try:
            work: Work | BaseException = self._process(operations)
        except WouldBlockError:  # a thread has taken the last connection, or another worker has decided a lot
            self._work_in_thread(key, lane, operations, futures)
            return
        except Exception as error:
            work = error
        self._hand_back(key, lane, futures, work)

    def _work_in_thread(
        self, key: str, lane: _Lane, operations: Sequence[Operation], futures: Sequence[asyncio.Future[Any]]
    ) -> None:
        done = self._loop.run_in_executor(self._pool, self._process, operations)
        done.add_done_callback(lambda task: self._hand_back(key, lane, futures, task.exception() or task.result()))

    def _work_in_fiber(self, key: str, lane: _Lane, *work: Any) -> None:
        try:
            self._work(key, lane, *work)
        finally:
            self._fibers -= 1
            if self._queue:
                self._loop.call_soon(self._next, context=self._context)

    def _next(self) -> None:
        """Those that wait for a fiber to end; some may go to a thread by now, and make room for none."""
        while self._queue and self._fibers < MOST_FIBERS:
            self._run(*self._queue.popleft())

    def _hand_back(
        self, key: str, lane: _Lane, futures: Sequence[asyncio.Future[Any]], work: Work | BaseException
    ) -> None:
        outcomes: Sequence[Any] = [work] * len(futures) if isinstance(work, BaseException) else work[0]
        for future, outcome in zip(futures, outcomes, strict=True):
            if future.done():  # its client is gone; what it asked for is committed all the same
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if lane.waiting:
            self._loop.call_soon(self._gather, key, lane, 0, context=self._context)
        else:
            lane.running = False
            del self._lanes[key]
            if not self._lanes:
                self._idle.set()
        if not isinstance(work, BaseException):
            for task in work[1]:
                self._background(task)

    async def close(self) -> None:
        """Finish what was accepted."""
        await self._idle.wait()
        if self._pool is not None:
            self._pool.shutdown()
