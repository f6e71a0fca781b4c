"""Do rewards come, and can anything be learned from them?"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from service.analysis.checks.finding import CHANCE, ENOUGH_DECISIONS, Finding
from service.analysis.facts import Facts
from service.engine.fold import SECOND

__all__ = [
    "constant_rewards",
    "no_rewards",
    "only_default_rewards",
    "rewards_at_bounds",
    "rewards_missing",
    "rewards_overdue",
    "rewards_stopped",
]

ENOUGH_REWARDS = 50
SURELY_ENOUGH = 500  # rewards: even one success in a hundred would have shown itself
SILENCE = 3.0  # times the longest wait for rewards so far
MISSING_SHARE = 0.5  # of the rewards: from here on most decisions teach nothing
LATE = 2.0  # times rewards.wait_seconds: defaults are set at a stage's end, so a little more is normal
BOUND_SHARE = 0.05  # of the rewards, at an end of their range
SCALE_VALUES = 10  # so few different rewards are a scale (0 or 1, one to five stars), whose ends are ordinary values


def no_rewards(facts: Facts) -> Iterator[Finding]:
    state, wait = facts.state, facts.config.rewards.wait_seconds or 0.0
    if state.arrived or state.round < ENOUGH_DECISIONS or facts.first_decided_at is None:
        return
    seconds = (facts.now - facts.first_decided_at) / SECOND
    if seconds >= wait:  # else they are not due yet
        yield Finding(
            "no_rewards",
            "problem",
            f"{state.round} decisions were made, and no reward has come for any of them.",
            {"decisions": state.round, "rewards": 0, "seconds_since_first_decision": seconds},
            "POST /reward with the decision_id of each decision. If a customer who does not respond earns nothing, set "
            "rewards.wait_seconds and rewards.default.",
        )


def rewards_stopped(facts: Facts) -> Iterator[Finding]:
    """Silence is measured in decisions, and against how long rewards took before: they may come in batches."""
    if not facts.rewards:
        return
    came = sorted({row.after_round for row in facts.rewards})
    waits = [row.after_round - row.round for row in facts.rewards]
    usual = max(1, *waits, *(later - earlier for earlier, later in pairwise(came)))
    silence = facts.state.round - came[-1]
    if silence >= ENOUGH_DECISIONS and silence > SILENCE * usual:
        yield Finding(
            "rewards_stopped",
            "problem",
            f"Rewards have stopped: none came during the last {silence} decisions; before, it never took more than "
            f"{usual}.",
            {"decisions_since_last_reward": silence, "longest_wait_before": usual, "rewards": facts.state.arrived},
            "Look at what sends POST /reward: is it running, does it get errors?",
        )


def only_default_rewards(facts: Facts) -> Iterator[Finding]:
    sources = Counter(row.source for row in facts.log if row.reward is not None)
    if sources["default"] >= ENOUGH_REWARDS and sources["default"] == sources.total():
        yield Finding(
            "only_default_rewards",
            "problem",
            f"All {sources.total()} rewards of the last {len(facts.log)} decisions are the default: none was reported.",
            {"default_rewards": sources["default"], "reported_rewards": 0, "decisions": len(facts.log)},
            "Look at what sends POST /reward, and whether rewards.wait_seconds is shorter than rewards take.",
        )


def constant_rewards(facts: Facts) -> Iterator[Finding]:
    earned = facts.earned
    if earned.size < ENOUGH_REWARDS:
        return
    value = float(earned[-1])
    evidence = {"rewards": int(earned.size), "value": value}
    advice = "Is the right field sent as the reward? Where every action earns the same, there is nothing to learn."
    others = np.flatnonzero(earned != value)
    if not others.size:
        yield Finding(
            "constant_rewards",
            "problem" if earned.size >= SURELY_ENOUGH else "warning",
            f"Each of the {earned.size} rewards is {value:g}: they say nothing about what is better.",
            evidence,
            advice,
        )
        return
    same = int(earned.size - 1 - others[-1])
    varied = others.size / (earned.size - same)
    if same >= ENOUGH_REWARDS and (1.0 - varied) ** same < CHANCE:
        yield Finding(
            "constant_rewards",
            "warning",
            f"The last {same} rewards are all {value:g}; before, {100 * varied:.1f} % were something else.",
            evidence | {"same_in_a_row": same, "share_of_others_before": varied},
            advice,
        )


def rewards_missing(facts: Facts) -> Iterator[Finding]:
    """Of decisions older than any reward took so far: what is only late is not missing."""
    if facts.config.rewards.default is not None or not facts.rewards:
        return
    usual = max(row.after_round - row.round for row in facts.rewards)
    due = [row for row in facts.log if row.round <= facts.state.round - usual and not row.erased]
    missing = sum(row.reward is None for row in due)
    if len(due) >= ENOUGH_DECISIONS and missing > MISSING_SHARE * len(due):
        yield Finding(
            "rewards_missing",
            "warning",
            f"{missing} of the last {len(due)} decisions have no reward, although it is due. What does not come is not "
            "learned from: if only successes are reported, every action looks like one.",
            {"decisions": len(due), "without_reward": missing, "longest_wait": usual},
            "Report failures too, as 0 or what they cost; or set rewards.wait_seconds and rewards.default.",
        )


def rewards_overdue(facts: Facts) -> Iterator[Finding]:
    overdue, wait = facts.overdue, facts.config.rewards.wait_seconds
    if overdue is not None and wait is not None and overdue.oldest_seconds > LATE * wait:
        yield Finding(
            "rewards_overdue",
            "warning",
            f"{overdue.decisions} decisions have waited for their reward longer than rewards.wait_seconds "
            f"({wait:g}), the oldest for {overdue.oldest_seconds:.0f} s. They get the default at the next stage's "
            f"end, before round {facts.state.next_update}.",
            {**overdue._asdict(), "wait_seconds": wait},
            "Only decisions end a stage: where they are few, clone the campaign with a shorter stage_length. A "
            "backlog, because the wait was switched on late, is worked off stage by stage.",
        )


def rewards_at_bounds(facts: Facts) -> Iterator[Finding]:
    rules, earned = facts.config.rewards, facts.earned
    if rules.range is None or earned.size < ENOUGH_REWARDS or np.unique(earned).size <= SCALE_VALUES:
        return
    low, high = (float((earned == limit).mean()) for limit in rules.range)
    # To earn nothing is ordinary, and so is the default.
    if high > BOUND_SHARE or (low > BOUND_SHARE and rules.range[0] not in (0.0, rules.default)):
        yield Finding(
            "rewards_at_bounds",
            "warning",
            f"Many rewards are at an end of rewards.range: {100 * low:.1f} % at {rules.range[0]:g}, "
            f"{100 * high:.1f} % at {rules.range[1]:g}. If they are cut off there, "
            "the best and the good look the same.",
            {"rewards": int(earned.size), "at_lowest": low, "at_highest": high, "range": list(rules.range)},
            "Clone the campaign with a wider rewards.range, and send rewards as they are.",
        )
