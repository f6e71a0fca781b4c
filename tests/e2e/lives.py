"""Lives of a real server under mixed load, each ended by force; what the next one finds is compared and counted."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import psutil
import sqlalchemy as sa

from service.storage.store import Store
from service.storage.tables import jobs
from tests.databases import Databases
from tests.e2e.findings import FINDINGS, Finding, committed_rewards
from tests.e2e.load import Exchange, client_of, wait_until
from tests.e2e.log import read_open_jobs
from tests.e2e.mixed import CAMPAIGNS, MixedLoad
from tests.e2e.server import Launch, Server

__all__ = ["Figures", "Torture"]

CALLERS = 8
SAMPLE = 200  # earlier requests that are asked again after each kill; in the end all are
STUCK_SECONDS = 120
JOB_SECONDS = 5.0  # to wait for a re-estimation to kill
# How a life ends. With a re-estimation under way, while it starts, at any instant; with PostgreSQL also after the
# database itself was killed, and with two workers: one of them, only their parent, or all at once.
LIVES = {
    "sqlite": ("job", "start", "any"),
    "postgresql": ("job", "database", "worker", "start", "any", "parent", "job", "group"),
}
WITH_WORKERS = ("worker", "parent", "group")


@dataclass
class Figures:
    """What happened on one database, and what was found."""

    database: str
    kills: int = 0
    kills_during_start: int = 0
    kills_with_open_job: int = 0
    kills_of_one_worker: int = 0
    database_kills: int = 0
    decisions: int = 0
    rewards: int = 0
    changes: int = 0
    operations: int = 0
    asked_again: int = 0
    unanswered_whole: int = 0
    unanswered_absent: int = 0
    refused_503: int = 0
    jobs_taken_over: int = 0
    longest_recovery_seconds: float = 0.0
    longest_database_recovery_seconds: float = 0.0
    seconds: float = 0.0
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINDINGS, 0))
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(self.found.values())

    def __post_init__(self) -> None:
        self._known: set[Finding] = set()

    def add(self, findings: Sequence[Finding]) -> None:
        """Count them; what is still there after the next kill is no new finding."""
        findings = [finding for finding in dict.fromkeys(findings) if finding not in self._known]
        self._known.update(findings)
        for kind, times in Counter(finding.kind for finding in findings).items():
            self.found[kind] += times
        self.examples += [f"{finding.kind}: {finding.text}"[:1_000] for finding in findings[: 20 - len(self.examples)]]


class Torture:
    """Lives of a server on one database, each ended by force; `run` gives the figures."""

    def __init__(self, kind: str, databases: Databases, launch: Launch, seed: int) -> None:
        self.figures = Figures(kind)
        self.url = databases(kind)
        self._databases, self._launch = databases, launch
        self._random = random.Random(f"{seed} {kind}")
        self._load = MixedLoad()
        self._servers: list[Server] = []
        self._known_jobs: set[tuple[int, int, str]] = set()
        self._heard = self._counted = 0  # of the acknowledged: those of lives before the last one; those in the figures
        self._start_seconds = 3.0  # how long a start takes, about
        self._remains = self.url  # the database as the last life has left it

    def run(self, kills: int, operations: int) -> Iterator[Figures]:
        """The figures after each life, until there are so many kills and acknowledged operations."""
        begun = time.monotonic()
        lives = cycle(LIVES[self.figures.database])
        try:
            while self.figures.kills < kills or self.figures.operations < operations:
                # Later lives make good for earlier ones that were short; at worst there is one more.
                left = (operations - self.figures.operations) / max(1, kills - self.figures.kills)
                self._live(next(lives), max(left, 0) * self._random.uniform(0.4, 1.8))
                self._count()
                self.figures.seconds = time.monotonic() - begun
                yield self.figures
            self._end()
        except Exception as error:  # a server that does not start, for example: no more can be found out
            self.figures.add([Finding("wrong", f"could not go on: {error!r}")])
            for server in self._servers:
                server.end()
            self._load.halt()
            self._load.collect()
        self._count()
        self.figures.seconds = time.monotonic() - begun
        yield self.figures

    # --- a life --------------------------------------------------------------------------------------------------

    def _live(self, end: str, operations: float) -> None:
        server = self._recovered(("--workers", "2") if end in WITH_WORKERS else (), die_first=end == "start")
        self._load.start([server.url], list(CAMPAIGNS), CALLERS)
        wanted = operations
        if end in ("worker", "database"):
            wanted /= 2
            self._wait_for(wanted)
            self._kill_worker(server) if end == "worker" else self._kill_database(server)
        self._wait_for(wanted)
        if end == "job":
            self._wait_for_job()
        else:
            time.sleep(self._random.uniform(0.0, 0.05))
        if end in ("worker", "group"):
            server.end()
        else:
            server.kill()
        self.figures.kills += 1
        server.exit_code()  # nothing of it is left, not even a worker that has lost its parent
        self._load_ended(refusals=end == "database")
        self._remains = self._left_behind()
        self._note_jobs()

    def _recovered(self, arguments: Sequence[str] = (), die_first: bool = False) -> Server:
        """A new server, which must stand where the last one fell; that is found out while it starts."""
        if not self._servers:
            server = self._started(arguments)
            self._load.begin(server.url)
            self._heard = self._counted = len(self._load.acknowledged)  # that was no load
            return server
        if die_first:
            server = self._started(arguments)
            time.sleep(self._random.uniform(0.0, self._start_seconds))
            server.kill()
            self.figures.kills += 1
            self.figures.kills_during_start += 1
            self._remains = self._left_behind()
        server = self._started(arguments)
        with ThreadPoolExecutor(1) as beside:
            ready = beside.submit(_seconds_to_ready, server)
            self._compare(self._remains)
            self._start_seconds = ready.result()
        self.figures.longest_recovery_seconds = max(self.figures.longest_recovery_seconds, self._start_seconds)
        last_life = self._load.acknowledged[self._heard :]
        self._ask_again([*last_life, *self._load.sample(self._random, SAMPLE)], server)
        self._heard = len(self._load.acknowledged)
        return server

    def _started(self, arguments: Sequence[str]) -> Server:
        self._servers.append(self._launch(self.url, *arguments))
        return self._servers[-1]

    def _left_behind(self) -> str:
        """The database as the dead have left it. Of SQLite a copy: who opens the file first repairs it, and that must
        be the next server."""
        if self.figures.database != "sqlite":
            return self.url
        file = self.url.removeprefix("sqlite:///")
        for end in ("", "-wal"):
            Path(f"{file}.copy{end}").unlink(missing_ok=True)
            if Path(f"{file}{end}").exists():
                shutil.copyfile(f"{file}{end}", f"{file}.copy{end}")
        Path(f"{file}.copy-shm").unlink(missing_ok=True)
        return f"{self.url}.copy"

    def _compare(self, url: str) -> None:
        found, unheard = self._load.find(url)
        self.figures.add(found)
        self.figures.unanswered_whole += len(unheard)
        self.figures.unanswered_absent += len(self._load.unanswered) - len(unheard)

    def _ask_again(self, told: Sequence[Exchange], server: Server) -> None:
        self.figures.add(self._load.ask_again(told, server.url))
        self.figures.asked_again += len(told) + len(self._load.unanswered)
        self.figures.add(self._load.ask_unanswered(server.url))

    def _wait_for(self, operations: float) -> None:
        """Wait until so many more are acknowledged; nobody may wait for long."""
        enough = self._load.operations() + operations
        seen, deadline = -1, 0.0
        while self._load.working() and (now := self._load.operations()) < enough:
            if now > seen:
                seen, deadline = now, time.monotonic() + STUCK_SECONDS
            if time.monotonic() > deadline:
                self.figures.add([Finding("wrong", f"no answer for {STUCK_SECONDS} seconds")])
                return
            time.sleep(0.02)

    def _load_ended(self, refusals: bool) -> None:
        """What the callers have to say."""
        wrong = [f"{complaint}" for complaint in self._load.collect()]
        for refusal in self._load.refusals:
            told = refusal.status_code, refusal.headers.get("retry-after"), refusal.json()["error"]["code"]
            if not refusals or told != (503, "1", "unavailable"):
                wrong.append(f"{refusal.request.method} {refusal.request.url}: {told} {refusal.text}")
        self.figures.refused_503 += len(self._load.refusals)
        self._load.refusals.clear()
        wrong += [server.said() for server in self._servers[-2:] if "Traceback" in server.said()]
        self.figures.add([Finding("wrong", text) for text in wrong])

    def _end(self) -> None:
        """All is asked again; then the server goes as it should."""
        server = self._recovered()
        self._ask_again(self._load.acknowledged, server)
        self._compare(self.url)
        server.terminate()
        if (code := server.exit_code()) != 0:
            self.figures.add([Finding("wrong", f"exit code {code}: {server.said()}")])
        with closing(Store(self.url)) as store, store.reading() as tx:
            again = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.attempts > 1)
            self.figures.jobs_taken_over = tx.connection.execute(again).scalar_one()

    # --- what is killed ------------------------------------------------------------------------------------------

    def _kill_worker(self, server: Server) -> None:
        """One of two: those whom it served ask the other, and its parent starts another."""
        children = psutil.Process(server.pid).children()
        self._random.choice([child for child in children if "--multiprocessing-fork" in child.cmdline()]).kill()
        self.figures.kills += 1
        self.figures.kills_of_one_worker += 1

    def _kill_database(self, server: Server) -> None:
        """503 while it is away, and on by itself once it is back."""
        self._databases.postgresql.kill()
        self.figures.database_kills += 1
        self._load.wait_for_refusals(2 * CALLERS)
        with client_of(server.url) as client:
            told = [
                client.get(path).status_code for path in ("/readyz", f"/campaigns/{next(iter(CAMPAIGNS))}", "/healthz")
            ]
        if told != [503, 503, 200]:
            self.figures.add([Finding("wrong", f"/readyz, a campaign, /healthz without a database: {told}")])
        answered = self._load.answers()
        self._databases.postgresql.start()
        begun = time.monotonic()
        wait_until(lambda: self._load.answers() > answered)
        seconds = time.monotonic() - begun
        self.figures.longest_database_recovery_seconds = max(seconds, self.figures.longest_database_recovery_seconds)

    def _wait_for_job(self) -> None:
        """Until someone is at a re-estimation that nobody was at before, if it comes soon."""
        deadline = time.monotonic() + JOB_SECONDS
        with closing(Store(self.url)) as store:
            while self._load.working() and time.monotonic() < deadline and read_open_jobs(store) <= self._known_jobs:
                time.sleep(0.002)

    def _note_jobs(self) -> None:
        """Which leases the dead have left. On PostgreSQL they must run out first, since others may live: as if so."""
        with closing(Store(self._remains)) as store:
            left = read_open_jobs(store)
            self.figures.kills_with_open_job += not left <= self._known_jobs
            self._known_jobs |= left
            if not store.embedded:
                with store.writing() as tx:
                    tx.connection.execute(sa.update(jobs).where(jobs.c.status == "waiting").values(leased_until=0))

    # --- figures -------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        figures, acknowledged = self.figures, self._load.acknowledged
        for told in acknowledged[self._counted :]:
            if told.rewards:
                figures.rewards += sum(committed is not None for committed in committed_rewards(told))
            else:
                figures.decisions += len(told.ids)
        self._counted = len(acknowledged)
        figures.changes = sum(change.acknowledged for made in self._load.changes.values() for change in made)
        figures.operations = figures.decisions + figures.rewards + figures.changes
        figures.asked_again += self._load.asked_again
        self._load.asked_again = 0


def _seconds_to_ready(server: Server) -> float:
    begun = time.monotonic()
    assert server.url
    return time.monotonic() - begun
