"""Kills a server under mixed load again and again; compares what the next one finds with what was acknowledged."""

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

import sqlalchemy as sa

from service.storage.store import Store
from service.storage.tables import jobs
from tests.databases import Databases
from tests.e2e.findings import FINDINGS, Exchange, Finding, get_committed_rewards
from tests.e2e.load import open_client, wait_until
from tests.e2e.mixed import CAMPAIGNS, LARGE_CAMPAIGNS, MixedLoad
from tests.e2e.server import Launch, Server

CALLERS = 8
SAMPLE = 200  # earlier requests to repeat after each kill; at the end all are repeated
STUCK_SECONDS = 120
JOB_SECONDS = 5.0  # how long to wait for a re-estimation to interrupt
# How a server's life ends: during a re-estimation, while it starts, at a random instant. On PostgreSQL also after the
# database was killed, and with two workers: one of them is killed, or only their parent, or all at once.
LIVES = {
    "sqlite": ("job", "start", "any"),
    "postgresql": ("job", "database", "worker", "start", "any", "parent", "job", "group"),
}
WITH_WORKERS = ("worker", "parent", "group")


@dataclass
class Figures:
    """What happened on one database, and the findings."""

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
    repeated: int = 0
    unanswered_whole: int = 0
    unanswered_absent: int = 0
    refused_503: int = 0
    jobs_taken_over: int = 0
    longest_recovery_seconds: float = 0.0
    longest_database_recovery_seconds: float = 0.0
    seconds: float = 0.0
    findings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINDINGS, 0))
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(self.findings.values())

    def __post_init__(self) -> None:
        self._known: set[Finding] = set()

    def add(self, findings: Sequence[Finding]) -> None:
        """Count new findings: the same one may be found again after the next kill."""
        findings = [finding for finding in dict.fromkeys(findings) if finding not in self._known]
        self._known.update(findings)
        for kind, times in Counter(finding.kind for finding in findings).items():
            self.findings[kind] += times
        self.examples += [f"{finding.kind}: {finding.text}"[:1_000] for finding in findings[: 20 - len(self.examples)]]


class Torture:
    """Starts servers on one database, one after the other, and kills each."""

    def __init__(
        self, kind: str, databases: Databases, launch: Launch, seed: int, large: Sequence[str] = LARGE_CAMPAIGNS
    ) -> None:
        self.figures = Figures(kind)
        self.url = databases(kind)
        self._databases, self._launch, self._large = databases, launch, large
        self._random = random.Random(f"{seed} {kind}")
        self._load = MixedLoad()
        self._servers: list[Server] = []
        self._known_jobs: set[tuple[int, int, str]] = set()
        self._repeated = self._counted = 0  # acknowledged requests of lives before the last one; those in the figures
        self._start_seconds = 3.0  # how long a start takes
        self._remains = self.url  # the database as the last server left it
        self._begun = time.monotonic()

    def run(self, kills: int, operations: int) -> Iterator[Figures]:
        """Yield the figures after each life, until there are this many kills and acknowledged operations."""
        lives = cycle(LIVES[self.figures.database])
        try:
            while self.figures.kills < kills or self.figures.operations < operations:
                # Later lives make up for earlier ones that were short; at worst there is one more.
                left = (operations - self.figures.operations) / max(1, kills - self.figures.kills)
                self._live(next(lives), max(left, 0) * self._random.uniform(0.4, 1.8))
                self._count()
                yield self.figures
            self._end()
        except Exception as error:  # for example, a server does not start
            self.figures.add([Finding("wrong", f"could not go on: {error!r}")])
            for server in self._servers:
                server.end()
            self._load.request_stop()
            self._load.collect()
        self._count()
        yield self.figures

    # --- a life --------------------------------------------------------------------------------------------------

    def _live(self, end: str, operations: float) -> None:
        server = self._start_recovered("2" if end in WITH_WORKERS else "1", die_first=end == "start")
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
        server.wait_for_exit()  # and for workers that have lost their parent
        self._collect_load(expects_refusals=end == "database")
        self._remains = self._copy_remains()
        self._note_jobs()

    def _start_recovered(self, workers: str = "1", die_first: bool = False) -> Server:
        """Start a server and compare what the last one left with what was acknowledged."""
        if not self._servers:
            server = self._start(workers)
            self._load.prepare(server.url, self._large)
            self._repeated = self._counted = len(self._load.acknowledged)  # preparations do not count
            return server
        if die_first:
            server = self._start(workers)
            time.sleep(self._random.uniform(0.0, self._start_seconds))
            server.kill()
            self.figures.kills += 1
            self.figures.kills_during_start += 1
            self._remains = self._copy_remains()
        server = self._start(workers)
        with ThreadPoolExecutor(1) as beside:
            ready = beside.submit(_measure_start, server)
            self._compare(self._remains)
            self._start_seconds = ready.result()
        self.figures.longest_recovery_seconds = max(self.figures.longest_recovery_seconds, self._start_seconds)
        acknowledged = self._load.acknowledged
        sample = self._random.sample(acknowledged, min(SAMPLE, len(acknowledged)))
        self._repeat([*acknowledged[self._repeated :], *sample], server)
        self._repeated = len(self._load.acknowledged)
        return server

    def _start(self, workers: str) -> Server:
        self._servers.append(self._launch(self.url, "--workers", workers))
        return self._servers[-1]

    def _copy_remains(self) -> str:
        """The URL of the database as it was left. For SQLite this is a copy, because opening the file repairs it, and
        the next server must do that."""
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
        findings, committed = self._load.compare(url)
        self.figures.add(findings)
        self.figures.unanswered_whole += len(committed)
        self.figures.unanswered_absent += len(self._load.unanswered) - len(committed)

    def _repeat(self, exchanges: Sequence[Exchange], server: Server) -> None:
        self.figures.add(self._load.repeat(exchanges, server.url))
        self.figures.repeated += len(exchanges) + len(self._load.unanswered)
        self.figures.add(self._load.send_unanswered(server.url))

    def _wait_for(self, operations: float) -> None:
        """Wait until this many more operations are acknowledged; it is a finding if none is for long."""
        enough = self._load.count_operations() + operations
        seen, deadline = -1, 0.0
        while self._load.is_working() and (now := self._load.count_operations()) < enough:
            if now > seen:
                seen, deadline = now, time.monotonic() + STUCK_SECONDS
            if time.monotonic() > deadline:
                self.figures.add([Finding("wrong", f"no answer for {STUCK_SECONDS} seconds")])
                return
            time.sleep(0.02)

    def _collect_load(self, expects_refusals: bool) -> None:
        """Wait for the callers. Their errors, unexpected refusals and tracebacks of the server are findings."""
        wrong = [f"{error}" for error in self._load.collect()]
        for refusal in self._load.refusals:
            answer = refusal.status_code, refusal.headers.get("retry-after"), refusal.json()["error"]["code"]
            if not expects_refusals or answer != (503, "1", "unavailable"):
                wrong.append(f"{refusal.request.method} {refusal.request.url}: {answer} {refusal.text}")
        self.figures.refused_503 += len(self._load.refusals)
        self._load.refusals.clear()
        wrong += [text for server in self._servers[-2:] if "Traceback" in (text := server.read_stderr())]
        self.figures.add([Finding("wrong", text) for text in wrong])

    def _end(self) -> None:
        """Repeat all requests, then stop the server properly."""
        server = self._start_recovered()
        self._repeat(self._load.acknowledged, server)
        self._compare(self.url)
        server.terminate()
        if (code := server.wait_for_exit()) != 0:
            self.figures.add([Finding("wrong", f"exit code {code}: {server.read_stderr()}")])
        with closing(Store(self.url)) as store, store.reading() as tx:
            retried = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.attempts > 1)
            self.figures.jobs_taken_over = tx.connection.execute(retried).scalar_one()

    # --- kills ------------------------------------------------------------------------------------------

    def _kill_worker(self, server: Server) -> None:
        """Kill one of two workers: its callers go to the other one, and the parent replaces it."""
        self._random.choice(server.list_workers()).kill()
        self.figures.kills += 1
        self.figures.kills_of_one_worker += 1

    def _kill_database(self, server: Server) -> None:
        """Kill PostgreSQL and start it again: 503 in between, and the service recovers by itself."""
        self._databases.postgresql.kill()
        self.figures.database_kills += 1
        self._load.wait_for_refusals(2 * CALLERS)
        with open_client(server.url) as client:
            statuses = [
                client.get(path).status_code for path in ("/readyz", f"/campaigns/{next(iter(CAMPAIGNS))}", "/healthz")
            ]
        if statuses != [503, 503, 200]:
            self.figures.add([Finding("wrong", f"/readyz, a campaign, /healthz without a database: {statuses}")])
        answered = self._load.count_answers()
        self._databases.postgresql.start()
        begun = time.monotonic()
        wait_until(lambda: self._load.count_answers() > answered)
        seconds = time.monotonic() - begun
        self.figures.longest_database_recovery_seconds = max(seconds, self.figures.longest_database_recovery_seconds)

    def _wait_for_job(self) -> None:
        """Wait for a new re-estimation to start, but not for long."""
        deadline = time.monotonic() + JOB_SECONDS
        with closing(Store(self.url)) as store:
            while time.monotonic() < deadline and self._load.is_working() and _read_jobs(store) <= self._known_jobs:
                time.sleep(0.002)

    def _note_jobs(self) -> None:
        """Remember the leases of killed servers. On PostgreSQL expire them, so that no server waits."""
        with closing(Store(self._remains)) as store:
            left = _read_jobs(store)
            self.figures.kills_with_open_job += not left <= self._known_jobs
            self._known_jobs |= left
            if not store.embedded:
                with store.writing() as tx:
                    tx.connection.execute(sa.update(jobs).where(jobs.c.status == "waiting").values(leased_until=0))

    # --- figures -------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        figures, acknowledged = self.figures, self._load.acknowledged
        for exchange in acknowledged[self._counted :]:
            if exchange.is_reward:
                figures.rewards += sum(committed is not None for committed in get_committed_rewards(exchange))
            else:
                figures.decisions += len(exchange.ids)
        self._counted = len(acknowledged)
        figures.changes = sum(change.acknowledged for changes in self._load.changes.values() for change in changes)
        figures.operations = figures.decisions + figures.rewards + figures.changes
        figures.repeated += self._load.repeated
        self._load.repeated = 0
        figures.seconds = time.monotonic() - self._begun


def _measure_start(server: Server) -> float:
    begun = time.monotonic()
    assert server.url
    return time.monotonic() - begun


def _read_jobs(store: Store) -> set[tuple[int, int, str]]:
    """Re-estimations that somebody has leased and not finished: campaign id, input round, owner."""
    query = sa.select(jobs.c.campaign_id, jobs.c.input_round, jobs.c.owner).where(jobs.c.status == "waiting")
    with store.reading() as tx:
        return {tuple(row) for row in tx.connection.execute(query)}
