"""The commands of `undercurrent`, and the parser of its command line."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from service import __version__
from service.base.errors import ApiError
from service.base.settings import SettingsError
from service.cli import database, files, keys, serve
from service.cli.flags import Flags, add_settings


class Command(NamedTuple):
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Flags], int]  # gives the exit code; `undercurrent COMMAND --help` shows its docstring


COMMANDS = {
    "serve": Command("start the service", serve.add_arguments, serve.run),
    "migrate": Command("bring the database's schema up to date", add_settings, database.run_migrate),
    "verify": Command(
        "replay the log and compare it with what is stored", database.add_verify_arguments, database.run_verify
    ),
    "export": Command(
        "write a campaign's decisions and rewards to a file", files.add_export_arguments, files.run_export
    ),
    "import": Command(
        "warm-start a new campaign from a file of past decisions", files.add_import_arguments, files.run_import
    ),
    "config-check": Command(
        "check a campaign's configuration (JSON) and print it with every default filled in",
        files.add_check_arguments,
        files.run_check,
    ),
    "audit": Command(
        "print what administrators did, newest first, as JSON lines",
        database.add_audit_arguments,
        database.run_audit,
    ),
    "keys": Command("create, list and revoke keys", keys.add_arguments, keys.run),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. The exit code is 0, 1 if it failed, or 2 if it was called wrongly."""
    parser = build_parser()
    flags = vars(parser.parse_args(arguments))
    if flags["command"] != "serve":  # which turns it on when everything is loaded
        gc.enable()
    try:
        return COMMANDS[flags["command"]].run(flags)
    except SettingsError as error:
        parser.error(str(error))
    except ApiError as error:
        print(f"undercurrent: {error.message}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="undercurrent", description="Contextual bandits under a hidden regime, as a REST service."
    )
    parser.add_argument("--version", action="version", version=f"undercurrent {__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        description = f"{command.help[0].upper()}{command.help[1:]}. {command.run.__doc__ or ''}"
        command.add_arguments(parsers.add_parser(name, help=command.help, description=description))
    return parser
