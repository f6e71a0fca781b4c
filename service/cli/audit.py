"""`undercurrent audit`: print the audit log."""

import argparse

from service.api.audit import make_entry
from service.cli.database import open_database
from service.cli.flags import Flags, add_settings
from service.storage.audit import read_audit_page
from service.web.times import parse_interval

PAGE = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="only this campaign; default: everything")
    parser.add_argument("--from", metavar="TIME", help="at or after this time: 2026-10-01T00:00:00Z")
    parser.add_argument("--to", metavar="TIME", help="before this time")
    add_settings(parser)


def run(flags: Flags) -> int:
    """Print every entry as a line of JSON, newest first, read from the database directly."""
    times, campaign = parse_interval(flags["from"], flags["to"]), flags["campaign"]
    with open_database(flags) as store, store.reading() as tx:
        rows = read_audit_page(tx, None, PAGE, campaign, times)
        while rows:
            for row in rows:
                print(make_entry(row).model_dump_json())
            rows = read_audit_page(tx, rows[-1].number, PAGE, campaign, times)
    return 0
