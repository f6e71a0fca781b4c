"""A steady, mixed load: a fixed number of requests a second, whether or not the service keeps up.

Requests are due at fixed times, and a latency is measured from then on, so a service that falls behind cannot hide it.
Requests that fail during a restart are repeated until they are answered (R17).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import httpx

from tests.e2e.load import build_request
from tests.service.playing import CONFIGS, GIVEN, SEASONS

PATIENCE_SECONDS = 120  # how long a request is repeated: longer than any restart
LATE_SECONDS = 0.05  # a request sent this long after it was due is late: the load generator did not keep the pace
BATCH = 10
LARGEST_BATCH = 1_000
LIMITS = httpx.Limits(max_connections=200, max_keepalive_connections=32, keepalive_expiry=60)
AT_ONCE = 64  # requests at a time to fill the pools
TURN = 50  # decisions of one campaign before it is the next one's turn
CHURN_ROUNDS = 30  # of a campaign that will be deleted
REGIME_ROUNDS = 40  # the length of a regime
SECRET = "secret of the soak test"
BARE = {field: CONFIGS["default"][field] for field in ("actions", "variables", "signals")}
# Where PLAIN re-estimates every 13 rounds for ever, these use the default schedule.
KINDS: list[dict[str, Any]] = [
    BARE,  # all defaults: joint statistics, number of regimes chosen by the data, jobs in the background
    BARE | {"stage_length": 3, "control": {"share": 0.2}, "propensity_floor": 0.05},
    CONFIGS["smoothed"] | {"beliefs": {"estimator": "em", "statistics": "smoothed"}},
    CONFIGS["spectral"] | {"beliefs": {"estimator": "spectral", "start_round": 100, "every": 200}},
    CONFIGS["given"] | {"beliefs": {"estimator": "given", "parameters": GIVEN}, "alerts": {"rounds": 5}},
    CONFIGS["one-regime"],
    CONFIGS["waiting"],  # late rewards are replaced by their default
    CONFIGS["clock"] | {"beliefs": {"estimator": "em", "statistics": "smoothed"}},
]
READS = {
    "state": "/campaigns/{name}",
    "decision": "/campaigns/{name}/decisions/{name}-1",
    "model": "/campaigns/{name}/model",
    "series": "/campaigns/{name}/series?points=100",
    "regimes": "/campaigns/{name}/regimes",
    "report": "/campaigns/{name}/report",
    "scrape": "/metrics",
}
# The kinds of 1,000 requests. A `churn` is the whole life of a campaign, about eight requests.
MIX = {
    "decide": 450, "decide_batch": 40, "reward": 300, "reward_batch": 40, "state": 60, "decision": 30, "model": 25,
    "series": 20, "regimes": 10, "report": 5, "scrape": 5, "patch": 5, "churn": 7, "aborted_export": 3,
}  # fmt: skip


def build_config(number: int, name: str, webhook: str | None = None) -> dict[str, Any]:
    """The configuration of campaign number `number`; if it has alerts, they go to the webhook."""
    config = KINDS[number % len(KINDS)] | {"name": name}
    if webhook is not None and "alerts" in config:
        config |= {"alerts": config["alerts"] | {"webhook": webhook}}
    return config


class Latency(NamedTuple):
    """An answered request."""

    due: float
    kind: str
    seconds: float


class Steady:
    """The callers of one service."""

    def __init__(self, campaigns: int, rate: float, webhook: str | None = None) -> None:
        self.rate = rate
        self.names = [f"campaign-{number}" for number in range(campaigns)]
        self.decided: Counter[str] = Counter()  # acknowledged, by campaign, including deleted ones
        self.rewarded: Counter[str] = Counter()
        self.latencies: list[Latency] = []
        self.tally: Counter[str] = Counter()  # other events
        self._webhook, self._chance = webhook, random.Random(f"{campaigns} {rate}")
        self._weights = [1 / (place + 10) for place in range(campaigns)]  # some are busier than others
        self._pending: dict[str, list[tuple[str, float]]] = {name: [] for name in self.names}
        self._numbers: Counter[str] = Counter()  # of requested decisions
        self._churned = 0
        self._stopping = False
        self._up = asyncio.Event()
        self._client: httpx.AsyncClient | None = None
        self._clients: list[httpx.AsyncClient] = []

    # --- restarts of the service ---------------------------------------------------------------------------------

    def resume(self, url: str) -> None:
        """The service has started at this address."""
        self._client = httpx.AsyncClient(base_url=url, timeout=60, limits=LIMITS, verify=False)
        self._clients.append(self._client)
        self._up.set()

    def pause(self) -> None:
        """The service stops: send nothing new, and repeat unanswered requests later."""
        self._up.clear()

    async def close(self) -> None:
        """Close all clients, once no request is under way: a client that is connecting would leave its socket open."""
        for client in self._clients:
            await client.aclose()

    async def _send(self, method: str, path: str, **more: Any) -> tuple[httpx.Response, bool]:
        """The first answer without status 5xx, and whether the first attempt got it."""
        deadline, first = time.monotonic() + PATIENCE_SECONDS, True
        while True:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._up.wait()
            client = self._client
            assert client is not None
            try:
                answer = await client.request(method, path, **more)
                if answer.status_code < 500:
                    return answer, first
                self.tally[f"answered {answer.status_code}"] += 1
                reason = answer.text
            except httpx.TransportError as error:
                self.tally["interrupted"] += 1
                reason = repr(error)
            first = False
            assert time.monotonic() < deadline, f"{method} {path} was never answered: {reason}"
            await asyncio.sleep(0.05)

    async def _send_and_check(self, method: str, path: str, **more: Any) -> Any:
        answer, _ = await self._send(method, path, **more)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    # --- before the load -----------------------------------------------------------------------------------------

    async def create(self, rounds: int) -> None:
        """Create all campaigns and play at least this many rounds of each.

        They take turns, as under load, so that the database's indexes get the slack that they will keep. Each plays a
        little longer than the one before, so that their snapshots do not come all at once.
        """
        ages = {name: rounds + rounds * number // len(self.names) for number, name in enumerate(self.names)}
        for number, name in enumerate(self.names):
            await self._send_and_check("POST", "/campaigns", json=build_config(number, name, self._webhook))
        for start in range(0, max(ages.values()), TURN):
            for name, age in ages.items():
                if start < age:
                    await self._decide(name, min(TURN, age - start))
                    await self._reward(name, LARGEST_BATCH)

    async def touch(self, workers: int) -> None:
        """Make workers fill their caches, so that memory does not grow bit by bit later.

        Requests every id once with another context, which is refused: SQLite's writer then caches all pages that it
        can. Sends many requests at once: the pools of threads and connections then have their full size.
        """
        times = 1 if workers == 1 else 4 * workers  # each request goes to any of the workers
        for name in self.names:
            ids = [f"{name}-{number}" for number in range(1, self._numbers[name] + 1)]
            for start in range(0, len(ids), LARGEST_BATCH):
                items = [{"decision_id": each, "context": {}} for each in ids[start : start + LARGEST_BATCH]]
                answer, _ = await self._send("POST", "/decide/batch", json={"campaign": name, "items": items})
                assert answer.status_code == 409, answer.text
            for what in ("model", "series") * times:
                await self._send_and_check("GET", f"/campaigns/{name}/{what}", headers={"connection": "close"})
        assert self._client is not None
        async with httpx.AsyncClient(base_url=self._client.base_url, timeout=60, limits=LIMITS, verify=False) as many:
            for _ in range(times):
                await asyncio.gather(*(many.get(f"/campaigns/{self.names[0]}/series") for _ in range(AT_ONCE)))

    # --- the load ------------------------------------------------------------------------------------------------

    @property
    def late_share(self) -> float:
        """The share of requests that were not sent when they were due."""
        return self.tally["late"] / max(1, self.tally["requests"])

    def stop(self) -> None:
        """Send no more requests."""
        self._stopping = True

    async def run(self) -> None:
        """Send requests at the set rate while the service is up, until told to stop; then wait for all answers."""
        kinds: Mapping[str, Callable[[str], Awaitable[bool]]] = {
            "decide": lambda name: self._decide(name, 1),
            "decide_batch": lambda name: self._decide(name, BATCH),
            "reward": lambda name: self._reward(name, 1),
            "reward_batch": lambda name: self._reward(name, BATCH),
            "patch": self._patch,
            "churn": self._churn,
            "aborted_export": self._abort_export,
            **{kind: partial(self._read, path) for kind, path in READS.items()},
        }
        begun, sent = time.monotonic(), 0
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping:
                due = begun + sent / self.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not self._up.is_set():
                    paused = time.monotonic()
                    await self._up.wait()
                    begun += time.monotonic() - paused
                    continue
                (kind,) = self._chance.choices(list(MIX), list(MIX.values()))
                tasks.create_task(self._measure(kind, due, kinds[kind]))
                sent += 1

    async def _measure(self, kind: str, due: float, send: Callable[[str], Awaitable[bool]]) -> None:
        self.tally["requests"] += 1
        self.tally["late"] += time.monotonic() - due > LATE_SECONDS
        if await send(self._chance.choices(self.names, self._weights)[0]):
            self.latencies.append(Latency(due, kind, time.monotonic() - due))

    async def _decide(self, name: str, count: int) -> bool:
        drawn = [self._draw_item(name) for _ in range(count)]
        request = build_request("/decide", name, [item for item, _ in drawn])
        answer, first = await self._send("POST", request.path, json=request.body)
        assert answer.status_code == 200, f"{request}: {answer.text}"
        self.decided[name] += count
        body = answer.json()
        for (item, worth), decision in zip(drawn, body.get("decisions", [body]), strict=True):
            assert decision["decision_id"] == item["decision_id"]
            if self._chance.random() < 0.75:  # the others are never rewarded
                value = worth + 0.5 * (decision["action"] == "mail")
                # Not rounded: a reward that equals a default before it counts as a repetition.
                self._pending[name].append((item["decision_id"], value))
        return first

    def _draw_item(self, name: str) -> tuple[dict[str, Any], float]:
        """An item for a decision, and the worth of its customer: both depend on a hidden regime."""
        self._numbers[name] += 1
        number, chance = self._numbers[name], self._chance
        regime = number // REGIME_ROUNDS % 2
        likely = SEASONS[2 * regime : 2 * regime + 2] if chance.random() < 0.9 else SEASONS
        context = {
            "season": chance.choice(likely),
            "spend": chance.choice((3, 20, 36.5, 50, 80)),
            "tenure": round(8 * chance.random(), 2),
        }
        item: dict[str, Any] = {"decision_id": f"{name}-{number}", "context": context}
        if chance.random() < 0.3:
            item["subject"] = f"customer {chance.randrange(10_000)}"
        return item, 0.6 * regime + chance.random() - 0.5

    async def _reward(self, name: str, count: int) -> bool:
        """Reward decisions of this campaign in random order. If none is left, decide instead."""
        pending = self._pending[name]
        if not pending:
            return await self._decide(name, 1)
        taken = []
        while pending and len(taken) < count:
            place = self._chance.randrange(len(pending))
            pending[place], pending[-1] = pending[-1], pending[place]
            taken.append(pending.pop())
        items = [{"decision_id": decision, "reward": value} for decision, value in taken]
        request = build_request("/reward", name, items)
        answer, first = await self._send("POST", request.path, json=request.body)
        body = answer.json()
        errors = [result.get("error") for result in body.get("results", [body])]
        for error in filter(None, errors):  # the default came first
            assert error["code"] == "conflict", f"{request}: {error}"
            self.tally["rewards too late"] += 1
        self.rewarded[name] += errors.count(None)
        return first

    async def _read(self, path: str, name: str) -> bool:
        answer, first = await self._send("GET", path.format(name=name))
        assert answer.status_code == 200, f"{path} of {name}: {answer.text}"
        return first

    async def _patch(self, name: str) -> bool:
        body = {"propensity_floor": self._chance.choice((0.01, 0.02, 0.03))}
        await self._send_and_check("PATCH", f"/campaigns/{name}", json=body)
        return False

    async def _abort_export(self, name: str) -> bool:
        """Start an export, and close the connection in the middle."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._up.wait()
        assert self._client is not None
        try:
            async with self._client.stream("GET", f"/campaigns/{name}/decisions?format=ndjson") as answer:
                assert answer.status_code in (200, 503), answer.status_code
                async with aclosing(answer.aiter_raw(1_000)) as pieces:
                    await anext(pieces, None)
        except httpx.TransportError:
            self.tally["interrupted"] += 1
        return False

    async def _churn(self, _: str) -> bool:
        """Create, play, read, archive and delete a campaign."""
        self._churned += 1
        name = f"churn-{self._churned}"
        self._pending[name] = []
        await self._send_and_check("POST", "/campaigns", json=build_config(self._churned, name))
        await self._decide(name, CHURN_ROUNDS)
        await self._reward(name, CHURN_ROUNDS)
        for what in ("/series", "/model", ""):
            await self._send_and_check("GET", f"/campaigns/{name}{what}")
        await self._send_and_check("POST", f"/campaigns/{name}/archive")
        answer, first = await self._send("DELETE", f"/campaigns/{name}", params={"confirm": name})
        assert answer.status_code == 204 or (answer.status_code == 404 and not first), answer.text
        del self._pending[name], self._numbers[name]
        self.tally["campaigns deleted"] += 1
        return False
