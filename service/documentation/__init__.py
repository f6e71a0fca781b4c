"""/docs and /redoc: the API's documentation, with scripts and styles from a package so that it works offline.

The pages contain no inline scripts, so the content security policy can allow only files served by this service.
The room uses `access` and `web`, and no data.
"""

from pathlib import Path

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse

from service.access.roles import ANYONE, allow
from service.web.application import Application
from service.web.headers import KIND, Assets, Kind, get_root

__all__ = ["add_documentation"]

ASSETS = "/docs-assets"
OPENAPI = "/openapi.json"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{assets}/{style}">
<link rel="icon" href="{assets}/favicon.png">
<title>{title}</title>
</head>
<body>
{body}
</body>
</html>
"""
SWAGGER = """<div id="swagger-ui"></div>
<script src="{assets}/swagger-ui-bundle.js"></script>
<script src="{assets}/swagger.js" data-openapi="{openapi}"></script>"""
REDOC = """<redoc spec-url="{openapi}"></redoc>
<script src="{assets}/redoc.standalone.js"></script>"""


def add_documentation(app: Application) -> None:
    own = Path(__file__).with_name("static")
    app.api.mount(ASSETS, Assets(directory=own, packages=[("fastapi_offline", "static")]), name="docs-assets")

    def render(request: Request, kind: Kind, body: str, style: str) -> HTMLResponse:
        request.scope[KIND] = kind
        root = get_root(request.scope)
        assets = f"{root}{ASSETS}"
        content = body.format(assets=assets, openapi=f"{root}{OPENAPI}")
        return HTMLResponse(PAGE.format(assets=assets, style=style, title=app.api.title, body=content))

    @app.api.api_route(OPENAPI, methods=["GET", "HEAD"], include_in_schema=False)
    @allow(ANYONE)
    async def get_openapi(request: Request) -> JSONResponse:
        root = get_root(request.scope)
        return JSONResponse(app.openapi() | ({"servers": [{"url": root}]} if root else {}))

    @app.api.get("/docs", include_in_schema=False)
    @allow(ANYONE)
    async def get_swagger(request: Request) -> HTMLResponse:
        return render(request, "swagger", SWAGGER, "swagger-ui.css")

    @app.api.get("/redoc", include_in_schema=False)
    @allow(ANYONE)
    async def get_redoc(request: Request) -> HTMLResponse:
        return render(request, "redoc", REDOC, "redoc.css")
