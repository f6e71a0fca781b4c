"""Azure Personalizer's own client, unchanged, against the service on a real socket."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from azure.cognitiveservices.personalizer import PersonalizerClient
from azure.cognitiveservices.personalizer.models import (
    ErrorResponseException,
    RankableAction,
    RankRequest,
    RankResponse,
)
from msrest.authentication import CognitiveServicesCredentials
from msrest.exceptions import HttpOperationError

from policy import CampaignConfig
from service.compat import matching
from service.compat.matching import flatten_features
from service.compat.messages import MOST_FEATURES
from service.engine.requests import CAMPAIGN_EXAMPLE
from service.storage.campaigns import add_campaign
from service.storage.store import Store
from tests.service.answers import error_of, good
from tests.service.playing import eventually, verify_campaign
from tests.service.test_auth import bearer, make

ONCE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # no database is involved
RISK = {"name": "risk", "levels": ["low", "high"]}
SPEND = {"name": "spend", "cuts": [20, 50]}
CONTEXT = [{"customer": {"risk": "low", "profile": {"spend": 31.5}}}, {"device": {"mobile": True}}]
RANK = "/personalizer/v1.0/rank"


class Azure:
    """A client as users of Personalizer have it: an address, with or without a slash at its end, and a key."""

    def __init__(self, url: Any, key: str = "none") -> None:
        self.client = PersonalizerClient(str(url), CognitiveServicesCredentials(key))

    def rank(self, actions: str, features: Any = CONTEXT, event: str | None = None, **more: Any) -> RankResponse:
        """Rank the actions of a text; they have features, as Personalizer demands."""
        listed = [RankableAction(id=action, features=[{"length": len(action)}]) for action in actions.split()]
        return self.client.rank(RankRequest(actions=listed, context_features=features, event_id=event, **more))

    def refused(self, status: int, actions: str, features: Any = CONTEXT, **more: Any) -> dict[str, Any]:
        """The error of a rank that must be refused, as the client and as its response tell it."""
        with pytest.raises(ErrorResponseException) as caught:
            self.rank(actions, features, **more)
        error = caught.value.response.json()["error"]
        assert caught.value.response.status_code == status, error
        assert caught.value.error.error.message == error["message"]
        assert str(caught.value) == f"({error['code']}) {error['message']}"
        assert error.keys() == {"code", "message", "fields"}
        return error

    def reward(self, event: str, value: float) -> None:
        assert self.client.events.reward(event, value) is None

    def failed(self, status: int, call: Any, *arguments: Any) -> dict[str, Any]:
        """The error of a reward or an activation."""
        with pytest.raises(HttpOperationError) as caught:
            call(*arguments)
        assert caught.value.response.status_code == status, caught.value.response.text
        return caught.value.response.json()["error"]


@pytest.fixture
def azure(http):
    client = Azure(str(http.base_url).rstrip("/") + "/")  # as the portal gave addresses
    yield client
    client.client.close()


def campaign(client: httpx.Client, name: str, actions: str, variables: Any = (RISK, SPEND), **more: Any) -> str:
    """A campaign; tests share a service, so each has actions of its own."""
    config = {"name": name, "actions": actions.split(), "variables": list(variables), **more}
    good(client.post("/campaigns", json=config), 201)
    return name


def chances(answer: RankResponse) -> dict[str, float]:
    return {one.id: one.probability for one in answer.ranking}


# --- rank, reward, activate -------------------------------------------------------------------------------------------


def test_the_cycle_of_personalizers_quickstart(http, azure):
    """Rank, show rewardActionId, reward: the decision is the campaign's, and so is the reward."""
    name = campaign(http, "quickstart", "q-pasta q-salad q-soup")
    answer = azure.rank("q-pasta q-salad q-soup", event="first")
    assert answer.event_id == "first"
    assert answer.reward_action_id in chances(answer)
    assert chances(answer) == {"q-pasta": 1 / 3, "q-salad": 1 / 3, "q-soup": 1 / 3}  # the warm start
    azure.reward("first", "1.0")  # text, as the quickstart has it: the client makes a number of it
    azure.client.events.activate("first")
    stored = good(http.get(f"/campaigns/{name}/decisions/first"))
    assert stored["context"] == {"risk": "low", "spend": 31.5}
    assert (stored["action"], stored["propensity"]) == (answer.reward_action_id, 1 / 3)
    assert (stored["reward"]["reward"], stored["reward"]["source"]) == (1.0, "client")
    generated = azure.rank("q-pasta q-salad q-soup")
    assert good(http.get(f"/campaigns/{name}/decisions/{generated.event_id}"))["round"] == 2


def test_the_bodies_as_they_are_on_the_wire(http):
    campaign(http, "wire", "w-a w-b")
    body = {"actions": [{"id": "w-a", "features": []}, {"id": "w-b"}], "contextFeatures": CONTEXT, "eventId": "e/1 ü"}
    answer = good(http.post(RANK, json=body | {"excludedActions": None, "deferActivation": None}), 201)
    assert answer.keys() == {"ranking", "eventId", "rewardActionId"}
    assert all(one.keys() == {"id", "probability"} for one in answer["ranking"])
    for path in ("reward", "activate"):
        answered = http.post(f"/personalizer/v1.0/events/e%2F1%20%C3%BC/{path}", json={"value": 1})
        assert (answered.status_code, answered.content) == (204, b"")
    for path in ("multislot/rank", "events/e1/other", "status"):  # not offered
        error_of(http.post(f"/personalizer/v1.0/{path}", json={}), 404)


def test_excluded_actions_keep_their_place_with_probability_0(http, azure):
    """As Personalizer ranks: the chosen one first, unless an excluded one was listed first."""
    name = campaign(http, "excluding", "x-a x-b x-c x-d", control={"share": 0.2}, seed=5)
    answer = azure.rank("x-d x-b x-a x-c", excluded_actions=["x-d", "x-a", "unknown"], event="e")
    ids = [one.id for one in answer.ranking]
    assert (ids[0], ids[2]) == ("x-d", "x-a")
    assert ids[1] == answer.reward_action_id
    assert chances(answer) == {"x-a": 0, "x-d": 0, "x-b": 0.5, "x-c": 0.5}
    assert good(http.get(f"/campaigns/{name}/decisions/e"))["excluded_actions"] == ["x-a", "x-d"]
    subset = azure.rank("x-c x-b", event="subset")  # the baseline is not among them
    assert chances(subset) == {"x-b": 0.5, "x-c": 0.5}
    assert good(http.get(f"/campaigns/{name}/decisions/subset"))["excluded_actions"] == ["x-a", "x-d"]
    assert chances(azure.rank("x-c")) == {"x-c": 1}
    error = azure.refused(422, "x-c x-b", excluded_actions=["x-b", "x-c"])
    assert error["fields"][0]["field"] == "excludedActions"
    assert azure.refused(422, "x-c x-b x-c")["fields"][0]["field"] == "actions"
    good(http.post(f"/campaigns/{name}/actions/retire", json={"action": "x-b"}))  # it can still be listed
    assert chances(azure.rank("x-b x-a x-c")) == {"x-a": 0.5, "x-b": 0, "x-c": 0.5}


def test_the_same_event_again_gets_the_same_answer(http, azure):
    """R17: even if the campaign's probabilities or actions change in between, or it is archived."""
    name = campaign(http, "repeating", "p-a p-b", control={"share": 0.3}, warm_start_rounds=0, stage_length=2)
    for i in range(24):
        azure.rank("p-a p-b", event=f"early {i}")
        azure.reward(f"early {i}", i % 3)
    first = azure.rank("p-a p-b", event="once")
    assert sorted(chances(first).values()) == pytest.approx([0.15, 0.85])
    again = [azure.rank("p-a p-b", event="once")]
    good(http.patch(f"/campaigns/{name}", json={"control": {"share": 0.6}}))
    again.append(azure.rank("p-a p-b", event="once"))
    good(http.post(f"/campaigns/{name}/actions", json={"action": "p-c"}))
    again.append(azure.rank("p-a p-b", [{"spend": 31.5, "risk": "low", "other": 1}], event="once"))
    good(http.post(f"/campaigns/{name}/clone", json={"name": "repeating-2"}), 201)
    good(http.post(f"/campaigns/{name}/archive"))
    again.append(azure.rank("p-a p-b", event="once"))
    assert [one.as_dict() for one in again] == [first.as_dict()] * 4
    assert good(http.get(f"/campaigns/{name}"))["round"] == 25
    azure.rank("p-a p-b", event="new")  # the clone fits too, but for known events
    azure.reward("once", 1.0)
    assert good(http.get("/campaigns/repeating-2"))["round"] == 1
    for _ in range(2):
        for different in ({"features": [{"spend": 31.5, "risk": "high"}]}, {"excluded_actions": ["p-a"]}):
            assert "different request" in azure.refused(409, "p-a p-b", event="once", **different)["message"]
        good(http.post(f"/campaigns/{name}/unarchive"))
    decided = {"campaign": name, "decision_id": "once", "context": {"risk": "low", "spend": 31.5}}
    error_of(http.post("/decide", json=decided), 409)


def test_rewards_and_activation(http, azure):
    """Deferred events are for campaigns in which an event without a reward teaches nothing."""
    campaign(http, "rewarding", "w-1 w-2", rewards={"range": [-1, 1]})
    campaign(http, "impatient", "d-3 d-4", rewards={"wait_seconds": 600, "default": 0})
    events = azure.client.events
    azure.rank("w-1 w-2", event="e1", defer_activation=True)
    events.activate("e1")
    error = azure.failed(422, events.reward, "e1", 1.5)
    assert (error["fields"][0]["field"], error["fields"][0]["allowed"]) == ("value", [-1, 1])
    for _ in range(2):  # the second is a retry
        azure.reward("e1", -0.5)
    assert "cannot change" in azure.failed(409, events.reward, "e1", 0.5)["message"]
    assert "'nothing'" in azure.failed(404, events.reward, "nothing", 0.5)["message"]
    assert "'never'" in azure.failed(404, events.activate, "never")["message"]
    error = azure.refused(422, "d-3 d-4", defer_activation=True)
    assert [field["field"] for field in error["fields"]] == ["deferActivation"]
    assert "default" in error["fields"][0]["allowed"]
    azure.rank("d-3 d-4", event="now")
    events.activate("now")


def test_errors_name_the_fields_of_bad_bodies(http):
    """What the document does not allow: test_nasty.py."""
    body = {"actions": [{"id": "w-a"}, {"id": "w-b"}], "contextFeatures": CONTEXT}
    for change, field in (
        ({"actions": [{"id": ""}]}, "actions[0].id"),
        ({"actions": [{"id": str(i)} for i in range(65)]}, "actions"),
        ({"contextFeatures": ["low"]}, "contextFeatures[0]"),
        ({"excludedAction": []}, "excludedAction"),
        ({"contextFeatures": [{str(i): i for i in range(MOST_FEATURES + 1)}]}, "contextFeatures[0]"),
        ({"contextFeatures": [{"a": {str(i): {} for i in range(MOST_FEATURES)}}]}, "contextFeatures"),
        ({"contextFeatures": [{}] * (MOST_FEATURES + 1)}, "contextFeatures"),
        ({"excludedActions": ["none"] * 65}, "excludedActions"),
    ):
        error = error_of(http.post(RANK, json=body | change), 422)
        assert [one["field"] for one in error["fields"]] == [field]


# --- which campaign ---------------------------------------------------------------------------------------------------


def test_features_are_found_by_path_or_by_a_name_that_only_one_has(http, azure):
    variables = [{"name": "user.age", "cuts": [18]}, {"name": "age", "levels": [1, 2]}]
    variables += [{"name": "mobile", "levels": ["true", "false"]}, {"name": "share", "range": [0, 1]}]
    name = campaign(http, "nested", "n-a n-b", variables)
    features = [{"user": {"age": 40}}, {"cart": {"deep": {"age": 2}}}, {"device": {"mobile": False}}, {"share": 0.5}]
    assert azure.refused(422, "n-a n-b", features)["fields"][1] == {
        "field": "contextFeatures.age",
        "message": "campaign 'nested' needs it: occurs in several places (user.age, cart.deep.age):"
        " name the variable by its path",
        "allowed": ["1", "2"],
    }
    azure.rank("n-a n-b", [*features, {"age": 1, "ignored": [1, {"x": None}], "none": None}], event="e")
    stored = good(http.get(f"/campaigns/{name}/decisions/e"))
    assert stored["context"] == {"user.age": 40, "age": 1, "mobile": "false", "share": 0.5}
    error = azure.refused(422, "n-a n-b", [*features, {"age": 3}])  # it fits, but for a level that there is not
    assert (error["fields"][0]["field"], error["fields"][0]["allowed"]) == ("contextFeatures.age", ["1", "2"])


def test_values_by_path_and_by_name():
    values = flatten_features([{"a": {"b": 1, "c": {"d": "x"}}}, {"e": {"b": 2}, "f": [1], "g": None}, {"a": {"b": 1}}])
    assert values.pop("b").places == ("a.b", "e.b")
    assert values == {"a.b": 1, "a.c.d": "x", "d": "x", "e.b": 2, "f": [1]}
    assert flatten_features([{"a": 1}, {"a": 2}])["a"].places == ("a",)
    assert flatten_features([{"a": {"b": 1}}, {"b": 2}])["b"] == 2  # its path is its name
    long = "x" * 3_000_000
    deep = {long: {str(i): {long[:50]: i} for i in range(1_000)}}
    assert sum(map(len, flatten_features([deep]))) < 1_000_000  # not the long name again for each value


def test_a_variable_that_may_be_missing_need_not_be_sent(http, azure):
    variables = [RISK | {"missing": "level", "unseen": "other"}, SPEND | {"missing": "level"}]
    name = campaign(http, "may-lack", "l-a l-b", variables)
    for event, features in (("none", [{"device": 1}]), ("new", [{"risk": "unheard of", "spend": None}])):
        azure.rank("l-a l-b", features, event=event)
    contexts = [good(http.get(f"/campaigns/{name}/decisions/{event}"))["context"] for event in ("none", "new")]
    assert contexts == [{"risk": None, "spend": None}, {"risk": "unheard of", "spend": None}]
    assert azure.refused(422, "l-a l-b", [{"spend": "much"}])["fields"]


def test_no_campaign_or_several(http, azure):
    campaign(http, "near-one", "m-a m-b m-c")
    campaign(http, "near-two", "m-a m-b", [RISK, {"name": "age", "cuts": [30]}])
    error = azure.refused(422, "m-a m-b", [{"risk": "low", "age": "old"}])
    fields = {(one["field"], one["message"].partition(" needs it: ")[2]) for one in error["fields"][1:3]}
    assert fields == {("contextFeatures.spend", "missing"), ("contextFeatures.age", "is not a number")}
    assert "keys create --role client --campaign" in error["fields"][0]["message"]
    error = azure.refused(422, "m-a m-x", [{"risk": "low", "spend": 1}])
    problems = {(one["field"], one["message"]) for one in error["fields"]}
    assert ("actions", "campaign 'near-one' has no 'm-x'") in problems
    assert chances(azure.rank("m-a m-b", [{"risk": "low", "age": 1}])).keys() == {"m-a", "m-b"}
    both = [{"risk": "low", "age": 1, "spend": 1}]
    error = azure.refused(409, "m-a m-b", both)
    assert "'near-one', 'near-two'" in error["message"]
    assert "keys create --role client --campaign" in error["message"]
    assert len(error["fields"]) == 2
    azure.rank("m-c", both)  # only one has it
    good(http.post("/campaigns/near-one/archive"))
    azure.rank("m-a m-b", both)
    assert any(one["message"] == "campaign 'near-one' is archived" for one in azure.refused(422, "m-c", both)["fields"])


def test_a_change_of_campaigns_is_known_at_once(http, azure):
    """On the worker that made it, without waiting for the list to be read again."""
    campaign(http, "changing", "c-a c-b")
    azure.rank("c-a c-b")
    campaign(http, "rival", "c-a c-b", [RISK])
    azure.refused(409, "c-a c-b")
    good(http.post("/campaigns/rival/archive"))
    azure.rank("c-a c-b")
    good(http.post("/campaigns/rival/unarchive"))
    azure.refused(409, "c-a c-b")
    good(http.post("/campaigns/rival/archive"))
    azure.refused(422, "c-a c-b c-c")
    good(http.post("/campaigns/changing/actions", json={"action": "c-c"}))
    azure.rank("c-a c-b c-c")


def test_what_another_worker_changed_never_decides_for_the_wrong_campaign(start, monkeypatch):
    """Even if the list is an hour old, the campaign refuses what was not meant for it."""
    monkeypatch.setattr(matching, "RELOAD_SECONDS", 3_600)
    here, there = start(), start()
    azure = Azure(here.url)
    campaign(there.client, "moving", "a b")
    azure.rank("a b", event="before")  # nothing fits what is known: it is read again at once
    good(there.client.post("/campaigns/moving/actions", json={"action": "new"}))
    for _ in range(8):
        assert azure.rank("a b").reward_action_id in "ab"
    azure.rank("a b", event="after")
    stored = [good(here.client.get(f"/campaigns/moving/decisions/{event}")) for event in ("before", "after")]
    assert [one["excluded_actions"] for one in stored] == [[], ["new"]]
    campaign(there.client, "spare", "b a", [RISK, SPEND, {"name": "extra", "cuts": [0]}])
    good(there.client.post("/campaigns/moving/archive"))
    azure.rank("a b", [*CONTEXT, {"extra": 1}], event="spared")  # two fitted, now one does
    good(here.client.get("/campaigns/spare/decisions/spared"))
    assert there.client.delete("/campaigns/moving", params={"confirm": "moving"}).status_code == 204
    azure.refused(422, "a b")
    campaign(there.client, "moving", "b c a", [SPEND])  # another one of that name
    assert chances(azure.rank("a b")) == {"a": 0.5, "b": 0.5}
    campaign(there.client, "rival", "b a", [SPEND])
    monkeypatch.setattr(matching, "RELOAD_SECONDS", 0.5)
    body = {"actions": [{"id": "a"}, {"id": "b"}], "contextFeatures": CONTEXT}
    eventually(lambda: here.client.post(RANK, json=body).status_code == 409, "known")  # after half a second
    azure.client.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.slow
def test_a_thousand_campaigns_cost_a_rank_no_query(start, monkeypatch):
    """But for the decision's own: the list is read twice a second, not with every request."""
    monkeypatch.setattr(matching, "RELOAD_SECONDS", 3_600)
    worker = start()
    azure, store = Azure(worker.url), worker.service.store
    one = CampaignConfig(name="c-n", actions=["a", "b"], variables=[{"name": "v-n", "cuts": [0]}]).model_dump_json()
    with store.writing() as tx:
        for i in range(1_000):
            assert add_campaign(tx, f"c{i}", b"", one.replace("c-n", f"c{i}").replace("v-n", f"v{i}"), "[1.0]", 1)
    azure.rank("a b", [{"v7": 1}], event="first")
    queries: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *call: queries.append(call[2]))
    for i in range(20):
        azure.rank("a b", [{"v7": 1}, {"other": {f"w{j}": j for j in range(50)}}], event=f"e{i}")
    assert not [query for query in queries if "FROM campaigns" in query]
    azure.reward("e3", 1)
    assert len([query for query in queries if "FROM campaigns" in query]) == 1
    assert good(worker.client.get("/campaigns/c7"))["round"] == 21
    assert "995 others fit no better" in azure.refused(422, "a b", [{"v1000": 1}])["message"]
    everything = azure.refused(409, "a b", [{f"v{i}": i for i in range(1_000)}])
    assert everything["message"].startswith("1000 campaigns fit: 'c0', 'c1', 'c10', 'c100', 'c101' and 995 more;")
    azure.client.close()


# --- keys -------------------------------------------------------------------------------------------------------------


@ONCE
def test_the_key_of_personalizers_header(start, database_url):
    store = Store(database_url)
    keys = {role: make(store, role) for role in ("admin", "client", "viewer")}
    keys |= {"one": make(store, "client", "twin-1"), "other": make(store, "client", "twin-2", "twin-3")}
    store.close()
    worker = start()
    azure = {name: Azure(worker.url, key) for name, key in (keys | {"stranger": "uc_0_x"}).items()}
    worker.client.headers.update(bearer(keys["admin"]))
    for name in ("twin-1", "twin-2"):
        campaign(worker.client, name, "a b")
    assert "not known" in azure["stranger"].refused(401, "a b")["message"]
    assert "client" in azure["viewer"].refused(403, "a b")["message"]
    for unlimited in ("admin", "client"):
        assert "'twin-1', 'twin-2'" in azure[unlimited].refused(409, "a b")["message"]
    azure["one"].rank("a b", event="e1")
    azure["other"].rank("a b", event="e2")
    for name, event in (("twin-1", "e1"), ("twin-2", "e2")):
        good(worker.client.get(f"/campaigns/{name}/decisions/{event}"))
    assert "this key covers" in azure["one"].failed(404, azure["one"].client.events.reward, "e2", 1)["message"]
    azure["one"].failed(404, azure["one"].client.events.activate, "e2")
    azure["viewer"].failed(403, azure["viewer"].client.events.reward, "e2", 1)
    azure["other"].reward("e2", 1)
    azure["client"].reward("e1", 1)
    error = azure["one"].refused(422, "a x")  # and nothing of the campaigns that it is not good for
    assert "'twin-1'" in error["message"]
    assert "'twin-2'" not in error["message"]
    azure["one"].rank("a b", event="both")
    azure["other"].rank("a b", event="both")
    both = azure["client"].failed(409, azure["client"].client.events.reward, "both", 1)
    assert "'twin-1', 'twin-2'" in both["message"]
    azure["one"].reward("both", 1)
    header = {"ocp-apim-subscription-key": keys["admin"]}
    with httpx.Client(base_url=worker.url, headers=header) as client:
        error_of(client.get("/campaigns"), 401)  # for these routes only
        error_of(client.post("/decide", json={}), 401)
        error_of(client.post("/personalizer/v1.0/nothing"), 404)
    for one in azure.values():
        one.client.close()


# --- one model --------------------------------------------------------------------------------------------------------


@ONCE
def test_ranks_and_decisions_teach_one_model(start):
    """A campaign that is used through both APIs decides and learns like a twin that is used through one."""
    worker = start()
    azure, client = Azure(worker.url), worker.client
    rules = {"stage_length": 5, "warm_start_rounds": 10, "propensity_floor": 0.05, "control": {"share": 0.1}, "seed": 3}
    campaign(client, "mixed", "a b c", **rules)
    campaign(client, "plain", "a b c", [RISK | {"name": "other risk"}, SPEND], **rules)
    chance, modes = np.random.default_rng(1), Counter()
    for i in range(60):
        risk, spend, value = str(chance.choice(["low", "high"])), float(chance.integers(0, 80)), float(chance.normal())
        event, excluded = f"d{i}", ["b"] if i % 7 == 0 else []
        twin = {"campaign": "plain", "decision_id": f"twin {i}", "context": {"other risk": risk, "spend": spend}}
        expected = good(client.post("/decide", json=twin | {"excluded_actions": excluded}))
        good(client.post("/reward", json={"campaign": "plain", "decision_id": f"twin {i}", "reward": value}))
        modes[expected["mode"]] += 1
        if i % 2:
            mine = {"campaign": "mixed", "decision_id": event, "context": {"risk": risk, "spend": spend}}
            made = good(client.post("/decide", json=mine | {"excluded_actions": excluded}))
            assert (made["action"], made["propensity"]) == (expected["action"], expected["propensity"])
            azure.reward(event, value)
        else:
            answer = azure.rank("c a b", [{"x": {"risk": risk}}, {"spend": spend}], event, excluded_actions=excluded)
            assert answer.reward_action_id == expected["action"]
            assert chances(answer)[expected["action"]] == expected["propensity"]
            assert sum(chances(answer).values()) == pytest.approx(1, abs=1e-12)
            good(client.post("/reward", json={"campaign": "mixed", "decision_id": event, "reward": value}))
    assert min(modes.values()) > 0
    assert len(modes) == 3
    learned = [good(client.get(f"/campaigns/{name}/model")) for name in ("mixed", "plain")]
    estimates = [[one["estimate"] for one in model["coefficients"]] for model in learned]
    assert estimates[0] == estimates[1]
    assert any(estimates[0])
    with worker.service.store.reading() as tx:
        assert verify_campaign(tx, "mixed") == []
    azure.client.close()


@ONCE
def test_openapi_describes_the_routes_with_examples_that_work(start):
    worker = start()
    azure = Azure(worker.url)
    assert azure.refused(422, "a b")["message"] == "body: there is no campaign"
    azure.client.close()
    document = good(worker.client.get("/openapi.json"))
    paths = {path: one["post"] for path, one in document["paths"].items() if path.startswith("/personalizer")}
    assert [next(iter(one["responses"])) for one in paths.values()] == ["201", "204", "204"]
    for operation in paths.values():
        assert operation["tags"] == ["personalizer"]
        assert operation["security"][0] == {"personalizer": []}
    examples = {name: schema.get("examples") for name, schema in document["components"]["schemas"].items()}
    good(worker.client.post("/campaigns", json=CAMPAIGN_EXAMPLE), 201)
    (body,), (example,), (value,) = (examples[name] for name in ("RankRequest", "RankResponse", "EventReward"))
    answer = good(worker.client.post(RANK, json=body), 201)
    assert answer.keys() == example.keys()
    assert {one["id"] for one in answer["ranking"]} == {one["id"] for one in example["ranking"]}
    for path, sent in (("reward", value), ("activate", None)):
        event = f"/personalizer/v1.0/events/{body['eventId']}/{path}"
        assert worker.client.post(event, json=sent).status_code == 204


@ONCE
def test_the_guide_as_it_stands(start, database_url):
    """Its campaign is made, its program runs with the address and the key changed."""
    guide = (Path(__file__).parents[2] / "docs" / "personalizer.md").read_text(encoding="utf-8")
    (config,), (program,) = (re.findall(rf"^```{kind}\n(.*?)^```", guide, re.M | re.S) for kind in ("json", "python"))
    worker = start()
    good(worker.client.post("/campaigns", content=config), 201)
    names = {"name": "other", "clock": {"period_seconds": 60}}
    good(worker.client.post("/campaigns", json=json.loads(config) | names), 201)
    store = Store(database_url)
    key, admin = make(store, "client", "meals"), make(store)
    store.close()
    worker.service.keys.load()
    program = program.replace("http://127.0.0.1:8000", worker.url).replace("uc_…", key)
    ran: dict[str, Any] = {}
    exec(compile(program, "personalizer.md", "exec"), ran)
    ran["client"].close()
    worker.client.headers.update(bearer(admin))
    stored = good(worker.client.get(f"/campaigns/meals/decisions/{ran['answer'].event_id}"))
    assert stored["context"] == {"timeOfDay": "morning", "profile.age": 41, "mobile": "true"}
    assert stored["reward"]["reward"] == (stored["action"] == "salad")
    assert good(worker.client.get("/campaigns/other"))["round"] == 0
