"""Diagnostics: for every code a campaign with that finding, and campaigns that only look like it."""

import itertools
import math
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from policy import StagedPolicy
from service.analysis.checks import Code
from service.analysis.diagnostics import HEALTHY
from service.api.reports import Diagnostics
from service.engine.warm_up import warm_up
from service.storage.campaigns import find_campaign
from service.storage.rows import JobRow
from simulator.environment import load_environment
from simulator.presets import build_config
from tests.service.answers import good, shaped
from tests.service.conftest import Clock, Worker
from tests.service.playing import PLAIN, SEASONS

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
NUMBERS = itertools.count(1)
SIMPLE = {name: PLAIN[name] for name in ("actions", "variables", "signals", "stage_length")}
SIMPLE |= {"warm_start_rounds": 10, "seed": 3}
ONE = {"signals": [], "regimes": 1, "beliefs": {"estimator": "none"}}  # plain LinUCB


def given(transition, emission):
    parameters = {"transition": transition, "emission": emission, "initial": [0.5, 0.5]}
    return {"regimes": 2, "beliefs": {"estimator": "given", "parameters": parameters}}


@pytest.fixture(scope="module", params=["sqlite"])
def worker(request, new_database):
    """One worker for all campaigns."""
    warm_up()  # before a test breaks updates
    worker = Worker(new_database(request.param), Clock())
    yield worker
    worker.stop()


class Played:
    """A campaign on a worker whose clock the test moves; contexts and rewards are random unless the test gives them."""

    def __init__(self, worker, **config):
        self.worker, self.client = worker, worker.client
        self.clock = worker.service.campaigns.clock
        self.name, self.chance, self.round = f"played-{next(NUMBERS)}", random.Random(1), 0
        good(self.client.post("/campaigns", json={**SIMPLE, "name": self.name, **config}), 201)

    def decide(self, count, seconds=0.0, at=None, excluded=(), **context):
        """Make this many decisions, `seconds` apart."""
        made = []
        for size in [1] * count if seconds else [count]:
            self.clock.advance(seconds)
            items = []
            for _ in range(size):
                self.round += 1
                drawn = {"season": self.chance.choice(SEASONS), "spend": self.chance.choice((3, 36.5, 80))}
                drawn |= {"tenure": round(8 * self.chance.random(), 2)} | context
                item = {"decision_id": f"d{self.round}", "context": drawn, "excluded_actions": list(excluded)}
                if at is not None:
                    item["at"] = datetime.fromtimestamp(at(self.clock.now / 1e6), UTC).isoformat()
                items.append(item)
            body = {"campaign": self.name, "items": items}
            made += good(self.client.post("/decide/batch", json=body))["decisions"]
        return made

    def reward(self, made, value=None):
        """Send their rewards: random ones, one value, or a function of the decision; None is not sent."""
        value = value if callable(value) else self.noise if value is None else (lambda _, it=value: it)
        items = [{"decision_id": one["decision_id"], "reward": value(one)} for one in made]
        items = [item for item in items if item["reward"] is not None]
        if items:
            results = good(self.client.post("/reward/batch", json={"campaign": self.name, "items": items}))["results"]
            assert all(result["error"] is None for result in results)

    def noise(self, made):
        return round((made["action"] == "mail") + self.chance.gauss(0.0, 0.5), 3)

    def play(self, count, value=None, size=5, **decide):
        """Make `count` decisions, `size` at a time, and send their rewards before the next ones."""
        for _ in range(count // size):
            self.reward(self.decide(size, **decide), value)
        return self

    def post(self, path, **body):
        good(self.client.post(f"/campaigns/{self.name}{path}", json=body))
        return self

    def patch(self, **change):
        good(self.client.patch(f"/campaigns/{self.name}", json=change))
        return self

    def diagnose(self):
        return shaped(Diagnostics, self.client.get(f"/campaigns/{self.name}/diagnostics"))


# --- campaigns with a finding, and without ---------------------------------------------------------------------------


def only_defaults(p):
    p.decide(60)
    p.clock.advance(20)
    p.decide(10)


def report_late(p):
    p.decide(10)
    p.clock.advance(20)
    late = {"campaign": p.name, "decision_id": "d1", "reward": 1, "mode": "add", "reward_id": "late"}
    assert p.client.post("/reward", json=late).status_code == 409


def play_sparse(p):
    """Most earn nothing from the start, so 60 zeros in a row mean nothing."""
    p.play(100, lambda made: float(made["round"] % 25 == 0))
    p.play(60, 0.0)


def report_some(p, share):
    p.play(100, lambda made: 1.0 if p.chance.random() < share else None)


def reward_nightly(p):
    """Rewards come all at once, long after their decisions."""
    for _ in range(3):
        p.reward(p.decide(60))
    p.decide(60)


def clip(p):
    p.play(60, lambda made: min(10.0, round(p.chance.gauss(8.0, 2.0), 2)))


def play_amounts(p):
    """Half earn nothing, the others amounts within the range."""
    p.play(60, lambda made: round(9 * p.chance.random(), 2) if p.chance.random() < 0.5 else 0.0)


def never_try(p):
    """An action is excluded during the warm start, and afterwards less promising than one that earns much."""
    p.play(20, lambda made: 5.0 * (made["action"] == "mail"), excluded=["call"])
    p.play(60, lambda made: 5.0 * (made["action"] == "mail"))


def play_alike(p, rounds=150):
    """All actions earn the same on average."""
    p.play(rounds, lambda made: p.chance.gauss(0, 1), size=25)


def add_late(p):
    p.play(60).post("/actions", action="gift").play(10)


def insert_job(p, seconds):
    """A job that has been waiting for this long."""
    p.play(20)
    with p.worker.service.store.writing() as tx:
        number, now = find_campaign(tx, p.name).campaign_id, p.clock.now
        created_at = now - int(seconds * 1e6)
        tx.append([JobRow(number, 20, 20, "waiting", "someone", now + 10**12, 1, None, None, None, created_at)])


def refuse(p, count):
    """Send customers of a season that nobody declared."""
    for _ in range(count):
        body = {"campaign": p.name, "context": {"season": "monsoon", "spend": 3, "tenure": 1}}
        assert p.client.post("/decide", json=body).status_code == 422
    return p


def fail_update(p):
    p.play(10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedPolicy, "update", lambda policy, state: 1 / 0)
        p.play(10)
    return p


def send_times(p, at):
    p.decide(60, seconds=5.0, at=at)


CLOCK = {"clock": {"period_seconds": 60}}
WAIT = {"rewards": {"wait_seconds": 10, "default": 0.25}}
SPECTRAL = {"regimes": 2, "beliefs": {"estimator": "spectral", "start_round": 50}}
STICKY = [[0.9, 0.1], [0.1, 0.9]]
CLEAR = [[0.97, 0.01, 0.01, 0.01], [0.01, 0.33, 0.33, 0.33]]
BLURRED = [[0.25] * 4, [0.25] * 4]

# Code, severity, configuration, and how to play.
HAVE = [
    ("no_decisions", "info", {}, lambda p: None),
    ("archived", "warning", {}, lambda p: p.play(20).post("/archive")),
    ("decides_refused", "warning", {}, lambda p: refuse(p.play(100), 6)),
    ("decides_refused", "warning", {}, lambda p: refuse(p, 10)),
    ("paused", "warning", {}, lambda p: p.play(20).patch(paused=True)),
    ("update_failed", "problem", {}, fail_update),
    ("job_waiting", "warning", {}, lambda p: insert_job(p, 1_000)),
    ("no_rewards", "problem", {}, lambda p: p.decide(60)),
    ("no_rewards", "problem", WAIT, lambda p: (p.decide(60), p.clock.advance(20))),
    ("rewards_stopped", "problem", {}, lambda p: p.play(60).decide(60)),
    ("only_default_rewards", "problem", WAIT, only_defaults),
    ("constant_rewards", "warning", {}, lambda p: p.play(60, 1.0)),
    ("constant_rewards", "problem", ONE, lambda p: p.play(500, 1.0, size=50)),
    ("constant_rewards", "warning", {}, lambda p: p.play(60).play(50, 1.0)),
    ("rewards_missing", "warning", {}, lambda p: report_some(p, 0.3)),
    ("late_rewards", "warning", WAIT, report_late),
    ("rewards_at_bounds", "warning", {"rewards": {"range": [0, 10]}}, clip),
    ("constant_signal", "problem", {}, lambda p: p.play(100, season="spring")),
    ("constant_signal", "warning", {"signals": ["season", "spend"]}, lambda p: p.play(100, spend=30)),
    ("constant_variable", "warning", {}, lambda p: p.play(100, spend=30)),
    ("constant_variable", "warning", {}, lambda p: p.play(100, tenure=4)),
    ("action_never_eligible", "warning", {}, lambda p: p.play(60, excluded=["call"])),
    ("action_never_eligible", "info", {}, lambda p: p.play(20).post("/actions/retire", action="call")),
    ("action_never_chosen", "warning", ONE | {"bonus": {"scale": 0}}, never_try),
    ("clock_skew", "warning", CLOCK, lambda p: send_times(p, lambda now: now - 600)),
    ("clock_skew", "warning", CLOCK, lambda p: send_times(p, lambda now: 1_789_999_000)),
    ("clock_skew", "warning", CLOCK, lambda p: send_times(p, lambda now: now + 30)),
    ("clock_skew", "info", {}, lambda p: send_times(p, lambda now: now + 30)),
    ("warm_start", "info", {}, lambda p: p.play(5)),
    ("searching", "info", {}, lambda p: p.play(200, lambda made: -0.02 * (made["action"] == "mail"))),
    ("warm_start", "warning", ONE | {"warm_start_rounds": 20}, lambda p: p.play(30, lambda made: None)),
    ("regimes_not_estimable", "info", {}, lambda p: p.play(60)),
    ("regimes_not_estimable", "warning", {}, lambda p: p.play(210, season="spring")),
    ("regimes_not_estimable", "warning", SPECTRAL, lambda p: p.play(210, season="spring")),
    ("belief_stuck", "warning", given(STICKY, CLEAR), lambda p: p.play(550, size=50, season="spring")),
    ("belief_stuck", "warning", given(STICKY, BLURRED), lambda p: p.play(500, size=50)),
    ("guard_active", "info", {}, lambda p: p.play(150)),
    ("exploration_small", "warning", ONE | {"bonus": {"scale": 1e-6}}, play_alike),
    ("exploration_large", "warning", ONE | {"bonus": {"scale": 1e4}}, lambda p: p.play(1_000, size=50)),
    ("no_overlap", "info", ONE, lambda p: p.play(150)),
]  # fmt: skip

# Campaigns that only look like it.
HAVE_NOT = [
    ("no_decisions", {}, lambda p: p.play(5)),
    ("archived", {}, lambda p: p.play(20).post("/archive").post("/unarchive")),
    ("decides_refused", {}, lambda p: refuse(p.play(100), 4)),
    ("decides_refused", {}, lambda p: refuse(p.play(800, size=50), 7)),
    ("paused", {}, lambda p: p.play(20).patch(paused=True).patch(paused=False)),
    ("update_failed", {}, lambda p: fail_update(p).play(10)),
    ("job_waiting", {}, lambda p: insert_job(p, 100)),
    ("no_rewards", {}, lambda p: p.decide(45)),
    ("no_rewards", WAIT, lambda p: p.decide(60)),  # not due yet
    ("rewards_stopped", {}, reward_nightly),
    ("rewards_missing", {}, reward_nightly),
    ("only_default_rewards", WAIT, lambda p: (p.play(5), only_defaults(p))),
    ("constant_rewards", ONE, play_sparse),
    ("rewards_missing", {}, lambda p: report_some(p, 0.8)),
    ("rewards_at_bounds", {"rewards": {"range": [0, 10]}}, play_amounts),
    ("rewards_at_bounds", {"rewards": {"range": [0, 1]}}, lambda p: p.play(60, lambda m: float(m["action"] == "mail"))),
    ("action_never_eligible", {}, add_late),
    ("action_never_chosen", {}, add_late),
    ("clock_skew", CLOCK, lambda p: (send_times(p, lambda now: now - 1), p.decide(20))),
    ("warm_start", {}, lambda p: p.play(200, lambda made: -0.02 * (made["action"] == "mail"))),
    ("searching", {}, lambda p: p.play(150)),
    ("belief_stuck", given(STICKY, CLEAR), lambda p: p.play(500, size=50)),
    ("exploration_small", ONE | {"bonus": {"scale": 1e-6}, "propensity_floor": 0.02}, play_alike),  # chance explores
    ("exploration_large", ONE | {"bonus": {"scale": 4.0}}, lambda p: play_alike(p, 1_000)),
    ("no_overlap", ONE | {"control": {"share": 0.1}}, lambda p: p.play(150)),
]


def check(found):
    """Every finding has evidence and advice; the worst comes first. Return them by code and severity."""
    for finding in found["findings"]:
        numbers = [x for x in finding["evidence"].values() if isinstance(x, int | float) and not isinstance(x, bool)]
        assert all(math.isfinite(number) for number in numbers)
        assert finding["evidence"]
        assert finding["message"].endswith(".")
        assert len(finding["advice"]) > 15
        assert finding["advice"].endswith((".", "?"))
    order = [("problem", "warning", "info").index(finding["severity"]) for finding in found["findings"]]
    assert order == sorted(order)
    return {(finding["code"], finding["severity"]): finding for finding in found["findings"]}


QUERIED = ("archived", "job_waiting", "rewards_stopped")


@pytest.mark.parametrize("worker", ["postgresql"], indirect=True, scope="module")
@pytest.mark.parametrize(("code", "severity", "config", "play"), [row for row in HAVE if row[0] in QUERIED])
def test_postgresql_gives_the_same_findings(worker, code, severity, config, play):
    test_a_problem_is_found(worker, code, severity, config, play)


@pytest.mark.parametrize(("code", "severity", "config", "play"), HAVE, ids=lambda x: x if isinstance(x, str) else "")
def test_a_problem_is_found(worker, code, severity, config, play):
    played = Played(worker, **config)
    play(played)
    found = played.diagnose()
    findings = check(found)
    assert (code, severity) in findings, found
    if severity == "problem":
        assert found["verdict"].startswith("Not learning: ")
    elif severity == "warning" and not any(each == "problem" for _, each in findings):
        assert found["verdict"].startswith("Learning less than it could: ")


@pytest.mark.parametrize(("code", "config", "play"), HAVE_NOT, ids=lambda x: x if isinstance(x, str) else "")
def test_a_campaign_that_only_looks_like_it(worker, code, config, play):
    played = Played(worker, **config)
    play(played)
    found = played.diagnose()
    assert code not in {finding["code"] for finding in check(found).values()}, found


def test_a_healthy_campaign_has_nothing_to_report(worker):
    """The demo's default campaign, from its first stages to two regimes in use."""
    environment, rounds = load_environment("credit-card"), 1_000
    config = build_config("default", environment, 5, {"name": "healthy"})
    good(worker.client.post("/campaigns", content=config.model_dump_json()), 201)
    episode = environment.draw(1_500, np.random.default_rng(5))
    for start in range(0, rounds, 10):
        contexts = [environment.describe_context(episode, t) for t in range(start, start + 10)]
        items = [{"decision_id": str(t), "context": context} for t, context in enumerate(contexts, start)]
        made = good(worker.client.post("/decide/batch", json={"campaign": "healthy", "items": items}))["decisions"]
        earned = []
        for one in made:
            reward = float(episode.rewards[one["round"] - 1, environment.actions.index(one["action"])])
            earned.append({"decision_id": one["decision_id"], "reward": reward})
        good(worker.client.post("/reward/batch", json={"campaign": "healthy", "items": earned}))
        if start + 10 in (10, 60, 200, 500, rounds):
            found = shaped(Diagnostics, worker.client.get("/campaigns/healthy/diagnostics"))
            assert {severity for _, severity in check(found)} <= {"info"}, found
            assert (found["verdict"] == HEALTHY) == (start >= 50)
    assert good(worker.client.get("/campaigns/healthy"))["regimes"] == 2
    assert {finding["code"] for finding in found["findings"]} == {"no_overlap"}


def test_evidence_is_counted_from_the_log(worker):
    played = Played(worker, rewards={"range": [0, 10]})
    clip(played)
    played.decide(60, excluded=["call"])
    findings = check(played.diagnose())
    stored = [good(played.client.get(f"/campaigns/{played.name}/decisions/d{t}")) for t in range(1, 121)]
    rewards = [one["reward"]["reward"] for one in stored if one["reward"]]
    bounds = findings["rewards_at_bounds", "warning"]["evidence"]
    assert bounds["at_highest"] == pytest.approx(rewards.count(10.0) / len(rewards))
    assert (bounds["rewards"], bounds["at_lowest"]) == (60, rewards.count(0.0) / 60)
    stopped = findings["rewards_stopped", "problem"]["evidence"]
    assert stopped == {"decisions_since_last_reward": 60, "longest_wait_before": 5, "rewards": 60}


def test_the_bonus_is_compared_with_the_models_standard_errors(worker):
    """The bonus is scale · ‖z‖ and the standard error σ̂ · ‖z‖, whatever z is."""
    played = Played(worker, **ONE, ridge=1e-9, bonus={"scale": 0.3})
    played.play(200, lambda made: played.chance.gauss(0, 1))
    assert "exploration_small" not in {finding["code"] for finding in played.diagnose()["findings"]}
    model = good(played.client.get(f"/campaigns/{played.name}/model"))
    played.patch(bonus={"scale": 0.01}).decide(300)
    (small,) = (finding for finding in played.diagnose()["findings"] if finding["code"] == "exploration_small")
    assert small["evidence"]["bonus_in_standard_errors"] == pytest.approx(0.01 / model["noise_std"], rel=0.02)


def test_refused_requests_are_named_with_their_share(worker):
    played = refuse(Played(worker).play(95), 5)
    (finding,) = (finding for finding in played.diagnose()["findings"] if finding["code"] == "decides_refused")
    assert finding["message"] == "5 % of requests refused: season=monsoon."
    assert finding["evidence"] == {"decides": 100, "refused": 5, "shares": {"season=monsoon": 0.05}}
    played.post("/levels", variable="season", level="monsoon")
    played.decide(5, season="monsoon")


def test_a_number_that_is_always_missing_is_constant(worker):
    variables = [each | ({"missing": "level"} if each["name"] == "tenure" else {}) for each in SIMPLE["variables"]]
    played = Played(worker, variables=variables).play(100, tenure=None)
    evidence = [each["evidence"] for each in played.diagnose()["findings"] if each["code"] == "constant_variable"]
    assert evidence == [{"variable": "tenure", "value": "missing", "decisions": 100}]
    played.play(5, tenure=8)  # scaled, the largest number is what a missing one is
    assert not [each for each in played.diagnose()["findings"] if each["code"] == "constant_variable"]


def test_every_code_is_tested_and_documented():
    assert {code for code, *_ in HAVE} == set(get_args(Code))
    section = DOCS[DOCS.index("\n## Diagnostics") :].split("\n## ")[1]
    codes = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(codes) == sorted(get_args(Code))
