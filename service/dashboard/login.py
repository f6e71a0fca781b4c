"""How the pages get a key: it is given once, and kept by the browser in a cookie that no script can read."""

from typing import Annotated

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from service.access.auth import COOKIE, Key, require_page
from service.engine.worker import Service

__all__ = ["add_login"]


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Annotated[SecretStr, Field(max_length=200)]  # so that no log and no error can tell it


class Who(BaseModel):
    """What the key of a request may do."""

    keys: Annotated[bool, Field(description="does this service ask for keys?")]
    role: Annotated[str | None, Field(description="null without a good key")]
    campaigns: Annotated[list[str] | None, Field(description="that it is good for; null for all")]


def add_login(app: FastAPI, service: Service) -> None:
    """Logging in and out, and who it is that asks."""
    keys = service.keys

    def who(key: Key | None) -> Who:
        campaigns = None if key is None or key.campaigns is None else sorted(key.campaigns)
        return Who(keys=keys.on, role=None if key is None else key.row.role, campaigns=campaigns)

    # Without the pages' header another site could log someone in with a key of its own, and watch; or log them out.
    @app.post("/login", include_in_schema=False)
    async def login(request: Request, response: Response, given: Login) -> Who:
        require_page(request.scope)
        value = given.key.get_secret_value().strip()
        found = who(keys.known(value.encode()))
        response.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=_encrypted(request))
        return found

    @app.post("/logout", include_in_schema=False)
    async def logout(request: Request) -> Response:
        require_page(request.scope)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_encrypted(request))
        return response

    @app.get("/whoami", include_in_schema=False)
    async def whoami(request: Request) -> Who:
        return who(keys.presented(request.scope, "/whoami"))


def _encrypted(request: Request) -> bool:
    """Does the browser speak https? Behind a proxy the connection itself is plain."""
    # Whoever claims it without need only makes their own cookie stricter.
    headers = request.headers
    claimed = (request.scope["scheme"], headers.get("x-forwarded-proto", ""), headers.get("origin", ""))
    return any(claim.lower().startswith("https") for claim in claimed)
