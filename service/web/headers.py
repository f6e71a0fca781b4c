"""The security headers of every answer, which tell browsers what they may do with it.

An answer is of kind "api" unless its route sets `scope[KIND]`. The headers are encoded once, so adding them to an
answer takes well under a microsecond.
"""

from collections.abc import Mapping
from typing import Literal

from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from service.access.roles import ANYONE, Access

Kind = Literal["api", "asset", "page", "swagger", "redoc"]
Pairs = tuple[tuple[bytes, bytes], ...]
KIND = "undercurrent.headers"  # in the scope: the kind of answer
NOT_FRAMED = "base-uri 'none'; frame-ancestors 'none'"
REDOC_STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='"
)
# What an answer may load and run, and where it may be shown. Scripts and styles are our own files, so a campaign's
# names are always text and never code. ReDoc adds two style elements, an empty one that it fills by script and a
# constant one, and searches in a worker that it creates from a blob.
POLICIES: Mapping[Kind, str] = {
    "api": "default-src 'none'; frame-ancestors 'none'",
    "asset": "default-src 'none'; frame-ancestors 'none'",
    "page": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    f"form-action 'self'; {NOT_FRAMED}",
    "swagger": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    f"connect-src 'self'; form-action 'none'; {NOT_FRAMED}",
    "redoc": f"default-src 'none'; script-src 'self'; style-src 'self' {REDOC_STYLES}; img-src 'self' data:; "
    f"connect-src 'self'; worker-src blob:; form-action 'none'; {NOT_FRAMED}",
}
ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
DOCUMENTS = {
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def encode_headers(https: bool) -> Mapping[Kind, Pairs]:
    """Encode the headers of each kind of answer. `https` makes browsers insist on https from then on."""
    encoded: dict[Kind, Pairs] = {}
    for kind, policy in POLICIES.items():
        headers = {"content-security-policy": policy, **ALWAYS}
        # A browser may keep a file, but must check its ETag every time.
        headers["cache-control"] = "no-cache" if kind == "asset" else "no-store"
        if kind not in ("api", "asset"):
            headers |= DOCUMENTS
        if https:
            headers["strict-transport-security"] = "max-age=31536000"
        encoded[kind] = tuple((name.encode(), value.encode()) for name, value in headers.items())
    return encoded


class Assets(StaticFiles):
    """The scripts, styles and images of pages. Anyone may load them."""

    access = Access(ANYONE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[KIND] = "asset"
        await super().__call__(scope, receive, send)


def get_root(scope: Scope) -> str:
    """Return the path that a reverse proxy mounts the service at, as browsers see it; empty without a proxy."""
    return str(scope.get("root_path", "")).rstrip("/")
