"""`undercurrent-sim`: the simulator's commands. Each imports what it needs only when it is called."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 when it failed, 2 when it was called wrongly."""
    parser = argparse.ArgumentParser(prog="undercurrent-sim", description="Evaluate policies on simulated customers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in (_add_prepare,):
        add_command(commands)
    options = parser.parse_args(arguments)
    exit_code: int = options.run(options)
    return exit_code


def _add_prepare(commands: "Commands") -> None:
    parser = commands.add_parser(
        "prepare",
        help="derive the credit-card profile counts from the UCI file",
        description="Derive the credit-card profile counts from the UCI file, as downloaded.",
    )
    parser.add_argument("file", type=Path, help="the UCI table, .xls or .csv")
    parser.add_argument("--out", type=Path, help="where to write the counts (a .csv)")

    def run(options: argparse.Namespace) -> int:
        from simulator.prepare import run_prepare

        return run_prepare(options.file, options.out)

    parser.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
