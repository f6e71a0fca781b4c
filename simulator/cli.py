"""`undercurrent-sim`: the simulator's commands. Each command imports what it needs only when it runs."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from simulator.commands import add_compare, add_demo, add_replay
from simulator.flags import Commands, add_environment_flags, parse_seeds

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0 success, 1 failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="undercurrent-sim", description="Evaluate policies on simulated customers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in (_add_prepare, add_replay, add_compare, add_demo, _add_sweep, _add_report, _add_bounds):
        add_command(commands)
    options = parser.parse_args(arguments)
    from policy import PolicyError
    from simulator.client import ClientError

    try:
        exit_code: int = options.run(options)
    except (ClientError, PolicyError, ValueError, OSError) as error:
        print(f"undercurrent-sim: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"undercurrent-sim: {error}; install it with `pip install 'undercurrent[sim,dask]'`", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("undercurrent-sim: stopped; finished results are kept", file=sys.stderr)
        return 1
    return exit_code


def _split_by_comma(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))


def _add_prepare(commands: Commands) -> None:
    parser = commands.add_parser(
        "prepare",
        help="derive the credit-card profile counts from the UCI file",
        description="Derive the credit-card profile counts from the UCI file, as downloaded.",
    )
    parser.add_argument("file", type=Path, help="the UCI table, .xls or .csv")
    parser.add_argument("--out", type=Path, help="output file (default credit_card_profiles.csv)")

    def run(options: argparse.Namespace) -> int:
        from simulator.prepare import run_prepare

        return run_prepare(options.file, options.out)

    parser.set_defaults(run=run)


def _add_sweep(commands: Commands) -> None:
    parser = commands.add_parser(
        "sweep",
        help="run the paper's grids over (ℓ, λ, C)",
        description="Run grids over (ℓ, λ, C). Stop at any time; finished cells are not run again.",
    )
    add_environment_flags(parser, 50_000)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("1951-2050"))
    parser.add_argument("--out", type=Path, default=Path("sweep"), help="results folder (default %(default)s)")
    words, wholes, numbers = _split_by_comma(str), _split_by_comma(int), _split_by_comma(float)
    parser.add_argument("--policies", type=words, help="like paper-complex,plain-linucb (default: all three)")
    parser.add_argument("--stage-lengths", type=wholes, help="like 1,37 (default: the paper's)")
    parser.add_argument("--ridges", type=numbers, help="like 0.1,1 (default: the paper's)")
    parser.add_argument("--scales", type=numbers, help="like 5e-4,0.5 (default: the paper's)")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores")
    parser.add_argument("--dask", metavar="tcp://…", help="run on this Dask cluster, which must share the folder")
    parser.set_defaults(run=_run_sweep)


def _run_sweep(options: argparse.Namespace) -> int:
    from simulator.sweep import build_grid, sweep

    axes = ("policies", "stage_lengths", "ridges", "scales")
    cells = build_grid(**{name: getattr(options, name) for name in axes if getattr(options, name) is not None})
    began = time.perf_counter()
    count = sweep(
        options.environment,
        options.seeds,
        options.rounds,
        cells,
        options.out.resolve(),
        jobs=options.jobs,
        dask=options.dask,
    )
    print(f"{count} runs of {options.rounds:,} rounds in {time.perf_counter() - began:.0f} s; results in {options.out}")
    print(f"next: undercurrent-sim report --sweep {options.out} --out DIR")
    return 0


def _add_report(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="write the paper's tables and figures from a sweep",
        description="Write the paper's three tables (md, csv, tex) and its figures (png, svg) from a sweep's results.",
    )
    parser.add_argument("--sweep", type=Path, default=Path("sweep"), help="a sweep's results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("report"), help="output folder (default %(default)s)")

    def run(options: argparse.Namespace) -> int:
        from simulator.report import write_report

        print(write_report(options.sweep, options.out))
        print(f"\ntables and figures in {options.out}")
        return 0

    parser.set_defaults(run=run)


def _add_bounds(commands: Commands) -> None:
    parser = commands.add_parser(
        "bounds",
        help="print the theory's constants, thresholds and regret bounds",
        description="Print what the paper's theorems say for an environment: assumptions, thresholds, regret bounds.",
    )
    add_environment_flags(parser, 50_000)
    parser.add_argument("--risk", type=float, default=0.05, help="δ (default %(default)s)")
    parser.add_argument("--threshold", type=float, default=1.0, help="T₀, first round with good beliefs (default 1)")
    parser.add_argument("--c0", type=float, help="C₀, which has no closed form (default 1/51408, from its known terms)")

    def run(options: argparse.Namespace) -> int:
        from simulator.theory import format_bounds

        print(format_bounds(options.environment, options.rounds, options.risk, options.threshold, options.c0))
        return 0

    parser.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
