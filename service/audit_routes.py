"""The audit log for people: `GET /audit`, and `undercurrent audit`."""

import json
from contextlib import closing
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from service.audit import AuditRow, page
from service.moments import TIME, Moment, between, interval, timestamp
from service.routes import Limit, VersionCursor
from service.schema import require_current
from service.settings import Settings
from service.store import Store
from service.worker import Service

__all__ = ["add_audit", "print_audit"]

PAGE = 500


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

    @app.get("/audit", tags=["operations"])
    def audit(
        limit: Limit = 50,
        cursor: VersionCursor = None,
        campaign: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
        start: Annotated[Moment, Query(alias="from", description=f"done then or later. {TIME}")] = None,
        end: Annotated[Moment, Query(alias="to", description="done before that")] = None,
    ) -> AuditPage:
        """What administrators did, newest first, a page at a time; of campaigns that were deleted too."""
        asked = interval(start, end)
        with service.store.reading() as tx:
            rows = page(tx, cursor, limit + 1, campaign, asked)
        return AuditPage(
            entries=[_entry(row) for row in rows[:limit]],
            next_cursor=rows[limit - 1].number if len(rows) > limit else None,
        )


def print_audit(settings: Settings, campaign: str | None, start: str | None, end: str | None) -> int:
    """Every entry as a line of JSON, newest first, from the database itself."""
    asked = between(start, end)
    with closing(Store(settings.database_url)) as store:
        require_current(store)
        with store.reading() as tx:
            rows = page(tx, None, PAGE, campaign, asked)
            while rows:
                for row in rows:
                    print(_entry(row).model_dump_json())
                rows = page(tx, rows[-1].number, PAGE, campaign, asked)
    return 0


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry.model_validate({**row._asdict(), "at": timestamp(row.at), "details": json.loads(row.details)})
