"""`undercurrent migrate`, and how the other commands open the database."""

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager

from service.cli.flags import Flags, add_settings, load_settings
from service.storage.schema import require_current, upgrade
from service.storage.store import Store


@contextmanager
def open_database(flags: Flags) -> Iterator[Store]:
    """The database of the settings; it must have the current schema."""
    with closing(Store(load_settings(flags).database_url)) as store:
        require_current(store)
        yield store


def add_migrate_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def run_migrate(flags: Flags) -> int:
    with closing(Store(load_settings(flags).database_url)) as store:
        upgrade(store)
    print("The database is up to date.")
    return 0
