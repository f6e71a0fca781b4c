"""The golden trace over real HTTP, one by one and by batches: what the reference answers, through all layers (R15)."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from service.storage.tables import models
from tests.policy import make_golden
from tests.policy.test_golden import check_decisions, close, partitions
from tests.service.playing import http_post


@pytest.fixture(scope="module")
def trace():
    found = json.loads(make_golden.PATH.read_text(encoding="utf-8"))
    found["config"]["beliefs"]["estimation"] = "inline"  # R16
    return found


def item(row, number):
    """What a round of the trace asks."""
    return {
        "decision_id": f"round {number}",
        "context": row["context"],
        "excluded_actions": row["excluded"],
        "subject": row["subject"],
    }


def taken(post, name, rows):
    """Hand over the rewards that arrive before these rounds."""
    rewards = [{"decision_id": f"round {t}", "reward": reward} for row in rows for t, reward in row["rewards"]]
    if rewards:
        results = post("/reward/batch", {"campaign": name, "items": rewards})["results"]
        assert all(result["error"] is None for result in results)


def played(post, trace, name, cuts):
    """The answers, asked in batches with these edges; a batch of one is asked for alone."""
    rows, answers, handed = trace["rounds"], [], 0
    post("/campaigns", trace["config"] | {"name": name})
    for start, stop in cuts:
        taken(post, name, rows[handed : start + 1])
        handed = start + 1
        items = [item(row, start + i + 1) for i, row in enumerate(rows[start:stop])]
        if len(items) == 1:
            answers.append(post("/decide", {"campaign": name, **items[0]}))
        else:
            answers += post("/decide/batch", {"campaign": name, "items": items})["decisions"]
    return answers


def check_answers(trace, answers):
    """Every round as the reference has it: what is discrete exactly, numbers to 1e-9."""
    attributes = [json.loads(json.dumps(answer), object_hook=lambda d: SimpleNamespace(**d)) for answer in answers]
    check_decisions(attributes, [row["expected"] for row in trace["rounds"]], trace["config"]["actions"])
    for answer in attributes:
        assert [score.score for score in answer.scores] == [s.estimate + s.bonus for s in answer.scores]


def check_stored_models(trace, rows):
    """θ̂ of every stage update, by the round before which it ran, and how many rewards it had folded."""
    stored = {row["round"] + 1: row for row in rows if row["kind"] == "update"}
    assert list(stored) == [update["round"] for update in trace["updates"]]
    for update in trace["updates"]:
        theta = np.frombuffer(stored[update["round"]]["theta"], "<f8")
        assert stored[update["round"]]["folded"] == update["folded"]
        close(np.linalg.norm(theta), update["theta_norm"])
        if "theta" in update:
            close(theta, update["theta"])
    published = [e["round"] for e in trace["estimations"] if e["order"] is not None]
    assert [row["round"] + 1 for row in rows if row["kind"] == "estimation"] == published


def check_regimes(trace, answer):
    """The HMM in force, in the campaign's own words, is the reference's last estimate."""
    last = [e for e in trace["estimations"] if e["order"] is not None][-1]
    close([regime["transition"] for regime in answer["regimes"]], last["transition"])
    emission = [[symbol["probability"] for symbol in regime["emission"]] for regime in answer["regimes"]]
    close(emission, last["emission"])
    levels = [tuple(symbol["symbol"].values()) for symbol in answer["regimes"][0]["emission"]]
    assert levels == [(risk, spend) for risk in ("low", "high") for spend in ("1", "2", "3")]  # R9


def test_golden_trace(start, direct, trace):
    """R15: one by one and by batches the same to the last bit, and to 1e-9 what the reference says."""
    client = start().client
    post, rows = http_post(client), trace["rounds"]
    single = played(post, trace, "single", [(t, t + 1) for t in range(len(rows))])
    check_answers(trace, single)
    check_regimes(trace, client.get("/campaigns/single/model").json())
    log = direct()
    check_stored_models(trace, log.rows(models))
    batched = played(post, trace, "batched", partitions(rows, trace["config"]["stage_length"])["longest"])
    assert [answer | {"campaign": "single"} for answer in batched] == single
    assert log.differences("single") == log.differences("batched") == []  # R14
