"""Costs: known before a step, from counts alone."""

import pytest

from policy import Request, StagedPolicy, costs, kernels, linucb
from tests.policy.test_blocks import requests, wide


def play(policy, asked):
    state, decisions = policy.decide_batch(policy.initial_state(), asked)
    for decision in decisions:
        state = policy.reward(state, decision.round, 1.0)
    return state


def test_rounds_before_a_boundary_are_quick_and_those_behind_a_large_estimation_are_not():
    policy = StagedPolicy(wide(beliefs={"start_round": 200}, regimes="auto"))
    state = play(policy, requests(190))
    assert (state.next_update, state.next_estimation) == (191, 201)
    state = policy.update(state)
    assert costs.is_quick(policy, state, 10)
    assert not costs.is_quick(policy, state, 11)


def test_many_rounds_are_not_quick(small):
    policy = StagedPolicy(small(stage_length=100_000, beliefs={"estimator": "none"}))
    assert costs.is_quick(policy, policy.initial_state(), 10)
    assert not costs.is_quick(policy, policy.initial_state(), 50_000)


def test_an_update_costs_what_it_has_to_fold(small, small_contexts, given):
    policy = StagedPolicy(small(stage_length=5, beliefs=given))
    state = play(policy, [Request(context) for context in small_contexts(7)])
    first = costs.count_update_operations(policy, state)
    assert first > 0
    updated = policy.update(state)
    assert costs.count_update_operations(policy, updated) == 0
    assert costs.count_update_operations(policy, updated._replace(rebuild=True)) >= first


@pytest.fixture(scope="module")
def features():
    """A wide map."""
    return StagedPolicy(wide(regimes=1)).maps[1]


def count_fold(features, rows, since=0, *, largest=1.0, anew=False):
    """The cost of folding rewards into statistics that were factored `since` rewards ago and have this entry of G."""
    statistics = linucb.create_statistics(features.dimension, 1.0)
    statistics.counters[kernels.SINCE_FACTORED], statistics.gram[0, 0] = since, largest
    return linucb.count_operations(statistics, features, 1.0, rows, anew=anew)


def test_a_few_rewards_cost_a_pass_over_the_inverse_each(features):
    size = features.dimension
    once, one_pass = size**2 / 80, size**2 / 1000
    for rows in (10, 20, kernels.count_most_steps(size)):
        assert count_fold(features, rows) == pytest.approx(once + rows * one_pass, rel=0.25)
    assert count_fold(features, 1, kernels.FACTOR_EVERY - 2) == count_fold(features, 1)
    assert count_fold(features, 0) == 0


def test_more_rewards_cost_what_factoring_costs(features):
    size, rows = features.dimension, kernels.count_most_steps(features.dimension) + 1
    by_blocks = size**2 / 80 + features.blocks.count_operations(for_inverse=True)
    assert count_fold(features, rows) == pytest.approx(by_blocks, rel=0.25)
    assert count_fold(features, 10 * rows) - count_fold(features, rows) < 9 * rows * features.most_active**2
    for never, anew in ((-1, False), (0, True)):
        assert count_fold(features, 0, never, anew=anew) == pytest.approx(by_blocks, rel=0.05, abs=150)
    assert count_fold(features, 1, kernels.FACTOR_EVERY - 1) == pytest.approx(by_blocks, rel=0.05, abs=150)
    assert count_fold(features, rows, largest=1e30) == pytest.approx(size**2 / 80 + size**3 / 500, rel=0.25)  # loops


@pytest.mark.parametrize(
    "beliefs", [{}, {"statistics": "smoothed"}, {"estimator": "spectral", "statistics": "refiltered"}]
)
def test_an_estimation_costs_more_with_more_rounds_and_columns(beliefs):
    sizes = []
    for count in (4, 12):
        config = wide(actions=[f"a{i}" for i in range(count)], beliefs={**beliefs, "start_round": 1000})
        policy = StagedPolicy(config)
        for rounds in (100, 400):
            state = play(policy, requests(rounds))
            rebuilt = costs.count_update_operations(policy, state._replace(rebuild=True))
            sizes.append(policy.estimator.get_size(state) + rebuilt)
    assert sizes[0] < sizes[1] < sizes[3]
    assert sizes[0] < sizes[2] < sizes[3]


def test_what_is_too_early_costs_nothing():
    policy = StagedPolicy(wide())
    assert policy.estimator.get_size(policy.initial_state()) == 0
