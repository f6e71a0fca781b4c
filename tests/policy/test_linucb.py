"""The reward model against scikit-learn's Ridge, plain sums and 70-digit arithmetic; the bonuses by hand."""

import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from policy import ArgumentError, CampaignConfig, FeatureMap, StagedPolicy, bounds, kernels, linucb
from policy.encoding import Contexts

MAIN_EFFECTS = ["age", "education", "marital", "revenue", "risk"]
PER_REGIME = [
    "intercept",
    "actions",
    {"term": "actions:risk", "levels": ["1", "2", "4", "5"]},
    {"term": "actions:revenue", "levels": ["1", "4"]},
]


class Rounds(NamedTuple):
    """Random rounds of the credit-card campaign in its published map of 51 columns, and their stacked design."""

    features: FeatureMap
    contexts: Contexts
    actions: np.ndarray
    beliefs: np.ndarray
    rewards: np.ndarray
    design: np.ndarray

    def folded(self, ridge, rows, start=None):
        start = linucb.create_statistics(self.features.dimension, ridge) if start is None else start
        rows = np.array(rows, np.int64)
        return linucb.update_statistics(
            start, self.features, ridge, self.contexts, self.actions, self.beliefs, self.rewards, rows
        )

    def one_by_one(self, ridge, count):
        statistics = linucb.create_statistics(self.features.dimension, ridge)
        for row in range(count):
            statistics = self.folded(ridge, [row], statistics)
        return statistics


def simulated(credit_card, count, uniform_until=0):
    config = CampaignConfig(**credit_card, features={"shared": MAIN_EFFECTS, "per_regime": PER_REGIME})
    features, generator = FeatureMap(config), np.random.default_rng(20)
    levels = np.stack([generator.integers(0, n, count) for n in (5, 4, 3, 4, 5)], axis=1).astype(np.int16)
    contexts = Contexts(levels, np.empty((count, 0)), np.zeros(count, np.int16))
    actions = generator.integers(0, 3, count).astype(np.int16)
    # Multiples of 2⁻⁴⁰ sum to 1 exactly; else 1/λ = 1e9 times the rounding of b itself would blur the exact answer.
    first = np.round(generator.beta(0.5, 0.5, count) * 2**40) / 2**40
    first[:uniform_until] = 0.5
    beliefs = np.stack([first, 1.0 - first], axis=1)
    rewards = generator.normal(0.1, 0.2, count) + beliefs[:, 0] * actions
    design = np.array([features.dense(beliefs[i], actions[i], contexts, i) for i in range(count)])
    return Rounds(features, contexts, actions, beliefs, rewards, design)


@pytest.fixture(scope="module")
def rounds(credit_card):
    return simulated(credit_card, 10_600)


def exact_solution(rounds, count, ridge, sides):
    """G⁻¹ Σ z r and G⁻¹ z for each z of `sides`, by Gaussian elimination with 70 digits."""
    size = rounds.features.dimension
    with localcontext(prec=70):
        gram = [[Decimal(0)] * size for _ in range(size)]
        moment = [Decimal(0)] * size
        for i in range(size):
            gram[i][i] = Decimal(ridge)
        for z, reward in zip(rounds.design[:count], rounds.rewards[:count].tolist(), strict=True):
            active = [(i, Decimal(float(z[i]))) for i in np.flatnonzero(z)]
            for i, weight in active:
                moment[i] += weight * Decimal(reward)
                for j, other in active:
                    gram[i][j] += weight * other
        rows = [[*gram[i], moment[i], *(Decimal(float(z[i])) for z in sides)] for i in range(size)]
        for k in range(size):
            for row in rows[:k] + rows[k + 1 :]:
                if row[k]:
                    factor = row[k] / rows[k][k]
                    row[k:] = [mine - factor * other for mine, other in zip(row[k:], rows[k][k:], strict=True)]
        solved = np.array([[float(x / row[k]) for x in row[size:]] for k, row in enumerate(rows)])
    return solved[:, 0], solved[:, 1:].T


def assert_scores_agree(rounds, statistics, exact, sides, rtol):
    """What decisions see: estimates θ̂ᵀz, vectors G⁻¹z with their norms, and quadratic forms zᵀG⁻¹z."""
    theta, solved = exact
    products = sides @ statistics.inverse
    np.testing.assert_allclose(sides @ statistics.theta, sides @ theta, rtol=rtol, atol=rtol)
    scale = np.abs(solved).max(axis=1, keepdims=True)
    np.testing.assert_allclose(products / scale, solved / scale, atol=rtol)
    np.testing.assert_allclose(np.linalg.norm(products, axis=1), np.linalg.norm(solved, axis=1), rtol=rtol)
    quadratic, expected = (np.einsum("ij,ij->i", sides, x) for x in (products, solved))
    np.testing.assert_allclose(quadratic, expected, rtol=rtol)


# --- against others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1e-3, 0.3, 10, 100])
@pytest.mark.parametrize("count", [30, 1000])
def test_sums_inverse_and_theta_are_numpys_and_scikit_learns(rounds, ridge, count):
    """eq. estimate-theta on the stacked design, fewer rounds than columns included."""
    ours, design, rewards = rounds.folded(ridge, range(count)), rounds.design[:count], rounds.rewards[:count]
    gram, sides = design.T @ design + ridge * np.eye(51), rounds.design[count : count + 30]
    assert ours.counters.tolist() == [count, 0]
    np.testing.assert_allclose(ours.gram, gram, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.moment, design.T @ rewards, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sides @ ours.inverse, np.linalg.solve(gram, sides.T).T, rtol=1e-7, atol=1e-9)
    theirs = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(design, rewards)
    np.testing.assert_allclose(ours.theta, theirs.coef_, rtol=1e-8, atol=1e-10)


def test_new_statistics():
    new = linucb.create_statistics(3, 0.4)
    assert (new.theta == 2.5).all()
    assert (new.units.tolist(), new.counters.tolist()) == ([0.0, 1.0], [0, -1])
    assert not linucb.is_current(new)


def test_before_any_reward(rounds):
    """Box A: θ̂₀ = (1/λ)·1 and G = λI, so G⁻¹ = I/λ and not λI."""
    start = linucb.create_statistics(4, 0.25)
    assert start.theta.tolist() == [4.0] * 4
    assert (start.gram == 0.25 * np.eye(4)).all()
    assert (start.inverse == 4.0 * np.eye(4)).all()
    assert start.moment.tolist() == [0.0] * 4
    empty = rounds.folded(0.25, [])  # a stage update without any reward: G⁻¹ Σ z r = 0
    assert (empty.theta == 0.0).all()
    assert (empty.gram == 0.25 * np.eye(51)).all()
    z = rounds.design[0]
    np.testing.assert_allclose(z @ empty.inverse, z / 0.25, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan, np.inf])
def test_a_wrong_ridge_is_refused(ridge):
    with pytest.raises(ArgumentError) as caught:
        linucb.create_statistics(4, ridge)
    assert caught.value.problems[0].field == "ridge"
    assert caught.value.problems[0].allowed


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 33])
def test_every_number_of_columns_is_factored(size):
    """The kernels go four rows at a time: whole groups, none, and what is left over."""
    design = np.random.default_rng(size).normal(size=(3 * size, size))
    gram, moment = design.T @ design + 0.3 * np.eye(size), design.sum(axis=0)
    found = linucb.create_statistics(size, 0.3)._replace(gram=gram.copy(), moment=moment)
    kernels.factor(found, np.zeros((size, size)), 0.3)
    np.testing.assert_allclose(found.inverse, np.linalg.inv(gram), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.theta, np.linalg.solve(gram, moment), rtol=1e-9, atol=1e-12)
    assert (found.gram == gram).all()
    assert (found.inverse == found.inverse.T).all()


@pytest.mark.parametrize("levels", [2, 7])
@pytest.mark.parametrize("form", ["complex", "elliptical"])
def test_every_number_of_columns_is_scored_and_updated(levels, form):
    """From 4 columns to 54: decisions one by one against plain matrix products."""
    names = [str(level) for level in range(levels)]
    config = CampaignConfig(
        name="columns", actions=["none", "call"], variables=[{"name": "x", "levels": names}], regimes=2,
        stage_length=5, ridge=0.5, warm_start_rounds=5, features={"shared": ["x"], "per_regime": ["actions:x"]},
        beliefs={"estimator": "none"}, bonus={"form": form, "scale": 0.1},
    )  # fmt: skip
    policy, generator = StagedPolicy(config), np.random.default_rng(levels)
    state, gram, moment = policy.initial_state(), 0.5 * np.eye(3 * levels), np.zeros(3 * levels)
    pending = []
    for t in range(1, 61):
        if t % 5 == 1 and t > 1:
            for z, reward in pending:
                gram, moment = gram + np.outer(z, z), moment + reward * z
            pending.clear()
        state, decision = policy.decide(state, {"x": names[generator.integers(levels)]})
        contexts, belief = state.history.contexts, state.history.beliefs[t - 1]
        every = [policy.features.dense(belief, action, contexts, t - 1) for action in (0, 1)]
        if t > 5:
            products = [np.linalg.solve(gram, z) for z in every]
            norms = [
                np.linalg.norm(p) if form == "complex" else (p @ z) ** 0.5 for p, z in zip(products, every, strict=True)
            ]
            factor = 0.1 * (math.ceil(t / 5) * 5**0.5 if form == "complex" else 1.0)
            np.testing.assert_allclose(decision.bonuses, factor * np.array(norms), rtol=1e-9)
            np.testing.assert_allclose(decision.estimates, [p @ moment for p in products], rtol=1e-8, atol=1e-10)
        reward = float(generator.normal())
        pending.append((every[config.actions.index(decision.action)], reward))
        state = policy.reward(state, t, reward)


# --- rank-one and factorised ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1e-9, 10])
def test_rank_one_equals_factorised_after_thousands_of_rounds(rounds, ridge):
    one_by_one, count = rounds.one_by_one(ridge, 3_000), 3_000
    while (
        one_by_one.counters[1] < kernels.FACTOR_EVERY - 1
    ):  # go on to just before a re-factorisation, where the drift is largest
        one_by_one = rounds.folded(ridge, [count], one_by_one)
        count += 1
    factorised = rounds.folded(ridge, range(count))
    assert factorised.counters.tolist() == [count, 0]
    assert (one_by_one.gram == factorised.gram).all()
    assert (one_by_one.moment == factorised.moment).all()
    sides = rounds.design[:40]
    scale = np.abs(factorised.theta).max()
    np.testing.assert_allclose(one_by_one.theta / scale, factorised.theta / scale, atol=1e-10)
    exact = exact_solution(rounds, count, ridge, sides)
    assert_scores_agree(rounds, one_by_one, exact, sides, rtol=1e-10)
    assert_scores_agree(rounds, factorised, exact, sides, rtol=1e-10)


# Digits left: λ = 1e-9 beside sums of 10² leaves 1e-16·1e11 in the directions that no round has visited yet.
@pytest.mark.parametrize(
    ("ridge", "count", "uniform_until", "rtol"),
    [
        (1e-9, 10, 0, 5e-6),
        (1e-9, 60, 0, 5e-6),
        (1e-9, 300, 0, 1e-10),
        (1e-9, 990, 1000, 3e-4),  # the belief still uniform: half of the directions unvisited
        (1e-9, 1100, 1000, 1e-10),
        (1e-3, 60, 0, 1e-10),
        (1e-3, 990, 1000, 1e-9),
        (10, 300, 100, 1e-12),
    ],
)
def test_scores_are_right_from_the_first_rounds_on_also_with_a_tiny_ridge(
    credit_card, ridge, count, uniform_until, rtol
):
    rounds = simulated(credit_card, 1110, uniform_until)
    sides = np.array(
        [
            rounds.features.dense(rounds.beliefs[i], action, rounds.contexts, i)
            for i in range(count - 3, count + 3)
            for action in range(3)
        ]
    )
    exact = exact_solution(rounds, count, ridge, sides)
    for statistics in (rounds.folded(ridge, range(count)), rounds.one_by_one(ridge, count)):
        assert all(np.isfinite(array).all() for array in statistics)
        assert_scores_agree(rounds, statistics, exact, sides, rtol)


def test_stages_of_any_length_agree(rounds):
    """Few rows go in by rank-one updates, many by one Cholesky: the sums are the same bits, θ̂ the same number."""
    whole = rounds.folded(0.3, range(600))
    for length in (1, 7, 12, 13, 37, 200):
        statistics = None
        for start in range(0, 600, length):
            statistics = rounds.folded(0.3, range(start, min(start + length, 600)), statistics)
        assert (statistics.gram == whole.gram).all()
        assert (statistics.moment == whole.moment).all()
        np.testing.assert_allclose(statistics.theta, whole.theta, rtol=1e-10, atol=1e-12)


def test_an_update_leaves_what_it_was_given_alone(rounds):
    before = rounds.folded(0.3, range(50))
    copies = [array.copy() for array in before]
    after = rounds.folded(0.3, range(50, 60), before)
    assert all((array == copy).all() for array, copy in zip(before, copies, strict=True))
    assert after.counters[0] == 60
    assert not (after.theta == before.theta).all()


def test_an_update_that_folds_nothing_is_what_the_kernel_would_leave(rounds):
    """Stages end without rewards, too: those updates skip the kernel, but for the first, which factors."""
    initial = linucb.create_statistics(rounds.features.dimension, 0.3)
    first = rounds.folded(0.3, range(0))
    assert first.counters.tolist() == [0, 0]
    assert not (first.theta == initial.theta).all()
    before = rounds.folded(0.3, range(50))
    for statistics in (first, before):
        by_kernel = linucb.copy_statistics(statistics)
        contexts, history = rounds.contexts, (rounds.actions, rounds.beliefs, rounds.rewards)
        kernels.update_statistics(
            rounds.features.plan, by_kernel, 0.3, contexts.levels, contexts.values, *history, np.empty(0, np.int64)
        )
        skipped = rounds.folded(0.3, range(0), statistics)
        assert all(one.tobytes() == other.tobytes() for one, other in zip(skipped, by_kernel, strict=True))


def test_only_the_given_rows_enter_and_only_their_columns_are_touched(rounds):
    statistics = rounds.folded(0.3, [17])
    active = rounds.design[17] != 0
    sums = statistics.gram - 0.3 * np.eye(51)
    assert (sums[np.ix_(active, active)] != 0).all()
    assert np.count_nonzero(sums) == active.sum() ** 2
    assert (statistics.moment != 0).tolist() == active.tolist()
    # Rows are folded in the order given (R1): another order is another sum, equal only up to rounding.
    forward, backward = rounds.folded(0.3, range(400)), rounds.folded(0.3, range(399, -1, -1))
    assert not (forward.moment == backward.moment).all()
    np.testing.assert_allclose(forward.moment, backward.moment, rtol=1e-10, atol=1e-12)


# --- bonuses by hand -----------------------------------------------------------------------------------------


def bare(**changes):
    """No context at all: z = (1, 0) of "a" and (1, 1) of "b", so everything fits on paper."""
    fields = {"name": "bare", "actions": ["a", "b"], "variables": [], "beliefs": {"estimator": "none"}}
    return CampaignConfig(**fields, seed=5, warm_start_rounds=0, **changes)


@pytest.mark.parametrize(
    ("form", "first", "fourth"),
    [
        # Round 1: G = λI with λ = 1/2, so G⁻¹z = 2z; s = 1, ℓ = 3, ln 1 = 0.
        # Round 4, after a, a, b: G = [[3.5, 1], [1, 1.5]], G⁻¹ = [[1.5, -1], [-1, 3.5]] / 4.25; s = 2.
        # G⁻¹z = (1.5, -1) / 4.25 for a and (0.5, 2.5) / 4.25 for b; zᵀG⁻¹z = 1.5 / 4.25 and 3 / 4.25.
        ("complex", [math.sqrt(3) * 2, math.sqrt(3) * math.sqrt(8)],
         [2 * math.sqrt(3) * math.sqrt(3.25) / 4.25, 2 * math.sqrt(3) * math.sqrt(6.5) / 4.25]),
        ("simplified", [math.sqrt(3) * 2, math.sqrt(3) * math.sqrt(8)],
         [math.sqrt(6) * math.sqrt(3.25) / 4.25, math.sqrt(6) * math.sqrt(6.5) / 4.25]),
        ("plain", [0.0, 0.0],
         [math.log(4) * math.sqrt(1.5 / 4.25), math.log(4) * math.sqrt(3 / 4.25)]),
        ("elliptical", [math.sqrt(2), 2.0], [math.sqrt(1.5 / 4.25), math.sqrt(3 / 4.25)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scale", [0.7, 0.0])
def test_bonus_forms_by_hand(form, first, fourth, scale):
    policy = StagedPolicy(bare(stage_length=3, ridge=0.5, bonus={"form": form, "scale": scale}))
    state = policy.initial_state()
    start = policy.preview(state, {})
    assert [s.estimate for s in start.scores] == [2.0, 4.0]  # θ̂₀ = (1/λ)·1
    np.testing.assert_allclose([s.bonus for s in start.scores], np.array(first) * scale, rtol=1e-12)
    for action, other, reward in (("a", "b", 1.0), ("a", "b", 2.0), ("b", "a", 6.0)):
        state, decision = policy.decide(state, {}, excluded_actions=[other])
        assert decision.action == action
        state = policy.reward(state, decision.round, reward)
    decision = policy.preview(state, {})
    assert (decision.round, decision.stage) == (4, 2)
    # Σ z r = (9, 6), θ̂ = (7.5, 12) / 4.25.
    np.testing.assert_allclose([s.estimate for s in decision.scores], [7.5 / 4.25, 19.5 / 4.25], rtol=1e-12)
    np.testing.assert_allclose([s.bonus for s in decision.scores], np.array(fourth) * scale, rtol=1e-12)
    assert all(s.score == s.estimate + s.bonus for s in decision.scores)


def test_s_t_counts_on_between_updates_that_fold_nothing():
    """R1: the bonus takes the current s_t; only θ̂ and G wait for rewards."""
    policy = StagedPolicy(bare(stage_length=2, ridge=4.0, bonus={"form": "complex", "scale": 1.0}))
    state = policy.initial_state()
    for stage in (1, 1, 2, 2, 3, 3, 4):  # G = 4I throughout: ‖G⁻¹z‖ is 1/4 for a and √2/4 for b
        state, decision = policy.decide(state, {})
        assert decision.stage == stage
        expected = [stage * math.sqrt(2) / 4, stage * 2 / 4]
        np.testing.assert_allclose([s.bonus for s in decision.scores], expected, rtol=1e-12)


def test_bonus_with_two_regimes_by_hand():
    """A belief of (3/4, 1/4) enters z = (b₁, b₁[a=b], b₂, b₂[a=b]); G = λI."""
    config = CampaignConfig(
        name="two", actions=["a", "b"], variables=[{"name": "v", "levels": ["x", "y"]}], ridge=0.25, seed=1,
        features={"per_regime": ["intercept", "actions"]}, bonus={"form": "elliptical", "scale": 2.0},
        beliefs={"estimator": "given", "parameters": {
            "transition": [[0.9, 0.1], [0.4, 0.6]], "emission": [[0.6, 0.4], [0.2, 0.8]], "initial": [0.5, 0.5]}},
    )  # fmt: skip
    decision = StagedPolicy(config).preview(StagedPolicy(config).initial_state(), {"v": "x"})
    np.testing.assert_allclose(decision.belief, [0.75, 0.25], rtol=1e-14)
    a = 2.0 * math.sqrt((0.75**2 + 0.25**2) / 0.25)
    np.testing.assert_allclose([s.bonus for s in decision.scores], [a, a * math.sqrt(2)], rtol=1e-13)
    np.testing.assert_allclose([s.estimate for s in decision.scores], [4.0, 8.0], rtol=1e-14)


@pytest.mark.parametrize("form", ["theory_general", "theory_simplified"])
def test_the_theorems_bonuses_on_features_scaled_to_norm_1(form):
    """z of a and b divided by √2, their norms' bound (docs/paper-notes.md), λ as given; rewards in units of `scale`."""
    constants = {"risk": 0.1, "c_theta": 1.5}
    if form == "theory_general":
        length, constants = 3, {**constants, "horizon": 90, "gamma": 0.25, "c_eta": 0.04}
    else:
        length, constants = 1, {**constants, "v_eta": 0.3}
    policy = StagedPolicy(bare(stage_length=length, ridge=0.5, bonus={"form": form, "scale": 2.0, **constants}))
    known = {"ridge": 0.5, "regimes": 1, "symbols": 1, "dimension": 2, **constants}
    if form == "theory_general":
        additive, factor = bounds.General(stage_length=length, **known).compute_bonus(np.arange(1, 8))
    else:
        additive, factor = bounds.Simplified(**known).compute_bonus(np.arange(1, 8))
    z = np.array([[1.0, 0.0], [1.0, 1.0]]) / math.sqrt(2)  # of a and of b
    gram, moment, pending = 0.5 * np.eye(2), np.zeros(2), []
    state = policy.initial_state()
    for t in range(1, 8):
        if t > 1 and (t - 1) % length == 0:
            for a, reward in pending:
                gram, moment = gram + np.outer(z[a], z[a]), moment + z[a] * reward
            pending = []
        state, decision = policy.decide(state, {})
        solved = np.linalg.solve(gram, z.T).T
        norms = np.linalg.norm(solved, axis=1)
        if form == "theory_simplified":
            norms = np.sqrt(np.einsum("ij,ij->i", z, solved))
        expected = 2.0 * (additive[t - 1] + factor[t - 1] * norms)
        np.testing.assert_allclose([s.bonus for s in decision.scores], expected, rtol=1e-10)
        if decision.stage > 1:
            np.testing.assert_allclose([s.estimate for s in decision.scores], solved @ moment, rtol=1e-10)
        pending.append(("ab".index(decision.action), float(t)))
        state = policy.reward(state, t, float(t))
