"""The headers that every answer carries beside its own: what browsers may do with it. This is the one place for them.

An answer is one of the API unless its route says otherwise, by `scope[KIND]`. They are encoded once: adding them
costs a decision well under a microsecond.
"""

from collections.abc import Mapping
from typing import Literal

from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from service.access.roles import ANYONE, Access

__all__ = ["KIND", "Assets", "Kind", "Pairs", "by_kind", "root_of"]

Kind = Literal["api", "asset", "page", "swagger", "redoc"]
Pairs = tuple[tuple[bytes, bytes], ...]
KIND = "undercurrent.headers"  # in the scope: the kind of answer
NOT_FRAMED = "base-uri 'none'; frame-ancestors 'none'"
REDOC_STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='"
)
# What an answer may load, run, or be shown in. Scripts and styles are files of ours; what a campaign's names contain is
# text, never code. ReDoc adds two style elements, an empty one that it fills by script and one that is always the same,
# and searches in a worker made of a blob.
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
HTTPS = {"strict-transport-security": "max-age=31536000"}


def by_kind(https: bool) -> Mapping[Kind, Pairs]:
    """For each kind of answer its headers; browsers are told to come by https only if they do so already."""
    return {kind: _encoded(kind, https) for kind in POLICIES}


def _encoded(kind: Kind, https: bool) -> Pairs:
    headers = {"content-security-policy": POLICIES[kind], **ALWAYS}
    # A file of ours may be kept, but is asked for again: its ETag tells whether it is still the same.
    headers["cache-control"] = "no-cache" if kind == "asset" else "no-store"
    if kind not in ("api", "asset"):
        headers |= DOCUMENTS
    if https:
        headers |= HTTPS
    return tuple((name.encode(), value.encode()) for name, value in headers.items())


class Assets(StaticFiles):
    """Files that pages are made of. Anyone may load them."""

    access = Access(ANYONE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[KIND] = "asset"
        await super().__call__(scope, receive, send)


def root_of(scope: Scope) -> str:
    """Where a reverse proxy mounted the service, as the browser sees it; empty without one."""
    return str(scope.get("root_path", "")).rstrip("/")
