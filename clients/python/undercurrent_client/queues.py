"""Reward queues: rewards are written to a file at once, and sent in batches in the background.

A reward stays in the file until the service has answered it. If an answer is lost, it is sent again, which the service
recognizes by its ids: nothing is lost, and nothing is counted twice.
"""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from os import PathLike
from typing import Any, NamedTuple, Self

from undercurrent_client.async_client import AsyncClient
from undercurrent_client.calls import make_correction, send_correction, send_rewards
from undercurrent_client.errors import ClientError, ServiceError
from undercurrent_client.exchange import Call, Core, Plan
from undercurrent_client.ledger import Entry, Ledger
from undercurrent_client.messages import BATCH_LIMIT, RewardItem, RewardMode, RewardResult
from undercurrent_client.sync_client import Client

LONGEST_REST = 30.0  # seconds between two tries while the service is away
FINAL = frozenset({404, 410, 413, 422})  # a key can be replaced, and a service repaired
log = logging.getLogger("undercurrent_client")
OnResult = Callable[[str, RewardResult], object]


class Sent(NamedTuple):
    """How many rewards were sent: committed, and refused for good."""

    committed: int
    refused: int


def _log_refusal(campaign: str, result: RewardResult) -> None:
    if result.error is not None:
        log.warning("a reward of campaign %s was refused: %s", campaign, result.error)


def send_waiting(core: Core, ledger: Ledger, on_result: OnResult, patience: float | None) -> Plan[Sent]:
    """Send everything that waits, in batches. An error means that the rest still waits."""
    committed = refused = 0
    while entries := ledger.list_waiting(BATCH_LIMIT):
        by_campaign = defaultdict[str, list[Entry]](list)
        for entry in entries:
            by_campaign[entry.campaign].append(entry)
        for campaign, of_campaign in by_campaign.items():
            for batch in _split(of_campaign):
                results = yield from _send_batch(core, campaign, batch, patience)
                for result in results:
                    on_result(campaign, result)
                ledger.settle(batch)
                errors = sum(result.error is not None for result in results)
                committed, refused = committed + len(batch) - errors, refused + errors
    return Sent(committed, refused)


def _is_correction(entry: Entry) -> bool:
    return entry.item.get("mode") == "correct"


def _split(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Split what waits for a campaign into batches, in order; the service takes corrections one by one."""
    for are_corrections, run in groupby(entries, _is_correction):
        batch = list(run)
        yield from ([entry] for entry in batch) if are_corrections else [batch]


def _send_batch(
    core: Core, campaign: str, batch: Sequence[Entry], patience: float | None
) -> Plan[Sequence[RewardResult]]:
    """Send one batch. If the service refuses it as a whole, for example since the campaign is gone, so is each item."""
    items = [entry.item for entry in batch]
    try:
        if not _is_correction(batch[0]):
            return (yield from send_rewards(core, campaign, items, patience))
        correction: dict[str, Any] = {name: value for name, value in items[0].items() if name != "mode"}
        committed = yield from send_correction(core, campaign, correction, patience)
        return [RewardResult(committed.decision_id, committed, None, committed.reward_id)]
    except ServiceError as error:
        if error.status not in FINAL and not (error.status == 409 and _is_correction(batch[0])):
            raise
        return [RewardResult(item["decision_id"], None, error, item.get("reward_id")) for item in items]


class _Pace:
    """How long to rest between two tries: longer after each failure, and at least what the service asks for."""

    def __init__(self, every: float) -> None:
        self._every, self._failures = every, 0

    def choose_rest(self, error: Exception | None) -> float:
        """Return the seconds until the next try, after one that failed with this error or succeeded."""
        if error is None:
            self._failures = 0
            return self._every
        if isinstance(error, ClientError):
            log.info("rewards wait: %s", error)
        else:
            log.error("the rewards cannot be sent", exc_info=error)
        self._failures += 1
        longest = max(self._every, LONGEST_REST)
        asked = error.retry_after if isinstance(error, ServiceError) else None
        return max(asked or 0.0, min(self._every * 2.0 ** min(self._failures, 30), longest))


class _Queue:
    def __init__(self, path: str | PathLike[str], every: float, on_result: OnResult, durable: bool) -> None:
        self._ledger, self._every, self._on_result = Ledger(path, durable), every, on_result

    def __len__(self) -> int:
        """Return how many rewards wait."""
        return len(self._ledger)

    def add(
        self,
        campaign: str,
        decision_id: str,
        reward: float,
        *,
        mode: RewardMode = "set",
        reward_id: str | None = None,
    ) -> None:
        """Add what a decision earned, as for `reward`. It is in the file when this returns, and will be sent."""
        self._ledger.add(campaign, RewardItem(decision_id, reward, mode, reward_id).to_json())

    def add_correction(self, campaign: str, decision_id: str, reward: float, *, reward_id: str | None = None) -> None:
        """Add a correction, as for `correct`. It is sent after what was added before it."""
        self._ledger.add(campaign, make_correction(decision_id, reward, reward_id) | {"mode": "correct"})

    def _plan(self, core: Core, patience: float | None) -> Call[Sent]:
        return Call(send_waiting(core, self._ledger, self._on_result, patience))


class RewardQueue(_Queue):
    """A queue that a thread sends from, every `every` seconds.

    `on_result(campaign, result)` is told the outcome of each reward; by default refusals are logged. Closing the queue
    sends what waits; what cannot be sent within the client's patience stays in the file, for the next queue there.
    """

    def __init__(
        self,
        client: Client,
        path: str | PathLike[str],
        *,
        every: float = 1.0,
        on_result: OnResult = _log_refusal,
        durable: bool = False,
    ) -> None:
        super().__init__(path, every, on_result, durable)
        self._client, self._turn, self._closing = client, threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="undercurrent rewards", daemon=True)
        self._thread.start()

    def flush(self) -> Sent:
        """Send everything that waits. An error means that the rest still waits."""
        return self._send(None)

    def _send(self, patience: float | None) -> Sent:
        with self._turn:
            return self._client.run(self._plan(self._client.core, patience))

    def _work(self) -> None:
        pace, rest = _Pace(self._every), self._every
        while not self._closing.wait(rest):
            problem: Exception | None = None
            try:
                self._send(0.0)
            except Exception as error:
                problem = error
            rest = pace.choose_rest(problem)

    def close(self) -> None:
        """Send what waits, and close the file."""
        self._closing.set()
        self._thread.join()
        try:
            self.flush()
        except ClientError as error:
            log.warning("%d rewards stay in the file: %s", len(self), error)
        finally:
            self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncRewardQueue(_Queue):
    """The same queue for asyncio: from `async with` on, a task sends. Adding a reward only writes a line."""

    def __init__(
        self,
        client: AsyncClient,
        path: str | PathLike[str],
        *,
        every: float = 1.0,
        on_result: OnResult = _log_refusal,
        durable: bool = False,
    ) -> None:
        super().__init__(path, every, on_result, durable)
        self._client, self._turn = client, asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def flush(self) -> Sent:
        """Send everything that waits. An error means that the rest still waits."""
        return await self._send(None)

    async def _send(self, patience: float | None) -> Sent:
        async with self._turn:
            return await self._client.run(self._plan(self._client.core, patience))

    async def _work(self) -> None:
        pace, rest = _Pace(self._every), self._every
        while True:
            await asyncio.sleep(rest)
            problem: Exception | None = None
            try:
                await self._send(0.0)
            except Exception as error:
                problem = error
            rest = pace.choose_rest(problem)

    async def close(self) -> None:
        """Send what waits, and close the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self.flush()
        except ClientError as error:
            log.warning("%d rewards stay in the file: %s", len(self), error)
        finally:
            self._ledger.close()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
