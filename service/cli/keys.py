"""`undercurrent keys`: make keys, list them, revoke them."""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pydantic import TypeAdapter, ValidationError

from policy.config import Slug
from service.access.auth import HOW, id_of, new_key
from service.access.roles import ROLES
from service.base.errors import NotFoundError
from service.base.settings import Settings
from service.storage.audit import add, by_command
from service.storage.rows import KeyRow
from service.storage.schema import require_current, upgrade
from service.storage.store import Store

__all__ = ["add_commands", "keys"]

LONGEST_NAME = 100
LONGEST_ID = 16
COLUMNS = ("id", "name", "role", "campaigns", "rate limit", "created", "revoked")


def add_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """`create`, `list` and `revoke`."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    creating = commands.add_parser(
        "create",
        help="make a key and print it, this once",
        description="Make a key and print it: it is shown this once, and only a hash of it is stored.",
    )
    creating.add_argument("--role", required=True, choices=ROLES, help="what its owner may do; see docs/service.md")
    creating.add_argument(
        "--campaign",
        dest="campaigns",
        action="append",
        default=[],
        type=_campaign,
        metavar="NAME",
        help="a campaign that it is good for, there may be several; without any it is good for all",
    )
    creating.add_argument(
        "--rate-limit", type=_rate, metavar="N", help="requests a second that it may make; without it any number"
    )
    creating.add_argument("--name", type=_label, default="", metavar="LABEL", help="a label for people")
    listing = commands.add_parser("list", help="list the keys, without their secrets")
    revoking = commands.add_parser("revoke", help="make a key useless, within a second on every worker")
    revoking.add_argument("id", type=id_of, help="its id, as `list` shows it")
    return [creating, listing, revoking]


def keys(settings: Settings, flags: dict[str, Any]) -> int:
    """Run one of the commands."""
    with closing(Store(settings.database_url)) as store:
        if store.embedded and flags["action"] == "create":
            upgrade(store)  # as `serve` does: the first key may come before the first start
        require_current(store)
        if flags["action"] == "create":
            _create(store, flags)
        elif flags["action"] == "list":
            _list(store)
        else:
            _revoke(store, flags["id"])
    return 0


def _create(store: Store, flags: dict[str, Any]) -> None:
    key, row = new_key(flags["role"], flags["campaigns"], flags["rate_limit"], flags["name"], _now())
    with store.writing() as tx:
        tx.add_key(row)
        record = by_command("create key", key=row.id, role=row.role, rate_limit=row.rate_limit)
        add(tx, record, row.created_at, campaigns=flags["campaigns"] or None)
        missing = [name for name in flags["campaigns"] if tx.campaign(name) is None]
    print(key)
    print(f"Keep it: it is not shown again. It is good for services on {store.engine.url!r}. {HOW}.", file=sys.stderr)
    for name in missing:
        print(f"Note: there is no campaign {name!r} yet.", file=sys.stderr)


def _list(store: Store) -> None:
    with store.reading() as tx:
        rows = [_told(key) for key in tx.all_keys()]
    if not rows:
        print("There are no keys; without any the service listens on this machine only.", file=sys.stderr)
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _told(key: KeyRow) -> Sequence[str]:
    campaigns = "all" if key.campaigns is None else ", ".join(json.loads(key.campaigns))
    rate = "-" if key.rate_limit is None else f"{key.rate_limit:g}/s"
    revoked = "-" if key.revoked_at is None else _day(key.revoked_at)
    return key.id, key.name or "-", key.role, campaigns, rate, _day(key.created_at), revoked


def _revoke(store: Store, key_id: str) -> None:
    with store.writing() as tx:
        now = _now()
        revoked = tx.revoke_key(key_id, now)
        if revoked:
            add(tx, by_command("revoke key", key=key_id), now)
        known = any(key.id == key_id for key in tx.all_keys())
    if not known:
        which = f"There is no key {key_id!r}" if len(key_id) <= LONGEST_ID else "That is no key's id"  # a secret?
        raise NotFoundError(f"{which}; `undercurrent keys list` shows them")
    print(f"Key {key_id} is revoked." if revoked else f"Key {key_id} was revoked before.", file=sys.stderr)


def _now() -> int:
    return time.time_ns() // 1_000


def _day(micros: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(micros // 1_000_000))


# --- what the flags allow ---------------------------------------------------------------------------------------------


def _campaign(text: str) -> str:
    try:
        name: str = TypeAdapter(Slug).validate_python(text)
    except ValidationError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no campaign's name: up to 64 lower-case letters, digits, - and _"
        ) from None
    return name


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0.001 <= rate <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of requests a second, 0.001 to 1000000")
    return rate


def _label(text: str) -> str:
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a label has at most {LONGEST_NAME} characters, all of them printable")
    return text
