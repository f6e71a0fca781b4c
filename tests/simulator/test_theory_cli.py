"""The theory as a user sees it: the `bounds` command and the theory presets, against arithmetic done here."""

import json
import math
import re

import numpy as np
import pytest

from policy import CampaignConfig, Decision, StagedPolicy, bounds
from simulator import cli
from simulator.environment import Environment, Episode, load_environment
from simulator.presets import build_config, compute_theory_constants
from simulator.replay import replay_seed

RISK = 0.05
ROUNDS = 400
# Estimate before the last rounds, so that beliefs differ from round to round.
EARLY = {"beliefs": {"start_round": 200, "every": 40}}


@pytest.fixture(scope="module")
def credit_card() -> Environment:
    return load_environment("credit-card")


def one_hot(level: int, count: int) -> np.ndarray:
    return np.eye(count)[level]


def scale_features(belief: np.ndarray, action: int, levels: np.ndarray) -> np.ndarray:
    """z(b, a, x) / 3 of the published map, block by block: 9 active terms, so 3 bounds the norm."""
    age, education, marital_status, revenue, risk = levels
    shared = [one_hot(age, 5), one_hot(education, 4), one_hot(marital_status, 3)]
    shared += [one_hot(revenue, 4), one_hot(risk, 5)]
    taken = np.array([action == 1, action == 2], float)
    at_risk, at_revenue = one_hot(risk, 5)[[0, 1, 3, 4]], one_hot(revenue, 4)[[0, 3]]
    own = np.concatenate([[1.0], taken, np.outer(taken, at_risk).ravel(), np.outer(taken, at_revenue).ravel()])
    return np.concatenate([*shared, np.outer(belief, own).ravel()]) / 3


def belief_bound(t: int, risk: float) -> float:
    """U_belief(t, δ) for H = 2, X = 20 (lm:beliefestimationerror)."""
    spectral = 2 * math.sqrt(20) * math.sqrt(2 * math.log(6 * 20 * t * (t + 1) / risk) / t)
    return math.log(t) * (spectral + math.exp(-math.sqrt(t - 1)))


# --- constants --------------------------------------------------------------------------------------------------------


def test_constants_of_the_credit_card_environment(credit_card: Environment) -> None:
    constants = compute_theory_constants(credit_card)
    # H = 1: the map is φ itself. The means determine θ up to the null space of the one-hot blocks; take the shortest.
    rows = [scale_features(np.ones(1), action, levels) for action in range(3) for levels in credit_card.levels]
    shortest = np.linalg.pinv(np.array(rows)) @ credit_card.means.reshape(2, -1).T
    assert constants.dimension == 36
    assert constants.c_theta == pytest.approx(np.linalg.norm(shortest, axis=0).max(), rel=1e-9)
    assert constants.gamma == pytest.approx(1 - 0.15 / 0.85)
    assert (constants.c_eta, constants.v_eta) == (pytest.approx(0.04), 0.2)


@pytest.mark.parametrize("name", ["credit-card", "nelson", "three-regimes"])
def test_means_are_linear_in_the_papers_features(name: str) -> None:
    environment = load_environment(name)
    constants = compute_theory_constants(environment)
    means = environment.means.reshape(len(environment.regimes), -1)
    np.testing.assert_allclose(constants.theta @ constants.features.T, means, atol=1e-12)
    assert np.linalg.norm(constants.features, axis=1).max() <= 1 + 1e-12


# --- the command ------------------------------------------------------------------------------------------------------


def find_number(text: str, label: str) -> str:
    match = re.search(re.escape(label) + r" = ([^\s,]+)", text)
    assert match, f"{label} is missing:\n{text}"
    return match[1]


@pytest.mark.parametrize(
    ("name", "rounds", "options"),
    [
        ("credit-card", 50_000, {}),
        ("three-regimes", 2_000, {"risk": 0.2, "threshold": 40.0, "c0": 0.01}),
    ],
)
def test_bounds_prints_the_theory(
    capsys: pytest.CaptureFixture[str], name: str, rounds: int, options: dict[str, float]
) -> None:
    flags = [part for flag, value in options.items() for part in (f"--{flag}", str(value))]
    assert cli.main(["bounds", "--environment", name, "--rounds", str(rounds), *flags]) == 0
    text = capsys.readouterr().out
    environment = load_environment(name)
    transition, emission, initial = environment.hmm
    constants = compute_theory_constants(environment)
    risk, threshold = options.get("risk", RISK), options.get("threshold", 1.0)
    c0 = options.get("c0", bounds.KNOWN_C0)
    regimes, symbols = emission.shape
    for label, value in {"H": regimes, "X": symbols, "d": constants.dimension, "δ": risk}.items():
        assert float(find_number(text, label)) == value
    # Assumptions, one line each.
    checks = bounds.check_assumptions(
        transition, emission, initial, features=constants.features, theta=constants.theta, c_theta=constants.c_theta
    )
    lines = text[text.index("assumptions") :].splitlines()[1 : 1 + len(checks)]
    for check, line in zip(checks, lines, strict=True):
        assert line.split()[0] == ("holds" if check.holds else "FAILS")
        assert all(part in line for part in (check.name, check.label, f" {check.value:.4g} "))
    assert name != "credit-card" or (text.count("  holds  ") == 9 and "FAILS" not in text)
    # Belief error and thresholds.
    sizes = {"regimes": regimes, "symbols": symbols}
    assert find_number(text, "U_belief(T, δ)") == f"{float(bounds.belief_error(rounds, risk, **sizes)):.3g}"
    assert find_number(text, "Σ_t U_belief(t, δ)") == f"{float(bounds.belief_error_sum(rounds, risk, **sizes)):.4g}"
    assert find_number(text, "T̃") == f"{bounds.estimation_threshold(transition, emission, c0=c0):.3g}"
    assert find_number(text, "T_Δ") == f"{bounds.alignment_threshold(transition, emission):.3g}"
    assert find_number(text, "ln T_B") == f"{bounds.log_belief_threshold(transition, emission, c0=c0):.3g}"
    # Both regret bounds with the theorems' settings.
    shared = {"horizon": rounds, "threshold": threshold, "dimension": constants.dimension, "risk": risk, **sizes}
    shared["c_theta"] = constants.c_theta
    length = next(n for n in range(1, rounds + 1) if n**4 >= rounds**3)  # ⌈T^{3/4}⌉
    general = bounds.general_regret_bound(
        ridge=rounds**0.75, stage_length=length, gamma=constants.gamma, c_eta=constants.c_eta, **shared
    )
    simplified = bounds.simplified_regret_bound(ridge=rounds**0.5, v_eta=constants.v_eta, **shared)
    assert f"λ = {rounds**0.75:.1f}, ℓ = {length}: {general:.4g}" in text
    assert f"λ = {rounds**0.5:.1f}, ℓ = 1: {simplified:.4g}" in text


# --- the theory presets -----------------------------------------------------------------------------------------------


def play(environment: Environment, config: CampaignConfig) -> tuple[Episode, list[Decision]]:
    """Every decision of one seed, one by one."""
    episode = environment.draw(ROUNDS, np.random.default_rng(config.seed))
    policy = StagedPolicy(config)
    state, decisions = policy.initial_state(), []
    for t in range(ROUNDS):
        state, decision = policy.decide(state, environment.describe_context(episode, t))
        action = environment.actions.index(decision.action)
        state = policy.reward(state, decision.round, episode.rewards[t, action])
        decisions.append(decision)
    return episode, decisions


def estimate_ridge(
    episode: Episode, decisions: list[Decision], actions: tuple[str, ...], rounds: int, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """G and θ̂ of the scaled features after the first rounds (eq. estimate-theta)."""
    taken = [actions.index(decision.action) for decision in decisions[:rounds]]
    levels = episode.contexts.levels
    z = np.array([scale_features(np.array(decisions[t].belief), taken[t], levels[t]) for t in range(rounds)])
    G = ridge * np.eye(z.shape[1]) + z.T @ z
    return G, np.linalg.solve(G, z.T @ episode.rewards[np.arange(rounds), taken])


def test_theory_general_is_the_theorem(credit_card: Environment) -> None:
    config = build_config("theory-general", credit_card, 3, EARLY, ROUNDS)
    # 400^(3/4) = 89.44…
    assert (config.stage_length, config.ridge) == (90, pytest.approx(400**0.75))
    assert (config.bonus.form, config.bonus.risk, config.bonus.horizon) == ("theory_general", RISK, ROUNDS)
    c_theta, gamma = compute_theory_constants(credit_card).c_theta, 1 - 0.15 / 0.85
    assert (config.bonus.c_theta, config.bonus.gamma) == (pytest.approx(c_theta), pytest.approx(gamma))
    assert config.bonus.c_eta == pytest.approx(0.04)
    episode, decisions = play(credit_card, config)
    # Round 1: in the first stage the bonus is 1 + √d / λ.
    for score in decisions[0].scores:
        assert score.bonus == pytest.approx(1 + math.sqrt(36) / config.ridge, rel=1e-12)
    # Round 380 is in stage 5 and uses G of round 360; the horizon has s_T = 5 stages.
    t, stage, stages, length = 380, 5, 5, 90
    decision = decisions[t - 1]
    assert (decision.round, decision.stage, decision.mode) == (t, stage, "optimistic")
    folded = (stage - 1) * length
    f = (
        config.ridge * math.sqrt(2) * c_theta
        + 4 * math.sqrt(stages * (stage - 1) * (1 + stage * gamma) * length / (RISK * (1 - gamma)))
        + math.sqrt(4 * stages / RISK * 0.04 * (stage - 1) * length)
        + 2 * (stage - 1) * gamma / (1 - gamma)
        + math.fsum(belief_bound(tau, RISK / 2) for tau in range(1, folded + 1))
    )
    G, theta = estimate_ridge(episode, decisions, credit_card.actions, folded, config.ridge)
    assert max(abs(belief - 0.5) for belief in decision.belief) > 0.01  # estimated by now
    for action, score in enumerate(decision.scores):
        z = scale_features(np.array(decision.belief), action, episode.contexts.levels[t - 1])
        bonus = belief_bound(t, RISK / 2) + f * np.linalg.norm(np.linalg.solve(G, z))
        assert score.estimate == pytest.approx(z @ theta, rel=1e-9)
        assert score.bonus == pytest.approx(bonus, rel=1e-9)
        assert score.score == pytest.approx(z @ theta + bonus, rel=1e-9)
    assert decision.action == max(decision.scores, key=lambda score: score.score).action


def test_theory_simplified_is_the_theorem(credit_card: Environment) -> None:
    config = build_config("theory-simplified", credit_card, 3, EARLY, ROUNDS)
    assert (config.stage_length, config.ridge) == (1, 20.0)
    assert (config.bonus.form, config.bonus.risk, config.bonus.v_eta) == ("theory_simplified", RISK, 0.2)
    c_theta = compute_theory_constants(credit_card).c_theta
    assert config.bonus.c_theta == pytest.approx(c_theta)
    episode, decisions = play(credit_card, config)
    for score in decisions[0].scores:
        assert score.bonus == pytest.approx(1 + math.sqrt(36) / 20, rel=1e-12)
    t, columns = 380, 36 * 2
    decision = decisions[t - 1]
    assert (decision.round, decision.mode) == (t, "optimistic")
    f = (
        math.fsum(belief_bound(tau, RISK / 2) for tau in range(1, t)) / math.sqrt(20)
        + math.sqrt(20 * 2) * c_theta
        + 0.2 * math.sqrt(2 * math.log(2 / RISK) + columns * math.log(1 + t / (20 * columns)))
    )
    G, theta = estimate_ridge(episode, decisions, credit_card.actions, t - 1, 20.0)
    for action, score in enumerate(decision.scores):
        z = scale_features(np.array(decision.belief), action, episode.contexts.levels[t - 1])
        bonus = belief_bound(t, RISK / 2) + f * math.sqrt(z @ np.linalg.solve(G, z))
        assert score.estimate == pytest.approx(z @ theta, rel=1e-9)
        assert score.bonus == pytest.approx(bonus, rel=1e-9)
    assert decision.action == max(decision.scores, key=lambda score: score.score).action


@pytest.mark.parametrize("name", ["nelson", "three-regimes"])
def test_theory_presets_play_every_environment(capsys: pytest.CaptureFixture[str], name: str) -> None:
    environment, overrides = load_environment(name), {"beliefs": {"start_round": 150}}
    for preset, settings in (
        ("theory-general", bounds.general_settings),
        ("theory-simplified", bounds.simplified_settings),
    ):
        arguments = ["replay", "--preset", preset, "--environment", name, "--rounds", "300", "--seeds", "1"]
        assert cli.main([*arguments, "--jobs", "1", "--json", "--beliefs-start-round", "150"]) == 0
        printed = json.loads(capsys.readouterr().out)["pseudo_regret"]["mean"]
        assert 0 < printed == replay_seed(environment, preset, 1, 300, overrides).pseudo_regret[-1] < 600
        # The horizon is the number of rounds, and determines λ and ℓ.
        config = build_config(preset, environment, 1, None, 300)
        assert (config.ridge, config.stage_length) == settings(300)
