"""What each command of `undercurrent-sim` does with its flags, which `simulator/cli.py` has read."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from simulator import report
from simulator.compare import POLICIES, compare_runs
from simulator.delivery import AT_ONCE, Delivery
from simulator.demo import run_service
from simulator.environment import Environment, load_environment
from simulator.prepare import run_prepare
from simulator.presets import load_config
from simulator.replay import ORACLE, Task, format_mean, summarise
from simulator.runs import Outcome, Remote, play_at_service, play_in_process
from simulator.sweep import build_grid, sweep
from simulator.theory import format_bounds


def _run_replay(options: argparse.Namespace) -> int:
    environment, fields, service = load_environment(options.environment), read_overrides(options), _read_remote(options)
    delivery = _read_delivery(options)
    service, delivery = _read_rehearsal(options, service, delivery)
    preset = options.preset if options.config is None else load_config(options.config)
    if preset == ORACLE and (fields or service):
        reason = f"configuration, so it takes no {', '.join(fields)}" if fields else "campaign, so it takes no --url"
        raise ValueError(f"the oracle has no {reason}")
    tasks = [
        Task(environment, preset, seed, options.rounds, fields, options.reward_model, delivery)
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
        if options.out is not None:
            report.write_curves(options.out, summary, runs)
        if options.plot is not None:
            curves = [(tasks[0].title, np.stack([run.pseudo_regret for run in runs]))]
            report.plot_curves([("", curves)], outcome.rounds, options.plot)
        print(json.dumps(summary) if options.json else _format_table(summary, environment), flush=True)
    return _report_end(tasks, outcome, service)


def _play(tasks: list[Task], service: Remote | None, jobs: int, label: str) -> Outcome:
    return play_in_process(tasks, jobs, label) if service is None else play_at_service(tasks, service, label)


def _report_end(tasks: list[Task], outcome: Outcome, service: Remote | None) -> int:
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


def _format_table(summary: dict[str, Any], environment: Environment) -> str:
    """The table that `replay` prints."""
    count = len(summary["actions_sha256"])
    lines = [f"{summary['preset']} on {environment.name}: {summary['rounds']:,} rounds, {count} seeds"]
    for field, title, form in (
        ("pseudo_regret", "pseudo-regret", "{:.1f}"),
        ("actual_regret", "regret on rewards", "{:.1f}"),
        ("gain", "gain captured", "{:.1%}"),
        ("belief_error", "belief error (L1)", "{:.3f}"),
    ):
        if summary[field]["mean"] is not None:
            lines.append(f"  {title:<18} {format_mean(summary[field], form)}")
    lines.append("  actions taken      " + "  ".join(f"{name:>10}" for name in environment.actions))
    for regime, shares in zip(environment.regimes, summary["action_shares"], strict=True):
        lines.append(f"    in {regime:<14} " + "  ".join(f"{share:>10.1%}" for share in shares))
    speed = f"{summary['seconds']:.1f} s, {summary['rounds_per_second']:,.0f} rounds/s"
    return "\n".join([*lines, f"  {speed}; ± is two standard errors"])


def _run_compare(
    options: argparse.Namespace, delivery: Delivery, service: Remote | None, is_temporary: bool = False
) -> int:
    """Play all policies and write the comparison. A temporary service cannot continue a stopped run later."""
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


def _describe_run(environment: str, delivery: Delivery, service: Remote | None) -> dict[str, str]:
    rewards = [] if delivery.law is None else [f"{delivery.law} delay, {delivery.mean:g} rounds on average"]
    rewards += [f"{delivery.loss:.0%} never arrive"] if delivery.loss else []
    rewards += ["in random order"] if delivery.shuffle else []
    return {
        "environment": environment,
        "rewards": ", ".join(rewards) or "delivered as in the environment",
        "played": "in process" if service is None else f"as campaigns of the service at {service.url}",
        "version": f"Undercurrent {version('undercurrent')}",
    }


def _run_demo(options: argparse.Namespace) -> int:
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


def _run_sweep(options: argparse.Namespace) -> int:
    axes = ("policies", "stage_lengths", "ridges", "scales")
    cells = build_grid(**{name: getattr(options, name) for name in axes if getattr(options, name) is not None})
    began, out = time.perf_counter(), options.out.resolve()
    count = sweep(options.environment, options.seeds, options.rounds, cells, out, jobs=options.jobs, dask=options.dask)
    print(f"{count} runs of {options.rounds:,} rounds in {time.perf_counter() - began:.0f} s; results in {options.out}")
    print(f"next: undercurrent-sim report --sweep {options.out} --out DIR")
    return 0


def _run_report(options: argparse.Namespace) -> int:
    print(report.write_report(options.sweep, options.out))
    print(f"\ntables and figures in {options.out}")
    return 0


def _run_bounds(options: argparse.Namespace) -> int:
    print(format_bounds(options.environment, options.rounds, options.risk, options.threshold, options.c0))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "prepare": lambda options: run_prepare(options.file, options.out),
    "replay": _run_replay,
    "compare": lambda options: _run_compare(options, _read_delivery(options), _read_remote(options)),
    "demo": _run_demo,
    "sweep": _run_sweep,
    "report": _run_report,
    "bounds": _run_bounds,
}


# --- what flags stand for ---------------------------------------------------------------------------------------------


def _read_delivery(options: argparse.Namespace) -> Delivery:
    law, mean = options.reward_delay or (None, 0.0)
    return Delivery(law, mean, options.reward_loss, options.shuffle_rewards)


def _read_remote(options: argparse.Namespace) -> Remote | None:
    """The service to play at, or None without --url."""
    if options.url is None:
        given = [f"--{flag}" for flag in ("key", "batch", "name", "concurrency") if getattr(options, flag) is not None]
        if given:
            raise ValueError(f"{', '.join(given)}: needs --url, the address of a service")
        return None
    key = options.key or os.environ.get("UNDERCURRENT_KEY")
    return Remote(options.url, key, options.batch == "stage", options.name, options.concurrency or 1)


def _read_rehearsal(
    options: argparse.Namespace, service: Remote | None, delivery: Delivery
) -> tuple[Remote | None, Delivery]:
    """Add what --days and --reward-delay-days say."""
    days, delay = options.days, options.reward_delay_days
    if days is None and delay is None:
        return service, delivery
    if days is None or service is None or service.concurrency > 1:
        raise ValueError("a rehearsal needs --url, --days, and one campaign at a time: they share the service's clock")
    if delay is not None:
        if delivery.law is not None:
            raise ValueError("--reward-delay-days: not together with --reward-delay")
        delivery = delivery._replace(law="exponential", mean=delay * options.rounds / days)
    return service._replace(seconds_per_round=days * 86_400 / options.rounds), delivery


def read_overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The configuration fields that flags set."""
    overrides: dict[str, Any] = {}
    for name, value in vars(options).items():
        if name.startswith("field.") and value is not None:
            *sections, field = name.removeprefix("field.").split(".")
            section = overrides.setdefault(sections[0], {}) if sections else overrides
            section[field] = value
    return overrides
