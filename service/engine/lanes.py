"""Lanes gather the operations that are waiting into one transaction and one commit, without a timer (R18, R19).

SQLite has one writer, so the database has one lane. Its transactions run on the event loop itself: handing a commit of
a fraction of a millisecond to a thread and back would cost several times as much. PostgreSQL has a lane for each
campaign. Its transactions also run on the event loop, in fibers, which yield while they wait for the database. Those
that may take long, because the campaign is not in memory or its configuration changes, run in threads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar, cast

from service.engine.campaigns import Campaigns, Processed
from service.engine.operations import Decide, Operation, Reward, Snapshot
from service.engine.work import Job
from service.storage.fibers import run_in_fiber
from service.storage.store import WouldBlockError

LARGEST_GATHER = 1_000  # decisions and rewards; a single batch may have as many
MOST_FIBERS = 6  # at a time: while one works, the others wait for the database
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Waiting(Generic[T_co]):
    """An operation and the future of its result."""

    __slots__ = ("future", "operation")

    def __init__(self, operation: Operation[T_co], future: "asyncio.Future[T_co]") -> None:
        self.operation, self.future = operation, future

    def resolve(self, outcome: object) -> None:
        """Hand the caller the result, or the exception. HANDLERS ensures that a result has the operation's type."""
        if self.future.done():  # the client is gone, but the operation is committed all the same
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(cast(T_co, outcome))


class _Lane:
    __slots__ = ("is_running", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Waiting[object]] = []
        self.is_running = False

    def take(self, count: int) -> "list[_Waiting[object]]":
        """Remove the first that wait, and return them."""
        gathered, self.waiting = self.waiting[:count], self.waiting[count:]
        return gathered


class Lanes:
    """Takes operations from the event loop, gathers them, and resolves their futures."""

    def __init__(self, campaigns: Campaigns, background: Callable[[Job | Snapshot], None], threads: int = 8) -> None:
        self._campaigns, self._background = campaigns, background
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not that of a request, whose id must not appear in shared work
        self._lanes: dict[str, _Lane] = {}
        self._pool = None if campaigns.store.embedded else ThreadPoolExecutor(threads, "lane")
        self._fibers = 0
        self._queue: deque[tuple[str, _Lane]] = deque()  # lanes that wait for a fiber to end
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation[T]) -> "asyncio.Future[T]":
        """Return a future of the operation's result, set once it is committed."""
        key = "" if self._pool is None else operation.campaign
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        future: asyncio.Future[T] = self._loop.create_future()
        waiting: _Waiting[T] = _Waiting(operation, future)
        lane.waiting.append(waiting)
        if not lane.is_running:
            lane.is_running = True
            self._idle.clear()
            self._loop.call_soon(self._gather, key, lane, 0, context=self._context)
        return future

    def _gather(self, key: str, lane: _Lane, seen: int) -> None:
        """Wait as long as each turn of the event loop brings another request; there is no timer."""
        count = len(lane.waiting)
        if seen < count < LARGEST_GATHER:
            self._loop.call_soon(self._gather, key, lane, count, context=self._context)
        else:
            self._run(key, lane)

    def _run(self, key: str, lane: _Lane) -> None:
        operations = [waiting.operation for waiting in lane.waiting]
        weights = accumulate(len(o.items) if isinstance(o, (Decide, Reward)) else 1 for o in operations)
        count = max(1, sum(weight <= LARGEST_GATHER for weight in weights))
        if self._pool is None:
            self._work(key, lane, lane.take(count))
            return
        has_requests_only = all(isinstance(operation, (Decide, Reward)) for operation in operations[:count])
        is_quick = has_requests_only and self._campaigns.cache.is_quick(key)
        if is_quick and self._fibers >= MOST_FIBERS:
            self._queue.append((key, lane))
        elif is_quick and self._campaigns.store.has_spare_connection:
            self._fibers += 1
            run_in_fiber(self._loop, partial(self._work_in_fiber, key, lane, lane.take(count)))
        else:
            self._work_in_thread(key, lane, lane.take(count))

    def _process(self, gathered: Sequence[_Waiting[object]]) -> Processed:
        return self._campaigns.process([waiting.operation for waiting in gathered])

    def _work(self, key: str, lane: _Lane, gathered: Sequence[_Waiting[object]]) -> None:
        try:
            processed: Processed | BaseException = self._process(gathered)
        except WouldBlockError:  # a thread has taken the last connection, or another worker has decided a lot
            self._work_in_thread(key, lane, gathered)
            return
        except Exception as error:
            processed = error
        self._hand_back(key, lane, gathered, processed)

    def _work_in_thread(self, key: str, lane: _Lane, gathered: Sequence[_Waiting[object]]) -> None:
        done = self._loop.run_in_executor(self._pool, self._process, gathered)
        done.add_done_callback(lambda task: self._hand_back(key, lane, gathered, task.exception() or task.result()))

    def _work_in_fiber(self, key: str, lane: _Lane, gathered: Sequence[_Waiting[object]]) -> None:
        try:
            self._work(key, lane, gathered)
        finally:
            self._fibers -= 1
            if self._queue:
                self._loop.call_soon(self._run_queued, context=self._context)

    def _run_queued(self) -> None:
        """Run the lanes that wait for a fiber. Some may use a thread by now, so several may start."""
        while self._queue and self._fibers < MOST_FIBERS:
            self._run(*self._queue.popleft())

    def _hand_back(
        self, key: str, lane: _Lane, gathered: Sequence[_Waiting[object]], processed: Processed | BaseException
    ) -> None:
        if isinstance(processed, BaseException):
            processed = Processed([processed] * len(gathered), [])
        for waiting, outcome in zip(gathered, processed.outcomes, strict=True):
            waiting.resolve(outcome)
        if lane.waiting:
            self._loop.call_soon(self._gather, key, lane, 0, context=self._context)
        else:
            lane.is_running = False
            del self._lanes[key]
            if not self._lanes:
                self._idle.set()
        for work in processed.work:
            self._background(work)

    async def close(self) -> None:
        """Finish all operations that were accepted."""
        await self._idle.wait()
        if self._pool is not None:
            self._pool.shutdown()
