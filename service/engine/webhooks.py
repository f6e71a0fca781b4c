"""Webhooks: send the messages of the outbox, signed, and retry until the receiver accepts them.

One sender at a time has a message: it moves the due time past the end of its attempt. If a sender dies after the
receiver's answer and before the commit, the message is sent again. Delivery is thus at least once, and the header
X-Undercurrent-Delivery stays the same.
"""

import asyncio
import hmac
import json
import logging
import random
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from policy import CampaignConfig
from service.base.errors import FieldProblem, InvalidError, UnavailableError
from service.base.times import SECOND, format_timestamp
from service.engine.addresses import AddressError, Resolve, parse_target, resolve_host
from service.engine.metrics import Metrics
from service.storage.campaigns import get_config
from service.storage.events import Message, claim_messages, get_next_due, mark_failed, mark_sent, reset_late_messages
from service.storage.rows import REGIME_CHANGE
from service.storage.store import Store

if TYPE_CHECKING:
    import httpx


POLL_SECONDS = 5.0  # between two searches for messages of other or dead workers
LEASE_SECONDS = 60  # much longer than an attempt
ATTEMPT_SECONDS = 10.0  # for resolving the name, connecting and the answer together
CONNECT_SECONDS = 4.0  # for each address of a host
CLOSING_SECONDS = 2.0  # for how long a shutdown waits for attempts under way
MOST_AT_ONCE = 8
MOST_ATTEMPTS = 12
FIRST_DELAY, LONGEST_DELAY = 10.0, 3_600.0  # seconds
LONGEST_WAIT = 4_400  # seconds; a little more than any delay and lease, since two workers' clocks may differ
Letter = tuple[Message, bytes]  # a message, and the body of its request
log = logging.getLogger("undercurrent")


def compute_delay(attempts: int, chance: float) -> float:
    """Compute the seconds until the next attempt: twice as long each time, randomized to spread the load."""
    return min(FIRST_DELAY * 2.0 ** (attempts - 1), LONGEST_DELAY) * (0.8 + 0.4 * chance)


def sign(secret: str, seconds: int, body: bytes) -> str:
    """Compute the header that proves to a receiver that a message is ours, and how old it is."""
    return f"t={seconds},v1={hmac.digest(secret.encode(), b'%d.%s' % (seconds, body), 'sha256').hex()}"


def describe_regime(number: int, labels: Mapping[int, str]) -> dict[str, Any]:
    """Describe a regime, counted from 1, as answers and messages do."""
    return {"regime": number, "label": labels.get(number)}


class Sender:
    """Sends one worker's share of the outbox. Without a secret it sends nothing, and the messages wait.

    `clock` gives microseconds since 1970, `chance` a number from 0 to 1; `resolve` finds the addresses of a host.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        metrics: Metrics,
        secret: SecretStr | None,
        private: bool,
        chance: Callable[[], float] = random.random,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._store, self._clock, self._metrics = store, clock, metrics
        self._secret = None if secret is None else secret.get_secret_value()
        self._private = private
        self._chance, self._resolve = chance, resolve
        self._rows = ThreadPoolExecutor(1, "outbox")
        self._names = ThreadPoolExecutor(4, "webhooks")  # a pool of its own: a hanging name server delays nothing else
        self._client: httpx.AsyncClient | None = None  # created with the first search: importing httpx takes memory
        self._under_way: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    def check(self, config: CampaignConfig, before: CampaignConfig | None = None) -> None:
        """Refuse a new webhook that could not work."""
        url, known = config.alerts.webhook, before.alerts.webhook if before else None
        if url is None or url == known:
            return
        if self._secret is None:
            message, allowed = "the service has no secret to sign messages", "set UNDERCURRENT_WEBHOOK_SECRET first"
            raise InvalidError([FieldProblem(field="alerts.webhook", message=message, allowed=allowed)])
        try:
            target = parse_target(url)
            if not self._private:
                target.require_public()
        except AddressError as error:
            allowed = "the http or https address of a public host"
            raise InvalidError([FieldProblem(field="alerts.webhook", message=str(error), allowed=allowed)]) from None

    def start(self) -> None:
        if self._secret is not None:
            self._loop = asyncio.get_running_loop()
            self._watching = asyncio.create_task(self._watch())

    def wake(self) -> None:
        """Look for messages now. Any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _watch(self) -> None:
        run = asyncio.get_running_loop().run_in_executor
        while True:
            self._woken.clear()
            letters, seconds = list[Letter](), POLL_SECONDS
            try:
                if self._client is None:
                    self._client = await run(self._rows, _create_client)  # it reads the certificates, which is slow
                busy = [task.get_name() for task in self._under_way]
                letters, seconds = await run(self._rows, self._claim, MOST_AT_ONCE - len(busy), busy)
            except UnavailableError:
                pass  # the next search may work
            except Exception:
                log.exception("messages to webhooks cannot be sent")
            for letter in letters:
                task = asyncio.create_task(self._deliver(*letter), name=letter[0].url)
                self._under_way.add(task)
                task.add_done_callback(self._end_delivery)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    def _end_delivery(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._woken.set()  # there is room for another message
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message to a webhook failed; it will be sent again", exc_info=error)

    def _claim(self, most: int, busy: Collection[str]) -> tuple[list[Letter], float]:
        """Claim messages to send now; return them and the seconds until the next search."""
        now = self._clock()
        latest = now + LONGEST_WAIT * SECOND
        with self._store.reading() as tx:  # usually nothing is due, and then no lock is needed
            due, last = get_next_due(tx), get_next_due(tx, last=True)
        if due is None or last is None or most == 0:
            return [], POLL_SECONDS
        if last > latest:
            with self._store.writing() as tx:
                reset_late_messages(tx, now, latest)
            due = now
        if due > now:
            return [], min(POLL_SECONDS, (due - now) / SECOND)
        with self._store.writing() as tx:
            taken = claim_messages(tx, now, now + LEASE_SECONDS * SECOND, most, busy)
            letters = [(message, _build_body(message, get_config(tx, message.campaign_id))) for message in taken]
        return letters, POLL_SECONDS

    async def close(self) -> None:
        """Stop. The next search by any worker repeats an attempt that is cut off."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=CLOSING_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        self._names.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._rows.shutdown)

    async def _deliver(self, message: Message, body: bytes) -> None:
        is_deadly = message.attempts > MOST_ATTEMPTS  # perhaps this message is what kills the workers
        failure = "no attempt ended" if is_deadly else await self._attempt(message, body)
        if failure is not None:
            await self._record_failure(message, failure)
            return
        self._metrics.count_delivery("sent")
        await self._write(mark_sent, message, self._clock())

    async def _attempt(self, message: Message, body: bytes) -> str | None:
        """Send a message; return why that failed, or None."""
        import httpx

        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                answer = await self._post(message, body)
        except TimeoutError:
            return f"no answer within {ATTEMPT_SECONDS:g} seconds"
        except AddressError as error:
            return f"the address {error}"
        except (httpx.HTTPError, OSError) as error:
            return f"{type(error).__name__}: {error}"[:200].removesuffix(": ")
        note = " (redirects are not followed)" if answer.is_redirect else ""
        return None if answer.is_success else f"answered {answer.status_code}{note}"

    async def _record_failure(self, message: Message, failure: str) -> None:
        fields, due = {"campaign": message.campaign, "event": message.event, "reason": failure}, None
        if message.attempts < MOST_ATTEMPTS:
            due = self._clock() + int(compute_delay(message.attempts, self._chance()) * SECOND)
            self._metrics.count_delivery("retried")
            log.info("a webhook did not accept its message; it will be sent again", extra=fields)
        else:
            self._metrics.count_delivery("given_up")
            log.warning("a webhook did not accept its message; given up", extra=fields)
        await self._write(mark_failed, message, failure, due)

    async def _write(self, change: Callable[..., None], *values: Any) -> None:
        def write() -> None:
            with self._store.writing() as tx:
                change(tx, *values)

        with suppress(UnavailableError):  # the message is sent again when its lease ends
            await asyncio.get_running_loop().run_in_executor(self._rows, write)

    async def _post(self, message: Message, body: bytes) -> "httpx.Response":
        import httpx

        assert self._secret is not None
        assert self._client is not None
        target = parse_target(message.url)
        run = asyncio.get_running_loop().run_in_executor
        addresses = await run(self._names, self._resolve, target.host, target.port)
        if not self._private:
            target.require_public(addresses)
        headers = {
            "host": target.url.netloc.decode("ascii"),
            "content-type": "application/json",
            "user-agent": "undercurrent",
            "x-undercurrent-event": REGIME_CHANGE,
            "x-undercurrent-delivery": message.delivery,
            "x-undercurrent-signature": sign(self._secret, self._clock() // SECOND, body),
        }
        names = {"sni_hostname": target.host.rstrip(".")}
        failure: Exception = AddressError("has no address")
        for address in addresses:
            url = target.url.copy_with(host=str(address))
            request = self._client.build_request("POST", url, headers=headers, content=body, extensions=names)
            try:
                answer = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent: try the next address
                failure = error
            else:
                await answer.aclose()  # without reading the body
                return answer
        raise failure


def _create_client() -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(
        verify=httpx.create_ssl_context(),
        trust_env=False,  # a proxy would resolve names itself
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # the attempt as a whole has a time limit
        limits=httpx.Limits(max_keepalive_connections=0),  # the pool goes by address, which two names may share
    )


def _build_body(message: Message, config: str) -> bytes:
    change = json.loads(message.body)
    labels = dict(enumerate(CampaignConfig.model_validate_json(config).regime_labels, 1))
    body = {
        "event": REGIME_CHANGE,
        "campaign": message.campaign,
        "delivery": message.delivery,
        "number": message.event,
        "round": message.round,
        "since_round": change["since_round"],
        "from": describe_regime(change["from"], labels),
        "to": describe_regime(change["to"], labels),
        "belief": change["belief"],
        "at": format_timestamp(message.created_at),
    }
    return json.dumps(body).encode()
