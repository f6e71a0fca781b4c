"""The routes for operators: whether the service is up, whether it can decide, its metrics, and the audit log."""

import json
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from service import __version__
from service.access.roles import ADMINS, ANYONE, WATCHERS, allow
from service.api.fields import Limit, NumberCursor, Timestamp
from service.engine.worker import Service
from service.storage import audit, rows, schema
from service.web.application import Application
from service.web.openapi import describe_errors
from service.web.times import TIME, QueryTime, make_interval


class Health(BaseModel):
    """The service works; its version."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class AuditEntry(BaseModel):
    """An action of an administrator, or an attempt."""

    number: int = Field(description="the newest has the highest")
    at: Timestamp
    actor: str = Field(description='the id of a key, "local" if no keys are needed, or "command line"')
    role: str | None
    action: str
    campaign: str | None
    details: dict[str, Any]
    request_id: str | None
    outcome: Literal["done", "refused"]


class AuditPage(BaseModel):
    entries: list[AuditEntry] = Field(description="newest first")
    next_cursor: int | None


def add_routes(app: Application, service: Service) -> None:
    @app.api.get("/healthz", tags=["operations"], name="healthz")
    @allow(ANYONE)
    async def check_health() -> Health:
        """Is the process up?"""
        return Health()

    @app.api.get("/readyz", tags=["operations"], name="readyz", responses=describe_errors())
    @allow(ANYONE)
    def check_readiness() -> Health:
        """Can the service decide? The database answers, accepts writes and has the schema that this version needs."""
        schema.require_current(service.store)
        service.store.require_writes()
        return Health()

    exposition = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.api.get("/metrics", tags=["operations"], name="metrics", response_class=Response, responses={200: exposition})
    @allow(WATCHERS)
    async def get_metrics(request: Request) -> Response:
        """Metrics for Prometheus: the work of all workers since they started, and the state of every campaign."""
        content, content_type = await service.exporter.export(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    @app.api.get("/audit", tags=["operations"], name="audit", responses=describe_errors(422))
    @allow(ADMINS)
    def list_entries(
        limit: Limit = 50,
        cursor: NumberCursor = None,
        campaign: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
        start: Annotated[QueryTime, Query(alias="from", description=f"at or after this time. {TIME}")] = None,
        end: Annotated[QueryTime, Query(alias="to", description="before this time")] = None,
    ) -> AuditPage:
        """Administrators' actions, newest first, a page at a time; also those on campaigns that were deleted since."""
        times = make_interval(start, end)
        with service.store.reading() as tx:
            rows = audit.read_audit_page(tx, cursor, limit + 1, campaign, times)
        return AuditPage(
            entries=[make_entry(row) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def make_entry(row: rows.AuditRow) -> AuditEntry:
    """Make the entry of a row; `undercurrent audit` prints the same ones."""
    return AuditEntry.model_validate(row._asdict() | {"details": json.loads(row.details)})
