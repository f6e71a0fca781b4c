"""Does the model learn: the warm start, the regimes and the belief in them, exploration?"""

from collections.abc import Iterator

import numpy as np

from policy.description import warm_start
from policy.regimes import likeliest_regime, why_no_regimes
from service.analysis.checks.finding import CHANCE, Finding
from service.analysis.facts import Facts

__all__ = ["belief_stuck", "exploration", "guard_active", "regimes_not_estimable", "warming_up"]

LATE_ESTIMATE = 200  # rounds: from here on it is no longer just early
CERTAIN, UNDECIDED = 0.99, 0.05  # a belief that is sure; one that is hardly more than even
STUCK_ROUNDS = 500
ENOUGH_SCORES = 100  # decisions by score, to judge exploration by
NEGLIGIBLE_BONUS = 0.1  # standard errors: what could still be better is not tried
GREAT_BONUS = 5.0  # standard errors; the default has 3, and where actions earn alike it may decide for long
UNSETTLED_SHARE = 0.25  # of the decisions, between actions that the estimates cannot tell apart
RANDOM_SHARE = 0.05  # of the decisions: if so many are made at random, the bonus need not explore
OVERRULED_SHARE = 0.5  # of the decisions, made by the bonus and not by the estimate
LATE_ROUNDS = 1_000  # from here on the bonus should have calmed down


def warming_up(facts: Facts) -> Iterator[Finding]:
    config, state = facts.config, facts.state
    missing = warm_start(facts.policy, state)
    if missing is None or not state.round:
        return
    waiting = state.arrived - state.folded
    needs = [f"{missing.rounds} more decisions"] if missing.rounds else []
    needs += [f"{missing.rewards} more rewards in the model"] if missing.rewards else []
    needs = needs or [f"the first estimate, before round {max(state.next_estimation, state.round + 1)}"]
    yield Finding(
        "warm_start",
        "warning" if missing.rewards > waiting and not missing.rounds else "info",
        f"The warm start is not over: it needs {' and '.join(needs)}.",
        {
            "rounds_missing": missing.rounds,
            "rewards_missing": missing.rewards,
            "rewards_waiting": waiting,
            "estimate_missing": missing.estimate,
            "warm_start_rounds": config.warm_start_rounds,
        },
        f"Report rewards; {waiting} have come and wait for the stage's end, before round {state.next_update}."
        if missing.rewards
        else "Nothing: until then actions are chosen at random, which is how it begins to learn.",
    )


def regimes_not_estimable(facts: Facts) -> Iterator[Finding]:
    policy, state, config = facts.policy, facts.state, facts.config
    estimated = config.beliefs.estimator in ("em", "spectral") and config.regime_counts[-1] > 1
    if not estimated or not state.round or facts.model.guarded or why_no_regimes(policy, state) is None:
        return
    begun = state.round >= (config.beliefs.start_round or 0)
    lacking = policy.estimator.explain_missing(state)
    reason = lacking or ("an estimate is being made" if facts.job else "an estimate is not due yet")
    due = max(state.next_estimation, state.round + 1)
    yield Finding(
        "regimes_not_estimable",
        "warning" if lacking and begun and state.round >= LATE_ESTIMATE else "info",
        f"There is no estimate of several regimes yet: {reason}. The next try is before round {due}.",
        {"reason": reason, "next_try": due, "rounds": state.round, "start_round": config.beliefs.start_round},
        "Wait for the next try. If it stays so, look at the signals: do they vary, and with what the regime is about?",
    )


def guard_active(facts: Facts) -> Iterator[Finding]:
    if facts.model.guarded:
        tried = facts.model.candidates[1:]
        best = max(tried, key=lambda verdict: verdict.reward_gain)
        yield Finding(
            "guard_active",
            "info",
            f"One regime is in use: more were tried and do not predict better ({best.regimes} gained "
            f"{best.reward_gain:.1f} nats on rewards, {best.symbol_gain:.1f} on contexts). They are judged again "
            f"before round {facts.state.next_estimation}.",
            {"candidates": [verdict._asdict() for verdict in tried]},
            "Nothing, if no regime is expected. Otherwise choose signals that change with it, or a clock if it changes "
            "with time and not with traffic.",
        )


def belief_stuck(facts: Facts) -> Iterator[Finding]:
    state, regimes = facts.state, facts.state.belief.size
    if state.hmm is None or regimes == 1 or state.round < STUCK_ROUNDS:
        return
    beliefs = state.history.beliefs[: state.round, :regimes]
    regime, belief, _ = likeliest_regime(state)
    unsure = np.flatnonzero(beliefs[:, regime - 1] < CERTAIN)
    first = int(unsure[-1]) + 1 if unsure.size else 0
    sure, moves = state.round - first, int(state.history.steps[first : state.round].sum())
    stay = float(state.hmm.transition[regime - 1, regime - 1])
    if sure >= STUCK_ROUNDS and stay**moves < CHANCE:
        unit = "periods" if facts.config.clock else "decisions"
        yield Finding(
            "belief_stuck",
            "warning",
            f"The belief in regime {regime} has been {CERTAIN} or more for {sure} decisions, although by the model "
            f"it lasts for {1.0 / (1.0 - stay):.0f} {unit}.",
            {"regime": regime, "belief": belief, "decisions": sure, "steps": moves, "probability_to_stay": stay},
            "Do the signals still vary? With given parameters: do they fit what is seen?",
        )
    largest = float(beliefs[-STUCK_ROUNDS:].max())
    if largest < 1.0 / regimes + UNDECIDED:
        yield Finding(
            "belief_stuck",
            "warning",
            f"The belief has been almost even over all {regimes} regimes for {STUCK_ROUNDS} decisions (at most "
            f"{largest:.2f}): the signals do not tell them apart.",
            {"largest_belief": largest, "decisions": STUCK_ROUNDS, "regimes": regimes},
            "Clone the campaign with signals that change with the regime, or with one regime.",
        )


def exploration(facts: Facts) -> Iterator[Finding]:
    config, scored = facts.config, facts.scored
    if len(scored) < ENOUGH_SCORES:
        return
    yield from _no_overlap(facts)
    if facts.uncertainty is None:
        return
    ratio, close = facts.uncertainty
    active = len(config.actions) - len(config.retired_actions)
    at_random = active * config.propensity_floor + (config.control.share if config.control.kind == "uniform" else 0.0)
    evidence = {"decisions": len(scored), "bonus_in_standard_errors": ratio, "scale": config.bonus.scale}
    if ratio < NEGLIGIBLE_BONUS and close >= UNSETTLED_SHARE and at_random < RANDOM_SHARE:
        yield Finding(
            "exploration_small",
            "warning",
            f"Exploration is too small: the bonus is {ratio:.2g} standard errors, while in {100 * close:.0f} % of "
            f"the last {len(scored)} decisions the second-best action was within two of the best. What is better "
            "may never be found.",
            {**evidence, "undecided_share": close, "random_share": at_random},
            "PATCH a larger bonus.scale (it is in the unit of the rewards, unless bonus.form is noise), or a "
            "propensity_floor.",
        )
    overruled = float(np.mean([np.argmax(one.estimates + one.bonuses) != np.argmax(one.estimates) for one in scored]))
    if facts.state.round >= LATE_ROUNDS and ratio > GREAT_BONUS and overruled > OVERRULED_SHARE:
        yield Finding(
            "exploration_large",
            "warning",
            f"Exploration is too large: after {facts.state.round} rounds the bonus, {ratio:.2g} standard errors, still "
            f"decides. In {100 * overruled:.0f} % of the last {len(scored)} decisions another action had the highest "
            "estimate.",
            {**evidence, "overruled_share": overruled},
            "PATCH a smaller bonus.scale (it is in the unit of the rewards, unless bonus.form is noise).",
        )


def _no_overlap(facts: Facts) -> Iterator[Finding]:
    config, scored = facts.config, facts.scored
    certain = all(decision.propensity > 1.0 - 1e-9 for decision in scored)
    if certain and not config.control.share and not config.propensity_floor:
        yield Finding(
            "no_overlap",
            "info",
            f"Each of the last {len(scored)} decisions by score was certain (propensity 1). So the log cannot tell "
            "what another policy would have earned, nor what the model gains over none.",
            {"decisions": len(scored), "control_share": 0.0, "propensity_floor": 0.0},
            'For lift and off-policy estimates: PATCH {"control": {"share": 0.05}}, or {"propensity_floor": 0.01}.',
        )
