"""Costs: known before a step, from counts alone."""

from policy import StagedPolicy, costs


def play(policy, contexts):
    state = policy.initial_state()
    for t, context in enumerate(contexts, start=1):
        state, _ = policy.decide(state, context)
        state = policy.reward(state, t, 1.0)
    return state


def test_rounds_before_a_boundary_are_quick_and_a_large_estimation_is_not(small, small_contexts, monkeypatch):
    policy = StagedPolicy(small(stage_length=10, warm_start_rounds=20))
    state = play(policy, small_contexts(25))
    assert state.next_update == 31
    assert costs.is_quick(policy, state, 5)
    monkeypatch.setattr(policy.estimator, "get_size", lambda state: costs.QUICK_OPERATIONS + 1)
    assert costs.is_quick(policy, state, state.next_estimation - 1 - state.round)
    assert not costs.is_quick(policy, state, state.next_estimation - state.round)


def test_an_update_without_news_costs_nothing(small, small_contexts, given):
    policy = StagedPolicy(small(stage_length=5, beliefs=given))
    state = play(policy, small_contexts(7))
    assert costs.count_update_operations(state) > 0
    assert costs.count_update_operations(policy.update(state)) == 0
