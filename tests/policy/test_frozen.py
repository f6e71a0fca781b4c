"""A frozen model expects what the policy itself would, had it learned nothing more."""

import numpy as np
import pytest

from policy import Request, StagedPolicy, hmm
from policy.frozen import FrozenModel, choose_greedily

NEVER = 2**62


def trained(policy, contexts, seed=0, **request):
    """The state after some rounds with rewards."""
    generator, state = np.random.default_rng(seed), policy.initial_state()
    for i, context in enumerate(contexts):
        state, decision = policy.decide(state, context, **{name: value(i) for name, value in request.items()})
        better = (decision.action == "call") == (context["risk"] == "low")
        state = policy.reward(state, decision.round, 5.0 + better + generator.normal())
    return state


@pytest.mark.parametrize("kind", ["given", "joint", "one regime", "clock", "before any round"])
def test_it_expects_what_the_policy_would(kind, small, small_contexts, given):
    changes = {
        "given": {"regimes": 2, "beliefs": given},
        "joint": {"regimes": 2},
        "one regime": {"regimes": 1, "signals": []},
        "clock": {"regimes": 2, "beliefs": given, "clock": {"period_seconds": 1.5}},
        "before any round": {"regimes": 2, "beliefs": given},
    }[kind]
    policy = StagedPolicy(small(**changes))
    contexts, rounds = small_contexts(260), 0 if kind == "before any round" else 200
    times = np.random.default_rng(1).choice([-0.7, 0.0, 0.4, 2.0, 90.0], 260).cumsum()
    clocked = {"at": lambda i: float(times[i])} if kind == "clock" else {}
    state = trained(policy, contexts[:rounds], **clocked)
    # As the policy decides if no update and no re-estimation ever comes.
    frozen = state._replace(next_update=NEVER, next_estimation=0)
    requests = [Request(context, (), None, float(at)) for context, at in zip(contexts, times, strict=True)]
    _, decisions = policy.decide_batch(frozen, requests[rounds:])
    expected = np.array([decision.estimates for decision in decisions]) - state.statistics.units[0]
    model = FrozenModel(policy, state)
    parts = np.array_split(np.arange(rounds, 260), 3)
    values = np.vstack([model.follow([contexts[i] for i in part], [float(times[i]) for i in part]) for part in parts])
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9)
    assert np.ptp(expected) > 0.1


def test_where_a_context_is_missing_the_filter_only_predicts(small, small_contexts, given):
    policy = StagedPolicy(small(regimes=2, beliefs=given))
    contexts = small_contexts(53)
    state = trained(policy, contexts[:50])
    values = FrozenModel(policy, state).follow([contexts[50], None, contexts[52]], [None] * 3)
    assert np.isnan(values[1]).all()
    encoded = policy.features.encode(contexts[50:])
    symbols = [encoded.symbols[0], hmm.MISSING, encoded.symbols[2]]
    belief = hmm.filter_history(state.hmm._replace(initial=state.belief), symbols, [1, 1, 1]).beliefs[-1]
    expected = [policy.features.dense(belief, action, encoded, 2) @ state.statistics.theta for action in range(3)]
    np.testing.assert_allclose(values[2], expected, rtol=1e-9)


def test_greedy_keeps_to_what_could_be_chosen():
    values = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [2.0, 2.0, 1.0], [np.nan] * 3, [1.0, 2.0, np.nan]])
    eligible = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1], [0, 0, 1]], bool)
    assert choose_greedily(values, eligible).tolist() == [[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0, 0], [0, 0, 0]]
