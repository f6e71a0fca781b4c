"""Contexts as customer databases have them: nulls, new levels, numbers out of range; refused, counted, or accepted."""

import itertools
import json
from functools import partial

import pytest

from policy import encode
from policy.changes import add_config_level, patch_config
from service.api.decisions import PartialBatch
from service.base.errors import MOST_FIELDS
from service.engine.operations import Change, Reduce
from service.engine.preparation import prepare_rollback
from service.engine.refusals import MOST_VALUES, REST, Refusals, Refused
from service.storage.tables import decisions, snapshots
from tests.service.answers import error_of, good, shaped
from tests.service.playing import CONFIGS, SEASONS, Script, on_sqlite
from tests.service.scraping import Scrape
from tests.service.test_subjects import erase, state_of

NUMBERS = itertools.count(1)
TELECOM = {
    "actions": ["none", "call", "message"],
    "variables": [
        {"name": "plan", "levels": ["prepaid", "contract"]},
        {"name": "device_type", "levels": ["phone", "tablet"]},
        {"name": "tenure_months", "cuts": [12, 36]},
        {"name": "spend", "range": [0, 200]},
    ],
    "stage_length": 5,
    "seed": 3,
}
RECORD = {"plan": None, "device_type": "foldable", "tenure_months": None, "spend": 412.5, "crm_segment": "B2"}
CLEAN = {"plan": "prepaid", "device_type": "phone", "tenure_months": 5, "spend": 20}
SETTINGS = {
    "plan": {"missing": "level"},
    "device_type": {"unseen": "other"},
    "tenure_months": {"missing": "level"},
    "spend": {"outside": "clip"},
}


def loosen(variables, settings=SETTINGS):
    return [variable | settings.get(variable["name"], {}) for variable in variables]


LENIENT = {"variables": loosen(TELECOM["variables"]), "extra_variables": "ignore"}


@pytest.fixture
def new(http):
    """A function that creates a campaign and returns its name."""

    def create(**config):
        name = f"telecom-{next(NUMBERS)}"
        good(http.post("/campaigns", json={**TELECOM, "name": name, **config}), 201)
        return name

    return create


def item(context, number=None):
    return {"decision_id": f"d{next(NUMBERS) if number is None else number}", "context": context}


# --- the record of a customer -----------------------------------------------------------------------------------------


def test_a_telecom_record_decides_under_lenient_settings_and_names_them_under_strict_ones(http, new):
    name = new()
    for path in (f"/campaigns/{name}/decide", f"/campaigns/{name}/preview"):
        error = error_of(http.post(path, json={"context": RECORD}), 422)
        assert {field["field"]: field["message"].rpartition("set ")[2] for field in error["fields"]} == {
            "context.plan": "missing: level for this variable",
            "context.device_type": "unseen: other for this variable",
            "context.tenure_months": "missing: level for this variable",
            "context.spend": "outside: clip for this variable",
            "context.crm_segment": "extra_variables: ignore for this campaign",
        }
    checked = good(http.post("/campaigns/check", json={**TELECOM, "name": "t", **LENIENT}))
    del checked["name"]
    for lenient in (new(**LENIENT), new(**checked)):
        path = f"/campaigns/{lenient}"
        preview = good(http.post(f"{path}/preview", json={"context": RECORD}))
        made = good(http.post(f"{path}/decide", json=item(RECORD, "record")))
        assert {key: made[key] for key in ("action", "belief", "scores")} == {
            key: preview[key] for key in ("action", "belief", "scores")
        }
        stored = good(http.get(f"{path}/decisions/drecord"))
        assert stored["context"] == {key: value for key, value in RECORD.items() if key != "crm_segment"}
        assert good(http.post(f"{path}/decide", json=item(RECORD, "record"))) == made
        good(http.post(f"{path}/decide", json=item({"device_type": "phone", "spend": 20})))  # absent is missing too
        assert good(http.post(f"{path}/explain", json={"decision_id": "drecord"}))["action"] == made["action"]


def test_a_living_campaign_becomes_lenient_and_gains_a_level(http, new):
    name = new()
    path = f"/campaigns/{name}"
    good(http.post(f"{path}/decide/batch", json={"items": [item(CLEAN) for _ in range(12)]}))
    state = good(http.patch(path, json=LENIENT))
    assert good(http.post(f"{path}/decide", json=item(RECORD)))["round"] == 13
    assert (state["config"]["extra_variables"], state["model_version"]) == ("ignore", 3)
    state = good(http.post(f"{path}/levels", json={"variable": "device_type", "level": "foldable"}))
    assert state["config"]["variables"][1]["levels"] == ["phone", "tablet", "foldable"]
    assert state["model_version"] == 4
    assert good(http.post(f"{path}/levels", json={"variable": "device_type", "level": "foldable"})) == state
    newest = good(http.get(f"{path}/revisions"))["revisions"][0]
    assert newest["changed"] == {"variables": state["config"]["variables"]}
    model = good(http.get(f"{path}/model"))
    levels = {one["level"] for one in model["coefficients"] if one["term"] == "device_type"}
    assert levels == {"phone", "tablet", "foldable", "other"}
    error = error_of(http.post(f"{path}/levels", json={"variable": "spend", "level": "x"}), 422)
    assert [field["allowed"] for field in error["fields"]] == [["plan", "device_type"]]
    strict = {"variables": TELECOM["variables"]}  # would lose levels
    assert "clone" in error_of(http.patch(path, json=strict), 409)["message"]


# --- the log gives every digit ----------------------------------------------------------------------------------------


class MessyScript(Script):
    """A script whose contexts lack values and have new ones, as soon as the campaign accepts them."""

    messy = False

    def _item(self, number):
        made = super()._item(number)
        if self.messy:
            context, draw = made["context"], self._chance.random
            context["crm"] = number
            for name, value in (("season", "monsoon"), ("season", ""), ("spend", None), ("tenure", 99)):
                if draw() < 0.15:
                    context[name] = value
            if draw() < 0.1:
                del context["tenure"]
        return made


def accept(config):
    settings = {
        "season": {"missing": "level", "unseen": "other"},
        "spend": {"missing": "level"},
        "tenure": {"missing": "level", "outside": "clip"},
    }
    fields = config.model_dump(mode="json")["variables"]
    return patch_config(config, {"variables": loosen(fields, settings), "extra_variables": "ignore"})


def list_changes(worker, script):
    add = partial(add_config_level, variable="season", level="monsoon")
    return {
        20: lambda: [Change(script.name, accept)],
        45: lambda: [Change(script.name, add)],  # until now it was `other`
        60: lambda: [prepare_rollback(worker().campaigns, script.name, 2)],  # from before both
        80: lambda: [
            Change(script.name, partial(patch_config, patch={"extra_variables": each})) for each in ("reject", "ignore")
        ],
    }


def play_with_changes(script, workers, until):
    """Play with all the changes; the workers take turns."""
    turn = itertools.cycle(workers)
    latest = [next(turn)]

    def post(path, body):
        latest[0] = next(turn)
        return latest[0].post(path, body)

    due = list_changes(lambda: latest[0], script)
    while script.round < until:
        for round in [round for round in due if round <= script.round]:
            assert set(latest[0].process(*due.pop(round)())) == {None}
            script.messy = True
        script.step(post)
    return script


@pytest.mark.parametrize(
    ("database_url", "name"),
    [*(("sqlite", name) for name in CONFIGS if name != "given"), ("postgresql", "default")],
    indirect=["database_url"],
)
def test_messy_contexts_survive_restarts_other_workers_rollbacks_erasure_and_verify(direct, clock, name, monkeypatch):
    """R15: one worker, two in turns, and restarts with and without snapshots give the same digits."""
    monkeypatch.setattr("service.engine.recovery.SNAPSHOT_ROUNDS", 20)
    alone, two = direct(), (direct(), direct())
    whole = play_with_changes(MessyScript(CONFIGS[name], clock, name="whole").create(alone.post), [alone], 110)
    turns = play_with_changes(MessyScript(CONFIGS[name], clock, name="turns").create(two[0].post), two, 110)
    assert turns.answers == whole.answers
    for worker in (alone, *two):
        worker.finish_all()
    for campaign in ("whole", "turns"):
        assert direct().differences(campaign) == []
    contexts = [json.loads(row["context"]) for row in alone.rows(decisions) if row["campaign_id"] == 1]
    assert {"monsoon", ""} < {context["season"] for context in contexts}
    assert not any("crm" in context for context in contexts)
    restarted = direct()
    assert whole.play(restarted.post, 125).answers == turns.play(two[0].post, 125).answers
    alone.execute(snapshots.delete())  # then everything is folded from the first round
    assert whole.play(direct().post, 135).answers == turns.play(two[1].post, 135).answers
    fresh = direct()
    assert erase(fresh, "whole", "customer 3")
    whole.play(fresh.post, 145)
    assert direct().differences("whole") == []


@on_sqlite
def test_retention_keeps_what_messy_contexts_taught(direct, clock):
    worker = direct()
    script = MessyScript(CONFIGS["default"] | {"retention_days": 1}, clock).create(worker.post)
    play_with_changes(script, [worker], 100)
    before = encode(state_of(worker, script.name))
    clock.advance(3 * 86_400)
    assert worker.process(Reduce(script.name)) == [False]
    kept = [json.loads(row["context"]) for row in worker.rows(decisions)]
    assert max(context.get("tenure") or 0 for context in kept) <= 8
    assert {context["season"] for context in kept} <= {*SEASONS, "", "monsoon"}  # a level by now, though not then
    assert encode(state_of(direct(), script.name)) == before
    assert direct().differences(script.name) == []


def test_an_earlier_model_is_evaluated_on_levels_that_came_later(http, new):
    name = new(**LENIENT)
    path = f"/campaigns/{name}"

    def play(count, **context):
        items = [item(CLEAN | context) for _ in range(count)]
        made = good(http.post(f"{path}/decide/batch", json={"items": items}))["decisions"]
        rewards = [{"decision_id": one["decision_id"], "reward": float(one["action"] == "call")} for one in made]
        good(http.post(f"{path}/reward/batch", json={"items": rewards}))

    play(60)
    play(20, device_type="foldable")
    good(http.post(f"{path}/levels", json={"variable": "plan", "level": "family"}))
    good(http.post(f"{path}/levels", json={"variable": "device_type", "level": "foldable"}))
    play(60, device_type="foldable", plan="family", spend=999, more=1)
    values = good(http.get(f"{path}/report", params={"model_version": 3}))["off_policy"]["policies"]
    assert any(value.get("model_version") == 3 for value in values)
    assert good(http.get(f"{path}/series"))["buckets"]


# --- batches with bad items -------------------------------------------------------------------------------------------


def test_the_error_of_a_batch_lists_every_bad_item(http, new):
    name = new()
    items = [item(CLEAN) for _ in range(9)]
    items[1]["context"] = CLEAN | {"device_type": "foldable", "spend": -1}
    items[4]["excluded_actions"] = ["fax"]
    items[6]["at"] = "2100-01-01T00:00:00Z"
    items[7]["context"] = CLEAN | {"tenure_months": 2**70}
    items[8]["context"] = CLEAN | {"plan": None}
    body = {"campaign": name, "items": items}
    error = error_of(http.post("/decide/batch", json=body), 422)
    assert [field["field"] for field in error["fields"]] == [
        "items[1].context.device_type",
        "items[1].context.spend",
        "items[4].excluded_actions",
        "items[6].at",
        "items[7].context.tenure_months",
        "items[8].context.plan",
    ]
    assert good(http.get(f"/campaigns/{name}"))["round"] == 0


def test_with_too_many_bad_items_each_is_named_once_before_any_is_named_twice(http, new):
    items = [item({}) for _ in range(MOST_FIELDS + 10)]
    error = error_of(http.post("/decide/batch", json={"campaign": new(), "items": items}), 422)
    assert [field["field"] for field in error["fields"]] == [f"items[{i}].context.plan" for i in range(MOST_FIELDS)]
    assert f"and {4 * len(items) - MOST_FIELDS} more" in error["message"]


def test_skipping_decides_the_others_as_single_calls_would(http, new):
    batched, single = new(), new()
    first, reused = item(CLEAN), item(CLEAN)
    for name in (batched, single):
        good(http.post("/decide", json={"campaign": name, **first}))
    items = [item(CLEAN | {"spend": i}) for i in range(8)]
    items[2]["context"] = CLEAN | {"device_type": "foldable"}
    items[3] = first | {"context": CLEAN | {"spend": 1}}  # another request for a known id
    items[5:7] = [reused, reused | {"context": CLEAN | {"spend": 7}}]
    items.append(first)
    body = {"campaign": batched, "items": items, "on_error": "skip"}
    answer = shaped(PartialBatch, http.post("/decide/batch", json=body))
    assert [(one["item"], one["decision_id"], one["error"]["code"]) for one in answer["skipped"]] == [
        (2, items[2]["decision_id"], "invalid"),
        (3, first["decision_id"], "conflict"),
        (6, reused["decision_id"], "conflict"),
    ]
    assert answer["skipped"][0]["error"]["fields"][0]["field"] == "items[2].context.device_type"
    assert good(http.post("/decide/batch", json=body))["decisions"] == answer["decisions"]
    alone = [good(http.post("/decide", json={"campaign": single, **items[i]})) for i in (0, 1, 4, 5, 7, 8)]
    assert [one | {"campaign": single} for one in answer["decisions"]] == [
        one | {"decided_at": made["decided_at"]} for one, made in zip(alone, answer["decisions"], strict=True)
    ]
    error = error_of(http.post("/decide/batch", json=body | {"on_error": "fail"}), 409)
    assert {field["field"] for field in error["fields"]} == {
        "items[2].context.device_type",
        "items[3].decision_id",
        "items[6].decision_id",
    }


def test_what_is_said_about_skipped_items_is_bounded(http, new):
    items = [item({}) for _ in range(200)]
    body = {"campaign": new(), "items": items, "on_error": "skip"}
    skipped = good(http.post("/decide/batch", json=body))["skipped"]
    assert sum(len(one["error"]["fields"]) for one in skipped) == MOST_FIELDS
    assert skipped[-1]["item"] == 199
    assert "items[199].context.plan: missing" in skipped[-1]["error"]["message"]


def test_skipping_needs_bad_items_not_a_bad_campaign(http, new):
    name = new()
    body = {"campaign": name, "items": [item({}), item({})], "on_error": "skip"}
    answer = good(http.post("/decide/batch", json=body))
    assert (answer["decisions"], len(answer["skipped"])) == ([], 2)
    fine = {"campaign": name, "items": [item(CLEAN)]}
    assert good(http.post("/decide/batch", json=fine | {"on_error": "skip"}))["skipped"] == []
    assert good(http.post("/decide/batch", json=fine)).keys() == {"decisions"}
    good(http.patch(f"/campaigns/{name}", json={"paused": True}))
    body["items"].append(item(CLEAN))
    assert "paused" in error_of(http.post("/decide/batch", json=body), 409)["message"]
    error_of(http.post("/decide/batch", json=body | {"campaign": "nobody"}), 404)
    error_of(http.post("/decide/batch", json=body | {"on_error": "guess"}), 422)


# --- refused decides are counted --------------------------------------------------------------------------------------


def test_refused_decides_are_counted_by_field_and_value(http, new):
    name = new()
    for context in (CLEAN, CLEAN | {"device_type": "foldable"}, CLEAN | {"device_type": "foldable", "plan": None}):
        http.post("/decide", json={"campaign": name, "context": context})
    items = [
        item(CLEAN),
        item(CLEAN | {"device_type": "foldable"}),
        item(CLEAN | {"x": 1}),
        item(CLEAN | {"spend": 1e9}),
    ]
    for on_error in ("fail", "skip"):
        http.post("/decide/batch", json={"campaign": name, "items": items, "on_error": on_error})
    http.post(f"/campaigns/{name}/preview", json={"context": {}})  # decides nothing
    for i in range(2 * MOST_VALUES):
        http.post("/decide", json={"campaign": name, "context": CLEAN | {"plan": f"plan {i}"}})
    found = Scrape(http).by("refused_decides_total", "field", "value", campaign=name)
    others = {key: found.pop(key) for key in list(found) if key[1].startswith("plan ")}
    assert len(others) == MOST_VALUES - 1  # one of the names is that of missing values
    assert found == {
        ("device_type", "foldable"): 4,
        ("plan", "(missing)"): 1,
        ("plan", REST): MOST_VALUES + 1,
        ("spend", "(too high)"): 2,
        ("(unknown variable)", "x"): 2,
    }


def test_old_refusals_fade():
    refusals = Refusals()
    refusals.count("a", 0, [[Refused("x", "1"), Refused("x", "1")]] * 100)
    assert refusals.get_share("a") == (100, 100, {Refused("x", "1"): 100})
    for _ in range(20):
        refusals.count("a", 1_000, [])
    share = refusals.get_share("a")
    assert share.refused < 0.01
    assert share.values == {}
    refusals.forget(["a"])
    assert refusals.get_share("a").requests == 0


# --- exports and imports ----------------------------------------------------------------------------------------------


def test_an_export_can_be_imported_over_the_api_as_it_is(http, new):
    source = new(**LENIENT)
    contexts = [CLEAN, RECORD, {"device_type": "phone", "spend": 3}, CLEAN | {"device_type": 7}]
    for turn in range(40):
        items = [item(context) for context in contexts]
        made = good(http.post("/decide/batch", json={"campaign": source, "items": items}))["decisions"]
        if turn % 3:
            rewards = [{"decision_id": one["decision_id"], "reward": one["round"] % 5} for one in made]
            good(http.post("/reward/batch", json={"campaign": source, "items": rewards}))
    lines = http.get(f"/campaigns/{source}/decisions", params={"format": "ndjson"}).text.splitlines()
    target = new(**LENIENT)
    body = {"import_id": "as-it-is", "rows": [json.loads(line) for line in lines]}
    assert good(http.post(f"/campaigns/{target}/import", json=body))["rows"] == 160
    assert good(http.post(f"/campaigns/{target}/import", json=body))["rows"] == 160  # again: recognized
    models = [good(http.get(f"/campaigns/{name}/model"))["coefficients"] for name in (source, target)]
    assert models[0] == models[1]
    body["rows"][0]["colour"] = "red"  # no column of an export
    error_of(http.post(f"/campaigns/{target}/import", json=body | {"import_id": "other"}), 422)
