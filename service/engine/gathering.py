"""Gather the operations that wait, of all campaigns, into one transaction and one commit, without a timer (R18, R19).

A campaign is in one transaction of a worker at a time. What takes long is done apart, in a thread, and only its own
campaign waits for it: work that a quick look finds long, and everything that is not a decision or a reward.

On SQLite one gather at a time runs on the event loop and does not wait, since its commit takes a fraction of a
millisecond. On PostgreSQL a few may be under way, so that the loop works while the database commits. A campaign that
another worker has locked waits for a later gather, and nobody waits for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

from service.base.errors import UnavailableError
from service.engine.campaigns import Campaigns, Postponed, Processed
from service.engine.operations import Operation, Snapshot, count_items
from service.engine.work import Job
from service.storage.engines import BUSY_SECONDS

LARGEST_GATHER = 1_000  # decisions and rewards; a single batch may have as many
MOST_TRANSACTIONS = 3  # of gathers on PostgreSQL at a time
WORTH_ANOTHER = 16  # requests that must wait for another transaction to begin beside one that is under way
THREADS = 4
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.05  # seconds until a campaign that another worker holds is tried again
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


Group = list[_Waiting[object]]


class Gatherer:
    """Takes operations from the event loop, gathers them, and resolves their futures."""

    def __init__(self, campaigns: Campaigns, background: Callable[[Job | Snapshot], None]) -> None:
        self._campaigns, self._background = campaigns, background
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not that of a request, whose id must not appear in shared work
        self._waiting: dict[str, Group] = {}  # by campaign
        self._count = 0  # of all that wait
        self._busy: set[str] = set()  # campaigns in a transaction, in a thread, or held by another worker
        self._held_since: dict[str, tuple[float, float]] = {}  # when another worker's lock was met, and the last pause
        self._is_scheduled = False
        self._transactions = 0
        embedded = campaigns.store.embedded
        # SQLite's only writer: on the event loop, or in a thread.
        self._writer: AbstractAsyncContextManager[None] = asyncio.Lock() if embedded else nullcontext()
        self._most_transactions = 1 if embedded else MOST_TRANSACTIONS
        self._threads = ThreadPoolExecutor(THREADS, "apart")
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation[T]) -> "asyncio.Future[T]":
        """Return a future of the operation's result, set once it is committed."""
        future: asyncio.Future[T] = self._loop.create_future()
        waiting: _Waiting[T] = _Waiting(operation, future)
        self._waiting.setdefault(operation.campaign, []).append(waiting)
        self._count += 1
        self._idle.clear()
        if not self._is_scheduled:
            self._schedule(0)
        return future

    def _schedule(self, seen: int = -1) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._gather, seen, context=self._context)

    def _gather(self, seen: int) -> None:
        """Wait as long as each turn of the event loop brings another request; there is no timer."""
        if -1 < seen < self._count < LARGEST_GATHER:
            self._schedule(self._count)
            return
        self._is_scheduled = False
        if self._transactions and not self._is_worth_another:
            return  # the end of one that is under way gathers again
        groups = dict(self._take_groups())
        if groups:
            self._transactions += 1
            self._start_task(self._run_gather(groups))
            if self._waiting:
                self._schedule()

    @property
    def _is_worth_another(self) -> bool:
        """Should another transaction begin? Few large ones cost less than many small ones."""
        return self._count >= WORTH_ANOTHER and self._transactions < self._most_transactions

    def _take_groups(self) -> Iterator[tuple[str, Group]]:
        """Take what waits for campaigns that are not busy. The first fits whatever its size."""
        room = LARGEST_GATHER
        for name in [name for name in self._waiting if name not in self._busy]:
            group = self._waiting.pop(name)
            weights = [count_items(waiting.operation) for waiting in group]
            has_requests_only = all(weights)
            taken = 0
            while taken < len(group) and (room == LARGEST_GATHER or weights[taken] <= room):
                room -= weights[taken]
                taken += 1
            if not has_requests_only:
                taken = len(group)
            if taken < len(group):
                self._waiting[name] = group[taken:]
            self._count -= taken
            if not taken:
                continue
            self._busy.add(name)
            if has_requests_only:
                yield name, group[:taken]
            else:
                self._start_task(self._run_apart(name, group))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_gather(self, groups: dict[str, Group]) -> None:
        try:
            async with self._writer:
                processed: Processed | Exception = await self._campaigns.gather(_list_operations(groups))
        except Exception as error:
            processed = error
        self._transactions -= 1
        self._hand_back(groups, processed)

    async def _run_apart(self, name: str, group: Group) -> None:
        """Do long work in a thread.

        On SQLite, decisions and rewards are first worked out there without the lock, then written on the event loop. A
        change is made by the thread, and all writing waits for it.
        """
        operations = [waiting.operation for waiting in group]
        run, campaigns = self._loop.run_in_executor, self._campaigns
        try:
            if campaigns.store.embedded and all(map(count_items, operations)):
                prepared = await run(self._threads, campaigns.prepare, operations)
                async with self._writer:
                    processed: Processed | Exception = await campaigns.write(prepared)
            else:
                async with self._writer:
                    processed = await run(self._threads, campaigns.process, operations)
        except Exception as error:
            processed = error
        self._hand_back({name: group}, processed)

    def _hand_back(self, groups: dict[str, Group], processed: Processed | Exception) -> None:
        outcomes = iter(() if isinstance(processed, Exception) else processed.outcomes)
        for name, group in groups.items():
            results = [processed if isinstance(processed, Exception) else next(outcomes) for _ in group]
            if results[0] is Postponed.LONG:
                self._start_task(self._run_apart(name, group))
            elif results[0] is Postponed.HELD:
                self._put_back(name, group)
            else:
                self._held_since.pop(name, None)
                self._busy.discard(name)
                for waiting, outcome in zip(group, results, strict=True):
                    waiting.resolve(outcome)
        if self._waiting and not self._is_scheduled:
            self._schedule(0)
        elif not (self._waiting or self._busy):
            self._idle.set()
        if not isinstance(processed, Exception):
            for work in processed.work:
                self._background(work)

    def _put_back(self, name: str, group: Group) -> None:
        """Try a campaign that another worker holds again, a little later each time."""
        now = self._loop.time()
        since, pause = self._held_since.get(name, (now, 0.0))  # at first it need only be read again
        if now - since > BUSY_SECONDS:
            error = UnavailableError(f"Campaign {name} is in use by another worker; try again")
            self._held_since.pop(name, None)
            self._busy.discard(name)
            for waiting in group:
                waiting.resolve(error)
            return
        self._waiting[name] = group + self._waiting.get(name, [])
        self._count += len(group)
        self._held_since[name] = since, min(max(2 * pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._loop.call_later(pause, self._release, name, context=self._context)

    def _release(self, name: str) -> None:
        self._busy.discard(name)
        if not self._is_scheduled:
            self._schedule()

    async def close(self) -> None:
        """Finish all operations that were accepted."""
        await self._idle.wait()
        self._threads.shutdown()


def _list_operations(groups: dict[str, Group]) -> Sequence[Operation[object]]:
    return [waiting.operation for group in groups.values() for waiting in group]
