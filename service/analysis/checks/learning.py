"""Is the campaign running, and does its model learn: updates, warm start, regimes, the belief in them, exploration?"""

from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from policy.description import get_search_share, get_warm_start
from policy.regimes import explain_no_regimes, get_likeliest_regime
from service.analysis.checks import CHANCE, Finding
from service.analysis.facts import Facts
from service.base.times import SECOND, format_duration, format_minute
from service.engine.boundaries import LEASE_SECONDS
from service.storage.reading import get_decided_at

MAX_JOB_SECONDS = 2.0 * LEASE_SECONDS  # by then a job is done, or another worker has taken it over
LATE_ESTIMATE = 200  # rounds: from here on, a missing estimate is not just early
CERTAIN, UNDECIDED = 0.99, 0.05  # a belief this high is sure; one this little above even is not
STUCK_ROUNDS = 500
ENOUGH_SCORES = 100  # decisions by score, to judge exploration
NEGLIGIBLE_BONUS = 0.1  # standard errors: below it, actions that could be better are not tried
GREAT_BONUS = 5.0  # standard errors; the default is 3, and may decide for long where actions earn alike
UNSETTLED_SHARE = 0.25  # of decisions, between actions that the estimates cannot tell apart
RANDOM_SHARE = 0.05  # of decisions made at random: with more, the bonus need not explore
OVERRULED_SHARE = 0.5  # of decisions made by the bonus and not by the estimate
LATE_ROUNDS = 1_000  # from here on, the bonus should have become small


def check_closed(facts: Facts) -> Iterator[Finding]:
    evidence = {"round": facts.state.round}
    if facts.row.archived_at is not None:
        message = f"The campaign has been archived since round {facts.state.round}: it makes no decisions."
        yield Finding("archived", "warning", message, evidence, "To reopen it, POST …/unarchive.")
    if facts.config.paused:
        message = (
            f"The campaign has been paused since round {facts.state.round}: it accepts rewards but makes no decisions."
        )
        yield Finding("paused", "warning", message, evidence, 'To resume, PATCH {"paused": false}.')


def check_decisions(facts: Facts) -> Iterator[Finding]:
    if not facts.state.round:
        advice = "Send the first customer to POST /decide."
        yield Finding("no_decisions", "info", "No decisions yet.", {"round": 0}, advice)


def check_last_update(facts: Facts) -> Iterator[Finding]:
    failure, version = facts.row.failure, facts.state.model_version
    if failure is not None:
        yield Finding(
            "update_failed",
            "problem",
            f"The last update failed, so the earlier model {version} is still in force: {failure}.",
            {"failure": failure, "model_version": version},
            "The next update will try again. If it keeps failing, look in the service's log for the error and check "
            "for rewards that are far too large. POST …/rollback returns to an earlier model.",
        )


def check_job(facts: Facts) -> Iterator[Finding]:
    job = facts.job
    seconds = 0.0 if job is None else (facts.now - job.created_at) / SECOND
    if job is not None and seconds > MAX_JOB_SECONDS:
        yield Finding(
            "job_waiting",
            "warning",
            f"The re-estimation of round {job.input_round} has been waiting for {seconds / 60:.0f} minutes: the "
            "regimes are out of date.",
            {"input_round": job.input_round, "seconds": seconds, "attempts": job.attempts},
            "Check whether the service is overloaded or out of memory. If a worker dies, another one takes the job "
            f"over after {LEASE_SECONDS // 60} minutes. Fewer signals or regimes make re-estimations smaller.",
        )


def check_warm_start(facts: Facts) -> Iterator[Finding]:
    config, state = facts.config, facts.state
    missing = get_warm_start(facts.policy, state)
    if missing is None or not state.round or not (missing.rounds or missing.rewards or missing.estimate):
        return
    waiting = state.arrived - state.folded
    needs = [f"{missing.rounds} more decisions"] if missing.rounds else []
    held, advice = (
        state.exposure is not None,
        "Nothing to do: until then actions are chosen at random, which is how the",
    )
    part = "in part" if config.rewards.while_waiting == "provisional" else "only when the wait is over"
    if missing.rewards and held:  # decisions count by weight, whether they are rewarded or not
        needs.append(
            f"{missing.rewards} more decisions in the model, where those that wait for their reward count {part}"
        )
        came = f"{state.arrived} rewards have come, and {state.counted} decisions count so far"
        wait = format_duration(config.rewards.wait_seconds or 0.0)
        advice = f"Nothing to do but to wait: {came}. Each counts in full {wait} after it was made, the first from "
        advice += f"{format_minute(facts.wait.get_end(get_decided_at(facts.tx, facts.campaign, 1)))} on."
    elif missing.rewards:
        needs.append(f"{missing.rewards} more rewards in the model")
        due = f"the end of the stage, before round {state.next_update}"
        advice = f"Report rewards. {waiting} have arrived and wait for {due}."
    else:
        advice += " campaign starts to learn."
    needs = needs or [f"the first estimate, due before round {max(state.next_estimation, state.round + 1)}"]
    yield Finding(
        "warm_start",
        "warning" if missing.rewards > waiting and not missing.rounds and not held else "info",
        f"The warm start is not over: it needs {' and '.join(needs)}.",
        {
            "rounds_missing": missing.rounds,
            "rewards_missing": missing.rewards,
            "rewards_waiting": waiting,
            "estimate_missing": missing.estimate,
            "warm_start_rounds": config.warm_start_rounds,
        },
        advice,
    )


def check_search(facts: Facts) -> Iterator[Finding]:
    """Are the rewards too much alike to tell how uncertain they are?"""
    missing, share = get_warm_start(facts.policy, facts.state), get_search_share(facts.state)
    if missing is None or not missing.deviations:
        return
    yield Finding(
        "searching",
        "info",
        f"About {100 * share:.0f} % of the decisions are made at random, ever fewer: almost all rewards of an action "
        f"are the same, and {missing.deviations} more that differ are needed to know how uncertain they are.",
        {"deviations_missing": missing.deviations, "random_share": share, "rounds": facts.state.round},
        "Check that conversions are reported. If they are rare, there is nothing to do: it ends once enough have come.",
    )


def check_estimate(facts: Facts) -> Iterator[Finding]:
    policy, state, config = facts.policy, facts.state, facts.config
    estimated = policy.estimator.get_first_round() > 0 and config.regime_counts[-1] > 1
    if not estimated or not state.round or facts.model.guarded or explain_no_regimes(policy, state) is None:
        return
    is_due = state.round >= (config.beliefs.start_round or 0)
    obstacle = policy.estimator.explain_missing(state)
    reason = obstacle or ("an estimate is being computed" if facts.job else "an estimate is not due yet")
    next_try = max(state.next_estimation, state.round + 1)
    yield Finding(
        "regimes_not_estimable",
        "warning" if obstacle and is_due and state.round >= LATE_ESTIMATE else "info",
        f"There is no estimate of several regimes yet: {reason}. The next attempt is before round {next_try}.",
        {"reason": reason, "next_try": next_try, "rounds": state.round, "start_round": config.beliefs.start_round},
        "Wait for the next attempt. If that fails too, check the signals: do they vary, and with the regime?",
    )


def check_guard(facts: Facts) -> Iterator[Finding]:
    if facts.model.guarded:
        tried = facts.model.candidates[1:]
        best = max(tried, key=lambda verdict: verdict.reward_gain)
        yield Finding(
            "guard_active",
            "info",
            f"One regime is in use: more were tried and do not predict better ({best.regimes} regimes gained "
            f"{best.reward_gain:.1f} nats on rewards and {best.symbol_gain:.1f} on contexts). They are judged again "
            f"before round {facts.state.next_estimation}.",
            {"candidates": [verdict._asdict() for verdict in tried]},
            "Nothing to do if you expect no regimes. Otherwise choose signals that change with the regime, or set a "
            "clock if the regime changes with time and not with traffic.",
        )


def check_belief(facts: Facts) -> Iterator[Finding]:
    state, regimes = facts.state, facts.state.belief.size
    if state.hmm is None or regimes == 1 or state.round < STUCK_ROUNDS:
        return
    beliefs = state.history.beliefs[: state.rows, :regimes]
    regime, belief, _ = get_likeliest_regime(state)
    unsure = np.flatnonzero(beliefs[:, regime - 1] < CERTAIN)
    first = int(unsure[-1]) + 1 if unsure.size else 0
    sure, steps = state.rows - first, int(state.history.steps[first : state.rows].sum())
    stay = float(state.hmm.transition[regime - 1, regime - 1])
    if sure >= STUCK_ROUNDS and stay**steps < CHANCE:
        unit = "periods" if facts.config.clock else "decisions"
        yield Finding(
            "belief_stuck",
            "warning",
            f"The belief in regime {regime} has been at least {CERTAIN} for {sure} decisions, although the model "
            f"expects the regime to last {1.0 / (1.0 - stay):.0f} {unit}.",
            {"regime": regime, "belief": belief, "decisions": sure, "steps": steps, "probability_to_stay": stay},
            "Check that the signals still vary. With given parameters, check that they fit the contexts seen.",
        )
    largest = float(beliefs[-STUCK_ROUNDS:].max())
    if largest < 1.0 / regimes + UNDECIDED:
        yield Finding(
            "belief_stuck",
            "warning",
            f"The belief has been almost even over all {regimes} regimes for {STUCK_ROUNDS} decisions (at most "
            f"{largest:.2f}): the signals do not tell the regimes apart.",
            {"largest_belief": largest, "decisions": STUCK_ROUNDS, "regimes": regimes},
            "Clone the campaign with signals that change with the regime, or with one regime.",
        )


def check_exploration(facts: Facts) -> Iterator[Finding]:
    config, scored = facts.config, facts.scored
    uncertainty = facts.measure_uncertainty() if len(scored) >= ENOUGH_SCORES else None
    if uncertainty is None:
        return
    ratio, unsettled = uncertainty
    active = len(config.actions) - len(config.retired_actions)
    at_random = active * config.propensity_floor + (config.control.share if config.control.kind == "uniform" else 0.0)
    evidence = {"decisions": len(scored), "bonus_in_standard_errors": ratio, "scale": config.bonus.scale}
    unit = "(in the unit of the rewards, unless bonus.form is noise)"
    if ratio < NEGLIGIBLE_BONUS and unsettled >= UNSETTLED_SHARE and at_random < RANDOM_SHARE:
        yield Finding(
            "exploration_small",
            "warning",
            f"Exploration is too small: the bonus is {ratio:.2g} standard errors, although in {100 * unsettled:.0f} % "
            f"of the last {len(scored)} decisions the second-best action was within two standard errors of the best. "
            "A better action may never be found.",
            {**evidence, "undecided_share": unsettled, "random_share": at_random},
            f"PATCH a larger bonus.scale {unit}, or a propensity_floor.",
        )
    by_score, by_estimate = attrgetter("score"), attrgetter("estimate")
    changed = [max(why.scores, key=by_score) is not max(why.scores, key=by_estimate) for _, why in scored]
    overruled = sum(changed) / len(scored)
    if facts.state.round >= LATE_ROUNDS and ratio > GREAT_BONUS and overruled > OVERRULED_SHARE:
        yield Finding(
            "exploration_large",
            "warning",
            f"Exploration is too large: after {facts.state.round} rounds the bonus, {ratio:.2g} standard errors, still "
            f"decides. In {100 * overruled:.0f} % of the last {len(scored)} decisions another action had the highest "
            "estimate.",
            {**evidence, "overruled_share": overruled},
            f"PATCH a smaller bonus.scale {unit}.",
        )


def check_overlap(facts: Facts) -> Iterator[Finding]:
    config, scored = facts.config, facts.scored
    certain = all(row.propensity > 1.0 - 1e-9 for row, _ in scored)
    if len(scored) >= ENOUGH_SCORES and certain and not config.control.share and not config.propensity_floor:
        yield Finding(
            "no_overlap",
            "info",
            f"Each of the last {len(scored)} decisions by score was certain (propensity 1). The log therefore cannot "
            "tell what another policy would have earned, nor how much the model gains.",
            {"decisions": len(scored), "control_share": 0.0, "propensity_floor": 0.0},
            'For lift and off-policy estimates, PATCH {"control": {"share": 0.05}} or {"propensity_floor": 0.01}.',
        )
