"""/docs and /redoc: pages about the API that work without the internet, with scripts and styles from a package.

They hold no script of their own, so that none but files of this service can run in them (service/web/headers.py).
"""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from service.web.headers import KIND, Assets, Kind, root_of

__all__ = ["add_documentation"]

ASSETS = "/docs-assets"
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{style}">
<link rel="icon" href="{assets}/favicon.png">
<title>{title}</title>
</head>
"""
SWAGGER = """<body>
<div id="swagger-ui"></div>
<script src="{assets}/swagger-ui-bundle.js"></script>
<script src="{assets}/swagger.js" data-openapi="{openapi}"></script>
</body>
</html>
"""
REDOC = """<body>
<redoc spec-url="{openapi}"></redoc>
<script src="{assets}/redoc.standalone.js"></script>
</body>
</html>
"""


def add_documentation(app: FastAPI) -> None:
    """Both pages, and what they load."""
    own = Path(str(files(__name__))) / "static"
    app.mount(ASSETS, Assets(directory=own, packages=[("fastapi_offline", "static")]), name="docs-assets")

    def page(request: Request, kind: Kind, body: str, style: str) -> HTMLResponse:
        request.scope[KIND] = kind
        root = root_of(request.scope)
        assets = f"{root}{ASSETS}"
        known = {"assets": assets, "style": f"{assets}/{style}", "openapi": f"{root}{app.openapi_url}"}
        return HTMLResponse((HEAD + body).format(title=app.title, **known))

    @app.get("/docs", include_in_schema=False)
    async def swagger(request: Request) -> HTMLResponse:
        return page(request, "swagger", SWAGGER, "swagger-ui.css")

    @app.get("/redoc", include_in_schema=False)
    async def redoc(request: Request) -> HTMLResponse:
        return page(request, "redoc", REDOC, "redoc.css")
