"""Wide maps: LAPACK by blocks against plain matrices; the same bits whatever the way there (R15)."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from policy import CampaignConfig, Request, StagedPolicy, costs, decode, encode, kernels, linucb

LEVELS = [str(level) for level in range(8)]


def wide(**changes):
    """12 actions and 3 variables of 8 levels: 288 columns with one regime, 384 with two."""
    fields = {
        "name": "wide",
        "actions": [f"a{i}" for i in range(12)],
        "variables": [*({"name": name, "levels": LEVELS} for name in "xyz"), {"name": "n", "range": [0, 1]}],
        "signals": ["x"],
        "regimes": 2,
        "warm_start_rounds": 20,
        "seed": 3,
    }
    return CampaignConfig(**{**fields, **changes})


def requests(count):
    generator = np.random.default_rng(count)
    levels, numbers = generator.integers(0, 8, (count, 3)), generator.random(count)
    rows = zip(levels.tolist(), numbers.tolist(), strict=True)
    return [Request({"x": str(x), "y": str(y), "z": str(z), "n": n}) for (x, y, z), n in rows]


def earn(decision):
    return float(decision.action in ("a3", "a7")) + 0.1 * (decision.round % 3)


def play_batches(policy, count, size, step=lambda state: state):
    """Decide in batches; every reward of a stage is there when it ends. `step` comes between the batches."""
    state, asked = policy.initial_state(), requests(count)
    for start in range(0, count, size):
        state, decisions = policy.decide_batch(step(state), asked[start : start + size])
        for decision in decisions:
            state = policy.reward(state, decision.round, earn(decision))
    return state


def get_bits(state):
    arrays = (*state.statistics, state.belief, state.history.beliefs[: state.round], *(state.hmm or ()))
    return [array.tobytes() for array in arrays] + [state.history.actions[: state.round].tobytes()]


@pytest.fixture(scope="module")
def played():
    policy = StagedPolicy(wide())
    return policy, play_batches(policy, 150, 10)


FEATURES = {
    "default": None,
    "no common columns": {"per_regime": ["actions", "actions:x", "actions:y", "actions:z"]},
    "some levels": {
        "shared": ["x", "y", {"term": "actions:x", "levels": ["1", "5"]}, "actions:y"],
        "per_regime": ["intercept", "z", "actions:z", "actions:n"],
    },
}


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_blocks_are_the_whole_matrix(features, ridge):
    policy = StagedPolicy(wide(features=features, beliefs={"estimator": "none"}))
    features, generator = policy.features, np.random.default_rng(1)
    assert features.dimension > kernels.NARROW
    contexts = features.encode([request.context for request in requests(500)])
    actions, first = generator.integers(0, 12, 500).astype(np.int16), generator.random(500)
    beliefs, rewards = np.stack([first, 1.0 - first], axis=1), generator.normal(size=500)
    rows = np.arange(500)
    start = linucb.create_statistics(features.dimension, ridge)
    found = linucb.update_statistics(start, features, ridge, contexts, actions, beliefs, rewards, rows)
    design = np.array([features.dense(beliefs[i], actions[i], contexts, i) for i in rows])
    whole = design.T @ design + ridge * np.eye(features.dimension)
    np.testing.assert_allclose(found.gram, whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.inverse, np.linalg.inv(whole + features.plan.null), rtol=1e-8, atol=1e-8 / ridge)
    np.testing.assert_allclose(design @ found.theta, design @ np.linalg.solve(whole, design.T @ rewards), atol=1e-8)
    assert (found.inverse == found.inverse.T).all()
    alone = linucb.solve(found.gram, found.moment, features, ridge)
    np.testing.assert_allclose(alone, found.theta, rtol=1e-9, atol=1e-9)
    # A few more rows by rank-one updates are the same as all at once.
    few = linucb.update_statistics(start, features, ridge, contexts, actions, beliefs, rewards, rows[:480])
    more = linucb.update_statistics(few, features, ridge, contexts, actions, beliefs, rewards, rows[480:])
    assert more.counters.tolist() == [500, 20]
    np.testing.assert_allclose(more.inverse, found.inverse, rtol=1e-7, atol=1e-9 / ridge)


def test_a_badly_scaled_matrix_is_left_to_the_loops():
    """λ = 1e-12: G is singular to LAPACK, and every pivot that rounding makes small is set to λ."""
    policy = StagedPolicy(wide(ridge=1e-12, beliefs={"estimator": "none"}, bonus={"form": "elliptical"}))
    state = play_batches(policy, 40, 10)
    assert np.isfinite(state.statistics.inverse).all()
    assert np.abs(state.statistics.theta).max() < 10.0
    ordinary = StagedPolicy(wide(beliefs={"estimator": "none"}, bonus={"form": "elliptical"}))
    again = state._replace(rebuild=True)
    assert costs.count_update_operations(policy, again) > 5 * costs.count_update_operations(ordinary, again)


def test_one_by_one_play_restart_and_a_thread_give_the_same_bits(played):
    policy, state = played
    assert state.selection is not None
    assert get_bits(play_batches(policy, 150, 1)) == get_bits(state)
    with ThreadPoolExecutor(1) as pool:
        assert get_bits(pool.submit(play_batches, policy, 150, 5).result()) == get_bits(state)
    assert get_bits(play_batches(policy, 150, 10, lambda state: decode(encode(state)))) == get_bits(state)


def test_an_episode_is_the_same_as_its_rounds_one_by_one():
    policy = StagedPolicy(wide(beliefs={"estimator": "none"}, bonus={"form": "elliptical"}, stage_length=7))
    contexts = policy.features.encode([request.context for request in requests(60)])
    table = np.array([[float(a in (3, 7)) + 0.1 * (t % 3) for a in range(12)] for t in range(1, 61)])
    whole = policy.play(policy.initial_state(), contexts, table)
    parts = policy.play(policy.initial_state(), contexts.rows(0, 33), table[:33])
    parts = policy.play(parts, contexts.rows(33, 60), table[33:])
    assert get_bits(whole) == get_bits(parts) == get_bits(play_batches(policy, 60, 1))
    assert whole.model_version == parts.model_version


def test_the_bits_do_not_depend_on_the_threads_of_blas():
    """A policy keeps BLAS to one thread, however many the process began with."""
    script = (
        "import hashlib; from tests.policy.test_blocks import *; policy = StagedPolicy(wide());"
        "print(hashlib.sha256(b''.join(get_bits(play_batches(policy, 80, 10)))).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], env={"OPENBLAS_NUM_THREADS": n}, capture_output=True, check=True
        ).stdout
        for n in ("1", "2")
    }
    assert len(seen) == 1
