"""Callers that use a service at the same time and remember every answer, and the checks of what they remember."""

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count, cycle
from typing import Any

import httpx

from service.engine.requests import MAX_BATCH
from tests.e2e.findings import Change, Exchange, Finding, compare_with_log, find_verify_differences

PATIENCE_SECONDS = 300  # on a new machine the first start of a server compiles the kernels
REPEATERS = 8  # threads that repeat requests
MAX_STEPS = 5_000  # of one caller: the load ends even if nobody stops it
MAX_ITEMS = 12  # of a batch
RISKS = ["low", "middle", "high"]
CAMPAIGN = {
    "actions": ["none", "email", "call"],
    "variables": [{"name": "risk", "levels": RISKS}, {"name": "revenue", "cuts": [10, 36]}],
}
KINDS: list[dict[str, Any]] = [{}, {"stage_length": 3}, {"control": {"share": 0.2}, "propensity_floor": 0.05}]


def wait_until(condition: Callable[[], object], poll_seconds: float = 0.005) -> None:
    """Poll the condition until it holds; fail if that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(poll_seconds)


MOST_SUMMED = 20  # decisions whose rewards go on growing


def open_client(url: str) -> httpx.Client:
    """A client with a long time-out, and without certificates: loading them takes longer than its requests.

    It belongs to one thread. A thread that looks for a free connection may close one that another has just taken.
    """
    return httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, verify=False)


def _build_decide(campaign: str, chance: random.Random, ids: Sequence[str]) -> Exchange:
    contexts = [{"risk": chance.choice(RISKS), "revenue": chance.randrange(50)} for _ in ids]
    return build_request(
        "/decide", campaign, [{"context": c, "decision_id": i} for c, i in zip(contexts, ids, strict=True)]
    )


def _build_reward(campaign: str, chance: random.Random, ids: Sequence[str]) -> Exchange:
    return build_request("/reward", campaign, [{"decision_id": name, "reward": chance.random()} for name in ids])


def _build_amounts(campaign: str, chance: random.Random, ids: Sequence[str], id: str) -> Exchange:
    items = [{"decision_id": name, "reward": chance.random(), "mode": "add", "reward_id": id} for name in ids]
    return build_request("/reward", campaign, items)


def build_request(path: str, campaign: str, items: list[dict[str, Any]]) -> Exchange:
    """A request for these items: a batch if there are several."""
    if len(items) == 1:
        return Exchange(path, {"campaign": campaign, **items[0]})
    return Exchange(f"{path}/batch", {"campaign": campaign, "items": items})


def is_final(request: Exchange, response: httpx.Response) -> bool:
    """Success, or the refusal of a reward that came after its wait (R20)."""
    too_late = request.is_reward and response.status_code == 409 and "rewards.wait_seconds" in response.text
    return response.status_code == 200 or too_late


class Caller:
    """Sends one request at a time, some of them batches, and repeats those that are refused with 503.

    With several servers, some requests go to all at once, and decisions are read back from any of them.
    """

    def __init__(self, name: str, servers: Sequence[str], campaigns: Sequence[str], stop: threading.Event) -> None:
        self.acknowledged: list[Exchange] = []
        self.unanswered: list[Exchange] = []  # at most one: the last request, if the server died
        self.refusals: list[httpx.Response] = []
        self.repeated = 0
        self._name, self._campaigns, self._stop, self._random = name, campaigns, stop, random.Random(name)
        self._clients = [open_client(url) for url in servers]
        self._pool = ThreadPoolExecutor(len(servers))
        self._unrewarded: dict[str, list[str]] = {name: [] for name in campaigns}
        self._summed: dict[str, list[str]] = {name: [] for name in campaigns}  # decisions whose rewards are sums

    def run(self, max_steps: int) -> None:
        """Call until told to stop, until the server is gone or until the last step."""
        with ExitStack() as stack, suppress(httpx.TransportError, CancelledError):
            for resource in (self._pool, *self._clients):
                stack.enter_context(resource)
            for step in range(max_steps):
                if self._stop.is_set():
                    break
                self._step(step)

    def _step(self, step: int) -> None:
        """Request a decision, and often reward it or earlier ones of the campaign."""
        campaign = self._random.choice(self._campaigns)
        request = _build_decide(campaign, self._random, [f"{self._name}-{step}-{i}" for i in range(self._draw_size())])
        self._call(request)
        if len(self._clients) > 1 and self._random.random() < 0.3:
            self._read_back(self.acknowledged[-1])
        unrewarded = self._unrewarded[campaign]
        unrewarded += request.ids
        if self._random.random() < 0.15:
            summed, chosen = self._summed[campaign], unrewarded[: self._draw_size()]
            self._unrewarded[campaign], summed[:] = unrewarded[len(chosen) :], (summed + chosen)[-MOST_SUMMED:]
            again = self._random.sample(summed, min(len(summed), self._draw_size()))
            self._call(_build_amounts(campaign, self._random, again, f"{self._name}-{step}"))
        elif self._random.random() < 0.7:
            self._random.shuffle(unrewarded)
            size = self._draw_size()
            self._unrewarded[campaign], rewarded = unrewarded[size:], unrewarded[:size]
            self._call(_build_reward(campaign, self._random, rewarded))

    def _draw_size(self) -> int:
        return self._random.randint(2, MAX_ITEMS) if self._random.random() < 0.1 else 1

    def _call(self, request: Exchange) -> None:
        """Call one of the servers, or now and then all at once: they must answer the same (R17)."""
        self.unanswered = [request]
        to_all = len(self._clients) > 1 and self._random.random() < 0.4
        clients = self._clients if to_all else [self._random.choice(self._clients)]
        answers = list(self._pool.map(lambda client: self._send(client, request), clients))
        assert len(set(answers)) == 1, f"different answers to {request}: {answers}"
        self.acknowledged.append(request._replace(answer=answers[0]))
        self.unanswered = []

    def _read_back(self, exchange: Exchange) -> None:
        """Every server must show at once the decision that one of them has answered."""
        answer, path = json.loads(exchange.answer), f"/campaigns/{exchange.campaign}"
        last = answer.get("decisions", [answer])[-1]
        shown = self._request("GET", f"{path}/decisions/{last['decision_id']}")
        assert not shown or {field: shown[field] for field in last} == last, f"answered {last}, shown {shown}"
        for page in (path, f"{path}/model"):
            state = self._request("GET", page)
            assert not state or state["round"] >= last["round"], f"{state} after {last}"

    def _send(self, client: httpx.Client, request: Exchange) -> bytes:
        """Send the request until it is not refused, and return the body of the answer."""
        while (response := client.post(request.path, json=request.body)).status_code == 503:
            self.refusals.append(response)
            if self._stop.wait(0.02):
                raise CancelledError
        assert is_final(request, response), response.text
        return response.content

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer; empty if the database is away."""
        response = self._random.choice(self._clients).request(method, path, json=body)
        if response.status_code == 503:
            self.refusals.append(response)
            return {}
        assert response.status_code == 200, f"{method} {path} {body}: {response.status_code} {response.text}"
        answer: dict[str, Any] = response.json()
        return answer


def _repeat(exchanges: Sequence[Exchange], urls: Sequence[str]) -> list[Finding]:
    """Repeat these requests one after the other, and find other answers."""
    findings = []
    with ExitStack() as stack:
        clients = cycle([stack.enter_context(open_client(url)) for url in urls])
        for client, one in zip(clients, exchanges, strict=False):
            answer = client.post(one.path, json=one.body).content
            if answer != one.answer:
                findings.append(Finding("wrong", f"{one} again: {answer!r}"))
    return findings


class Load:
    """Callers that work at the same time, and the exchanges of those that have ended."""

    def __init__(self) -> None:
        self.acknowledged: list[Exchange] = []
        self.unanswered: list[Exchange] = []
        self.refusals: list[httpx.Response] = []
        self.repeated = 0
        self.changes: dict[str, list[Change]] = {}
        self._campaigns: list[str] = []
        self._callers: list[Caller] = []
        self._futures: list[Future[None]] = []
        self._names = (f"caller{number}" for number in count())
        self._stop = threading.Event()

    def create_campaigns(self, url: str, *campaigns: str, kinds: Sequence[dict[str, Any]] = KINDS) -> Sequence[str]:
        """Create campaigns of each kind in turn."""
        self._campaigns += campaigns
        with open_client(url) as client:
            for i, name in enumerate(campaigns):
                config = {"name": name} | CAMPAIGN | kinds[i % len(kinds)]
                assert client.post("/campaigns", json=config).status_code == 201
        return campaigns

    def play_rounds(self, url: str, campaign: str, rounds: int) -> None:
        """Decide and reward this many rounds in batches."""
        chance = random.Random(campaign)
        for first in range(0, rounds, MAX_BATCH):
            ids = [f"{campaign}-{i}" for i in range(first, min(rounds, first + MAX_BATCH))]
            self.unanswered += [_build_decide(campaign, chance, ids), _build_reward(campaign, chance, ids)]
        assert self.send_unanswered(url) == []

    def start(
        self, servers: Sequence[str], campaigns: Sequence[str], callers: int = 8, max_steps: int = MAX_STEPS
    ) -> None:
        """Start new callers."""
        self._stop.clear()
        self._callers = [self._create_caller(place, servers, campaigns) for place in range(callers)]
        pool = ThreadPoolExecutor(callers)
        self._futures = [pool.submit(caller.run, max_steps) for caller in self._callers]
        pool.shutdown(wait=False)

    def _create_caller(self, place: int, servers: Sequence[str], campaigns: Sequence[str]) -> Caller:
        return Caller(next(self._names), servers, campaigns, self._stop)

    def is_working(self) -> bool:
        return not all(future.done() for future in self._futures)

    def list_acknowledged(self) -> list[Exchange]:
        """All exchanges so far, including those of callers that are still at work."""
        return [*self.acknowledged, *(one for caller in self._callers for one in list(caller.acknowledged))]

    def count_answers(self) -> int:
        """The number of answers since the start."""
        return sum(len(caller.acknowledged) for caller in self._callers)

    def wait_for_answers(self, more: int) -> None:
        """Wait until this many more requests are answered."""
        enough = self.count_answers() + more
        wait_until(lambda: self.count_answers() >= enough or not self.is_working())

    def wait_for_refusals(self, more: int) -> None:
        """Wait until this many more requests are refused."""
        refused = [caller.refusals for caller in self._callers]
        enough = sum(map(len, refused)) + more
        wait_until(lambda: sum(map(len, refused)) >= enough)

    def join(self) -> None:
        """Wait until the callers have ended by themselves, and raise the first error of one."""
        for error in self.collect():
            raise error

    def collect(self) -> list[BaseException]:
        """Wait until the callers have ended by themselves, and return their errors."""
        futures, callers, self._futures, self._callers = self._futures, self._callers, [], []
        errors = [future.exception() for future in futures]
        for caller in callers:
            self.acknowledged += caller.acknowledged
            self.unanswered += caller.unanswered
            self.refusals += caller.refusals
            self.repeated += caller.repeated
        return list(filter(None, errors))

    def stop(self) -> None:
        """Stop the callers once their current requests are answered."""
        self.request_stop()
        self.join()

    def request_stop(self) -> None:
        """Tell the callers to stop, and do not wait for them."""
        self._stop.set()

    def check(self, database_url: str) -> list[Exchange]:
        """Fail if there is any finding. Returns the unanswered requests that are in the log."""
        findings, committed = self.compare(database_url)
        assert findings == []
        return committed

    def compare(self, database_url: str) -> tuple[list[Finding], list[Exchange]]:
        """Compare what was acknowledged with the log, and let `verify` compare the log with the stored state.

        Returns the findings, and the unanswered requests that are in the log.
        """
        findings, committed = compare_with_log(
            database_url, self._campaigns, self.acknowledged, self.unanswered, self.changes
        )
        return findings + find_verify_differences(database_url, self._campaigns), committed

    def repeat_all(self, *urls: str) -> None:
        """Repeat all requests, to one server after the other: all answers must be the same as before (R17)."""
        assert self.repeat(self.acknowledged, *urls) == []
        assert self.send_unanswered(urls[0]) == []

    def repeat(self, exchanges: Sequence[Exchange], *urls: str) -> list[Finding]:
        """Repeat these requests and find answers that are not the same bytes as before (R17)."""
        with ThreadPoolExecutor(REPEATERS) as pool:
            parts = [exchanges[first::REPEATERS] for first in range(REPEATERS)]
            return [finding for findings in pool.map(lambda part: _repeat(part, urls), parts) for finding in findings]

    def send_unanswered(self, url: str) -> list[Finding]:
        """Send all unanswered requests again. Those that get an answer are acknowledged; the others are findings."""
        findings, requests, self.unanswered = [], self.unanswered, []
        with open_client(url) as client:
            for request in requests:
                response = client.post(request.path, json=request.body)
                if is_final(request, response):
                    self.acknowledged.append(request._replace(answer=response.content))
                else:
                    self.unanswered.append(request)
                    findings.append(Finding("wrong", f"{request}: {response.status_code} {response.text}"))
        return findings
