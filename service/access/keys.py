"""Keys: how they are made and stored, how often each may be used, and how a request presents one.

A key is `uc_ID_SECRET`. The database holds its id and the SHA-256 of its secret. The secret is 256 random bits, so it
needs no salt and no slow hash.

Programs send a key in a header. The dashboard's pages keep it in a cookie that scripts cannot read. Other sites can
make a browser send that cookie, so a request that could change something also needs a header that they cannot set.
"""

import json
import math
import secrets
from collections.abc import Collection
from hashlib import sha256
from typing import Any

from fastapi import Request
from starlette.types import Scope

from service.base.errors import ForbiddenError, TooManyRequestsError
from service.storage.audit import Record, record_request
from service.storage.rows import KeyRow

KEY = "undercurrent.key"  # in the scope: the key of the request
HOW_TO_SEND = "Send it in the header Authorization: Bearer KEY, or X-API-Key: KEY"
PERSONALIZER = "/personalizer/"  # the clients of these routes send a key in a header of their own
PERSONALIZER_HEADER = "Ocp-Apim-Subscription-Key"
COOKIE = "undercurrent_key"  # holds a page's key
PAGE = "X-Undercurrent-Page"  # the header that a page's requests have; its value does not matter
LOCAL = "local"  # the actor in the audit log while there are no keys


def make_key(
    role: str, campaigns: Collection[str], rate_limit: float | None, name: str, now: int
) -> tuple[str, KeyRow]:
    """Make a new key: the key itself, with its secret, and the row to store."""
    key_id, secret = secrets.token_hex(5), secrets.token_urlsafe(32)
    limited = json.dumps(sorted(set(campaigns))) if campaigns else None
    row = KeyRow(key_id, sha256(secret.encode()).digest(), name, role, limited, rate_limit, now)
    return f"uc_{key_id}_{secret}", row


def get_key_id(key: str) -> str:
    """Return the id in a key. An id is returned as it is."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == "uc" else key


class Key:
    """A key in a worker's memory: its row, and a bucket of tokens that fills at the rate of the key's limit."""

    __slots__ = ("_burst", "_filled_at", "_rate", "_tokens", "campaigns", "row")

    def __init__(self, row: KeyRow, workers: int, now: float) -> None:
        self.row = row
        self.campaigns = None if row.campaigns is None else frozenset(json.loads(row.campaigns))
        self._rate = None if row.rate_limit is None else row.rate_limit / workers  # each worker grants its share
        self._burst = self._tokens = max(1.0, self._rate or 0.0)
        self._filled_at = now

    def spend(self, now: float) -> None:
        """Spend the token of one request; refuse the request if there is none."""
        if self._rate is None:
            return
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1 - 1e-9:
            seconds = math.ceil((1 - self._tokens) / self._rate)
            share = "" if self._rate == self.row.rate_limit else f" ({self._rate:g} on each worker)"
            raise TooManyRequestsError(
                f"This key is limited to {self.row.rate_limit:g} requests a second{share}; try again in {seconds} s",
                seconds,
            )
        self._tokens -= 1

    def require(self, campaign: object) -> None:
        """Refuse a campaign that the key does not cover, whether it exists or not."""
        if self.campaigns is not None and campaign not in self.campaigns:
            raise ForbiddenError(f"This key does not cover campaign {campaign!r}")


# --- how a request presents a key -------------------------------------------------------------------------------------


def read_key(scope: Scope, path: str) -> bytes | None:
    """Read the key that a request presents; None if there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return bytes(key.strip())
        elif name == b"x-api-key" or (name == PERSONALIZER_HEADER.lower().encode() and path.startswith(PERSONALIZER)):
            return bytes(value.strip())
    cookie = Request(scope).cookies.get(COOKIE)
    if cookie is None:
        return None
    if scope["method"] not in ("GET", "HEAD"):  # without the pages' header, the cookie is only good for reading
        require_page(scope)
    return cookie.encode("latin-1")


def require_page(scope: Scope) -> None:
    """Refuse a request without the pages' header. Another site's page cannot send it: we never grant a preflight."""
    if PAGE not in Request(scope).headers:
        raise ForbiddenError(f"A cookie is not enough to make changes: send the header {PAGE} as well")


def require_campaign(scope: Scope, campaign: str) -> None:
    key: Key | None = scope.get(KEY)
    if key is not None:
        key.require(campaign)


def get_key_campaigns(scope: Scope) -> frozenset[str] | None:
    """Return the campaigns that the request's key covers, None for all."""
    key: Key | None = scope.get(KEY)
    return None if key is None else key.campaigns


def make_record(scope: Scope, what: str, /, campaign: str | None = None, **details: Any) -> Record:
    key: Key | None = scope.get(KEY)
    actor, role = (LOCAL, None) if key is None else (key.row.id, key.row.role)
    return record_request(actor, role, what, campaign, details)
