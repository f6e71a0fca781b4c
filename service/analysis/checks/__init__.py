"""The checks behind "why is nothing learning?": each looks at the facts and says what it finds, with numbers.

A problem keeps the campaign from learning, a warning makes it learn less than it could, an info is worth knowing.
"""

from collections.abc import Callable, Iterator

from service.analysis.checks import inputs, learning, rewards, running
from service.analysis.checks.finding import Code, Finding, Severity
from service.analysis.facts import Facts

__all__ = ["CHECKS", "Code", "Finding", "Severity", "run_checks"]

# Among findings of one severity, those of earlier checks come first.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    running.update_failed,
    rewards.no_rewards,
    rewards.rewards_stopped,
    rewards.only_default_rewards,
    rewards.constant_rewards,
    inputs.constant_inputs,
    running.archived,
    running.paused,
    running.job_waiting,
    rewards.rewards_missing,
    rewards.rewards_overdue,
    rewards.rewards_at_bounds,
    inputs.actions_left_out,
    inputs.clock_skew,
    running.no_decisions,
    learning.warming_up,
    learning.regimes_not_estimable,
    learning.belief_stuck,
    learning.exploration,
    learning.guard_active,
)
_WORST_FIRST: tuple[Severity, ...] = ("problem", "warning", "info")


def run_checks(facts: Facts) -> list[Finding]:
    """What all checks find, worst first."""
    findings = [finding for check in CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))
