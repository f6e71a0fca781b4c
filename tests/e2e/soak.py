"""A long, steady run with restarts: python -m tests.e2e.soak [--minutes 10] [--rate 30].

Runs one server on SQLite and one with two workers on PostgreSQL at the same time, and restarts each at regular
intervals, once with SIGKILL; the time between two restarts is a life. At the end it verifies every campaign, compares
the number of stored decisions and rewards with the acknowledged ones, and prints a table that says whether memory,
handles, size or latency drift. It writes all figures to results/soak.json. The exit code is 1 if anything
drifts or is wrong.
"""

import argparse
import asyncio
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import sqlalchemy as sa

from policy import CampaignConfig, StagedPolicy
from service.analysis.columns import Columns
from service.analysis.verify import find_differences
from service.storage.campaigns import read_campaigns
from service.storage.engines import WRITER_KIB
from service.storage.store import Store
from service.storage.tables import campaigns, decisions, rewards
from tests.databases import KINDS, Databases
from tests.e2e import soak_report
from tests.e2e.server import Server, launch_servers
from tests.e2e.steady import SECRET, Steady, build_config
from tests.service.receiving import receiving

SETTINGS = {"UNDERCURRENT_WEBHOOK_SECRET": SECRET, "UNDERCURRENT_WEBHOOK_PRIVATE": "true"}
KILLED = 1  # the life, counted from 0, that ends with SIGKILL; the others end with SIGTERM


class Plan(NamedTuple):
    """The length and the load of a run."""

    minutes: float
    rate: float  # requests a second to each service
    lives: int
    campaigns: int = 50
    rounds: int = 1_200  # of every campaign before the load, up to twice as many: past its first snapshot and job
    sample_seconds: float = 2.0
    workers: int = 2  # on PostgreSQL; SQLite has one (R19)

    def count_workers(self, database: str) -> int:
        return 1 if database == "sqlite" else self.workers

    @property
    def life_seconds(self) -> float:
        return 60 * self.minutes / self.lives

    @property
    def settling_seconds(self) -> float:
        """How long figures may rise after a start: caches and pools fill, and modules are loaded."""
        return min(60.0, 0.4 * self.life_seconds)


class Sample(NamedTuple):
    """One measurement of a server and its workers together."""

    at: float  # seconds of the monotonic clock
    life: int
    age: float  # seconds since this life began
    decisions: int  # acknowledged in all lives
    resident: int  # bytes of memory; `unique` is the part that no other process shares
    unique: int
    explained: int  # bytes of memory for the campaigns' rounds and SQLite's page cache
    handles: int
    threads: int
    stored: int  # bytes of the database in use
    journal: int  # bytes of SQLite's write-ahead log, or of PostgreSQL's table `live` with its dead rows
    lag: float  # seconds until /healthz answers


class Soaked(NamedTuple):
    """The result of a run on one database."""

    database: str
    plan: Plan
    steady: Steady
    samples: list[Sample]
    exits: list[str]
    wrong: list[str]

    @property
    def settled(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.age >= self.plan.settling_seconds]


# --- measuring --------------------------------------------------------------------------------------------------------


def count_round_bytes(config: dict[str, Any]) -> int:
    """The memory that a worker needs for each round: the policy's history, and the columns for charts."""
    policy = StagedPolicy(CampaignConfig(**config))
    variables, numbers, regimes = policy.initial_state().history.shape
    history = 2 * variables + 8 * numbers + 8 * regimes + 3 * 2 + 2 * 8
    return history + Columns(policy.config.regime_counts[-1]).rows.dtype.itemsize


def _count_connections(process: psutil.Process, server: Server) -> int:
    """Connections that callers keep open, without those that they have closed."""
    connections, port = process.net_connections("tcp"), httpx.URL(server.url).port
    return sum(each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in connections)


class Monitor:
    """Measures one server."""

    def __init__(self, database: str, url: str, steady: Steady, workers: int) -> None:
        self._database, self._url, self._steady, self._workers = database, url, steady, workers
        self.samples: list[Sample] = []
        self._costs = {name: count_round_bytes(build_config(i, name)) for i, name in enumerate(steady.names)}

    def measure(self, server: Server, life: int, begun: float, lag: float) -> None:
        decisions, counts = self._steady.decided.total(), dict(self._steady.decided)
        held = sum(cost * counts.get(name, 0) for name, cost in self._costs.items()) * self._workers
        unique = resident = handles = threads = 0
        parent = psutil.Process(server.pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                memory = process.memory_full_info()
                unique, resident = unique + memory.uss, resident + memory.rss
                handles, threads = handles + process.num_fds(), threads + process.num_threads()
                handles -= _count_connections(process, server)
        stored, journal = self._measure_database()
        if self._database == "sqlite":  # the writer caches the pages that it has read or written (Steady.touch)
            held += min(1_024 * WRITER_KIB, stored)
        now = time.monotonic()
        counts = (decisions, resident, unique, held, handles, threads, stored, journal)
        self.samples.append(Sample(now, life, now - begun, *counts, lag))

    def _measure_database(self) -> tuple[int, int]:
        if self._database == "sqlite":
            path = Path(self._url.removeprefix("sqlite:///"))
            with closing(sqlite3.connect(path, timeout=10)) as connection:
                size, pages, free = (
                    connection.execute(f"PRAGMA {what}").fetchone()[0]
                    for what in ("page_size", "page_count", "freelist_count")
                )
            journal = path.with_name(f"{path.name}-wal")
            return size * (pages - free), journal.stat().st_size if journal.exists() else 0
        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            query = "SELECT pg_database_size(current_database()), pg_total_relation_size('live')"
            database, live = connection.execute(sa.text(query)).one()
        return database, live


# --- running ----------------------------------------------------------------------------------------------------------


async def soak(database: str, url: str, plan: Plan, folder: Path, report: Callable[[str], None]) -> Soaked:
    """Run on one database: create the campaigns, load and restart the server, check the database."""
    exits: list[str] = []
    # The first deliveries fail.
    with receiving(500, "close", 503) as receiver, launch_servers(folder / database) as launch:
        steady = Steady(plan.campaigns, plan.rate, receiver.url)
        workers = plan.count_workers(database)
        monitor = Monitor(database, url, steady, workers)

        async def start() -> Server:
            server = launch(url, "--workers", str(workers), environ=SETTINGS)
            steady.resume(await asyncio.to_thread(lambda: server.url))
            return server

        report(f"{database}: {plan.campaigns} campaigns of {plan.rounds} rounds or more ...")
        server = await start()  # one of its own, so that every life starts with existing campaigns
        await steady.create(plan.rounds)
        await _end(server, steady, killed=False)
        for life in range(plan.lives):
            server, is_last = await start(), life == plan.lives - 1
            await steady.touch(workers)
            if life == 0:
                load = asyncio.create_task(steady.run())
            await _live(plan, life, server, monitor, load, lambda text: report(f"{database}: {text}"))
            if is_last:
                steady.stop()
                await load
                await asyncio.to_thread(monitor.measure, server, life, time.monotonic() - plan.life_seconds, 0.0)
            exits.append(await _end(server, steady, killed=life == KILLED and not is_last))
            if "Traceback" in server.read_stderr():
                exits.append(f"life {life} left a traceback: {server.read_stderr()[-2_000:]}")
        await steady.close()
        steady.tally["webhook messages"] = len(receiver.received)
    report(f"{database}: verifying ...")
    wrong = [text for text in exits if text not in ("ended with 0", "killed")]
    wrong += await asyncio.to_thread(find_mistakes, url, steady)
    return Soaked(database, plan, steady, monitor.samples, exits, wrong)


async def _live(
    plan: Plan,
    life: int,
    server: Server,
    monitor: Monitor,
    load: "asyncio.Task[None]",
    report: Callable[[str], None],
) -> None:
    """Measure the server every few seconds until its life is over."""
    begun = time.monotonic()
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        while (age := time.monotonic() - begun) < plan.life_seconds and not load.done():
            started = time.monotonic()
            await client.get(f"{server.url}/healthz")
            lag = time.monotonic() - started
            await asyncio.to_thread(monitor.measure, server, life, begun, lag)
            if len(monitor.samples) % max(1, round(10 / plan.sample_seconds)) == 1:
                report(soak_report.format_progress(life, plan.lives, age, monitor.samples[-1]))
            await asyncio.sleep(max(0.0, started + plan.sample_seconds - time.monotonic()))
    if load.done():
        load.result()  # raises its error


async def _end(server: Server, steady: Steady, killed: bool) -> str:
    """End the server while requests are under way."""
    await asyncio.to_thread(server.end if killed else server.terminate)
    steady.pause()
    code = await asyncio.to_thread(server.wait_for_exit)
    return "killed" if killed else f"ended with {code}"


def find_mistakes(url: str, steady: Steady) -> list[str]:
    """Differences that `undercurrent verify` finds, and counts that differ from the acknowledged ones."""
    wrong: list[str] = []
    expected = {name: (steady.decided[name], steady.rewarded[name]) for name in steady.names}
    with closing(Store(url)) as store, store.reading() as tx:
        stored = {row[0]: (row[1], row[2]) for row in tx.connection.execute(_select_counts())}
        for row in read_campaigns(tx):
            wrong += [f"{row.name}: verify: {text}" for text in islice(find_differences(tx, row), 5)]
    for name in sorted(expected.keys() | stored.keys()):
        if expected.get(name) != stored.get(name):
            counts = f"acknowledged {expected.get(name)}, stored {stored.get(name)}"
            wrong.append(f"{name}: (decisions, rewards) {counts}")
    return wrong


def _select_counts() -> sa.Select[Any]:
    """Select the number of decisions and of rewards that callers sent, for every campaign."""
    decided = sa.select(sa.func.count()).where(decisions.c.campaign_id == campaigns.c.id).scalar_subquery()
    sent = sa.and_(rewards.c.campaign_id == campaigns.c.id, rewards.c.source == "client")
    rewarded = sa.select(sa.func.count()).where(sent).scalar_subquery()
    return sa.select(campaigns.c.name, decided, rewarded)


async def soak_all(urls: Sequence[str], plan: Plan, folder: Path) -> list[Soaked]:
    """Run on both databases at the same time; the URLs are in the order of KINDS."""
    begun = time.monotonic()

    def report(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(soak(kind, url, plan, folder, report)) for kind, url in zip(KINDS, urls, strict=True)
        ]
    return [task.result() for task in running]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything drifts or is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second to each service")
    flags = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, so that no server is left behind
    plan = Plan(flags.minutes, flags.rate, lives=max(3, round(flags.minutes / 10)))
    with tempfile.TemporaryDirectory(prefix="undercurrent-soak-") as folder:
        databases = Databases(Path(folder))
        try:
            results = asyncio.run(soak_all([databases(kind) for kind in KINDS], plan, Path(folder)))
        finally:
            databases.close()
    return soak_report.report(results, Path("results/soak.json"))


if __name__ == "__main__":
    sys.exit(main())
