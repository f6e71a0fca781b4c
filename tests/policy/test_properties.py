"""Properties that hold for any campaign: codec, batches, propensities, names of regimes, units of reward, kernels."""

import math

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from policy import ArgumentError, Request, StagedPolicy, encode

PROPERTY = settings(max_examples=30)

THEORY = {"risk": 0.1, "c_theta": 1.0}
FORMS = {form: {} for form in ("complex", "simplified", "plain", "elliptical")} | {
    "theory_general": THEORY | {"horizon": 80, "gamma": 0.5, "c_eta": 0.04},
    "theory_simplified": THEORY | {"v_eta": 0.2},
}
SEEDS = st.integers(0, 2**53 - 1)


@st.composite
def campaigns(draw):
    """Changes to the small campaign: every estimator, form, control and floor, short stages."""
    estimator = draw(st.sampled_from(["given", "em", "spectral", "none"]))
    beliefs = {"estimator": estimator}
    if estimator in ("em", "spectral"):
        beliefs["start_round"] = draw(st.integers(8, 30))
        beliefs["every"] = draw(st.one_of(st.integers(5, 20), st.just({"factor": 1.3})))
        joint = ["joint"] if estimator == "em" else []
        beliefs["statistics"] = draw(st.sampled_from(["as_decided", "refiltered", "smoothed", *joint]))
    form = draw(st.sampled_from([*FORMS, *(["noise"] if beliefs.get("statistics") == "joint" else [])]))
    return {
        "beliefs": beliefs,
        "bonus": FORMS.get(form, {}) | {"form": form, "scale": draw(st.sampled_from([0.0, 0.01, 0.6]))},
        "stage_length": 1 if form == "theory_simplified" else draw(st.integers(1, 9)),
        "ridge": draw(st.sampled_from([1e-6, 0.3, 10.0])),
        "warm_start_rounds": draw(st.integers(0, 15)),
        "propensity_floor": draw(st.sampled_from([0.0, 0.02, 1 / 3])),
        "control": {"share": draw(st.sampled_from([0.0, 0.3])), "kind": draw(st.sampled_from(["uniform", "baseline"]))},
        "seed": draw(SEEDS),
    }  # fmt: skip


@pytest.fixture(scope="session")
def policy_of(small, given):
    def build(changes):
        if changes["beliefs"]["estimator"] == "given":
            changes = {**changes, "beliefs": given}
        return StagedPolicy(small(**changes))

    return build


def played(policy, contexts, seed):
    """One by one, two rewards in three, some of them late."""
    generator = np.random.default_rng(seed)
    state, decisions = policy.initial_state(), []
    waiting = []
    for context in contexts:
        state, decision = policy.decide(state, context)
        decisions.append(decision)
        if generator.random() < 2 / 3:
            waiting.append((decision.round + int(generator.integers(0, 9)), decision.round, generator.normal()))
        for item in sorted(item for item in waiting if item[0] <= decision.round):
            state = policy.reward(state, item[1], item[2])
            waiting.remove(item)
    return state, decisions


@PROPERTY
@for_all(changes=campaigns(), sizes=st.lists(st.integers(1, 25), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_batches_equal_single_calls_for_any_partition(policy_of, small_contexts, changes, sizes, seed):
    """R11, R15: bit for bit, across stage ends and re-estimations inside a batch."""
    policy = policy_of(changes)
    contexts = small_contexts(sum(sizes), seed)
    requests = [
        Request(c, ["mail"] if i % 5 == 0 else (), f"{i % 4}" if i % 2 else None) for i, c in enumerate(contexts)
    ]
    one, many, done = policy.initial_state(), policy.initial_state(), 0
    for size in sizes:
        part = requests[done : done + size]
        done += size
        singles = []
        for request in part:
            one, decision = policy.decide(
                one, request.context, excluded_actions=request.excluded_actions, subject=request.subject
            )
            singles.append(decision)
        many, batch = policy.decide_batch(many, part)
        assert batch == singles
        for decision in batch[::2]:  # rewards arrive between the batches
            one, many = (policy.reward(s, decision.round, 0.1 * decision.round) for s in (one, many))
        assert encode(one) == encode(many)


def law_of(config, decision, excluded=()):
    """The law of a round rebuilt from its scores (R12): what each eligible action would have been reported with."""
    scores = {s.action: s.score for s in decision.scores}
    count = len(scores)
    assert set(scores) == set(config.actions) - set(excluded)
    if decision.mode == "warm_start":
        return dict.fromkeys(scores, 1 / count)
    best = [a for a, score in scores.items() if score == max(scores.values())]
    floor, share = config.propensity_floor, config.control.share
    greedy = {a: floor + (1 - count * floor) * (a in best) / len(best) for a in scores}
    first = next(a for a in config.actions if a in scores)
    control = {a: (a == first) if config.control.kind == "baseline" else 1 / count for a in scores}
    return {a: share * control[a] + (1 - share) * greedy[a] for a in scores}


@PROPERTY
@for_all(changes=campaigns(), seed=st.integers(0, 99), excluded=st.sampled_from([(), ("none",), ("call", "mail")]))
def test_propensities_sum_to_one_over_actions(policy_of, small_contexts, changes, seed, excluded):
    """R12: the reported propensity is the chosen action's share of a law over the eligible actions."""
    policy = policy_of(changes)
    state, _ = played(policy, small_contexts(30, seed), seed)
    for context in small_contexts(15, seed + 1):
        state, decision = policy.decide(state, context, excluded_actions=excluded)
        law = law_of(policy.config, decision, excluded)
        assert math.isclose(math.fsum(law.values()), 1.0, abs_tol=1e-14)
        assert math.isclose(decision.propensity, law[decision.action], rel_tol=1e-13)
        assert 0 < decision.propensity <= 1


@PROPERTY
@for_all(data=st.data(), regimes=st.integers(2, 4), form=st.sampled_from([*FORMS][:4]), seed=st.integers(0, 99))
def test_permuting_the_regimes_changes_no_decision(small, small_contexts, play, data, regimes, form, seed):
    """The names of regimes mean nothing: z, G and θ̂ are permuted alike."""
    order = data.draw(st.permutations(range(regimes)))
    generator = np.random.default_rng(seed)
    transition = generator.dirichlet(np.ones(regimes), regimes)
    emission, initial = generator.dirichlet(np.ones(9), regimes), generator.dirichlet(np.ones(regimes))
    contexts, rewards = small_contexts(60, seed), generator.normal(size=(60, 3))

    def decisions_of(order):
        order = list(order)
        parameters = {
            "transition": transition[np.ix_(order, order)].tolist(),
            "emission": emission[order].tolist(),
            "initial": initial[order].tolist(),
        }
        config = small(
            regimes=regimes, seed=seed, bonus={"form": form, "scale": 0.05}, control={"share": 0.1},
            beliefs={"estimator": "given", "parameters": parameters},
        )  # fmt: skip
        return play(StagedPolicy(config), contexts, rewards)[1]

    for plain, turned in zip(decisions_of(range(regimes)), decisions_of(order), strict=True):
        assert (plain.action, plain.mode) == (turned.action, turned.mode)
        np.testing.assert_allclose(np.array(plain.belief)[order], turned.belief, rtol=1e-9)
        np.testing.assert_allclose(
            [s[1:3] for s in plain.scores], [s[1:3] for s in turned.scores], rtol=1e-8, atol=1e-10
        )
        assert math.isclose(plain.propensity, turned.propensity, rel_tol=1e-12)


@PROPERTY
@for_all(changes=campaigns(), exponent=st.integers(-20, 20), seed=st.integers(0, 99))
def test_rewards_and_scale_times_a_power_of_two_change_no_action(
    policy_of, small_contexts, play, changes, exponent, seed
):
    """Only the unit changed: exact in binary, so even ties stay ties and every score is scaled to the bit."""
    unit = 2.0**exponent
    rewards = np.random.default_rng(seed).normal(size=(40, 3))
    found = []
    for c in (1.0, unit):
        policy = policy_of({**changes, "bonus": {"form": "elliptical", "scale": 0.25 * c}})
        found.append(play(policy, small_contexts(40, seed), rewards * c)[1])
    for plain, scaled in zip(*found, strict=True):
        assert plain.action == scaled.action
        if plain.stage > 1:
            assert [s.score for s in scaled.scores] == [s.score * unit for s in plain.scores]


# --- playing whole runs in compiled code ---------------------------------------------------------------------


@PROPERTY
@for_all(changes=campaigns(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_play_equals_decide_and_reward_for_any_campaign(policy_of, small_contexts, play, changes, sizes, seed):
    """Re-estimations and rebuilt statistics (R3, R4) included; in one call or in several; to the last byte."""
    policy = policy_of(changes)
    count = sum(sizes)
    contexts, table = small_contexts(count, seed), np.random.default_rng(seed).normal(size=(count, 3))
    expected, _ = play(policy, contexts, table)
    state, encoded, done = policy.initial_state(), policy.features.encode(contexts), 0
    for size in sizes:
        state = policy.play(state, encoded.rows(done, done + size), table[done : done + size])
        done += size
    assert encode(state) == encode(expected)


def test_play_on_given_beliefs(small, small_contexts, given, play):
    """Many runs may share one belief path: the path itself, handed in, changes nothing."""
    policy = StagedPolicy(small(beliefs=given))
    contexts, table = small_contexts(80), np.random.default_rng(8).normal(size=(80, 3))
    expected, decisions = play(policy, contexts, table)
    bare = StagedPolicy(small(beliefs={"estimator": "none"}))
    path = np.array([d.belief for d in decisions])
    state = bare.play(bare.initial_state(), bare.features.encode(contexts), table, path)
    assert (state.history.actions[:80] == expected.history.actions[:80]).all()
    assert all((x == y).all() for x, y in zip(state.statistics, expected.statistics, strict=True))


def test_play_leaves_its_state_alone_and_refuses_wrong_tables(small, small_contexts, given, play):
    policy = StagedPolicy(small(beliefs=given))
    contexts, table = small_contexts(30), np.random.default_rng(8).normal(size=(30, 3))
    start, _ = play(policy, contexts[:17], table)
    before, rest = encode(start), policy.features.encode(contexts[17:])
    first = encode(policy.play(start, rest, table[17:]))
    assert encode(start) == before
    assert encode(policy.play(start, rest, table[17:])) == first
    waiting, _ = policy.decide(start, contexts[17])
    nan = np.where(np.arange(39).reshape(13, 3) == 5, np.nan, table[17:])
    for state, rewards, beliefs, field in (
        (start, table, None, "reward_table"),
        (start, table[17:, :2], None, "reward_table"),
        (start, nan, None, "reward_table"),
        (start, table[17:], np.full((13, 3), 1 / 3), "beliefs"),
        (waiting, table[17:], None, "state"),
    ):
        kept = encode(state)
        with pytest.raises(ArgumentError) as caught:
            policy.play(state, rest, rewards, beliefs)
        assert caught.value.problems[0].field == field
        assert caught.value.problems[0].allowed
        assert encode(state) == kept
