"""A state machine: any requests in any order, on both databases, checked against a small model of the rules.

`make machine` plays many more and longer ones, other ones every time (UNDERCURRENT_EXAMPLES=NUMBER).
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from service.api import campaigns, decisions, rewards
from service.base.errors import CODES
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.documented import Documented
from tests.service.playing import BEGIN, verify_campaign
from tests.service.rules_model import SEASONS, SECOND, Campaign, Refused, Round

EXAMPLES = int(os.environ.get("UNDERCURRENT_EXAMPLES", "0"))
SHORT = settings(database=None, max_examples=10, stateful_step_count=40)
LONG = settings(derandomize=False, max_examples=EXAMPLES or 1, stateful_step_count=60, print_blob=True)
PLAYED = settings(
    LONG if EXAMPLES else SHORT,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate, Phase.shrink],
)

NAMES = ["first", "second", "third"]
ACTIONS = ["none", "mail", "call", "visit", "gift"]  # the first three from the beginning
SUBJECTS = ["ann", "bob", "eve"]
MOST_ROUNDS = 70  # with joint statistics: from FIRST_ROUNDS on their fits decide when they publish
PLAIN: dict[str, Any] = {
    "actions": ACTIONS[:3],
    "variables": [{"name": "season", "levels": list(SEASONS)}, {"name": "spend", "cuts": [20, 50]}],
    "signals": ["season"],
    "stage_length": 3,
    "warm_start_rounds": 6,
}
GIVEN = {
    "transition": [[0.9, 0.1], [0.2, 0.8]],
    "emission": [[0.8, 0.2, 0.0], [0.0, 0.3, 0.7]],  # some seasons are impossible in a regime
    "initial": [0.5, 0.5],
}
KINDS: dict[str, dict[str, Any]] = {
    "one regime": {"signals": [], "regimes": 1, "beliefs": {"estimator": "none"}},
    "every round": {"signals": [], "regimes": 1, "beliefs": {"estimator": "none"}, "stage_length": 1},
    "given": {"regimes": 2, "beliefs": {"estimator": "given", "parameters": GIVEN}},
    "smoothed": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 8, "every": 5}},
    "joint": {"beliefs": {"every": {"factor": 1.2}}, "stage_length": 4},
}
PATCHES: list[dict[str, Any]] = [
    {"rewards": {"wait_seconds": 5, "default": 0.25}},
    {"rewards": {"wait_seconds": 1.5, "default": -1}},
    {"rewards": {"wait_seconds": 3, "default": 0.25, "while_waiting": "hold"}},
    {"rewards": {"wait_seconds": None, "default": None}},
    {"rewards": {"correct_seconds": 8, "credit": "first"}},
    {"rewards": {"correct_seconds": 100, "credit": "even"}},
    {"rewards": {"correct_seconds": None}},
    {"control": {"share": 0.4}},
    {"control": {"share": 0.2, "kind": "baseline"}},
    {"control": None},
    {"propensity_floor": 0.05},
    {"propensity_floor": None},
    {"bonus": {"scale": 0.9}},
    {"regime_labels": ["calm"]},
    {"alerts": {"rounds": 3}},
    {"retention_days": 30_000},
    {"paused": True},
    {"paused": False},
    {"paused": False},
    {"paused": False, "control": {"share": 0.5}, "propensity_floor": 0.01},
]
REFUSED_PATCHES: list[tuple[dict[str, Any], int]] = [
    ({"stage_length": 50}, 409),
    ({"seed": 1_000}, 409),
    ({"ridge": 3.0}, 409),
    ({"beliefs": {"estimation": "inline"}}, 409),
    ({"propensity_floor": 0.9}, 422),
    ({"control": {"share": 1.5}}, 422),
    ({"rewards": {"wait_seconds": -1}}, 422),
    ({"unknown": 1}, 422),
]
DEFAULTS = {"control": {"share": 0.0, "kind": "uniform"}, "propensity_floor": 0.0}

which = st.integers(0, 7)  # of whatever there are
contexts = st.fixed_dictionaries({"season": st.sampled_from(SEASONS), "spend": st.sampled_from([3, 20, 36.5, 80])})
bad_contexts = st.sampled_from([{}, {"season": "monsoon", "spend": 3}, {"season": "winter", "spend": "much"}])
reward_ids = st.sampled_from(["sale", "upgrade", "refund"])
values = st.sampled_from([-2, -0.5, 0, 0.25, 1, 2.0])


new_campaigns: dict[str, Any] = {
    "name": st.sampled_from(NAMES),
    "kind": st.sampled_from(sorted(KINDS)),
    "seed": st.integers(0, 99),
    "control": st.sampled_from([{}, {}, {"share": 0.3}, {"share": 0.3, "kind": "baseline"}]),
    "floor": st.sampled_from([0.0, 0.02, 0.2]),
    "rewards": st.sampled_from(
        [
            {},
            {"range": [-2, 2], "credit": "even"},
            {"wait_seconds": 4, "default": 0.25, "correct_seconds": 50},
        ]
    ),
    "clock": st.sampled_from([None, None, {"period_seconds": 1.5}]),
}


class Workers:
    """The workers of one database: one on SQLite, two on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.url, self.clock = url, Clock()
        self.running = [Worker(url, self.clock) for _ in range(1 if url.startswith("sqlite") else 2)]
        self.documented = Documented(good(self.running[0].client.get("/openapi.json")))

    def restart(self, number: int) -> None:
        place = number % len(self.running)
        self.running[place].stop()
        self.running[place] = Worker(self.url, self.clock)

    def stop(self) -> None:
        for worker in self.running:
            worker.stop()


def existing(machine: "Machine") -> bool:
    return bool(machine.campaigns)


def decided(machine: "Machine") -> bool:
    return any(campaign.rounds for campaign in machine.campaigns.values())


class Machine(RuleBasedStateMachine):
    """Requests to a service, and the model's campaigns."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self.workers, self.clock = workers, workers.clock
        self.clock.now = BEGIN
        self.campaigns: dict[str, Campaign] = {}
        self.bodies: dict[str, tuple[str, dict]] = {}  # the request that created each campaign
        self.ids = self.asked = 0

    # --- asking ------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, worker: int | None = None) -> httpx.Response:
        """Send a request, to the workers in turn unless one is given."""
        self.asked += 1
        number = (self.asked if worker is None else worker) % len(self.workers.running)
        response = self.workers.running[number].client.request(method, path, json=body)
        assert response.status_code < 500, response.text
        self.workers.documented(response)
        return response

    @contextmanager
    def expecting(self) -> Iterator[Callable[..., httpx.Response]]:
        """Send a request inside, then apply it to the model: if the model refuses, the answer must be that error."""
        answers: list[httpx.Response] = []

        def ask(*request: Any, **how: Any) -> httpx.Response:
            answers.append(self.ask(*request, **how))
            return answers[-1]

        try:
            yield ask
        except Refused as refused:
            error_of(answers[-1], refused.status)
        else:
            assert all(answer.is_success for answer in answers), answers[-1].text

    def some(self, number: int, among: Any) -> Any:
        options = list(among)
        return options[number % len(options)]

    def campaign(self, number: int) -> Campaign:
        return self.some(number, self.campaigns.values())

    def show(self, campaign: Campaign) -> None:
        """Check that the API shows the model's state."""
        answer = good(self.ask("GET", f"/campaigns/{campaign.config['name']}"))
        campaigns.CampaignState.model_validate(answer)
        assert {name: answer[name] for name in campaign.state} == campaign.state

    # --- campaigns ---------------------------------------------------------------------------------------------

    @initialize(**new_campaigns)
    def begin(self, **fields: Any) -> None:
        self.create(**fields)

    @rule(**new_campaigns)
    def create(self, name: str, kind: str, seed: int, floor: float, clock: Any, **parts: Any) -> None:
        own = {"seed": seed, "propensity_floor": floor, "clock": clock}
        body = PLAIN | KINDS[kind] | own | parts | {"name": name}
        if kind == "joint" and "default" in body["rewards"]:
            body["rewards"] = {}  # when there is an estimate depends on the law of delays, which is not modelled
        self._created("/campaigns", body, body)

    @precondition(existing)
    @rule(number=which, name=st.sampled_from(NAMES), seed=st.integers(0, 99), length=st.sampled_from([None, 2]))
    def clone(self, number: int, name: str, seed: int, length: int | None) -> None:
        source = self.campaign(number)
        patch = {"name": name, "seed": seed} | ({"stage_length": length} if length else {})
        expected = {name: value for name, value in source.config.items() if name != "beliefs"}
        expected |= patch | {"actions": source.active, "retired_actions": [], "paused": False}
        self._created(f"/campaigns/{source.config['name']}/clone", patch, expected)

    def _created(self, path: str, body: dict, expected: dict) -> None:
        name = body["name"]
        answer = self.ask("POST", path, body)
        if name in self.campaigns:  # only the same request again is the same campaign
            if self.bodies[name] != (path, body):
                error_of(answer, 409)
            else:
                assert good(answer, 201)["name"] == name
            return
        made = good(answer, 201)
        for field in ("actions", "retired_actions", "stage_length", "seed", "propensity_floor", "paused"):
            assert field not in expected or made[field] == expected[field]
        self.bodies[name] = path, body
        self.campaigns[name] = Campaign(made, self.clock.now)
        self.show(self.campaigns[name])

    @precondition(existing)
    @rule(number=which, archived=st.sampled_from([False, False, True]))
    def archive(self, number: int, archived: bool) -> None:
        campaign = self.campaign(number)
        good(self.ask("POST", f"/campaigns/{campaign.config['name']}/{'archive' if archived else 'unarchive'}"))
        campaign.archive(archived, self.clock.now)
        self.show(campaign)

    @precondition(existing)
    @rule(number=which, sure=st.sampled_from([False, False, True]))
    def delete(self, number: int, sure: bool) -> None:
        name, campaign = self.some(number, self.campaigns.items())
        answer = self.ask("DELETE", f"/campaigns/{name}?confirm={name if sure else 'no'}")
        if not sure:
            error_of(answer, 422)
        elif campaign.archived_at is None:
            error_of(answer, 409)
        else:
            assert answer.status_code == 204
            del self.campaigns[name]
            error_of(self.ask("GET", f"/campaigns/{name}"), 404)
            body = {"campaign": name, "decision_id": "d1", "context": {"season": "winter", "spend": 3}}
            error_of(self.ask("POST", "/decide", body), 404)

    # --- decisions ---------------------------------------------------------------------------------------------

    @precondition(existing)
    @rule(
        number=which,
        items=st.lists(
            st.fixed_dictionaries(
                {"context": contexts},
                optional={
                    "subject": st.sampled_from(SUBJECTS),
                    "excluded_actions": st.lists(st.sampled_from(ACTIONS[:3]), max_size=2),
                },
            ),
            min_size=3,
            max_size=9,
        ),
        skipped=st.integers(2, 4),
        seconds=st.sampled_from([0, 1, 3]),
        again=st.booleans(),
    )
    def play(self, number: int, items: list[dict], skipped: int, seconds: float, again: bool) -> None:
        """Make decisions, and give most of them rewards."""
        campaign = self.campaign(number)
        if campaign.joint and len(campaign.rounds) + len(items) > MOST_ROUNDS:
            return
        items = [self._named(item) for item in items]
        self._decide(campaign, items, batch=True)
        self.clock.advance(seconds)
        if again:
            self._decide(campaign, [_in_other_words(item) for item in items], batch=True)
        for round in campaign.rounds[-len(items) :]:
            if round.number % skipped and not round.erased:
                self._reward(campaign, round.decision_id, SEASONS.index(round.item["context"]["season"]) - 0.5)

    play_on = play_more = play_further = play  # several times as often as any other rule

    @precondition(existing)
    @rule(
        number=which,
        items=st.lists(
            st.fixed_dictionaries(
                {"context": st.one_of(*[contexts] * 30, bad_contexts)},
                optional={
                    "excluded_actions": st.lists(st.sampled_from([*ACTIONS[:4], "fly"][:4]), max_size=2),
                    "subject": st.sampled_from(SUBJECTS),
                    "at": st.sampled_from([-7, -1.5, 0, 0.5, 30, 61]),
                },
            ),
            min_size=1,
            max_size=9,
        ),
        batch=st.booleans(),
        again=which,
    )
    def decide(self, number: int, items: list[dict], batch: bool, again: int) -> None:
        campaign = self.campaign(number)
        if campaign.joint and len(campaign.rounds) + len(items) > MOST_ROUNDS:
            return
        items = [self._named(item) for item in items if batch or item is items[0]]
        if batch and again == 1 and campaign.rounds:  # an old one among them
            items.append(dict(campaign.rounds[-1].item))
        if batch and again == 2:  # a twin, in other words
            items.append(_in_other_words(items[0]))
        if batch and again == 3:  # the same id for something else
            items.append(items[0] | {"subject": "someone else"})
        self._decide(campaign, items, batch)

    def _named(self, item: dict) -> dict:
        self.ids += 1
        made = {"decision_id": f"d{self.ids}", **item}
        if "at" in item:
            made["at"] = datetime.fromtimestamp(self.clock.now / SECOND + item["at"], UTC).isoformat()
        return made

    def _decide(self, campaign: Campaign, items: list[dict], batch: bool) -> None:
        name = campaign.config["name"]
        with self.expecting() as ask:
            if batch:
                answer = ask("POST", "/decide/batch", {"campaign": name, "items": items})
            else:
                answer = ask("POST", "/decide", {"campaign": name, **items[0]})
            rounds = campaign.decide(items, self.clock.now)
            made = decisions.DecisionBatch if batch else decisions.DecisionAnswer
            body = made.model_validate_json(answer.content).model_dump(mode="json")
            assert body == answer.json()
            for round, decision in zip(rounds, body["decisions"] if batch else [body], strict=True):
                campaign.answered(round, decision)
            if not batch:
                self._same_bytes(rounds[0], answer)
        self.show(campaign)

    @staticmethod
    def _same_bytes(round: Round, answer: httpx.Response) -> None:
        round.raw = round.raw or answer.content
        assert answer.content == round.raw

    @precondition(decided)
    @rule(number=which, back=which, how=st.sampled_from(["same", "other words", "changed"]))
    def retry(self, number: int, back: int, how: str) -> None:
        """R17: an equal request gets the same answer, even from an archived campaign; another one is refused."""
        campaign, round = self._some_round(number, back)
        item = dict(round.item)
        if how == "other words":
            item = _in_other_words(item)
        elif how == "changed":
            item["context"] = item["context"] | {"spend": 77}
        self._decide(campaign, [item], batch=False)

    @precondition(existing)
    @rule(number=which, context=contexts, subject=st.sampled_from([None, *SUBJECTS]))
    def decide_at_once(self, number: int, context: dict, subject: str | None) -> None:
        """Send a request twice at the same time, to two workers if there are two: one decision (R17)."""
        campaign = self.campaign(number)
        item = self._named({"context": context} | ({"subject": subject} if subject else {}))
        body = {"campaign": campaign.config["name"], **item}
        answers = self._at_once("/decide", body, body)
        try:
            (round,) = campaign.decide([item], self.clock.now)
        except Refused as refused:
            for answer in answers:
                error_of(answer, refused.status)
            return
        for answer in answers:
            campaign.answered(round, good(answer))
            self._same_bytes(round, answer)
        self.show(campaign)

    def _at_once(self, path: str, *bodies: dict) -> list[httpx.Response]:
        def post(worker: Worker, body: dict) -> httpx.Response:
            with worker.open_client() as client:
                return client.post(path, json=body)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(post, (self.workers.running * 2)[:2], bodies))

    def _some_round(self, number: int, back: int) -> tuple[Campaign, Round]:
        campaign = self.some(number, [c for c in self.campaigns.values() if c.rounds])
        return campaign, campaign.rounds[-1 - (back * back) % len(campaign.rounds)]  # rather a late one

    # --- rewards -----------------------------------------------------------------------------------------------

    @precondition(decided)
    @rule(number=which, back=which, value=st.one_of(values, st.just(7)), known=st.sampled_from([True, True, False]))
    def reward(self, number: int, back: int, value: float, known: bool) -> None:
        campaign, round = self._some_round(number, back)
        self._reward(campaign, round.decision_id if known else "never decided", value)

    def _reward(self, campaign: Campaign, decision_id: str, value: float) -> None:
        body = {"campaign": campaign.config["name"], "decision_id": decision_id, "reward": value}
        with self.expecting() as ask:
            answer = ask("POST", "/reward", body)
            expected = campaign.reward(decision_id, value, self.clock.now)
            assert rewards.RewardAnswer.model_validate(good(answer)).model_dump(mode="json") == expected
        self.show(campaign)

    @precondition(decided)
    @rule(number=which)
    def reward_twice_at_once(self, number: int) -> None:
        """Send two rewards for one decision at the same time: one of them counts."""
        campaign, round = self._some_round(number, 0)
        if round.reward is not None or round.erased:
            return
        body = {"campaign": campaign.config["name"], "decision_id": round.decision_id}
        answers = self._at_once("/reward", *(body | {"reward": value} for value in (0.5, 0.75)))
        taken, refused = sorted(answers, key=lambda answer: answer.status_code)
        error_of(refused, 409)
        assert good(taken) == campaign.reward(round.decision_id, taken.json()["reward"], self.clock.now)

    @precondition(decided)
    @rule(number=which, back=which, amount=values, id=reward_ids, how=st.sampled_from(["add", "add", "correct"]))
    def revise(self, number: int, back: int, amount: float, id: str, how: str) -> None:
        """Send one more amount, or a correction; the ids are few, so some are repeated."""
        campaign, round = self._some_round(number, back)
        body = {
            "campaign": campaign.config["name"],
            "decision_id": round.decision_id,
            "reward": amount,
            "reward_id": id,
        }
        with self.expecting() as ask:
            if how == "add":
                answer = ask("POST", "/reward", body | {"mode": "add"})
            else:
                answer = ask("POST", "/reward/correct", body)
            expected = getattr(campaign, how)(round.decision_id, amount, id, self.clock.now)
            assert rewards.IdentifiedReward.model_validate(good(answer)).model_dump(mode="json") == expected
        self.show(campaign)

    revise_more = revise

    @precondition(decided)
    @rule(number=which, subject=st.sampled_from(SUBJECTS), amount=values, id=reward_ids)
    def credit(self, number: int, subject: str, amount: float, id: str) -> None:
        campaign = self.campaign(number)
        body = {"campaign": campaign.config["name"], "subject": subject, "reward": amount, "reward_id": id}
        with self.expecting() as ask:
            answer = ask("POST", "/reward/subject", body)
            expected = campaign.credit(subject, amount, id, self.clock.now)
            assert good(answer) == {"credited": expected}
        self.show(campaign)

    @precondition(decided)
    @rule(number=which, back=which, id=reward_ids)
    def add_twice_at_once(self, number: int, back: int, id: str) -> None:
        """Send an amount twice at the same time: it is added once."""
        campaign, round = self._some_round(number, back)
        body = {"campaign": campaign.config["name"], "decision_id": round.decision_id, "reward": 0.5, "reward_id": id}
        answers = self._at_once("/reward", *[body | {"mode": "add"}] * 2)
        try:
            expected = campaign.add(round.decision_id, 0.5, id, self.clock.now)
        except Refused as refused:
            for answer in answers:
                error_of(answer, refused.status)
        else:
            assert [good(answer) for answer in answers] == [expected] * 2
        self.show(campaign)

    @precondition(decided)
    @rule(number=which, every=st.integers(1, 3), first=values, unknown=st.booleans())
    def reward_many(self, number: int, every: int, first: float, unknown: bool) -> None:
        """Get a result for each item, as if each had been sent alone."""
        campaign, _ = self._some_round(number, 0)
        items = [
            {"decision_id": round.decision_id, "reward": first if i % 2 else 0.5}
            for i, round in enumerate(campaign.rounds[::-every])
        ]
        if unknown:
            items.insert(1, {"decision_id": "never decided", "reward": first})
        answer = good(self.ask("POST", "/reward/batch", {"campaign": campaign.config["name"], "items": items}))
        results = rewards.RewardResults.model_validate(answer).model_dump(mode="json")["results"]
        for item, result in zip(items, results, strict=True):
            try:
                expected = campaign.reward(item["decision_id"], item["reward"], self.clock.now), None
            except Refused as refused:
                expected = None, CODES[refused.status]
            assert (result["committed"], result["error"] and result["error"]["code"]) == expected
        self.show(campaign)

    # --- changes -----------------------------------------------------------------------------------------------

    @precondition(existing)
    @rule(number=which, patch=st.sampled_from(PATCHES))
    def change(self, number: int, patch: dict[str, Any]) -> None:
        campaign = self.campaign(number)
        if campaign.joint and "rewards" in patch:
            return  # when there is an estimate depends on the law of delays, which is not modelled
        changes = {}
        for name, value in patch.items():
            if isinstance(value, dict):
                changes[name] = campaign.config[name] | value
                if name == "rewards":
                    ways = changes[name]
                    way = ways["while_waiting"] or "provisional"
                    ways["while_waiting"] = None if ways["default"] is None else way
            else:
                changes[name] = DEFAULTS[name] if value is None else value
        with self.expecting() as ask:
            ask("PATCH", f"/campaigns/{campaign.config['name']}", patch)
            if len(changes.get("regime_labels", ())) > _most_regimes(campaign):
                raise Refused(422)
            campaign.change(changes, self.clock.now)
        self.show(campaign)

    @precondition(existing)
    @rule(number=which, refused=st.sampled_from(REFUSED_PATCHES))
    def change_what_cannot_change(self, number: int, refused: tuple[dict, int]) -> None:
        campaign, (patch, status) = self.campaign(number), refused
        error_of(self.ask("PATCH", f"/campaigns/{campaign.config['name']}", patch), status)
        self.show(campaign)

    @precondition(existing)
    @rule(number=which, action=st.sampled_from(ACTIONS), retire=st.booleans())
    def change_actions(self, number: int, action: str, retire: bool) -> None:
        campaign = self.campaign(number)
        with self.expecting() as ask:
            path = f"/campaigns/{campaign.config['name']}/actions{'/retire' if retire else ''}"
            ask("POST", path, {"action": action})
            (campaign.retire_action if retire else campaign.add_action)(action, self.clock.now)
        self.show(campaign)

    change_actions_more = change_actions

    @precondition(existing)
    @rule(number=which, back=which, times=st.integers(1, 2))
    def roll_back(self, number: int, back: int, times: int) -> None:
        """Roll back once, or with a retry, which changes nothing."""
        campaign = self.campaign(number)
        version = max(1, len(campaign.versions) - back)
        for _ in range(times):
            with self.expecting() as ask:
                ask("POST", f"/campaigns/{campaign.config['name']}/rollback", {"model_version": version})
                campaign.roll_back(version, self.clock.now)
        self.show(campaign)

    # --- people, time, workers ---------------------------------------------------------------------------------

    @precondition(decided)
    @rule(subject=st.sampled_from(SUBJECTS))
    def erase(self, subject: str) -> None:
        names = [name for name in sorted(self.campaigns) if self.campaigns[name].rounds_of(subject)]
        answer = good(self.ask("POST", "/subjects/erase", {"subject": subject}))
        told = [(name, self.campaigns[name].erase(subject, self.clock.now)) for name in names]
        assert [(c["campaign"], c["erased_decisions"]) for c in answer["campaigns"]] == told
        assert answer["erased_decisions"] == sum(count for _, count in told)
        for name in names:
            self.show(self.campaigns[name])

    @precondition(decided)
    @rule(subject=st.sampled_from(SUBJECTS))
    def export(self, subject: str) -> None:
        answer = good(self.ask("POST", "/subjects/export", {"subject": subject}))
        kept = {c["campaign"]: c["decisions"] for c in answer["campaigns"]}
        expected = {name: rounds for name, c in self.campaigns.items() if (rounds := c.rounds_of(subject))}
        assert kept.keys() == expected.keys()
        for name, rounds in expected.items():
            for row, round in zip(kept[name], rounds, strict=True):
                assert (row["decision_id"], row["round"]) == (round.decision_id, round.number)
                assert row["context"] == round.item["context"]
                assert row["reward"] == self.campaigns[name].told_reward(round, self.clock.now)

    @rule(seconds=st.sampled_from([0.001, 0.4, 2, 5, 30, -1, -8]))
    def move_clock(self, seconds: float) -> None:
        """Move the clock, sometimes backwards, as happens on real machines."""
        self.clock.advance(seconds)

    @precondition(decided)
    @rule(number=which)
    def restart(self, number: int) -> None:
        self.workers.restart(number)

    # --- looking -----------------------------------------------------------------------------------------------

    @precondition(existing)
    @rule(number=which, context=contexts)
    def look(self, number: int, context: dict) -> None:
        """Reading changes nothing."""
        campaign = self.campaign(number)
        path = f"/campaigns/{campaign.config['name']}"
        preview = good(self.ask("POST", f"{path}/preview", {"context": context}))
        assert preview["round"] == len(campaign.rounds) + 1
        assert tuple(score["action"] for score in preview["scores"]) == tuple(campaign.active)
        for what in ("model", "diagnostics", "regimes", "report", "series"):
            good(self.ask("GET", f"{path}/{what}"))
        self.show(campaign)

    @rule(archived=st.booleans(), limit=st.integers(1, 3))
    def listed(self, archived: bool, limit: int) -> None:
        expected = sorted(n for n, c in self.campaigns.items() if (c.archived_at is not None) == archived)
        names, cursor = [], ""
        while cursor is not None:
            query = f"/campaigns?limit={limit}&archived={str(archived).lower()}&cursor={cursor}"
            page = good(self.ask("GET", query))
            assert len(page["campaigns"]) <= limit
            names += [row["name"] for row in page["campaigns"]]
            cursor = page["next_cursor"]
        assert names == expected

    def teardown(self) -> None:
        """Check everything that a campaign shows, run `undercurrent verify`, and delete the campaign."""
        try:
            for campaign in self.campaigns.values():
                self._check_all(campaign)
        finally:
            for name in self.campaigns:
                self.ask("POST", f"/campaigns/{name}/archive")
                assert self.ask("DELETE", f"/campaigns/{name}?confirm={name}").status_code == 204
        assert good(self.ask("GET", "/campaigns"))["campaigns"] == []

    def _check_all(self, campaign: Campaign) -> None:
        name = campaign.config["name"]
        stages = good(self.ask("GET", f"/campaigns/{name}/stages?limit=200"))["stages"]
        fields = ("model_version", "kind", "round", "stage", "rewards_folded", "published_at")
        assert [{field: row[field] for field in fields} for row in stages] == list(campaign.stages)[:200]
        revisions = good(self.ask("GET", f"/campaigns/{name}/revisions?limit=200"))["revisions"]
        assert [row | {"changed": frozenset(row["changed"])} for row in revisions] == campaign.revisions[::-1]
        for round in campaign.rounds[::3]:
            answer = self.ask("GET", f"/campaigns/{name}/decisions/{round.decision_id}")
            if round.erased:
                error_of(answer, 410)
                continue
            told = good(answer)
            assert {field: told[field] for field in round.answer} == round.answer
            assert told["context"] == round.item["context"]
            assert told["reward"] == campaign.told_reward(round, self.clock.now)
            history = {each["reward_id"]: each for each in told["reward_history"] if each["reward_id"] is not None}
            assert {id: each["amount"] for id, each in history.items()} == {
                id: answer["amount"] for id, answer in round.sent.items()
            }
        rows = [json.loads(line) for line in self.ask("GET", f"/campaigns/{name}/decisions").text.splitlines()]
        assert [row["round"] for row in rows] == [round.number for round in campaign.rounds]
        with self.workers.running[0].service.store.reading() as tx:
            assert verify_campaign(tx, name) == []


def _in_other_words(item: dict) -> dict:
    """Return a request that looks different but is equal by the rules (R17)."""
    context = dict(reversed(item["context"].items()))
    if isinstance(context.get("spend"), int):
        context["spend"] = float(context["spend"])
    other = item | {"context": context}
    if excluded := item.get("excluded_actions"):
        other["excluded_actions"] = [*reversed(excluded), excluded[0]]
    return other


def _most_regimes(campaign: Campaign) -> int:
    regimes = campaign.config["regimes"]
    return 3 if regimes == "auto" else int(regimes)


@pytest.fixture
def workers(database_url: str) -> Iterator[Workers]:
    workers = Workers(database_url)
    yield workers
    workers.stop()


def test_any_requests_in_any_order(workers: Workers) -> None:
    run_state_machine_as_test(lambda: Machine(workers), settings=PLAYED)
