"""A long, steady run with restarts: python -m tests.e2e.soak [--minutes 10] [--database sqlite|postgresql|both].

Real servers, `undercurrent serve`, one on SQLite and one with two workers on PostgreSQL, both at the same time. Each is
restarted at regular intervals, once with SIGKILL; the time between is a life. In the end `verify` folds every campaign,
acknowledged decisions and rewards are counted in the database, and a table says of memory, handles, size and latency
whether they drift. All figures go to a JSON file, a picture beside it; exit code 1 if anything drifts or is wrong.
"""

import argparse
import asyncio
import os
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
from service.storage.engines import WRITER_KIB
from service.storage.store import Store
from service.storage.tables import campaigns, decisions, rewards
from tests.databases import KINDS, Databases
from tests.e2e import soak_report
from tests.e2e.server import Server
from tests.e2e.steady import SECRET, Steady, configuration
from tests.service.receiving import receiving

__all__ = ["Plan", "Sample", "Soaked", "main", "soak"]

SETTINGS = {"UNDERCURRENT_WEBHOOK_SECRET": SECRET, "UNDERCURRENT_WEBHOOK_PRIVATE": "true"}
KILLED = 1  # the restart, counted from 0, that is a SIGKILL; the others are SIGTERMs


class Plan(NamedTuple):
    """How long, and how much."""

    minutes: float = 10.0
    campaigns: int = 50
    rate: float = 30.0  # requests a second to each service
    lives: int = 3
    rounds: int = 1_200  # and up to twice that, of every campaign before the load: past its first snapshot and job
    sample_seconds: float = 2.0
    workers: int = 2  # on PostgreSQL; SQLite has one (R19)

    def workers_on(self, database: str) -> int:
        return 1 if database == "sqlite" else self.workers

    @property
    def life_seconds(self) -> float:
        return 60 * self.minutes / self.lives

    @property
    def settling_seconds(self) -> float:
        """After a start: pages are read again, pools fill, and rarely used modules are loaded."""
        return min(60.0, 0.4 * self.life_seconds)


class Sample(NamedTuple):
    """One look at a service and its workers together."""

    at: float  # by the monotonic clock
    life: int
    age: float  # seconds since this life began
    decisions: int  # acknowledged in all lives
    resident: int  # bytes of memory, and of them those that no other process shares
    unique: int
    explained: int  # bytes of memory that the campaigns' rounds take, and SQLite's pages at most
    handles: int
    threads: int
    stored: int  # bytes of the database in use
    journal: int  # bytes of SQLite's write-ahead log, or of PostgreSQL's `live` rows with the dead ones
    lag: float  # seconds until /healthz answers


class Soaked(NamedTuple):
    """What one service went through."""

    database: str
    plan: Plan
    steady: Steady
    samples: list[Sample]
    exits: list[str]
    wrong: list[str]


# --- looking at it ----------------------------------------------------------------------------------------------------


def bytes_a_round(config: dict[str, Any]) -> int:
    """What a worker holds of each round: the history that it learns from, and the columns that pictures are made of."""
    policy = StagedPolicy(CampaignConfig(**config))
    variables, numbers, regimes = policy.initial_state().history.shape
    history = 2 * variables + 8 * numbers + 8 * regimes + 3 * 2 + 2 * 8
    return history + Columns(policy.config.regime_counts[-1]).rows.dtype.itemsize


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _held_by_callers(process: psutil.Process, server: Server) -> int:
    """Connections that they keep open; those that they have closed are not among them."""
    connections, port = process.net_connections("tcp"), httpx.URL(server.url).port
    return sum(each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in connections)


class Looking:
    """Measures one service."""

    def __init__(self, database: str, url: str, steady: Steady, workers: int) -> None:
        self._database, self._url, self._steady, self._workers = database, url, steady, workers
        self._costs = {name: bytes_a_round(configuration(i, name)) for i, name in enumerate(steady.names)}

    def look(self, server: Server, life: int, begun: float, lag: float) -> Sample:
        decisions, counts = self._steady.decided.total(), dict(self._steady.decided)
        held = sum(cost * counts.get(name, 0) for name, cost in self._costs.items()) * self._workers
        unique = resident = handles = threads = 0
        for process in family(server.pid):
            with suppress(psutil.NoSuchProcess):
                memory = process.memory_full_info()
                unique, resident = unique + memory.uss, resident + memory.rss
                handles, threads = handles + process.num_fds(), threads + process.num_threads()
                handles -= _held_by_callers(process, server)
        stored, journal = self._sizes()
        if self._database == "sqlite":  # the writer keeps the pages that it has read or written (Steady.touch)
            held += min(1_024 * WRITER_KIB, stored)
        now = time.monotonic()
        return Sample(now, life, now - begun, decisions, resident, unique, held, handles, threads, stored, journal, lag)

    def _sizes(self) -> tuple[int, int]:
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


# --- running it -------------------------------------------------------------------------------------------------------


async def soak(database: str, url: str, plan: Plan, folder: Path, tell: Callable[[str], None] = print) -> Soaked:
    """One service on one database, from its first campaign to the last check."""
    samples: list[Sample] = []
    exits: list[str] = []
    with receiving(500, "close", 503) as receiver:  # the first messages are not taken
        steady = Steady(plan.campaigns, plan.rate, receiver.url)
        workers = plan.workers_on(database)
        looking = Looking(database, url, steady, workers)
        tell(f"{database}: {plan.campaigns} campaigns of {plan.rounds} rounds or more ...")
        await _created(plan, launched(url, workers, folder / f"{database}.stderr"), steady)
        for life in range(plan.lives):
            server = launched(url, workers, folder / f"{database}-{life}.stderr")
            try:
                steady.resume(await asyncio.to_thread(lambda server=server: server.url))
                await steady.touch(workers)
                if life == 0:
                    load = asyncio.create_task(steady.run())
                await _live(plan, life, server, looking, load, samples, lambda text: tell(f"{database}: {text}"))
                if life < plan.lives - 1:
                    exits.append(await _ended(server, steady, killed=life == KILLED))
                else:
                    steady.stop()
                    await load
                    samples.append(
                        await asyncio.to_thread(looking.look, server, life, time.monotonic() - plan.life_seconds, 0.0)
                    )
                    exits.append(await _ended(server, steady, killed=False))
                if "Traceback" in server.said():
                    exits.append(f"life {life} left a traceback: {server.said()[-2_000:]}")
            finally:
                await asyncio.to_thread(server.end)
        await steady.close()
        steady.tally["webhook messages"] = len(receiver.received)
    tell(f"{database}: verifying ...")
    wrong = [told for told in exits if told not in ("ended with 0", "killed")]
    wrong += await asyncio.to_thread(mistakes, url, steady)
    return Soaked(database, plan, steady, samples, exits, wrong)


async def _created(plan: Plan, server: Server, steady: Steady) -> None:
    """The campaigns, by a service of their own: so that all lives begin alike, with campaigns that are there."""
    try:
        steady.resume(await asyncio.to_thread(lambda: server.url))
        await steady.create(plan.rounds)
        await _ended(server, steady, killed=False)
    finally:
        await asyncio.to_thread(server.end)


def launched(url: str, workers: int, stderr: Path) -> Server:
    command = ["serve", "--port", "0", "--database-url", url, "--workers", str(workers)]
    return Server(command, SETTINGS, stderr)


async def _live(
    plan: Plan,
    life: int,
    server: Server,
    looking: Looking,
    load: "asyncio.Task[None]",
    samples: list[Sample],
    tell: Callable[[str], None],
) -> None:
    """One life, looked at every few seconds."""
    begun = time.monotonic()
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        while (age := time.monotonic() - begun) < plan.life_seconds and not load.done():
            asked = time.monotonic()
            await client.get(f"{server.url}/healthz")
            lag = time.monotonic() - asked
            samples.append(await asyncio.to_thread(looking.look, server, life, begun, lag))
            if len(samples) % max(1, round(10 / plan.sample_seconds)) == 1:
                tell(soak_report.progress(life, plan.lives, age, samples[-1]))
            await asyncio.sleep(max(0.0, asked + plan.sample_seconds - time.monotonic()))
    if load.done():
        load.result()  # raises what went wrong


async def _ended(server: Server, steady: Steady, killed: bool) -> str:
    """The end of a life, with requests under way."""
    if killed:
        os.killpg(server.pid, signal.SIGKILL)  # all of its processes at this very instant
        steady.pause()
        return "killed"
    server.terminate()
    steady.pause()
    return f"ended with {await asyncio.to_thread(server.exit_code)}"


def mistakes(url: str, steady: Steady) -> list[str]:
    """What is wrong in the database: all that `undercurrent verify` finds, and counts other than acknowledged."""
    wrong: list[str] = []
    expected = {name: (steady.decided[name], steady.rewarded[name]) for name in steady.names}
    with closing(Store(url)) as store, store.reading() as tx:
        stored = {row[0]: (row[1], row[2]) for row in tx.connection.execute(_counts())}
        for row in tx.standing():
            wrong += [f"{row.name}: verify: {told}" for told in islice(find_differences(tx, row), 5)]
    for name in sorted(expected.keys() | stored.keys()):
        if expected.get(name) != stored.get(name):
            counts = f"acknowledged {expected.get(name)}, stored {stored.get(name)}"
            wrong.append(f"{name}: (decisions, rewards) {counts}")
    return wrong


def _counts() -> sa.Select[Any]:
    """Of every campaign the decisions, and the rewards that callers sent."""
    made = sa.select(sa.func.count()).where(decisions.c.campaign_id == campaigns.c.id).scalar_subquery()
    sent = sa.and_(rewards.c.campaign_id == campaigns.c.id, rewards.c.source == "client")
    paid = sa.select(sa.func.count()).where(sent).scalar_subquery()
    return sa.select(campaigns.c.name, made, paid)


async def soaked(chosen: Sequence[str], urls: Sequence[str], plan: Plan, folder: Path) -> list[Soaked]:
    """All databases at the same time."""
    begun = time.monotonic()

    def tell(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(soak(kind, url, plan, folder, tell)) for kind, url in zip(chosen, urls, strict=True)
        ]
    return [task.result() for task in running]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    plan = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=plan.minutes)
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--campaigns", type=int, default=plan.campaigns)
    parser.add_argument("--rate", type=float, default=plan.rate, help="requests a second to each service")
    parser.add_argument("--lives", type=int, help="one more than restarts; by default one every 10 minutes, or 3")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="of each campaign before the load")
    parser.add_argument("--json", type=Path, default=Path("results/soak.json"), help="all figures; a .png beside it")
    given = parser.parse_args(arguments)
    given.lives = given.lives or max(plan.lives, round(given.minutes / 10))
    fields = ("minutes", "campaigns", "rate", "lives", "rounds")
    plan = plan._replace(**{field: getattr(given, field) for field in fields})
    chosen = KINDS if given.database == "both" else [given.database]
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    with tempfile.TemporaryDirectory(prefix="undercurrent-soak-") as folder:
        databases = Databases(Path(folder))
        try:
            found = asyncio.run(soaked(chosen, [databases(kind) for kind in chosen], plan, Path(folder)))
        finally:
            databases.close()
    return soak_report.report(found, given.json)


if __name__ == "__main__":
    sys.exit(main())
