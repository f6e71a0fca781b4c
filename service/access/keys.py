"""Keys: how they are made and stored, and how often each may be used.

A key is `uc_ID_SECRET`. The database holds its id and the SHA-256 of its secret. The secret is 256 random bits, so it
needs no salt and no slow hash.
"""

import json
import math
import secrets
from collections.abc import Collection
from hashlib import sha256

from service.base.errors import ForbiddenError, TooManyRequestsError
from service.storage.rows import KeyRow


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
