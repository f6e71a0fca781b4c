"""The FastAPI application: the routes around one worker, and API documentation that works without the internet."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from service import __version__
from service.administration import add_administration
from service.alert_routes import add_alerts
from service.dashboard import add_dashboard
from service.diagnostics import add_diagnostics
from service.errors import install_error_handlers
from service.exports import add_export_routes
from service.personalizer import add_personalizer_routes
from service.preview import add_preview_routes
from service.regimes import add_regime_routes
from service.reports import add_report_routes
from service.requests import Requests
from service.routes import Application, add_routes
from service.series import add_series_routes
from service.settings import Settings
from service.subjects import add_subject_routes
from service.worker import Service

ASSETS = "/docs-assets"
# Both pages would also show pictures from their makers' hosts; with this the browser asks no other host.
LOCAL_ONLY = {"content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"}


def create_app(settings: Settings, service: Service | None = None) -> FastAPI:
    """One service with these settings; nothing is shared between two of them."""
    worker = service or Service(settings)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        await worker.start()
        yield
        await worker.stop()

    app = Application(
        Requests(worker.metrics, settings.access_log),
        title="Undercurrent",
        summary="Decides which marketing action to take, and learns, while a hidden regime shifts.",
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,  # the framework's own pages load their scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to whatever host the request names
        lifespan=running,
    )
    install_error_handlers(app)
    add_routes(app, worker)  # first: routes are tried in order
    add_administration(app, worker)
    add_subject_routes(app, worker)
    add_alerts(app, worker)
    add_report_routes(app, worker)
    add_personalizer_routes(app, worker)
    add_regime_routes(app, worker)
    add_diagnostics(app, worker)
    add_export_routes(app, worker)
    add_preview_routes(app, worker)
    add_series_routes(app, worker)
    add_dashboard(app, worker)
    _add_documentation(app)
    return app


def from_environment() -> FastAPI:
    """The application of one of several worker processes, which the command line starts."""
    return create_app(Settings.load(os.environ, {}))


def _add_documentation(app: FastAPI) -> None:
    """/docs and /redoc as the framework makes them, with scripts and styles from an installed package."""
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]), name="docs-assets")

    @app.get("/docs", include_in_schema=False)
    async def swagger_ui(request: Request) -> HTMLResponse:
        root = _root_path(request)
        page = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{root}{ASSETS}/favicon.png",
        )
        page.headers.update(LOCAL_ONLY)
        return page

    @app.get("/redoc", include_in_schema=False)
    async def redoc(request: Request) -> HTMLResponse:
        root = _root_path(request)
        page = get_redoc_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            redoc_js_url=f"{root}{ASSETS}/redoc.standalone.js",
            redoc_favicon_url=f"{root}{ASSETS}/favicon.png",
            with_google_fonts=False,
        )
        page.headers.update(LOCAL_ONLY)
        return page


def _root_path(request: Request) -> str:
    """Where a reverse proxy mounted the service, as the browser sees it; empty without one."""
    return str(request.scope.get("root_path", "")).rstrip("/")
