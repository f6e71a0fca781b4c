"""`undercurrent keys`: create, list and revoke keys."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from policy.config import Slug
from service.access.keys import HOW_TO_SEND, get_key_id, make_key
from service.access.roles import ROLES
from service.base.errors import NotFoundError
from service.cli.flags import Flags, add_settings, open_database
from service.storage import audit, campaigns, keys, rows
from service.storage.store import Store

MAX_LABEL = 100
MAX_ID = 16
Rate = Annotated[float, Field(ge=0.001, le=1_000_000)]
COLUMNS = ("id", "name", "role", "campaigns", "rate limit", "created", "revoked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = commands.add_parser(
        "create",
        help="create a key and print it once",
        description="Create a key and print it. It is shown only once; the database stores a hash of it.",
    )
    create.add_argument("--role", required=True, choices=ROLES, help="what the key may do; see docs/service.md")
    create.add_argument(
        "--campaign",
        dest="campaigns",
        action="append",
        default=[],
        type=_parse(Slug, "a campaign name: up to 64 lower-case letters, digits, - and _"),
        metavar="NAME",
        help="a campaign that the key is valid for; may be repeated; default: all campaigns",
    )
    rate = _parse(Rate, "a number of requests per second, 0.001 to 1000000")
    create.add_argument("--rate-limit", type=rate, metavar="N", help="requests per second; default: no limit")
    create.add_argument("--name", type=_parse_label, default="", metavar="LABEL", help="a label for people")
    list_ = commands.add_parser("list", help="list the keys, without their secrets")
    revoke = commands.add_parser("revoke", help="revoke a key; every worker refuses it within a second")
    revoke.add_argument("id", type=get_key_id, help="id of the key, as `list` shows it")
    for command in (create, list_, revoke):
        add_settings(command)


def run(flags: Flags) -> int:
    with open_database(flags, creating=flags["action"] == "create") as store:  # the first key may precede `serve`
        ACTIONS[flags["action"]](store, flags)
    return 0


def _create(store: Store, flags: Flags) -> None:
    key, row = make_key(flags["role"], flags["campaigns"], flags["rate_limit"], flags["name"], _now())
    with store.writing() as tx:
        keys.add_key(tx, row)
        record = audit.record_command("create key", key=row.id, role=row.role, rate_limit=row.rate_limit)
        audit.add_record(tx, record, row.created_at, campaigns=flags["campaigns"] or None)
        missing = [name for name in flags["campaigns"] if campaigns.find_campaign(tx, name) is None]
    print(key)
    print(
        f"Keep it: it is not shown again. It is valid for services on {store.engine.url!r}. {HOW_TO_SEND}.",
        file=sys.stderr,
    )
    for name in missing:
        print(f"Note: there is no campaign {name!r} yet.", file=sys.stderr)


def _list(store: Store, _: Flags) -> None:
    with store.reading() as tx:
        rows = [_format_row(key) for key in keys.read_keys(tx)]
    if not rows:
        print("There are no keys yet. Without keys the service listens on this machine only.", file=sys.stderr)
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _format_row(key: rows.KeyRow) -> Sequence[str]:
    campaigns = "all" if key.campaigns is None else ", ".join(json.loads(key.campaigns))
    rate = "-" if key.rate_limit is None else f"{key.rate_limit:g}/s"
    revoked = "-" if key.revoked_at is None else _format_time(key.revoked_at)
    return key.id, key.name or "-", key.role, campaigns, rate, _format_time(key.created_at), revoked


def _revoke(store: Store, flags: Flags) -> None:
    key_id = flags["id"]
    with store.writing() as tx:
        now = _now()
        revoked = keys.revoke_key(tx, key_id, now)
        if revoked:
            audit.add_record(tx, audit.record_command("revoke key", key=key_id), now)
        known = any(key.id == key_id for key in keys.read_keys(tx))
    if not known:
        # A longer text may be a secret, which must not be printed.
        problem = f"There is no key {key_id!r}" if len(key_id) <= MAX_ID else "There is no key with that id"
        raise NotFoundError(f"{problem}; `undercurrent keys list` lists the keys")
    print(f"Key {key_id} is revoked." if revoked else f"Key {key_id} was already revoked.", file=sys.stderr)


def _now() -> int:
    return time.time_ns() // 1_000


def _format_time(micros: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(micros // 1_000_000))


ACTIONS: dict[str, Callable[[Store, Flags], None]] = {"create": _create, "list": _list, "revoke": _revoke}

# --- the values of flags ----------------------------------------------------------------------------------------------


def _parse(kind: Any, problem: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return TypeAdapter(kind).validate_python(text)
        except ValidationError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {problem}") from None

    return parse


def _parse_label(text: str) -> str:
    if len(text) > MAX_LABEL or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a label has at most {MAX_LABEL} characters, all of them printable")
    return text
