"""How a request presents its key, and what the key of an admitted request allows.

Programs send a key in a header. The dashboard's pages keep it in a cookie that scripts cannot read. Other sites can
make a browser send that cookie, so a request that could change something also needs a header that they cannot set.
"""

from typing import Any

from starlette.types import Scope

from service.access.keys import Key
from service.base.errors import ForbiddenError
from service.storage.audit import Record, record_request

KEY = "undercurrent.key"  # in the scope: the key of the request
HOW_TO_SEND = "Send it in the header Authorization: Bearer KEY, or X-API-Key: KEY"
PERSONALIZER = "/personalizer/"  # the clients of these routes send a key in a header of their own
PERSONALIZER_HEADER = "Ocp-Apim-Subscription-Key"
COOKIE = "undercurrent_key"  # holds a page's key
PAGE = "X-Undercurrent-Page"  # the header that a page's requests have; its value does not matter
LOCAL = "local"  # the actor in the audit log while there are no keys


def read_key(scope: Scope, path: str) -> bytes | None:
    """Read the key that a request presents; None if there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return bytes(key.strip())
        elif name == b"x-api-key" or (name == PERSONALIZER_HEADER.lower().encode() and path.startswith(PERSONALIZER)):
            return bytes(value.strip())
    return _read_cookie(scope)


def _read_cookie(scope: Scope) -> bytes | None:
    """Read the key in the pages' cookie. Without the pages' header, the cookie is only good for reading."""
    for name, value in scope["headers"]:
        if name == b"cookie":
            for part in value.split(b";"):
                cookie, _, key = part.strip().partition(b"=")
                if cookie == COOKIE.encode():
                    if scope["method"] not in ("GET", "HEAD"):
                        require_page(scope)
                    return bytes(key)
    return None


def require_page(scope: Scope) -> None:
    """Refuse a request without the pages' header. Another site's page cannot send it: we never grant a preflight."""
    if not any(name == PAGE.lower().encode() for name, _ in scope["headers"]):
        raise ForbiddenError(f"A cookie is not enough to make changes: send the header {PAGE} as well")


def require_campaign(scope: Scope, campaign: str) -> None:
    """Refuse a request whose key does not cover the campaign."""
    key: Key | None = scope.get(KEY)
    if key is not None:
        key.require(campaign)


def get_key_campaigns(scope: Scope) -> frozenset[str] | None:
    """Return the campaigns that the request's key covers, None for all."""
    key: Key | None = scope.get(KEY)
    return None if key is None else key.campaigns


def make_record(scope: Scope, what: str, /, campaign: str | None = None, **details: Any) -> Record:
    """Make the audit log's record of what a request does."""
    key: Key | None = scope.get(KEY)
    actor, role = (LOCAL, None) if key is None else (key.row.id, key.row.role)
    return record_request(actor, role, what, campaign, details)
