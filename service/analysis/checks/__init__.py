"""The checks behind "why is nothing learning?". Each looks at the facts about a campaign and yields what it finds.

A problem keeps the campaign from learning, a warning makes it learn less than it could, and an info is worth knowing.
"""

from collections.abc import Callable, Iterator

from service.analysis.checks import inputs, learning, rewards, running
from service.analysis.checks.finding import Finding, Severity
from service.analysis.facts import Facts

# The order of findings of the same severity.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    running.check_last_update,
    rewards.check_any_reward,
    rewards.check_stopped,
    rewards.check_defaults,
    rewards.check_variation,
    inputs.check_variables,
    running.check_archived,
    running.check_paused,
    running.check_job,
    rewards.check_missing,
    rewards.check_overdue,
    rewards.check_bounds,
    inputs.check_actions,
    inputs.check_clock,
    running.check_decisions,
    learning.check_warm_start,
    learning.check_estimate,
    learning.check_belief,
    learning.check_exploration,
    learning.check_overlap,
    learning.check_guard,
)
_WORST_FIRST: tuple[Severity, ...] = ("problem", "warning", "info")


def run_checks(facts: Facts) -> list[Finding]:
    """The findings of all checks, worst first."""
    findings = [finding for check in CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))
