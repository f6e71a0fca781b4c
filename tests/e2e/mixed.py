"""Mixed load: callers that decide, reward, repeat requests, read, change campaigns and roll models back."""

import json
import random
import threading
from collections.abc import Sequence
from typing import Any

import httpx

from tests.e2e.findings import Change, Finding, compare_with_log, find_verify_differences
from tests.e2e.load import Caller, Exchange, Load

__all__ = ["CAMPAIGNS", "LARGE_CAMPAIGNS", "MixedLoad"]

WAIT_SECONDS = 0.5
FIRST_ROUNDS = 3_650  # of large campaigns before the load: from round 3,572 on re-estimations run as jobs (R16)
LARGE_CAMPAIGNS = ("default", "smoothed")
CAMPAIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    # Each re-estimation takes a tenth of a second, so that a kill often hits one.
    "smoothed": {
        "regimes": 8,
        "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 3_600, "every": 100},
    },
    "short-stages": {"stage_length": 3},
    "control": {"control": {"share": 0.2}, "propensity_floor": 0.05},
    "waiting": {"rewards": {"wait_seconds": WAIT_SECONDS, "default": 0.0}},
    "spectral": {"regimes": 2, "warm_start_rounds": 20, "beliefs": {"estimator": "spectral", "start_round": 200}},
}
# The probabilities that a step does more than decide and reward.
REPEATS, READS, CHANGES, ROLLBACKS = 0.2, 0.1, 0.02, 0.005


class MixedCaller(Caller):
    """Also repeats requests, reads, and changes the campaign that it alone may change."""

    def __init__(self, *arguments: Any, own_campaign: str | None, changes: list[Change]) -> None:
        super().__init__(*arguments)
        self.repeated = 0
        self._own_campaign, self._changes = own_campaign, changes

    def _step(self, step: int, stop: threading.Event) -> bool:
        draw = self._random.random
        if self.acknowledged and draw() < REPEATS and not self._repeat_one(stop):
            return False
        if self.acknowledged and draw() < READS and not self._read_one():
            return False
        if self._own_campaign is not None and draw() < CHANGES and not self._change(self._own_campaign):
            return False
        if self._own_campaign is not None and draw() < ROLLBACKS and not self._roll_back(self._own_campaign):
            return False
        return super()._step(step, stop)

    def _send(self, client: httpx.Client, request: Exchange, stop: threading.Event) -> bytes | None:
        """Try a second connection if the first breaks: it may reach another worker."""
        return super()._send(client, request, stop) or super()._send(client, request, stop)

    def _repeat_one(self, stop: threading.Event) -> bool:
        exchange = self._random.choice(self.acknowledged)
        answer = self._send(self._clients[0], exchange, stop)
        assert answer in (None, exchange.answer), f"{exchange} again: {answer!r}"
        self.repeated += answer is not None
        return answer is not None

    def _read_one(self) -> bool:
        """Read a decision back and compare it, or read a page of the campaign."""
        exchange = self._random.choice(self.acknowledged)
        if exchange.is_reward:
            pages = ("/model", "/stages", "/revisions", "/regimes", "/diagnostics")
            return self._get(f"/campaigns/{exchange.campaign}{self._random.choice(pages)}") is not None
        answer = json.loads(exchange.answer)
        last = answer.get("decisions", [answer])[-1]
        shown = self._get(f"/campaigns/{exchange.campaign}/decisions/{last['decision_id']}")
        assert not shown or {field: shown[field] for field in last} == last, f"answered {last}, shown {shown}"
        state = self._get(f"/campaigns/{exchange.campaign}")
        assert not state or state["round"] >= last["round"], f"{state} after {last}"
        return shown is not None and state is not None

    def _get(self, path: str) -> dict[str, Any] | None:
        return self._request("GET", path)

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer; None if the server is gone, empty if the database is."""
        try:
            response = self._clients[0].request(method, path, json=body)
        except httpx.TransportError:
            return None
        if response.status_code == 503:
            self.refusals.append(response)
            return {}
        assert response.status_code == 200, f"{method} {path} {body}: {response.status_code} {response.text}"
        answer: dict[str, Any] = response.json()
        return answer

    def _change(self, campaign: str) -> bool:
        """Change settings that a running campaign allows to change; a unique label identifies the change."""
        chance, label = self._random, f"{self._name} {len(self._changes)}"
        patch = {
            "regime_labels": [label],
            "bonus": {"scale": chance.uniform(0.2, 1.0)},
            "control": {"share": chance.choice([0.0, 0.1, 0.3])},
            "propensity_floor": chance.choice([0.0, 0.05]),
        }
        self._changes.append(Change(label, None, acknowledged=False))
        answer = self._request("PATCH", f"/campaigns/{campaign}", patch)
        if answer:
            assert answer["config"]["regime_labels"] == [label], f"{campaign}: {patch}: {answer}"
            self._changes[-1] = self._changes[-1]._replace(acknowledged=True)
        return answer is not None

    def _roll_back(self, campaign: str) -> bool:
        """Restore one of the last models. Never twice in a row: the service takes the second for a repetition."""
        state = self._get(f"/campaigns/{campaign}")
        if not state or state["model_version"] < 3 or not self._changes or not self._changes[-1].acknowledged:
            return state is not None
        if self._changes[-1].restored is not None:
            return True
        version = state["model_version"] - self._random.randint(1, 2)
        self._changes.append(Change(None, version, acknowledged=False))
        answer = self._request("POST", f"/campaigns/{campaign}/rollback", {"model_version": version})
        if answer:
            self._changes[-1] = self._changes[-1]._replace(acknowledged=True)
        return answer is not None


class MixedLoad(Load):
    """Mixed callers of the campaigns above. Only one caller changes each campaign."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, list[Change]] = {name: [] for name in CAMPAIGNS}
        self.repeated = 0

    def prepare(self, url: str, large: Sequence[str]) -> None:
        """Create the campaigns and play the first rounds of the large ones."""
        self.create_campaigns(url, *CAMPAIGNS, kinds=list(CAMPAIGNS.values()))
        for name in large:
            self.play_rounds(url, name, FIRST_ROUNDS)

    def _create_caller(self, place: int, servers: Sequence[str], campaigns: Sequence[str], *options: bool) -> Caller:
        own = campaigns[place] if place < len(campaigns) else None
        changes = self.changes[own] if own is not None else []
        return MixedCaller(next(self._names), servers, campaigns, *options, own_campaign=own, changes=changes)

    def count_operations(self) -> int:
        """The number of acknowledged decisions and rewards since the start."""
        return sum(len(exchange.items) for caller in self._callers for exchange in list(caller.acknowledged))

    def is_working(self) -> bool:
        return not all(future.done() for future in self._futures)

    def collect(self) -> list[BaseException]:
        callers = self._callers
        errors = super().collect()
        self.repeated += sum(caller.repeated for caller in callers if isinstance(caller, MixedCaller))
        return errors

    def compare(self, database_url: str) -> tuple[list[Finding], list[Exchange]]:
        """Findings, and the unanswered requests that are in the log."""
        findings, committed = compare_with_log(
            database_url, CAMPAIGNS, self.acknowledged, self.unanswered, self.changes
        )
        return findings + find_verify_differences(database_url, CAMPAIGNS), committed

    def sample(self, chance: random.Random, size: int) -> list[Exchange]:
        """Draw this many acknowledged requests, or all if there are fewer."""
        return chance.sample(self.acknowledged, min(size, len(self.acknowledged)))
