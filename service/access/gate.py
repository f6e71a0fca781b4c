"""Who is let in: each worker's copy of the keys, checked on every request.

Once there is any key, every request needs one, except to routes that declare `ANYONE`.
"""

import asyncio
import hmac
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from starlette.types import Scope

from service.access.keys import HOW_TO_SEND, KEY, PERSONALIZER, PERSONALIZER_HEADER, Key, read_key
from service.access.roles import ROLES, Access
from service.base.errors import ForbiddenError, UnauthorizedError, UnavailableError
from service.storage.audit import Record, add_record
from service.storage.keys import read_keys
from service.storage.store import Store

RELOAD_SECONDS = 0.5  # a new key, or a revoked one, takes effect within a second on every worker
RECORD_SECONDS = 60.0  # between two records of refused keys, so that nobody can fill the disk with them
UNKNOWN_ACTOR = "unknown"  # the actor in the audit log of requests whose key is refused
NO_HASH = b"\x00" * 32  # no secret has it
log = logging.getLogger("undercurrent")


class Keys:
    """The keys as one worker knows them. `clock` is monotonic, in seconds; `workers` share each key's rate limit."""

    def __init__(self, store: Store, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.on = False
        self._store, self._workers, self._clock = store, workers, clock
        self._keys: dict[str, Key] = {}
        self._refused: Counter[str] = Counter()  # refused keys since the last record of them, by reason
        self._recorded_at = -math.inf
        self._stopping = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def admit(self, scope: Scope, path: str, access: Access | None, campaign: str | None) -> None:
        """Refuse a request unless its route allows it; leave the request's key in the scope.

        `access` is None where there is no such route: the framework says so, but only to a known key. `campaign` is the
        one that the path names.
        """
        if access is not None and access.is_public:
            return
        presented = read_key(scope, path)
        if presented is None:
            more = f", or {PERSONALIZER_HEADER}: KEY" if path.startswith(PERSONALIZER) else ""
            raise UnauthorizedError(f"A key is needed. {HOW_TO_SEND}{more}")
        key = scope[KEY] = self.authenticate(presented)
        key.spend(self._clock())
        if access is None:
            return
        method = scope["method"]
        if key.row.role not in access.roles:
            needed = " or ".join(role for role in ROLES if role in access.roles)
            raise ForbiddenError(f"{method} {path} needs a key with role {needed}; this key's role is {key.row.role}")
        if access.campaign == "path":
            key.require(campaign)
        elif access.campaign is None and key.campaigns is not None:
            raise ForbiddenError(f"{method} {path} needs a key that covers all campaigns")

    def find(self, scope: Scope, path: str) -> Key | None:
        """Return the key that a request presents, None if it presents none that is valid."""
        presented = read_key(scope, path)
        try:
            return None if presented is None else self.authenticate(presented)
        except UnauthorizedError:
            return None

    def authenticate(self, presented: bytes) -> Key:
        """Return the key with these bytes; refuse an unknown or revoked one."""
        _, key_id, secret = (*presented.split(b"_", 2), b"", b"")[:3]
        key = self._keys.get(key_id.decode("latin-1"))
        # An unknown id takes as long as a wrong secret, so that timing does not reveal which ids exist.
        matches = hmac.compare_digest(sha256(secret).digest(), NO_HASH if key is None else key.row.secret_hash)
        if key is None or not matches:
            self._refused["unknown"] += 1
            raise UnauthorizedError("This key is not known")
        if key.row.revoked_at is not None:
            self._refused["revoked"] += 1
            raise UnauthorizedError("This key was revoked")
        return key

    # --- keeping up with the database --------------------------------------------------------------------------

    def load(self) -> None:
        """Read all keys. Unchanged keys keep their buckets."""
        with self._store.reading() as tx:
            rows = read_keys(tx)
        held, now = self._keys, self._clock()
        self._keys = {
            row.id: held[row.id] if row.id in held and held[row.id].row == row else Key(row, self._workers, now)
            for row in rows
        }
        # Once on, authentication stays on until the next start, even if someone empties the table: the service may be
        # listening on a public address.
        self.on = self.on or bool(rows)

    def start(self) -> None:
        """Load the keys, and keep reloading them."""
        self.load()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await self._stopping.wait()
                return
            try:
                await asyncio.to_thread(self.load)
                await asyncio.to_thread(self.record_refusals)
            except UnavailableError:
                pass  # the database is away: the keys known last are still valid
            except Exception:
                log.exception("the keys could not be read")

    def record_refusals(self, closing: bool = False) -> None:
        """Record in the audit log how many keys were refused: at most once a minute, and when closing."""
        now = self._clock()
        if not self._refused or (now < self._recorded_at + RECORD_SECONDS and not closing):
            return
        counts, self._refused = self._refused, Counter()
        try:
            with self._store.writing() as tx:
                record = Record(UNKNOWN_ACTOR, None, "refuse keys", None, dict(counts), outcome="refused")
                add_record(tx, record, time.time_ns() // 1_000)
        except UnavailableError:
            self._refused.update(counts)
            raise
        self._recorded_at = now

    async def close(self) -> None:
        """Stop reloading, after a read in progress has ended."""
        self._stopping.set()
        if self._watching is not None:
            await self._watching
            with suppress(UnavailableError):
                await asyncio.to_thread(self.record_refusals, closing=True)
