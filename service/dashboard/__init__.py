"""The dashboard: pages that show what the API says, and nothing that it does not.

A page is a shell without data. Its scripts ask the public API, with the same key and the same rules as any other
client, so a page needs no rule of its own: whoever may not read a campaign sees none.
"""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

from service.dashboard.login import add_login
from service.engine.worker import Service
from service.web.headers import KIND, Assets, root_of

__all__ = ["add_dashboard"]

FOLDER = Path(str(files(__name__)))
ASSETS = "/dashboard-assets"
# Address -> template. A decision's id stands behind the #, which browsers keep to themselves (R25).
PAGES = {
    "/": "campaigns.html",
    "/login": "login.html",
    "/new": "new.html",
    "/view/{name}": "campaign.html",
    "/view/{name}/decision": "decision.html",
    "/view/{name}/try": "try.html",
}


def add_dashboard(app: FastAPI, service: Service) -> None:
    """Every page, their scripts and styles, and how they get a key."""
    add_login(app, service)
    app.mount(ASSETS, Assets(directory=FOLDER / "static"), name="dashboard-assets")
    templates = Jinja2Templates(FOLDER / "templates")

    def add(path: str, template: str) -> None:
        async def page(request: Request) -> HTMLResponse:
            request.scope[KIND] = "page"
            root = root_of(request.scope)
            known = {"root": root, "assets": f"{root}{ASSETS}", "name": request.path_params.get("name", "")}
            return templates.TemplateResponse(request, template, known)

        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)

    for path, template in PAGES.items():
        if (FOLDER / "templates" / template).exists():
            add(path, template)
