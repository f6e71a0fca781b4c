"""Erasure and access (R22): nothing personal is left, and the model is as if the person had never been there."""

import json
import logging
from pathlib import Path

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

import service.engine.boundaries
from policy import CampaignConfig, PastRound, StagedPolicy
from policy.changes import add_config_action, patch_config
from policy.hmm import MISSING
from service.base.waits import Wait
from service.engine.operations import Change, ReadState, Reduce
from service.engine.preparation import prepare_erasure, prepare_rollback
from service.storage.campaigns import find_campaign
from service.storage.reading import find_decision
from service.storage.tables import config_revisions, decisions, jobs, models, rewards, snapshots
from tests.service.answers import allowed_by_field, error_of, good
from tests.service.playing import CONFIGS, Script, http_post, on_sqlite, operation

ROUNDS = 95
WHO = "customer 3"  # one of the eight that scripts decide for


def erase(worker, campaign, who=WHO):
    (count,) = worker.process(prepare_erasure(worker.campaigns, campaign, who))
    return count


def state_of(worker, campaign):
    ((_, state),) = worker.process(ReadState(campaign))
    return state


def follow_without(worker, config, who):
    """Follow the rows one by one, without a subject's contexts and rewards; return the state and the erased rounds."""
    policy = StagedPolicy(CampaignConfig.model_validate(config))
    state, rewarded = policy.initial_state(), worker.rows(rewards)
    rewarded.sort(key=lambda row: row["arrival"])
    gone = {row["round"] for row in worker.rows(decisions) if row["subject"] == who}
    for row in worker.rows(decisions):
        context = None if row["round"] in gone else json.loads(row["context"])
        at = None if row["at"] is None else row["at"] / 1e6
        state, _ = policy.follow(state, policy.prepare_past([PastRound(context, row["action"], at, row["decided_at"])]))
        for reward in rewarded:
            if reward["after_round"] == row["round"] and reward["round"] not in gone:
                state = policy.reward(state, reward["round"], reward["reward"], reward["received_at"])
            elif reward["after_round"] == row["round"]:
                state = policy.take_erased_reward(state, reward["round"])
    return state, gone


def assert_same_model(found, expected):
    for name, value in expected.statistics._asdict().items():
        np.testing.assert_array_equal(getattr(found.statistics, name), value, err_msg=name)
    np.testing.assert_array_equal(found.belief, expected.belief)
    np.testing.assert_array_equal(found.history.beliefs[: found.round], expected.history.beliefs[: found.round])
    assert (found.hmm is None) == (expected.hmm is None)
    for one, other in zip(found.hmm or (), expected.hmm or (), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("database_url", "kind"),
    [*(("sqlite", kind) for kind in CONFIGS), ("postgresql", "waiting")],
    indirect=["database_url"],
)
def test_the_model_is_as_if_the_rewards_had_never_been(direct, clock, kind):
    worker = direct()
    script = Script(CONFIGS[kind], clock).create(worker.post).play(worker.post, ROUNDS)
    expected, gone = follow_without(worker, script.config, WHO)
    before = state_of(worker, script.name)
    assert erase(worker, script.name) == len(gone) > 0
    found = state_of(worker, script.name)
    assert_same_model(found, expected)
    assert found.model_version == before.model_version + 1
    assert set(np.flatnonzero(found.history.contexts.symbols[: found.round] == MISSING) + 1) == gone
    assert has_nothing_to_erase(worker, script.name)
    assert worker.differences(script.name) == []
    # A restart, another worker and the campaign itself go on alike; what is erased gets no default reward either.
    other = direct()
    assert_same_model(state_of(other, script.name), expected)
    script.play(other.post, ROUNDS + 30)
    script.play(worker.post, ROUNDS + 60)
    for one in (worker, other, direct()):
        assert one.differences(script.name) == []
    later = {row["round"]: row for row in worker.rows(rewards)}
    assert all(later[round]["source"] == "erased" for round in gone if round in later)


def has_nothing_to_erase(worker, campaign):
    return prepare_erasure(worker.campaigns, campaign, WHO) is None


def test_an_erasure_while_others_decide(direct, clock):
    """Decisions for the same person during the long fold are erased too."""
    worker, other = direct(), direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, ROUNDS)
    prepared = prepare_erasure(worker.campaigns, script.name, WHO)
    script.play(other.post, ROUNDS + 30)
    newest = {"campaign": script.name, "decision_id": "late", "subject": WHO, "context": script_context()}
    # In one transaction with a decision for the same person, before and after it.
    first, count, second = other.process(
        operation("/decide", newest), prepared, operation("/decide", newest | {"decision_id": "later"})
    )
    rows = worker.rows(decisions)
    assert count == sum(row["erased"] for row in rows) > 0
    assert [row["erased"] for row in rows if row["decision_id"] in ("late", "later")] == [True, False]
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    assert other.differences(script.name) == []
    assert_same_model(state_of(worker, script.name), state_of(other, script.name))


def script_context():
    return {"season": "spring", "spend": 20, "tenure": 1.5}


@on_sqlite
@pytest.mark.parametrize(("factor", "rounds"), [(1.5, 20), (2.0, 13)])
def test_erasing_the_data_of_the_first_estimate(direct, clock, factor, rounds):
    """Versions keep their numbers although that estimate is gone, and another one comes soon (R8)."""
    worker = direct()
    own = {"stage_length": 4, "warm_start_rounds": 6, "beliefs": {"every": {"factor": factor}}}
    worker.post("/campaigns", CONFIGS["default"] | own | {"name": "few"})

    def decide(number):
        body = {"campaign": "few", "decision_id": f"d{number}"}
        subject = {"subject": WHO} if number <= 3 else {}
        worker.post("/decide", body | {"context": script_context()} | subject)
        if number <= 4 or number > 8:
            worker.post("/reward", body | {"reward": number % 3})

    for number in range(1, rounds + 1):
        decide(number)
    assert state_of(worker, "few").selection is not None
    assert erase(worker, "few") == 3
    for number in range(rounds + 1, rounds + 10):
        decide(number)
    assert state_of(worker, "few").selection is not None
    assert worker.differences("few") == []
    worker.process(prepare_rollback(worker.campaigns, "few", 4))
    decide(rounds + 10)
    assert direct().differences("few") == []


@on_sqlite
def test_changes_rollbacks_and_erasures_in_turns(direct, clock):
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, 50)
    assert erase(worker, script.name, "customer 1")
    script.play(worker.post, 80)
    worker.process(Change(script.name, lambda config: patch_config(config, {"control": {"share": 0.3}})))
    version = state_of(worker, script.name).model_version
    script.play(worker.post, 100)
    worker.process(Change(script.name, lambda config: add_config_action(config, "letter")))
    worker.process(prepare_rollback(worker.campaigns, script.name, version))
    script.play(worker.post, 120)
    assert erase(worker, script.name)
    script.play(worker.post, 150)
    worker.process(prepare_rollback(worker.campaigns, script.name, version))
    script.play(worker.post, 165)
    assert worker.differences(script.name) == []
    assert direct().differences(script.name) == []
    assert_same_model(state_of(direct(), script.name), state_of(worker, script.name))
    assert [i for i, row in enumerate(worker.rows(config_revisions)) if row["erased"] is not None] == [1, 5]


@on_sqlite
def test_what_was_prepared_before_an_erasure_or_a_rollback_is_out_of_date(direct, clock):
    """An erasure is prepared again, since it may contain what is gone; a rollback is refused."""
    worker, other = direct(), "customer 5"
    script = Script(CONFIGS["spectral"], clock).create(worker.post).play(worker.post, ROUNDS)

    def prepare():
        version = worker.campaign(script.name).model_version - 1
        erasures = [prepare_erasure(worker.campaigns, script.name, who) for who in (WHO, other)]
        return *erasures, prepare_rollback(worker.campaigns, script.name, version)

    first, _, back = prepare()
    assert worker.process(back, first) == [None, None]
    script.play(worker.post, ROUNDS + 10)
    first, second, back = prepare()
    count, again, refused = worker.process(first, second, back)
    assert (count, again) == (len(first.rounds), None)
    assert "erased just now" in refused.message
    assert erase(worker, script.name, other) > 0
    assert worker.differences(script.name) == []


@on_sqlite
def test_an_erasure_includes_rounds_that_retention_has_just_reduced(direct, clock):
    worker = direct()
    script = Script(CONFIGS["spectral"] | {"retention_days": 1}, clock).create(worker.post).play(worker.post, 60)
    script._seconds += 0.9 * 86_400
    script.play(worker.post, 120)
    made = prepare_erasure(worker.campaigns, script.name, WHO)
    clock.advance(0.5 * 86_400)
    worker.process(Reduce(script.name))
    assert worker.process(made) == [len(made.rounds)]
    assert [row["round"] for row in worker.rows(decisions) if row["erased"]] == made.rounds
    assert worker.differences(script.name) == []


@on_sqlite
def test_an_erasure_after_a_publication_in_the_same_transaction(direct, clock, monkeypatch):
    """The fold of the erasure must see the publication."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker = direct()
    script = Script(CONFIGS["smoothed"], clock).create(worker.post).play(worker.post, 45)
    worker.finish_all()
    made = prepare_erasure(worker.campaigns, script.name, WHO)
    items = [{"decision_id": f"x{i}", "context": script_context()} for i in range(8)]
    _, count = worker.process(operation("/decide/batch", {"campaign": script.name, "items": items}), made)
    assert count == len(made.rounds)
    assert worker.rows(jobs)[0]["published_round"] is not None
    assert worker.differences(script.name) == []


@on_sqlite
def test_a_deleted_campaign_does_not_stop_the_erasure_in_others(start, clock, monkeypatch):
    worker = start()
    client = worker.client
    for name in ("a", "b"):
        good(client.post("/campaigns", json=CONFIGS["one-regime"] | {"name": name}), 201)
        request = {"campaign": name, "decision_id": "x", "subject": WHO, "context": script_context()}
        good(client.post("/decide", json=request))

    def deleting(campaigns, name, subject):
        if name == "b":
            good(httpx.post(f"{worker.url}/campaigns/b/archive"))
            assert httpx.delete(f"{worker.url}/campaigns/b", params={"confirm": "b"}).status_code == 204
        return prepare_erasure(campaigns, name, subject)

    monkeypatch.setattr("service.engine.preparation.prepare_erasure", deleting)
    erased = good(client.post("/subjects/erase", json={"subject": WHO}))
    assert erased["campaigns"] == [{"campaign": "a", "erased_decisions": 1}]


@on_sqlite
@pytest.mark.parametrize("moment", ["waiting", "finished", "published"])
def test_jobs_that_used_erased_data(direct, clock, monkeypatch, moment):
    """A running re-estimation is dropped; a published one is repeated with the remaining data."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker = direct()
    script = Script(CONFIGS["default"] | {"beliefs": {"every": 20}}, clock).create(worker.post)
    while not worker.work:
        script.step(worker.post)
    who = next(row["subject"] for row in worker.rows(decisions) if row["subject"])
    if moment != "waiting":
        worker.finish_all()
    if moment == "published":
        script.play(worker.post, script.round + 10)
    assert erase(worker, script.name, who)
    worker.finish_all()
    script.play(worker.post, script.round + 15)
    worker.finish_all()
    script.play(worker.post, script.round + 15)
    first = worker.rows(jobs)[0]
    assert first["status"] == ("published" if moment == "published" else "nothing")
    assert worker.differences(script.name) == []
    assert_same_model(state_of(direct(), script.name), state_of(worker, script.name))


def test_nothing_personal_is_left(new_database, start, clock):
    """Neither in the answers nor in the tables, nor in SQLite's files."""
    worker = start()
    client, database = worker.client, Path(worker.service.store.engine.url.database or "")
    script = Script(CONFIGS["default"], clock).create(http_post(client)).play(http_post(client), ROUNDS)
    person = "Zaphod Beeblebrox"
    request = {"campaign": script.name, "decision_id": "his", "subject": person, "context": script_context()}
    request["context"] |= {"spend": 42.4242}
    good(client.post("/decide", json=request))
    good(client.post("/reward", json={"campaign": script.name, "decision_id": "his", "reward": 0.987654}))
    kept = good(client.post("/subjects/export", json={"subject": person}))
    (decision,) = kept["campaigns"][0]["decisions"]
    assert (decision["context"], decision["reward"]["reward"]) == (request["context"], 0.987654)
    erased = [{"campaign": script.name, "erased_decisions": 1}]
    answer = good(client.post("/subjects/erase", json={"subject": person}))
    assert answer == {"erased_decisions": 1, "campaigns": erased}
    assert good(client.post("/subjects/erase", json={"subject": person})) == {"erased_decisions": 0, "campaigns": []}
    assert good(client.post("/subjects/export", json={"subject": person}))["campaigns"] == []
    assert "erased" in error_of(client.post("/decide", json=request), 410)["message"]
    error_of(client.post("/reward", json={"campaign": script.name, "decision_id": "his", "reward": 1}), 410)
    error_of(client.get(f"/campaigns/{script.name}/decisions/his"), 410)
    newest = good(client.get(f"/campaigns/{script.name}/revisions"))["revisions"][0]
    assert (newest["erased_decisions"], newest["changed"]) == (1, {})
    assert good(client.get(f"/campaigns/{script.name}/stages"))["stages"][0]["kind"] == "erasure"
    with worker.service.store.reading() as tx:
        text = " ".join(
            str(dict(row))
            for table in (decisions, rewards, models, config_revisions, jobs, snapshots)
            for row in tx.connection.execute(sa.select(table)).mappings()
        )
        row = find_campaign(tx, script.name)
        left = find_decision(tx, row.campaign_id, "his", Wait.build(None, None, 0))
        assert (left.subject, left.context, left.reward) == (None, None, None)
        assert tx.get_known_decisions([(row.campaign_id, "his")])[0].request_hash is None
    for trace in (person, "42.4242", "0.987654"):
        assert trace not in text
    if database.suffix == ".db":
        journal = database.with_name(f"{database.name}-wal")
        content = database.read_bytes() + journal.read_bytes()
        assert script.name.encode() in content
        assert person.encode() not in content
        assert b"42.4242" not in content


@on_sqlite
def test_the_log_says_what_was_erased_but_not_who(start, clock, caplog):
    client = start().client
    script = Script(CONFIGS["one-regime"], clock).create(http_post(client)).play(http_post(client), 80)
    with caplog.at_level(logging.INFO, logger="undercurrent"):
        good(client.post("/subjects/erase", json={"subject": WHO}))
        good(client.post("/subjects/export", json={"subject": "customer 4"}))
    told = {record.getMessage(): vars(record) for record in caplog.records if record.name.endswith("admin")}
    assert told["erase"]["campaign"] == script.name
    assert told["erase"]["decisions"] > 0
    assert set(told) == {"erase", "export subject"}
    assert not any("customer" in str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("route", ["erase", "export"])
def test_the_subject_must_be_valid(http, route):
    for body in ({}, {"subject": ""}, {"subject": 7}, {"subject": "x" * 201}, {"subject": "a\x00"}):
        assert "subject" in allowed_by_field(http.post(f"/subjects/{route}", json=body))
