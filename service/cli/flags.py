"""The command-line flags that are settings of the service, and the database that they name."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from service.base.settings import PREFIX, Settings
from service.storage.schema import require_current, upgrade
from service.storage.store import Store

Flags = Mapping[str, Any]  # what the parser read, by name
SETTINGS = {
    name: f"{field.description} ({PREFIX}{name.upper()}, default {'none' if field.default == '' else field.default})"
    for name, field in Settings.model_fields.items()
    if name != "webhook_secret"  # other users can read command lines
}


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str] = ("database_url",)) -> None:
    """Add the flags of these settings to a command. A switch without a value means true."""
    for name in names:
        is_switch = Settings.model_fields[name].annotation is bool
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if is_switch else {}
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=SETTINGS[name], **switch)


def load_settings(flags: Flags) -> Settings:
    """Load the settings from the flags, else from the environment, else the defaults."""
    return Settings.load(os.environ, flags)


@contextmanager
def open_database(flags: Flags, creating: bool = False) -> Iterator[Store]:
    """Open the database of the settings, which must have the current schema; `creating` gives it to an embedded one."""
    with closing(Store(load_settings(flags).database_url)) as store:
        if creating and store.embedded:
            upgrade(store)
        require_current(store)
        yield store
