"""The command-line flags that are settings of the service."""

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from service.base.settings import Settings

Flags = Mapping[str, Any]  # what the parser read, by name
SETTINGS = {
    "host": "address to listen on (UNDERCURRENT_HOST, default 127.0.0.1)",
    "port": "port, 0 for any free one (UNDERCURRENT_PORT, default 8000)",
    "database_url": "sqlite:///FILE or postgresql://… (UNDERCURRENT_DATABASE_URL, default sqlite:///undercurrent.db)",
    "workers": "processes, only with PostgreSQL (UNDERCURRENT_WORKERS, default 1)",
    "log_format": "text or json (UNDERCURRENT_LOG_FORMAT, default text)",
    "log_level": "debug, info, warning or error (UNDERCURRENT_LOG_LEVEL, default info)",
    "access_log": "log every request, not only slow and failed ones (UNDERCURRENT_ACCESS_LOG, default False)",
    "https": "tell browsers to use HTTPS only, for a year (UNDERCURRENT_HTTPS, default False)",
    "allowed_hosts": "more host names that a service without keys answers to: a,b (UNDERCURRENT_ALLOWED_HOSTS)",
    "webhook_private": "allow webhooks to private addresses (UNDERCURRENT_WEBHOOK_PRIVATE, default False)",
}
SWITCHES = ("access_log", "https", "webhook_private")  # a flag without a value means true


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str] = ("database_url",)) -> None:
    """Add the flags of these settings to a command."""
    for name in names:
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if name in SWITCHES else {}
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=SETTINGS[name], **switch)


def load_settings(flags: Flags) -> Settings:
    """The settings from the flags, else from the environment, else the defaults."""
    return Settings.load(os.environ, flags)
