"""Mixed load: callers that decide, reward, repeat requests, read, change campaigns and roll models back."""

from collections.abc import Sequence
from typing import Any

import httpx

from tests.e2e.findings import Change, Exchange
from tests.e2e.load import Caller, Load

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
        self._own_campaign, self._changes = own_campaign, changes

    def _step(self, step: int) -> None:
        draw, own = self._random.random, self._own_campaign
        if self.acknowledged and draw() < REPEATS:
            self._repeat_one()
        if self.acknowledged and draw() < READS:
            self._read_one()
        if own is not None and draw() < CHANGES:
            self._change(own)
        if own is not None and draw() < ROLLBACKS:
            self._roll_back(own)
        super()._step(step)

    def _send(self, client: httpx.Client, request: Exchange) -> bytes:
        """Try a second connection if the first breaks: it may reach another worker."""
        try:
            return super()._send(client, request)
        except httpx.TransportError:
            return super()._send(client, request)

    def _repeat_one(self) -> None:
        exchange = self._random.choice(self.acknowledged)
        answer = self._send(self._clients[0], exchange)
        assert answer == exchange.answer, f"{exchange} again: {answer!r}"
        self.repeated += 1

    def _read_one(self) -> None:
        """Read a decision back and compare it, or read a page of the campaign."""
        exchange = self._random.choice(self.acknowledged)
        if exchange.is_reward:
            pages = ("/stages", "/revisions", "/regimes", "/diagnostics")
            self._request("GET", f"/campaigns/{exchange.campaign}{self._random.choice(pages)}")
        else:
            self._read_back(exchange)

    def _change(self, campaign: str) -> None:
        """Change settings that a running campaign allows to change; a unique label identifies the change."""
        chance, label = self._random, f"{self._name} {len(self._changes)}"
        patch = {
            "regime_labels": [label],
            "bonus": {"scale": chance.uniform(0.2, 1.0)},
            "control": {"share": chance.choice([0.0, 0.1, 0.3])},
            "propensity_floor": chance.choice([0.0, 0.05]),
        }
        answer = self._request_change(Change(label, None, acknowledged=False), "PATCH", f"/campaigns/{campaign}", patch)
        assert not answer or answer["config"]["regime_labels"] == [label], f"{campaign}: {patch}: {answer}"

    def _roll_back(self, campaign: str) -> None:
        """Restore one of the last models. Never twice in a row: the service takes the second for a repetition."""
        last = self._changes[-1] if self._changes else None
        if last is None or not last.acknowledged or last.restored is not None:
            return
        state = self._request("GET", f"/campaigns/{campaign}")
        if state and state["model_version"] >= 3:
            version = state["model_version"] - self._random.randint(1, 2)
            change, body = Change(None, version, acknowledged=False), {"model_version": version}
            self._request_change(change, "POST", f"/campaigns/{campaign}/rollback", body)

    def _request_change(self, change: Change, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Record the change before the request, because it may be done even if no answer comes."""
        self._changes.append(change)
        if answer := self._request(method, path, body):
            self._changes[-1] = change._replace(acknowledged=True)
        return answer


class MixedLoad(Load):
    """Mixed callers of the campaigns above. Only one caller changes each campaign."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = {name: [] for name in CAMPAIGNS}

    def prepare(self, url: str, large: Sequence[str]) -> None:
        """Create the campaigns and play the first rounds of the large ones."""
        self.create_campaigns(url, *CAMPAIGNS, kinds=list(CAMPAIGNS.values()))
        for name in large:
            self.play_rounds(url, name, FIRST_ROUNDS)

    def _create_caller(self, place: int, servers: Sequence[str], campaigns: Sequence[str]) -> Caller:
        own = campaigns[place] if place < len(campaigns) else None
        arguments = (next(self._names), servers, campaigns, self._stop)
        return MixedCaller(*arguments, own_campaign=own, changes=self.changes.get(own, []))

    def count_operations(self) -> int:
        """The number of acknowledged decisions and rewards since the start."""
        return sum(len(exchange.items) for caller in self._callers for exchange in list(caller.acknowledged))
