"""Campaigns for tests: a configuration of each kind, a script of requests, and a worker without a socket."""

import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from policy import CampaignConfig, StagedPolicy, State, encode
from service.analysis.verify import find_differences
from service.base.errors import ApiError, build_error_detail
from service.engine.background import run_estimation
from service.engine.campaigns import Campaigns
from service.engine.encoding import hash_request
from service.engine.operations import Create, Decide, FinishJob, KeepSnapshot, Reward, Snapshot
from service.engine.requests import DecideBatch, DecideRequest, RewardBatch, RewardRequest
from service.engine.warm_up import warm_up
from service.engine.work import Job
from service.storage.campaigns import find_campaign
from service.storage.store import Store
from service.storage.transaction import Transaction

Post = Callable[[str, dict], dict]
BEGIN = 1_790_000_000_000_000  # microseconds: when every script begins
# For behaviour that no database touches: run the test once, not on each kind of database.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SEASONS = ("spring", "summer", "autumn", "winter")

PLAIN: dict[str, Any] = {
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "season", "levels": list(SEASONS)},
        {"name": "spend", "cuts": [20, 50]},
        {"name": "tenure", "range": [0, 8]},
    ],
    "signals": ["season"],
    "stage_length": 5,
    "ridge": 0.3,
    "warm_start_rounds": 15,
    "control": {"share": 0.15},
    "propensity_floor": 0.02,
    "seed": 7,
}
GIVEN = {
    "transition": [[0.9, 0.1], [0.2, 0.8]],
    "emission": [[0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]],
    "initial": [0.3, 0.7],
}


def _beliefs(**beliefs: Any) -> dict[str, Any]:
    return {"regimes": 2, "beliefs": {"start_round": 32, "every": 13, **beliefs}}


CONFIGS: dict[str, dict[str, Any]] = {
    name: PLAIN | {"name": name} | own
    for name, own in {
        "default": {},
        "spectral": _beliefs(estimator="spectral", statistics="as_decided"),
        "smoothed": _beliefs(estimator="em", statistics="smoothed"),
        "online": _beliefs(estimator="online_em", every=7),
        "given": {"regimes": 2, "beliefs": {"estimator": "given", "parameters": GIVEN}},
        "one-regime": {"signals": [], "regimes": 1, "control": {"share": 0.3, "kind": "baseline"}},
        "clock": _beliefs(estimator="em", statistics="smoothed") | {"clock": {"period_seconds": 1.5}},
        "waiting": {"rewards": {"range": [-2, 2], "wait_seconds": 5, "default": 0.25}},
    }.items()
}


class Script:
    """A fixed sequence of requests: single and batched, with rewards late, out of order or missing.

    It has its own time, so that a test can play it several times.
    """

    sizes = (1, 1, 2, 4, 7)  # of requests, in decisions

    def __init__(self, config: dict[str, Any], clock: Any, *, name: str | None = None, seed: int = 1) -> None:
        self.config = config | ({"name": name} if name else {})
        self.round, self.answers = 0, list[dict]()
        self._clock, self._seconds = clock, 0.0
        self._chance = random.Random(seed)
        self._pending: list[tuple[int, str, float]] = []

    @property
    def name(self) -> str:
        return self.config["name"]

    def create(self, post: Post) -> "Script":
        self._set_clock()
        post("/campaigns", self.config)
        return self

    def play(self, post: Post, until: int) -> "Script":
        """Play until that round is decided; the last batch may go beyond it."""
        while self.round < until:
            self.step(post)
        return self

    def step(self, post: Post) -> None:
        """Send one request for decisions, and the rewards that are due after it."""
        self._seconds += self._chance.choice((0.0, 0.25, 1.0, 2.5))
        self._set_clock()
        items = [self._item(self.round + i + 1) for i in range(self._chance.choice(self.sizes))]
        if len(items) == 1:
            made = [post("/decide", {"campaign": self.name, **items[0]})]
        else:
            made = post("/decide/batch", {"campaign": self.name, "items": items})["decisions"]
        self.round += len(items)
        for item, decision in zip(items, made, strict=True):
            self._promise(item["context"], decision)
        due = [(key, value) for when, key, value in self._pending if when <= self.round]
        self._pending = [promised for promised in self._pending if promised[0] > self.round]
        rewards = [{"decision_id": key, "reward": value} for key, value in due]
        if len(rewards) == 1:
            taken = [post("/reward", {"campaign": self.name, **rewards[0]})]
        elif rewards:
            taken = post("/reward/batch", {"campaign": self.name, "items": rewards})["results"]
        else:
            taken = []
        self.answers += [_nameless(answer) for answer in (*made, *taken)]

    @property
    def decisions(self) -> list[dict]:
        return [answer for answer in self.answers if "action" in answer]

    def _set_clock(self) -> None:
        self._clock.now = BEGIN + int(self._seconds * 1_000_000)

    def _item(self, number: int) -> dict[str, Any]:
        draw, (first, second) = self._chance.random, ((0, 1), (2, 3))
        likely = first if number // 25 % 2 == 0 else second  # the regime changes every 25 rounds
        item: dict[str, Any] = {
            "decision_id": f"d{number}",
            "context": {
                "season": SEASONS[self._chance.choice(likely if draw() < 0.95 else (0, 1, 2, 3))],
                "spend": self._chance.choice((3, 20, 36.5, 50, 80)),
                "tenure": round(8 * draw(), 2),
            },
        }
        if draw() < 0.2:
            item["excluded_actions"] = [self._chance.choice(self.config["actions"])]
        if draw() < 0.3:
            item["subject"] = f"customer {self._chance.randrange(8)}"
        if self.config.get("clock") and draw() < 0.5:  # sometimes earlier than the last one (R27)
            at = BEGIN / 1_000_000 + self._seconds - self._chance.choice((0, 0.5, 6))
            item["at"] = datetime.fromtimestamp(at, UTC).isoformat()
        return item

    def _promise(self, context: dict[str, Any], decision: dict) -> None:
        kind, delay, noise = (self._chance.random() for _ in range(3))
        better = (decision["action"] == "mail") == (context["season"] in SEASONS[:2])
        if kind > 0.12:  # else the reward never comes
            when = self.round + (0 if kind > 0.5 else 1 + int(25 * delay))
            self._pending.append((when, decision["decision_id"], round(0.8 * better + noise - 0.5, 3)))
            self._pending.sort(key=lambda promised: (promised[0], promised[1][::-1]))


def _nameless(answer: dict) -> dict:
    """Return an answer without the campaign's name, which may differ."""
    if committed := answer.get("committed"):
        return answer | {"committed": _nameless(committed)}
    return {key: value for key, value in answer.items() if key != "campaign"}


def http_post(client: httpx.Client) -> Post:
    """Return a function that posts over HTTP; only a reward after its default may fail, with a conflict."""

    def post(path: str, body: dict) -> dict:
        answer = client.post(path, json=body)
        assert answer.is_success or (path, answer.status_code) == ("/reward", 409), answer.text
        return answer.json()

    return post


def one_by_one(post: Post) -> Post:
    """Return a function that posts each decision of a batch in a request of its own."""

    def single(path: str, body: dict) -> dict:
        if path != "/decide/batch":
            return post(path, body)
        return {"decisions": [post("/decide", {"campaign": body["campaign"], **item}) for item in body["items"]]}

    return single


def fail_until(monkeypatch: pytest.MonkeyPatch, method: str, round: int) -> None:
    """Make a step of every policy fail before a round."""
    warm_up()  # which must not fail
    works = getattr(StagedPolicy, method)

    def step(policy: StagedPolicy, state: State) -> Any:
        if state.round < round:
            raise ArithmeticError("a bad day")
        return works(policy, state)

    monkeypatch.setattr(StagedPolicy, method, step)


def operation(path: str, body: dict) -> Any:
    """Build the operation that a route makes from a body."""
    text = json.dumps(body)
    if path == "/campaigns":
        policy = StagedPolicy(CampaignConfig.model_validate_json(text))
        return Create(body["name"], policy, hashlib.sha256(text.encode()).digest())
    if path.startswith("/decide"):
        batch = path == "/decide/batch"
        request: Any = (DecideBatch if batch else DecideRequest).model_validate_json(text)
        items = request.items if batch else [request]
        return Decide(request.campaign, [(item, hash_request(item)) for item in items], batch)
    batch = path == "/reward/batch"
    request = (RewardBatch if batch else RewardRequest).model_validate_json(text)
    return Reward(request.campaign, request.items if batch else [request], batch)


class Direct:
    """A worker without a socket: it processes operations. Background work waits until the test finishes it."""

    def __init__(self, url: str, clock: Callable[[], int]) -> None:
        self.store = Store(url)
        self.campaigns = Campaigns(self.store, clock)
        self.work: list[Job | Snapshot] = []

    def process(self, *operations: Any) -> list[Any]:
        outcomes, work = self.campaigns.process(operations)
        self.work += work
        return outcomes

    def post(self, path: str, body: dict) -> dict:
        (outcome,) = self.process(operation(path, body))
        if isinstance(outcome, ApiError) and path == "/reward":
            return {"error": build_error_detail(outcome).model_dump(mode="json")}
        if isinstance(outcome, Exception):
            raise outcome
        return json.loads(outcome)

    def finish(self, work: Job | Snapshot) -> None:
        """Do a piece of background work now."""
        name, number = work.campaign, work.campaign_id
        if isinstance(work, Job):
            self.process(FinishJob(name, number, work.state.round, run_estimation(work.policy, work.state)))
        else:
            self.process(KeepSnapshot(name, work, encode(work.state)))
            self.campaigns.snapshots_under_way.discard(number)

    def finish_all(self) -> None:
        work, self.work = self.work, []
        for one in work:
            self.finish(one)

    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        """Return all rows of a table, by its key."""
        with self.store.reading() as tx:
            found = tx.connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings()
            return [dict(row) for row in found]

    def execute(self, *statements: Any) -> None:
        """Change the database behind the service's back."""
        with self.store.writing() as tx:
            for statement in statements:
                tx.connection.execute(sa.text(statement) if isinstance(statement, str) else statement)

    def campaign(self, name: str) -> Any:
        """Return its live row."""
        with self.store.reading() as tx:
            found = find_campaign(tx, name)
            assert found is not None
            return found

    def differences(self, name: str) -> list[str]:
        """Return what `undercurrent verify` finds."""
        with self.store.reading() as tx:
            return verify_campaign(tx, name)


def verify_campaign(tx: Transaction, name: str) -> list[str]:
    """Return what `undercurrent verify` finds."""
    row = find_campaign(tx, name)
    assert row is not None
    return list(find_differences(tx, row))


def check_rounds(decisions: Sequence[dict]) -> None:
    """Check that the rounds are 1, 2, … without gap or repeat."""
    assert [decision["round"] for decision in decisions] == list(range(1, len(decisions) + 1))


def eventually(found, what):
    """Wait until another thread or process has made something true; a minute is always enough."""
    for _ in range(6_000):
        if found():
            return
        time.sleep(0.01)
    raise AssertionError(f"never {what}")
