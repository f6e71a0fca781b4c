"""Why is nothing learning? What the checks find about a campaign, and a verdict in one line."""

from collections.abc import Sequence
from typing import NamedTuple

from policy import StagedPolicy, State
from service.analysis.checks import run_checks
from service.analysis.checks.finding import Finding
from service.analysis.facts import load_facts
from service.engine.recovery import get_campaign
from service.storage.transaction import Transaction

HEALTHY = "Learning: nothing to report"


class Diagnosis(NamedTuple):
    verdict: str
    findings: list[Finding]  # worst first


def diagnose(tx: Transaction, policy: StagedPolicy, state: State, now: int) -> Diagnosis:
    """Run every check on a campaign; `now` is the service's time in microseconds."""
    row = get_campaign(tx, policy.config.name)
    findings = run_checks(load_facts(tx, row, now, policy, state))
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
    return HEALTHY
