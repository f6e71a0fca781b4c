"""The commands that play policies: `replay` (one policy), `compare` (four) and `demo` (four, at its own service)."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.flags import (
    FIELDS,
    Commands,
    add_environment_flags,
    add_play_flags,
    parse_seeds,
    read_delivery,
    read_overrides,
    read_remote,
)

if TYPE_CHECKING:
    from simulator.delivery import Delivery
    from simulator.environment import Environment
    from simulator.replay import Run, Task
    from simulator.runs import Outcome, Remote


def add_replay(commands: Commands) -> None:
    parser = commands.add_parser(
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
    add_environment_flags(parser, 50_000)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("1951-1960"), help="like 1951-1960 or 1,5,9")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, help="folder for summary.json and curves.csv")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save the regret curve as FILE.png and FILE.svg")
    add_play_flags(parser)
    fields = parser.add_argument_group("configuration", "each flag overrides the field of that name in the preset")
    for flag, path, read in FIELDS:
        fields.add_argument(flag, type=read, dest="field." + ".".join(path), metavar=path[-1].upper())
    parser.set_defaults(run=_run_replay)


def _run_replay(options: argparse.Namespace) -> int:
    from simulator.environment import load_environment
    from simulator.presets import load_config
    from simulator.replay import ORACLE, Task, summarise

    environment, fields, service = load_environment(options.environment), read_overrides(options), read_remote(options)
    preset = options.preset if options.config is None else load_config(options.config)
    if preset == ORACLE and (fields or service):
        reason = f"configuration, so it takes no {', '.join(fields)}" if fields else "campaign, so it takes no --url"
        raise ValueError(f"the oracle has no {reason}")
    tasks = [
        Task(environment, preset, seed, options.rounds, fields, options.reward_model, read_delivery(options))
        for seed in options.seeds
    ]
    began = time.perf_counter()
    outcome = _play(tasks, service, options.jobs, tasks[0].title)
    seconds = time.perf_counter() - began
    runs = [run for run in outcome.runs if run is not None]
    if runs:
        summary = {
            "preset": tasks[0].title,
            "environment": environment.name,
            "rounds": outcome.rounds,
            **summarise(runs),
            "seconds": round(seconds, 3),
            "rounds_per_second": round(sum(outcome.played) / seconds, 1),
        }
        if options.out is not None or options.plot is not None:
            _save_files(options, summary, runs, outcome.rounds)
        print(json.dumps(summary) if options.json else _format_table(summary, environment), flush=True)
    return _report_end(tasks, outcome, service)


def _play(tasks: "list[Task]", service: "Remote | None", jobs: int, label: str) -> "Outcome":
    from simulator.runs import play_at_service, play_in_process

    return play_in_process(tasks, jobs, label) if service is None else play_at_service(tasks, service, label)


def _report_end(tasks: "list[Task]", outcome: "Outcome", service: "Remote | None") -> int:
    """Say what is missing and how to continue; return the exit code."""
    if outcome.problem is None:
        return 0
    if not any(outcome.played):
        raise outcome.problem
    for task, run, played in zip(tasks, outcome.runs, outcome.played, strict=True):
        if played < task.rounds and (run is not None or played):
            print(f"  {task.title}, seed {task.seed}: {played:,} of {task.rounds:,} rounds", file=sys.stderr)
    finished = sum(task.rounds == played for task, played in zip(tasks, outcome.played, strict=True))
    print(f"undercurrent-sim: stopped; {finished} of {len(tasks)} campaigns are finished", file=sys.stderr)
    if service is not None:
        print(f"The service at {service.url} keeps every round: the same command continues from here.", file=sys.stderr)
    if not isinstance(outcome.problem, KeyboardInterrupt):
        raise outcome.problem
    return 1


def _save_files(options: argparse.Namespace, summary: dict[str, Any], runs: "list[Run]", rounds: int) -> None:
    from simulator import report

    if options.out is not None:
        curves = {run.seed: {"pseudo": run.pseudo_regret, "actual": run.actual_regret} for run in runs}
        report.write_curves(options.out, summary, curves, rounds)
    if options.plot is not None:
        import numpy as np

        sample = np.stack([run.pseudo_regret for run in runs])
        report.plot_curves([("", [(summary["preset"], sample)])], rounds, options.plot)


def _format_table(summary: dict[str, Any], environment: "Environment") -> str:
    """The table that `replay` prints."""
    count = len(summary["actions_sha256"])
    lines = [f"{summary['preset']} on {environment.name}: {summary['rounds']:,} rounds, {count} seeds"]
    for field, title, form in (
        ("pseudo_regret", "pseudo-regret", "{:.1f}"),
        ("actual_regret", "regret on rewards", "{:.1f}"),
        ("gain", "gain captured", "{:.1%}"),
        ("belief_error", "belief error (L1)", "{:.3f}"),
    ):
        value = summary[field]
        if value["mean"] is None:
            continue
        spread = "" if count == 1 else f" ± {form.format(value['two_se'])}"
        lines.append(f"  {title:<18} {form.format(value['mean'])}{spread}")
    lines.append("  actions taken      " + "  ".join(f"{name:>10}" for name in environment.actions))
    for regime, shares in zip(environment.regimes, summary["action_shares"], strict=True):
        lines.append(f"    in {regime:<14} " + "  ".join(f"{share:>10.1%}" for share in shares))
    speed = f"{summary['seconds']:.1f} s, {summary['rounds_per_second']:,.0f} rounds/s"
    return "\n".join([*lines, f"  {speed}; ± is two standard errors"])


# --- compare and demo -------------------------------------------------------------------------------------------------


def add_compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare four policies on the same customers",
        description="Play plain-linucb, paper-complex, paper-simplified and default on the same environment and seeds,"
        " in process or as campaigns of a service. Prints a table and writes a figure and a page that opens offline.",
    )
    add_environment_flags(parser, 10_000)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("1951-1955"), help="like 1951-1960 or 1,5,9")
    parser.add_argument("--out", type=Path, default=Path("compare"), help="output folder (default %(default)s)")
    add_play_flags(parser)
    parser.set_defaults(run=lambda options: _run_compare(options, read_delivery(options), read_remote(options)))


def _run_compare(
    options: argparse.Namespace, delivery: "Delivery", service: "Remote | None", is_temporary: bool = False
) -> int:
    """Play all policies and write the comparison. A temporary service cannot continue a stopped run later."""
    from simulator.compare import POLICIES, compare_runs
    from simulator.environment import load_environment
    from simulator.replay import Task

    environment = load_environment(options.environment)
    tasks = [  # seed by seed, so that a stop leaves whole seeds
        Task(environment, preset, seed, options.rounds, None, options.reward_model, delivery)
        for seed in options.seeds
        for preset in POLICIES
    ]
    outcome = _play(tasks, service, options.jobs, "compare")
    runs = {preset: outcome.runs[i :: len(POLICIES)] for i, preset in enumerate(POLICIES)}
    comparison = compare_runs(runs, outcome.rounds, _describe_run(environment.name, delivery, service))
    if comparison is not None:
        page = comparison.write(options.out)
        print(comparison.format_table())
        print(f"\n± is two standard errors over {len(comparison.runs[POLICIES[0]])} seeds of {outcome.rounds:,} rounds")
        print(f"page with the figure: {page}", flush=True)
    return _report_end(tasks, outcome, None if is_temporary else service)


def _describe_run(environment: str, delivery: "Delivery", service: "Remote | None") -> dict[str, str]:
    from importlib.metadata import version

    rewards = [] if delivery.law is None else [f"{delivery.law} delay, {delivery.mean:g} rounds on average"]
    rewards += [f"{delivery.loss:.0%} never arrive"] if delivery.loss else []
    rewards += ["in random order"] if delivery.shuffle else []
    return {
        "environment": environment,
        "rewards": ", ".join(rewards) or "delivered as in the environment",
        "played": "in process" if service is None else f"as campaigns of the service at {service.url}",
        "version": f"Undercurrent {version('undercurrent')}",
    }


def add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="start a temporary service with four campaigns",
        description="Start a service on a temporary database, compare four policies as its campaigns, and leave it"
        " running until Ctrl-C.",
    )
    add_environment_flags(parser, 3_000)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("1951-1952"), help="like 1951-1960 or 1,5,9")
    parser.add_argument("--port", type=int, default=0, help="port of the service (default: any free port)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="output folder (default %(default)s)")
    parser.set_defaults(run=_run_demo, reward_model=None, jobs=1)


def _run_demo(options: argparse.Namespace) -> int:
    import signal

    from simulator.delivery import AT_ONCE
    from simulator.demo import run_service
    from simulator.runs import Remote

    print("Starting a service ...", flush=True)
    with run_service(options.port) as url:
        code = _run_compare(options, AT_ONCE, Remote(url, batch=True, concurrency=4), is_temporary=True)
        if code == 0:
            print(f"\nThe service is at {url} with these campaigns in it; see {url}/docs. Ctrl-C stops it.", flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                print("\nStopping the service ...", flush=True)
    return code
