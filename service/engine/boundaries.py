"""The steps between two rounds as they happen: published jobs, re-estimations and stage updates."""

import math
import time

from msgspec.structs import replace

from policy import State
from policy.codec import decode_estimate
from service.base.times import SECOND
from service.engine.course import FAILED_ESTIMATION, FAILED_PUBLICATION, FAILED_UPDATE, SKIPPED_ESTIMATION
from service.engine.work import ClosedJob, Job, Timing, Work
from service.storage.rows import JobRow

INLINE_OPERATIONS = 150_000  # of a re-estimation, about 10 ms; a larger one is left to a job (R16)
LEASE_SECONDS = 300


class Boundaries(Work):
    """A unit of work that can cross the boundaries between rounds."""

    @property
    def _is_nothing_due(self) -> bool:
        """Will the next boundaries publish no result of a job?"""
        return self.progress.job is None or self._is_job_waiting

    def look_ahead(self) -> bool:
        """Read what the steps at a boundary need. Is there a job to publish?"""
        return self._find_finished_job() is not None

    def look_for_job_again(self) -> None:
        """Note that a job has ended within this transaction."""
        self._is_job_waiting = False

    def _find_finished_job(self) -> JobRow | None:
        if self.progress.job is None or self._is_job_waiting:
            return None
        job = self._tx.get_newest_job(self.row.campaign_id)
        # A job that this transaction started is not in the table yet, so the newest row may be an older job.
        if job is None or job.input_round != self.progress.job or job.status == "waiting":
            self._is_job_waiting = True
            return None
        return job

    def publish(self) -> None:
        job = self._find_finished_job()
        if job is None:
            return
        self.progress = replace(self.progress, job=None)
        if job.status == "failed":
            error = RuntimeError(f"the re-estimation of round {job.input_round} failed")
            self.record_failure(FAILED_PUBLICATION, error)
        if job.status != "done" or job.result is None:
            return
        version, started = self.state.model_version, time.perf_counter()
        try:
            self.state = _require_finite(self.policy.publish(self.state, decode_estimate(job.result)), self.state)
        except Exception as error:  # the campaign goes on with the model it has
            self.close_job(ClosedJob(job.input_round, "failed"))
            self.record_failure(FAILED_PUBLICATION, error)
        else:
            self.close_job(ClosedJob(job.input_round, "published", self.state.round))
            self.record_model("estimation", version, (job.seconds or 0.0) + time.perf_counter() - started)

    def close_job(self, job: ClosedJob) -> None:
        """Record the end of a job."""
        self.progress = replace(self.progress, closed_jobs=(*self.progress.closed_jobs, job))

    def drop_job(self) -> None:
        """Give up the open job: it started from a model that is no longer in force."""
        if self.progress.job is not None:
            self.close_job(ClosedJob(self.progress.job, "nothing"))
            self.progress = replace(self.progress, job=None)

    def estimate(self) -> None:
        if self.policy.config.beliefs.estimation == "auto" and self.is_estimation_large:
            state = self.state
            if self.progress.job is not None:
                self.record_event(SKIPPED_ESTIMATION, {"job": self.progress.job})
            else:
                self._leave_to_job()
            self.state = self.policy.skip_estimation(state)
        else:
            self.estimate_inline()

    @property
    def is_estimation_large(self) -> bool:
        return self.policy.estimator.get_size(self.state) > INLINE_OPERATIONS

    def estimate_inline(self) -> None:
        """Re-estimate now, within the transaction."""
        state, started = self.state, time.perf_counter()
        try:
            self.state = _require_finite(self.policy.reestimate(state), state)
        except Exception as error:
            self.state = self.policy.skip_estimation(state)
            self.record_failure(FAILED_ESTIMATION, error)
        else:
            self._record_timed_model("estimation", state.model_version, started)

    def _leave_to_job(self) -> None:
        state, row = self.state, self.row
        job = Job(row.campaign_id, row.name, self.policy, state)
        self.progress = replace(self.progress, job=state.round, new_jobs=(*self.progress.new_jobs, job))
        self.rows.jobs.append(
            JobRow(
                campaign_id=row.campaign_id,
                input_round=state.round,
                input_arrived=state.arrived,
                status="waiting",
                owner=self._owner,
                leased_until=self._clock + LEASE_SECONDS * SECOND,
                attempts=1,
                result=None,
                published_round=None,
                seconds=None,
                created_at=self.now,
            )
        )

    def update(self) -> None:
        version, started = self.state.model_version, time.perf_counter()
        try:
            self.state = _require_finite(self.policy.update(self.state), self.state)
        except Exception as error:
            self.state = self.policy.skip_update(self.state)
            self.record_failure(FAILED_UPDATE, error)
        else:
            self._record_timed_model("update", version, started)

    def _record_timed_model(self, kind: str, version_before: int, started: float) -> None:
        timing = Timing(kind, time.perf_counter() - started)
        self.progress = replace(self.progress, timings=(*self.progress.timings, timing))
        self.record_model(kind, version_before, timing.seconds)

    def _record_empty_updates(self, before: State) -> None:
        """Record the models of updates that had nothing to fold (`StagedPolicy.count_rounds_alike`)."""
        count, length = self.state.model_version - before.model_version, self.policy.config.stage_length
        if count:
            row = self.build_model_row("update", 0.0)
            timings = (Timing("update", 0.0),) * count
            self.progress = replace(self.progress, timings=self.progress.timings + timings)
            self.rows.models += [
                row._replace(version=before.model_version + 1 + i, round=before.next_update - 1 + i * length)
                for i in range(count)
            ]


def _require_finite(state: State, before: State) -> State:
    """Refuse a model with a NaN or an infinity, which would never go away again."""
    statistics, belief = state.statistics, state.belief
    if statistics is before.statistics and belief is before.belief:  # nothing was learned
        return state
    # A sum is finite only if all its terms are; otherwise none of them comes near the largest float.
    sums = (statistics.theta.sum(), statistics.inverse.sum(), statistics.moment.sum(), statistics.units.sum())
    if not (math.isfinite(sum(sums)) and math.isfinite(belief.sum())):
        raise ArithmeticError("the coefficients are not finite")
    return state
