"""Background jobs (R16): claimed under a lease, finished once, and closed when their result is in force."""

from typing import NamedTuple

from sqlalchemy import Update, select, update

from service.storage.rows import JobRow, select_rows
from service.storage.tables import campaigns, jobs
from service.storage.transaction import Transaction


class ClaimedJob(NamedTuple):
    """A job taken over from another worker, and how often it had been tried before."""

    campaign_id: int
    campaign: str
    input_round: int
    attempts: int


def finish_job(
    tx: Transaction, campaign: int, input_round: int, status: str, result: bytes | None, seconds: float
) -> None:
    """Store a job's result. The first worker to finish wins; all compute the same."""
    waiting = _update(campaign, input_round).where(jobs.c.status == "waiting")
    tx.connection.execute(waiting.values(status=status, result=result, seconds=seconds))


def close_job(tx: Transaction, campaign: int, input_round: int, status: str, published_round: int | None) -> None:
    """Store how a job ended; a result that was not published is deleted."""
    unneeded = {"result": None} if published_round is None else {}
    values = {"status": status, "published_round": published_round} | unneeded
    tx.connection.execute(_update(campaign, input_round).values(values))


def claim_jobs(tx: Transaction, owner: str, now: int, until: int) -> list[ClaimedJob]:
    """Lease to `owner`, until that time, the jobs that another worker has not finished in time.

    A lease that ends much later than a new one would comes from a clock that has gone back since: it is over too.
    """
    is_over = (jobs.c.leased_until < now) | (jobs.c.leased_until > until + (until - now))
    expired = (
        select(jobs.c.campaign_id, campaigns.c.name.label("campaign"), jobs.c.input_round, jobs.c.attempts)
        .join_from(jobs, campaigns)
        .where(jobs.c.status == "waiting", is_over)
        .with_for_update(of=jobs, skip_locked=True)
    )
    claimed = [ClaimedJob(**row) for row in tx.connection.execute(expired).mappings()]
    for job in claimed:
        lease = {"owner": owner, "leased_until": until, "attempts": job.attempts + 1}
        tx.connection.execute(_update(job.campaign_id, job.input_round).values(lease))
    return claimed


def _update(campaign: int, input_round: int) -> Update:
    return update(jobs).where(jobs.c.campaign_id == campaign, jobs.c.input_round == input_round)


def find_waiting_job(tx: Transaction, campaign: int) -> JobRow | None:
    """The oldest job of a campaign that has no result yet."""
    query = select_rows(JobRow, jobs).where(jobs.c.campaign_id == campaign, jobs.c.status == "waiting")
    return next(iter(tx.read_rows(JobRow, query.order_by(jobs.c.input_round).limit(1))), None)
