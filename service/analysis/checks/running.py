"""Is the campaign running at all?"""

from collections.abc import Iterator

from service.analysis.checks import Finding
from service.analysis.facts import Facts
from service.base.times import SECOND
from service.engine.boundaries import LEASE_SECONDS

MAX_JOB_SECONDS = 2.0 * LEASE_SECONDS  # by then a job is done, or another worker has taken it over


def check_closed(facts: Facts) -> Iterator[Finding]:
    evidence = {"round": facts.state.round}
    if facts.row.archived_at is not None:
        message = f"The campaign has been archived since round {facts.state.round}: it makes no decisions."
        yield Finding("archived", "warning", message, evidence, "To reopen it, POST …/unarchive.")
    if facts.config.paused:
        message = (
            f"The campaign has been paused since round {facts.state.round}: it accepts rewards but makes no decisions."
        )
        yield Finding("paused", "warning", message, evidence, 'To resume, PATCH {"paused": false}.')


def check_decisions(facts: Facts) -> Iterator[Finding]:
    if not facts.state.round:
        advice = "Send the first customer to POST /decide."
        yield Finding("no_decisions", "info", "No decisions yet.", {"round": 0}, advice)


def check_last_update(facts: Facts) -> Iterator[Finding]:
    failure, version = facts.row.failure, facts.state.model_version
    if failure is not None:
        yield Finding(
            "update_failed",
            "problem",
            f"The last update failed, so the earlier model {version} is still in force: {failure}.",
            {"failure": failure, "model_version": version},
            "The next update will try again. If it keeps failing, look in the service's log for the error and check "
            "for rewards that are far too large. POST …/rollback returns to an earlier model.",
        )


def check_job(facts: Facts) -> Iterator[Finding]:
    job = facts.job
    seconds = 0.0 if job is None else (facts.now - job.created_at) / SECOND
    if job is not None and seconds > MAX_JOB_SECONDS:
        yield Finding(
            "job_waiting",
            "warning",
            f"The re-estimation of round {job.input_round} has been waiting for {seconds / 60:.0f} minutes: the "
            "regimes are out of date.",
            {"input_round": job.input_round, "seconds": seconds, "attempts": job.attempts},
            "Check whether the service is overloaded or out of memory. If a worker dies, another one takes the job "
            f"over after {LEASE_SECONDS // 60} minutes. Fewer signals or regimes make re-estimations smaller.",
        )
