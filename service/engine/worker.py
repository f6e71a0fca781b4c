"""The running parts of one worker: store, campaigns, lanes, background work, messages to webhooks."""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from service.access.gate import Keys
from service.base.memory import share_one_heap
from service.base.settings import Settings
from service.engine.background import Background
from service.engine.campaigns import Campaigns
from service.engine.lanes import Lanes
from service.engine.metrics import Exporter, Metrics
from service.engine.operations import Archive, Change, Create, Delete, Operation
from service.engine.warm_up import load_first, warm_up
from service.engine.webhooks import Sender
from service.storage.schema import require_current
from service.storage.store import Store

__all__ = ["Service"]

CHANGING = (Create, Change, Archive, Delete)  # what lists of campaigns show
# For how long a thread in the background may keep the interpreter from a decision, which lets go of it for every row it
# writes. Python's 5 ms are longer than a decision takes.
SWITCH_SECONDS = 0.0005
# That the collector lets pass between two looks: one batch makes thousands, and hardly ever a cycle.
YOUNG_OBJECTS = 20_000
log = logging.getLogger("undercurrent")


def _now() -> int:
    return time.time_ns() // 1_000


class Service:
    """Everything that a worker runs, from start to stop. `clock` gives microseconds since 1970."""

    def __init__(self, settings: Settings, clock: Callable[[], int] = _now) -> None:
        self.metrics = Metrics()
        self.store = Store(settings.database_url, failed=self._database_failed, serving=True)
        self.keys = Keys(self.store, settings.workers)
        self.exporter = Exporter(self.metrics, self.store)
        self.sender = Sender(self.store, clock, self.metrics, settings.webhook_secret, settings.webhook_private)
        self.campaigns = Campaigns(self.store, clock, metrics=self.metrics, queued=self.sender.wake)
        self.background = Background(self.campaigns)
        self.changed_at = 0.0  # when this worker last created or changed a campaign, by the monotonic clock
        self._lanes: Lanes | None = None
        self._warming: asyncio.Future[None] | None = None

    async def start(self) -> None:
        share_one_heap()
        sys.setswitchinterval(SWITCH_SECONDS)
        require_current(self.store)
        load_first()
        gc.set_threshold(YOUNG_OBJECTS)
        gc.freeze()  # the compiler leaves a million objects that stay: the collector need not look at them again
        self._warming = asyncio.get_running_loop().run_in_executor(None, warm_up)
        self._lanes = self.background.lanes = Lanes(self.campaigns, self.background.start)
        self.background.watch()
        self.sender.start()
        self.keys.start()

    def submit(self, operation: Operation) -> "asyncio.Future[Any]":
        """The operation's outcome, once it is committed."""
        assert self._lanes is not None, "the service has not started"
        outcome = self._lanes.submit(operation)
        if isinstance(operation, CHANGING):
            outcome.add_done_callback(self._changed)
        return outcome

    def _changed(self, _: "asyncio.Future[Any]") -> None:
        self.changed_at = time.monotonic()

    def _database_failed(self, reason: str) -> None:
        self.metrics.database_failed()
        log.warning("the database does not answer", extra={"reason": reason})

    async def stop(self) -> None:
        """Finish what was accepted, then let go of the database."""
        if self._lanes is not None:
            await self.background.close()
            await self._lanes.close()
        await self.sender.close()
        if self._warming is not None:
            await self._warming
        await self.keys.close()
        self.exporter.close()
        self.store.close()
