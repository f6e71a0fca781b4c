"""Does the campaign run at all?"""

from collections.abc import Iterator

from service.analysis.checks.finding import Finding
from service.analysis.facts import Facts
from service.engine.unit import LEASE_SECONDS

__all__ = ["archived", "job_waiting", "no_decisions", "paused", "update_failed"]

WAITING_SECONDS = 2.0 * LEASE_SECONDS  # by then a job has been done, or taken over by another worker


def archived(facts: Facts) -> Iterator[Finding]:
    if facts.row.archived_at is not None:
        yield Finding(
            "archived",
            "warning",
            f"The campaign is archived since round {facts.state.round}: it decides nothing.",
            {"round": facts.state.round},
            "Open it again with POST …/unarchive.",
        )


def paused(facts: Facts) -> Iterator[Finding]:
    if facts.config.paused:
        yield Finding(
            "paused",
            "warning",
            f"The campaign is paused since round {facts.state.round}: it takes rewards, but decides nothing.",
            {"round": facts.state.round},
            'Let it decide again with PATCH {"paused": false}.',
        )


def no_decisions(facts: Facts) -> Iterator[Finding]:
    if not facts.state.round:
        yield Finding(
            "no_decisions",
            "info",
            "There are 0 decisions so far.",
            {"round": 0},
            "Ask POST /decide for the first customer.",
        )


def update_failed(facts: Facts) -> Iterator[Finding]:
    if facts.row.failure is not None:
        yield Finding(
            "update_failed",
            "problem",
            f"The last update failed, and model {facts.state.model_version} of before it is still in force: "
            f"{facts.row.failure}.",
            {"failure": facts.row.failure, "model_version": facts.state.model_version},
            "The next one tries again. If it keeps failing, look at the service's log, and at the rewards for "
            "numbers far too large; POST …/rollback goes back to an earlier model.",
        )


def job_waiting(facts: Facts) -> Iterator[Finding]:
    job = facts.job
    if job is not None and job.seconds > WAITING_SECONDS:
        yield Finding(
            "job_waiting",
            "warning",
            f"The re-estimation of round {job.input_round} has been waiting for {job.seconds / 60:.0f} minutes: the "
            "regimes are out of date.",
            {"input_round": job.input_round, "seconds": job.seconds, "attempts": job.attempts},
            "Is the service busy, or out of memory? What a worker leaves is taken over by another one after "
            f"{LEASE_SECONDS // 60} minutes. Fewer signals or regimes make re-estimations smaller.",
        )
