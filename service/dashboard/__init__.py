"""The dashboard: pages that show data from the public API, and their login.

A page itself contains no data. Its scripts call the API with the user's key, like any other client, so pages need no
access rules of their own: a user who may not read a campaign does not see it. The room uses `access` for the login and
`web` for headers, and reads no campaign. The user enters a key once, and the browser keeps it in a cookie that scripts
cannot read.
"""

from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from service.access.keys import COOKIE, Key, require_page
from service.access.roles import ANYONE, allow
from service.engine.worker import Service
from service.web.headers import KIND, Assets, get_root

__all__ = ["add_dashboard"]

FOLDER = Path(__file__).parent
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


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Annotated[SecretStr, Field(max_length=200)]  # a secret type keeps it out of logs and error messages


class Who(BaseModel):
    """What the key of a request may do."""

    keys: Annotated[bool, Field(description="whether this service requires keys")]
    role: Annotated[str | None, Field(description="the key's role; null without a valid key")]
    campaigns: Annotated[list[str] | None, Field(description="the campaigns the key is limited to; null means all")]


def add_dashboard(app: FastAPI, service: Service) -> None:
    _add_login(app, service)
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


def _add_login(app: FastAPI, service: Service) -> None:
    keys = service.keys

    def describe_key(key: Key | None) -> Who:
        campaigns = None if key is None or key.campaigns is None else sorted(key.campaigns)
        return Who(keys=keys.on, role=None if key is None else key.row.role, campaigns=campaigns)

    # Requiring the pages' header stops other sites from logging a user out, or in with a key that the site knows.
    @app.post("/login", include_in_schema=False)
    @allow(ANYONE)
    async def login(request: Request, response: Response, credentials: Login) -> Who:
        require_page(request.scope)
        value = credentials.key.get_secret_value().strip()
        who = describe_key(keys.authenticate(value.encode()))
        response.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=_is_encrypted(request))
        return who

    @app.post("/logout", include_in_schema=False)
    @allow(ANYONE)
    async def logout(request: Request) -> Response:
        require_page(request.scope)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_encrypted(request))
        return response

    @app.get("/whoami", include_in_schema=False)
    @allow(ANYONE)
    async def whoami(request: Request) -> Who:
        return describe_key(keys.find(request.scope, "/whoami"))


def _is_encrypted(request: Request) -> bool:
    """Whether the browser uses https. Behind a proxy the connection to us is plain, so headers count too."""
    # A false claim is harmless: it only makes the sender's own cookie stricter.
    headers = request.headers
    claims = (request.scope["scheme"], headers.get("x-forwarded-proto", ""), headers.get("origin", ""))
    return any(claim.lower().startswith("https") for claim in claims)
