"""The route that lists the audit log. `undercurrent audit` prints the same entries."""

import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from service.access.roles import ADMINS, allow
from service.api.paging import Limit, NumberCursor
from service.base.times import format_timestamp
from service.engine.worker import Service
from service.storage.audit import read_audit_page
from service.storage.rows import AuditRow
from service.web.openapi import describe_errors
from service.web.times import TIME, QueryTime, make_interval


class AuditEntry(BaseModel):
    """An action of an administrator, or an attempt."""

    number: Annotated[int, Field(description="the newest has the highest")]
    at: str
    actor: Annotated[str, Field(description='the id of a key, "local" if no keys are needed, or "command line"')]
    role: str | None
    action: str
    campaign: str | None
    details: dict[str, Any]
    request_id: str | None
    outcome: Literal["done", "refused"]


class AuditPage(BaseModel):
    entries: Annotated[list[AuditEntry], Field(description="newest first")]
    next_cursor: int | None


def add_audit_routes(app: FastAPI, service: Service) -> None:
    @app.get("/audit", tags=["operations"], name="audit", responses=describe_errors(422))
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
            rows = read_audit_page(tx, cursor, limit + 1, campaign, times)
        return AuditPage(
            entries=[make_entry(row) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def make_entry(row: AuditRow) -> AuditEntry:
    return AuditEntry.model_validate(
        {**row._asdict(), "at": format_timestamp(row.at), "details": json.loads(row.details)}
    )
