"""Previews are what `/decide` then answers, and change nothing; explanations rebuild the model of a decision."""

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
import service.engine.recovery
from policy import Request, StagedPolicy, encode
from policy.changes import add_config_action, patch_config, retire_config_action
from service.analysis.preview import explain_decision, preview_decision
from service.api.decisions import Explanation, Preview, PreviewRequest, describe_preview, load_decision
from service.engine.operations import Change
from service.storage.campaigns import find_campaign
from service.storage.tables import decisions, jobs
from service.storage.tables import metadata as tables
from tests.service.answers import error_of, good, shaped
from tests.service.conftest import Clock
from tests.service.playing import CONFIGS, PLAIN, SEASONS, Script, http_post, verify_campaign

NUMBERS = itertools.count(1)
SAME = ("round", "stage", "model_version", "mode", "action", "propensity", "belief", "scores")


def preview(worker, name, item):
    """What the route answers, without HTTP."""
    body = PreviewRequest.model_validate({key: value for key, value in item.items() if key != "decision_id"})
    with worker.store.reading() as tx:
        row = find_campaign(tx, name)
        return describe_preview(name, preview_decision(tx, row, worker.campaigns, body)).model_dump(mode="json")


def read_tables(worker):
    return {table.name: worker.rows(table) for table in tables.sorted_tables}


def draw_item(chance):
    return {
        "context": {"season": chance.choice(SEASONS), "spend": chance.choice((3, 30, 80)), "tenure": chance.random()},
        "excluded_actions": chance.choice(((), (), ("mail",), ("none", "call"))),
        "subject": chance.choice((None, "someone", "customer 3")),
    }


def preview_first(worker, script, previews):
    """A `post` that previews the first item of every request before it is decided, and other contexts too."""
    chance = random.Random(5)

    def post(path, body):
        if not path.startswith("/decide"):
            return worker.post(path, body)
        item = (body["items"][0] if "items" in body else body) | {}
        item.pop("campaign", None)
        for _ in range(2):
            preview(worker, script.name, draw_item(chance))
        expected = preview(worker, script.name, item)
        answer = worker.post(path, body)
        first = answer["decisions"][0] if "items" in body else answer
        assert {key: expected[key] for key in SAME} == {key: first[key] for key in SAME}
        previews.append(expected)
        return answer

    return post


def on_kinds(*kinds):
    """Parameters: database, campaign, whether re-estimations are left to background jobs."""
    return pytest.mark.parametrize(("database_url", "name", "large"), kinds, indirect=["database_url"])


@on_kinds(
    *(("sqlite", name, False) for name in CONFIGS),
    ("sqlite", "default", True),
    ("sqlite", "clock", True),
    ("postgresql", "smoothed", True),
)
def test_a_preview_is_what_decide_then_answers(direct, clock, monkeypatch, name, large):
    """At boundaries and between them; and the campaign continues as if there had been no preview."""
    if large:
        monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker, previews = direct(), []
    alone = Script(CONFIGS[name], clock, name="alone").create(worker.post)
    tried = Script(CONFIGS[name], clock, name="tried").create(worker.post)
    for script, post in ((alone, worker.post), (tried, preview_first(worker, tried, previews))):
        for until in (34, 47, 60, 75):
            script.play(post, until)
            worker.finish_all()  # the result of a job is published at the end of the stage, and a preview there uses it
    assert tried.answers == alone.answers
    assert worker.differences("tried") == []
    assert {one["mode"] for one in previews} >= {"warm_start", "optimistic"}
    assert any(one["round"] % 5 == 1 for one in previews)  # the first of a stage
    if worker.rows(jobs):
        assert any(one["estimation_left_out"] for one in previews)
        assert any(row["status"] == "published" for row in worker.rows(jobs))


@pytest.mark.parametrize("name", ["default", "waiting", "clock"])
def test_a_preview_changes_nothing(direct, clock, name):
    worker = direct()
    script = Script(CONFIGS[name], clock).create(worker.post)
    for until in (0, 35, 40):  # before the first round; and at the end of a stage with overdue rewards
        while script.round < until:
            script.step(worker.post)
        clock.advance(60)
        entry = worker.campaigns.cache._entries.get(get_id(worker, name))
        before, state = read_tables(worker), entry and encode(entry.state)
        for seed in range(8):
            preview(worker, name, draw_item(random.Random(seed)))
        assert read_tables(worker) == before
        if entry is not None:
            check_unchanged(worker, name, entry, state)
    assert worker.differences(name) == []


def get_id(worker, name):
    return worker.campaign(name).campaign_id


def get_entry(worker, name):
    return worker.campaigns.cache._entries[get_id(worker, name)]


def check_unchanged(worker, name, entry, state):
    assert get_entry(worker, name) is entry
    assert encode(entry.state) == state
    assert (entry.state.history.rounds, entry.state.history.arrived) == (entry.state.round, entry.state.arrived)


def test_a_large_inline_estimation_is_left_out(direct, clock, monkeypatch):
    """The decision of an `inline` campaign makes it; a preview must not take that long every time."""
    config = CONFIGS["smoothed"] | {"beliefs": CONFIGS["smoothed"]["beliefs"] | {"estimation": "inline"}}
    worker = direct()
    Script(config, clock).create(worker.post)
    chance = random.Random(1)
    for _ in range(31):  # an estimation is due at the next round
        worker.post("/decide", {"campaign": "smoothed", **draw_item(chance)})
    made = preview(worker, "smoothed", draw_item(chance))
    assert made["estimation_left_out"] is False
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    monkeypatch.setattr(StagedPolicy, "estimate", lambda *_: pytest.fail("the estimation was made"))
    later = preview(worker, "smoothed", draw_item(chance))
    assert later["estimation_left_out"] is True
    assert later["model_version"] == made["model_version"] - 1


def test_a_preview_follows_the_decisions_of_another_worker(direct, clock):
    """A reader replays what others have decided on a copy: the worker's own state stays."""
    one, other = direct(), direct()
    script = Script(CONFIGS["default"], clock).create(one.post).play(one.post, 40)
    entry = get_entry(one, "default")
    state = encode(entry.state)
    script.play(other.post, 60)
    item = draw_item(random.Random(3))
    answer = preview(one, "default", item)
    assert answer == preview(other, "default", item)
    assert answer["round"] == script.round + 1
    check_unchanged(one, "default", entry, state)
    restarted = direct()  # the first preview replays, and leaves the result for others
    assert preview(restarted, "default", item) == answer
    assert get_entry(restarted, "default")


@pytest.mark.parametrize(
    ("database_url", "name"), [("sqlite", "waiting"), ("postgresql", "smoothed")], indirect=["database_url"]
)
def test_previews_do_not_disturb_decisions_made_meanwhile(start, clock, name):
    """Requests from many threads while the campaign is played: it answers as if it were alone."""
    worker = start()
    post = http_post(worker.client)
    alone = Script(CONFIGS[name], clock, name="alone").create(post).play(post, 40)
    watched = Script(CONFIGS[name], clock, name="watched").create(post)
    over, statuses = threading.Event(), Counter()

    def look(seed):
        chance = random.Random(seed)
        with httpx.Client(base_url=worker.url, timeout=60) as client:
            for look_number in itertools.count(1):
                statuses[client.post("/campaigns/watched/preview", json=draw_item(chance)).status_code] += 1
                statuses[client.get("/campaigns/watched/series", params={"beliefs": "now"}).status_code] += 1
                regimes = good(client.get("/campaigns/watched/regimes"))["regimes"]
                assert not regimes or sum(regime["share"] for regime in regimes) == pytest.approx(1)
                if over.is_set() and look_number >= 3:  # a busy machine may play faster than it looks
                    return

    with ThreadPoolExecutor(4) as pool:
        looking = [pool.submit(look, seed) for seed in range(4)]
        try:
            watched.play(post, 40)
        finally:
            over.set()
        for one in looking:
            one.result()
    assert statuses.keys() == {200}
    assert statuses[200] >= 4 * 3 * 2
    assert watched.answers == alone.answers
    with worker.service.store.reading() as tx:
        assert verify_campaign(tx, "watched") == []


# --- over HTTP ------------------------------------------------------------------------------------------------------


def play_campaign(client):
    script = Script(CONFIGS["given"], Clock(), name=f"previewed-{next(NUMBERS)}").create(http_post(client))
    return script.play(http_post(client), 48)


@pytest.fixture
def own(shared):
    """A campaign for a test that changes it."""
    return play_campaign(shared)


@pytest.fixture(scope="module")
def campaign(shared):
    """A campaign for all tests that only read it."""
    return play_campaign(shared)


def check_regimes(answer):
    """Estimates are linear in the belief, so mixing those of the regimes gives the estimate of the decision."""
    for score, *certain in zip(answer["scores"], *(each["scores"] for each in answer["regimes"]), strict=True):
        mixed = sum(belief * one["estimate"] for belief, one in zip(answer["belief"], certain, strict=True))
        assert score["estimate"] == pytest.approx(mixed, rel=1e-9, abs=1e-9)
    for regime in answer["regimes"]:
        assert regime["action"] == max(regime["scores"], key=lambda one: one["score"])["action"]


def test_preview_over_http(shared, own):
    name, item = own.name, {"context": {"season": "summer", "spend": 20, "tenure": 1.5}}
    before = good(shared.get(f"/campaigns/{name}"))
    answer = shaped(Preview, shared.post(f"/campaigns/{name}/preview", json=item))
    assert good(shared.get(f"/campaigns/{name}")) == before
    assert (answer["campaign"], answer["round"]) == (name, before["round"] + 1)
    assert answer["belief_before"] == before["belief"]
    assert (answer["paused"], answer["archived"], answer["estimation_left_out"]) == (False, False, False)
    good(shared.patch(f"/campaigns/{name}", json={"paused": True, "regime_labels": ["calm", "storm"]}))
    paused = good(shared.post(f"/campaigns/{name}/preview", json=item))
    assert paused["paused"]
    assert [(each["regime"], each["label"]) for each in paused["regimes"]] == [(1, "calm"), (2, "storm")]
    check_regimes(paused)
    assert {key: paused[key] for key in SAME} == {key: answer[key] for key in SAME}
    good(shared.post(f"/campaigns/{name}/archive"))
    assert good(shared.post(f"/campaigns/{name}/preview", json=item))["archived"]
    good(shared.post(f"/campaigns/{name}/unarchive"))
    good(shared.patch(f"/campaigns/{name}", json={"paused": False}))
    decided = good(shared.post("/decide", json={"campaign": name, **item}))
    assert {key: decided[key] for key in SAME} == {key: answer[key] for key in SAME}


def test_a_wrong_request_is_refused_as_by_decide(shared, campaign):
    context = {"season": "summer", "spend": 20, "tenure": 1.5}
    for change in (
        {"context": context | {"season": "monsoon", "spend": 2**70, "mood": 1}},
        {"context": {"season": "summer", "spend": 20}},
        {"excluded_actions": ["fax"]},
        {"excluded_actions": ["none", "mail", "call"]},
        {"subject": ""},
        {"at": "2126-01-01T00:00:00Z"},
    ):
        body = {"context": context} | change
        error = error_of(shared.post(f"/campaigns/{campaign.name}/preview", json=body), 422)
        decided = error_of(shared.post("/decide", json={"campaign": campaign.name, **body}), 422)
        assert error["fields"] == decided["fields"] != []
    for wrong in ({"decision_id": "x"}, {"at": "yesterday"}, {"at": "2026-01-01T00:00:00"}, {"at": 1_790_000_000}):
        error = error_of(shared.post(f"/campaigns/{campaign.name}/preview", json={"context": context} | wrong), 422)
        assert [one["field"] for one in error["fields"]] == [*wrong]
    error_of(shared.post("/campaigns/nobody/preview", json={"context": context}), 404)
    error_of(shared.post("/campaigns/nobody/explain", json={"decision_id": "x"}), 404)


# --- explanations ---------------------------------------------------------------------------------------------------


def test_explain_over_http(shared, campaign):
    name = campaign.name
    for made in campaign.decisions[::9]:
        body = {"decision_id": made["decision_id"]}
        answer = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json=body))
        stored = good(shared.get(f"/campaigns/{name}/decisions/{made['decision_id']}"))
        assert {key: answer[key] for key in stored} == stored
        assert answer["regimes_missing"] is None
        check_regimes(answer)
    error_of(shared.post(f"/campaigns/{name}/explain", json={"decision_id": "never made"}), 404)


def explain(worker, name, decision_id):
    """What the route answers, without HTTP."""
    with worker.store.reading() as tx:
        row = find_campaign(tx, name)
        decision = load_decision(tx, row, decision_id, row.clock)
        return explain_decision(tx, row, worker.campaigns, decision)


@on_kinds(
    ("sqlite", "default", True),
    ("sqlite", "waiting", False),
    ("sqlite", "clock", False),
    ("sqlite", "given", False),
    ("postgresql", "smoothed", True),
)
def test_the_model_of_every_decision_is_rebuilt(direct, clock, monkeypatch, name, large):
    """Across snapshots, jobs, changes of the configuration, and added and retired actions. No row changes."""
    if large:
        monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    monkeypatch.setattr(service.engine.recovery, "SNAPSHOT_ROUNDS", 20)
    worker, states = direct(), {}
    script = Script(CONFIGS[name], clock).create(worker.post)
    changes = {
        30: partial(patch_config, patch={"bonus": {"scale": 1.7}}),
        50: partial(add_config_action, action="visit"),
        65: partial(retire_config_action, action="mail"),
    }
    while script.round < 80:
        for at in [at for at in changes if at <= script.round]:
            assert worker.process(Change(name, changes.pop(at))) == [None]
        script.step(worker.post)
        entry = get_entry(worker, name)
        states[entry.state.round] = entry.position
        if script.round % 3 == 0:
            worker.finish_all()
    before = read_tables(worker)
    for made in script.decisions[::4]:
        regimes, missing = explain(worker, name, made["decision_id"])
        assert missing is None
        start = states.get(made["round"])
        if start is not None:  # known for the last decision of each request
            (stored,) = [row for row in worker.rows(decisions) if row["round"] == made["round"]]
            request = Request(*map(json.loads, (stored["context"], stored["excluded_actions"] or "[]")))
            state = start.state._replace(round=made["round"] - 1)
            expected = start.policy.score_under(state, np.eye(state.belief.size), request)
            for each, scores in zip(regimes, expected, strict=True):
                found = [(s.action, s.estimate, s.bonus) for s in each["scores"]]
                assert found == [(s.action, s.estimate, s.bonus) for s in scores]
    assert read_tables(worker) == before


def test_after_an_erasure_only_what_is_stored_is_explained(shared, own):
    name = own.name
    by_id = {made["decision_id"]: made for made in own.decisions}
    people = good(shared.post("/subjects/export", json={"subject": "customer 3"}))
    gone = next(one["decisions"] for one in people["campaigns"] if one["campaign"] == name)
    assert gone
    good(shared.post("/subjects/erase", json={"subject": "customer 3"}))
    error_of(shared.post(f"/campaigns/{name}/explain", json={"decision_id": gone[0]["decision_id"]}), 410)
    left = next(key for key in by_id if key not in {one["decision_id"] for one in gone})
    answer = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json={"decision_id": left}))
    assert answer["regimes"] is None
    assert "erased" in answer["regimes_missing"]
    assert answer["scores"] == by_id[left]["scores"]
    item = {"decision_id": "after", "context": {"season": "summer", "spend": 20, "tenure": 1.5}}
    good(shared.post("/decide", json={"campaign": name, **item}))
    assert good(shared.post(f"/campaigns/{name}/explain", json={"decision_id": "after"}))["regimes"]


def test_an_imported_decision_has_no_model(shared):
    name = f"imported-{next(NUMBERS)}"
    good(shared.post("/campaigns", json=PLAIN | {"name": name}), 201)
    row = {"context": {"season": "summer", "spend": 20, "tenure": 1.5}, "action": "mail", "decision_id": "old"}
    good(shared.post(f"/campaigns/{name}/import", json={"import_id": "history", "rows": [row]}))
    answer = shaped(Explanation, shared.post(f"/campaigns/{name}/explain", json={"decision_id": "old"}))
    assert (answer["mode"], answer["regimes"]) == ("imported", None)
    assert "imported" in answer["regimes_missing"]


def test_scores_that_the_log_does_not_reproduce(direct, clock):
    """No counterfactual is better than one of another model."""
    worker = direct()
    script = Script(CONFIGS["given"], clock).create(worker.post).play(worker.post, 30)
    made = script.decisions[-1]
    bad = '{"belief":[0.5,0.5],"scores":[{"action":"none","estimate":1.0,"bonus":1.0,"score":2.0}]}'
    worker.execute(sa.update(decisions).where(decisions.c.round == made["round"]).values(explanation=bad))
    regimes, missing = explain(worker, "given", made["decision_id"])
    assert regimes is None
    assert "verify" in missing
