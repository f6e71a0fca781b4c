"""Previews say what `/decide` then answers and change nothing; explanations find the model of a decision again."""

import itertools
import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

import service.engine.boundaries
import service.engine.snapshots
from policy import CampaignConfig, Request, StagedPolicy, encode
from policy.changes import add_config_action, patch_config, retire_config_action
from service.analysis.preview import explain_decision, preview_decision
from service.api.decisions import load_decision
from service.api.preview import Explanation, Preview, PreviewRequest, past_decision, preview_answer
from service.engine.operations import Change
from service.storage.campaigns import find_campaign
from service.storage.tables import decisions, jobs
from service.storage.tables import metadata as tables
from tests.service.answers import error_of, good, shaped
from tests.service.conftest import Clock
from tests.service.playing import CONFIGS, PLAIN, SEASONS, Script, http_post, verify_campaign

NUMBERS = itertools.count(1)
SAME = ("round", "stage", "model_version", "mode", "action", "propensity", "belief", "scores")


def previewed(worker, name, item):
    """What the route answers, without a socket."""
    body = PreviewRequest.model_validate({key: value for key, value in item.items() if key != "decision_id"})
    with worker.store.reading() as tx:
        row = find_campaign(tx, name)
        return preview_answer(name, preview_decision(tx, row, worker.campaigns, body)).model_dump(mode="json")


def everything(worker):
    return {table.name: worker.rows(table) for table in tables.sorted_tables}


def random_item(chance):
    return {
        "context": {"season": chance.choice(SEASONS), "spend": chance.choice((3, 30, 80)), "tenure": chance.random()},
        "excluded_actions": chance.choice(((), (), ("mail",), ("none", "call"))),
        "subject": chance.choice((None, "someone", "customer 3")),
    }


def trying(worker, script, compared):
    """A post that tries the first item of every request before it is decided, and other contexts beside it."""
    chance = random.Random(5)

    def post(path, body):
        if not path.startswith("/decide"):
            return worker.post(path, body)
        item = (body["items"][0] if "items" in body else body) | {}
        item.pop("campaign", None)
        for _ in range(2):
            previewed(worker, script.name, random_item(chance))
        told = previewed(worker, script.name, item)
        answer = worker.post(path, body)
        first = answer["decisions"][0] if "items" in body else answer
        assert {key: told[key] for key in SAME} == {key: first[key] for key in SAME}
        compared.append(told)
        return answer

    return post


def on_kinds(*kinds):
    """(database, campaign, whether re-estimations are left to jobs)"""
    return pytest.mark.parametrize(("database_url", "name", "large"), kinds, indirect=["database_url"])


@on_kinds(
    *(("sqlite", name, False) for name in CONFIGS),
    ("sqlite", "default", True),
    ("sqlite", "clock", True),
    ("postgresql", "smoothed", True),
)
def test_a_preview_is_what_decide_then_answers(direct, clock, monkeypatch, name, large):
    """At boundaries and between them; and the campaign goes on as if nobody had asked."""
    if large:
        monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker, compared = direct(), []
    alone = Script(CONFIGS[name], clock, name="alone").create(worker.post)
    tried = Script(CONFIGS[name], clock, name="tried").create(worker.post)
    for script, post in ((alone, worker.post), (tried, trying(worker, tried, compared))):
        for until in (34, 47, 60, 75):
            script.play(post, until)
            worker.finish_all()  # what a job found is put in force at the next stage's end, by a preview there too
    assert tried.answers == alone.answers
    assert worker.differences("tried") == []
    assert {told["mode"] for told in compared} >= {"warm_start", "optimistic"}
    assert any(told["round"] % 5 == 1 for told in compared)  # the first of a stage
    if worker.rows(jobs):
        assert any(told["estimation_left_out"] for told in compared)
        assert any(row["status"] == "published" for row in worker.rows(jobs))


@pytest.mark.parametrize("name", ["default", "waiting", "clock"])
def test_a_preview_writes_and_moves_nothing(direct, clock, name):
    worker = direct()
    script = Script(CONFIGS[name], clock).create(worker.post)
    for until in (0, 35, 40):  # before the first round; and where a stage, with its overdue rewards, is at its end
        while script.round < until:
            script.step(worker.post)
        clock.advance(60)
        entry = worker.campaigns.cache._entries.get(worker.campaign(name).campaign_id)
        before, state = everything(worker), entry and encode(entry.state)
        for seed in range(8):
            previewed(worker, name, random_item(random.Random(seed)))
        assert everything(worker) == before
        if entry is not None:
            assert worker.campaigns.cache._entries[entry_id(worker, name)] is entry
            assert encode(entry.state) == state
            history = entry.state.history
            assert (history.rounds, history.arrived) == (entry.state.round, entry.state.arrived)
    assert worker.differences(name) == []


def entry_id(worker, name):
    return worker.campaign(name).campaign_id


def test_an_inline_estimation_that_is_large_is_left_out_and_told(direct, clock, monkeypatch):
    """`inline` campaigns make it themselves with the decision; a preview must not take as long again and again."""
    config = CONFIGS["smoothed"] | {"beliefs": CONFIGS["smoothed"]["beliefs"] | {"estimation": "inline"}}
    worker = direct()
    Script(config, clock).create(worker.post)
    chance = random.Random(1)
    for _ in range(31):  # the next round is the first that is due for one
        worker.post("/decide", {"campaign": "smoothed", **random_item(chance)})
    made = previewed(worker, "smoothed", random_item(chance))
    assert made["estimation_left_out"] is False
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    monkeypatch.setattr(StagedPolicy, "estimate", lambda *_: pytest.fail("it was made"))
    told = previewed(worker, "smoothed", random_item(chance))
    assert told["estimation_left_out"] is True
    assert told["model_version"] == made["model_version"] - 1


def test_another_worker_moves_on_and_the_preview_follows(direct, clock):
    """A reader folds what others have decided on a copy: what its own lanes hold stays."""
    one, other = direct(), direct()
    script = Script(CONFIGS["default"], clock).create(one.post).play(one.post, 40)
    held = one.campaigns.cache._entries[entry_id(one, "default")]
    before = encode(held.state)
    script.play(other.post, 60)
    item = random_item(random.Random(3))
    told = previewed(one, "default", item)
    assert told == previewed(other, "default", item)
    assert told["round"] == script.round + 1
    assert one.campaigns.cache._entries[entry_id(one, "default")] is held
    assert encode(held.state) == before
    assert held.state.history.rounds == held.state.round
    cold = direct()  # after a restart, the first one folds and the others find it
    assert previewed(cold, "default", item) == told
    assert entry_id(cold, "default") in cold.campaigns.cache._entries


@pytest.mark.parametrize(
    ("database_url", "name"), [("sqlite", "waiting"), ("postgresql", "smoothed")], indirect=["database_url"]
)
def test_previews_do_not_disturb_decisions_made_meanwhile(start, clock, name):
    """From many threads at once, while the campaign goes on: it answers as if it had been alone."""
    worker = start()
    post = http_post(worker.client)
    alone = Script(CONFIGS[name], clock, name="alone").create(post).play(post, 40)
    watched = Script(CONFIGS[name], clock, name="watched").create(post)
    over, statuses = threading.Event(), Counter()

    def look(seed):
        chance = random.Random(seed)
        with httpx.Client(base_url=worker.url, timeout=60) as client:
            while not over.is_set():
                statuses[client.post("/campaigns/watched/preview", json=random_item(chance)).status_code] += 1
                statuses[client.get("/campaigns/watched/series", params={"beliefs": "now"}).status_code] += 1

    with ThreadPoolExecutor(4) as pool:
        looking = [pool.submit(look, seed) for seed in range(4)]
        try:
            watched.play(post, 40)
        finally:
            over.set()
        for one in looking:
            one.result()
    assert statuses.keys() == {200}
    assert statuses[200] > 20
    assert watched.answers == alone.answers
    with worker.service.store.reading() as tx:
        assert verify_campaign(tx, "watched") == []


def brute_force(policy, state, context, excluded, regime):
    """Scores at certainty in a regime from the feature map, θ̂ and G⁻¹, with nothing of the kernels' scoring."""
    features = policy.maps[state.belief.size]
    contexts, belief = features.encode([context]), np.eye(state.belief.size)[regime]
    _, _, inverse, theta, _, units = state.statistics
    scale = policy.config.bonus.scale * (units[1] if policy.config.bonus.form == "noise" else 1.0)
    found = {}
    for place, action in enumerate(policy.config.actions):
        if action not in excluded:
            z = features.dense(belief, place, contexts)
            found[action] = (units[0] + theta @ z, scale * np.sqrt(z @ inverse @ z))
    return found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("name", "regimes"), [("default", 1), ("smoothed", 2), ("given", 2), ("one-regime", 1)])
def test_what_would_be_chosen_in_each_regime(direct, clock, name, regimes):
    worker = direct()
    config = CONFIGS[name] | {"bonus": {"form": "noise" if name == "default" else "elliptical", "scale": 0.7}}
    script = Script(config, clock).create(worker.post).play(worker.post, 62)
    while script.round % 5 == 0:
        script.step(worker.post)
    chance, state = random.Random(2), worker.campaigns.cache._entries[entry_id(worker, name)].state
    policy = StagedPolicy(CampaignConfig.model_validate(config))
    for _ in range(20):
        item = random_item(chance)
        told = previewed(worker, name, item)
        assert [each["regime"] for each in told["regimes"]] == list(range(1, state.belief.size + 1))
        assert told["belief_before"] == state.belief.tolist()
        for each in told["regimes"]:
            expected = brute_force(policy, state, item["context"], item["excluded_actions"], each["regime"] - 1)
            assert [score["action"] for score in each["scores"]] == list(expected)
            for score in each["scores"]:
                estimate, bonus = expected[score["action"]]
                assert score["estimate"] == pytest.approx(estimate, rel=1e-9, abs=1e-9)
                assert score["bonus"] == pytest.approx(bonus, rel=1e-9, abs=1e-9)
                assert score["score"] == score["estimate"] + score["bonus"]
            best = max(each["scores"], key=lambda score: score["score"])
            assert each["action"] == best["action"]
    assert state.belief.size == regimes


# --- over HTTP ------------------------------------------------------------------------------------------------------


def a_campaign(client):
    """A campaign that has played, with its decisions."""
    script = Script(CONFIGS["given"], Clock(), name=f"previewed-{next(NUMBERS)}").create(http_post(client))
    return script.play(http_post(client), 48)


@pytest.fixture
def own(shared):
    """For a test that changes it."""
    return a_campaign(shared)


@pytest.fixture(scope="module")
def campaign(shared):
    """For all that only look."""
    return a_campaign(shared)


def test_preview_over_http(shared, own):
    name, item = own.name, {"context": {"season": "summer", "spend": 20, "tenure": 1.5}}
    before = good(shared.get(f"/campaigns/{name}"))
    told = shaped(Preview, shared.post(f"/campaigns/{name}/preview", json=item))
    assert good(shared.get(f"/campaigns/{name}")) == before
    assert (told["campaign"], told["round"], told["belief_before"]) == (name, before["round"] + 1, before["belief"])
    assert (told["paused"], told["archived"], told["estimation_left_out"]) == (False, False, False)
    good(shared.patch(f"/campaigns/{name}", json={"paused": True, "regime_labels": ["calm", "storm"]}))
    paused = good(shared.post(f"/campaigns/{name}/preview", json=item))
    assert paused["paused"]
    assert [each["label"] for each in paused["regimes"]] == ["calm", "storm"]
    assert {key: paused[key] for key in SAME} == {key: told[key] for key in SAME}
    good(shared.post(f"/campaigns/{name}/archive"))
    assert good(shared.post(f"/campaigns/{name}/preview", json=item))["archived"]
    good(shared.post(f"/campaigns/{name}/unarchive"))
    good(shared.patch(f"/campaigns/{name}", json={"paused": False}))
    decided = good(shared.post("/decide", json={"campaign": name, **item}))
    assert {key: decided[key] for key in SAME} == {key: told[key] for key in SAME}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"context": {"season": "monsoon", "spend": 20, "tenure": 1.5}}, "context.season"),
        ({"context": {"season": "summer", "spend": 20}}, "context.tenure"),
        ({"context": {"season": "summer", "spend": 20, "tenure": 1.5, "mood": 1}}, "context.mood"),
        ({"context": {"season": "summer", "spend": 2**70, "tenure": 1.5}}, "context.spend"),
        ({"excluded_actions": ["fax"]}, "excluded_actions"),
        ({"excluded_actions": ["none", "mail", "call"]}, "excluded_actions"),
        ({"subject": ""}, "subject"),
        ({"at": "2126-01-01T00:00:00Z"}, "at"),
    ],
)
def test_what_is_wrong_is_named_as_decide_names_it(shared, campaign, change, field):
    body = {"context": {"season": "summer", "spend": 20, "tenure": 1.5}} | change
    error = error_of(shared.post(f"/campaigns/{campaign.name}/preview", json=body), 422)
    decided = error_of(shared.post("/decide", json={"campaign": campaign.name, **body}), 422)
    assert [one["field"] for one in error["fields"]] == [field]
    assert error["fields"] == decided["fields"]


def test_preview_takes_no_decision_id_and_needs_a_campaign(shared, campaign):
    body = {"context": {"season": "summer", "spend": 20, "tenure": 1.5}}
    refused = error_of(shared.post(f"/campaigns/{campaign.name}/preview", json=body | {"decision_id": "x"}), 422)
    assert [one["field"] for one in refused["fields"]] == ["decision_id"]
    for at in ("yesterday", "2026-01-01T00:00:00", 1_790_000_000):
        refused = error_of(shared.post(f"/campaigns/{campaign.name}/preview", json=body | {"at": at}), 422)
        assert [one["field"] for one in refused["fields"]] == ["at"]
    for name in ("nobody", "%00"):
        error_of(shared.post(f"/campaigns/{name}/preview", json=body), 404)
        error_of(shared.post(f"/campaigns/{name}/explain", json={"decision_id": "x"}), 404)


# --- explanations ---------------------------------------------------------------------------------------------------


def test_explain_over_http(shared, campaign):
    name = campaign.name
    for made in campaign.decisions[::9]:
        body = {"decision_id": made["decision_id"]}
        told = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json=body))
        stored = good(shared.get(f"/campaigns/{name}/decisions/{made['decision_id']}"))
        assert {key: told[key] for key in stored} == stored
        assert told["regimes_missing"] is None
        for action, *scores in zip(told["scores"], *(each["scores"] for each in told["regimes"]), strict=True):
            # Estimates are linear in the belief: mixed by it, those of the regimes give what was decided with.
            mixed = sum(b * score["estimate"] for b, score in zip(told["belief"], scores, strict=True))
            assert action["estimate"] == pytest.approx(mixed, rel=1e-9, abs=1e-9)
    error_of(shared.post(f"/campaigns/{name}/explain", json={"decision_id": "never made"}), 404)


def explained(worker, name, decision_id):
    """What the route answers, without a socket."""
    with worker.store.reading() as tx:
        row = find_campaign(tx, name)
        decision = past_decision(load_decision(tx, worker.campaigns, row, decision_id))
        return explain_decision(tx, row, worker.campaigns, decision)


@on_kinds(
    ("sqlite", "default", True),
    ("sqlite", "waiting", False),
    ("sqlite", "clock", False),
    ("sqlite", "given", False),
    ("postgresql", "smoothed", True),
)
def test_the_model_of_every_decision_is_found_again(direct, clock, monkeypatch, name, large):
    """With snapshots and jobs on the way, changes of the configuration, an action more and one less; no row changes."""
    if large:
        monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker, states = direct(), {}
    script = Script(CONFIGS[name], clock).create(worker.post)
    changes = {
        30: partial(patch_config, patch={"bonus": {"scale": 1.7}}),
        50: partial(add_config_action, action="visit"),
        65: partial(retire_config_action, action="mail"),
    }
    while script.round < 80:
        number = entry_id(worker, name)
        for at in [at for at in changes if at <= script.round]:
            assert worker.process(Change(name, changes.pop(at))) == [None]
        script.step(worker.post)
        entry = worker.campaigns.cache._entries[number]
        states[entry.state.round] = entry.position
        if script.round % 3 == 0:
            worker.finish_all()
    before = everything(worker)
    for made in script.decisions[::4]:
        regimes, missing = explained(worker, name, made["decision_id"])
        assert missing is None
        start = states.get(made["round"])
        if start is not None:  # the model in force after the last decision of a request is the one that made it
            (stored,) = [row for row in worker.rows(decisions) if row["round"] == made["round"]]
            request = Request(*map(json.loads, (stored["context"], stored["excluded_actions"] or "[]")))
            state = start.state._replace(round=made["round"] - 1)
            expected = start.policy.score_under(state, np.eye(state.belief.size), request)
            assert [[(s.action, s.estimate, s.bonus) for s in each.scores] for each in regimes] == [
                [(s.action, s.estimate, s.bonus) for s in scores] for scores in expected
            ]
    assert everything(worker) == before


def test_after_an_erasure_what_is_stored_is_told(shared, own):
    name = own.name
    by_id = {made["decision_id"]: made for made in own.decisions}
    people = good(shared.post("/subjects/export", json={"subject": "customer 3"}))
    gone = next(one["decisions"] for one in people["campaigns"] if one["campaign"] == name)
    assert gone
    good(shared.post("/subjects/erase", json={"subject": "customer 3"}))
    error_of(shared.post(f"/campaigns/{name}/explain", json={"decision_id": gone[0]["decision_id"]}), 410)
    left = next(key for key in by_id if key not in {one["decision_id"] for one in gone})
    told = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json={"decision_id": left}))
    assert told["regimes"] is None
    assert "erased" in told["regimes_missing"]
    assert told["scores"] == by_id[left]["scores"]
    item = {"decision_id": "after", "context": {"season": "summer", "spend": 20, "tenure": 1.5}}
    good(shared.post("/decide", json={"campaign": name, **item}))
    assert good(shared.post(f"/campaigns/{name}/explain", json={"decision_id": "after"}))["regimes"]


def test_what_was_imported_has_no_model(shared):
    name = f"imported-{next(NUMBERS)}"
    good(shared.post("/campaigns", json=PLAIN | {"name": name}), 201)
    row = {"context": {"season": "summer", "spend": 20, "tenure": 1.5}, "action": "mail", "decision_id": "old"}
    good(shared.post(f"/campaigns/{name}/import", json={"import_id": "history", "rows": [row]}))
    told = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json={"decision_id": "old"}))
    assert (told["mode"], told["regimes"]) == ("imported", None)
    assert "imported" in told["regimes_missing"]


def test_scores_that_the_log_does_not_give_are_told(direct, clock):
    """Better no counterfactual than one of another model."""
    worker = direct()
    script = Script(CONFIGS["given"], clock).create(worker.post).play(worker.post, 30)
    made = script.decisions[-1]
    bad = '{"belief":[0.5,0.5],"scores":[{"action":"none","estimate":1.0,"bonus":1.0,"score":2.0}]}'
    worker.execute(sa.update(decisions).where(decisions.c.round == made["round"]).values(explanation=bad))
    regimes, missing = explained(worker, "given", made["decision_id"])
    assert regimes is None
    assert "verify" in missing
