"""Regime alerts: one per change, in the round when it had lasted long enough, in batches or single requests."""

import json
import random
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.changes import patch_config
from service.engine.alerts import count_regimes, find_regime_changes
from service.engine.operations import Change, RollBack
from service.engine.preparation import prepare_rollback
from service.engine.unit import Unit
from service.storage.tables import events, outbox
from tests.service.answers import error_of, good
from tests.service.playing import CONFIGS, SEASONS, Script, on_sqlite, one_by_one, operation

ALERTS = {"alerts": {"rounds": 3}}
CAMPAIGN = CONFIGS["given"] | {"name": "spring", "alerts": {"rounds": 5}}


def apply_rule(likeliest, round, rounds, told):
    """Apply the rule literally after a round: the regime announced, and (from, to, round, since_round) of a change."""
    last = likeliest[max(0, round - rounds) : round]
    if round < rounds or len(set(last)) > 1 or last[0] == told:
        return told, None
    since = round
    while since > 1 and likeliest[since - 2] == last[0]:
        since -= 1
    return last[0], None if told is None else (told, last[0], round, since)


def list_alerts(worker, name="spring"):
    """Return the stored alerts of a campaign, without their numbers: failed steps are events too."""
    number = worker.campaign(name).campaign_id
    found = [row for row in worker.rows(events) if row["campaign_id"] == number and row["kind"] == "regime_change"]
    return [{"round": row["round"], "at": row["created_at"], **json.loads(row["body"])} for row in found]


def items(seasons, first=1):
    """Build requests whose contexts have these seasons."""
    return [
        {"decision_id": f"d{first + i}", "context": {"season": SEASONS[season], "spend": 3, "tenure": 1}}
        for i, season in enumerate(seasons)
    ]


def batch(seasons, first=1, name="spring"):
    return {"campaign": name, "items": items(seasons, first)}


# --- the rule ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_the_rule_equals_brute_force(seed):
    """For any beliefs, streak and parts, with and without a regime announced before."""
    chance = np.random.default_rng(seed)
    regimes, rounds, length = int(chance.integers(2, 5)), int(chance.integers(1, 7)), int(chance.integers(1, 160))
    stays = chance.random(length) < chance.choice([0.3, 0.8, 0.97])
    path = chance.integers(regimes, size=length)
    for t in range(1, length):
        path[t] = path[t - 1] if stays[t] else path[t]
    beliefs = chance.random((length, regimes))
    beliefs[np.arange(length), path] += 1.0
    beliefs /= beliefs.sum(axis=1, keepdims=True)
    told = first_told = None if seed % 3 else int(chance.integers(regimes))
    expected = []
    for t in range(1, length + 1):
        told, change = apply_rule(path.tolist(), t, rounds, told)
        expected += [change] if change else []
    found, told_last, decided = [], first_told, 0
    while decided < length:
        stop = min(length, decided + int(chance.choice([1, 1, 2, 5, 40])))
        changes, told_last = find_regime_changes(beliefs[:stop], decided, rounds, told_last)
        found += [(c.before, c.after, c.round, c.since_round) for c in changes]
        assert [c.belief for c in changes] == [beliefs[c.round - 1].tolist() for c in changes]
        decided = stop
    assert (found, told_last) == (expected, told)


def test_a_tie_goes_to_the_first_regime():
    """As everywhere, in a batch or alone."""
    beliefs = np.array([[0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.5, 0.5], [0.5, 0.5]])
    assert find_regime_changes(beliefs, 0, 2, None) == ([], 0)
    assert find_regime_changes(beliefs, 4, 2, 1)[1] == 0


# --- in a campaign ----------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(("name", "rounds"), [("default", 140), ("spectral", 90), ("smoothed", 90)])
def test_alerts_equal_brute_force_for_any_requests(direct, clock, name, rounds):
    """In batches, one by one, and with restarts and two workers; re-estimations rewrite beliefs on the way.

    The reference looks at all beliefs of record after every single decision.
    """
    first = direct()
    told, regimes, expected, forgotten = None, 0, [], []

    def watched(path, body):
        nonlocal told, regimes
        answer = first.post(path, body)
        if path == "/decide":
            number = first.campaign("alone").campaign_id
            state = first.campaigns.cache._entries[number].state
            if regimes != count_regimes(state):
                forgotten.extend([] if told is None else [told])
                told, regimes = None, count_regimes(state)
            if regimes > 1:
                beliefs = state.history.beliefs[: state.round, :regimes]
                told, change = apply_rule(beliefs.argmax(axis=1).tolist(), state.round, 3, told)
                expected.extend([change] if change else [])
            assert first.campaign("alone").regime == told
        return answer

    Script(CONFIGS[name] | ALERTS, clock, name="alone").create(first.post).play(one_by_one(watched), rounds)
    Script(CONFIGS[name] | ALERTS, clock, name="batched").create(first.post).play(first.post, rounds)
    parts = Script(CONFIGS[name] | ALERTS, clock, name="parts").create(first.post)
    while parts.round < rounds:
        worker = direct()
        parts.play(worker.post, parts.round + 7)
        worker.store.close()
        parts.step(first.post)  # which has an older state cached
    alone = list_alerts(first, "alone")
    assert [(a["from"] - 1, a["to"] - 1, a["round"], a["since_round"]) for a in alone] == expected
    assert len(expected) >= 2
    assert len(forgotten) == (name == "default")  # in the end it does without regimes: there is none to tell of
    assert list_alerts(first, "batched") == alone
    assert list_alerts(first, "parts") == alone
    for campaign in ("alone", "batched", "parts"):
        assert first.campaign(campaign).regime == told
        assert first.differences(campaign) == []


@on_sqlite
def test_a_failed_request_announces_nothing(direct):
    """R18: its event and message are undone, and so is the regime announced last."""
    worker = direct()
    worker.post("/campaigns", CAMPAIGN | {"alerts": {"rounds": 5, "webhook": "https://hooks.example/"}})
    worker.post("/decide/batch", batch([0] * 10))
    with worker.store.writing() as tx:
        row = tx.lock_campaigns(["spring"])["spring"]
        unit = Unit(tx, row, worker.campaigns.cache.load_entry(tx, row), "me", row.clock)
        asked = operation("/decide/batch", batch([3] * 10, 11))
        with suppress(ArithmeticError), unit.attempt():
            unit.decide(asked.items, True)
            assert (len(unit.rows.events), len(unit.rows.messages)) == (1, 1)
            raise ArithmeticError
        assert not any(unit.rows.tables)
        assert not unit.known
        unit.decide(operation("/decide/batch", batch([0], 30)).items, True)
        unit.write(tx)
    assert worker.campaign("spring").regime == 0
    bad = batch([3] * 10, 12)
    bad["items"][-1]["context"]["season"] = "never"
    outcomes = worker.process(operation("/decide/batch", batch([3] * 2, 12)), operation("/decide/batch", bad))
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True]
    assert list_alerts(worker) == worker.rows(outbox) == []
    worker.post("/decide/batch", batch([3] * 10, 14))
    assert len(list_alerts(worker)) == len(worker.rows(outbox)) == 1


@on_sqlite
def test_a_new_estimate_starts_over(direct, clock):
    """Regimes are numbered anew: here after a rollback to before the first estimate."""
    worker = direct()
    script = Script(CONFIGS["smoothed"] | ALERTS, clock, name="spring").create(worker.post).play(worker.post, 90)
    before = worker.campaign("spring")
    assert before.regime is not None
    past = prepare_rollback(worker.campaigns, "spring", 1)  # before the first estimate
    assert isinstance(past, RollBack)
    assert past.past.state.hmm is None
    assert worker.process(past) == [None]
    assert worker.campaign("spring").regime is None
    told = list_alerts(worker)
    script.play(worker.post, 93)
    assert worker.campaign("spring").regime is None
    script.play(worker.post, 150)
    assert worker.campaign("spring").regime is not None
    assert list_alerts(worker)[: len(told)] == told
    assert worker.differences("spring") == []


@on_sqlite
def test_a_new_length_holds_from_the_next_round_on(direct):
    """A PATCH of `alerts.rounds` announces nothing about earlier rounds."""
    worker = direct()
    worker.post("/campaigns", CAMPAIGN | {"alerts": {"rounds": 30}})
    worker.post("/decide/batch", batch([0] * 40 + [3] * 12))
    assert list_alerts(worker) == []
    worker.process(Change("spring", partial(patch_config, patch={"alerts": {"rounds": 6}})))
    assert list_alerts(worker) == []
    worker.post("/decide/batch", batch([3], 53))
    (alert,) = list_alerts(worker)
    assert (alert["round"], alert["from"], alert["to"]) == (53, 1, 2)
    assert 40 < alert["since_round"] < 45
    assert worker.differences("spring") == []


@on_sqlite
def test_one_regime_has_no_alerts(direct, clock):
    worker = direct()
    Script(CONFIGS["one-regime"] | {"alerts": {"rounds": 1}}, clock, name="spring").create(worker.post).play(
        worker.post, 40
    )
    assert list_alerts(worker) == []
    assert worker.campaign("spring").regime is None


# --- in the API -------------------------------------------------------------------------------------------------------


def test_the_list_of_alerts(http):
    """Newest first, a page at a time, with the labels in force now."""
    good(http.post("/campaigns", json=CAMPAIGN | {"name": "listed"}), 201)
    seasons = random.Random(3).choices([0, 1], k=10) + [3] * 10 + [0] * 10 + [2] * 10
    made = good(http.post("/decide/batch", json=batch(seasons, name="listed")))["decisions"]
    listed = good(http.get("/campaigns/listed/alerts"))
    newest = listed["alerts"][0]
    assert newest.keys() == {"number", "round", "since_round", "from", "to", "belief", "created_at", "delivery"}
    assert [(a["number"], a["from"]["regime"], a["to"]["regime"]) for a in listed["alerts"]] == [
        (3, 1, 2), (2, 2, 1), (1, 1, 2),
    ]  # fmt: skip
    assert newest["belief"] == made[newest["round"] - 1]["belief"]
    assert newest["created_at"] == made[0]["decided_at"]
    assert newest["since_round"] == newest["round"] - 4
    assert newest["delivery"] is None
    assert listed["next_cursor"] is None
    good(http.patch("/campaigns/listed", json={"regime_labels": ["calm", "storm"]}))
    page = good(http.get("/campaigns/listed/alerts", params={"limit": 2}))
    assert page["alerts"][0]["from"] == {"regime": 1, "label": "calm"}
    assert page["alerts"][0]["to"] == {"regime": 2, "label": "storm"}
    rest = good(http.get("/campaigns/listed/alerts", params={"limit": 2, "cursor": page["next_cursor"]}))
    assert [a["number"] for a in page["alerts"] + rest["alerts"]] == [3, 2, 1]
    assert rest["next_cursor"] is None
    error_of(http.get("/campaigns/nobody/alerts"), 404)
    error_of(http.get("/campaigns/listed/alerts", params={"limit": 0}), 422)
