"""The golden trace: the policy one by one, by batch and through the codec against the reference."""

import itertools
import json
import math
import random

import numpy as np
import pytest

from policy import CampaignConfig, StagedPolicy, codec
from policy.state import Request
from tests.policy import make_golden, reference


@pytest.fixture(scope="module")
def trace():
    return json.loads(make_golden.PATH.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def played(trace):
    """The policy's decisions and the state after each, asked one by one."""
    return play(StagedPolicy(CampaignConfig(**trace["config"])), trace["rounds"])


def play(policy, rows, between=lambda state: state):
    state, decisions, states = policy.initial_state(), [], []
    for row in rows:
        for round_, value in row["rewards"]:
            state = policy.reward(state, round_, value)
        state = between(state)
        state, decision = policy.decide(state, row["context"], excluded_actions=row["excluded"], subject=row["subject"])
        decisions.append(decision)
        states.append(state)
    return decisions, states


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)


def check_decisions(decisions, answers, actions):
    assert len(decisions) == len(answers)
    for t, (decision, expected) in enumerate(zip(decisions, answers, strict=True), start=1):
        exact = ("stage", "model_version", "mode", "action")
        assert {"round": decision.round} | {k: getattr(decision, k) for k in exact} == {
            "round": t,
            **{k: expected[k] for k in exact},
        }
        close(decision.belief, expected["belief"])
        close(decision.propensity, expected["propensity"])
        eligible = [a for a, estimate in enumerate(expected["estimates"]) if estimate is not None]
        assert [score.action for score in decision.scores] == [actions[a] for a in eligible]
        close([score.estimate for score in decision.scores], [expected["estimates"][a] for a in eligible])
        close([score.bonus for score in decision.scores], [expected["bonuses"][a] for a in eligible])


def check_models(states, updates, estimations):
    """G and θ̂ after every stage update, the HMM after every re-estimation."""
    for update in updates:
        statistics = states[update["round"] - 1].statistics
        G, theta = statistics.gram, statistics.theta
        assert statistics.counters[0] == update["folded"]
        close(
            [np.trace(G), G.sum(), np.linalg.norm(G), np.linalg.norm(theta)],
            [update["trace"], update["sum"], update["norm"], update["theta_norm"]],
        )
        if "G_upper" in update:
            close(G[np.triu_indices(len(G))], update["G_upper"])
        if "G" in update:
            close(G, update["G"])
        if "theta" in update:
            close(theta, update["theta"])
    previous = None
    for estimation in estimations:
        hmm = states[estimation["round"] - 1].hmm
        if estimation["order"] is None:
            assert hmm is previous
        else:
            close(hmm.transition, estimation["transition"])
            close(hmm.emission, estimation["emission"])
        previous = hmm


def test_trace_holds_what_it_is_for(trace):
    config, rows, estimations = trace["config"], trace["rounds"], trace["estimations"]
    answers = [row["expected"] for row in rows]
    assert {answer["mode"] for answer in answers} == {"warm_start", "control", "optimistic"}
    assert {answer["action"] for answer in answers} == set(config["actions"])
    assert any(row["excluded"] for row in rows)
    by_subject = {(row["subject"], answer["mode"]) for row, answer in zip(rows, answers, strict=True)}
    assert any(subject is not None and mode == "control" for subject, mode in by_subject)
    assert any(row["context"]["spend"] in (20.0, 50.0) for row in rows)

    arrivals = [(t, s) for t, row in enumerate(rows, start=1) for s, _ in row["rewards"]]
    assert len(arrivals) < 0.9 * len(rows)
    assert sum(t - s > 3 * config["stage_length"] for t, s in arrivals) > 20
    assert sum(later < earlier for (_, earlier), (_, later) in itertools.pairwise(arrivals)) > 20
    # Rewards come so late at first that the warm start outlasts its rounds (R8).
    last_warm = max(t for t, answer in enumerate(answers, start=1) if answer["mode"] == "warm_start")
    assert last_warm > config["warm_start_rounds"]

    assert any((e["round"] - 1) % config["stage_length"] == 0 for e in estimations[1:])
    assert any(e["order"] is not None and e["rotations"] > 1 for e in estimations)


def test_trace_forces_relabellings(trace):
    _, played_by_reference = reference.replay(trace["config"], trace["rounds"])
    published = [e for e in played_by_reference.estimations if e["order"] is not None]
    assert all(e["runner_up"] - e["largest_distance"] > 0.1 for e in published[1:])
    orders = [e["order"] for e in published]
    assert orders[0] == [0, 1, 2]
    assert sum(order != [0, 1, 2] for order in orders) >= 3
    assert [1, 2, 0] in orders  # not its own inverse: a permutation applied the wrong way round shows
    assert [2, 0, 1] in orders


def test_committed_file_is_what_the_reference_produces(trace):
    def same(actual, expected):
        if isinstance(expected, dict):
            assert actual.keys() == expected.keys()
            for key in expected:
                same(actual[key], expected[key])
        elif isinstance(expected, list):
            assert len(actual) == len(expected)
            for one, other in zip(actual, expected, strict=True):
                same(one, other)
        elif isinstance(expected, float):
            assert math.isclose(actual, expected, rel_tol=1e-12, abs_tol=1e-12)
        else:
            assert actual == expected

    same(make_golden.document(), trace)


def test_one_by_one(trace, played):
    decisions, states = played
    check_decisions(decisions, [row["expected"] for row in trace["rounds"]], trace["config"]["actions"])
    check_models(states, trace["updates"], trace["estimations"])


def batches(rows, stage_length, longest):
    """(start, stop) of consecutive batches such that no stage update inside one misses a reward.

    A reward counts from the next update on, so it may be handed over later than it came, but before that.
    """
    start = 0
    while start < len(rows):
        stop, waiting = start + 1, False
        limit = longest()
        while stop < len(rows) and stop - start < limit:
            waiting = waiting or bool(rows[stop]["rewards"])
            if waiting and stop % stage_length == 0:
                break
            stop += 1
        yield start, stop
        start = stop


def between_arrivals(rows):
    edges = [0, *(r for r in range(1, len(rows)) if rows[r]["rewards"]), len(rows)]
    return list(itertools.pairwise(edges))


def partitions(rows, stage_length):
    chance = random.Random(5)
    return {
        "between arrivals": between_arrivals(rows),
        "longest": list(batches(rows, stage_length, lambda: len(rows))),
        "fives": list(batches(rows, stage_length, lambda: 5)),
        "random": list(batches(rows, stage_length, lambda: chance.randint(1, 30))),
    }


@pytest.mark.parametrize("name", ["between arrivals", "longest", "fives", "random"])
def test_by_batch(trace, played, name):
    rows, stage_length = trace["rounds"], trace["config"]["stage_length"]
    cuts = partitions(rows, stage_length)[name]
    due = {e["round"] for e in trace["estimations"]}
    inner = [set(range(start + 2, stop + 1)) for start, stop in cuts]  # rounds that are not a batch's first
    if name in ("between arrivals", "longest"):
        ends = [sum(t % stage_length == 1 for t in rounds) for rounds in inner]
        assert max(ends) >= 3
        assert any(rounds & due for rounds in inner)

    policy = StagedPolicy(CampaignConfig(**trace["config"]))
    state, decisions, handed = policy.initial_state(), [], 0
    for start, stop in cuts:
        for row in rows[handed : start + 1]:
            for round_, value in row["rewards"]:
                state = policy.reward(state, round_, value)
        handed = start + 1
        requests = [Request(row["context"], row["excluded"], row["subject"]) for row in rows[start:stop]]
        state, answers = policy.decide_batch(state, requests)
        decisions += answers
    check_decisions(decisions, [row["expected"] for row in rows], trace["config"]["actions"])
    check_models([state] * len(rows), trace["updates"][-1:], trace["estimations"][-1:])
    assert decisions == played[0]  # to the last bit (R15)


def test_codec_in_the_middle(trace, played):
    policy = StagedPolicy(CampaignConfig(**trace["config"]))
    decisions, states = play(policy, trace["rounds"], between=lambda state: codec.decode(codec.encode(state)))
    assert decisions == played[0]
    assert codec.encode(states[-1]) == codec.encode(played[1][-1])


@pytest.mark.parametrize("statistics", ["refiltered", "smoothed"])
def test_recomputed_statistics(trace, statistics):
    config = trace["config"] | {"beliefs": trace["config"]["beliefs"] | {"statistics": statistics}}
    answers, expected = reference.replay(config, trace["rounds"])
    assert answers != [row["expected"] for row in trace["rounds"]]
    decisions, states = play(StagedPolicy(CampaignConfig(**config)), trace["rounds"])
    check_decisions(decisions, answers, config["actions"])
    check_models(states, expected.updates, expected.estimations)
