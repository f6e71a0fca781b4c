"""The FastAPI application, with every route around one worker, and how uvicorn serves it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from service import __version__
from service.access.browsers import Visitors
from service.api import (
    campaigns,
    changes,
    decisions,
    exports,
    models,
    operations,
    regimes,
    rehearsal,
    reports,
    rewards,
    series,
    subjects,
)
from service.base.logs import build_log_config
from service.base.settings import Settings
from service.compat import ofrep, personalizer
from service.dashboard import add_dashboard
from service.documentation import add_documentation
from service.engine.worker import Service
from service.web.application import Application
from service.web.errors import install_error_handlers
from service.web.requests import Requests

# In this order routes are tried, and the documentation lists them.
MODULES = (
    decisions,
    rewards,
    campaigns,
    changes,
    models,
    operations,
    subjects,
    reports,
    ofrep,
    personalizer,
    regimes,
    exports,
    series,
)


def create_app(
    settings: Settings, service: Service | None = None, on_start: Callable[[], None] | None = None
) -> Application:
    """One service with these settings, which shares nothing with another; `on_start` is called once it serves."""
    worker = service or Service(settings)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        await worker.start()
        if on_start is not None:
            on_start()
        yield
        await worker.stop()

    api = FastAPI(
        title="Undercurrent",
        summary="Decides which marketing action to take, and learns, while a hidden regime shifts.",
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_url=None,  # service/documentation serves it, with pages that load no scripts from a CDN
        redirect_slashes=False,  # a redirect would go to any host that the request names
        lifespan=running,
    )
    requests = Requests(worker.metrics, settings.access_log, settings.https)
    app = Application(api, requests, worker.keys, Visitors(settings.hosts))
    install_error_handlers(api)
    for module in MODULES:
        module.add_routes(app, worker)
    if worker.rehearsal_clock is not None:
        rehearsal.add_routes(app, worker, worker.rehearsal_clock)
    add_dashboard(api, worker)
    add_documentation(app)
    return app


def configure_server(app: Application, settings: Settings | None = None) -> uvicorn.Config:
    """How uvicorn serves the application. With settings it also sets up our logs."""
    return uvicorn.Config(
        app,
        log_config=None if settings is None else build_log_config(settings),
        log_level="warning" if settings is None else None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # no route depends on the caller's address
        http="httptools",
        timeout_keep_alive=75,  # seconds; proxies close idle connections first, commonly after 60
        timeout_graceful_shutdown=30,  # seconds for clients that never finish sending
    )
