"""Keys and roles: who may call which route, for which campaigns, and how often.

A key is `uc_ID_SECRET`. The database has its id and the SHA-256 of its secret, which is 256 random bits and so needs no
salt and no slow hash. Once there is any key, every request needs one, except on routes that declare `ANYONE`.

The dashboard's pages have it in a cookie that scripts cannot read. Browsers send a cookie whoever asks them to, so a
request that could change something must also have a header that no other site can make them send.
"""

import asyncio
import hmac
import json
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from typing import Any

from starlette.types import Scope

from service.access.roles import ROLES, Access
from service.base.errors import ForbiddenError, TooManyRequestsError, UnauthorizedError, UnavailableError
from service.storage.audit import Record, add_record, record_request
from service.storage.keys import read_keys
from service.storage.rows import KeyRow
from service.storage.store import Store

__all__ = [
    "COOKIE",
    "PAGE",
    "PERSONALIZER",
    "Key",
    "Keys",
    "asked",
    "id_of",
    "limited_to",
    "new_key",
    "require",
    "require_page",
]

RELOAD_SECONDS = 0.5  # a new key, or a revoked one, takes effect within a second on every worker
TELL_SECONDS = 60.0  # at least, between two rows about refused keys: nobody can fill the disk with them
KEY = "undercurrent.key"  # in the scope: the key of the request
PERSONALIZER = "/personalizer/"  # its clients send a key in a header of their own
HOW = "Send it in the header Authorization: Bearer KEY, or X-API-Key: KEY"
COOKIE = "undercurrent_key"  # carries a page's key
PAGE = "X-Undercurrent-Page"  # a page's requests have it, with whatever value
PERSONALIZERS_WAY = ", or Ocp-Apim-Subscription-Key: KEY"
LOCAL = "local"  # stands for a key in the audit log while there are none
STRANGER = "unknown"  # and for those whose key is not good
NOBODY = b"\x00" * 32  # a hash that no secret has
log = logging.getLogger("undercurrent")


# --- keys -------------------------------------------------------------------------------------------------------------


def new_key(role: str, campaigns: Collection[str], rate_limit: float | None, name: str, now: int) -> tuple[str, KeyRow]:
    """A new key, and what is stored of it. The secret is in the first only."""
    key_id, secret = secrets.token_hex(5), secrets.token_urlsafe(32)
    limited = json.dumps(sorted(set(campaigns))) if campaigns else None
    row = KeyRow(key_id, sha256(secret.encode()).digest(), name, role, limited, rate_limit, now)
    return f"uc_{key_id}_{secret}", row


def id_of(key: str) -> str:
    """The id in a key; an id stays as it is."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == "uc" else key


class Key:
    """A key as a worker holds it: its row, and a bucket of tokens that fills at the rate of its limit."""

    __slots__ = ("_burst", "_filled_at", "_rate", "_tokens", "campaigns", "row")

    def __init__(self, row: KeyRow, workers: int, now: float) -> None:
        self.row = row
        self.campaigns = None if row.campaigns is None else frozenset(json.loads(row.campaigns))
        self._rate = None if row.rate_limit is None else row.rate_limit / workers  # each worker grants its share
        self._burst = self._tokens = max(1.0, self._rate or 0.0)
        self._filled_at = now

    def spend(self, now: float) -> None:
        """One request's token; refused while there is none."""
        if self._rate is None:
            return
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1 - 1e-9:
            seconds = math.ceil((1 - self._tokens) / self._rate)
            share = (
                ""
                if self._rate == self.row.rate_limit
                else f", {self._rate:g} of them here: each worker grants a share"
            )
            raise TooManyRequestsError(
                f"This key may make {self.row.rate_limit:g} requests a second{share}; try again in {seconds} s", seconds
            )
        self._tokens -= 1

    def require(self, campaign: object) -> None:
        """The key must be good for the campaign, whether there is one of that name or not."""
        if self.campaigns is not None and campaign not in self.campaigns:
            raise ForbiddenError(f"This key is not good for campaign {campaign!r}")


def require(scope: Scope, campaign: str) -> None:
    """The request's key, if there is one, must be good for the campaign."""
    key: Key | None = scope.get(KEY)
    if key is not None:
        key.require(campaign)


def asked(scope: Scope, what: str, campaign: str | None = None, **details: Any) -> Record:
    """What a request asks for, as the audit log tells it."""
    key: Key | None = scope.get(KEY)
    actor, role = (LOCAL, None) if key is None else (key.row.id, key.row.role)
    return record_request(actor, role, what, campaign, details)


def limited_to(scope: Scope) -> frozenset[str] | None:
    """The campaigns that the request's key is good for, None for all."""
    key: Key | None = scope.get(KEY)
    return None if key is None else key.campaigns


class Keys:
    """The keys as one worker knows them. `clock` is monotonic, in seconds; `workers` share each key's rate limit."""

    def __init__(self, store: Store, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.on = False
        self._store, self._workers, self._clock = store, workers, clock
        self._keys: dict[str, Key] = {}
        self._refused: Counter[str] = Counter()  # keys that were not good, since that was last written down
        self._told_at = -math.inf
        self._stopping = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def admit(self, scope: Scope, path: str, access: Access | None, campaign: str | None) -> None:
        """Refuse a request unless its route allows it; leave the request's key in the scope.

        `access` is None where there is no such route: the framework says so, but only to a known key. `campaign` is the
        one that the path names.
        """
        if access is not None and access.is_public:
            return
        key = scope[KEY] = self._authenticated(scope, path)
        key.spend(self._clock())
        if access is None:
            return
        method = scope["method"]
        if key.row.role not in access.roles:
            needed = " or ".join(role for role in ROLES if role in access.roles)
            raise ForbiddenError(f"{method} {path} needs a key of role {needed}; this one is a {key.row.role}'s")
        if access.campaign == "path":
            key.require(campaign)
        elif access.campaign is None and key.campaigns is not None:
            raise ForbiddenError(f"{method} {path} needs a key that is good for all campaigns")

    def _authenticated(self, scope: Scope, path: str) -> Key:
        given = _given(scope, path)
        if given is None:
            how = HOW + PERSONALIZERS_WAY if path.startswith(PERSONALIZER) else HOW
            raise UnauthorizedError(f"A key is needed. {how}")
        return self.known(given)

    def presented(self, scope: Scope, path: str) -> Key | None:
        """The key of a request, None if there is none that is good."""
        given = _given(scope, path)
        try:
            return None if given is None else self.known(given)
        except UnauthorizedError:
            return None

    def known(self, given: bytes) -> Key:
        """The key that these bytes are; refused if they are none, or a revoked one."""
        _, key_id, secret = (*given.split(b"_", 2), b"", b"")[:3]
        key = self._keys.get(key_id.decode("latin-1"))
        # An unknown id takes as long as a wrong secret, so that time does not tell which ids exist.
        good = hmac.compare_digest(sha256(secret).digest(), NOBODY if key is None else key.row.secret_hash)
        if key is None or not good:
            self._refused["unknown"] += 1
            raise UnauthorizedError("This key is not known")
        if key.row.revoked_at is not None:
            self._refused["revoked"] += 1
            raise UnauthorizedError("This key was revoked")
        return key

    # --- keeping up with the database --------------------------------------------------------------------------

    def load(self) -> None:
        """Read all keys. Those that are as before keep their buckets."""
        with self._store.reading() as tx:
            rows = read_keys(tx)
        held, now = self._keys, self._clock()
        self._keys = {
            row.id: held[row.id] if row.id in held and held[row.id].row == row else Key(row, self._workers, now)
            for row in rows
        }
        # Once on it stays on until the next start: the service may listen to everyone, and the table may be emptied.
        self.on = self.on or bool(rows)

    def start(self) -> None:
        self.load()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RELOAD_SECONDS)
                return
            try:
                await loop.run_in_executor(None, self.load)
                await loop.run_in_executor(None, self.tell_refused)
            except UnavailableError:
                pass  # the database is away: the keys known last are still good
            except Exception:
                log.exception("the keys could not be read")

    def tell_refused(self, at_last: bool = False) -> None:
        """Write down how many keys were refused, unless that was done a moment ago."""
        now = self._clock()
        if not self._refused or (now < self._told_at + TELL_SECONDS and not at_last):
            return
        counts, self._refused = self._refused, Counter()
        try:
            with self._store.writing() as tx:
                record = Record(STRANGER, None, "refuse keys", None, dict(counts), outcome="refused")
                add_record(tx, record, time.time_ns() // 1_000)
        except UnavailableError:
            self._refused.update(counts)
            raise
        self._told_at = now

    async def close(self) -> None:
        """Stop, once the database is not being read."""
        self._stopping.set()
        if self._watching is not None:
            await self._watching
            with suppress(UnavailableError):
                await asyncio.get_running_loop().run_in_executor(None, self.tell_refused, True)


def _given(scope: Scope, path: str) -> bytes | None:
    """The key that a request presents."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return bytes(key.strip())
        elif name == b"x-api-key" or (name == b"ocp-apim-subscription-key" and path.startswith(PERSONALIZER)):
            return bytes(value.strip())
    return _from_cookie(scope)


def _from_cookie(scope: Scope) -> bytes | None:
    """The key in the pages' cookie, which is good for reading, or with the pages' header."""
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
    """The request must come from one of our pages: another site's would need a permission that we never give."""
    if not any(name == PAGE.lower().encode() for name, _ in scope["headers"]):
        raise ForbiddenError(f"A browser's cookie is not enough to change something: send the header {PAGE} as well")
