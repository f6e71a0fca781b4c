"""The API as its callers see it, over real HTTP; on both databases where the database matters.

Other tests send anything to every route. test_machine.py checks creation, lists, retries, batches, rewards,
propensities and default rewards, in any order, against a model of the rules. test_nasty.py tries invalid values and
strange texts, test_limits.py large and slow bodies.
"""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa

from policy import CampaignConfig
from service.api.campaigns import CampaignPage
from service.api.decisions import DecisionAnswer, StoredDecision
from service.api.models import Model, StagePage
from service.api.rewards import RewardAnswer, RewardResults
from service.base.errors import ConflictError
from service.storage.store import Store
from service.storage.tables import metadata
from tests.service.answers import allowed_by_field, error_of, good, shaped
from tests.service.playing import operation

ACTIONS = ["none", "email", "call"]
VARIABLES = [{"name": "risk", "levels": ["low", "high"]}, {"name": "revenue", "cuts": [10, 36]}]
REQUIRED = {"actions": ACTIONS, "variables": VARIABLES}
# Learns from round 7 on: warm start for 6 rounds, and 3 rewards must be folded (R8).
QUICK = REQUIRED | {
    "regimes": 1,
    "beliefs": {"estimator": "none"},
    "stage_length": 5,
    "warm_start_rounds": 6,
    "bonus": {"scale": 0.01},
    "seed": 7,
}
CHAIN = {
    "transition": [[0.9, 0.1], [0.3, 0.7]],
    "emission": [[0.3, 0.3, 0.2, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.2, 0.3, 0.3]],
    "initial": [0.6, 0.4],
}
TWO_REGIMES = QUICK | {"regimes": 2, "beliefs": {"estimator": "given", "parameters": CHAIN}}
ONCE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # no database is involved
NAMES = (f"campaign-{number}" for number in itertools.count())


def context(number: int) -> dict[str, Any]:
    """A customer."""
    return {"risk": ("low", "high")[number % 2], "revenue": (5, 36, 80.5)[number % 3]}


def earned(number: int) -> float:
    """What the decision for a customer earned."""
    return number * 7 % 11 / 4 - 1


class Campaign:
    """A campaign and its callers. Customer `number` has a context and a decision id of their own."""

    def __init__(self, client: httpx.Client, config: dict[str, Any]) -> None:
        self.client, self.name = client, config["name"]
        self.config = good(client.post("/campaigns", json=config), 201)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json={"campaign": self.name, **body})

    def get(self, path: str = "", **query: Any) -> httpx.Response:
        return self.client.get(f"/campaigns/{self.name}{path}", params=query)

    def state(self) -> dict:
        return good(self.get())

    def stored(self, number: int) -> dict:
        return good(self.get(f"/decisions/d{number}"))

    def decide(self, number: int, **more: Any) -> httpx.Response:
        return self.post("/decide", **self.item(number, **more))

    def decide_batch(self, *items: dict[str, Any]) -> httpx.Response:
        return self.post("/decide/batch", items=items)

    def reward(self, number: int, reward: Any = None) -> httpx.Response:
        return self.post("/reward", decision_id=f"d{number}", reward=earned(number) if reward is None else reward)

    def reward_batch(self, *items: tuple[int, float]) -> httpx.Response:
        return self.post("/reward/batch", items=[{"decision_id": f"d{n}", "reward": value} for n, value in items])

    def play(self, first: int, last: int) -> list[dict]:
        """Decide for customers one by one, each rewarded at once."""
        answers = []
        for number in range(first, last + 1):
            answers.append(good(self.decide(number)))
            good(self.reward(number))
        return answers

    @staticmethod
    def item(number: int, **more: Any) -> dict[str, Any]:
        return {"decision_id": f"d{number}", "context": context(number), **more}


@pytest.fixture
def new(http: httpx.Client) -> Callable[..., Campaign]:
    """Create a campaign on SQLite: with this configuration, or with QUICK and changes."""
    return lambda config=QUICK, **changes: Campaign(http, config | {"name": next(NAMES)} | changes)


@pytest.fixture
def new_on_both(shared: httpx.Client) -> Callable[..., Campaign]:
    """Like `new`, on both databases in turn."""
    return lambda config=QUICK, **changes: Campaign(shared, config | {"name": next(NAMES)} | changes)


def apart_from_names(answers: list[dict]) -> list[dict]:
    """Answers of twin campaigns, so that they can be compared."""
    return [{key: value for key, value in answer.items() if key != "campaign"} for answer in answers]


def at(seconds: float) -> str:
    """The time this many seconds after the tests' clock."""
    return (datetime.fromtimestamp(1_790_000_000, UTC) + timedelta(seconds=seconds)).isoformat()


# --- campaigns ------------------------------------------------------------------------------------------------------


def test_creating_fills_in_every_default(shared):
    """R11: a seed too, if none is given."""
    config = REQUIRED | {"name": next(NAMES), "seed": 11}
    created = shaped(CampaignConfig, shared.post("/campaigns", json=config), 201)
    assert created == CampaignConfig(**config).model_dump(mode="json")
    assert created.keys() == CampaignConfig.model_fields.keys()
    assert all(created[field] is not None for field in created.keys() - {"clock", "retention_days"})
    assert (created["signals"], created["regimes"]) == (["risk", "revenue"], "auto")
    drawn = [good(shared.post("/campaigns", json=REQUIRED | {"name": next(NAMES)}), 201) for _ in range(2)]
    assert drawn[0]["seed"] != drawn[1]["seed"]
    for one in (created, *drawn):
        assert good(shared.get(f"/campaigns/{one['name']}"))["config"] == one


def test_creating_again_with_the_same_body_is_a_retry(shared):
    """R17: also in other words, and after decisions."""
    body = REQUIRED | {"name": next(NAMES), "ridge": 2}
    created = shared.post("/campaigns", json=body)
    again = shared.post("/campaigns", content=json.dumps(dict(reversed((body | {"ridge": 2.0}).items()))))
    good(shared.post("/decide", json={"campaign": body["name"], "context": context(1)}))
    later = shared.post("/campaigns", json=body)
    assert good(created, 201)["ridge"] == 2
    assert again.content == later.content == created.content


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_creating_at_the_same_time_on_two_workers(start):
    """R17: the second request finds the campaign and gets the same answer."""
    clients, together = [start().client for _ in range(2)], Barrier(2)

    def create(client: httpx.Client, name: str) -> httpx.Response:
        together.wait()
        return client.post("/campaigns", json=REQUIRED | {"name": name})

    with ThreadPoolExecutor(2) as callers:
        for number in range(10):
            first, second = callers.map(create, clients, [f"new-{number}"] * 2)
            assert good(first, 201) == good(second, 201)


def test_a_configuration_is_refused_with_every_mistake(http):
    """tests/policy/test_config.py has every mistake. More columns than are allowed is one that only a map finds."""
    mistakes = {
        "name": "Spring Offers",
        "actions": ["none", "Call\tback"],
        "variables": [{"name": "risk", "levels": ["low"]}, {"name": "revenue", "cuts": [10, 10]}],
        "rewards": {"range": [1, 0]},
        "control": {"share": 1},
        "ridge": "1",
        "colour": "blue",
    }
    allowed = allowed_by_field(http.post("/campaigns", json=mistakes))
    levels = {"variables[0].levels", "variables[1].cuts"}
    assert allowed.keys() == {"name", "actions[1]", "rewards.range", "control.share", "ridge", "colour"} | levels
    assert "a-z" in allowed["name"]
    assert "a-z" not in allowed["actions[1]"]  # an action may be "Call back"
    assert allowed["rewards.range"] == "[low, high] with low < high"
    assert allowed["colour"] == list(CampaignConfig.model_fields)
    many = [{"name": f"v{i}", "levels": list("abcdefgh")} for i in range(60)]
    body = {"name": next(NAMES), "actions": ACTIONS, "variables": many, "regimes": 1}
    assert allowed_by_field(http.post("/campaigns", json=body)).keys() == {"features"}
    assert http.get(f"/campaigns/{body['name']}").status_code == 404


def test_campaigns_come_in_pages(client):
    """R25: in the order of their names, which both databases must compare alike. test_machine.py has the pages."""
    names = ["0", "a", "a-1", "a1", "a_1", "ab", "b"]
    campaigns = {name: Campaign(client, QUICK | {"name": name}) for name in reversed(names)}
    campaigns["a"].play(1, 7)
    page = shaped(CampaignPage, client.get("/campaigns", params={"limit": 3}))
    rest = shaped(CampaignPage, client.get("/campaigns", params={"cursor": page["next_cursor"]}))
    assert [summary["name"] for summary in page["campaigns"] + rest["campaigns"]] == names
    assert rest["next_cursor"] is None
    for summary in page["campaigns"]:
        assert summary.items() <= campaigns[summary["name"]].state().items()
    for cursor, left in (("a0", 4), ("zzz", 0)):  # no campaign needs to have it
        assert len(good(client.get("/campaigns", params={"cursor": cursor}))["campaigns"]) == left
    for cursor in ("\x00", "x" * 65):
        assert allowed_by_field(client.get("/campaigns", params={"cursor": cursor})).keys() == {"cursor"}


def test_models_come_in_pages_newest_first(new_on_both):
    """R25; R1: the update that ends stage s runs just before round sℓ+1, with the rewards that had arrived by then."""
    campaign = new_on_both(stage_length=1)
    campaign.play(1, 8)
    stages, cursor = list[dict](), {}
    for size in (3, 3, 1):
        page = shaped(StagePage, campaign.get("/stages", limit=3, **cursor))
        assert len(page["stages"]) == size
        stages, cursor = stages + page["stages"], {"cursor": page["next_cursor"]}
    assert cursor == {"cursor": None}
    fields = ("model_version", "kind", "round", "stage", "rewards_folded", "regimes")
    expected = [(n, "update", n, n + 1, n, 1) for n in range(7, 0, -1)]
    assert [tuple(stage[field] for field in fields) for stage in stages] == expected


def test_limits_and_cursors_of_pages_have_bounds(http, new):
    """R24: a bad one is the caller's mistake, not the service's."""
    name = new().name
    for path in ("/campaigns", f"/campaigns/{name}/stages"):
        for limit, allowed in (("0", "≥ 1"), ("201", "≤ 200"), ("many", None)):
            assert allowed_by_field(http.get(path, params={"limit": limit})) == {"limit": allowed}
    for cursor in ("x", "9" * 30, "-" + "9" * 30, "-1", "1.5"):
        response = http.get(f"/campaigns/{name}/stages", params={"cursor": cursor})
        assert allowed_by_field(response).keys() == {"cursor"}


# --- where a campaign stands ----------------------------------------------------------------------------------------


def test_a_decision_can_be_looked_up_as_it_was_made(new_on_both):
    """The campaign's state shows its belief."""
    campaign = new_on_both(TWO_REGIMES)
    assert campaign.state()["belief"] == CHAIN["initial"]
    answer = campaign.decide(1, excluded_actions=["call"], subject="customer 5", at=at(-5))
    made = shaped(DecisionAnswer, answer)
    stored = shaped(StoredDecision, campaign.get("/decisions/d1"))
    assert {key: stored[key] for key in made} == made
    assert [score["action"] for score in stored["scores"]] == ["none", "email"]
    assert (stored["context"], stored["excluded_actions"], stored["reward"]) == (context(1), ["call"], None)
    assert datetime.fromisoformat(stored["at"]) == datetime.fromisoformat(at(-5))
    assert "customer 5" not in json.dumps(stored)
    assert campaign.state()["belief"] == made["belief"] != CHAIN["initial"]


def test_ids_of_decisions(new):
    """Any text, also one that looks like part of a path; a decision without an id gets one."""
    campaign = new()
    first, second = (good(campaign.post("/decide", context=context(1))) for _ in range(2))
    assert first["decision_id"] != second["decision_id"]
    for name in ("/", "//a//", "..", "decisions/d1", "a?b=c#d", "é" * 200):
        assert good(campaign.post("/decide", decision_id=name, context=context(1)))["decision_id"] == name
    for round, name in ((1, first["decision_id"]), (2, second["decision_id"]), (3, "/"), (4, "//a//"), (5, "..")):
        good(campaign.post("/reward", decision_id=name, reward=round))
        stored = good(campaign.get(f"/decisions/{quote(name, '').replace('.', '%2E')}"))
        assert (stored["round"], stored["reward"]["reward"]) == (round, round)


def test_the_model_in_the_campaigns_words(new):
    """tests/policy/test_description.py tests the numbers and the words."""
    assert good(new().get("/model"))["regimes"] == []
    campaign = new(TWO_REGIMES)
    before = shaped(Model, campaign.get("/model"))
    assert (before["model_version"], before["noise_std"]) == (0, None)
    assert [regime["transition"] for regime in before["regimes"]] == CHAIN["transition"]
    assert [[one["probability"] for one in regime["emission"]] for regime in before["regimes"]] == CHAIN["emission"]
    assert before["regimes"][0]["emission"][1]["symbol"] == {"risk": "low", "revenue": "2"}  # R9: the last one fastest
    assert before["regimes"][0]["signals"]["risk"]["low"] == pytest.approx(0.8)
    assert [regime["share"] for regime in before["regimes"]] == pytest.approx([0.75, 0.25])
    assert [regime["expected_duration"] for regime in before["regimes"]] == pytest.approx([10, 10 / 3])
    campaign.play(1, 21)
    after = shaped(Model, campaign.get("/model"))
    assert (after["model_version"], after["round"], after["rewards_folded"]) == (4, 21, 20)
    assert after["noise_std"] > 0
    assert all(column["standard_error"] > 0 for column in after["coefficients"])
    words = {(column["term"], column["action"], column["level"]) for column in after["coefficients"]}
    assert {("risk", None, "high"), ("actions", "call", None), ("actions:revenue", "email", "2")} < words


def test_reading_changes_nothing(client, direct):
    """R25: not one row, although the update that ends a stage is due."""
    campaign = Campaign(client, QUICK | {"name": "read", "rewards": {"wait_seconds": 1e-6, "default": 0}})
    campaign.play(1, 5)
    rows = direct().rows
    before = {table.name: rows(table) for table in metadata.sorted_tables}
    for path in ("", "/decisions/d1", "/model", "/stages"):
        good(campaign.get(path))
        assert client.head(f"/campaigns/read{path}").status_code == 405
    for path in ("/campaigns", "/healthz", "/readyz", "/openapi.json", "/docs", "/redoc"):
        assert client.get(path).status_code == 200
    for path in ("/decide", "/reward", "/decide/batch", "/reward/batch"):
        assert client.get(path, params={"campaign": "read", "decision_id": "d1"}).status_code == 405
    assert {table.name: rows(table) for table in metadata.sorted_tables} == before


# --- the same request again (R17) -----------------------------------------------------------------------------------


SAME = [
    ({"context": {"risk": "low", "revenue": 36}}, {"context": {"revenue": 36.0, "risk": "low"}}),
    ({"context": {"risk": "low", "revenue": 0}}, {"context": {"risk": "low", "revenue": -0.0}}),
    ({"excluded_actions": ["none", "call"]}, {"excluded_actions": ["call", "none", "call"]}),
    ({"excluded_actions": []}, {}),
    ({"subject": None, "at": None}, {}),
    ({"at": "2026-09-21T14:13:10Z"}, {"at": "2026-09-21T16:13:10.000+02:00"}),
]
OTHER = [
    ({}, {"context": context(2)}),
    ({}, {"subject": "somebody"}),
    ({"subject": "somebody"}, {"subject": "somebody else"}),
    ({}, {"excluded_actions": ["call"]}),
    ({"excluded_actions": ["none"]}, {"excluded_actions": ["call"]}),
    ({}, {"at": "2026-09-21T14:13:10Z"}),
    ({"at": "2026-09-21T14:13:10Z"}, {"at": "2026-09-21T14:13:10.000001Z"}),
    ({"context": {"risk": "low", "revenue": 36}}, {"context": {"risk": "low", "revenue": 36.000001}}),
]
# What would be refused had the id been new.
REFUSED = [
    {"context": {"risk": "odd", "revenue": 1}},
    *({"context": {"risk": "low", "revenue": revenue}} for revenue in (10**30, None)),
    *({"excluded_actions": actions} for actions in (["fax"], ACTIONS)),
    {"at": "2100-01-01T00:00:00Z"},
]


def test_the_same_request_in_other_words_and_another_one(new, subtests):
    """R17: the canonical request counts. Another one is a conflict, even if it could not be decided at all."""
    campaign = new()
    for number, (first, second) in enumerate((*SAME, *OTHER, *(({}, refused) for refused in REFUSED)), 1):
        with subtests.test(first=first, second=second):
            is_same = number <= len(SAME)
            first, second = {"context": context(1)} | first, {"context": context(1)} | second
            answer = campaign.decide(number, **first)
            assert good(answer)["round"] == number
            if is_same:
                assert campaign.decide(number, **second).content == answer.content
                continue
            assert f"'d{number}'" in error_of(campaign.decide(number, **second), 409)["message"]
            error_of(campaign.decide_batch(campaign.item(1000), campaign.item(number, **second)), 409)
            assert campaign.state()["round"] == number
            assert campaign.decide(number, **first).content == answer.content


# --- rewards --------------------------------------------------------------------------------------------------------


def test_refused_rewards(new):
    """Out of range, another one than before, and for a decision of another campaign; alone and in a batch."""
    campaign, free = new(rewards={"range": [-10, 100]}), new()
    for one in (campaign, free):
        good(one.decide(1))
    for reward in (-10.001, 101, 1e30):
        assert allowed_by_field(campaign.reward(1, reward)) == {"reward": [-10, 100]}
    assert "1e+100" in allowed_by_field(free.reward(1, -1e101))["reward"]
    assert campaign.stored(1)["reward"] is None
    committed = shaped(RewardAnswer, campaign.reward(1, -10))
    message = error_of(campaign.reward(1, 2.5), 409)["message"]
    assert "'d1'" in message
    assert "-10.0" in message
    good(free.decide(2))
    assert "'d2'" in error_of(campaign.reward(2), 404)["message"]
    good(campaign.decide(3))
    results = shaped(RewardResults, campaign.reward_batch((1, -10), (1, 2.5), (2, 1), (3, 101)))["results"]
    assert results[0]["committed"] == committed
    assert [one["error"] and one["error"]["code"] for one in results] == [None, "conflict", "not_found", "invalid"]
    problem = {"field": "reward", "message": "101.0 is out of rewards.range", "allowed": [-10, 100]}
    assert results[3]["error"]["fields"] == [problem]


# --- batches --------------------------------------------------------------------------------------------------------


def test_a_batch_names_every_bad_item(new):
    """R18, R26: as `items[1]`, whatever is wrong with the item; and nothing has happened."""
    campaign = new()
    campaign.play(1, 4)
    good_ones = [campaign.item(4), campaign.item(5), campaign.item(6)]  # one is known, and the stage ends within them
    for change, problems in (
        ({"context": {"risk": "odd", "revenue": 1}}, {"context.risk": ["low", "high"]}),
        ({"context": {"risk": "odd", "revenue": "x"}}, {"context.risk": ..., "context.revenue": ...}),
        ({"excluded_actions": ["fax"]}, {"excluded_actions": ACTIONS}),
        ({"at": at(90)}, {"at": ...}),
        ({"decision_id": None}, {"decision_id": ...}),
    ):
        bad = [campaign.item(number, **change) for number in ((7, 8) if "context" in change else (7,))]
        answered = allowed_by_field(campaign.decide_batch(*good_ones[:2], *bad, good_ones[2]))
        expected = {f"items[{i + 2}].{field}": allowed for i in range(len(bad)) for field, allowed in problems.items()}
        assert answered.keys() == expected.keys()
        assert all(allowed in (..., answered[field]) for field, allowed in expected.items())
        state = campaign.state()
        assert (state["round"], state["model_version"]) == (4, 0)
        error_of(campaign.get("/decisions/d5"), 404)
    rewards = [{"decision_id": "d1", "reward": 1}, {"decision_id": "d2", "reward": "1"}]
    assert allowed_by_field(campaign.post("/reward/batch", items=rewards)).keys() == {"items[1].reward"}


def test_a_batch_has_1_to_1000_items(new_on_both):
    campaign = new_on_both(stage_length=50)
    for path, fields, round in (
        ("/reward/batch", ("decision_id", "reward"), 0),
        ("/decide/batch", ("decision_id", "context"), 1000),
    ):
        whole = [campaign.item(number) | {"reward": earned(number)} for number in range(1001)]
        items = [{field: item[field] for field in fields} for item in whole]
        assert "≥ 1" in allowed_by_field(campaign.post(path, items=[]))["items"]
        assert "more than 1000 items" in error_of(campaign.post(path, items=items), 413)["message"]
        assert campaign.state()["round"] == 0
        (answers,) = good(campaign.post(path, items=items[:1000])).values()
        assert len(answers) == 1000
        assert campaign.state()["round"] == round


# --- refusals (R24) -------------------------------------------------------------------------------------------------


DEEP = json.loads("[" * 150 + "]" * 150)
UNDECIDABLE = [
    *(({"context": {"risk": risk, "revenue": 1}}, {"context.risk": ["low", "high"]}) for risk in ("odd", True, DEEP)),
    ({"context": {"risk": "low", "revenue": "36"}}, {"context.revenue": "a finite number"}),
    ({"context": {"risk": "low", "revenue": 2**63}}, {"context.revenue": ...}),
    ({"context": {}}, {"context.risk": ["low", "high"], "context.revenue": "a finite number"}),
    ({"context": {"age": 5}}, {"context.risk": ..., "context.age": ["risk", "revenue"], "context.revenue": ...}),
    ({"excluded_actions": ACTIONS}, {"excluded_actions": "at least one action left"}),
    ({"excluded_actions": ["none", "fax"]}, {"excluded_actions": ACTIONS}),
    ({"excluded_actions": ["call"] * 65}, {"excluded_actions": "length ≤ 64"}),
    ({"colour": "blue"}, {"colour": ...}),
    ({"decision_id": ""}, {"decision_id": "length ≥ 1"}),
    ({"subject": "x" * 201}, {"subject": "length ≤ 200"}),
    *(({"at": when}, {"at": ...}) for when in ("2026-09-21T14:13:20", "2026-09-21", "yesterday")),  # no zone
]


def test_a_request_that_cannot_be_decided_is_refused(new, subtests):
    """R24: the error names every invalid field and, where possible, what is allowed (`...`: anything)."""
    campaign = new()
    for change, fields in UNDECIDABLE:
        with subtests.test(change=change):
            answered = allowed_by_field(campaign.post("/decide", **(campaign.item(1) | change)))
            assert answered.keys() == fields.keys()
            assert all(allowed in (..., answered[field]) for field, allowed in fields.items())
    assert campaign.state()["round"] == 0
    good(campaign.decide(1))


# --- time (R27) -----------------------------------------------------------------------------------------------------


def test_a_time_may_be_a_little_ahead(new_on_both):
    """R27: the refusal of one that is further ahead names the server's time. Others are kept to the microsecond."""
    campaign = new_on_both()
    for ahead in (60.000001, 61, 10**9):
        allowed = allowed_by_field(campaign.decide(1, at=at(ahead)))
        assert allowed.keys() == {"at"}
        assert "60 seconds" in allowed["at"]
        assert "2026-09-21T14:13:20.000000Z" in allowed["at"]
    for number, when in enumerate(("2005-01-09T06:08:34.568349+00:00", at(-0.000001), at(0), at(1), at(60))):
        good(campaign.decide(number, at=when))
        assert datetime.fromisoformat(campaign.stored(number)["at"]) == datetime.fromisoformat(when)


@ONCE
def test_a_clocked_campaign_takes_the_servers_time_if_none_is_given(start, clock):
    """R27."""
    client, clocked = start().client, TWO_REGIMES | {"clock": {"period_seconds": 10}}
    silent, telling = (Campaign(client, clocked | {"name": name}) for name in ("silent", "telling"))
    for number in range(1, 5):
        answers = [good(silent.decide(number)), good(telling.decide(number, at=at(10 * number - 10)))]
        assert answers[0] == answers[1] | {"campaign": "silent"}
        assert silent.stored(number)["at"] == telling.stored(number)["at"]
        clock.advance(10)


def test_a_subject_keeps_its_control_assignment(new):
    """R13: the same subject, the same group; without one, by round."""
    campaign = new(control={"share": 0.5, "kind": "baseline"})
    campaign.play(1, 10)
    modes: dict[str | None, set[str]] = {}
    numbers = itertools.count(11)
    for subject in (*(f"s{i}" for i in range(8)), None, None, None) * 4:
        answer = good(campaign.decide(next(numbers), subject=subject))
        modes.setdefault(subject, set()).add(answer["mode"])
        if answer["mode"] == "control":
            assert answer["action"] == "none"
    assert modes.pop(None) == {"control", "optimistic"}
    assert all(len(seen) == 1 for seen in modes.values())
    assert set().union(*modes.values()) == {"control", "optimistic"}
    controlled = next(subject for subject, seen in modes.items() if seen == {"control"})
    answer = good(campaign.decide(next(numbers), subject=controlled, excluded_actions=["none"]))
    assert (answer["mode"], answer["action"]) == ("control", "email")


# --- default rewards (R20) ------------------------------------------------------------------------------------------

WAITING = QUICK | {"rewards": {"range": [-2, 5], "wait_seconds": 100, "default": -1}}


def test_a_reward_that_does_not_come_counts_as_the_default(start, clock):
    """R20: from the end of the wait on, to the microsecond, whether anything else happens or not."""
    campaign = Campaign(start().client, WAITING | {"name": "waiting"})
    good(campaign.decide_batch(*map(campaign.item, range(1, 6))))
    good(campaign.reward(2, 4))
    clock.advance(99.999999)
    good(campaign.reward(5, 3))
    assert [campaign.stored(number)["reward"] for number in (1, 3, 4)] == [None] * 3
    clock.advance(0.000001)
    defaulted = {"reward": -1, "source": "default", "received_at": "2026-09-21T14:15:00.000000Z"}
    assert [campaign.stored(number)["reward"] for number in (1, 3, 4)] == [defaulted] * 3
    assert [campaign.stored(number)["reward"]["source"] for number in (2, 5)] == ["client"] * 2
    assert campaign.state()["rewards_received"] == 2
    assert "default" in error_of(campaign.reward(1, 4), 409)["message"]
    assert good(campaign.reward(1, -1))["source"] == "default"  # what it has already
    good(campaign.decide(6))
    state, model = campaign.state(), good(campaign.get("/model"))
    assert (state["rewards_received"], state["rewards_waiting"], model["rewards_folded"]) == (2, 0, 5)
    assert campaign.stored(1)["reward"] == defaulted


@pytest.mark.parametrize("ending", ["paused", "archived"])
def test_the_books_of_a_finished_campaign_close_by_the_clock(start, clock, ending):
    """R20: without any further decision."""
    campaign = Campaign(start().client, WAITING | {"name": "mailing"})
    good(campaign.decide_batch(*map(campaign.item, range(1, 21))))
    good(campaign.reward(3, 4))
    if ending == "paused":
        good(campaign.client.patch("/campaigns/mailing", json={"paused": True}))
    else:
        good(campaign.client.post("/campaigns/mailing/archive"))
    early = good(campaign.get("/report"))["rewards"]
    assert (early["received"], early["counted"], early["open"], early["early"]) == (1, 0, 20, 1)
    assert early["early_count_from"] == early["complete_at"] == "2026-09-21T14:15:00.000000Z"
    clock.advance(100)
    closed = good(campaign.get("/report"))["rewards"]
    assert (closed["received"], closed["counted"], closed["open"], closed["rate"]) == (1, 20, 0, 1.0)
    assert closed["complete_at"] is None
    assert closed["by_source"] == {"client": 1, "correction": 0, "subject": 0, "default": 19, "import": 0}
    assert closed["mean"] == pytest.approx((4 - 19) / 20)
    rows = [json.loads(line) for line in campaign.get("/decisions").text.splitlines()]
    assert Counter(row["reward_source"] for row in rows) == {"client": 1, "default": 19}
    buckets = good(campaign.get("/series"))["buckets"]
    assert sum(bucket["rewards"]["count"] for bucket in buckets) == 20


def test_a_way_of_earlier_versions_cannot_be_chosen(start):
    rewards = WAITING["rewards"] | {"while_waiting": "leave_out"}
    client = start().client
    for answer in (
        client.post("/campaigns", json=WAITING | {"name": "old", "rewards": rewards}),
        client.post("/campaigns/check", json=WAITING | {"name": "old", "rewards": rewards}),
    ):
        assert error_of(answer, 422)["fields"][0]["field"] == "rewards.while_waiting"


def test_a_default_counts_even_for_a_reward_of_the_same_gather(direct, clock):
    """R17, R18, R20: the decision that ends the stage comes first, so the reward after it is a conflict."""
    worker = direct()
    worker.post("/campaigns", WAITING | {"name": "gathered"})
    worker.post("/decide/batch", {"campaign": "gathered", "items": [Campaign.item(number) for number in range(1, 6)]})
    clock.advance(100)
    decide = operation("/decide", {"campaign": "gathered", **Campaign.item(6)})
    reward = operation("/reward", {"campaign": "gathered", "decision_id": "d1", "reward": 4})
    decided, refused = worker.process(decide, reward)
    assert json.loads(decided)["model_version"] == 1
    assert isinstance(refused, ConflictError), refused
    assert "default" in refused.message


# --- a database that is away ----------------------------------------------------------------------------------------


@contextmanager
def away(url: str, store: Store) -> Iterator[None]:
    """Nobody can open the database, and connections to it are cut."""
    address = sa.make_url(url)
    if address.get_backend_name() == "sqlite":
        path = Path(str(address.database))
        store.close()  # it reopens the file with the next query
        hidden = path.rename(path.with_suffix(".hidden"))
        path.mkdir()
        yield
        path.rmdir()
        hidden.rename(path)
        return
    admin = sa.create_engine(address.set(database="postgres"), isolation_level="AUTOCOMMIT")
    name = address.database
    with admin.connect() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        connection.execute(sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))
        yield
        connection.execute(sa.text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
    admin.dispose()


def unavailable(response: httpx.Response) -> None:
    """503, and when to try again; not where the database is, nor who uses it."""
    error = error_of(response, 503)
    assert error["code"] == "unavailable"
    assert error["message"] in ("The database does not answer; the service's log says why", "There is no database file")
    assert int(response.headers["retry-after"]) >= 1


def test_a_database_that_is_away_costs_nothing_but_time(start, direct, database_url, monkeypatch):
    """R18: no wrong answer meanwhile, and requests repeated afterwards count once."""
    if database_url.startswith("sqlite"):
        monkeypatch.setattr("service.storage.engines.BUSY_SECONDS", 0.1)
    worker = start()
    client = worker.client
    campaign, twin = (Campaign(client, TWO_REGIMES | {"name": name}) for name in ("campaign", "twin"))
    known = campaign.decide(1)
    good(twin.decide(1))
    later = {"name": "later", **QUICK}
    with away(database_url, worker.service.store):
        for _ in range(2):
            for response in (
                campaign.decide(1),
                campaign.decide(2),
                campaign.decide_batch(campaign.item(2), campaign.item(3)),
                campaign.reward(1),
                campaign.reward_batch((1, 1)),
                client.post("/campaigns", json=later),
                client.get("/campaigns"),
                *(campaign.get(path) for path in ("", "/decisions/d1", "/model", "/stages")),
                client.get("/readyz"),
            ):
                unavailable(response)
            good(client.get("/healthz"))
            assert allowed_by_field(campaign.post("/decide")).keys() == {"context"}  # needs no database
    good(client.get("/readyz"))
    assert campaign.decide(1).content == known.content
    good(client.post("/campaigns", json=later), 201)
    for one in (campaign, twin):
        good(one.reward(1))
    answers = [good(one.decide_batch(*map(one.item, range(2, 20))))["decisions"] for one in (campaign, twin)]
    assert apart_from_names(answers[0]) == apart_from_names(answers[1])
    state = campaign.state()
    assert (state["round"], state["rewards_received"]) == (19, 1)
    assert direct().differences("campaign") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_that_another_process_keeps_busy(start, database_url, monkeypatch):
    """R19: SQLite has one writer; a request that waits too long gets 503, and reading goes on."""
    monkeypatch.setattr("service.storage.engines.BUSY_SECONDS", 0.1)
    campaign = Campaign(start().client, QUICK | {"name": "busy"})
    first = campaign.decide(1)
    with closing(sqlite3.connect(str(sa.make_url(database_url).database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        unavailable(campaign.decide(2))
        assert campaign.state()["round"] == 1
    assert campaign.decide(1).content == first.content
    assert good(campaign.decide(2))["round"] == 2


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connections_that_were_cut_are_replaced(start, direct):
    """R18: the request that meets a dead connection may fail; the one after it does not."""
    client = start().client
    campaign = Campaign(client, QUICK | {"name": "cut"})
    campaign.play(1, 3)
    for number in range(4, 8):
        direct().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        answer = campaign.decide(number)
        if answer.status_code != 200:
            unavailable(answer)
            answer = campaign.decide(number)
        assert good(answer)["round"] == number
        assert campaign.state()["round"] == number
