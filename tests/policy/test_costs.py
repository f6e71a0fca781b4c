"""Costs: known before a step, from counts alone."""

import pytest

from policy import Request, StagedPolicy, costs
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
