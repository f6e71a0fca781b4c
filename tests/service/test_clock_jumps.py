"""The clock jumps by hours: nothing fails, happens early or twice, or waits for the old time."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import sqlalchemy as sa

import service.engine.boundaries
from service.engine.boundaries import LEASE_SECONDS
from service.engine.operations import Reduce
from service.engine.recovery import load_wait
from service.storage.jobs import claim_jobs
from service.storage.reading import read_decision_pages
from service.storage.rows import REGIME_CHANGE
from service.storage.tables import decisions, events, jobs, models, outbox, rewards
from tests.service.conftest import Clock
from tests.service.playing import CONFIGS, Script, check_rounds, eventually, on_sqlite
from tests.service.receiving import receiving
from tests.service.test_jobs import abandon_job
from tests.service.test_webhooks import campaign, list_waiting, queue_messages, sending, wait_until

HOUR = 3_600_000_000
WAIT = CONFIGS["waiting"]["rewards"]["wait_seconds"] * 1_000_000
JUMPS = (0, -3 * HOUR, 0, 2 * HOUR, -HOUR, 2 * HOUR, 3 * HOUR)  # the machine's clock minus the true time
ROUNDS = 30  # between two jumps


class JumpingClock(Clock):
    """Scripts and tests move the true time; the service reads a clock that differs from it."""

    def __init__(self):
        super().__init__()
        self.jump = 0

    def __call__(self):
        return self.now + self.jump


def count_defaults(worker):
    """How many decisions count as the default by the campaign's time."""
    with worker.store.reading() as tx:
        row = worker.campaign("waiting")
        wait = load_wait(tx, row, 0)
        assert wait.microseconds == WAIT
        pages = read_decision_pages(tx, row.campaign_id, wait=wait)
        return sum(decision.source == "default" for page in pages for decision in page)


@pytest.fixture
def clock():
    return JumpingClock()


@on_sqlite
def test_decisions_and_default_rewards_go_on(direct, clock):
    """R20: times never go back, and no default counts before its time; defaults resume when time goes on."""
    worker = direct()
    script = Script(CONFIGS["waiting"], clock).create(worker.post)
    settled = []
    for number, jump in enumerate(JUMPS, 1):
        clock.jump = jump
        script.play(worker.post, number * ROUNDS)
        settled.append(count_defaults(worker))
        worker = direct()  # a restart reads rows, never a clock (R14)
    check_rounds(script.decisions)
    decided = {row["round"]: row["decided_at"] for row in worker.rows(decisions)}
    taken = sorted(worker.rows(rewards), key=lambda row: row["arrival"])
    for times in (list(decided.values()), [row["received_at"] for row in taken]):
        assert all(one <= other for one, other in pairwise(times))
    assert len({row["round"] for row in taken}) == len(taken)
    assert settled[0] < settled[2] < settled[3] < settled[-1]
    behind = range(4 * ROUNDS + 10, 5 * ROUNDS)  # the clock is three hours back: time stands still
    assert len({decided[round] for round in behind}) == 1
    assert worker.campaign("waiting").failure is None
    assert {row["kind"] for row in worker.rows(events)} <= {REGIME_CHANGE}
    assert max(row["version"] for row in worker.rows(models)) > len(JUMPS) * ROUNDS // 5 - 2
    assert worker.differences("waiting") == []


@on_sqlite
def test_times_of_clients(direct, clock):
    """R27: what was not in the future before the jump is not after it; an earlier time counts as the last one."""
    worker = direct()
    worker.post("/campaigns", CONFIGS["clock"])

    def decide(number, seconds):
        at = datetime.fromtimestamp(clock.now / 1_000_000 + seconds, UTC).isoformat()
        context = {"season": "spring", "spend": 5, "tenure": 2}
        worker.post("/decide", {"campaign": "clock", "decision_id": f"d{number}", "context": context, "at": at})

    decide(1, 0)
    clock.jump = -3 * HOUR
    for number, seconds in enumerate((30, -3 * 3600, 60, 59, 60), 2):
        decide(number, seconds)
    known = [(row["at"] - clock.now) // 1_000_000 for row in worker.rows(decisions)]
    assert known == [0, 30, 30, 60, 60, 60]
    assert worker.differences("clock") == []


def test_a_lease_that_ends_too_late_is_ignored(start, direct, clock, monkeypatch):
    """R16: the job of a dead worker whose clock was five hours ahead is taken over as soon as the clock is right."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    dead = direct()
    clock.jump = 5 * HOUR
    script, result = abandon_job(dead, clock, "smoothed")
    clock.jump = 0
    worker = start()
    eventually(lambda: dead.rows(jobs)[0]["status"] == "done", "taken over")
    assert dead.rows(jobs)[0]["result"] == result
    # The campaign's own time stands still meanwhile. The lease of a new job uses the real clock and is respected.
    while len(dead.rows(jobs)) < 2:
        script.step(direct().post)
    row = dead.rows(jobs)[-1]
    assert row["created_at"] > clock() + 4 * HOUR
    assert row["leased_until"] == clock() + LEASE_SECONDS * 1_000_000
    with worker.service.store.writing() as tx:
        assert claim_jobs(tx, "other", clock(), clock() + LEASE_SECONDS * 1_000_000) == []
    assert dead.differences("smoothed") == []


def test_messages_do_not_wait_for_a_later_time(direct, clock):
    """Neither new ones of a campaign whose time is ahead, nor those postponed or claimed while the clock was ahead."""
    worker = direct()

    async def run():
        with receiving(500) as receiver:
            clock.jump = 5 * HOUR
            (message,) = queue_messages(worker, receiver.url, [0] * 10 + [3] * 10)
            assert message["due_at"] == clock()
            async with sending(worker, clock) as sender:
                await wait_until(lambda: worker.rows(outbox)[0]["failure"], "refused")
                clock.jump = 0
                sender.wake()
                await wait_until(lambda: not list_waiting(worker), "sent")
            worker.post("/campaigns", campaign(receiver.url, "other"))
            worker.execute(sa.text("UPDATE live SET clock = :ahead").bindparams(ahead=clock() + 5 * HOUR))
            seasons = [{"season": s, "spend": 5, "tenure": 2} for s in ["spring"] * 10 + ["winter"] * 10]
            items = [{"decision_id": f"d{i}", "context": context} for i, context in enumerate(seasons)]
            direct().post("/decide/batch", {"campaign": "other", "items": items})
            (message,) = list_waiting(worker)
            assert message["due_at"] == clock()

    asyncio.run(run())


@on_sqlite
def test_retention_waits_for_the_right_time(direct, clock):
    """A clock that is behind deletes no request, and none is reduced twice."""
    worker = direct()
    script = Script(CONFIGS["given"] | {"retention_days": 1}, clock).create(worker.post).play(worker.post, 30)

    def reduced(jump):
        clock.jump = jump
        worker.process(Reduce("given"))
        return worker.campaign("given").reduced

    assert [reduced(hours * HOUR) for hours in (-30, 23, 25, -30, 25)] == [0, 0, *[script.round] * 3]
    clock.jump = 0
    script.play(worker.post, 60)
    assert worker.differences("given") == []
