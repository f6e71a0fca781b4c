"""`undercurrent-sim`: the simulator's commands. Each imports what it needs only when it is called."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON, like 37 or " + '{"factor": 1.02}') from None


# Flags that set a configuration's field: flag, where it goes, how it is read. Names follow the fields.
_FIELDS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("--stage-length", ("stage_length",), int),
    ("--ridge", ("ridge",), float),
    ("--warm-start-rounds", ("warm_start_rounds",), int),
    ("--regimes", ("regimes",), lambda text: int(text) if text.isdigit() else text),  # or auto
    ("--propensity-floor", ("propensity_floor",), float),
    ("--bonus-form", ("bonus", "form"), str),
    ("--bonus-scale", ("bonus", "scale"), float),
    ("--bonus-risk", ("bonus", "risk"), float),
    ("--bonus-horizon", ("bonus", "horizon"), int),
    ("--bonus-c-theta", ("bonus", "c_theta"), float),
    ("--bonus-gamma", ("bonus", "gamma"), float),
    ("--bonus-c-eta", ("bonus", "c_eta"), float),
    ("--bonus-v-eta", ("bonus", "v_eta"), float),
    ("--beliefs-estimator", ("beliefs", "estimator"), str),
    ("--beliefs-start-round", ("beliefs", "start_round"), int),
    ("--beliefs-every", ("beliefs", "every"), _json),
    ("--beliefs-statistics", ("beliefs", "statistics"), str),
    ("--control-share", ("control", "share"), float),
    ("--control-kind", ("control", "kind"), str),
    ("--features", ("features",), _json),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 when it failed, 2 when it was called wrongly."""
    parser = argparse.ArgumentParser(prog="undercurrent-sim", description="Evaluate policies on simulated customers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in (_add_prepare, _add_replay, _add_sweep, _add_report, _add_bounds):
        add_command(commands)
    options = parser.parse_args(arguments)
    from policy import PolicyError

    try:
        exit_code: int = options.run(options)
    except (PolicyError, ValueError, OSError) as error:
        print(f"undercurrent-sim: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"undercurrent-sim: {error}; install it with `pip install 'undercurrent[sim,dask]'`", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("undercurrent-sim: stopped; what was finished is kept", file=sys.stderr)
        return 1
    return exit_code


def _seeds(text: str) -> list[int]:
    """ "1951-1955,1960" → [1951, 1952, 1953, 1954, 1955, 1960]."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r}: seeds are like 1951-1960 or 1,5,9")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on")
    return int(text)


def _numbers(kind: Any) -> Any:
    return lambda text: tuple(kind(part) for part in text.split(","))


def _add_environment(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--environment",
        default="credit-card",
        help="credit-card (default), nelson, three-regimes, one of data/hostile.json, or a .json file",
    )
    parser.add_argument("--rounds", type=_positive, default=rounds, help="T (default %(default)s)")


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


def _add_replay(commands: "Commands") -> None:
    parser = commands.add_parser(
        "replay",
        help="one policy on one environment over seeds",
        description="Play one policy on one environment over seeds; print mean ± 2 standard errors of its regrets.",
    )
    parser.add_argument(
        "--preset",
        default="paper-complex",
        help="default (the policy of that name), paper-complex (what you get without this flag), paper-simplified,"
        " plain-linucb, known-hmm, theory-general, theory-simplified or oracle",
    )
    _add_environment(parser, 50_000)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("1951-1960"), help="like 1951-1960 or 1,5,9")
    parser.add_argument("--reward-model", choices=("regime", "belief"), help="the environment's own if not given")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, help="folder for summary.json and curves.csv")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save the regret curve as FILE.png and FILE.svg")
    fields = parser.add_argument_group("configuration", "every one overrides the preset's field of that name")
    for flag, path, read in _FIELDS:
        fields.add_argument(flag, type=read, dest="field." + ".".join(path), metavar=path[-1].upper())
    parser.set_defaults(run=_run_replay)


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for _, path, _ in _FIELDS:
        value = getattr(options, "field." + ".".join(path))
        if value is not None:
            section = overrides.setdefault(path[0], {}) if len(path) > 1 else overrides
            section[path[-1]] = value
    return overrides


def _run_replay(options: argparse.Namespace) -> int:
    from joblib import Parallel, delayed
    from tqdm import tqdm

    from simulator import report
    from simulator.environment import load_environment
    from simulator.presets import campaign
    from simulator.replay import ORACLE, replay_seed, summarise

    environment = load_environment(options.environment)
    overrides = _overrides(options)
    if options.preset == ORACLE and overrides:
        raise ValueError(f"the oracle has no configuration: it takes no {', '.join(overrides)}")
    if options.preset != ORACLE:
        campaign(options.preset, environment, options.seeds[0], overrides, options.rounds)  # fail before the work
    began = time.perf_counter()
    jobs = Parallel(n_jobs=min(options.jobs, len(options.seeds)), return_as="generator")(
        delayed(replay_seed)(environment, options.preset, seed, options.rounds, overrides, options.reward_model)
        for seed in options.seeds
    )
    runs = list(tqdm(jobs, total=len(options.seeds), unit="seed", desc=options.preset, disable=None))
    summary = {
        "preset": options.preset,
        "environment": environment.name,
        "rounds": options.rounds,
        **summarise(runs),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if options.out is not None:
        curves = {run.seed: {"pseudo": run.pseudo_regret, "actual": run.actual_regret} for run in runs}
        report.write_curves(options.out, summary, curves, options.rounds)
    if options.plot is not None:
        import numpy as np

        sample = np.stack([run.pseudo_regret for run in runs])
        report.plot_curves([("", [(options.preset, sample)])], options.rounds, options.plot)
    print(json.dumps(summary) if options.json else _table(summary, environment))
    return 0


def _table(summary: dict[str, Any], environment: Any) -> str:
    """What `replay` prints for people."""
    seeds = len(summary["actions_sha256"])
    lines = [f"{summary['preset']} on {environment.name}: {summary['rounds']:,} rounds, {seeds} seeds"]
    for field, title in (
        ("pseudo_regret", "pseudo-regret"),
        ("actual_regret", "regret on rewards"),
        ("belief_error", "belief error (L1)"),
    ):
        value = summary[field]
        if value["mean"] is None:
            continue
        digits = 3 if field == "belief_error" else 1
        spread = "" if seeds == 1 else f" ± {value['two_se']:.{digits}f}"
        lines.append(f"  {title:<18} {value['mean']:.{digits}f}{spread}")
    lines.append("  actions taken      " + "  ".join(f"{name:>10}" for name in environment.actions))
    for regime, shares in zip(environment.regimes, summary["action_shares"], strict=True):
        lines.append(f"    in {regime:<14} " + "  ".join(f"{share:>10.1%}" for share in shares))
    return "\n".join([*lines, f"  {summary['seconds']:.1f} s; ± is two standard errors"])


def _add_sweep(commands: "Commands") -> None:
    parser = commands.add_parser(
        "sweep",
        help="the paper's grids over (ℓ, λ, C)",
        description="Run grids over (ℓ, λ, C). Stop at any time; finished cells are not run again.",
    )
    _add_environment(parser, 50_000)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("1951-2050"))
    parser.add_argument("--out", type=Path, default=Path("sweep"), help="results folder (default %(default)s)")
    parser.add_argument("--policies", type=_numbers(str), help="like paper-complex,plain-linucb (default: all three)")
    parser.add_argument("--stage-lengths", type=_numbers(int), help="like 1,37 (default: the paper's)")
    parser.add_argument("--ridges", type=_numbers(float), help="like 0.1,1 (default: the paper's)")
    parser.add_argument("--scales", type=_numbers(float), help="like 5e-4,0.5 (default: the paper's)")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores")
    parser.add_argument("--dask", metavar="tcp://…", help="run on this Dask cluster, which must share the folder")

    def run(options: argparse.Namespace) -> int:
        from simulator.sweep import paper_grid, sweep

        given = {
            name: getattr(options, name)
            for name in ("policies", "stage_lengths", "ridges", "scales")
            if getattr(options, name) is not None
        }
        cells = paper_grid(**given)
        began = time.perf_counter()
        folder = options.out.resolve()
        ran = sweep(
            options.environment, options.seeds, options.rounds, cells, folder, jobs=options.jobs, dask=options.dask
        )
        print(
            f"{ran} runs of {options.rounds:,} rounds in {time.perf_counter() - began:.0f} s; results in {options.out}"
        )
        print(f"next: undercurrent-sim report --sweep {options.out} --out DIR")
        return 0

    parser.set_defaults(run=run)


def _add_report(commands: "Commands") -> None:
    parser = commands.add_parser(
        "report",
        help="the paper's tables and figures from a sweep",
        description="Write the paper's three tables (md, csv, tex) and its figures (png, svg) from a sweep's results.",
    )
    parser.add_argument("--sweep", type=Path, default=Path("sweep"), help="a sweep's results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("report"), help="where to write (default %(default)s)")

    def run(options: argparse.Namespace) -> int:
        from simulator.report import write_report

        print(write_report(options.sweep, options.out))
        print(f"\ntables and figures in {options.out}")
        return 0

    parser.set_defaults(run=run)


def _add_bounds(commands: "Commands") -> None:
    parser = commands.add_parser(
        "bounds",
        help="the theory's constants, thresholds and regret bounds",
        description="Print what the paper's theorems say for an environment: assumptions, thresholds, regret bounds.",
    )
    _add_environment(parser, 50_000)
    parser.add_argument("--risk", type=float, default=0.05, help="δ (default %(default)s)")
    parser.add_argument("--threshold", type=float, default=1.0, help="T₀, from which beliefs are good (default 1)")
    parser.add_argument("--c0", type=float, help="C₀, which has no closed form (default 1/51408, from its known terms)")

    def run(options: argparse.Namespace) -> int:
        from simulator.theory import bounds_report

        print(bounds_report(options.environment, options.rounds, options.risk, options.threshold, options.c0))
        return 0

    parser.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
