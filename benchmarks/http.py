"""Load the service over HTTP, and an empty endpoint and a plain service beside it: python -m benchmarks.http [--quick].

Every server and the load generator have their own process, on the loopback interface. Results go to results/http.json
and results/http.md.
"""

import argparse
import json
import os
import platform
import re
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

from benchmarks import Verdict, describe_package, format_table, format_verdicts
from benchmarks.limits import (
    fill,
    judge_history,
    judge_idle,
    measure_idle_campaigns,
    measure_long_history,
    wait_until_quiet,
)
from benchmarks.load import describe_campaign
from benchmarks.measure import Bench, Measured, Target, find_failure, format_row, open_client, post
from benchmarks.servers import (
    EMPTY,
    PostgreSQL,
    RunError,
    Server,
    build_naive_command,
    build_serve_command,
    find_nginx,
    run_generator,
    run_nginx,
    run_postgresql,
    run_server,
)
from benchmarks.targets import BULK, FULL, HOT, MANY, QUICK, Size, judge_bar, judge_generator, list_bars
from benchmarks.waits import Waits, judge_waits, measure_waits
from service.storage.store import Store

# Rounds of each campaign before it is measured. In young campaigns most of the work is re-estimation: it comes whenever
# the rounds have grown by a tenth, and until 2,000 rounds it also starts afresh.
PLAYED = 3_000
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HEADER = (
    "target", "traffic", "connections", "requests/s", "decisions/s", "p50 ms", "p99 ms", "CPU µs",
    "cores: server / PostgreSQL / nginx", "generator", "machine",
)  # fmt: skip


@contextmanager
def run_servers(
    targets: Sequence[Target], folder: Path, database: PostgreSQL, checkout: Path | None
) -> Iterator[Bench]:
    """Start the servers of these targets and the generator, and play the campaigns past their warm start."""
    with ExitStack() as stack:

        def start(name: str) -> Server:
            if name in ("postgresql", "routed-1", "routed-2"):
                command = build_serve_command(database.create(name))
                count = 2 if name == "routed-2" else 1
                workers = [
                    stack.enter_context(run_server(f"{name}-{number}", command, folder, database.pid))
                    for number in range(count)
                ]
                return workers[0] if name == "postgresql" else stack.enter_context(run_nginx(workers, folder))
            commands = {
                "empty": EMPTY,
                "naive": build_naive_command(folder / "naive.db"),
                "sqlite": build_serve_command(f"sqlite:///{folder / 'bench.db'}"),
                "baseline": build_serve_command(f"sqlite:///{folder / 'baseline.db'}", checkout),
            }
            return stack.enter_context(run_server(name, commands[name], folder))

        names = dict.fromkeys(target.server for target in targets)
        servers = {name: start(name) for name in tqdm(names, desc="starting servers", leave=False)}
        bench = Bench(servers, stack.enter_context(run_generator()))
        for name in tqdm(servers, desc="leaving the warm start", leave=False):
            if name != "empty":
                prepare(bench, name, [target for target in targets if target.server == name])
        yield bench


def prepare(bench: Bench, name: str, targets: Sequence[Target]) -> None:
    """Create the campaigns of a server and let them learn; without rewards, a policy stays in its warm start."""
    at = bench.servers[name]
    wait_until_quiet(at)
    with open_client(at) as client:
        for campaign in (*HOT, *BULK, *(MANY if at.postmasters else ())):
            post(client, "/campaigns", describe_campaign(campaign))
            if name != "naive":  # it learns nothing
                fill(client, campaign, PLAYED, rewarded=1.0)
    if at.proxies:  # another worker may have filled a campaign
        bench.load(targets[0], 0.0, 3.0)
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


def measure_targets(
    size: Size, targets: Sequence[Target], folder: Path, database: PostgreSQL, checkout: Path | None
) -> Measured:
    if not targets:
        return {}
    with run_servers(targets, folder, database, checkout) as bench:
        return bench.load_in_turns(targets, size.repetitions, size.warm_up, size.seconds)


def measure_all_waits(kind: str, repetitions: int, folder: Path, database: PostgreSQL) -> list[Waits]:
    """Measure each time on a new database."""
    runs = []
    for number in tqdm(range(repetitions), desc=f"a wide campaign on {kind}", leave=False):
        name = f"waits-{number}"
        url = database.create(name) if kind == "PostgreSQL" else f"sqlite:///{folder / name}.db"
        with run_server(name, build_serve_command(url), folder) as at:
            runs.append(measure_waits(at))
    return runs


def run(size: Size, folder: Path, only: str, checkout: Path | None) -> tuple[str, dict[str, Any]]:
    """Measure everything whose title matches; return the report in Markdown and all figures."""

    def is_wanted(title: str) -> bool:
        return re.search(only, title, re.IGNORECASE) is not None

    bars = [bar for bar in list_bars(checkout is not None) if is_wanted(bar.title)]
    verdicts: list[Verdict] = []
    if (obstacle := find_nginx()) and any("nginx" in bar.title for bar in bars):
        verdicts.append(Verdict("PostgreSQL, nginx", obstacle, False))
        bars = [bar for bar in bars if "nginx" not in bar.title]
    machine = [
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs (load {os.getloadavg()[0]:.1f} at the start)",
        ", ".join(map(describe_package, ("fastapi", "pydantic", "sqlalchemy", "uvicorn", "uvloop", "httptools"))),
        measure_sync(folder),
    ]
    print(". ".join(machine) + ".", flush=True)
    with run_postgresql() as database:
        targets = list(dict.fromkeys(target for bar in bars for target in (bar.lower, bar.upper)))
        measured = measure_targets(size, targets, folder, database, checkout)
        machine.append(database.describe())
        verdicts += [judge_bar(bar, measured) for bar in bars]
        waits = {}
        for kind in ("SQLite", "PostgreSQL"):
            if is_wanted(f"{kind}, a wide campaign learns"):
                waits[kind] = measure_all_waits(kind, size.repetitions, folder, database)
                verdicts += judge_waits(kind, waits[kind])
    if is_wanted("idle campaigns"):
        idle = measure_idle_campaigns(folder, 1_000, size.idle_rounds, size.repetitions)
        other = checkout and measure_idle_campaigns(folder, 1_000, size.idle_rounds, size.repetitions, checkout)
        verdicts += judge_idle(idle, other)
    if is_wanted("long history"):
        verdicts += judge_history(measure_long_history(folder, size.late, size.repetitions, size.pairs))
    if (folder / "bench.db").exists():
        machine.append(describe_sqlite(folder))
    if measured:
        verdicts.append(judge_generator(measured))
    title = f"HTTP: medians of {size.repetitions} slices of {size.seconds:.0f} s (lowest – highest)"
    lines = [
        ". ".join(machine) + ".\n",
        format_table(title, HEADER, [format_row(*part) for part in measured.items()]),
        format_verdicts(verdicts),
    ]
    figures = {
        "machine": machine,
        "size": size._asdict(),
        "slices": [target._asdict() | {"slices": [s._asdict() for s in slices]} for target, slices in measured.items()],
        "waits": {kind: [run._asdict() for run in runs] for kind, runs in waits.items()},
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "failures": {
            f"{t.title}, {t.traffic}": find_failure(slices) for t, slices in measured.items() if find_failure(slices)
        },
    }
    return "\n".join(lines), figures


def stop(number: int, _frame: object) -> None:
    """Exit through every `finally`, so that no process is left behind."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="four minutes: shorter slices, a history of 100,000 rounds"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression for the titles of the bars")
    parser.add_argument(
        "--baseline", type=Path, metavar="FOLDER", help="another checkout with a .venv, to compare with"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for http.json and http.md")
    options = parser.parse_args()
    for ending in ENDINGS:
        signal.signal(ending, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="undercurrent-bench-") as folder:
            report, figures = run(QUICK if options.quick else FULL, Path(folder), options.only, options.baseline)
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
