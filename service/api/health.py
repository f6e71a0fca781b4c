"""The routes for operators: whether the service is up, whether it can decide, and its metrics."""

from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from service import __version__
from service.access.roles import ANYONE, WATCHERS, allow
from service.engine.worker import Service
from service.storage.schema import require_current
from service.web.openapi import describe_errors


class Health(BaseModel):
    """The service works; its version."""

    status: Literal["ok"] = "ok"
    version: str = __version__


def add_health_routes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=["operations"], name="healthz")
    @allow(ANYONE)
    async def check_health() -> Health:
        """Is the process up?"""
        return Health()

    @app.get("/readyz", tags=["operations"], name="readyz", responses=describe_errors())
    @allow(ANYONE)
    def check_readiness() -> Health:
        """Can the service decide? The database answers, accepts writes and has the schema that this version needs."""
        require_current(service.store)
        service.store.require_writes()
        return Health()

    exposition = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", tags=["operations"], name="metrics", response_class=Response, responses={200: exposition})
    @allow(WATCHERS)
    async def get_metrics(request: Request) -> Response:
        """Metrics for Prometheus: the work of all workers since they started, and the state of every campaign."""
        content, content_type = await service.exporter.export(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})
