"""Changing a living campaign: what may change, from which round on, and that the log gives every digit (R14, R21)."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from policy import CampaignConfig
from policy.changes import CHANGEABLE, add_config_action, patch_config, retire_config_action
from service.base.errors import ConflictError, InvalidError
from service.engine.operations import Archive, Change, Delete
from service.engine.preparation import prepare_rollback
from service.storage.campaigns import set_archived
from service.storage.tables import campaigns, config_revisions, jobs, models, snapshots
from service.storage.tables import metadata as tables
from tests.service.answers import allowed_by_field, error_of, good, shaped
from tests.service.playing import CONFIGS, Script, check_rounds, on_sqlite, operation

NUMBERS = itertools.count(1)
SIMPLE = {
    "actions": ["none", "mail", "call"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}],
    "stage_length": 5,
    "warm_start_rounds": 10,
    "seed": 3,
}


@pytest.fixture
def new(http):
    """A function that creates a campaign and returns its name."""

    def create(**config):
        name = f"changing-{next(NUMBERS)}"
        good(http.post("/campaigns", json={**SIMPLE, "name": name, **config}), 201)
        return name

    return create


def decide(client, campaign, count=1):
    items = [{"context": {"risk": ("low", "high")[i % 2]}, "decision_id": f"{next(NUMBERS)}"} for i in range(count)]
    return good(client.post("/decide/batch", json={"campaign": campaign, "items": items}))["decisions"]


def patching(name, **patch):
    """The operation that a PATCH makes."""
    return Change(name, lambda config: patch_config(config, patch))


def adding(name, action):
    return Change(name, partial(add_config_action, action=action))


# --- PATCH ----------------------------------------------------------------------------------------------------------


def test_a_revision_says_what_changed(http, new):
    name, patch = new(), {"rewards": {"wait_seconds": 60, "default": 0}}
    decide(http, name, 3)
    good(http.patch(f"/campaigns/{name}", json=patch))
    newest, first = good(http.get(f"/campaigns/{name}/revisions"))["revisions"]
    unset = {"range": None, "while_waiting": "provisional", "correct_seconds": None, "credit": "last"}
    rewards = patch["rewards"] | unset
    assert (newest["round"], newest["changed"]) == (3, {"rewards": rewards})
    assert (first["round"], first["changed"]["seed"]) == (0, 3)


FIXED = [
    {"stage_length": 6},
    {"name": "another"},
    {"seed": 4},
    {"ridge": 2},
    {"rewards": {"range": [0, 1]}},
    {"bonus": {"form": "plain"}},
    {"variables": [{"name": "risk", "levels": ["low", "middle"]}]},
    {"actions": ["none", "mail"]},
    {"control": {"share": 0.5}, "warm_start_rounds": 11},
    {"retired_actions": ["none"]},  # a clone cannot have these either, but first of all they cannot change
    {"ridge": -2},
    {"variables": []},
    {"control": {"share": 7}, "rewards": {"range": "wide"}},
]
BAD = {
    "colour": {"colour": 1},
    "rewards.wait": {"rewards": {"wait": 60}},
    "control.share": {"control": {"share": 1.5}},
    "paused": {"paused": "yes"},
    "propensity_floor": {"propensity_floor": 0.5},
    "rewards.wait_seconds": {"rewards": {"default": 1}},
    "regime_labels": {"regime_labels": ["a", "a"]},
    "rewards": {"rewards": 5},
    "bonus.scale": {"bonus": {"scale": {"scale": {"scale": {}}}}},
    "config": {f"field-{i}": 1 for i in range(2_000)},  # many mistakes are refused fast
}


def test_anything_else_is_a_conflict_that_says_to_clone_and_a_bad_value_is_named(http, new):
    name = new()
    before = good(http.get(f"/campaigns/{name}"))
    for patch in FIXED:
        error = error_of(http.patch(f"/campaigns/{name}", json=patch), 409)
        assert f"POST /campaigns/{name}/clone" in error["message"]
        (field,) = error["fields"]
        assert field["field"].partition(".")[0].partition("[")[0] in patch
        assert "variables" in patch or field["allowed"] == list(CHANGEABLE)
    for field, patch in BAD.items():
        assert field in allowed_by_field(http.patch(f"/campaigns/{name}", json=patch))
    assert good(http.get(f"/campaigns/{name}")) == before


def test_every_changeable_field_can_change():
    waiting = {"wait_seconds": 5, "default": 0}
    patches = [{"rewards": waiting}, {"control": {"kind": "baseline", "share": 0.5}}, {"propensity_floor": 0.01}]
    patches += [{"bonus": {"scale": 7.5}}, {"regime_labels": ["calm"]}, {"alerts": {"rounds": 5}}]
    patches += [{"retention_days": 30}, {"paused": True}, {"bulk_evaluation": True}]
    patches += [{"extra_variables": "ignore"}, {"beliefs": {"window_rounds": 1_000}}]
    patches += [{"variables": [{"name": "risk", "levels": ["low", "middle", "high"], "missing": "level"}]}]
    assert {field for patch in patches for field in patch} == {field.partition(".")[0] for field in CHANGEABLE}
    config = CampaignConfig(name="x", **SIMPLE)
    for patch in patches:
        changed = patch_config(config, patch)
        assert {name for name in CampaignConfig.model_fields if getattr(changed, name) != getattr(config, name)} == {
            *patch
        }


# --- actions --------------------------------------------------------------------------------------------------------


def test_actions_that_are_refused(http, new):
    name = new()
    for path, action in (("/retire", "none"), ("/retire", "fax"), ("", ""), ("", "bell\x07")):
        assert "action" in allowed_by_field(http.post(f"/campaigns/{name}/actions{path}", json={"action": action}))


# --- clone, archive, delete -----------------------------------------------------------------------------------------


def test_a_clone_has_a_seed_of_its_own_and_valid_fields(http, new):
    path = f"/campaigns/{new()}/clone"
    made = shaped(CampaignConfig, http.post(path, json={"name": f"changing-{next(NUMBERS)}"}), 201)
    assert made["seed"] != SIMPLE["seed"]
    assert "name" in allowed_by_field(http.post(path, json={}))
    assert "stage_length" in allowed_by_field(http.post(path, json={"name": "x", "stage_length": 0}))
    error_of(http.post("/campaigns/nobody/clone", json={"name": "x"}), 404)


def test_deleting_needs_the_archive_and_the_name(http, new):
    name = new()
    assert "archive" in error_of(http.delete(f"/campaigns/{name}", params={"confirm": name}), 409)["message"]
    assert allowed_by_field(http.delete(f"/campaigns/{name}", params={"confirm": "x"})) == {"confirm": name}
    assert allowed_by_field(http.delete(f"/campaigns/{name}")) == {"confirm": "?confirm=…"}


def test_deleting_leaves_no_row(direct, clock):
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, 80)
    worker.process(Archive(script.name, True))
    worker.process(Delete(script.name))
    assert {name: len(worker.rows(table)) for name, table in tables.tables.items()} == dict.fromkeys(tables.tables, 0)


# --- rollback -------------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_earlier(http, new):
    name = new(regimes=1, beliefs={"estimator": "none"})
    for rounds, version in ((1, 1), (30, 99), (1, 6)):
        decide(http, name, rounds)
        error = allowed_by_field(http.post(f"/campaigns/{name}/rollback", json={"model_version": version}))
        assert error.keys() == {"model_version"}


# --- the log gives every digit --------------------------------------------------------------------------------------


def list_changes(worker, name):
    """Return one change of each kind, by the round at which to make it."""
    patch = {"control": {"share": 0.4, "kind": "baseline"}, "propensity_floor": 0.05, "bonus": {"scale": 1.5}}
    return {
        12: lambda: [patching(name, **patch)],
        22: lambda: [adding(name, "message")],
        36: lambda: [Change(name, lambda config: retire_config_action(config, "mail"))],
        48: lambda: [prepare_rollback(worker().campaigns, name, max(1, worker().campaign(name).model_version - 4))],
        58: lambda: [adding(name, action) for action in ("mail", "fax")],
        64: lambda: [prepare_rollback(worker().campaigns, name, 2)],  # from before the new actions
        70: lambda: [patching(name, control={"share": 0})],
    }


def play_with_changes(script, workers, until):
    """Play with all the changes; the workers take turns."""
    turn = itertools.cycle(workers)
    latest = [next(turn)]

    def worker():
        return latest[0]

    def post(path, body):
        latest[0] = next(turn)
        return worker().post(path, body)

    due = list_changes(worker, script.name)
    while script.round < until:
        for round in [round for round in due if round <= script.round]:
            assert set(worker().process(*due.pop(round)())) == {None}
        script.step(post)
    return script


@pytest.mark.parametrize(
    ("database_url", "name"),
    [*(("sqlite", name) for name in CONFIGS), ("postgresql", "default")],
    indirect=["database_url"],
)
def test_changes_survive_restarts_other_workers_and_verify(direct, clock, name, monkeypatch):
    """R15: one worker, two in turns, and restarts with and without snapshots give the same digits."""
    monkeypatch.setattr("service.engine.recovery.SNAPSHOT_ROUNDS", 20)
    alone = direct()
    whole = play_with_changes(Script(CONFIGS[name], clock, name="whole").create(alone.post), [alone], 95)
    assert {"message", "fax"} <= {made["action"] for made in whole.decisions}
    check_rounds(whole.decisions)
    two = direct(), direct()
    turns = play_with_changes(Script(CONFIGS[name], clock, name="turns").create(two[0].post), two, 95)
    assert turns.answers == whole.answers
    for worker in (alone, *two):
        worker.finish_all()
    kinds = [row["kind"] for row in alone.rows(models) if row["campaign_id"] == 1]
    assert (kinds.count("rollback"), kinds.count("actions")) == (2, 2)
    assert len([row for row in alone.rows(config_revisions) if row["campaign_id"] == 1]) == 9
    for campaign in ("whole", "turns"):
        assert direct().differences(campaign) == []
    restarted = direct()
    assert whole.play(restarted.post, 110).answers == turns.play(two[0].post, 110).answers
    assert restarted.differences("whole") == []
    alone.execute(snapshots.delete())  # then everything is folded from the first round
    assert whole.play(direct().post, 120).answers == turns.play(two[1].post, 120).answers


@on_sqlite
def test_a_rollback_to_before_the_newest_snapshot_can_be_folded(direct, clock, monkeypatch):
    """The fold starts before the newest snapshot, because the restored model is older."""
    monkeypatch.setattr("service.engine.recovery.SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, 50)
    worker.finish_all()
    assert worker.rows(snapshots)[-1]["round"] >= 20
    worker.process(prepare_rollback(worker.campaigns, script.name, 2))
    worker.work.clear()  # it died before its own snapshot
    script.play(direct().post, 60)
    assert direct().differences(script.name) == []


@on_sqlite
def test_a_change_of_model_drops_the_running_job(direct, clock, monkeypatch):
    """Its result belongs to a model that is no longer in force."""
    monkeypatch.setattr("service.engine.boundaries.INLINE_OPERATIONS", 0)
    for name, change in (
        ("added", lambda worker, name: adding(name, "message")),
        ("back", lambda worker, name: prepare_rollback(worker.campaigns, name, 1)),
    ):
        worker = direct()
        script = Script(CONFIGS["default"], clock, name=name).create(worker.post).play(worker.post, 40)
        (job,) = [work for work in worker.work if hasattr(work, "policy")]
        worker.process(change(worker, name))
        worker.finish(job)
        script.play(worker.post, 60)
        (row, *_) = [row for row in worker.rows(jobs) if row["campaign_id"] == job.campaign_id]
        assert (row["status"], row["published_round"]) == ("nothing", None)
        assert worker.differences(name) == []


@on_sqlite
def test_gathered_operations_are_carried_out_in_order(direct, clock):
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, 20)
    decide = operation("/decide", {"campaign": script.name, **script._item(script.round + 1)})
    outcomes = worker.process(
        decide,
        patching(script.name, paused=True),
        operation("/decide", {"campaign": script.name, **script._item(script.round + 2)}),
        patching(script.name, propensity_floor=2),
        Archive(script.name, True),
        patching(script.name, paused=False),
    )
    kinds = bytes, type(None), ConflictError, InvalidError, type(None), ConflictError
    assert tuple(map(type, outcomes)) == kinds
    assert worker.differences(script.name) == []
    gone = worker.process(Delete(script.name), decide)
    assert gone[0] is None
    assert "no campaign" in str(gone[1])
    assert worker.rows(campaigns) == []
    worker.post("/campaigns", script.config)
    worker.process(Archive(script.name, True))
    again = worker.process(Delete(script.name), operation("/campaigns", script.config))
    assert again[0] is None
    assert isinstance(again[1], bytes)  # the name was free again
    assert worker.campaign(script.name).round == 0


@on_sqlite
def test_a_tampered_revision_is_found(direct, clock):
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, 30)
    worker.process(prepare_rollback(worker.campaigns, script.name, 2))
    script.play(worker.post, 60)
    assert worker.differences(script.name) == []
    for change, said in (("restored = 77", "never published"), ("arrived = arrived + 1", "revision 2")):
        worker.execute(f"UPDATE config_revisions SET {change} WHERE revision = 2")
        assert any(said in problem for problem in worker.differences(script.name))


@on_sqlite
def test_a_rollback_owes_a_snapshot_while_another_is_under_way(direct, clock, monkeypatch):
    monkeypatch.setattr("service.engine.recovery.SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(CONFIGS["one-regime"], clock).create(worker.post).play(worker.post, 30)
    assert len(worker.work) == 1  # under way
    worker.process(prepare_rollback(worker.campaigns, script.name, 2))
    worker.finish_all()
    script.step(worker.post)
    worker.finish_all()
    assert worker.rows(snapshots)[-1]["revision"] == 2


@on_sqlite
def test_a_default_comes_and_goes_on_a_living_campaign(direct, clock):
    """R2, R20: and every replay agrees, from snapshots and from the first round."""
    worker = direct()
    script = Script(CONFIGS["one-regime"], clock).create(worker.post).play(worker.post, 60)
    gone = {"wait_seconds": None, "default": None}
    for rules in ({"wait_seconds": 5, "default": 0.5}, {"while_waiting": "hold"}, {"default": -1}, gone):
        worker.process(patching(script.name, rewards=rules))
        script.play(worker.post, script.round + 40)
        assert worker.differences(script.name) == []
        worker = direct()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("first", [True, False])
def test_an_operation_that_waited_for_the_lock_sees_the_archiving(direct, clock, first):
    """On PostgreSQL, an operation that waited for the lock must see what the previous one did."""
    one, other = direct(), direct()
    script = Script(CONFIGS["one-regime"], clock).create(one.post).play(one.post, 10)
    if not first:
        one.process(Archive(script.name, True))
    waiting = operation("/decide", {"campaign": script.name, **script._item(99)}) if first else Delete(script.name)
    with ThreadPoolExecutor(1) as pool, one.store.writing() as tx:
        tx.lock_campaigns([script.name])
        outcome = pool.submit(other.process, waiting)
        time.sleep(0.5)  # it waits for the lock
        set_archived(tx, one.campaign(script.name).campaign_id, clock.now if first else None)
    assert isinstance(outcome.result()[0], ConflictError)
