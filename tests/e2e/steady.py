"""A steady, mixed load: so many requests a second, whether the service keeps up or not; what was answered is counted.

Requests are due at fixed moments, and a latency begins when its request was due, so a service that falls behind cannot
hide it. What fails because the service is being restarted is asked again until it is answered (R17).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import httpx

from tests.service.playing import CONFIGS, GIVEN, SEASONS

__all__ = ["SECRET", "Latency", "Steady", "configuration"]

PATIENCE_SECONDS = 120  # that a request is asked again: longer than any restart
LATE_SECONDS = 0.05  # after its moment: the load generator itself did not keep the pace
BATCH = 10
LARGEST_BATCH = 1_000
LIMITS = httpx.Limits(max_connections=200, max_keepalive_connections=32, keepalive_expiry=60)
AT_ONCE = 64  # requests while a service is made to hold all that it will
TURN = 50  # decisions of one campaign before the next one's, while they are made
CHURN_ROUNDS = 30  # of a campaign that is deleted again
REGIME_ROUNDS = 40  # that a regime lasts
SECRET = "of the soak test's webhooks"
BARE = {field: CONFIGS["default"][field] for field in ("actions", "variables", "signals")}
# One of each kind. Where PLAIN's own schedule re-estimates every 13 rounds for ever, these do as the defaults do.
KINDS: list[dict[str, Any]] = [
    BARE,  # every default: joint statistics, regimes chosen by the data, jobs in the background
    BARE | {"stage_length": 3, "control": {"share": 0.2}, "propensity_floor": 0.05},
    CONFIGS["smoothed"] | {"beliefs": {"estimator": "em", "statistics": "smoothed"}},
    CONFIGS["spectral"] | {"beliefs": {"estimator": "spectral", "start_round": 100, "every": 200}},
    CONFIGS["given"] | {"beliefs": {"estimator": "given", "parameters": GIVEN}, "alerts": {"rounds": 5}},
    CONFIGS["one-regime"],
    CONFIGS["waiting"],  # rewards that come too late count as their default
    CONFIGS["clock"] | {"beliefs": {"estimator": "em", "statistics": "smoothed"}},
]
# Of 1,000 requests. A `churn` is a campaign's whole life, some eight requests.
MIX = {
    "decide": 450, "decide_batch": 40, "reward": 300, "reward_batch": 40, "state": 60, "decision": 30, "model": 25,
    "series": 20, "regimes": 10, "report": 5, "scrape": 5, "patch": 5, "churn": 7, "aborted_export": 3,
}  # fmt: skip


def configuration(number: int, name: str, webhook: str | None = None) -> dict[str, Any]:
    """The number-th campaign; those that tell of regimes tell the webhook."""
    config = KINDS[number % len(KINDS)] | {"name": name}
    if webhook is not None and "alerts" in config:
        config |= {"alerts": config["alerts"] | {"webhook": webhook}}
    return config


class Latency(NamedTuple):
    """An answered request: when it was due, of which kind it was, and what it took."""

    due: float
    kind: str
    seconds: float


class Steady:
    """The callers of one service."""

    def __init__(self, campaigns: int, rate: float, webhook: str | None = None) -> None:
        self.rate = rate
        self.names = [f"campaign-{number}" for number in range(campaigns)]
        self.decided: Counter[str] = Counter()  # acknowledged, by campaign; of deleted ones too
        self.rewarded: Counter[str] = Counter()
        self.latencies: list[Latency] = []
        self.tally: Counter[str] = Counter()  # what else happened
        self._webhook, self._chance = webhook, random.Random(f"{campaigns} {rate}")
        self._weights = [1 / (place + 10) for place in range(campaigns)]  # some are busier than others
        self._pending: dict[str, list[tuple[str, float]]] = {name: [] for name in self.names}
        self._numbers: Counter[str] = Counter()  # of decisions asked for
        self._churned = 0
        self._stopping = False
        self._up = asyncio.Event()
        self._client: httpx.AsyncClient | None = None
        self._clients: list[httpx.AsyncClient] = []

    # --- the service comes and goes ------------------------------------------------------------------------------

    def resume(self, url: str) -> None:
        """The service is there."""
        self._client = httpx.AsyncClient(base_url=url, timeout=60, limits=LIMITS, verify=False)
        self._clients.append(self._client)
        self._up.set()

    def pause(self) -> None:
        """It is going: nothing new is asked; what is under way and not answered is asked again later."""
        self._up.clear()

    async def close(self) -> None:
        """Nothing is under way any more. Earlier, a client that is just connecting would leave its socket open."""
        for client in self._clients:
            await client.aclose()

    async def _ask(self, method: str, path: str, **more: Any) -> tuple[httpx.Response, bool]:
        """An answer that is none of 5xx, and whether it was the first attempt that gave it."""
        deadline, first = time.monotonic() + PATIENCE_SECONDS, True
        while True:
            await asyncio.wait_for(self._up.wait(), PATIENCE_SECONDS)
            client = self._client
            assert client is not None
            try:
                answer = await client.request(method, path, **more)
                if answer.status_code < 500:
                    return answer, first
                self.tally[f"answered {answer.status_code}"] += 1
                wrong = answer.text
            except httpx.TransportError as error:
                self.tally["interrupted"] += 1
                wrong = repr(error)
            first = False
            assert time.monotonic() < deadline, f"{method} {path} was never answered: {wrong}"
            await asyncio.sleep(0.05)

    async def _good(self, method: str, path: str, **more: Any) -> Any:
        answer, _ = await self._ask(method, path, **more)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    # --- before the load -----------------------------------------------------------------------------------------

    async def create(self, rounds: int) -> None:
        """All campaigns, so many rounds old and a little more each.

        In turn, as the load goes on with them: the database's indexes have the slack that they will keep. Of different
        ages, so that their snapshots do not come all at once.
        """
        ages = {name: rounds + rounds * number // len(self.names) for number, name in enumerate(self.names)}
        for number, name in enumerate(self.names):
            await self._good("POST", "/campaigns", json=configuration(number, name, self._webhook))
        for start in range(0, max(ages.values()), TURN):
            for name, age in ages.items():
                if start < age:
                    await self._decide(name, min(TURN, age - start), batch=True)
                    await self._reward(name, LARGEST_BATCH, batch=True)

    async def touch(self, workers: int) -> None:
        """Ask for what workers keep of each campaign once somebody has asked, so that it does not come bit by bit.

        Every id once, for another customer, which is refused: then SQLite's writer has all pages that it can keep. Many
        at once, as after a restart under load: then the pools of threads and connections are as large as they get.
        """
        times = 1 if workers == 1 else 4 * workers  # on connections of their own: each goes to any of the workers
        for name in self.names:
            ids = [f"{name}-{number}" for number in range(1, self._numbers[name] + 1)]
            for start in range(0, len(ids), LARGEST_BATCH):
                items = [{"decision_id": each, "context": {}} for each in ids[start : start + LARGEST_BATCH]]
                answer, _ = await self._ask("POST", "/decide/batch", json={"campaign": name, "items": items})
                assert answer.status_code == 409, answer.text
            for what in ("model", "series") * times:
                await self._good("GET", f"/campaigns/{name}/{what}", headers={"connection": "close"})
        assert self._client is not None
        async with httpx.AsyncClient(base_url=self._client.base_url, timeout=60, limits=LIMITS, verify=False) as many:
            for _ in range(times):
                await asyncio.gather(*(many.get(f"/campaigns/{self.names[0]}/series") for _ in range(AT_ONCE)))

    # --- the load ------------------------------------------------------------------------------------------------

    @property
    def late_share(self) -> float:
        """Of the requests that were not sent when they were due."""
        return self.tally["late"] / max(1, self.tally["requests"])

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopping = True

    async def run(self) -> None:
        """Ask at the set rate whenever the service is there, until told to stop; then wait for all answers."""
        kinds: Mapping[str, Callable[[], Awaitable[bool]]] = {kind: getattr(self, f"_{kind}_one") for kind in MIX}
        chosen, shares = list(MIX), list(MIX.values())
        begun, asked = time.monotonic(), 0
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping:
                due = begun + asked / self.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not self._up.is_set():
                    paused = time.monotonic()
                    await self._up.wait()
                    begun += time.monotonic() - paused
                    continue
                (kind,) = self._chance.choices(chosen, shares)
                tasks.create_task(self._timed(kind, due, kinds[kind]))
                asked += 1

    async def _timed(self, kind: str, due: float, ask: Callable[[], Awaitable[bool]]) -> None:
        self.tally["requests"] += 1
        self.tally["late"] += time.monotonic() - due > LATE_SECONDS
        if await ask():
            self.latencies.append(Latency(due, kind, time.monotonic() - due))

    def _campaign(self) -> str:
        return self._chance.choices(self.names, self._weights)[0]

    async def _decide_one(self) -> bool:
        return await self._decide(self._campaign(), 1)

    async def _decide_batch_one(self) -> bool:
        return await self._decide(self._campaign(), BATCH, batch=True)

    async def _decide(self, name: str, count: int, batch: bool = False) -> bool:
        made = [self._item(name) for _ in range(count)]
        items = [item for item, _ in made]
        path, body = ("/decide/batch", {"items": items}) if batch else ("/decide", items[0])
        answer, first = await self._ask("POST", path, json={"campaign": name, **body})
        assert answer.status_code == 200, f"{path} for {name}: {answer.text}"
        self.decided[name] += count
        told = answer.json()
        for (item, worth), decision in zip(made, told["decisions"] if batch else [told], strict=True):
            assert decision["decision_id"] == item["decision_id"]
            if self._chance.random() < 0.75:  # else its reward never comes
                value = worth + 0.5 * (decision["action"] == "mail")
                # All digits: what equals a default that came first is taken for a repetition, and stored as that.
                self._pending[name].append((item["decision_id"], value))
        return first

    def _item(self, name: str) -> tuple[dict[str, Any], float]:
        """A customer, and what one is worth: both depend on a hidden regime."""
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

    async def _reward_one(self) -> bool:
        return await self._reward(self._campaign(), 1)

    async def _reward_batch_one(self) -> bool:
        return await self._reward(self._campaign(), BATCH, batch=True)

    async def _reward(self, name: str, count: int, batch: bool = False) -> bool:
        """Of decisions of this campaign, in no order: some are late. Where none waits, decide instead."""
        pending = self._pending[name]
        if not pending:
            return await self._decide(name, 1)
        taken = []
        while pending and len(taken) < count:
            place = self._chance.randrange(len(pending))
            pending[place], pending[-1] = pending[-1], pending[place]
            taken.append(pending.pop())
        items = [{"decision_id": decision, "reward": value} for decision, value in taken]
        path, body = ("/reward/batch", {"items": items}) if batch else ("/reward", items[0])
        answer, first = await self._ask("POST", path, json={"campaign": name, **body})
        told = answer.json()
        errors = [result["error"] for result in told["results"]] if batch else [told.get("error")]
        for error in filter(None, errors):  # its default came first
            assert error["code"] == "conflict", f"{path} for {name}: {error}"
            self.tally["rewards too late"] += 1
        self.rewarded[name] += errors.count(None)
        return first

    async def _state_one(self) -> bool:
        return await self._read(f"/campaigns/{self._campaign()}")

    async def _decision_one(self) -> bool:
        name = self._campaign()
        if not self.decided[name]:
            return await self._decide(name, 1)
        return await self._read(f"/campaigns/{name}/decisions/{name}-1")

    async def _model_one(self) -> bool:
        return await self._read(f"/campaigns/{self._campaign()}/model")

    async def _series_one(self) -> bool:
        return await self._read(f"/campaigns/{self._campaign()}/series", points=100)

    async def _regimes_one(self) -> bool:
        return await self._read(f"/campaigns/{self._campaign()}/regimes")

    async def _report_one(self) -> bool:
        return await self._read(f"/campaigns/{self._campaign()}/report")

    async def _scrape_one(self) -> bool:
        return await self._read("/metrics")

    async def _read(self, path: str, **params: Any) -> bool:
        answer, first = await self._ask("GET", path, params=params)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return first

    async def _patch_one(self) -> bool:
        body = {"propensity_floor": self._chance.choice((0.01, 0.02, 0.03))}
        await self._good("PATCH", f"/campaigns/{self._campaign()}", json=body)
        return False

    async def _aborted_export_one(self) -> bool:
        """A client that goes away in the middle of an export."""
        await asyncio.wait_for(self._up.wait(), PATIENCE_SECONDS)
        assert self._client is not None
        try:
            path = f"/campaigns/{self._campaign()}/decisions"
            async with self._client.stream("GET", path, params={"format": "ndjson"}) as answer:
                assert answer.status_code in (200, 503), answer.status_code
                async with aclosing(answer.aiter_raw(1_000)) as pieces:
                    await anext(pieces, None)
        except httpx.TransportError:
            self.tally["interrupted"] += 1
        return False

    async def _churn_one(self) -> bool:
        """A campaign that is created, used, looked at, archived and deleted."""
        self._churned += 1
        name = f"churn-{self._churned}"
        self._pending[name] = []
        await self._good("POST", "/campaigns", json=configuration(self._churned, name))
        await self._decide(name, CHURN_ROUNDS, batch=True)
        await self._reward(name, CHURN_ROUNDS, batch=True)
        for what in ("/series", "/model", ""):
            await self._good("GET", f"/campaigns/{name}{what}")
        await self._good("POST", f"/campaigns/{name}/archive")
        answer, first = await self._ask("DELETE", f"/campaigns/{name}", params={"confirm": name})
        assert answer.status_code == 204 or (answer.status_code == 404 and not first), answer.text
        del self._pending[name], self._numbers[name]
        self.tally["campaigns deleted"] += 1
        return False
