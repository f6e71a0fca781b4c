"""What a check says: a code, how bad it is, and in words what, by which numbers, and what to do."""

from typing import Any, Literal, NamedTuple

__all__ = ["CHANCE", "ENOUGH_DECISIONS", "Code", "Finding", "Severity"]

Severity = Literal["problem", "warning", "info"]
Code = Literal[
    "action_never_chosen",
    "action_never_eligible",
    "archived",
    "belief_stuck",
    "clock_skew",
    "constant_rewards",
    "constant_signal",
    "constant_variable",
    "exploration_large",
    "exploration_small",
    "guard_active",
    "job_waiting",
    "no_decisions",
    "no_overlap",
    "no_rewards",
    "only_default_rewards",
    "paused",
    "regimes_not_estimable",
    "rewards_at_bounds",
    "rewards_missing",
    "rewards_overdue",
    "rewards_stopped",
    "update_failed",
    "warm_start",
]
ENOUGH_DECISIONS = 50  # a default warm start: before that nobody expects anything
CHANCE = 1e-6  # of what is no coincidence


class Finding(NamedTuple):
    """Something that a check found."""

    code: Code
    severity: Severity
    message: str
    evidence: dict[str, Any]
    advice: str
