"""A campaign's model in words: hand-made words, dense least squares beside every number, and JSON."""

import itertools
import json

import numpy as np
import pytest

from policy import ArgumentError, StagedPolicy, decode, describe, encode
from policy.description import SymbolProbability
from policy.features import Column

# A range variable on its own and with actions, and an interaction that keeps two of three levels.
KEPT = {
    "shared": ["region", "tenure", "actions:tenure"],
    "per_regime": ["intercept", "actions", {"term": "actions:risk", "levels": ["high", "low"]}],
}
NOISE = 0.5


def world(count, seed=0):
    """Contexts and a reward for each action: a mood that stays moves the signals, and calls and mails trade places."""
    generator = np.random.default_rng(seed)
    mood, contexts, rewards = 0, [], []
    for _ in range(count):
        mood = mood if generator.random() < 0.97 else 1 - mood
        law = [0.7, 0.2, 0.1] if mood else [0.1, 0.2, 0.7]
        tenure = float(generator.uniform(0, 20))
        contexts.append(
            {
                "risk": str(generator.choice(["low", "mid", "high"], p=law)),
                "income": float(generator.choice([5, 20, 50], p=law)),
                "region": str(generator.choice(["north", "south"])),
                "tenure": tenure,
            }
        )
        means = np.array([0.0, 2.0 - 3.0 * mood, 3.0 * mood - 1.0]) + 5.0 + 0.05 * tenure
        rewards.append(means + NOISE * generator.normal(size=3))
    return contexts, np.array(rewards)


def span_of(policy, features):
    """An orthonormal basis of all that z can be: every context at the corners, every action, every regime."""
    grid = itertools.product(["low", "mid", "high"], [5, 20, 50], ["north", "south"], [0, 20])
    contexts = features.encode([dict(zip(("risk", "income", "region", "tenure"), x, strict=True)) for x in grid])
    stacked = [
        features.dense(vertex, action, contexts, row)
        for vertex in np.eye(features.regimes)
        for action in range(len(policy.config.actions))
        for row in range(contexts.symbols.size)
    ]
    _, sizes, directions = np.linalg.svd(np.array(stacked), full_matrices=False)
    return directions[sizes > 1e-9 * sizes[0]].T


def regression(policy, features, design, weights, targets):
    """Ridge regression written out: θ̂, σ̂ from the residuals, and the standard errors for σ̂ = 1."""
    ridge, roots = policy.ridge, np.sqrt(weights)
    stacked = np.vstack([design * roots[:, None], np.sqrt(ridge) * np.eye(features.dimension)])
    theta = np.linalg.lstsq(stacked, np.append(targets * roots, np.zeros(features.dimension)), rcond=None)[0]
    gram = stacked.T @ stacked
    hat = (design * weights[:, None]) @ np.linalg.solve(gram, design.T)
    residuals = targets - design @ theta
    noise = np.sqrt((weights * residuals**2).sum() / (weights.sum() - np.trace(hat)))
    span = span_of(policy, features)
    return theta, noise, np.sqrt(np.diag(span @ np.linalg.inv(span.T @ gram @ span) @ span.T))


def dense_rows(policy, features, state, beliefs, rows):
    """z of some rounds, one a row, under the given beliefs."""
    history = state.history
    return np.array([features.dense(beliefs[r], int(history.actions[r]), history.contexts, int(r)) for r in rows])


def assert_as_regression(policy, state, beliefs, rows):
    """The description's numbers are those of the dense regression of these rounds with these beliefs."""
    features, rewards = policy.maps[state.belief.size], state.history.rewards[rows]
    design = dense_rows(policy, features, state, beliefs, rows)
    theta, noise, errors = regression(policy, features, design, np.ones(len(rows)), rewards)
    description = describe(policy, state)
    assert description.folded == len(rows)
    assert description.noise_std == pytest.approx(noise, rel=1e-8)
    np.testing.assert_allclose([c.estimate for c in description.coefficients], theta, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose([c.standard_error for c in description.coefficients], noise * errors, rtol=1e-7)
    assert_plain(description)


def assert_plain(value):
    """Plain Python all the way down, and JSON that every reader takes."""
    json.dumps(value, allow_nan=False)
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            assert all(type(key) is str for key in one)
            pending += one.values()
        elif isinstance(one, tuple):
            pending += one
        else:
            assert one is None or type(one) in (str, int, float, bool), type(one)


# --- words ---------------------------------------------------------------------------------------------------


def test_columns_in_parts(small, given):
    policy = StagedPolicy(small(features=KEPT, beliefs=given))
    shared = [("region", None, "north"), ("region", None, "south"), ("tenure", None, None)]
    shared += [("actions:tenure", action, None) for action in ("call", "mail")]
    per_regime = [("intercept", None, None), ("actions", "call", None), ("actions", "mail", None)]
    per_regime += [
        ("actions:risk", action, level) for action, level in itertools.product(("call", "mail"), ("low", "high"))
    ]
    expected = [(*column, None) for column in shared] + [(*column, h) for h in (1, 2) for column in per_regime]
    assert policy.features.column_parts == expected
    description = describe(policy, policy.initial_state())
    assert [coefficient[:4] for coefficient in description.coefficients] == expected
    alone = StagedPolicy(small(regimes=1, features=KEPT, beliefs={"estimator": "none"})).features
    assert alone.column_parts[5:8] == [Column("intercept"), Column("actions", "call"), Column("actions", "mail")]
    assert {column.regime for column in alone.column_parts} == {None}


def test_every_coefficient_is_the_one_of_its_words(small, given, play):
    """Prediction by words, effect by effect, is what the policy answers."""
    policy = StagedPolicy(small(features=KEPT, beliefs=given))
    contexts, rewards = world(80)
    state, _ = play(policy, contexts[:79], rewards)
    state, decision = policy.decide(state, contexts[79])
    description, context = describe(policy, state), contexts[79]
    assert description.model_version == decision.model_version
    for score in decision.scores:
        total = description.centre
        for term, action, level, regime, estimate, _ in description.coefficients:
            variable = term.removeprefix("actions:")
            on = action in (None, score.action) and level in (None, context.get(variable))
            value = context["tenure"] / 20 if variable == "tenure" else 1.0
            total += on * value * estimate * (1.0 if regime is None else decision.belief[regime - 1])
        assert total == pytest.approx(score.estimate, abs=1e-12)


def test_given_parameters_in_words(small, given):
    policy = StagedPolicy(small(beliefs=given))
    hmm = describe(policy, policy.initial_state()).hmm
    assert hmm.transition == ((0.9, 0.1), (0.25, 0.75))
    assert hmm.initial == (0.3, 0.7)
    assert hmm.expected_duration == pytest.approx((10.0, 4.0))
    assert hmm.stationary == pytest.approx((5 / 7, 2 / 7))
    # R9: risk and income, income fastest; income's levels are its cuts' numbers.
    assert hmm.emission[0][:4] == (
        SymbolProbability({"risk": "low", "income": "1"}, 0.20),
        SymbolProbability({"risk": "low", "income": "2"}, 0.15),
        SymbolProbability({"risk": "low", "income": "3"}, 0.05),
        SymbolProbability({"risk": "mid", "income": "1"}, 0.14),
    )
    assert hmm.emission[1][5] == ({"risk": "mid", "income": "3"}, 0.15)
    assert hmm.emission[1][8] == ({"risk": "high", "income": "3"}, 0.30)
    assert [len(law) for law in hmm.emission] == [9, 9]
    first, second = hmm.signal_laws
    assert [list(first), list(first["risk"]), list(first["income"])] == [
        ["risk", "income"], ["low", "mid", "high"], ["1", "2", "3"]
    ]  # fmt: skip
    assert first["risk"] == pytest.approx({"low": 0.40, "mid": 0.30, "high": 0.30})
    assert first["income"] == pytest.approx({"1": 0.46, "2": 0.36, "3": 0.18})
    assert second["risk"] == pytest.approx({"low": 0.20, "mid": 0.30, "high": 0.50})
    assert second["income"] == pytest.approx({"1": 0.17, "2": 0.28, "3": 0.55})


def test_symbols_are_those_that_contexts_are_encoded_as(small):
    """Signals in another order than the variables, one with labels, sizes 2, 3 and 3."""
    variables = [
        {"name": "risk", "levels": ["low", "mid", "high"]},
        {"name": "income", "cuts": [10, 36], "levels": ["little", "some", "much"]},
        {"name": "region", "levels": ["north", "south"]},
    ]
    law = np.random.default_rng(4).dirichlet(np.ones(18), 3)
    chain = np.random.default_rng(5).dirichlet(np.ones(3), 3)
    parameters = {"transition": chain.tolist(), "emission": law.tolist(), "initial": [0.2, 0.3, 0.5]}
    beliefs = {"estimator": "given", "parameters": parameters}
    signals = ["region", "income", "risk"]
    policy = StagedPolicy(small(variables=variables, signals=signals, regimes=3, beliefs=beliefs, features=None))
    hmm = describe(policy, policy.initial_state()).hmm
    raw = {"little": 5, "some": 20, "much": 50}
    for regime in range(3):
        margin = dict.fromkeys(raw, 0.0)
        for place, (symbol, probability) in enumerate(hmm.emission[regime]):
            encoded = policy.features.encode([{**symbol, "income": raw[symbol["income"]]}])
            assert encoded.symbols.tolist() == [place]
            assert probability == law[regime, place]
            margin[symbol["income"]] += probability
        assert hmm.signal_laws[regime]["income"] == pytest.approx(margin)
        assert hmm.stationary == pytest.approx(np.linalg.matrix_power(chain, 500)[regime], abs=1e-12)
    assert hmm.expected_duration == pytest.approx(1 / (1 - chain.diagonal()))


def test_a_regime_that_never_ends(small, given):
    parameters = {**given["parameters"], "transition": [[1.0, 0.0], [0.2, 0.8]]}
    policy = StagedPolicy(small(beliefs={"estimator": "given", "parameters": parameters}))
    description = describe(policy, policy.initial_state())
    assert description.hmm.expected_duration == (None, pytest.approx(5.0))
    assert description.hmm.stationary == pytest.approx((1.0, 0.0), abs=1e-12)
    assert_plain(description)


# --- numbers -------------------------------------------------------------------------------------------------


def test_before_any_reward_there_is_no_noise(small, given):
    policy = StagedPolicy(small(beliefs=given, ridge=0.4))
    description = describe(policy, policy.initial_state())
    assert description[:5] == (0, 0, 0, 2, False)
    assert (description.noise_std, description.ridge, description.centre) == (None, 0.4, 0.0)
    assert {(c.estimate, c.standard_error) for c in description.coefficients} == {(2.5, None)}
    assert description.candidates == ()
    assert_plain(description)


def test_noise_is_told_from_four_rewards_beyond_the_effective_parameters(small, given, play):
    policy = StagedPolicy(small(beliefs=given, stage_length=1, ridge=0.05))
    contexts, rewards = world(60)
    state, told = policy.initial_state(), []
    for t in range(60):
        state, _ = play(policy, contexts[t : t + 1], rewards, state)
        description = describe(policy, state)
        gram = state.statistics.gram
        effective = np.trace(np.linalg.solve(gram, gram - 0.05 * np.eye(len(gram))))
        told.append(description.noise_std is not None)
        assert told[-1] == (state.folded - effective >= 4)
        assert all((c.standard_error is not None) == told[-1] for c in description.coefficients)
    assert (told[10], told[-1]) == (False, True)


@pytest.mark.parametrize(("ridge", "features", "regimes"), [(1e-6, KEPT, 2), (0.3, None, 1), (7.0, None, 2)])
def test_given_beliefs_against_dense_regression(small, given, regimes, features, ridge):
    """Rewards come late, out of order, or never; a state that is stored and read again tells the same."""
    beliefs = given if regimes == 2 else {"estimator": "none"}
    policy = StagedPolicy(small(regimes=regimes, beliefs=beliefs, features=features, ridge=ridge))
    contexts, rewards = world(150, seed=regimes)
    state, decided, waiting = policy.initial_state(), [], []
    for t, context in enumerate(contexts, start=1):
        state, decision = policy.decide(state, context)
        decided.append(decision)
        waiting.append(t)
        if t % 7 == 0:
            for late in reversed(waiting[:-2]):
                if late % 11:
                    action = policy.config.actions.index(decided[late - 1].action)
                    state = policy.reward(state, late, rewards[late - 1, action])
            waiting = waiting[-2:]
    rows = state.history.get_arrival_order(state.folded)
    assert 100 < state.folded < state.arrived
    assert rows.tolist() != sorted(rows.tolist())
    assert_as_regression(policy, state, np.array([d.belief for d in decided]), rows)
    description = describe(policy, state)
    assert (description.round, description.regimes, description.ridge) == (150, regimes, ridge)
    assert (description.hmm is None) == (regimes == 1)
    assert describe(policy, decode(encode(state))) == description


@pytest.mark.parametrize("statistics", ["smoothed", "refiltered"])
def test_a_pending_rebuild_leaves_the_model_in_force(small, play, statistics):
    """R3, R4: beliefs are recomputed before round 63; G and θ̂ follow before round 66."""
    beliefs = {"estimator": "em", "statistics": statistics, "start_round": 63, "every": 35}
    policy = StagedPolicy(small(beliefs=beliefs, ridge=0.7, features=KEPT))
    contexts, rewards = world(97)
    state, _ = play(policy, contexts[:62], rewards)
    before = state.history.beliefs[:62].copy()
    state, _ = play(policy, contexts[62:63], rewards, state)
    assert state.rebuild
    assert np.abs(state.history.beliefs[:60] - before[:60]).max() > 0.3
    assert_as_regression(policy, state, before, np.arange(60))
    assert describe(policy, state).hmm is not None
    state, _ = play(policy, contexts[63:97], rewards, state)
    assert not state.rebuild
    assert_as_regression(policy, state, state.history.beliefs[:97], np.arange(95))


def test_the_theorems_ridge_is_the_one_in_force(small, given, play):
    bonus = {"form": "theory_general", "risk": 0.1, "horizon": 1000, "c_theta": 1.0, "gamma": 0.5, "c_eta": 1.0}
    policy = StagedPolicy(small(beliefs=given, bonus=bonus, ridge=0.2, features=KEPT))
    contexts, rewards = world(72)
    state, decisions = play(policy, contexts, rewards)
    assert describe(policy, state).ridge == pytest.approx(0.2 * 6)  # six terms, each with at most one column at most 1
    assert_as_regression(policy, state, np.array([d.belief for d in decisions]), np.arange(70))


# --- joint statistics ----------------------------------------------------------------------------------------


def test_the_default_policy_after_a_few_hundred_rounds(small, play):
    """Weighted least squares: a round of the fit counts once for each regime, by its posterior (joint.py)."""
    policy = StagedPolicy(small(ridge=0.6, features=KEPT))
    contexts, rewards = world(663)
    state, _ = play(policy, contexts, rewards)
    description, features = describe(policy, state), policy.maps[2]
    assert state.selection.in_use.joint
    assert (description.regimes, description.guarded, description.folded) == (2, False, 660)
    assert description.candidates == state.selection.verdicts
    assert [c.regimes for c in description.candidates if c.in_use] == [2]
    assert description.noise_std == state.selection.in_use.units[1]
    assert description.noise_std == pytest.approx(NOISE, rel=0.1)
    assert 4.0 < description.centre < 8.0

    history, fitted = state.history, state.selection.round
    assert 300 < fitted < 660
    design, weights, targets = [], [], []
    for row in range(660):
        beliefs = history.beliefs[row, :2]
        points = [(beliefs, 1.0)]
        if row < fitted:
            points = [(vertex, belief) for vertex, belief in zip(np.eye(2), beliefs, strict=True)]
        for point, weight in points:
            design.append(features.dense(point, int(history.actions[row]), history.contexts, row))
            weights.append(weight)
            targets.append(history.rewards[row] - description.centre)
    theta, _, errors = regression(policy, features, np.array(design), np.array(weights), np.array(targets))
    np.testing.assert_allclose([c.estimate for c in description.coefficients], theta, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        [c.standard_error for c in description.coefficients], description.noise_std * errors, rtol=1e-7
    )
    assert_plain(description)

    # In words: the regime whose customers are risky is the one where calls pay.
    hmm = description.hmm
    calls = 0 if hmm.signal_laws[0]["risk"]["high"] > 0.5 else 1
    worth = {(c.action, c.regime): c.estimate for c in description.coefficients if c.term == "actions"}
    assert worth["call", calls + 1] > worth["mail", calls + 1]
    assert worth["mail", 2 - calls] > worth["call", 2 - calls]
    assert hmm.signal_laws[1 - calls]["income"]["1"] == pytest.approx(0.7, abs=0.1)
    mails = rewards[:, 2] > rewards[:, 1]  # the mood itself: 3 apart, at a noise of 0.7
    switches = np.count_nonzero(np.diff(mails.astype(int)))
    assert hmm.stationary[1 - calls] == pytest.approx(mails.mean(), abs=0.05)
    assert hmm.expected_duration[1 - calls] == pytest.approx(mails.sum() / (switches / 2), rel=0.3)
    assert hmm.expected_duration[calls] == pytest.approx((~mails).sum() / (switches / 2), rel=0.3)


def test_joint_statistics_before_their_first_estimate(small, play):
    """One regime, nothing centred, and σ̂ is not the 1 that stands in its place."""
    policy = StagedPolicy(small(ridge=0.6, features=KEPT, warm_start_rounds=90))
    contexts, rewards = world(88)
    state, _ = play(policy, contexts, rewards)
    assert state.selection is None
    description = describe(policy, state)
    assert (description.regimes, description.hmm, description.candidates) == (1, None, ())
    assert (description.guarded, description.centre) == (False, 0.0)
    assert_as_regression(policy, state, np.ones((88, 1)), np.arange(85))


def test_a_guarded_campaign(small, small_contexts, play):
    """Regimes that move contexts but no rewards do not pay."""
    policy = StagedPolicy(small(ridge=0.6, features=KEPT))
    rewards = 5.0 + np.random.default_rng(8).normal(size=(400, 3))
    state, _ = play(policy, small_contexts(400), rewards)
    description = describe(policy, state)
    assert state.selection.guarded
    assert (description.guarded, description.regimes, description.hmm) == (True, 1, None)
    assert [c.in_use for c in description.candidates] == [True, False, False]
    assert {c.regime for c in description.coefficients} == {None}
    assert description.noise_std == pytest.approx(1.0, abs=0.15)
    assert_plain(description)


def test_residuals_are_taken_about_the_centre(small, small_contexts, play):
    """Centred statistics that carry no σ̂ of their own."""
    policy = StagedPolicy(small(ridge=0.6, regimes=1, features=KEPT))
    rewards = 50.0 + np.random.default_rng(8).normal(size=(203, 3))
    state, _ = play(policy, small_contexts(203), rewards)
    bare = state._replace(selection=None)
    description, features = describe(policy, bare), policy.maps[1]
    assert description.centre == pytest.approx(50.0, abs=0.5)
    design = dense_rows(policy, features, state, np.ones((200, 1)), range(200))
    targets = state.history.rewards[:200] - description.centre
    _, noise, _ = regression(policy, features, design, np.ones(200), targets)
    assert description.noise_std == pytest.approx(noise, rel=1e-8)


# --- refusals ------------------------------------------------------------------------------------------------


def test_another_campaigns_state_is_refused(small, given):
    other = StagedPolicy(small(beliefs=given)).initial_state()
    for policy in (StagedPolicy(small(beliefs=given, features=KEPT)), StagedPolicy(small(regimes=1))):
        with pytest.raises(ArgumentError, match="another campaign"):
            describe(policy, other)
