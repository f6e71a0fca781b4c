"""Retention: old requests are reduced to what the statistics need, and nothing that was learned changes."""

import json

import pytest
import sqlalchemy as sa

import service.engine.background
from policy import CampaignConfig, encode
from policy.features import get_feature_map
from service.engine.operations import Reduce
from service.engine.preparation import prepare_import
from service.engine.requests import ImportRow
from service.engine.retention import ROWS, list_campaigns_to_reduce
from service.storage.tables import config_revisions, decisions, events
from tests.service.answers import error_of, good
from tests.service.playing import CONFIGS, Script, eventually, on_sqlite
from tests.service.test_subjects import erase, state_of

DAY = 86_400
CONTEXT = {"season": "spring", "spend": 7, "tenure": 1}


@pytest.mark.parametrize(
    ("database_url", "kind"),
    [("sqlite", "default"), ("sqlite", "clock"), ("postgresql", "waiting")],
    indirect=["database_url"],
)
def test_what_was_learned_stays_to_the_bit(direct, clock, kind):
    worker = direct()
    config = CONFIGS[kind] | {"retention_days": 2}
    script = Script(config, clock).create(worker.post).play(worker.post, 60)
    old = script.round
    script._seconds += 1.5 * DAY
    script.play(worker.post, 100)
    before, rows = encode(state_of(worker, script.name)), worker.rows(decisions)
    clock.advance(1 * DAY)
    with worker.store.reading() as tx:
        assert list_campaigns_to_reduce(tx, clock()) == [script.name]
    assert worker.process(Reduce(script.name)) == [False]
    with worker.store.reading() as tx:
        assert list_campaigns_to_reduce(tx, clock()) == []
    for was, now in zip(rows, worker.rows(decisions), strict=True):
        if was["round"] > old:
            assert now == was
            continue
        reduced = {name for name in now if now[name] != was[name]}
        assert reduced <= {"request_hash", "subject", "context"}
        assert (now["request_hash"], now["subject"]) == (None, None)
        spent = json.loads(was["context"])["spend"]
        level = 20 if spent <= 20 else 50 if spent <= 50 else 51
        assert json.loads(now["context"]) == json.loads(was["context"]) | {"spend": level}
    assert worker.campaign(script.name).reduced == old
    fresh = direct()
    assert encode(state_of(fresh, script.name)) == before == encode(state_of(worker, script.name))
    assert fresh.differences(script.name) == []
    script.play(fresh.post, 130)
    assert erase(fresh, script.name)
    assert worker.differences(script.name) == []


@on_sqlite
def test_imported_rows_are_reduced_too(direct, clock):
    worker = direct()
    worker.post("/campaigns", CONFIGS["one-regime"] | {"retention_days": 1})
    context = {"season": "spring", "spend": 36.71, "tenure": 1.0}
    rows = [
        ImportRow(context=context, action="mail", reward=1.0),
        ImportRow(context=context, action="mail", subject="anna"),
        ImportRow(context=None, action="mail", subject="bert"),
    ]
    worker.process(prepare_import(worker.campaigns, "one-regime", "i", rows))
    clock.advance(3 * DAY)
    worker.process(Reduce("one-regime"))
    left = [(row["context"] and json.loads(row["context"])["spend"], row["subject"]) for row in worker.rows(decisions)]
    assert left == [(50, None), (50, None), (None, None)]
    assert "hash" not in json.loads(worker.rows(events)[0]["body"])
    assert worker.differences("one-regime") == []


@on_sqlite
def test_a_reduced_request_cannot_be_repeated(direct, clock):
    worker = direct()
    config = CONFIGS["one-regime"] | {"retention_days": 0.5}
    worker.post("/campaigns", config)
    body = {"campaign": config["name"], "decision_id": "x", "context": CONTEXT}
    worker.post("/decide", body)
    clock.advance(DAY)
    worker.process(Reduce(config["name"]))
    with pytest.raises(Exception, match="retention_days"):
        worker.post("/decide", body)
    assert worker.post("/reward", {"campaign": config["name"], "decision_id": "x", "reward": 1})["round"] == 1


def test_a_long_log_is_reduced_in_parts(direct, clock):
    worker = direct()
    config = CONFIGS["one-regime"] | {"retention_days": 1}
    worker.post("/campaigns", config)
    for start in range(0, ROWS + 500, 500):
        items = [{"decision_id": f"{start + i}", "context": CONTEXT} for i in range(500)]
        worker.post("/decide/batch", {"campaign": config["name"], "items": items})
    clock.advance(2 * DAY)
    assert [worker.process(Reduce(config["name"])) for _ in range(3)] == [[True], [False], [False]]
    assert worker.differences(config["name"]) == []


def test_rounds_with_several_rewards_keep_them(start, direct, clock, monkeypatch):
    """What sums, corrections and credit taught stays, and more of them may come; only the persons are forgotten."""
    monkeypatch.setattr(service.engine.background, "RETENTION_SECONDS", 0.05)
    client = start().client
    rules = {"wait_seconds": DAY, "default": 0, "correct_seconds": 20 * DAY}
    config = CONFIGS["one-regime"] | {"retention_days": 2, "rewards": rules}
    good(client.post("/campaigns", json=config), 201)
    name, path = config["name"], f"/campaigns/{config['name']}"

    def ask(route, **body):
        return good(client.post(route, json={"campaign": name, **body}))

    for i in range(40):
        ask("/decide", decision_id=f"{i}", context=CONTEXT, subject=f"person {i}")
        for sale in range(i % 4):
            ask("/reward", decision_id=f"{i}", reward=1 + sale, mode="add", reward_id=f"sale {sale}")
        if i % 5 == 0:
            ask("/reward/subject", subject=f"person {i}", reward=5, reward_id=f"call {i}")
        if i % 7 == 0:
            ask("/reward/correct", decision_id=f"{i}", reward=2, reward_id="cancelled")
    before, model = [good(client.get(f"{path}/decisions/{i}")) for i in range(40)], good(client.get(f"{path}/model"))
    assert sorted({len(each["reward_history"]) for each in before}) == [0, 1, 2, 3, 4, 5]
    clock.advance(3 * DAY)
    eventually(lambda: good(client.get(f"{path}/decisions/39"))["context"]["spend"] != CONTEXT["spend"], "reduced")
    for was, i in zip(before, range(40), strict=True):
        now = good(client.get(f"{path}/decisions/{i}"))
        if was["reward"] is None:
            assert now["reward"]["source"] == "default"  # the wait is over
            was["reward"] = now["reward"]
        assert now | {"context": CONTEXT} == was
    assert good(client.get(f"{path}/model")) == model
    assert direct().differences(name) == []
    ask("/reward/correct", decision_id="3", reward=1, reward_id="cancelled later")
    assert ask("/reward", decision_id="3", reward=1, mode="add", reward_id="sale 0")["reward"] == 1.0  # a retry
    forgotten = {"campaign": name, "subject": "person 3", "reward": 1, "reward_id": "x"}
    error_of(client.post("/reward/subject", json=forgotten), 404)
    for i in range(40, 60):
        ask("/decide", decision_id=f"{i}", context=CONTEXT)
    assert good(client.get(f"{path}/model"))["model_version"] > model["model_version"]
    assert direct().differences(name) == []


@on_sqlite
def test_the_background_reduces_requests(start, direct, clock, monkeypatch):
    """Even if an unreadable campaign comes first."""
    monkeypatch.setattr(service.engine.background, "RETENTION_SECONDS", 0.05)
    client = start().client
    config = CONFIGS["one-regime"]
    good(client.post("/campaigns", json=config), 201)
    broken = config | {"name": "a-broken-one", "retention_days": 1}
    good(client.post("/campaigns", json=broken), 201)
    good(client.post("/decide", json={"campaign": broken["name"], "context": CONTEXT}))
    damaged = sa.update(config_revisions).where(config_revisions.c.config.contains(broken["name"]))
    direct().execute(damaged.values(config='{"retention_days":1}'))
    body = {"campaign": config["name"], "decision_id": "x", "context": CONTEXT}
    good(client.post("/decide", json=body))
    clock.advance(2 * DAY)
    good(client.patch(f"/campaigns/{config['name']}", json={"retention_days": 1}))
    path = f"/campaigns/{config['name']}/decisions/x"
    eventually(lambda: good(client.get(path))["context"]["spend"] == 20, "reduced")
    error_of(client.post("/decide", json=body), 409)


@pytest.mark.parametrize("cuts", [[0], [-3.5, 0, 2], [1e100], [10, 36, 54]])
def test_a_reduced_context_is_encoded_alike(cuts):
    config = CampaignConfig(name="x", actions=["a", "b"], variables=[{"name": "v", "cuts": cuts}], regimes=1)
    features = get_feature_map(config)
    for value in (-1e308, *cuts, *(cut + 0.1 for cut in cuts), 1e308):
        left = features.reduce({"v": value})
        assert features.encode_one(left)[0].tolist() == features.encode_one({"v": value})[0].tolist()
        assert features.reduce(left) == left
