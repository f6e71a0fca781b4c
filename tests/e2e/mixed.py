"""Everything that callers do, all at the same time: decide, reward, ask again, read, change campaigns, go back."""

import json
import random
import threading
from collections.abc import Sequence
from typing import Any

import httpx

from tests.e2e.findings import Change, Finding, find, verify_findings
from tests.e2e.load import Caller, Exchange, Load

__all__ = ["CAMPAIGNS", "MixedLoad"]

WAIT_SECONDS = 0.5
AGE = 3_650  # rounds of the first two before anything happens: from 3,572 on their re-estimations are jobs (R16)
# By name: what a campaign can be that matters to a crash.
CAMPAIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    # A tenth of a second each, every 100 rounds: long enough, and often enough, for a kill to hit one.
    "smoothed": {
        "regimes": 8,
        "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 3_600, "every": 100},
    },
    "short-stages": {"stage_length": 3},
    "control": {"control": {"share": 0.2}, "propensity_floor": 0.05},
    "waiting": {"rewards": {"wait_seconds": WAIT_SECONDS, "default": 0.0}},
    "spectral": {"regimes": 2, "warm_start_rounds": 20, "beliefs": {"estimator": "spectral", "start_round": 200}},
}
# Of the steps of a caller, how many are more than a decision and a reward.
ASKS_AGAIN, READS, CHANGES, GOES_BACK = 0.2, 0.1, 0.02, 0.005


class MixedCaller(Caller):
    """Also asks again what was answered, reads, and changes the one campaign it is in charge of."""

    def __init__(self, *given: Any, mine: str | None, changes: list[Change]) -> None:
        super().__init__(*given)
        self.asked_again = self.read = 0
        self._mine, self._changes = mine, changes

    def _step(self, step: int, stop: threading.Event) -> bool:
        dice = self._random.random
        if self.acknowledged and dice() < ASKS_AGAIN and not self._ask_again(stop):
            return False
        if self.acknowledged and dice() < READS and not self._look():
            return False
        if self._mine is not None and dice() < CHANGES and not self._change(self._mine):
            return False
        if self._mine is not None and dice() < GOES_BACK and not self._go_back(self._mine):
            return False
        return super()._step(step, stop)

    def _ask(self, client: httpx.Client, asked: Exchange, stop: threading.Event) -> bytes | None:
        """Once more on a new connection if this one breaks: another worker may be there."""
        return super()._ask(client, asked, stop) or super()._ask(client, asked, stop)

    def _ask_again(self, stop: threading.Event) -> bool:
        told = self._random.choice(self.acknowledged)
        answer = self._ask(self._clients[0], told, stop)
        assert answer in (None, told.answer), f"{told} again: {answer!r}"
        self.asked_again += answer is not None
        return answer is not None

    def _look(self) -> bool:
        """What was answered is shown at once; and the pages that people look at can be read."""
        told = self._random.choice(self.acknowledged)
        if told.rewards:
            pages = ("/model", "/stages", "/revisions", "/regimes", "/diagnostics")
            return self._get(f"/campaigns/{told.campaign}{self._random.choice(pages)}") is not None
        decision = json.loads(told.answer)
        last = decision.get("decisions", [decision])[-1]
        shown = self._get(f"/campaigns/{told.campaign}/decisions/{last['decision_id']}")
        assert not shown or {field: shown[field] for field in last} == last, f"told {last}, shown {shown}"
        state = self._get(f"/campaigns/{told.campaign}")
        assert not state or state["round"] >= last["round"], f"{state} after {last}"
        return shown is not None and state is not None

    def _get(self, path: str) -> dict[str, Any] | None:
        """None if nobody lived to answer, nothing if the database is away."""
        return self._answered(self._call_once("GET", path), path)

    def _call_once(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response | None:
        try:
            return self._clients[0].request(method, path, json=body)
        except httpx.TransportError:
            return None

    def _answered(self, response: httpx.Response | None, what: str) -> dict[str, Any] | None:
        if response is None:
            return None
        if response.status_code == 503:
            self.refusals.append(response)
            return {}
        assert response.status_code == 200, f"{what}: {response.status_code} {response.text}"
        answer: dict[str, Any] = response.json()
        return answer

    def _change(self, campaign: str) -> bool:
        """Something that a living campaign can take, with a label that no other change has."""
        chance, label = self._random, f"{self._name} {len(self._changes)}"
        patch = {
            "regime_labels": [label],
            "bonus": {"scale": chance.uniform(0.2, 1.0)},
            "control": {"share": chance.choice([0.0, 0.1, 0.3])},
            "propensity_floor": chance.choice([0.0, 0.05]),
        }
        self._changes.append(Change(label, None, acknowledged=False))
        answer = self._answered(self._call_once("PATCH", f"/campaigns/{campaign}", patch), f"{campaign}: {patch}")
        if answer:
            assert answer["config"]["regime_labels"] == [label], f"{campaign}: {patch}: {answer}"
            self._changes[-1] = self._changes[-1]._replace(acknowledged=True)
        return answer is not None

    def _go_back(self, campaign: str) -> bool:
        """To one of the last models. Never twice in a row: the second would be taken for the first, asked again."""
        state = self._get(f"/campaigns/{campaign}")
        if not state or state["model_version"] < 3 or not self._changes or not self._changes[-1].acknowledged:
            return state is not None
        if self._changes[-1].restored is not None:
            return True
        version = state["model_version"] - self._random.randint(1, 2)
        self._changes.append(Change(None, version, acknowledged=False))
        asked = self._call_once("POST", f"/campaigns/{campaign}/rollback", {"model_version": version})
        answer = self._answered(asked, f"{campaign}: back to {version}")
        if answer:
            self._changes[-1] = self._changes[-1]._replace(acknowledged=True)
        return answer is not None


class MixedLoad(Load):
    """Mixed callers of the campaigns above; each campaign has one who is in charge of it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, list[Change]] = {name: [] for name in CAMPAIGNS}
        self.asked_again = 0

    def begin(self, url: str) -> None:
        """Create the campaigns; two of them have a past."""
        self.create(url, *CAMPAIGNS, kinds=list(CAMPAIGNS.values()))
        for name in list(CAMPAIGNS)[:2]:
            self.age(url, name, AGE)

    def _caller(self, place: int, servers: Sequence[str], campaigns: Sequence[str], *kind: bool) -> Caller:
        mine = campaigns[place] if place < len(campaigns) else None
        changes = self.changes[mine] if mine is not None else []
        return MixedCaller(next(self._names), servers, campaigns, *kind, mine=mine, changes=changes)

    def operations(self) -> int:
        """Decisions and rewards that were answered since the start."""
        return sum(len(told.items) for caller in self._callers for told in list(caller.acknowledged))

    def working(self) -> bool:
        """Is any caller still at it?"""
        return not all(future.done() for future in self._futures)

    def collect(self) -> list[BaseException]:
        callers = self._callers
        complaints = super().collect()
        self.asked_again += sum(caller.asked_again for caller in callers if isinstance(caller, MixedCaller))
        return complaints

    def find(self, database_url: str) -> tuple[list[Finding], list[Exchange]]:
        """Everything that is not as it was told (findings.py), and what was done without being told."""
        found, unheard = find(database_url, CAMPAIGNS, self.acknowledged, self.unanswered, self.changes)
        return found + verify_findings(database_url, CAMPAIGNS), unheard

    def sample(self, chance: random.Random, size: int) -> list[Exchange]:
        """Of all that was ever answered, so many."""
        return chance.sample(self.acknowledged, min(size, len(self.acknowledged)))
