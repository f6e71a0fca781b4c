"""Markov-switching regression against enumeration and dense sums; what the unit of rewards changes: nothing."""

import itertools
import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from policy import CampaignConfig, StagedPolicy, em, encode, hmm, joint, spectral
from policy.encoding import Contexts
from policy.features import get_feature_map
from policy.history import History
from policy.hmm import HmmParameters
from simulator.environment import load_environment
from tests.policy.test_selection import default

RIDGE = 0.4


def levelled(**changes):
    """Variables with levels only, so that rounds share profiles; 4 symbols."""
    fields = {
        "name": "levels",
        "actions": ["none", "call"],
        "variables": [
            {"name": "risk", "levels": ["low", "high"]},
            {"name": "size", "levels": ["s", "l"]},
            {"name": "age", "cuts": [30]},
        ],
        "signals": ["risk", "size"],
        "seed": 4001,
    }
    return CampaignConfig(**{**fields, **changes})


def random_contexts(features, count, generator):
    sizes = [max(len(variable.level_names), 1) for variable in features.variables]
    levels = np.stack([generator.integers(0, size, count) for size in sizes], axis=1).astype(np.int16)
    values = generator.random((count, features.numbers))
    return Contexts(levels, values, generator.integers(0, features.symbols, count).astype(np.int16))


def recorded(features, contexts, actions, rewards, steps=None):
    """A history of these rounds; a NaN reward never came, the others in a scrambled order."""
    count = actions.size
    history = History(len(features.variables), features.numbers, features.regimes)
    moves = np.minimum(np.arange(count), 1) if steps is None else steps
    history.append(contexts, moves, actions, np.zeros((count, features.regimes)))
    for row in np.random.default_rng(count).permutation(np.flatnonzero(~np.isnan(rewards))):
        history.add_reward(int(row), float(rewards[row]))
    return history


def design(features, data):
    return joint.make_design(features, data.contexts, data.actions)


def random_model(features, generator):
    h, x = features.regimes, features.symbols
    parameters = HmmParameters.check(
        generator.dirichlet(np.ones(h), h), generator.dirichlet(np.ones(x), h), generator.dirichlet(np.ones(h))
    )
    return parameters, generator.normal(size=features.dimension), 0.3 + generator.random()


def problem(config, regimes, count, seed, gaps=False):
    """Rounds with some symbols and rewards missing, and a model that has nothing to do with them."""
    features = get_feature_map(config, regimes)
    generator = np.random.default_rng([regimes, count, seed])
    contexts = random_contexts(features, count, generator)
    contexts.symbols[generator.random(count) < 0.2] = -1
    actions = generator.integers(0, len(features.actions), count).astype(np.int16)
    rewards = generator.normal(3.0, 1.0, count)
    rewards[generator.random(count) < 0.3] = np.nan
    steps = None
    if gaps:
        steps = generator.integers(0, 4, count).astype(np.int16)
        steps[0] = 0
    history = recorded(features, contexts, actions, rewards, steps)
    data = joint.gather(features, history, count, history.arrived)
    return features, contexts, actions, rewards, history.steps[:count], data, random_model(features, generator)


def vertices_of(features, contexts, actions, row):
    """z_h of every regime, dense."""
    return [features.dense(vertex, int(actions[row]), contexts, row) for vertex in np.eye(features.regimes)]


def enumerated(features, contexts, actions, rewards, steps, centre, model):
    """Log-likelihood, posterior (T×H), expected transitions and emissions, by all paths at every chain step."""
    (transition, emission, initial), theta, noise = model
    count, regimes = actions.size, features.regimes
    places = np.cumsum(steps)  # the chain step of every row
    weights = np.ones((places[-1] + 1, regimes))
    for row in range(count):
        if contexts.symbols[row] >= 0:
            weights[places[row]] *= emission[:, contexts.symbols[row]]
        if not math.isnan(rewards[row]):
            means = np.array([theta @ z for z in vertices_of(features, contexts, actions, row)])
            weights[places[row]] *= np.exp(-((rewards[row] - centre - means) ** 2) / (2 * noise**2))
    total, posterior = 0.0, np.zeros((places[-1] + 1, regimes))
    pairs, emitted = np.zeros_like(transition), np.zeros_like(emission)
    for path in itertools.product(range(regimes), repeat=int(places[-1]) + 1):
        weight = initial[path[0]] * math.prod(weights[i, h] for i, h in enumerate(path))
        weight *= math.prod(transition[g, h] for g, h in itertools.pairwise(path))
        total += weight
        for i, h in enumerate(path):
            posterior[i, h] += weight
        for g, h in itertools.pairwise(path):
            pairs[g, h] += weight
    posterior /= total
    for row in range(count):
        if contexts.symbols[row] >= 0:
            emitted[:, contexts.symbols[row]] += posterior[places[row]]
    return math.log(total), posterior[places], pairs / total, emitted


def objective_of(value, model, known):
    (transition, emission, _), theta, noise = model
    prior = em.SMOOTHING * (np.log(transition).sum() + np.log(emission).sum())
    return value + prior - known * math.log(noise) - RIDGE * theta @ theta / (2 * noise**2)


SHAPES = [(h, t, gaps) for h in (1, 2, 3) for t in (1, 2, 4, 6) for gaps in (False, True) if h**t < 900 or not gaps]


@pytest.mark.parametrize(("regimes", "count", "gaps"), SHAPES)
@pytest.mark.parametrize("kind", ["levels", "numbers"])
def test_one_em_step_by_enumeration(small, kind, regimes, count, gaps):
    """E-step: posterior and likelihood over all paths. M-step: counts, weighted ridge, penalised residual."""
    config = levelled() if kind == "levels" else small()
    for seed in range(3):
        features, contexts, actions, rewards, steps, data, model = problem(config, regimes, count, seed, gaps)
        if steps.sum() > 8:
            continue
        known = int((~np.isnan(rewards)).sum())
        centre = float(np.nanmean(rewards)) if known else 0.0
        assert data.known == known
        assert data.centre == pytest.approx(centre, rel=1e-13)
        value, posterior, pairs, emitted = enumerated(features, contexts, actions, rewards, steps, centre, model)
        still = joint.fit_joint(data, design(features, data), RIDGE, *model, 0)
        np.testing.assert_allclose(still.posterior[data.rows], posterior, atol=1e-10)
        assert still.objective == pytest.approx([objective_of(value, model, known)], rel=1e-9)
        if not known:
            continue
        once = joint.fit_joint(data, design(features, data), RIDGE, *model, 1)
        for found, counts in ((once.hmm.transition, pairs), (once.hmm.emission, emitted)):
            smoothed = counts + em.SMOOTHING
            np.testing.assert_allclose(found, smoothed / smoothed.sum(axis=1, keepdims=True), atol=1e-9)
        assert (once.hmm.initial == model[0].initial).all()
        theta, residual = weighted_ridge(features, contexts, actions, rewards - centre, posterior)
        np.testing.assert_allclose(still.theta, theta, rtol=1e-8, atol=1e-9)
        assert once.noise == pytest.approx(max(math.sqrt(residual / known), data.least_noise), rel=1e-7)
        stepped = objective_of(
            enumerated(features, contexts, actions, rewards, steps, centre, (once.hmm, theta, once.noise))[0],
            (once.hmm, theta, once.noise), known,
        )  # fmt: skip
        assert once.objective[1] == pytest.approx(stepped, rel=1e-7, abs=1e-7)


def weighted_ridge(features, contexts, actions, rewards, posterior):
    """θ̂ and the penalised residual of the regression with one row a round and regime, weighted by γ."""
    gram, moment, rows = RIDGE * np.eye(features.dimension), np.zeros(features.dimension), []
    for row in np.flatnonzero(~np.isnan(rewards)):
        for weight, z in zip(posterior[row], vertices_of(features, contexts, actions, row), strict=True):
            gram += weight * np.outer(z, z)
            moment += weight * rewards[row] * z
            rows.append((weight, z, rewards[row]))
    theta = np.linalg.solve(gram, moment)
    return theta, sum(w * (r - theta @ z) ** 2 for w, z, r in rows) + RIDGE * theta @ theta


# --- statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("regimes", "share"), [(1, 0.6), (2, 0.0), (3, 0.6), (4, 1.0)])
@pytest.mark.parametrize("kind", ["levels", "levels, sorted", "numbers", "numbers and gaps"])
def test_solved_is_the_dense_sum(small, monkeypatch, kind, regimes, share):
    """The first rows as Σ_h γ(h) z_h z_hᵀ, the others as z zᵀ with z = z(γ); θ̂ by numpy and by scikit-learn."""
    if kind == "levels, sorted":
        monkeypatch.setattr(joint, "LARGEST_TABLE", 0)  # rounds are grouped by sorting, not by a table
    config, count = levelled() if kind.startswith("levels") else small(), 150
    features, contexts, actions, rewards, _, data, _ = problem(config, regimes, count, 7, kind.endswith("gaps"))
    assert (data.symbols.size > count) == kind.endswith("gaps")
    if kind.startswith("levels"):
        assert data.actions.size <= 2 * 8 < count  # rounds share profiles
    posterior = np.random.default_rng(3).dirichlet(np.full(regimes, 0.5), count)
    spread = np.full((data.symbols.size, regimes), np.nan)  # rows of a gap have no reward: their belief is not read
    spread[data.rows] = posterior
    vertices = int(data.rows[int(share * count) - 1]) + 1 if share else 0
    statistics = joint.compute_statistics(data, design(features, data), RIDGE, spread, vertices)
    rows, targets, weights = [], [], []
    for row in np.flatnonzero(~np.isnan(rewards)):
        each = vertices_of(features, contexts, actions, row)
        if data.rows[row] >= vertices:
            each, chances = [features.dense(posterior[row], int(actions[row]), contexts, row)], [1.0]
        else:
            chances = posterior[row]
        rows += each
        weights += list(chances)
        targets += [rewards[row] - np.nanmean(rewards)] * len(each)
    z, targets, weights = np.array(rows), np.array(targets), np.array(weights)
    gram = (z.T * weights) @ z + RIDGE * np.eye(features.dimension)
    np.testing.assert_allclose(statistics.gram, gram, rtol=1e-11, atol=1e-11)
    assert (statistics.gram == statistics.gram.T).all()
    np.testing.assert_allclose(statistics.moment, z.T @ (weights * targets), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(statistics.theta, np.linalg.solve(gram, statistics.moment), rtol=1e-8, atol=1e-9)
    peer = Ridge(alpha=RIDGE, fit_intercept=False, tol=1e-12).fit(z, targets, sample_weight=weights)
    np.testing.assert_allclose(statistics.theta, peer.coef_, rtol=1e-7, atol=1e-8)
    inverse = np.linalg.inv(gram)  # ‖z‖_{G⁻¹} is what the bonus takes from it
    for one in z[:20]:
        assert one @ statistics.inverse @ one == pytest.approx(one @ inverse @ one, rel=1e-8)
    assert statistics.counters[0] == data.known


def test_gather_knows_only_what_had_arrived():
    """Missing and late rewards leave their round's reward out (R16: also when they have come since)."""
    features, contexts, actions, rewards, *_ = problem(levelled(), 2, 60, 1)
    history = recorded(features, contexts, actions, rewards)
    order = history.get_arrival_order(history.arrived)
    data = joint.gather(features, history, 40, 11)
    expected = [row for row in order[:11] if row < 40]
    assert data.known == len(expected) < 11
    assert np.flatnonzero(~np.isnan(data.rewards)).tolist() == sorted(expected)
    assert data.centre == pytest.approx(rewards[expected].mean(), rel=1e-13)
    np.testing.assert_allclose(data.rewards[expected], rewards[expected] - data.centre, atol=1e-13)
    assert data.least_noise == pytest.approx(joint.LEAST_NOISE * rewards[expected].std())
    # A profile is a context and an action.
    for row in range(40):
        profile = data.profiles[row]
        assert (data.contexts.levels[profile] == contexts.levels[row]).all()
        assert data.actions[profile] == actions[row]


# --- EM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("regimes", [1, 3])
@pytest.mark.parametrize("reward", [lambda r: r, lambda r: 0.0 * r, lambda r: 1e6 + 1e5 * np.round(r)])
def test_the_objective_never_falls(small, regimes, gaps, reward):
    """Also where the noise is at its floor."""
    features, contexts, actions, rewards, steps, _, model = problem(small(), regimes, 200, 5, gaps)
    history = recorded(features, contexts, actions, reward(rewards), steps)
    data = joint.gather(features, history, 200, history.arrived)
    theta = np.zeros(features.dimension)
    unit = max(float(np.nanstd(data.rewards)), 1.0)
    fit = joint.fit_joint(data, design(features, data), RIDGE, model[0], theta, unit, 30)
    assert len(fit.objective) == 31
    assert np.isfinite(fit.objective).all()
    gains = np.diff(fit.objective)
    assert (gains >= -1e-9 * np.abs(fit.objective[1:])).all()
    assert gains[0] > 0.0
    assert fit.noise >= data.least_noise
    np.testing.assert_allclose(fit.posterior.sum(axis=1), 1.0, atol=1e-12)
    HmmParameters.check(*fit.hmm)


def switching(count, seed, share_missing=0.0):
    """Markov-switching data over the levelled campaign: symbols tell the regimes a little, rewards much more."""
    features = get_feature_map(levelled(), 2)
    generator = np.random.default_rng(seed)
    truth = HmmParameters.check([[0.92, 0.08], [0.15, 0.85]], [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], [0.5, 0.5])
    theta, noise = generator.normal(size=features.dimension), 0.5
    regimes, symbols = hmm.sample(truth, count, generator)
    levels = np.stack([symbols // 2, symbols % 2, generator.integers(0, 2, count)], axis=1).astype(np.int16)
    contexts = Contexts(levels, np.empty((count, 0)), symbols)
    actions = generator.integers(0, 2, count).astype(np.int16)
    means = [theta @ vertices_of(features, contexts, actions, t)[regimes[t]] for t in range(count)]
    rewards = np.array(means) + noise * generator.normal(size=count)
    rewards[generator.random(count) < share_missing] = np.nan
    history = recorded(features, contexts, actions, rewards)
    return features, truth, theta, noise, regimes, joint.gather(features, history, count, history.arrived)


def by_profile(features, theta, data, order=(0, 1)):
    """θᵀz_h of every profile: θ itself is not unique, one-hot columns being collinear."""
    rows = [vertices_of(features, data.contexts, data.actions, profile) for profile in range(data.actions.size)]
    return (np.array(rows) @ theta)[:, order]


@pytest.mark.parametrize(("seed", "share_missing"), [(1, 0.0), (2, 0.3)])
def test_recovers_a_known_model(seed, share_missing):
    features, truth, theta, noise, regimes, data = switching(6000, seed, share_missing)
    start = em.estimate(data.symbols, 2, 4, seed)
    smoothed = joint.fit_smoothed(data, design(features, data), RIDGE, start)
    fit = joint.fit_joint(data, design(features, data), RIDGE, em.open_zeros(start), smoothed.theta, smoothed.noise, 60)
    found, order = spectral.align(fit.hmm, truth)
    assert np.abs(found.transition - truth.transition).max() < 0.03
    assert np.abs(found.emission - truth.emission).max() < 0.03
    assert fit.noise == pytest.approx(noise, rel=0.03)
    difference = by_profile(features, fit.theta, data, order) + data.centre - by_profile(features, theta, data)
    assert np.abs(difference).max() < 0.12
    # Rewards tell the regimes apart: the posterior is far better than the smoothed belief, whose noise is the larger.
    right, guessed = (p[np.arange(6000), order[regimes]].mean() for p in (fit.posterior, smoothed.posterior))
    assert right > guessed + 0.02
    assert smoothed.noise > fit.noise


@pytest.mark.parametrize("ridge", [0.01, RIDGE, 20.0])
def test_smoothed_is_the_regression_on_smoothed_beliefs(ridge):
    """σ̂²: the penalised residual over n less half the trace of the smoother matrix, the effective parameters."""
    features, truth, _, _, _, data = switching(500, 3, 0.2)
    assert np.trace(features.plan.null) > 0.5  # directions that no z has are no parameters
    fit = joint.fit_smoothed(data, design(features, data), ridge, truth)
    assert (fit.posterior == hmm.compute_expectations(truth, data.symbols).beliefs).all()
    assert fit.objective == ()
    known = np.flatnonzero(~np.isnan(data.rewards))
    z = np.array(
        [features.dense(fit.posterior[t], int(data.actions[p := data.profiles[t]]), data.contexts, p) for t in known]
    )
    gram = z.T @ z + ridge * np.eye(features.dimension)
    np.testing.assert_allclose(fit.theta, np.linalg.solve(gram, z.T @ data.rewards[known]), rtol=1e-8, atol=1e-10)
    residual = ((data.rewards[known] - z @ fit.theta) ** 2).sum() + ridge * fit.theta @ fit.theta
    effective = np.trace(z @ np.linalg.solve(gram, z.T))
    assert fit.noise == pytest.approx(math.sqrt(residual / (known.size - effective / 2)), rel=1e-6)


# --- the whole default policy --------------------------------------------------------------------------------


@pytest.mark.parametrize("constant", [0.0, -1e100, 1e-200])
def test_constant_rewards_break_nothing(constant):
    """The noise has a floor, so that nothing is divided by 0 and every action is still tried."""
    environment = load_environment("credit-card")
    episode = environment.draw(300, np.random.default_rng(4001))
    policy = default(environment, 4001)
    state = policy.play(policy.initial_state(), episode.contexts, np.full((300, 3), constant))
    assert {c.regimes for c in state.selection.candidates} >= {1, 2}
    for candidate in state.selection.candidates:
        assert candidate.units[1] > 0.0
        assert all(np.isfinite(part).all() for part in (*candidate.hmm, *candidate[1:4]))
    assert all(np.isfinite(part).all() for part in state.statistics)
    assert np.bincount(state.history.actions[:300], minlength=3).min() > 30
    decision = policy.preview(state, environment.describe_context(episode, 0))
    assert decision.estimates == pytest.approx([constant] * 3, rel=1e-9)
    assert all(math.isfinite(bonus) and bonus > 0.0 for bonus in decision.bonuses)


@pytest.mark.parametrize(("regimes", "scale", "shift"), [("auto", 500.0, 20.0), (2, 1e-3, -7.0)])
def test_neither_unit_nor_zero_of_the_rewards_changes_a_decision(scale, shift, regimes):
    """Centred rewards, bonus in units of σ̂: the same decisions to the last one, scores that scale."""
    environment = load_environment("credit-card")
    episode = environment.draw(700, np.random.default_rng(4003))
    policy = default(environment, 4003, regimes=regimes)
    plain, other = (
        policy.play(policy.initial_state(), episode.contexts, table)
        for table in (episode.rewards, shift + scale * episode.rewards)
    )
    assert (plain.history.actions[:700] == other.history.actions[:700]).all()
    assert plain.selection.chosen == other.selection.chosen
    assert len(plain.selection.candidates) >= 3  # regimes, EM and all
    for row in range(0, 700, 100):
        context = environment.describe_context(episode, row)
        mine, theirs = policy.preview(plain, context), policy.preview(other, context)
        assert mine.belief == pytest.approx(theirs.belief, rel=1e-6)
        expected = [shift + scale * estimate for estimate in mine.estimates]
        np.testing.assert_allclose(theirs.estimates, expected, rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(theirs.bonuses, scale * np.array(mine.bonuses), rtol=1e-6)
    for one, two in zip(plain.selection.candidates, other.selection.candidates, strict=True):
        np.testing.assert_allclose(two.gains, one.gains, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(two.units, [shift + scale * one.units[0], scale * one.units[1]], rtol=1e-7)


def test_the_bonus_is_in_units_of_the_estimated_noise():
    """κ σ̂_a ‖z‖_{G⁻¹}, perhaps times a function of the round: one and the same for all actions and contexts."""
    environment = load_environment("credit-card")
    episode = environment.draw(405, np.random.default_rng(4002))
    ratios = []
    for kappa in (1.75, 3.5):
        policy = default(
            environment, 4002, regimes=1, warm_start_rounds=405, beliefs={"start_round": 101},
            bonus={"form": "noise", "scale": kappa},
        )  # fmt: skip
        state = policy.play(policy.initial_state(), episode.contexts, episode.rewards)
        _, _, inverse, theta, _, (centre, noise, *noises) = state.statistics
        assert [noise, *noises] == pytest.approx([environment.noise_std] * 4, rel=0.4)
        for row in (3, 50):
            decision = policy.preview(state, environment.describe_context(episode, row))  # no stage starts here
            for action, (estimate, bonus) in enumerate(zip(decision.estimates, decision.bonuses, strict=True)):
                z = policy.features.dense(np.ones(1), action, episode.contexts, row)
                assert estimate == pytest.approx(centre + z @ theta, rel=1e-9)
                ratios.append(bonus / (kappa * noises[action] * math.sqrt(z @ inverse @ z)))
    assert ratios == pytest.approx([ratios[0]] * 12, rel=1e-9)
    assert ratios[0] >= 1.0 - 1e-9


def test_one_regime_estimates_its_noise_and_nothing_else(small, small_contexts, play):
    """R5: with joint statistics H = 1 still needs σ̂; the belief stays [1]."""
    policy = StagedPolicy(small(regimes=1))
    state, decisions = play(policy, small_contexts(120), np.random.default_rng(1).normal(2.0, 0.3, (120, 3)))
    assert all(d.belief == pytest.approx((1.0,), abs=1e-15) for d in decisions)
    assert state.hmm is None
    assert [c.regimes for c in state.selection.candidates] == [1]
    assert state.statistics.units == pytest.approx([2.0, 0.3, 0.3, 0.3, 0.3], abs=0.1)


def test_the_warm_start_lasts_until_the_noise_is_known(small, small_contexts):
    """R8: without σ̂ there is no bonus. Rewards that come late put off the first estimate and nothing else."""
    policy = StagedPolicy(small(warm_start_rounds=20, beliefs={"start_round": 21}))
    state, decisions, contexts = policy.initial_state(), [], small_contexts(80)
    for t, context in enumerate(contexts, start=1):
        state, decision = policy.decide(state, context)
        decisions.append(decision)
        if t > 40:
            state = policy.reward(state, t - 40, 0.1 * t)
    # Ten rewards are there after round 50; the next stage starts at 51.
    assert [d.mode for d in decisions] == ["warm_start"] * 50 + ["optimistic"] * 30
    assert state.selection is not None
    silent = policy.initial_state()
    for context in contexts:
        silent, decision = policy.decide(silent, context)
        assert decision.mode == "warm_start"
    assert silent.selection is None
    assert encode(silent) != encode(state)
