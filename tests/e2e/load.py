"""Marketing systems that call the service all at the same time, and remember what they were told."""

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, cycle
from typing import Any, NamedTuple

import httpx

from service.engine.requests import MAX_BATCH
from tests.e2e.findings import Finding, exchange_findings, find, verify_findings
from tests.e2e.log import Log

__all__ = ["CAMPAIGN", "PATIENCE_SECONDS", "Caller", "Exchange", "Load", "client_of", "wait_until"]

PATIENCE_SECONDS = 60
MOST_STEPS = 5_000  # of one caller: the load ends even if nobody stops it
LARGEST_BATCH = 12
RISKS = ["low", "middle", "high"]
CAMPAIGN = {
    "actions": ["none", "email", "call"],
    "variables": [{"name": "risk", "levels": RISKS}, {"name": "revenue", "cuts": [10, 36]}],
}
KINDS: list[dict[str, Any]] = [{}, {"stage_length": 3}, {"control": {"share": 0.2}, "propensity_floor": 0.05}]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that comes soon, and fail if it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def client_of(url: str) -> httpx.Client:
    """A patient client; without certificates, which take longer to read than all its requests."""
    return httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, verify=False)


class Exchange(NamedTuple):
    """A request, and the bytes that answered it if any did."""

    path: str
    body: dict[str, Any]
    answer: bytes = b""

    @property
    def campaign(self) -> str:
        return str(self.body["campaign"])

    @property
    def ids(self) -> list[str]:
        """Of the decisions it is about."""
        return [item["decision_id"] for item in self.items]

    @property
    def rewards(self) -> bool:
        """Or does it decide?"""
        return self.path.startswith("/reward")

    @property
    def items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.body.get("items", [self.body])
        return items

    def check(self, log: Log) -> None:
        """It must be in the log just as it was answered."""
        assert exchange_findings(self, log) == []


def _decide(campaign: str, chance: random.Random, ids: Sequence[str]) -> Exchange:
    """A request for these decisions: a batch, if it is more than one."""
    contexts = [{"risk": chance.choice(RISKS), "revenue": chance.randrange(50)} for _ in ids]
    return _request("/decide", campaign, [{"context": c, "decision_id": i} for c, i in zip(contexts, ids, strict=True)])


def _reward(campaign: str, chance: random.Random, ids: Sequence[str]) -> Exchange:
    """Rewards for these decisions."""
    return _request("/reward", campaign, [{"decision_id": name, "reward": chance.random()} for name in ids])


def _request(path: str, campaign: str, items: list[dict[str, Any]]) -> Exchange:
    if len(items) == 1:
        return Exchange(path, {"campaign": campaign, **items[0]})
    return Exchange(f"{path}/batch", {"campaign": campaign, "items": items})


def is_answer(asked: Exchange, response: httpx.Response) -> bool:
    """It was done; or it is a reward for which the campaign did not wait (R20)."""
    too_late = asked.rewards and response.status_code == 409 and "by default" in response.text
    return response.status_code == 200 or too_late


class Caller:
    """One marketing system: a request at a time, some of them batches; what is refused with 503 it asks again."""

    def __init__(
        self, name: str, servers: Sequence[str], campaigns: Sequence[str], twins: bool = False, reads: bool = False
    ) -> None:
        self.acknowledged: list[Exchange] = []
        self.unanswered: list[Exchange] = []  # at most one: the request that nobody lived to answer
        self.refusals: list[httpx.Response] = []
        self._name, self._campaigns, self._random = name, campaigns, random.Random(name)
        self._clients = [client_of(url) for url in servers]
        self._twins = ThreadPoolExecutor(len(servers)) if twins else None
        self._reads = reads
        self._unrewarded: dict[str, list[str]] = {name: [] for name in campaigns}

    def run(self, stop: threading.Event, most_steps: int) -> None:
        """Call until told to stop, until the server is gone, or until it is enough."""
        try:
            for step in range(most_steps):
                if stop.is_set() or not self._step(step, stop):
                    break
        finally:
            if self._twins is not None:
                self._twins.shutdown()
            for client in self._clients:
                client.close()

    def _step(self, step: int, stop: threading.Event) -> bool:
        """Decide, and often reward that decision or earlier ones of the campaign."""
        campaign = self._random.choice(self._campaigns)
        asked = _decide(campaign, self._random, [f"{self._name}-{step}-{i}" for i in range(self._size())])
        if not self._call(asked, stop):
            return False
        if self._reads and self._random.random() < 0.3:
            self._read(self.acknowledged[-1])
        unrewarded = self._unrewarded[campaign]
        unrewarded += asked.ids
        if self._random.random() < 0.3:
            return True
        self._random.shuffle(unrewarded)
        size = self._size()
        self._unrewarded[campaign], rewarded = unrewarded[size:], unrewarded[:size]
        return self._call(_reward(campaign, self._random, rewarded), stop)

    def _size(self) -> int:
        return self._random.randint(2, LARGEST_BATCH) if self._random.random() < 0.1 else 1

    def _call(self, asked: Exchange, stop: threading.Event) -> bool:
        """Ask one of the servers, or now and then all at once: they must say the same (R17)."""
        self.unanswered = [asked]
        if self._twins is not None and self._random.random() < 0.4:
            futures = [self._twins.submit(self._ask, client, asked, stop) for client in self._clients]
            answers = [future.result() for future in futures]
        else:
            answers = [self._ask(self._random.choice(self._clients), asked, stop)]
        if None in answers:
            return False
        assert len(set(answers)) == 1, f"different answers to {asked}: {answers}"
        self.acknowledged.append(asked._replace(answer=answers[0]))
        self.unanswered = []
        return True

    def _read(self, told: Exchange) -> None:
        """What one server has answered, any server shows at once; and it can tell the model."""
        client, path = self._random.choice(self._clients), f"/campaigns/{told.campaign}"
        answered = json.loads(told.answer)
        last = answered.get("decisions", [answered])[-1]
        shown = client.get(f"{path}/decisions/{last['decision_id']}").json()
        assert {field: shown[field] for field in last} == last
        assert client.get(path).json()["round"] >= last["round"]
        assert client.get(f"{path}/model").json()["round"] >= last["round"]

    def _ask(self, client: httpx.Client, asked: Exchange, stop: threading.Event) -> bytes | None:
        while True:
            try:
                response = client.post(asked.path, json=asked.body)
            except httpx.TransportError:
                return None
            if response.status_code != 503:
                assert is_answer(asked, response), response.text
                return response.content
            self.refusals.append(response)
            if stop.wait(0.02):
                return None


class Load:
    """Callers at work at the same time, and everything that those who have ended were told."""

    def __init__(self) -> None:
        self.acknowledged: list[Exchange] = []
        self.unanswered: list[Exchange] = []
        self.refusals: list[httpx.Response] = []
        self._campaigns: list[str] = []
        self._callers: list[Caller] = []
        self._futures: list[Future[None]] = []
        self._names = (f"caller{number}" for number in count())
        self._stop = threading.Event()

    def create(self, url: str, *campaigns: str, kinds: Sequence[dict[str, Any]] = KINDS) -> Sequence[str]:
        """New campaigns: the default, one with short stages, one with much chance, and so on."""
        self._campaigns += campaigns
        with client_of(url) as client:
            for i, name in enumerate(campaigns):
                config = {"name": name} | CAMPAIGN | kinds[i % len(kinds)]
                assert client.post("/campaigns", json=config).status_code == 201
        return campaigns

    def age(self, url: str, campaign: str, rounds: int) -> None:
        """Decide and reward so many rounds in one go, or in as few as the service takes."""
        chance = random.Random(campaign)
        for first in range(0, rounds, MAX_BATCH):
            ids = [f"{campaign}-{i}" for i in range(first, min(rounds, first + MAX_BATCH))]
            self.unanswered += [_decide(campaign, chance, ids), _reward(campaign, chance, ids)]
        assert self.ask_unanswered(url) == []

    def start(
        self,
        servers: Sequence[str],
        campaigns: Sequence[str],
        callers: int = 8,
        most_steps: int = MOST_STEPS,
        twins: bool = False,
        reads: bool = False,
    ) -> None:
        """Let new callers begin."""
        self._stop.clear()
        self._callers = [self._caller(place, servers, campaigns, twins, reads) for place in range(callers)]
        pool = ThreadPoolExecutor(callers)
        self._futures = [pool.submit(caller.run, self._stop, most_steps) for caller in self._callers]
        pool.shutdown(wait=False)

    def _caller(self, place: int, servers: Sequence[str], campaigns: Sequence[str], twins: bool, reads: bool) -> Caller:
        return Caller(next(self._names), servers, campaigns, twins, reads)

    def told(self) -> list[Exchange]:
        """All that was answered by now, also to callers that are at work."""
        return [*self.acknowledged, *(told for caller in self._callers for told in list(caller.acknowledged))]

    def answers(self) -> int:
        """How many came since the start."""
        return sum(len(caller.acknowledged) for caller in self._callers)

    def wait_for(self, more: int) -> None:
        """Wait until so many more requests are answered."""
        enough = self.answers() + more
        wait_until(lambda: self.answers() >= enough or all(future.done() for future in self._futures))

    def wait_for_refusals(self, more: int) -> None:
        """Wait until so many more are refused."""
        refused = [caller.refusals for caller in self._callers]
        enough = sum(map(len, refused)) + more
        wait_until(lambda: sum(map(len, refused)) >= enough)

    def join(self) -> None:
        """Wait until the callers have ended by themselves; what they complain about is raised here."""
        for complaint in self.collect():
            raise complaint

    def collect(self) -> list[BaseException]:
        """Wait until the callers have ended by themselves; what they complain about."""
        futures, callers, self._futures, self._callers = self._futures, self._callers, [], []
        complaints = [future.exception() for future in futures]
        for caller in callers:
            self.acknowledged += caller.acknowledged
            self.unanswered += caller.unanswered
            self.refusals += caller.refusals
        return list(filter(None, complaints))

    def stop(self) -> None:
        """Let the callers finish what they are at."""
        self.halt()
        self.join()

    def halt(self) -> None:
        """Tell the callers to stop, without waiting for them."""
        self._stop.set()

    def check(self, database_url: str) -> list[Exchange]:
        """Of our campaigns all that was answered is in the log, as it was answered, and nothing else; `verify` agrees.

        Gives the requests that were not answered and are in the log all the same.
        """
        found, unheard = find(database_url, self._campaigns, self.acknowledged, self.unanswered)
        assert found + verify_findings(database_url, self._campaigns) == []
        return unheard

    def retry(self, *urls: str) -> None:
        """Ask all again, each of the next server: what was answered gets the same bytes, the rest its answer (R17)."""
        assert self.ask_again(self.acknowledged, *urls) == []
        assert self.ask_unanswered(*urls) == []

    def ask_again(self, told: Sequence[Exchange], *urls: str) -> list[Finding]:
        """Of these requests, those that do not get the same bytes again (R17)."""
        with ExitStack() as stack:
            clients = cycle([stack.enter_context(client_of(url)) for url in urls])
            pool = stack.enter_context(ThreadPoolExecutor(8))
            again = pool.map(lambda client, one: client.post(one.path, json=one.body).content, clients, told)
            pairs = zip(told, again, strict=True)
            return [Finding("wrong", f"{one} again: {answer!r}") for one, answer in pairs if answer != one.answer]

    def ask_unanswered(self, *urls: str) -> list[Finding]:
        """What was not answered gets its answer, from here on acknowledged; else it is found and stays unanswered."""
        found, left = [], []
        with ExitStack() as stack:
            clients = cycle([stack.enter_context(client_of(url)) for url in urls])
            for client, asked in zip(clients, self.unanswered, strict=False):
                response = client.post(asked.path, json=asked.body)
                if is_answer(asked, response):
                    self.acknowledged.append(asked._replace(answer=response.content))
                else:
                    left.append(asked)
                    found.append(Finding("wrong", f"{asked}: {response.status_code} {response.text}"))
        self.unanswered = left
        return found
