"""The audit log for people: `GET /audit`, and `undercurrent audit`."""

import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from service.access.roles import ADMINS, allow
from service.api.routes import Limit, VersionCursor
from service.base.times import format_timestamp
from service.engine.worker import Service
from service.storage.audit import read_audit_page
from service.storage.rows import AuditRow
from service.web.openapi import describe_errors
from service.web.times import TIME, QueryTime, make_interval

__all__ = ["add_audit", "entry_of"]


class AuditEntry(BaseModel):
    """Something that an administrator did, or tried to do."""

    number: Annotated[int, Field(description="the newest has the highest")]
    at: str
    actor: Annotated[str, Field(description='the id of a key, "local" where no keys are asked for, or "command line"')]
    role: str | None
    action: str
    campaign: str | None
    details: dict[str, Any]
    request_id: str | None
    outcome: Literal["done", "refused"]


class AuditPage(BaseModel):
    entries: Annotated[list[AuditEntry], Field(description="newest first")]
    next_cursor: int | None


def add_audit(app: FastAPI, service: Service) -> None:
    """The one route that reads it."""

    @app.get("/audit", tags=["operations"], responses=describe_errors(422))
    @allow(ADMINS)
    def audit(
        limit: Limit = 50,
        cursor: VersionCursor = None,
        campaign: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
        start: Annotated[QueryTime, Query(alias="from", description=f"done then or later. {TIME}")] = None,
        end: Annotated[QueryTime, Query(alias="to", description="done before that")] = None,
    ) -> AuditPage:
        """What administrators did, newest first, a page at a time; of campaigns that were deleted too."""
        asked = make_interval(start, end)
        with service.store.reading() as tx:
            rows = read_audit_page(tx, cursor, limit + 1, campaign, asked)
        return AuditPage(
            entries=[entry_of(row) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def entry_of(row: AuditRow) -> AuditEntry:
    return AuditEntry.model_validate(
        {**row._asdict(), "at": format_timestamp(row.at), "details": json.loads(row.details)}
    )
