"""Do rewards come, and can anything be learned from them?"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from service.analysis.checks import CHANCE, ENOUGH_DECISIONS, Finding, Severity
from service.analysis.facts import Facts

ENOUGH_REWARDS = 50
SURELY_ENOUGH = 500  # rewards: even one success in a hundred would have shown up
SILENCE = 3.0  # times the longest wait for rewards so far
MISSING_SHARE = 0.5  # of rewards: above it, most decisions teach nothing
BOUND_SHARE = 0.05  # of rewards, at either end of the range
LEAST_LATE = 1.0  # rewards: each of them is lost
SCALE_VALUES = 10  # at most this many distinct rewards are a scale (0 or 1, one to five stars) with ordinary ends


def check_any_reward(facts: Facts) -> Iterator[Finding]:
    state, wait = facts.state, facts.config.rewards.wait_seconds or 0.0
    if state.arrived or state.round < ENOUGH_DECISIONS:
        return
    seconds = facts.measure_age(1)
    if seconds >= wait:  # before that, no reward is due
        yield Finding(
            "no_rewards",
            "problem",
            f"No reward has been reported for any of the {state.round} decisions.",
            {"decisions": state.round, "rewards": 0, "seconds_since_first_decision": seconds},
            "POST /reward with the decision_id of each decision. If a customer who does not respond is worth nothing, "
            "set rewards.wait_seconds and rewards.default.",
        )


def check_stopped(facts: Facts) -> Iterator[Finding]:
    """Silence is measured in decisions, and compared with earlier waits, because rewards may come in batches."""
    if not facts.rewards:
        return
    arrivals = sorted({row.after_round for row in facts.rewards})
    waits = [row.after_round - row.round for row in facts.rewards]
    longest = max(1, *waits, *(later - earlier for earlier, later in pairwise(arrivals)))
    silence = facts.state.round - arrivals[-1]
    if silence >= ENOUGH_DECISIONS and silence > SILENCE * longest:
        yield Finding(
            "rewards_stopped",
            "problem",
            f"Rewards have stopped: none came during the last {silence} decisions. The longest wait before was "
            f"{longest} decisions.",
            {"decisions_since_last_reward": silence, "longest_wait_before": longest, "rewards": facts.state.arrived},
            "Check the system that sends POST /reward: is it running, and does it get errors?",
        )


def check_defaults(facts: Facts) -> Iterator[Finding]:
    sources = Counter(row.source for row in facts.log if row.reward is not None)
    if sources["default"] >= ENOUGH_REWARDS and sources["default"] == sources.total():
        count = sources.total()
        message = f"All {count} rewards of the last {len(facts.log)} decisions are the default: none was reported."
        evidence = {"default_rewards": count, "reported_rewards": 0, "decisions": len(facts.log)}
        advice = "Check the system that sends POST /reward, and that rewards.wait_seconds is long enough for them."
        yield Finding("only_default_rewards", "problem", message, evidence, advice)


def check_variation(facts: Facts) -> Iterator[Finding]:
    earned = facts.earned
    if earned.size < ENOUGH_REWARDS:
        return
    value = float(earned[-1])
    evidence = {"rewards": int(earned.size), "value": value}
    advice = "Check that the right field is sent as the reward. If every action earns the same, nothing can be learned."
    others = np.flatnonzero(earned != value)
    if not others.size:
        message = f"All {earned.size} rewards are {value:g}: they do not say which action is better."
        severity: Severity = "problem" if earned.size >= SURELY_ENOUGH else "warning"
        yield Finding("constant_rewards", severity, message, evidence, advice)
        return
    same = int(earned.size - 1 - others[-1])
    varied = others.size / (earned.size - same)
    if same >= ENOUGH_REWARDS and (1.0 - varied) ** same < CHANCE:
        message = f"The last {same} rewards are all {value:g}; before that, {100 * varied:.1f} % had other values."
        evidence |= {"same_in_a_row": same, "share_of_others_before": varied}
        yield Finding("constant_rewards", "warning", message, evidence, advice)


def check_missing(facts: Facts) -> Iterator[Finding]:
    """Only decisions older than the longest wait so far count: a late reward is not a missing one."""
    if facts.config.rewards.default is not None or not facts.rewards:
        return
    longest = max(row.after_round - row.round for row in facts.rewards)
    due = [row for row in facts.log if row.round <= facts.state.round - longest and not row.erased]
    missing = sum(row.reward is None for row in due)
    if len(due) >= ENOUGH_DECISIONS and missing > MISSING_SHARE * len(due):
        yield Finding(
            "rewards_missing",
            "warning",
            f"{missing} of the last {len(due)} decisions whose reward is due have none. The model learns only from "
            "reported rewards: if only successes are reported, every action looks successful.",
            {"decisions": len(due), "without_reward": missing, "longest_wait": longest},
            "Report failures too, as 0 or as their cost; or set rewards.wait_seconds and rewards.default.",
        )


def check_bounds(facts: Facts) -> Iterator[Finding]:
    rules, earned = facts.config.rewards, facts.earned
    if rules.range is None or earned.size < ENOUGH_REWARDS or np.unique(earned).size <= SCALE_VALUES:
        return
    low, high = (float((earned == limit).mean()) for limit in rules.range)
    # Many zeros are ordinary at the lower end, and so are many defaults.
    if high > BOUND_SHARE or (low > BOUND_SHARE and rules.range[0] not in (0.0, rules.default)):
        yield Finding(
            "rewards_at_bounds",
            "warning",
            f"Many rewards lie at an end of rewards.range: {100 * low:.1f} % at {rules.range[0]:g}, "
            f"{100 * high:.1f} % at {rules.range[1]:g}. If they are clipped there, the best actions look no better "
            "than good ones.",
            {"rewards": int(earned.size), "at_lowest": low, "at_highest": high, "range": list(rules.range)},
            "Clone the campaign with a wider rewards.range, and send rewards without clipping them.",
        )


def check_late(facts: Facts) -> Iterator[Finding]:
    late = facts.late_rewards
    if late is None or late.refused < LEAST_LATE:
        return
    rules, count = facts.config.rewards, round(late.refused)
    yield Finding(
        "late_rewards",
        "warning",
        f"{count} late reward{'s' * (count != 1)} refused, of the last {round(late.requests)} that this worker saw.",
        {"refused": count, "rewards": round(late.requests), "correct_seconds": rules.correct_seconds},
        "Report rewards within rewards.wait_seconds, or make the wait longer. With rewards.correct_seconds, "
        "POST /reward/correct takes them later.",
    )
