"""Webhooks: messages go from the outbox to their receivers, signed, again and again until they are taken.

A message is in the hands of one sender at a time, who moves its due time past the end of the attempt. A sender that
dies between the receiver's answer and writing it down leaves a message that is sent again: at least once, never lost,
and the header X-Undercurrent-Delivery is the same every time.
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
from service.base.times import format_timestamp
from service.engine.addresses import AddressError, Resolve, public_only, resolved, target_of
from service.engine.fold import SECOND
from service.engine.metrics import Metrics
from service.storage.campaigns import get_config
from service.storage.outbox import Message, claim_messages, get_next_due, mark_failed, mark_sent, reset_late_messages
from service.storage.rows import REGIME_CHANGE
from service.storage.store import Store

if TYPE_CHECKING:
    import httpx

__all__ = ["Sender", "back_off", "describe_regime", "signature"]

POLL_SECONDS = 5.0  # between two looks for messages of other workers, or of those that have died
LEASE_SECONDS = 60  # much longer than an attempt
ATTEMPT_SECONDS = 10.0  # for all of it: name, connection, answer
CONNECT_SECONDS = 4.0  # for each address of a host
CLOSING_SECONDS = 2.0  # that the end of the service waits for attempts under way
MOST_AT_ONCE = 8
MOST_ATTEMPTS = 12
FIRST_DELAY, LONGEST_DELAY = 10.0, 3_600.0  # seconds
LONGEST_WAIT = 4_400  # seconds, a little more than any delay and lease: the clocks of two workers may differ
Letter = tuple[Message, bytes]  # and its body
log = logging.getLogger("undercurrent")


def back_off(attempts: int, chance: float) -> float:
    """Seconds until the next attempt: twice as long each time, and a little by chance, so that not all come at once."""
    return min(FIRST_DELAY * 2.0 ** (attempts - 1), LONGEST_DELAY) * (0.8 + 0.4 * chance)


def signature(secret: str, seconds: int, body: bytes) -> str:
    """The header by which a receiver knows that a message is ours, and how old it is."""
    return f"t={seconds},v1={hmac.digest(secret.encode(), b'%d.%s' % (seconds, body), 'sha256').hex()}"


def describe_regime(number: int, labels: Mapping[int, str]) -> dict[str, Any]:
    """A regime, counted from 1, as people are told of it."""
    return {"regime": number, "label": labels.get(number)}


class RefusedError(Exception):
    """The receiver's answer does not mean that it has taken the message."""


class Sender:
    """Sends one worker's share of the outbox. Without a secret it sends nothing, and messages wait.

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
        resolve: Resolve = resolved,
    ) -> None:
        self._store, self._clock, self._metrics = store, clock, metrics
        self._secret = None if secret is None else secret.get_secret_value()
        self._private = private
        self._chance, self._resolve = chance, resolve
        self._rows = ThreadPoolExecutor(1, "outbox")
        self._names = ThreadPoolExecutor(4, "webhooks")  # its own: a name server that hangs holds up nothing else
        self._client: httpx.AsyncClient | None = None  # loaded with the first look: see addresses.py
        self._under_way: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    def check(self, config: CampaignConfig, before: CampaignConfig | None = None) -> None:
        """Refuse a new webhook that could not be used."""
        url, known = config.alerts.webhook, before.alerts.webhook if before else None
        if url is None or url == known:
            return
        if self._secret is None:
            message, allowed = "there is no secret to sign messages with", "set UNDERCURRENT_WEBHOOK_SECRET first"
            raise InvalidError([FieldProblem(field="alerts.webhook", message=message, allowed=allowed)])
        try:
            target = target_of(url)
            if not self._private:
                target.check()
        except AddressError as error:
            allowed = "the http or https address of a public host"
            raise InvalidError([FieldProblem(field="alerts.webhook", message=str(error), allowed=allowed)]) from None

    # --- what is due -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._secret is not None:
            self._loop = asyncio.get_running_loop()
            self._watching = asyncio.create_task(self._watch())

    def wake(self) -> None:
        """Something is due; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _watch(self) -> None:
        run = asyncio.get_running_loop().run_in_executor
        while True:
            self._woken.clear()
            letters: list[Letter] = []
            seconds = POLL_SECONDS
            try:
                if self._client is None:
                    self._client = await run(self._rows, _new_client)  # reading the certificates takes a while
                busy = [task.get_name() for task in self._under_way]
                letters, seconds = await run(self._rows, self._take, MOST_AT_ONCE - len(busy), busy)
            except UnavailableError:
                pass  # the next look will tell
            except Exception:
                log.exception("no messages to webhooks can be sent")
            for letter in letters:
                task = asyncio.create_task(self._deliver(*letter), name=letter[0].url)
                self._under_way.add(task)
                task.add_done_callback(self._ended)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), seconds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._woken.set()  # another may have waited for its place
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message to a webhook failed; it will be sent again", exc_info=error)

    def _take(self, most: int, busy: Collection[str]) -> tuple[list[Letter], float]:
        """Messages that are ours to send now, and the seconds until the next look."""
        now = self._clock()
        latest = now + LONGEST_WAIT * SECOND
        with self._store.reading() as tx:  # nearly always nothing is due: then nobody has to wait for us
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
            letters = [(message, _body(message, get_config(tx, message.campaign_id))) for message in taken]
        return letters, POLL_SECONDS

    async def close(self) -> None:
        """Stop; an attempt that is cut off is made again, by whoever looks next."""
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

    # --- one message -------------------------------------------------------------------------------------------

    async def _deliver(self, message: Message, body: bytes) -> None:
        import httpx

        if message.attempts > MOST_ATTEMPTS:  # it may be what kills the workers
            await self._failed(message, "no attempt came to an end")
            return
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._post(message, body)
        except TimeoutError:
            await self._failed(message, f"no answer within {ATTEMPT_SECONDS:g} seconds")
        except AddressError as error:
            await self._failed(message, f"the address {error}")
        except RefusedError as error:
            await self._failed(message, str(error))
        except (httpx.HTTPError, OSError) as error:
            await self._failed(message, f"{type(error).__name__}: {error}"[:200].removesuffix(": "))
        else:
            self._metrics.delivered("sent")
            await self._write(mark_sent, message, self._clock())

    async def _failed(self, message: Message, failure: str) -> None:
        fields, due = {"campaign": message.campaign, "event": message.event, "reason": failure}, None
        if message.attempts < MOST_ATTEMPTS:
            due = self._clock() + int(back_off(message.attempts, self._chance()) * SECOND)
            self._metrics.delivered("retried")
            log.info("a webhook did not take its message; it will be sent again", extra=fields)
        else:
            self._metrics.delivered("given_up")
            log.warning("a webhook did not take its message; given up", extra=fields)
        await self._write(mark_failed, message, failure, due)

    async def _write(self, change: Callable[..., None], *values: Any) -> None:
        def write() -> None:
            with self._store.writing() as tx:
                change(tx, *values)

        with suppress(UnavailableError):  # then the message is sent again when its lease is up
            await asyncio.get_running_loop().run_in_executor(self._rows, write)

    async def _post(self, message: Message, body: bytes) -> None:
        import httpx

        assert self._secret is not None
        target = target_of(message.url)
        lookup = asyncio.get_running_loop().run_in_executor(self._names, self._resolve, target.host, target.port)
        addresses = await lookup
        if not self._private:
            target.check()
            public_only(addresses)
        headers = {
            "host": target.url.netloc.decode("ascii"),
            "content-type": "application/json",
            "user-agent": "undercurrent",
            "x-undercurrent-event": REGIME_CHANGE,
            "x-undercurrent-delivery": message.delivery,
            "x-undercurrent-signature": signature(self._secret, self._clock() // SECOND, body),
        }
        failure: Exception = AddressError("has no address")
        for address in addresses:
            try:
                await self._send(target.at(address), target.host.rstrip("."), headers, body)
                return
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent: the host may have another
                failure = error
        raise failure

    async def _send(self, url: "httpx.URL", name: str, headers: Mapping[str, str], body: bytes) -> None:
        assert self._client is not None
        request = self._client.build_request(
            "POST", url, headers=headers, content=body, extensions={"sni_hostname": name}
        )
        answer = await self._client.send(request, stream=True)
        await answer.aclose()  # nobody reads its body
        if not answer.is_success:
            told = " (redirects are not followed)" if answer.is_redirect else ""
            raise RefusedError(f"answered {answer.status_code}{told}")


def _new_client() -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(
        verify=httpx.create_ssl_context(),
        trust_env=False,  # a proxy would look up names itself
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # an attempt as a whole has its limit
        limits=httpx.Limits(max_keepalive_connections=0),  # the pool knows addresses only, and two names may share one
    )


def _body(message: Message, config: str) -> bytes:
    change = json.loads(message.body)
    labels = dict(enumerate(CampaignConfig.model_validate_json(config).regime_labels, 1))
    told = {
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
    return json.dumps(told).encode()
