"""Rounds that are followed, not decided: with their contexts they leave the very state that deciding left; R22."""

import numpy as np
import pytest

from policy import CampaignConfig, ContextError, PastRound, StagedPolicy, decode, encode
from policy.hmm import MISSING, filter_history

VARIABLES = [
    {"name": "risk", "levels": ["low", "middle", "high"]},
    {"name": "revenue", "cuts": [10, 36]},
    {"name": "age", "range": [18, 98]},
]
BASE = {"name": "past", "actions": ["none", "email", "call"], "variables": VARIABLES, "signals": ["risk"], "seed": 5}
SCHEDULE = {"start_round": 35, "every": 25}
KINDS = {
    "joint": {"warm_start_rounds": 20},
    "as_decided": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "as_decided"} | SCHEDULE},
    "spectral": {"regimes": 2, "beliefs": {"estimator": "spectral", "statistics": "refiltered"} | SCHEDULE},
    "smoothed": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "smoothed"} | SCHEDULE},
    "one": {"regimes": 1},
    "clock": {"clock": {"period_seconds": 10}, "warm_start_rounds": 20},
}


def scenario(kind, rounds=160):
    """A campaign's policy, its contexts and times, and the rewards that come, some rounds late."""
    policy = StagedPolicy(CampaignConfig(**BASE, stage_length=15, **KINDS[kind]))
    rng = np.random.default_rng(3)
    regime = (np.arange(rounds) // 40) % 2
    risk = np.where(rng.random(rounds) < 0.8, regime * 2, 1)
    contexts = [
        {"risk": VARIABLES[0]["levels"][r], "revenue": float(rng.integers(0, 60)), "age": int(rng.integers(18, 99))}
        for r in risk
    ]
    times = [float(t * 4) for t in range(rounds)] if kind == "clock" else [None] * rounds
    return policy, contexts, times, rng.normal(regime, 0.5), rng.integers(0, 20, rounds)


def run(kind, step, *, erased=()):
    """Play the scenario: `step(policy, state, t, context, at)` moves it a round; erased rounds earn nothing."""
    policy, contexts, times, rewards, delays = scenario(kind)
    state, due = policy.initial_state(), {}
    for t, (context, at) in enumerate(zip(contexts, times, strict=True), 1):
        state = step(policy, state, t, context, at)
        due.setdefault(t + int(delays[t - 1]), []).append(t)
        for past in due.pop(t, ()):
            value = float(rewards[past - 1]) + (state.history.actions[past - 1] == 1)
            state = policy.take_erased_reward(state, past) if past in erased else policy.reward(state, past, value)
    return policy, state


def decided(policy, state, t, context, at):
    return policy.decide(state, context, at=at)[0]


def same_model(one, other):
    for a, b in zip(one.statistics, other.statistics, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.belief, other.belief)
    for a, b in zip(one.hmm or (), other.hmm or (), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_following_the_actions_leaves_the_state_of_the_decisions(kind):
    _, expected = run(kind, decided)

    def followed(policy, state, t, context, at):
        past = PastRound(context, policy.config.actions[expected.history.actions[t - 1]], at)
        return policy.follow(state, policy.prepare_past([past]))[0]

    _, found = run(kind, followed)
    assert encode(found) == encode(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_many_rounds_at_once_are_one_after_the_other(kind):
    policy, contexts, times, *_ = scenario(kind)
    pasts = [
        PastRound(None if i % 7 == 3 else c, policy.config.actions[i % 3], at)
        for i, (c, at) in enumerate(zip(contexts, times, strict=True))
    ]
    prepared, single = policy.prepare_past(pasts), policy.initial_state()
    whole, beliefs = policy.follow(policy.initial_state(), prepared)
    for i in range(len(pasts)):
        single, one = policy.follow(single, prepared.part(i, i + 1))
        np.testing.assert_array_equal(one[0], beliefs[i])
    assert encode(single) == encode(whole)
    assert (whole.history.contexts.symbols[: whole.round] == MISSING).sum() == len(range(3, 160, 7))


@pytest.mark.parametrize("kind", KINDS)
def test_an_erased_reward_is_as_if_it_had_never_come(kind):
    """The same rounds with the rewards of some erased, or never sent: the same model to the last bit (R22)."""
    gone = set(range(5, 160, 6))

    def followed(policy, state, t, context, at):
        past = PastRound(None if t in gone else context, policy.config.actions[t % 3], at)
        return policy.follow(state, policy.prepare_past([past]))[0]

    _, found = run(kind, followed, erased=gone)
    policy, contexts, times, rewards, delays = scenario(kind)
    state = policy.initial_state()
    for t, (context, at) in enumerate(zip(contexts, times, strict=True), 1):
        state = followed(policy, state, t, context, at)
        for past in range(1, t + 1):
            if past + delays[past - 1] == t and past not in gone:
                state = policy.reward(state, past, float(rewards[past - 1]) + (past % 3 == 1))
    same_model(found, state)
    assert (found.counted, found.model_version) == (state.counted, state.model_version)
    assert found.arrived > state.arrived
    restored = decode(encode(found))
    same_model(restored, found)
    np.testing.assert_array_equal(restored.history.excluded, found.history.excluded)


def test_a_missing_context_only_predicts():
    given = {"transition": [[0.9, 0.1], [0.3, 0.7]], "emission": [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], "initial": [1, 0]}
    config = BASE | {"regimes": 2, "beliefs": {"estimator": "given", "statistics": "as_decided", "parameters": given}}
    policy = StagedPolicy(CampaignConfig(**config))
    context = {"risk": "high", "revenue": 1, "age": 20}
    pasts = [PastRound(context, "none"), PastRound(None, "none"), PastRound(context, "none")]
    state, beliefs = policy.follow(policy.initial_state(), policy.prepare_past(pasts))
    np.testing.assert_array_equal(beliefs, filter_history(state.hmm, [2, MISSING, 2]).beliefs)
    np.testing.assert_allclose(beliefs[1], beliefs[0] @ np.array(given["transition"]))


def test_every_mistake_is_named():
    policy = StagedPolicy(CampaignConfig(**BASE, clock={"period_seconds": 10}))
    good = {"risk": "high", "revenue": 1, "age": 20}
    with pytest.raises(ContextError) as error:
        policy.prepare_past([PastRound(good, "none", 1.0), PastRound(good | {"age": 7}, "fax", None)])
    assert [problem.field for problem in error.value.problems] == [
        "rounds[1].action",
        "rounds[1].context.age",
        "rounds[1].at",
    ]
