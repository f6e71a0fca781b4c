"""The dashboard: pages that show data from the public API.

A page itself contains no data. Its scripts call the API with the user's key, like any other client, so pages need no
access rules of their own: a user who may not read a campaign does not see it. The room
uses `access` for the login and `web` for headers, and reads no campaign.
"""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

from service.access.roles import ANYONE, allow
from service.dashboard.login import add_login
from service.engine.worker import Service
from service.web.headers import KIND, Assets, get_root

__all__ = ["add_dashboard"]

FOLDER = Path(str(files(__name__)))
ASSETS = "/dashboard-assets"
# Path -> template. A decision's id is in the fragment, which browsers do not send (R25).
PAGES = {
    "/": "campaigns.html",
    "/login": "login.html",
    "/new": "new.html",
    "/view/{name}": "campaign.html",
    "/view/{name}/decision": "decision.html",
    "/view/{name}/try": "try.html",
}


def add_dashboard(app: FastAPI, service: Service) -> None:
    """Add the pages, their scripts and styles, and the login."""
    add_login(app, service)
    app.mount(ASSETS, Assets(directory=FOLDER / "static"), name="dashboard-assets")
    templates = Jinja2Templates(FOLDER / "templates")

    def add_page(path: str, template: str) -> None:
        @allow(ANYONE)
        async def get_page(request: Request) -> HTMLResponse:
            request.scope[KIND] = "page"
            root = get_root(request.scope)
            values = {"root": root, "assets": f"{root}{ASSETS}", "name": request.path_params.get("name", "")}
            return templates.TemplateResponse(request, template, values)

        app.add_api_route(path, get_page, methods=["GET"], include_in_schema=False)

    for path, template in PAGES.items():
        add_page(path, template)
