"""`undercurrent-sim`: its commands and their flags. `simulator/commands.py` carries them out.

That module is imported after the arguments are read, so that `--help` and a wrong flag are answered at once.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

AddCommand = Callable[..., argparse.ArgumentParser]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0 success, 1 failure, 2 wrong usage."""
    options = build_parser().parse_args(arguments)
    from policy import PolicyError
    from simulator.commands import COMMANDS
    from undercurrent_client import ClientError

    try:
        return COMMANDS[options.command](options)
    except (ClientError, PolicyError, ValueError, OSError) as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = f"{error}; install it with `pip install 'undercurrent[sim,dask]'`"
    except KeyboardInterrupt:
        problem = "stopped; finished results are kept"
    print(f"undercurrent-sim: {problem}", file=sys.stderr)
    return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="undercurrent-sim", description="Evaluate policies on simulated customers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add_flags in (_add_prepare, _add_replay, _add_compare, _add_demo, _add_sweep, _add_report, _add_bounds):
        add_flags(commands.add_parser)
    return parser


# --- values -----------------------------------------------------------------------------------------------------------


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON, like 37 or " + '{"factor": 1.02}') from None


def _parse_seeds(text: str) -> list[int]:
    """ "1951-1955,1960" → [1951, 1952, 1953, 1954, 1955, 1960]."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds, like 1951-1960 or 1,5,9")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def _parse_positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _parse_number(text: str, most: float) -> float | None:
    """A number from 0 to `most`, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0.0 <= number <= most else None


def _parse_share(text: str) -> float:
    if (share := _parse_number(text, 1.0)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return share


def _parse_days(text: str) -> float:
    days = _parse_number(text, 1e5)
    if not days:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return days


def parse_delay(text: str) -> tuple[str, float]:
    """ "50" and "geometric:50" → ("geometric", 50.0)."""
    law, colon, mean = text.rpartition(":")
    law, rounds = law if colon else "geometric", _parse_number(mean, 1e9)
    if law not in ("geometric", "exponential") or rounds is None:
        wanted = "a mean number of rounds, like 50, geometric:50 or exponential:50"
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return law, rounds


def _split_by_comma(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))


# --- flags that several commands share --------------------------------------------------------------------------------

# Fields of the configuration that a flag sets, with their parsers: `--bonus-form` sets `bonus.form`.
FIELDS: dict[str, Callable[[str], Any]] = {
    "stage_length": int,
    "ridge": float,
    "warm_start_rounds": int,
    "regimes": lambda text: int(text) if text.isdigit() else text,  # or auto
    "propensity_floor": float,
    "bonus.form": str,
    "bonus.scale": float,
    "bonus.risk": float,
    "bonus.horizon": int,
    "bonus.c_theta": float,
    "bonus.gamma": float,
    "bonus.c_eta": float,
    "bonus.v_eta": float,
    "beliefs.estimator": str,
    "beliefs.start_round": int,
    "beliefs.window_rounds": int,
    "beliefs.every": _parse_json,
    "beliefs.statistics": str,
    "beliefs.estimation": str,
    "control.share": float,
    "control.kind": str,
    "features": _parse_json,
}


def _add_environment_flags(parser: argparse.ArgumentParser, rounds: int, seeds: str | None = None) -> None:
    """Add the flags that say what to simulate, with the default length and, if the command has them, seeds."""
    parser.add_argument(
        "--environment",
        default="credit-card",
        help="credit-card (default), nelson, three-regimes, a name from data/hostile.json, or a .json file",
    )
    parser.add_argument("--rounds", type=_parse_positive, default=rounds, help="T (default %(default)s)")
    if seeds is not None:
        parser.add_argument("--seeds", type=_parse_seeds, default=seeds, help="like 1951-1960 or 1,5,9")


def _add_play_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `replay` and `compare` share."""
    parser.add_argument("--reward-model", choices=("regime", "belief"), help="default: the environment's own")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores; ignored with --url")
    rewards = parser.add_argument_group("late and lost rewards")
    rewards.add_argument(
        "--reward-delay",
        type=parse_delay,
        metavar="ROUNDS",
        help="mean delay: 50 or geometric:50, exponential:50 (default: the environment's own delays)",
    )
    rewards.add_argument("--reward-loss", type=_parse_share, default=0.0, help="share that never arrives, like 0.1")
    rewards.add_argument("--shuffle-rewards", action="store_true", help="deliver rewards due together in random order")
    service = parser.add_argument_group("playing at a service", "without --url, policies play in this process")
    service.add_argument("--url", help="address of a service, like http://127.0.0.1:8000")
    service.add_argument("--key", help="its API key, if it needs one (default: the variable UNDERCURRENT_KEY)")
    service.add_argument("--batch", choices=("stage",), help="send a whole stage per request instead of one round")
    service.add_argument("--name", metavar="PREFIX", help="prefix of the campaigns' names, which end with the seed")
    service.add_argument("--concurrency", type=_parse_positive, metavar="N", help="campaigns at a time (default 1)")


def _add_out_flag(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("--out", type=Path, default=Path(folder), help="output folder (default %(default)s)")


# --- the commands -----------------------------------------------------------------------------------------------------


def _add_prepare(add_command: AddCommand) -> None:
    parser = add_command(
        "prepare",
        help="derive the credit-card profile counts from the UCI file",
        description="Derive the credit-card profile counts from the UCI file, as downloaded.",
    )
    parser.add_argument("file", type=Path, help="the UCI table, .xls or .csv")
    out = Path("credit_card_profiles.csv")
    parser.add_argument("--out", type=Path, default=out, help="output file (default %(default)s)")


def _add_replay(add_command: AddCommand) -> None:
    parser = add_command(
        "replay",
        help="play one policy on one environment over several seeds",
        description="Play one policy on one environment over several seeds, in process or as campaigns of a service,"
        " and print the mean ± 2 standard errors of its regrets. If a run at a service is stopped, the same command"
        " continues it.",
    )
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument(
        "--preset",
        default="paper-complex",
        help="default (a campaign's default policy), paper-complex (used without this flag), paper-simplified,"
        " plain-linucb, known-hmm, theory-general, theory-simplified or oracle",
    )
    policy.add_argument(
        "--config", type=Path, metavar="FILE", help="a campaign's configuration (JSON) instead of a preset"
    )
    _add_environment_flags(parser, 50_000, "1951-1960")
    rehearsal = parser.add_argument_group("rehearsal", "at a service that was started with --rehearsal")
    rehearsal.add_argument(
        "--days", type=_parse_days, metavar="N", help="spread the rounds over N days of the service's clock"
    )
    rehearsal.add_argument(
        "--reward-delay-days", type=_parse_days, metavar="N", help="mean delay of rewards (exponential), in days"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, help="folder for summary.json and curves.csv")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save the regret curve as FILE.png and FILE.svg")
    _add_play_flags(parser)
    fields = parser.add_argument_group("configuration", "each flag overrides the field of that name in the preset")
    for field, read in FIELDS.items():
        flag = "--" + field.replace(".", "-").replace("_", "-")
        fields.add_argument(flag, type=read, dest=f"field.{field}", metavar=field.rpartition(".")[2].upper())


def _add_compare(add_command: AddCommand) -> None:
    parser = add_command(
        "compare",
        help="compare four policies on the same customers",
        description="Play plain-linucb, paper-complex, paper-simplified and default on the same environment and seeds,"
        " in process or as campaigns of a service. Prints a table and writes a figure and a page that opens offline.",
    )
    _add_environment_flags(parser, 10_000, "1951-1955")
    _add_out_flag(parser, "compare")
    _add_play_flags(parser)


def _add_demo(add_command: AddCommand) -> None:
    parser = add_command(
        "demo",
        help="start a temporary service with four campaigns",
        description="Start a service on a temporary database, compare four policies as its campaigns, and leave it"
        " running until Ctrl-C.",
    )
    _add_environment_flags(parser, 3_000, "1951-1952")
    parser.add_argument("--port", type=int, default=0, help="port of the service (default: any free port)")
    _add_out_flag(parser, "demo")
    parser.set_defaults(reward_model=None, jobs=1)


def _add_sweep(add_command: AddCommand) -> None:
    parser = add_command(
        "sweep",
        help="run the paper's grids over (ℓ, λ, C)",
        description="Run grids over (ℓ, λ, C). Stop at any time; finished cells are not run again.",
    )
    _add_environment_flags(parser, 50_000, "1951-2050")
    _add_out_flag(parser, "sweep")
    words, wholes, numbers = _split_by_comma(str), _split_by_comma(int), _split_by_comma(float)
    parser.add_argument("--policies", type=words, help="like paper-complex,plain-linucb (default: all three)")
    parser.add_argument("--stage-lengths", type=wholes, help="like 1,37 (default: the paper's)")
    parser.add_argument("--ridges", type=numbers, help="like 0.1,1 (default: the paper's)")
    parser.add_argument("--scales", type=numbers, help="like 5e-4,0.5 (default: the paper's)")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores")
    parser.add_argument("--dask", metavar="tcp://…", help="run on this Dask cluster, which must share the folder")


def _add_report(add_command: AddCommand) -> None:
    parser = add_command(
        "report",
        help="write the paper's tables and figures from a sweep",
        description="Write the paper's three tables (md, csv, tex) and its figures (png, svg) from a sweep's results.",
    )
    parser.add_argument("--sweep", type=Path, default=Path("sweep"), help="a sweep's results (default %(default)s)")
    _add_out_flag(parser, "report")


def _add_bounds(add_command: AddCommand) -> None:
    parser = add_command(
        "bounds",
        help="print the theory's constants, thresholds and regret bounds",
        description="Print what the paper's theorems say for an environment: assumptions, thresholds, regret bounds.",
    )
    _add_environment_flags(parser, 50_000)
    parser.add_argument("--risk", type=float, default=0.05, help="δ (default %(default)s)")
    parser.add_argument("--threshold", type=float, default=1.0, help="T₀, first round with good beliefs (default 1)")
    parser.add_argument("--c0", type=float, help="C₀, which has no closed form (default 1/51408, from its known terms)")


if __name__ == "__main__":
    sys.exit(main())
