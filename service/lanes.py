"""Lanes: the requests that are waiting share one transaction and one commit, without a timer (R18, R19).

SQLite has one writer, so there is one lane for the database, and its transactions run on the event loop itself: handing
a commit of a fraction of a millisecond to a thread and back costs several times that. PostgreSQL has a lane for each
campaign, whose transactions wait for the network and for the live row's lock in threads.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import accumulate
from typing import Any

from service.campaigns import Campaigns, Decide, Operation, Outcome, Reward, Snapshot
from service.unit import Job

__all__ = ["Lanes"]

LARGEST_GATHER = 1_000  # decisions and rewards; a single batch may have as many
Work = tuple[list[Outcome], list[Job | Snapshot]]


class _Lane:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Operation, asyncio.Future[Any]]] = []
        self.running = False


class Lanes:
    """Takes operations from the event loop, gathers what waits, and hands the outcomes back."""

    def __init__(self, campaigns: Campaigns, background: Callable[[Job | Snapshot], None], threads: int = 8) -> None:
        self._process = campaigns.process
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not a request's: what many share must not carry the id of one
        self._lanes: dict[str, _Lane] = {}
        self._pool = None if campaigns.store.embedded else ThreadPoolExecutor(threads, "lane")
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
        gathered, lane.waiting = lane.waiting[:count], lane.waiting[count:]
        operations = [operation for operation, _ in gathered]
        futures = [future for _, future in gathered]
        if self._pool is None:
            try:
                work: Work | BaseException = self._process(operations)
            except Exception as error:
                work = error
            self._hand_back(key, lane, futures, work)
        else:
            done = self._loop.run_in_executor(self._pool, self._process, operations)
            done.add_done_callback(lambda task: self._hand_back(key, lane, futures, task.exception() or task.result()))

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
