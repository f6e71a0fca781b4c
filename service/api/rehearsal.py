"""The route that moves the clock of a rehearsal. Only a service that was started with `rehearsal` has it."""

from pydantic import BaseModel, ConfigDict, Field

from service.access.roles import ADMINS, allow
from service.api.fields import Timestamp
from service.base.rehearsal import RehearsalClock
from service.engine.worker import Service
from service.web.application import Application
from service.web.openapi import describe_errors


class Advance(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"advance_seconds": 86_400}]})

    advance_seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False, description="how far to move the clock ahead")


class Now(BaseModel):
    now: Timestamp


def add_routes(app: Application, service: Service, clock: RehearsalClock) -> None:
    @app.api.post("/rehearsal/clock", tags=["operations"], responses=describe_errors(422))
    @allow(ADMINS)
    def advance(body: Advance) -> Now:
        """Move the service's clock ahead: waits end, defaults fall due. It never goes back."""
        clock.advance(body.advance_seconds)
        return Now.model_validate({"now": clock()})
