"""The FastAPI application: health, and API documentation that works without the internet."""

from typing import Literal

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from service import __version__
from service.errors import RESPONSES, install_error_handlers
from service.settings import Settings

ASSETS = "/docs-assets"
# Both pages would also show pictures from their makers' hosts; with this the browser asks no other host.
LOCAL_ONLY = {"content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"}


class Health(BaseModel):
    """The service is up, and which one it is."""

    status: Literal["ok"] = "ok"
    version: str = __version__


def create_app(settings: Settings) -> FastAPI:
    """One service with these settings; nothing is shared between two of them."""
    app = FastAPI(
        title="Undercurrent",
        summary="Decides which marketing action to take, and learns, while a hidden regime shifts.",
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,  # the framework's own pages load their scripts from a CDN
        redoc_url=None,
        responses=RESPONSES,
    )
    app.state.settings = settings
    install_error_handlers(app)
    _add_documentation(app)

    @app.get("/healthz", tags=["operations"], summary="Is the service up?")
    async def healthz() -> Health:
        return Health()

    return app


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
