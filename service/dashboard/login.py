"""Login for the pages: the user enters a key once, and the browser keeps it in a cookie that scripts cannot read."""

from typing import Annotated

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from service.access.keys import COOKIE, Key, require_page
from service.access.roles import ANYONE, allow
from service.engine.worker import Service

__all__ = ["add_login"]


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Annotated[SecretStr, Field(max_length=200)]  # a secret type keeps it out of logs and error messages


class Who(BaseModel):
    """What the key of a request may do."""

    keys: Annotated[bool, Field(description="whether this service requires keys")]
    role: Annotated[str | None, Field(description="the key's role; null without a valid key")]
    campaigns: Annotated[list[str] | None, Field(description="the campaigns the key is limited to; null means all")]


def add_login(app: FastAPI, service: Service) -> None:
    """Add the routes for logging in and out, and for finding out what the current key may do."""
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
