"""`GET /campaigns/{name}/diagnostics`: why is nothing learning? Each finding has its evidence and advice."""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from policy import StagedPolicy, State
from service.access.roles import READERS, allow
from service.analysis.checks.finding import Code, Severity
from service.analysis.diagnostics import Diagnosis, diagnose
from service.api.models import load_current
from service.engine.worker import Service
from service.web.openapi import describe_errors


class Finding(BaseModel):
    """Something that keeps the campaign from learning, or is worth knowing."""

    code: Code
    severity: Severity
    message: str
    evidence: Annotated[dict[str, Any], Field(description="the numbers behind the message")]
    advice: Annotated[str, Field(description="what to do")]


class Diagnostics(BaseModel):
    campaign: str
    round: int
    verdict: Annotated[str, Field(description="in one line")]
    findings: Annotated[list[Finding], Field(description="worst first")]


def add_diagnostics(app: FastAPI, service: Service) -> None:
    """Add the route."""

    def run(policy: StagedPolicy, state: State) -> Diagnosis:
        with service.store.reading() as tx:
            refusals = service.campaigns.metrics.refusals.get_share(policy.config.name)
            return diagnose(tx, policy, state, service.campaigns.clock(), refusals)

    @app.get("/campaigns/{name}/diagnostics", tags=["campaigns"], responses=describe_errors(404))
    @allow(READERS, campaign="path")
    async def diagnostics(name: str) -> Diagnostics:
        """Why is nothing learning? Missing or constant rewards, signals that do not vary, actions that are never
        eligible, too much or too little exploration, wrong clocks …: what was found, the evidence, and what to do."""
        policy, state = await load_current(service, name)
        diagnosis = await run_in_threadpool(run, policy, state)
        findings = [Finding.model_validate(finding, from_attributes=True) for finding in diagnosis.findings]
        return Diagnostics(campaign=name, round=state.round, verdict=diagnosis.verdict, findings=findings)
