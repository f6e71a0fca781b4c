"""The commands of `undercurrent`, and the parser of its command line."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from service import __version__
from service.base.errors import ApiError
from service.base.settings import SettingsError
from service.cli import audit, config_check, database, export, imports, keys, serve, verify
from service.cli.flags import Flags


class Command(NamedTuple):
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Flags], int]  # gives the exit code


COMMANDS = {
    "serve": Command("start the service", "Start the service.", serve.add_arguments, serve.run),
    "migrate": Command(
        "bring the database's schema up to date",
        "Bring the database's schema up to date. `serve` does this by itself for SQLite.",
        database.add_migrate_arguments,
        database.run_migrate,
    ),
    "verify": Command(
        "replay the log and compare it with what is stored",
        "Replay the log of one campaign, or of all, from its first round, and compare every decision and every model "
        "with what is stored. The exit code is 1 if anything differs.",
        verify.add_arguments,
        verify.run,
    ),
    "export": Command(
        "write a campaign's decisions and rewards to a file",
        "Write a campaign's decisions with their rewards, in round order, like GET /campaigns/NAME/decisions, but read "
        "from the database directly.",
        export.add_arguments,
        export.run,
    ),
    "import": Command(
        "warm-start a new campaign from a file of past decisions",
        "Warm-start a new campaign from a file of past decisions, in their order: all rows or none. Columns have the "
        "names that `undercurrent export` writes; only the action and the variables are required.",
        imports.add_arguments,
        imports.run,
    ),
    "config-check": Command(
        "check a campaign's configuration",
        "Check a campaign's configuration (JSON) and print it with every default filled in.",
        config_check.add_arguments,
        config_check.run,
    ),
    "audit": Command(
        "print what administrators did",
        "Print what administrators did, newest first, as lines of JSON, like GET /audit.",
        audit.add_arguments,
        audit.run,
    ),
    "keys": Command("create, list and revoke keys", "Create, list and revoke keys.", keys.add_arguments, keys.run),
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
        command.add_arguments(parsers.add_parser(name, help=command.help, description=command.description))
    return parser
