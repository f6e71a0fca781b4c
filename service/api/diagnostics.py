"""`GET /campaigns/{name}/diagnostics`: why is nothing learning? What was found, with the evidence and what to do."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State
from service.access.roles import READERS, allow
from service.analysis.checks import Code, Finding, Severity, findings
from service.analysis.facts import gathered
from service.api.routes import current
from service.engine.recovery import get_campaign
from service.engine.worker import Service
from service.web.openapi import describe_errors

__all__ = ["Diagnostics", "add_diagnostics"]

HEALTHY = "Learning: nothing to report"


class Found(BaseModel):
    """Something that keeps the campaign from learning, or is worth knowing."""

    code: Code
    severity: Severity
    message: str
    evidence: Annotated[dict[str, Any], Field(description="the numbers behind it")]
    advice: Annotated[str, Field(description="what to do")]


class Diagnostics(BaseModel):
    campaign: str
    round: int
    verdict: Annotated[str, Field(description="in one line")]
    findings: Annotated[list[Found], Field(description="worst first")]


def add_diagnostics(app: FastAPI, service: Service) -> None:
    """The route that says why a campaign does not learn."""

    @app.get("/campaigns/{name}/diagnostics", tags=["campaigns"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def diagnostics(name: str) -> Diagnostics:
        """Why is nothing learning? Missing or constant rewards, signals that do not vary, actions that nobody may get,
        too much or too little exploration, clocks that are wrong …: what was found, the evidence, and what to do."""
        policy, state = await current(service, name)
        return await run_in_threadpool(_diagnosed, service, policy, state)


def _diagnosed(service: Service, policy: StagedPolicy, state: State) -> Diagnostics:
    name = policy.config.name
    with service.store.reading() as tx:
        row, _ = get_campaign(tx, name)
        facts = gathered(tx, row, service.campaigns.clock(), policy, state)
    told = findings(facts)
    return Diagnostics(
        campaign=name,
        round=state.round,
        verdict=_verdict(told),
        findings=[Found.model_validate(finding, from_attributes=True) for finding in told],
    )


def _verdict(told: Sequence[Finding]) -> str:
    """The worst in one line."""
    for severity, words in (("problem", "Not learning"), ("warning", "Learning less than it could")):
        of_it = [finding for finding in told if finding.severity == severity]
        if of_it:
            more = f" (and {len(of_it) - 1} more)" if len(of_it) > 1 else ""
            return f"{words}: {of_it[0].message.rstrip('.')}{more}"
    beginning = [finding for finding in told if finding.code in ("no_decisions", "warm_start")]
    return f"Just begun: {beginning[0].message.rstrip('.')}" if beginning else HEALTHY
