"""Why is nothing learning? What the checks find about a campaign, and a verdict in one line."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from policy import StagedPolicy, State
from service.analysis.checks import Finding, inputs, learning, rewards
from service.analysis.facts import Facts
from service.engine.refusals import RefusalShare
from service.storage.transaction import Transaction

HEALTHY = "Learning: nothing to report"
# The order of findings of the same severity.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    learning.check_last_update,
    rewards.check_any_reward,
    rewards.check_stopped,
    rewards.check_defaults,
    rewards.check_variation,
    inputs.check_refused,
    inputs.check_variables,
    learning.check_closed,
    learning.check_job,
    rewards.check_missing,
    rewards.check_late,
    rewards.check_bounds,
    inputs.check_actions,
    inputs.check_clock,
    learning.check_decisions,
    learning.check_warm_start,
    learning.check_search,
    learning.check_estimate,
    learning.check_belief,
    learning.check_exploration,
    learning.check_overlap,
    learning.check_guard,
)


class Diagnosis(NamedTuple):
    verdict: str
    findings: list[Finding]  # worst first


def diagnose(
    tx: Transaction,
    policy: StagedPolicy,
    state: State,
    now: int,
    refusals: RefusalShare | None = None,
    late_rewards: RefusalShare | None = None,
) -> Diagnosis:
    """Run every check on a campaign; `now` is the service's time in microseconds."""
    facts = Facts(tx, policy, state, now, refusals, late_rewards)
    findings = [finding for check in CHECKS for finding in check(facts)]
    findings.sort(key=lambda finding: ("problem", "warning", "info").index(finding.severity))
    return Diagnosis(_summarize(findings), findings)


def _summarize(findings: Sequence[Finding]) -> str:
    """The worst finding, in one line."""
    for severity, words in (("problem", "Not learning"), ("warning", "Learning less than it could")):
        messages = [finding.message.rstrip(".") for finding in findings if finding.severity == severity]
        if messages:
            more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
            return f"{words}: {messages[0]}{more}"
    for finding in findings:
        if finding.code in ("no_decisions", "warm_start"):
            return f"Just started: {finding.message.rstrip('.')}"
        if finding.code == "searching":
            return f"Still looking: {finding.message.rstrip('.')}"
    return HEALTHY
