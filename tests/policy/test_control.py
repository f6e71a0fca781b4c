"""Control (R12, R13): its share of the decisions, both kinds, and the propensities that contain it."""

import math

import numpy as np
import pytest

from policy import StagedPolicy


@pytest.mark.parametrize("kind", ["uniform", "baseline"])
def test_control_has_its_share_of_decisions_and_of_every_propensity(small, small_contexts, given, play, kind):
    share, contexts = 0.3, small_contexts(1000)
    policy = StagedPolicy(small(beliefs=given, control={"share": share, "kind": kind}))
    state, decisions = play(policy, contexts, np.random.default_rng(1).normal(size=(1000, 3)))
    later = [decision for decision in decisions if decision.mode != "warm_start"]
    controlled = [decision for decision in later if decision.mode == "control"]
    assert abs(len(controlled) - share * len(later)) < 5 * math.sqrt(share * (1 - share) * len(later))
    assert {decision.action for decision in controlled} == (
        {"none"} if kind == "baseline" else {"none", "call", "mail"}
    )
    for decision in later:
        best = max(decision.scores, key=lambda score: score.score).action
        assert decision.mode == "control" or (decision.mode, decision.action) == ("optimistic", best)
        chance = 1 / 3 if kind == "uniform" else float(decision.action == "none")
        assert decision.propensity == pytest.approx(share * chance + (1 - share) * (decision.action == best))
    rounds = [state, policy.decide(state, contexts[1])[0]]
    modes = [{policy.preview(one, contexts[0], subject=str(i)).mode for one in rounds} for i in range(20)]
    assert all(modes.count({mode}) > 0 for mode in ("control", "optimistic"))
    assert {len(seen) for seen in modes} == {1}  # a subject stays in its group
