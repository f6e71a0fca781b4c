"""Is the campaign running at all?"""

from collections.abc import Iterator

from service.analysis.checks.finding import Finding
from service.analysis.facts import Facts
from service.engine.boundaries import LEASE_SECONDS

MAX_JOB_SECONDS = 2.0 * LEASE_SECONDS  # by then a job is done, or another worker has taken it over


def check_archived(facts: Facts) -> Iterator[Finding]:
    if facts.row.archived_at is not None:
        yield Finding(
            "archived",
            "warning",
            f"The campaign has been archived since round {facts.state.round}: it makes no decisions.",
            {"round": facts.state.round},
            "To reopen it, POST …/unarchive.",
        )


def check_paused(facts: Facts) -> Iterator[Finding]:
    if facts.config.paused:
        yield Finding(
            "paused",
            "warning",
            f"The campaign has been paused since round {facts.state.round}: it accepts rewards but makes no decisions.",
            {"round": facts.state.round},
            'To resume, PATCH {"paused": false}.',
        )


def check_decisions(facts: Facts) -> Iterator[Finding]:
    if not facts.state.round:
        advice = "Send the first customer to POST /decide."
        yield Finding("no_decisions", "info", "No decisions yet.", {"round": 0}, advice)


def check_last_update(facts: Facts) -> Iterator[Finding]:
    if facts.row.failure is not None:
        yield Finding(
            "update_failed",
            "problem",
            f"The last update failed, so the earlier model {facts.state.model_version} is still in force: "
            f"{facts.row.failure}.",
            {"failure": facts.row.failure, "model_version": facts.state.model_version},
            "The next update will try again. If it keeps failing, look in the service's log for the error and check "
            "for rewards that are far too large. POST …/rollback returns to an earlier model.",
        )


def check_job(facts: Facts) -> Iterator[Finding]:
    job = facts.job
    if job is not None and job.seconds > MAX_JOB_SECONDS:
        yield Finding(
            "job_waiting",
            "warning",
            f"The re-estimation of round {job.input_round} has been waiting for {job.seconds / 60:.0f} minutes: the "
            "regimes are out of date.",
            {"input_round": job.input_round, "seconds": job.seconds, "attempts": job.attempts},
            "Check whether the service is overloaded or out of memory. If a worker dies, another one takes the job "
            f"over after {LEASE_SECONDS // 60} minutes. Fewer signals or regimes make re-estimations smaller.",
        )
