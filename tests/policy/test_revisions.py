"""Rewards that are revised after they were folded: a correction, or one more amount of a sum (R2)."""

import numpy as np
import pytest

from policy import StagedPolicy, decode, encode
from policy.changes import roll_back
from tests.policy.test_changes import policy_of

KINDS = ["one regime", "spectral", "smoothed", "joint"]
CONTEXTS = [{"risk": risk, "income": income} for risk in ("low", "high") for income in (1.0, 20.0, 40.0)]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def decide(policy: StagedPolicy, state, rounds, rng):
    for _ in range(rounds):
        state, _ = policy.decide(state, CONTEXTS[rng.integers(len(CONTEXTS))])
    return state


def live(policy, rounds, rng, known, state=None, share=0.4):
    """Decide, reward, and revise at random; `known` holds the reward of every round."""
    state = policy.initial_state() if state is None else state
    for _ in range(rounds):
        state = decide(policy, state, 1, rng)
        for _ in range(rng.integers(1, 3)):
            old = sorted(known) and rng.random() < share
            t = int(rng.choice(sorted(known)) if old else rng.integers(1, state.round + 1))
            known[t] = float(rng.integers(-3, 8))
            state = policy.reward(state, t, known[t])
    return state


def assert_same_model(one, other):
    for name, expected in other.statistics._asdict().items():
        if name != "counters":
            np.testing.assert_allclose(getattr(one.statistics, name), expected, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_that_of_the_newest_rewards(kind, rng):
    """The differences add up to what a rebuild from the newest reward of every round gives."""
    policy, known = policy_of(kind), {}
    state = policy.update(live(policy, 150, rng, known))
    assert state.history.count_revisions(state.arrived) > 30
    assert state.counted == len(known) == state.history.get_arrivals(0, state.arrived).size
    rows = state.history.get_arrivals(0, state.arrived)
    assert {int(row) + 1: float(state.history.rewards[row]) for row in rows} == known
    if kind == "joint":  # its statistics are recomputed by a re-estimation
        once = state._replace(history=state.history.copy(state.round, 0), arrived=0, folded=0)
        for t, reward in sorted(known.items()):
            once = policy.reward(once, t, reward)
        fitted = policy.estimate(state)
        expected, found = policy.publish(once, fitted), policy.publish(state, fitted)
    else:
        expected, found = policy.update(state._replace(rebuild=True)), state
    assert_same_model(found, expected)


def test_several_arrivals_within_a_stage_are_one(rng):
    policy = policy_of("one regime")
    state = decide(policy, policy.initial_state(), 40, rng)
    once, often = policy.reward(state, 7, 2.0), state
    for reward in (1.0, -5.0, 2.0):
        often = policy.reward(often, 7, reward)
    once, often = policy.update(once), policy.update(often)
    np.testing.assert_array_equal(once.statistics.theta, often.statistics.theta)
    assert (once.counted, often.counted, often.folded) == (1, 1, 3)
    often = policy.update(policy.reward(policy.reward(often, 7, 9.0), 7, 2.0))  # and back again
    np.testing.assert_array_equal(once.statistics.moment, often.statistics.moment)


@pytest.mark.parametrize("kind", KINDS)
def test_older_states_keep_what_they_knew(kind, rng):
    policy, known, states = policy_of(kind), {}, []
    state = policy.initial_state()
    for _ in range(12):
        state = live(policy, 9, rng, known, state)
        states.append((state, encode(state), policy.update(state).statistics.theta, policy.estimate(state)))
    for old, encoded, theta, fitted in states:
        assert encode(old) == encoded
        assert encode(decode(encoded)) == encoded
        np.testing.assert_array_equal(policy.update(old).statistics.theta, theta)
        np.testing.assert_array_equal(policy.update(decode(encoded)).statistics.theta, theta)
        again = policy.estimate(old)
        assert type(again) is type(fitted)
    state, encoded = states[3][:2]
    early = {t: reward for t, reward in known.items() if t <= state.round}
    branches = [live(policy, 5, np.random.default_rng(3), dict(early), old) for old in (state, decode(encoded))]
    assert encode(branches[0]) == encode(branches[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_takes_revisions_back(kind, rng):
    policy, known = policy_of(kind), {}
    past = policy.update(live(policy, 90, rng, known))
    then = dict(known)
    state = live(policy, 30, rng, known, past)
    state = policy.reward(policy.update(state), 1, 5.0)  # the last one waits
    back = roll_back(policy, state, policy, past)
    kept = back.history.get_arrivals(0, back.folded)
    assert {int(row) + 1 for row in kept} == set(then)
    counted = {int(row) + 1: float(back.history.get_rewards(back.folded)[row]) for row in kept}
    assert counted == then
    updated = policy.update(back)
    assert updated.counted == len(then | {1: 5.0})
    assert updated.history.get_rewards(updated.arrived)[0] == 5.0
    if kind != "joint":
        assert_same_model(updated, policy.update(back._replace(rebuild=True)))
    revised = policy.update(policy.reward(updated, min(set(then) - {1}), 100.0))
    assert revised.history.get_rewards(revised.arrived)[min(set(then) - {1}) - 1] == 100.0
    assert encode(decode(encode(revised))) == encode(revised)


def test_an_erased_round_stays_out_however_often_its_reward_came(rng):
    policy = policy_of("one regime")
    state = decide(policy, policy.initial_state(), 30, rng)
    without = policy.update(policy.reward(state, 2, 1.0))
    state = policy.reward(policy.take_erased_reward(state, 5), 2, 1.0)
    state = policy.update(policy.take_erased_reward(state, 5))
    state = policy.update(policy.take_erased_reward(state, 5))
    assert (state.arrived, state.counted) == (4, 1)
    np.testing.assert_array_equal(state.statistics.theta, without.statistics.theta)
    np.testing.assert_array_equal(policy.update(decode(encode(state))).statistics.gram, without.statistics.gram)
