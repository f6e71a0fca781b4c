"""StagedPolicy: when updates run and what is in them, chance and propensity, refusals."""

import hashlib
import math
from collections import Counter

import numpy as np
import pytest

from policy import ArgumentError, CampaignConfig, ContextError, Request, RewardError, StagedPolicy, encode, hmm, linucb
from policy.encoding import Contexts
from policy.hmm import HmmParameters
from policy.spectral import NotEstimable, align
from tests.policy.reference import uniform


def bare(**changes):
    """No context at all: z has an intercept and one column for each action but the first."""
    fields = {"name": "bare", "actions": ["a", "b"], "variables": [], "seed": 5, "warm_start_rounds": 0}
    fields["beliefs"] = {"statistics": "smoothed"}
    return CampaignConfig(**{**fields, **changes})


def rounds_of(policy, state, contexts):
    decisions = []
    for context in contexts:
        state, decision = policy.decide(state, context)
        decisions.append(decision)
    return state, decisions


def statistics_of(policy, contexts, decisions, beliefs, rewards, rows):
    """G and Σ z r over given rows, folded from nothing in round order."""
    actions = np.array([policy.config.actions.index(d.action) for d in decisions], np.int16)
    start = linucb.create_statistics(policy.features.dimension, policy.config.ridge)
    return linucb.update_statistics(
        start, policy.features, policy.config.ridge, policy.features.encode(contexts), actions,
        np.array(beliefs), np.array(rewards, float), np.array(sorted(rows), np.int64),
    )  # fmt: skip


# --- stages (R1, R2) -----------------------------------------------------------------------------------------


def test_an_update_folds_what_had_arrived_by_its_stages_end(small, small_contexts, given):
    """R1: rewards of round 6 wait until before round 11; G and θ̂ stay put in between."""
    policy = StagedPolicy(small(beliefs=given, stage_length=5))
    contexts = small_contexts(11)
    state, decisions = policy.initial_state(), []
    versions, folded = [], []
    for t, context in enumerate(contexts, start=1):
        state, decision = policy.decide(state, context)
        decisions.append(decision)
        versions.append(decision.model_version)
        folded.append(int(state.statistics.counters[0]))
        state = policy.reward(state, t, float(t))
    assert versions == [0] * 5 + [1] * 5 + [2]
    assert folded == [0] * 5 + [5] * 5 + [10]
    expected = statistics_of(policy, contexts, decisions, [d.belief for d in decisions], range(1, 12), range(10))
    assert (state.statistics.gram == expected.gram).all()
    assert (state.statistics.moment == expected.moment).all()
    np.testing.assert_allclose(state.statistics.theta, expected.theta, rtol=1e-10, atol=1e-12)


# --- re-estimation (R3–R5) -----------------------------------------------------------------------------------


def estimation_rounds(policy, contexts):
    """Rounds at which the schedule moved on, and those at which parameters were published."""
    state, due, published = policy.initial_state(), [], []
    for t, context in enumerate(contexts, start=1):
        before = state
        state, _ = policy.decide(state, context)
        if state.next_estimation != before.next_estimation:
            due.append(t)
        if state.hmm is not before.hmm:
            published.append(t)
    return due, published


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (17, [20, 37, 54, 71, 88]),
        ({"factor": 1.5}, [20, 30, 45, 68]),  # ⌈1.5·45⌉ = 68
        ({"factor": 1.01}, list(range(20, 100))),  # never less than a round further
    ],
)
def test_both_schedules(small, small_contexts, every, expected):
    """R3: rounds of its own, independent of ℓ = 5."""
    beliefs = {"estimator": "spectral", "start_round": 20, "every": every}
    due, published = estimation_rounds(StagedPolicy(small(beliefs=beliefs)), small_contexts(99))
    assert due == expected
    assert set(published) <= set(due)


def test_what_cannot_be_estimated_keeps_going(small, small_contexts):
    """R3, R7: one symbol only is not estimable; the belief stays uniform, the schedule moves on, decisions too."""
    beliefs = {"estimator": "em", "start_round": 10, "every": 10, "statistics": "smoothed"}
    policy = StagedPolicy(small(beliefs=beliefs))
    constant = small_contexts(1) * 35
    due, published = estimation_rounds(policy, constant)
    assert due == [10, 20, 30]
    assert published == []
    state, decisions = rounds_of(policy, policy.initial_state(), constant)
    assert isinstance(policy.estimate(state), NotEstimable)
    assert all(d.belief == (0.5, 0.5) for d in decisions)
    assert [d.model_version for d in decisions] == [(t - 1) // 5 for t in range(1, 36)]


def test_given_parameters_filter_from_round_1(small, small_contexts, given):
    """R5: the first step from `initial` without a transition, then Bayes' rule."""
    policy = StagedPolicy(small(beliefs=given))
    contexts = small_contexts(30)
    _, decisions = rounds_of(policy, policy.initial_state(), contexts)
    parameters = given["parameters"]
    m, e, law = (np.array(parameters[name]) for name in ("transition", "emission", "initial"))
    for context, decision in zip(contexts, decisions, strict=True):
        risk = ["low", "mid", "high"].index(context["risk"])
        symbol = 3 * risk + sum(context["income"] > cut for cut in (10, 36))
        posterior = (law if decision.round == 1 else law @ m) * e[:, symbol]
        law = posterior / posterior.sum()
        np.testing.assert_allclose(decision.belief, law, rtol=1e-12)


@pytest.mark.parametrize("estimator", ["em", "spectral", "none"])
def test_one_regime_estimates_nothing(small, small_contexts, estimator):
    """R5: H = 1 has belief [1]; per_regime means shared."""
    policy = StagedPolicy(small(regimes=1, beliefs={"estimator": estimator, "statistics": "as_decided"}))
    state, decisions = rounds_of(policy, policy.initial_state(), small_contexts(20))
    assert state.next_estimation == 0
    assert all(d.belief == (1.0,) for d in decisions)
    terms = small(regimes=1).features
    shared = {"shared": [*terms.model_dump()["shared"], *terms.model_dump()["per_regime"]]}
    assert policy.features.column_parts == StagedPolicy(small(regimes=1, features=shared)).features.column_parts


@pytest.mark.parametrize("statistics", ["as_decided", "refiltered", "smoothed"])
def test_beliefs_of_record(small, small_contexts, statistics):
    """R4, R5: what a re-estimation at round 401 does to the belief, to past rounds, and when G follows."""
    beliefs = {"estimator": "em", "start_round": 401, "every": 600, "statistics": statistics}
    policy = StagedPolicy(small(beliefs=beliefs, stage_length=7))
    contexts = small_contexts(415)
    rewards = np.random.default_rng(0).normal(size=415)
    state, decisions, trail = policy.initial_state(), [], []
    for t, context in enumerate(contexts, start=1):
        state, decision = policy.decide(state, context)
        decisions.append(decision)
        trail.append(state)
        if t % 3:
            state = policy.reward(state, t, rewards[t - 1])
    symbols = policy.features.encode(contexts).symbols
    found = policy.estimate(trail[399])  # R3: contexts of rounds 1 … t-1
    for mine, theirs in zip(trail[400].hmm, found, strict=True):
        assert (mine == theirs).all()
    # R5: the belief of round 400 under the new parameters, then one step with x_401.
    recent = symbols[100:400] if statistics == "as_decided" else symbols[:400]
    before = found._replace(initial=hmm.filter_history(found, recent).beliefs[-1])
    np.testing.assert_allclose(
        decisions[400].belief, hmm.filter_history(before, symbols[400:401], [1]).beliefs[0], rtol=1e-12
    )
    # R4: the beliefs of record, before and after.
    record = np.array([d.belief for d in decisions])
    assert (record[:400] == 0.5).all()
    assert (trail[399].history.beliefs[:400] == 0.5).all()
    if statistics == "refiltered":
        record[:400] = hmm.filter_history(found, symbols[:400]).beliefs
    elif statistics == "smoothed":
        record[:400] = hmm.compute_expectations(found, symbols[:400]).beliefs
    np.testing.assert_allclose(trail[-1].history.beliefs[:415], record, rtol=1e-12)
    # 401 starts no stage: G changes before round 407 = 7·58 + 1, from all rewards arrived by then.
    frozen = {id(s.statistics.gram) for s in trail[399:406]}
    assert len(frozen) == 1
    assert [s.rebuild for s in trail[399:407]] == [False] + [statistics != "as_decided"] * 6 + [False]
    arrived = [t - 1 for t in range(1, 407) if t % 3]
    expected = statistics_of(policy, contexts[:406], decisions[:406], record[:406], rewards[:406], arrived)
    assert trail[406].statistics.counters[0] == len(arrived)
    np.testing.assert_allclose(trail[406].statistics.gram, expected.gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(trail[406].statistics.theta, expected.theta, rtol=1e-7, atol=1e-9)
    # Versions: 57 stage updates before round 401, the publication, then one more update.
    assert [decisions[i].model_version for i in (399, 400, 405, 406)] == [57, 58, 58, 59]


def test_a_re_estimation_at_a_stages_end_comes_before_its_update(small, small_contexts, play):
    """Round 401 = 5·80 + 1: the statistics of that very round already use the recomputed beliefs (R3)."""
    beliefs = {"estimator": "em", "start_round": 401, "statistics": "smoothed"}
    policy = StagedPolicy(small(beliefs=beliefs))
    contexts = small_contexts(401)
    state, decisions = play(policy, contexts, np.ones((401, 3)))
    smoothed = hmm.compute_expectations(state.hmm, policy.features.encode(contexts).symbols[:400]).beliefs
    expected = statistics_of(policy, contexts[:400], decisions[:400], smoothed, np.ones(400), range(400))
    assert not state.rebuild
    np.testing.assert_allclose(state.statistics.gram, expected.gram, rtol=1e-9, atol=1e-9)
    assert decisions[400].model_version == 81


def test_the_belief_is_recomputed_from_exactly_the_last_300_contexts(small, small_contexts):
    """R5, `as_decided`: seen with regimes that never change, where the filter forgets nothing."""
    beliefs = {"estimator": "spectral", "start_round": 1000}
    policy = StagedPolicy(small(beliefs=beliefs))
    contexts = small_contexts(340)
    state, _ = policy.decide_batch(policy.initial_state(), [Request(context) for context in contexts])
    tilted = np.linspace(1.0, 1.05, 9) / np.linspace(1.0, 1.05, 9).sum()
    still = HmmParameters.check(np.eye(2), [tilted, tilted[::-1]], [0.5, 0.5])
    symbols = policy.features.encode(contexts).symbols
    published = policy.publish(state, still).belief
    assert (published == hmm.filter_history(still, symbols[40:]).beliefs[-1]).all()
    for other in (symbols, symbols[39:], symbols[41:]):
        assert not np.allclose(published, hmm.filter_history(still, other).beliefs[-1], rtol=1e-9)


def test_published_parameters_are_aligned_with_the_previous_ones(small, small_contexts, given):
    """R6: regimes named the other way round come back under their old names; G and θ̂ stay."""
    policy = StagedPolicy(small(beliefs={"estimator": "em", "start_round": 100, "statistics": "smoothed"}))
    state, _ = rounds_of(policy, policy.initial_state(), small_contexts(50))
    first = HmmParameters.check(**given["parameters"])
    state = policy.publish(state, first)
    turned = first.permute(np.array([1, 0]))
    again = policy.publish(state, turned)
    assert all((x == y).all() for x, y in zip(again.hmm, align(turned, first)[0], strict=True))
    assert (again.hmm.emission == first.emission).all()
    assert (again.belief == state.belief).all()
    assert again.statistics is state.statistics
    assert again.model_version == state.model_version + 1


# --- warm start (R8) -----------------------------------------------------------------------------------------


def warm_rounds(policy, count, rewarded):
    state, modes = policy.initial_state(), []
    for t in range(1, count + 1):
        state, decision = policy.decide(state, {})
        modes.append(decision.mode)
        if rewarded(t):
            state = policy.reward(state, t, 1.0)
    warm = modes.count("warm_start")
    assert modes == ["warm_start"] * warm + ["optimistic"] * (count - warm)
    return warm


@pytest.mark.parametrize(
    ("rounds", "length", "rewarded", "expected"),
    [
        (10, 3, lambda t: True, 10),
        (0, 3, lambda t: True, 4),  # ℓ + 1
        (10, 20, lambda t: True, 21),  # ℓ + 1 is more
        (0, 1, lambda t: False, 2),  # half of none were folded
        (10, 3, lambda t: t % 4 == 0, 21),  # the 5th reward, of round 20, is folded before round 22
        (11, 3, lambda t: t % 4 == 0, 24),  # 6 ≥ 5.5: that of round 24, before round 25
        (10, 3, lambda t: t > 20, 27),  # rounds 21 … 25; 5 are in before round 28
        (10, 3, lambda t: False, 40),
    ],
)
def test_both_conditions_of_the_warm_start(rounds, length, rewarded, expected):
    policy = StagedPolicy(bare(warm_start_rounds=rounds, stage_length=length))
    assert warm_rounds(policy, 40, rewarded) == expected


# --- chance (R11–R13) ----------------------------------------------------------------------------------------


def tied(seed=5, **changes):
    """Past the warm start with no reward folded: θ̂ = 0, G = λI, so b and c tie exactly and beat a."""
    policy = StagedPolicy(bare(actions=["a", "b", "c"], stage_length=1, ridge=0.5, seed=seed, **changes))
    state, _ = rounds_of(policy, policy.initial_state(), [{}] * 2)
    return policy, state


LAWS = [
    ({}, (), {"b": 0.5, "c": 0.5}),
    ({}, ("b",), {"c": 1.0}),
    ({"propensity_floor": 0.05}, (), {"a": 0.05, "b": 0.05 + 0.85 / 2, "c": 0.05 + 0.85 / 2}),
    ({"propensity_floor": 0.05}, ("c",), {"a": 0.05, "b": 0.95}),
    ({"control": {"share": 0.3}}, (), {"a": 0.1, "b": 0.1 + 0.35, "c": 0.1 + 0.35}),
    ({"control": {"share": 0.3}}, ("a",), {"b": 0.5, "c": 0.5}),
    ({"control": {"share": 0.3, "kind": "baseline"}}, (), {"a": 0.3, "b": 0.35, "c": 0.35}),
    ({"control": {"share": 0.3, "kind": "baseline"}}, ("a",), {"b": 0.3 + 0.35, "c": 0.35}),
    (
        {"control": {"share": 0.3}, "propensity_floor": 0.1},
        (),
        {"a": 0.1 + 0.7 * 0.1, "b": 0.1 + 0.7 * 0.45, "c": 0.1 + 0.7 * 0.45},
    ),
    (
        {"control": {"share": 0.3, "kind": "baseline"}, "propensity_floor": 1 / 3},
        (),
        {"a": 0.3 + 0.7 / 3, "b": 0.7 / 3, "c": 0.7 / 3},
    ),
]


@pytest.mark.parametrize(("changes", "excluded", "law"), LAWS)
def test_propensity_is_the_marginal_law(changes, excluded, law):
    """R12: each action's reported propensity is its own frequency over rounds, and they sum to 1."""
    policy, state = tied(**changes)
    _, decisions = policy.decide_batch(state, [Request({}, excluded)] * 5000)
    reported = {decision.action: decision.propensity for decision in decisions}
    assert {(decision.action, decision.propensity) for decision in decisions} == set(reported.items())
    assert reported == pytest.approx(law, rel=1e-14)
    assert math.fsum(reported.values()) == pytest.approx(1.0, abs=1e-15)
    counts = Counter(decision.action for decision in decisions)
    for action, probability in law.items():
        spread = math.sqrt(probability * (1 - probability) / 5000)
        assert abs(counts[action] / 5000 - probability) <= 4 * spread


def test_optimistic_and_control_draws_by_hash():
    """R11–R13: purpose 2 assigns, 4 draws the control's action, 5 the policy's; recomputed round by round."""
    seed, share = 12, 0.3
    policy, state = tied(seed=seed, control={"share": share})
    for t in range(3, 120):
        state, decision = policy.decide(state, {})
        if uniform(seed, 2, t) < share:
            expected = "control", "abc"[int(3 * uniform(seed, 4, t))]
        else:
            expected = "optimistic", "bc"[int(2 * uniform(seed, 5, t))]
        assert (decision.mode, decision.action) == expected


def test_a_subject_keeps_its_assignment():
    """R13: purpose 3 hashes the subject, not the round."""
    seed, share = 9, 0.4
    policy, state = tied(seed=seed, control={"share": share})
    names = [f"customer {i}" for i in range(150)] + ["", "žluťoučký", "\ud800"]
    assigned = set()
    for name in names:
        _, decisions = policy.decide_batch(state, [Request({}, (), name)] * 3)
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        expected = "control" if uniform(seed, 3, int.from_bytes(digest[:8], "big")) < share else "optimistic"
        assert {d.mode for d in decisions} == {expected}
        assigned.add(expected)
    assert assigned == {"control", "optimistic"}


def test_excluded_actions_are_neither_chosen_nor_scored(small, small_contexts, given):
    policy = StagedPolicy(small(beliefs=given, propensity_floor=0.2, control={"share": 0.2}))
    state, (context, *_) = policy.initial_state(), small_contexts(1)
    for _ in range(40):
        state, decision = policy.decide(state, context, excluded_actions=["call"])
        state = policy.reward(state, decision.round, 1.0)
        assert decision.action in ("none", "mail")
        assert [s.action for s in decision.scores] == ["none", "mail"]
        assert decision.propensity > 0
        if decision.mode == "warm_start":
            assert decision.propensity == 0.5
    everything = policy.preview(state, context)
    assert [s.action for s in everything.scores] == ["none", "call", "mail"]
    kept = {s.action: s for s in policy.preview(state, context, excluded_actions={"call"}).scores}
    assert all(kept[s.action] == s for s in everything.scores if s.action in kept)


# --- refusals ------------------------------------------------------------------------------------------------

WRONG_ROUNDS = [0, 4, -1, 1.0, "1", None, True]
WRONG_VALUES = [
    math.nan, math.inf, -math.inf, 5.5, -1.5, True, np.True_, "1", b"1", None, [1.0], 10**400, 1 + 0j
]  # fmt: skip
WRONG_REWARDS = [(t, 1.0, "round") for t in WRONG_ROUNDS] + [(1, value, "reward") for value in WRONG_VALUES]


@pytest.mark.parametrize(("t", "reward", "field"), WRONG_REWARDS)
def test_a_refused_reward_changes_nothing(t, reward, field):
    policy = StagedPolicy(bare(rewards={"range": [-1, 5]}))
    state, _ = rounds_of(policy, policy.initial_state(), [{}] * 3)
    state = policy.reward(state, 2, -1.0)
    before = encode(state)
    with pytest.raises(RewardError) as caught:
        policy.reward(state, t, reward)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.allowed is not None
    assert encode(state) == before
    assert encode(policy.reward(state, 1, 5)) != before  # the limits themselves are allowed


WRONG_REQUESTS = [
    (Request({"risk": "x"}), "context.income"),
    (Request(None), "context"),
    (Request({}, ["fly"]), "excluded_actions"),
    (Request({}, "call"), "excluded_actions"),
    (Request({}, [["call"]]), "excluded_actions"),
    (Request({}, 5), "excluded_actions"),
    (Request({}, ["none", "call", "mail"]), "excluded_actions"),
    (Request({}, (), 5), "subject"),
    (Request({}, (), b"x"), "subject"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG_REQUESTS)
def test_a_refused_request_changes_nothing_and_fails_its_whole_batch(small, small_contexts, given, wrong, field):
    policy = StagedPolicy(small(beliefs=given))
    contexts = small_contexts(12)
    state, _ = rounds_of(policy, policy.initial_state(), contexts[:6])
    before = encode(state)
    if wrong.context == {}:
        wrong = wrong._replace(context=contexts[0])
    for call in (policy.decide, policy.preview):
        with pytest.raises(ContextError) as caught:
            call(state, wrong.context, excluded_actions=wrong.excluded_actions, subject=wrong.subject)
        assert field in [problem.field for problem in caught.value.problems]
    requests = [*(Request(context) for context in contexts[6:]), wrong]
    with pytest.raises(ContextError) as caught:
        policy.decide_batch(state, requests)
    assert f"items[6].{field}" in [problem.field for problem in caught.value.problems]
    assert all(problem.allowed is not None for problem in caught.value.problems)
    assert encode(state) == before


def test_scores_under_a_belief_are_those_of_a_decision_that_has_it(small, small_contexts, given):
    """The belief of a decision gives its scores to the bit; certainty in a regime is an end of the same line."""
    policy = StagedPolicy(small(beliefs=given, propensity_floor=0.2, stage_length=5))
    state, contexts = policy.initial_state(), small_contexts(40)
    for context in contexts[:33]:
        state, decision = policy.decide(state, context)
        state = policy.reward(state, decision.round, float(decision.action == "mail"))
    before = encode(state)
    for context in contexts[33:]:
        request = Request(context, ("call",))
        decided = policy.preview(state, context, excluded_actions=["call"])
        mixed, *certain = policy.score_under(state, np.array([decided.belief, *np.eye(state.belief.size)]), request)
        assert mixed == decided.scores
        for score, *ends in zip(mixed, *certain, strict=True):
            blend = sum(b * end.estimate for b, end in zip(decided.belief, ends, strict=True))
            assert score.estimate == pytest.approx(blend)
    assert encode(state) == before
    for wrong in (np.eye(state.belief.size + 1), np.full((1, state.belief.size), np.nan), np.ones(2)):
        with pytest.raises(ArgumentError, match="beliefs"):
            policy.score_under(state, wrong, request)


# --- what the kernels must never be handed -------------------------------------------------------------------


def small(**changes):
    fields = {
        "name": "small",
        "actions": ["none", "call"],
        "variables": [{"name": "risk", "levels": ["low", "high"]}],
        "regimes": 1,
        "stage_length": 2,
        "warm_start_rounds": 0,
        "seed": 3,
    }
    return StagedPolicy(CampaignConfig(**{**fields, **changes}))


def test_a_state_of_another_campaign_is_refused():
    one, other = small(), small(actions=["none", "call", "mail"])
    for act in (one.decide, one.preview):
        with pytest.raises(ArgumentError, match="another campaign"):
            act(other.initial_state(), {"risk": "low"})


def test_play_refuses_what_it_could_not_fold_once_and_in_order():
    """R2: rewards folded out of round order would be taken for others."""
    policy = small()
    state, _ = policy.decide_batch(policy.initial_state(), [Request({"risk": "low"})] * 2)
    state = policy.reward(state, 2, 1.0)
    state, _ = policy.decide(state, {"risk": "high"})
    state = policy.reward(policy.reward(state, 1, 1.0), 3, 1.0)
    rows = policy.features.encode([{"risk": "low"}] * 3)
    with pytest.raises(ArgumentError, match="out of round order"):
        policy.play(state, rows, np.ones((3, 2)))


@pytest.mark.parametrize("levels", [[[5]], [[-1]], [[0, 0]]])
def test_play_refuses_contexts_that_do_not_exist(levels):
    policy = small()
    contexts = Contexts(np.array(levels, np.int16), np.empty((1, 0)), np.zeros(1, np.int16))
    with pytest.raises(ArgumentError, match="contexts"):
        policy.play(policy.initial_state(), contexts, np.ones((1, 2)))


def test_batches_take_requests_only():
    with pytest.raises(ArgumentError, match="requests"):
        small().decide_batch(small().initial_state(), [{"context": {"risk": "low"}}])


def test_rewards_are_folded_in_round_order_however_they_arrive(small, small_contexts, given):
    """R1, R15: the same bits for every order of arrival inside a stage."""
    policy = StagedPolicy(small(beliefs=given, stage_length=20))
    contexts, rewards = small_contexts(21), np.random.default_rng(3).normal(size=20)
    before, _ = rounds_of(policy, policy.initial_state(), contexts[:20])
    found = []
    for order in (range(1, 21), range(20, 0, -1), np.random.default_rng(1).permutation(20) + 1):
        state = before
        for t in order:
            state = policy.reward(state, t, rewards[t - 1])
        found.append(policy.decide(state, contexts[20])[0].statistics)
    for other in found[1:]:
        assert all((x == y).all() for x, y in zip(found[0], other, strict=True))
