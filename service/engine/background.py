"""Background work: large re-estimations as leased jobs (R16), snapshots, and tidying. Never in a decision's way."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from policy import HmmParameters, StagedPolicy, State, encode
from policy.codec import encode_estimate
from policy.selection import Estimate
from service.base.errors import NotFoundError, UnavailableError
from service.base.memory import release_memory
from service.engine.campaigns import Campaigns
from service.engine.fold import SECOND
from service.engine.lanes import Lanes
from service.engine.operations import FinishJob, KeepSnapshot, Reduce, Snapshot
from service.engine.retention import campaigns_to_reduce
from service.engine.unit import LEASE_SECONDS, Job
from service.storage.jobs import ClaimedJob, claim_jobs

__all__ = ["Background"]

POLL_SECONDS = 15.0  # between two looks for jobs whose worker has died
RETENTION_SECONDS = 600.0  # between two looks for requests that are kept for too long
TIDY_SECONDS = 20.0  # between two times that freed memory is given back
RETRY_SECONDS = 1.0
MOST_ATTEMPTS = 3
FAR_FUTURE = 2**62
log = logging.getLogger("undercurrent")


class Background:
    """One thread for work that may take long. The kernels release the interpreter, so decisions go on meanwhile."""

    def __init__(self, campaigns: Campaigns) -> None:
        self._campaigns = campaigns
        self._thread = ThreadPoolExecutor(1, "background")
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[tuple[int, int]] = set()  # jobs: campaign id and input round
        self.lanes: Lanes  # set by the application: lanes hand over work, work comes back through lanes

    def start(self, work: Job | Snapshot) -> None:
        self._keep(self._estimate(work) if isinstance(work, Job) else self._snapshot(work))

    def watch(self) -> None:
        """Look now and then for jobs whose worker has died, for requests kept for too long, and for freed memory."""
        self._keep(self._watch())
        self._keep(self._retain())
        self._keep(self._tidy())

    def _keep(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed; the log has it, so the next start does it again", exc_info=error)

    async def _estimate(self, job: Job) -> None:
        run, number = asyncio.get_running_loop().run_in_executor, (job.campaign_id, job.state.round)
        generation = self._campaigns.store.generation
        self._running.add(number)
        try:
            status, result, seconds = await run(self._thread, run_estimation, job.policy, job.state)
            self._campaigns.metrics.updated("estimation_job", seconds)
            await self._submitted(FinishJob(job.campaign, *number, status, result, seconds, generation))
        finally:
            self._running.discard(number)

    async def _snapshot(self, work: Snapshot) -> None:
        try:
            encoded = await asyncio.get_running_loop().run_in_executor(self._thread, encode, work.state)
            await self._submitted(KeepSnapshot(*work, encoded))
        finally:
            self._campaigns.snapshot_ended(work.campaign_id)

    async def _retain(self) -> None:
        while True:
            try:
                names = await asyncio.get_running_loop().run_in_executor(None, self._to_reduce)
            except UnavailableError:
                names = []  # the next look will find them
            for name in names:
                try:
                    while await self._submitted(Reduce(name)):
                        pass
                except Exception:  # one campaign that cannot be read must not keep what the others must forget
                    log.exception("campaign %s: its old requests could not be reduced", name)
            await asyncio.sleep(RETENTION_SECONDS)

    def _to_reduce(self) -> list[str]:
        with self._campaigns.store.reading() as tx:
            return campaigns_to_reduce(tx, self._campaigns.clock())

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await asyncio.get_running_loop().run_in_executor(None, release_memory)

    async def _submitted(self, operation: FinishJob | KeepSnapshot | Reduce) -> Any:
        while True:
            try:
                return await self.lanes.submit(operation)
            except UnavailableError:  # the database is away; the result is still good when it is back
                await asyncio.sleep(RETRY_SECONDS)
            except NotFoundError:  # the campaign was deleted meanwhile
                return None

    async def _watch(self) -> None:
        # One process owns an embedded database: whoever had a job before this start is dead.
        expired = FAR_FUTURE if self._campaigns.store.embedded else None
        while True:
            try:
                claimed = await asyncio.get_running_loop().run_in_executor(None, self._claim, expired)
                expired = None
            except UnavailableError:
                claimed = []  # the next look will tell
            for job in claimed:
                try:
                    await self._take_over(job)
                except Exception:  # one job, of a campaign deleted meanwhile perhaps, must not end the watch
                    log.exception("a re-estimation could not be taken over")
            await asyncio.sleep(POLL_SECONDS)

    async def _take_over(self, job: ClaimedJob) -> None:
        if (job.campaign_id, job.input_round) in self._running:
            return  # it is our own, and only slow
        log.warning("campaign %s: taking over the re-estimation of round %d", job.campaign, job.input_round)
        if job.attempts >= MOST_ATTEMPTS:  # it may be what kills the workers
            await self._submitted(FinishJob(job.campaign, job.campaign_id, job.input_round, "failed", None, 0.0))
            return
        run = asyncio.get_running_loop().run_in_executor
        _, policy, state = await run(self._thread, self._campaigns.rebuild_job_input, job.campaign_id, job.input_round)
        await self._estimate(Job(job.campaign_id, job.campaign, policy, state))

    def _claim(self, expired: int | None) -> list[ClaimedJob]:
        now = self._campaigns.clock()
        with self._campaigns.store.writing() as tx:
            return claim_jobs(tx, self._campaigns.owner, expired or now, now + LEASE_SECONDS * SECOND)

    async def close(self) -> None:
        """Stop. What was not finished is found again by the next start: the log has it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(cancel_futures=True)


def run_estimation(policy: StagedPolicy, state: State) -> tuple[str, bytes | None, float]:
    begun = time.perf_counter()
    try:
        found = policy.estimate(state)
    except Exception:
        log.exception("campaign %s: the re-estimation of round %d failed", policy.config.name, state.round)
        return "failed", None, time.perf_counter() - begun
    if not isinstance(found, HmmParameters | Estimate):
        return "nothing", None, time.perf_counter() - begun
    return "done", encode_estimate(found), time.perf_counter() - begun
