"""The checks behind "why is nothing learning?", by subject. Each looks at the facts and yields what it finds.

A problem keeps the campaign from learning, a warning makes it learn less than it could, and an info is worth knowing.
"""

from typing import Any, Literal, NamedTuple

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
    "decides_refused",
    "exploration_large",
    "exploration_small",
    "guard_active",
    "job_waiting",
    "late_rewards",
    "no_decisions",
    "no_overlap",
    "no_rewards",
    "only_default_rewards",
    "paused",
    "regimes_not_estimable",
    "rewards_at_bounds",
    "rewards_missing",
    "rewards_stopped",
    "searching",
    "update_failed",
    "warm_start",
]
ENOUGH_DECISIONS = 50  # the default warm start: before it ends, nobody expects anything
CHANCE = 1e-6  # a probability below this is no coincidence


class Finding(NamedTuple):
    code: Code
    severity: Severity
    message: str
    evidence: dict[str, Any]  # the numbers behind the message
    advice: str
