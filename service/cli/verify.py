"""`undercurrent verify`: replay the log and compare it with what is stored."""

import argparse
import sys

from service.analysis.verify import find_differences
from service.base.errors import NotFoundError
from service.cli.database import open_database
from service.cli.flags import Flags, add_settings
from service.storage.campaigns import find_campaign, read_campaign_page
from service.storage.store import Store

MAX_PRINTED = 20  # differences of one campaign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="only this campaign; default: all")
    add_settings(parser)


def run(flags: Flags) -> int:
    """Verify one campaign or all; the exit code is 1 if anything differs."""
    with open_database(flags) as store:
        names = _list_campaigns(store) if flags["campaign"] is None else [flags["campaign"]]
        results = [_verify(store, name) for name in names]
    return 0 if all(results) else 1


def _verify(store: Store, name: str) -> bool:
    with store.reading() as tx:
        live, count = find_campaign(tx, name), 0
        if live is None:
            raise NotFoundError(f"There is no campaign {name!r}")
        for difference in find_differences(tx, live, progress=sys.stderr.isatty()):
            count += 1
            if count <= MAX_PRINTED:
                print(f"{name}: {difference}", file=sys.stderr)
    verdict = f"{count} DIFFERENCES" if count else "as stored"
    print(f"{name}: {live.round} decisions, {live.arrived} rewards, model {live.model_version}: {verdict}")
    return not count


def _list_campaigns(store: Store) -> list[str]:
    names: list[str] = []
    with store.reading() as tx:
        while page := read_campaign_page(tx, names[-1] if names else "", 1_000):
            names += [row.name for row in page]
    return names
