"""`undercurrent migrate | verify | audit`."""

import argparse
import sys
from contextlib import closing

from service.analysis.verify import find_differences
from service.api.operations import make_entry
from service.cli.flags import Flags, add_settings, load_settings, open_database
from service.engine.recovery import get_campaign
from service.storage import audit, campaigns, schema
from service.storage.store import Store
from service.web.times import parse_interval

AUDIT_PAGE = 500
MAX_PRINTED = 20  # differences of one campaign


def run_migrate(flags: Flags) -> int:
    """`serve` does this by itself for SQLite."""
    with closing(Store(load_settings(flags).database_url)) as store:
        schema.upgrade(store)
    print("The database is up to date.")
    return 0


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="only this campaign; default: all")
    add_settings(parser)


def run_verify(flags: Flags) -> int:
    """Every decision and every model of one campaign, or of all, is compared, from the first round on. The exit code is
    1 if anything differs."""
    with open_database(flags) as store:
        names = [flags["campaign"]]
        if flags["campaign"] is None:
            with store.reading() as tx:
                names = [row.name for row in campaigns.read_campaigns(tx)]
        results = [_verify(store, name) for name in names]
    return 0 if all(results) else 1


def _verify(store: Store, name: str) -> bool:
    count = 0
    with store.reading() as tx:
        live = get_campaign(tx, name)
        for difference in find_differences(tx, live, progress=sys.stderr.isatty()):
            count += 1
            if count <= MAX_PRINTED:
                print(f"{name}: {difference}", file=sys.stderr)
    verdict = f"{count} DIFFERENCES" if count else "as stored"
    print(f"{name}: {live.round} decisions, {live.arrived} rewards, model {live.model_version}: {verdict}")
    return not count


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="only this campaign; default: everything")
    parser.add_argument("--from", metavar="TIME", help="at or after this time: 2026-10-01T00:00:00Z")
    parser.add_argument("--to", metavar="TIME", help="before this time")
    add_settings(parser)


def run_audit(flags: Flags) -> int:
    times, campaign = parse_interval(flags["from"], flags["to"]), flags["campaign"]
    with open_database(flags) as store, store.reading() as tx:
        rows = audit.read_audit_page(tx, None, AUDIT_PAGE, campaign, times)
        while rows:
            for row in rows:
                print(make_entry(row).model_dump_json())
            rows = audit.read_audit_page(tx, rows[-1].number, AUDIT_PAGE, campaign, times)
    return 0
