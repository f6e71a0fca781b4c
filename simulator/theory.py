"""What the paper's theorems say for an environment, as text."""

from policy import bounds
from simulator.environment import load_environment
from simulator.presets import compute_theory_constants


def format_bounds(environment_name: str, rounds: int, risk: float, threshold: float, c0: float | None) -> str:
    """List the assumptions, the belief-error thresholds and both closed-form regret bounds."""
    environment = load_environment(environment_name)
    constants, hmm = compute_theory_constants(environment), environment.hmm
    regimes, symbols = hmm.emission.shape
    c0 = bounds.KNOWN_C0 if c0 is None else c0
    lines = [
        f"{environment.name}: H = {regimes}, X = {symbols}, d = {constants.dimension}, T = {rounds:,}, δ = {risk:g}",
        f"constants, features scaled to norm ≤ 1: C_θ = {constants.c_theta:.3f}, γ = {constants.gamma:.4f},"
        f" C_η = {constants.c_eta:g}, v_η = {constants.v_eta:g}",
        "",
        "assumptions",
    ]
    for check in bounds.check_assumptions(hmm, constants.features, constants.theta, constants.c_theta):
        verdict = "holds" if check.holds else "FAILS"
        lines.append(f"  {verdict}  {check.name:<24} {check.value:<10.4g} {check.requirement} ({check.label})")
    sizes = {"regimes": regimes, "symbols": symbols}
    final = float(bounds.belief_error(rounds, risk, **sizes))
    total = float(bounds.belief_error_sum(rounds, risk, **sizes))
    thresholds = bounds.compute_thresholds(hmm, c0)
    lines += [
        "",
        f"belief error (lm:beliefestimationerror), C₀ = {c0:.3g}",
        f"  U_belief(T, δ) = {final:.3g}   Σ_t U_belief(t, δ) = {total:.4g}",
        "  T̃ = {:.3g}   T_Δ = {:.3g}   ln T_B = {:.3g}".format(*thresholds),
        "",
        f"regret bounds with T₀ = {threshold:g} (the trivial bound is 2T = {2 * rounds:,})",
    ]
    known = {"dimension": constants.dimension, "risk": risk, "c_theta": constants.c_theta, **sizes}
    ridge, length = bounds.general_settings(rounds)
    theorem = bounds.General(
        ridge=ridge, stage_length=length, horizon=rounds, gamma=constants.gamma, c_eta=constants.c_eta, **known
    )
    general = theorem.bound_regret(threshold)
    first_stage = 2.0 * max(0.0, length - threshold + 1.0)
    lines += [
        f"  general (theorem:total-regret-bound), λ = {ridge:.1f}, ℓ = {length}: {general:.4g}",
        f"    plus at most {first_stage:,.0f} for the first stage, which the paper's closed form leaves out",
    ]
    ridge, _ = bounds.simplified_settings(rounds)
    simplified = bounds.Simplified(ridge=ridge, v_eta=constants.v_eta, **known).bound_regret(rounds, threshold)
    lines.append(f"  simplified (theorem:total-regret-bound-simplified), λ = {ridge:.1f}, ℓ = 1: {simplified:.4g}")
    return "\n".join(lines)
