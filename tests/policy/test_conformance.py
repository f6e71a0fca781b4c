"""What every campaign must do, whatever its settings: pure previews, states that round-trip, equal batches, seeds."""

import math

import numpy as np
import pytest

from policy import Request, StagedPolicy, decode, encode
from policy.config.beliefs import SCHEDULES
from policy.estimators import ESTIMATORS
from simulator.presets import PRESETS

SPECTRAL = {"estimator": "spectral", "start_round": 40, "every": 15}
EM = {"estimator": "em", "start_round": 25, "every": {"factor": 1.4}}
ONLINE = {"estimator": "online_em", "start_round": 30, "every": 7}
THEORY_GENERAL = {
    "form": "theory_general", "risk": 0.1, "horizon": 500, "c_theta": 1.0, "gamma": 0.5, "c_eta": 0.04,
}  # fmt: skip
THEORY_SIMPLIFIED = {"form": "theory_simplified", "risk": 0.1, "c_theta": 1.0, "v_eta": 0.2}

# Over the small campaign, with estimation early enough that a short run goes through all of it.
CAMPAIGNS = {
    "one regime": {"regimes": 1, "stage_length": 1, "bonus": {"form": "plain", "scale": 0.05}},
    "paper, complex": {"bonus": {"form": "complex", "scale": 5e-4}, "beliefs": SPECTRAL},
    "paper, simplified": {"bonus": {"form": "simplified", "scale": 5e-3}, "beliefs": SPECTRAL, "ridge": 0.1},
    "paper, a tiny ridge": {"bonus": {"form": "complex", "scale": 5e-4}, "beliefs": SPECTRAL, "ridge": 1e-9},
    "given": {"beliefs": {"estimator": "given"}, "control": {"share": 0.2, "kind": "baseline"}},
    "em, smoothed": {"beliefs": {**EM, "statistics": "smoothed"}},
    "em, refiltered": {"beliefs": {**EM, "statistics": "refiltered"}, "propensity_floor": 0.05},
    "em, as decided": {"beliefs": {**EM, "statistics": "as_decided"}, "control": {"share": 0.2}},
    "elliptical": {
        "beliefs": {**EM, "statistics": "smoothed"},
        "bonus": {"form": "elliptical", "scale": 0.6},
        "stage_length": 1,
    },
    "online em": {"beliefs": ONLINE},
    "online em, smoothed": {"beliefs": {**ONLINE, "every": 13, "statistics": "smoothed"}, "control": {"share": 0.2}},
    "none": {"beliefs": {"estimator": "none"}, "stage_length": 13},
    "three regimes": {"beliefs": {**EM, "statistics": "smoothed"}, "regimes": 3, "stage_length": 3},
    "joint": {"beliefs": EM},
    "joint, three regimes": {
        "beliefs": {**EM, "every": 12},
        "regimes": 3,
        "stage_length": 3,
        "control": {"share": 0.2},
    },
    "joint, elliptical": {
        "beliefs": EM,
        "regimes": 2,
        "bonus": {"form": "elliptical", "scale": 0.6},
        "stage_length": 1,
    },
    "theory, general": {"beliefs": {"estimator": "given"}, "bonus": THEORY_GENERAL},
    "theory, simplified": {"beliefs": SPECTRAL, "bonus": THEORY_SIMPLIFIED, "stage_length": 1},
    **{f"preset {name}": fields for name, fields in PRESETS.items()},
}


@pytest.fixture(params=CAMPAIGNS)
def fields(request, given):
    chosen = {"stage_length": 7, **CAMPAIGNS[request.param]}
    beliefs = chosen.get("beliefs", {})
    if beliefs.get("estimator") == "given":
        chosen["beliefs"] = given
    elif "start_round" in beliefs:
        chosen["beliefs"] = {**beliefs, "start_round": min(40, beliefs["start_round"])}
    return chosen


@pytest.fixture
def policy(small, fields):
    return StagedPolicy(small(**fields))


ROUNDS = 80


@pytest.fixture
def rewards():
    return np.random.default_rng(4).normal(size=(ROUNDS, 3))


def test_preview_is_pure_and_says_what_decide_does(policy, small_contexts, rewards):
    state = policy.initial_state()
    for context in small_contexts(ROUNDS):
        before = encode(state)
        expected = policy.preview(state, context)
        assert policy.preview(state, context) == expected
        assert encode(state) == before
        state, decision = policy.decide(state, context)
        assert decision == expected
        state = policy.reward(state, decision.round, rewards[decision.round - 1].max())


def test_state_round_trips_at_every_round(policy, small_contexts, rewards):
    """A restart after any round continues with the very next one, bit-exact."""
    state, restarted = policy.initial_state(), policy.initial_state()
    for t, context in enumerate(small_contexts(ROUNDS)):
        restarted = decode(encode(restarted))
        (state, mine), (restarted, theirs) = policy.decide(state, context), policy.decide(restarted, context)
        assert mine == theirs
        if t % 3:
            state, restarted = (policy.reward(s, t + 1, rewards[t, 0]) for s in (state, restarted))
    assert encode(state) == encode(restarted)


def test_seeds(small, fields, small_contexts, rewards, play):
    """R11: the same seed gives the same decisions and state; another seed gives others."""
    contexts = small_contexts(ROUNDS)
    runs = [play(StagedPolicy(small(**{**fields, "seed": seed})), contexts, rewards) for seed in (7, 7, 8)]
    (state, decisions), (again, same), (_, others) = runs
    assert decisions == same
    assert encode(state) == encode(again)
    assert [d.action for d in decisions] != [d.action for d in others]
    versions = [d.model_version for d in decisions]
    assert [d.stage for d in decisions] == [math.ceil(t / fields["stage_length"]) for t in range(1, ROUNDS + 1)]
    assert versions == sorted(versions)
    assert versions[-1] >= (ROUNDS - 1) // fields["stage_length"]


def test_it_learns(policy, small_contexts, play):
    """With one action far better than the others, its estimates become the best, everywhere."""
    contexts, rewards = small_contexts(200), np.tile([0.0, 0.0, 5.0], (200, 1))
    _, decisions = play(policy, contexts, rewards)
    for decision in decisions[150:]:
        assert max(decision.scores, key=lambda score: score.estimate).action == "mail"


# --- purity: states share their history, yet never change under their owner ----------------------------------


def test_old_states_stay_as_they_were_and_branches_do_not_mix(small, small_contexts):
    """State in, state out: histories are shared between states, yet no branch sees another's rounds or rewards."""
    beliefs = {"estimator": "em", "start_round": 30, "every": 11}
    policy = StagedPolicy(small(beliefs=beliefs, stage_length=4))
    contexts = small_contexts(80)
    trunk, _ = policy.decide_batch(policy.initial_state(), [Request(context) for context in contexts[:25]])
    trunk = policy.reward(trunk, 3, 0.5)
    kept = encode(trunk)

    def branch(state, sign):
        made = []
        for context in contexts[25:70]:
            state, decision = policy.decide(state, context)
            state = policy.reward(state, decision.round, sign * 1.5)
            made.append((encode(state), decision))
        return policy.reward(state, 4, sign), made

    left, first = branch(trunk, 1.0)
    assert encode(trunk) == kept
    left_bytes = encode(left)
    right, second = branch(trunk, -1.0)
    assert encode(left) == left_bytes
    assert encode(trunk) == kept
    again, third = branch(trunk, 1.0)
    assert third == first
    assert encode(again) == left_bytes
    assert encode(right) != left_bytes
    assert [d for _, d in second] != [d for _, d in first]


def test_every_estimator_that_a_campaign_can_name_exists():
    assert set(ESTIMATORS) == {*SCHEDULES, "joint"}
