"""The theory as a user sees it: the `bounds` command and the theory presets.

tests/policy checks the bounds and bonuses themselves against arithmetic done by hand.
"""

import json
import re

import numpy as np
import pytest

from policy import bounds
from simulator import cli
from simulator.environment import load_environment
from simulator.presets import build_config, compute_theory_constants
from simulator.replay import Task, replay_seed

# --- constants --------------------------------------------------------------------------------------------------------


def test_constants_of_the_credit_card_environment() -> None:
    credit_card = load_environment("credit-card")
    constants = compute_theory_constants(credit_card)
    assert constants.dimension == 36
    # The means determine θ up to the null space of the one-hot blocks; the constants use the shortest θ.
    shortest = np.linalg.pinv(constants.features) @ credit_card.means.reshape(2, -1).T
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
    [("credit-card", 50_000, {}), ("three-regimes", 2_000, {"risk": 0.2, "threshold": 40.0, "c0": 0.01})],
)
def test_bounds_prints_the_theory(
    capsys: pytest.CaptureFixture[str], name: str, rounds: int, options: dict[str, float]
) -> None:
    flags = [part for flag, value in options.items() for part in (f"--{flag}", str(value))]
    assert cli.main(["bounds", "--environment", name, "--rounds", str(rounds), *flags]) == 0
    text = capsys.readouterr().out
    environment = load_environment(name)
    constants = compute_theory_constants(environment)
    risk, threshold = options.get("risk", 0.05), options.get("threshold", 1.0)
    c0 = options.get("c0", bounds.KNOWN_C0)
    regimes, symbols = environment.hmm.emission.shape
    for label, value in {"H": regimes, "X": symbols, "d": constants.dimension, "δ": risk}.items():
        assert float(find_number(text, label)) == value
    # Assumptions, one line each.
    checks = bounds.check_assumptions(environment.hmm, constants.features, constants.theta, constants.c_theta)
    lines = text[text.index("assumptions") :].splitlines()[1 : 1 + len(checks)]
    for check, line in zip(checks, lines, strict=True):
        assert line.split()[0] == ("holds" if check.holds else "FAILS")
        assert all(part in line for part in (check.name, check.label, f" {check.value:.4g} "))
    assert name != "credit-card" or (text.count("  holds  ") == 9 and "FAILS" not in text)
    # Belief error and thresholds.
    sizes = {"regimes": regimes, "symbols": symbols}
    assert find_number(text, "U_belief(T, δ)") == f"{float(bounds.belief_error(rounds, risk, **sizes)):.3g}"
    assert find_number(text, "Σ_t U_belief(t, δ)") == f"{float(bounds.belief_error_sum(rounds, risk, **sizes)):.4g}"
    thresholds = bounds.compute_thresholds(environment.hmm, c0)
    for label, value in zip(("T̃", "T_Δ", "ln T_B"), thresholds, strict=True):
        assert find_number(text, label) == f"{value:.3g}"
    # Both regret bounds with the theorems' settings.
    shared = {"dimension": constants.dimension, "risk": risk, "c_theta": constants.c_theta, **sizes}
    length = next(n for n in range(1, rounds + 1) if n**4 >= rounds**3)  # ⌈T^{3/4}⌉
    settings = {"ridge": rounds**0.75, "stage_length": length, "horizon": rounds}
    theorem = bounds.General(gamma=constants.gamma, c_eta=constants.c_eta, **settings, **shared)
    general = theorem.bound_regret(threshold)
    simplified = bounds.Simplified(ridge=rounds**0.5, v_eta=constants.v_eta, **shared).bound_regret(rounds, threshold)
    assert f"λ = {rounds**0.75:.1f}, ℓ = {length}: {general:.4g}" in text
    assert f"λ = {rounds**0.5:.1f}, ℓ = 1: {simplified:.4g}" in text


# --- the theory presets -----------------------------------------------------------------------------------------------


def test_the_presets_have_the_theorems_settings_and_constants() -> None:
    credit_card = load_environment("credit-card")
    constants = compute_theory_constants(credit_card)
    general = build_config("theory-general", credit_card, 3, None, 400)
    assert (general.stage_length, general.ridge) == (90, pytest.approx(400**0.75))  # 400^(3/4) = 89.44…
    assert (general.bonus.form, general.bonus.risk, general.bonus.horizon) == ("theory_general", 0.05, 400)
    for name in ("c_theta", "gamma", "c_eta"):
        assert getattr(general.bonus, name) == getattr(constants, name)
    simplified = build_config("theory-simplified", credit_card, 3, None, 400)
    assert (simplified.stage_length, simplified.ridge) == (1, 20.0)
    assert (simplified.bonus.form, simplified.bonus.risk) == ("theory_simplified", 0.05)
    assert (simplified.bonus.c_theta, simplified.bonus.v_eta) == (constants.c_theta, constants.v_eta)


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
        assert 0 < printed == replay_seed(Task(environment, preset, 1, 300, overrides)).pseudo_regret[-1] < 600
        # The horizon is the number of rounds, and determines λ and ℓ.
        config = build_config(preset, environment, 1, None, 300)
        assert (config.ridge, config.stage_length) == settings(300)
