"""Background work, which never delays a decision: large re-estimations as leased jobs (R16), snapshots, retention."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from policy import StagedPolicy, State, encode
from policy.codec import encode_estimate
from policy.estimators import Estimate
from service.base.errors import NotFoundError, UnavailableError
from service.base.process import release_memory
from service.base.times import SECOND
from service.engine.boundaries import LEASE_SECONDS
from service.engine.campaigns import Campaigns
from service.engine.course import Position
from service.engine.gathering import Gatherer
from service.engine.operations import FinishJob, JobResult, KeepSnapshot, Operation, Reduce, Snapshot
from service.engine.recovery import rebuild_job_input
from service.engine.retention import list_campaigns_to_reduce
from service.engine.work import Job
from service.storage.jobs import ClaimedJob, claim_jobs

POLL_SECONDS = 15.0  # between two searches for jobs whose worker has died
RETENTION_SECONDS = 600.0  # between two searches for requests that are too old
TIDY_SECONDS = 20.0  # between two times that freed memory is given back
RETRY_SECONDS = 1.0
MOST_ATTEMPTS = 3
FAR_FUTURE = 2**62
T = TypeVar("T")
Task: TypeAlias = Coroutine[None, None, None]
log = logging.getLogger("undercurrent")


class Background:
    """One thread for work that may take long. The kernels release the GIL, so decisions go on meanwhile."""

    def __init__(self, campaigns: Campaigns) -> None:
        self._campaigns = campaigns
        self._thread = ThreadPoolExecutor(1, "background")
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[tuple[int, int]] = set()  # jobs: campaign id and input round
        # Only one process uses an embedded database, so all jobs from before its start are abandoned.
        self._expired = FAR_FUTURE if campaigns.store.embedded else None
        self.gatherer: Gatherer  # set by the worker: it starts background work, which submits its results to it

    def start(self, work: Job | Snapshot) -> None:
        self._start_task(self._estimate(work) if isinstance(work, Job) else self._take_snapshot(work))

    def watch(self) -> None:
        """Start looking for abandoned jobs, for requests that are too old, and for freed memory."""
        failure = "a re-estimation could not be taken over: %s"
        self._start_task(self._watch(POLL_SECONDS, self._claim_jobs, self._take_over, failure))
        failure = "campaign %s: its old requests could not be reduced"
        self._start_task(self._watch(RETENTION_SECONDS, self._find_campaigns_to_reduce, self._reduce, failure))
        self._start_task(self._tidy())

    def _start_task(self, coroutine: Task) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed; the next start repeats it from the log", exc_info=error)

    async def _run(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *values)

    async def _estimate(self, job: Job) -> None:
        key = job.campaign_id, job.state.round
        generation = self._campaigns.store.generation
        self._running.add(key)
        try:
            result = await self._run(run_estimation, job.policy, job.state)
            self._campaigns.metrics.count_update("estimation_job", result.seconds)
            await self._submit(FinishJob(job.campaign, job.campaign_id, job.state.round, result, generation))
        finally:
            self._running.discard(key)

    async def _take_snapshot(self, snapshot: Snapshot) -> None:
        try:
            encoded = await self._run(encode, snapshot.state)
            await self._submit(KeepSnapshot(snapshot.campaign, snapshot, encoded))
        finally:
            self._campaigns.snapshots_under_way.discard(snapshot.campaign_id)

    async def _watch(self, pause: float, find: Callable[[], list[T]], serve: Callable[[T], Task], failure: str) -> None:
        """Search, serve what was found, pause for some seconds, and so on."""
        while True:
            try:
                found = await asyncio.to_thread(find)
            except UnavailableError:
                found = []  # the next search will find them
            for each in found:
                try:
                    await serve(each)
                except Exception:  # one, perhaps of a campaign deleted meanwhile, must not keep the others waiting
                    log.exception(failure, each)
            await asyncio.sleep(pause)

    def _find_campaigns_to_reduce(self) -> list[str]:
        with self._campaigns.store.reading() as tx:
            return list_campaigns_to_reduce(tx, self._campaigns.clock())

    async def _reduce(self, name: str) -> None:
        while await self._submit(Reduce(name)):
            pass

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await asyncio.to_thread(release_memory)

    async def _submit(self, operation: Operation[T]) -> T | None:
        """Submit an operation until the database takes it; None if the campaign was deleted meanwhile."""
        while True:
            try:
                return await self.gatherer.submit(operation)
            except UnavailableError:
                await asyncio.sleep(RETRY_SECONDS)
            except NotFoundError:
                return None

    def _claim_jobs(self) -> list[ClaimedJob]:
        now = self._campaigns.clock()
        with self._campaigns.store.writing() as tx:
            jobs = claim_jobs(tx, self._campaigns.owner, self._expired or now, now + LEASE_SECONDS * SECOND)
        self._expired = None
        return jobs

    async def _take_over(self, job: ClaimedJob) -> None:
        if (job.campaign_id, job.input_round) in self._running:
            return  # it is our own, and only slow
        log.warning("campaign %s: taking over the re-estimation of round %d", job.campaign, job.input_round)
        if job.attempts >= MOST_ATTEMPTS:  # perhaps this job is what kills the workers
            failed = JobResult("failed", None, 0.0)
            await self._submit(FinishJob(job.campaign, job.campaign_id, job.input_round, failed))
            return
        start = await self._run(self._rebuild_input, job)
        await self._estimate(Job(job.campaign_id, job.campaign, start.policy, start.state))

    def _rebuild_input(self, job: ClaimedJob) -> Position:
        with self._campaigns.store.scanning() as tx:
            return rebuild_job_input(tx, job.campaign_id, job.input_round)

    async def close(self) -> None:
        """Stop. Unfinished work is in the log, so that the next start finds it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(cancel_futures=True)


def run_estimation(policy: StagedPolicy, state: State) -> JobResult:
    """Re-estimate from a fixed state, in whatever thread this is called."""
    started = time.perf_counter()
    try:
        estimate = policy.estimate(state)
    except Exception:
        log.exception("campaign %s: the re-estimation of round %d failed", policy.config.name, state.round)
        return JobResult("failed", None, time.perf_counter() - started)
    if not isinstance(estimate, Estimate):
        return JobResult("nothing", None, time.perf_counter() - started)
    return JobResult("done", encode_estimate(estimate), time.perf_counter() - started)
