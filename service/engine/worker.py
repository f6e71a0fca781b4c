"""One worker: its store, campaigns, gatherer, background work and webhook messages, from start to stop."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from service.access.gate import Keys
from service.base.process import settle_process, share_one_heap
from service.base.rehearsal import RehearsalClock
from service.base.settings import Settings
from service.engine.background import Background
from service.engine.campaigns import Campaigns
from service.engine.gathering import Gatherer
from service.engine.metrics import Exporter, Metrics
from service.engine.operations import Archive, Change, Create, Delete, Operation
from service.engine.warm_up import load_first, warm_up
from service.engine.webhooks import Sender
from service.storage.schema import require_current
from service.storage.store import Store

CHANGES = (Create, Change, Archive, Delete)  # the operations that change what a list of campaigns shows
T = TypeVar("T")
log = logging.getLogger("undercurrent")


def _now() -> int:
    return time.time_ns() // 1_000


class Service:
    """Everything that a worker runs. `clock` gives microseconds since 1970."""

    def __init__(self, settings: Settings, clock: Callable[[], int] = _now) -> None:
        self.rehearsal_clock = RehearsalClock(clock) if settings.rehearsal else None
        clock = self.rehearsal_clock or clock
        self.metrics = Metrics()
        self.store = Store(settings.database_url, failed=self._report_database_failure, serving=True)
        self.keys = Keys(self.store, settings.workers)
        self.exporter = Exporter(self.metrics, self.store)
        self.sender = Sender(self.store, clock, self.metrics, settings.webhook_secret, settings.webhook_private)
        self.campaigns = Campaigns(self.store, clock, metrics=self.metrics, on_messages=self.sender.wake)
        self.background = Background(self.campaigns)
        self.changed_at = 0.0  # when this worker last created or changed a campaign, by the monotonic clock
        self._gatherer: Gatherer | None = None
        self._warming: asyncio.Future[None] | None = None

    async def start(self) -> None:
        share_one_heap()
        require_current(self.store)
        await self.store.start()
        load_first()
        settle_process()
        self._warming = asyncio.get_running_loop().run_in_executor(None, warm_up)
        self._gatherer = self.background.gatherer = Gatherer(self.campaigns, self.background.start)
        self.background.watch()
        self.sender.start()
        self.keys.start()

    def submit(self, operation: Operation[T]) -> "asyncio.Future[T]":
        """Return a future of the operation's result, set once it is committed."""
        assert self._gatherer is not None, "the service has not started"
        future = self._gatherer.submit(operation)
        if isinstance(operation, CHANGES):
            future.add_done_callback(self._note_change)
        return future

    def _note_change(self, _: object) -> None:
        self.changed_at = time.monotonic()

    def _report_database_failure(self, reason: str) -> None:
        self.metrics.count_database_failure()
        log.warning("the database does not answer", extra={"reason": reason})

    async def stop(self) -> None:
        """Finish all accepted operations, then close the database."""
        if self._gatherer is not None:
            await self.background.close()
            await self._gatherer.close()
        await self.sender.close()
        if self._warming is not None:
            await self._warming
        await self.keys.close()
        self.exporter.close()
        await self.store.stop()
