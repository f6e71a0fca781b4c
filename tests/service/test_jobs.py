"""Large re-estimations as background jobs: leased, published at a stage's end, reproducible (R16)."""

import logging
import threading

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

import service.engine.boundaries
import service.engine.recovery
from policy import StagedPolicy
from policy.codec import decode_estimate
from service.engine.background import run_estimation
from service.engine.boundaries import LEASE_SECONDS
from service.engine.operations import FinishJob, JobResult
from service.engine.recovery import rebuild_job_input
from service.engine.warm_up import warm_up
from service.engine.work import Job
from service.storage.jobs import claim_jobs
from service.storage.tables import events, jobs, models, snapshots
from tests.service.playing import CONFIGS, Script, eventually, fail_until, http_post, on_sqlite
from tests.service.scraping import Scrape

ROUNDS = 95
STAGE = 5
PLAYED = {  # the default re-estimates at every stage's end at first: here with time between two jobs
    "default": CONFIGS["default"] | {"beliefs": {"every": 20}},
    "spectral": CONFIGS["spectral"],
    "smoothed": CONFIGS["smoothed"],
    "online": CONFIGS["online"] | {"beliefs": {**CONFIGS["online"]["beliefs"], "every": 20}},
}


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    """Leave every re-estimation to a job."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)


def play(script, worker, until, patience, restart=None):
    """Play; a job is finished when it has waited for `patience` requests.

    With `restart`, a new worker takes over whenever the newest job's status has changed, and sometimes in between. It
    rebuilds the jobs' inputs from the log. Returns the statuses at the restarts.
    """
    number, requests, waited, phases = worker.campaign(script.name).campaign_id, 0, 0, []

    def post(path, body):
        nonlocal worker, requests, waited
        newest = [row for row in worker.rows(jobs) if row["campaign_id"] == number][-1:]
        requests += 1
        status = newest[0]["status"] if newest else None
        if restart is not None and (phases[-1:] != [status] or requests % 4 == 0):
            worker = restart()
            phases.append(status)
        waited += status == "waiting"
        if waited > patience:
            worker.finish(take_over(worker, script.name, newest[0]) if restart else worker.work.pop())
            waited = 0
        return worker.post(path, body)

    script.play(post, until)
    return phases


def take_over(worker, name, row):
    with worker.store.reading() as tx:
        start = rebuild_job_input(tx, row["campaign_id"], row["input_round"])
    return Job(row["campaign_id"], name, start.policy, start.state)


@on_sqlite
@pytest.mark.parametrize("name", PLAYED)
def test_jobs_are_published_at_a_stages_end(direct, clock, name):
    """R16: the row has the round of publication, later decisions use the result, and `verify` recomputes every job."""
    worker = direct()
    script = Script(PLAYED[name], clock).create(worker.post)
    play(script, worker, ROUNDS, patience=4)
    published = [row for row in worker.rows(jobs) if row["status"] == "published"]
    assert len(published) >= 3
    estimates = {row["round"]: row for row in worker.rows(models) if row["kind"] == "estimation"}
    assert list(estimates) == [row["published_round"] for row in published]
    for row in published:
        assert row["input_round"] < row["published_round"]
        assert row["published_round"] % STAGE == 0
        version = estimates[row["published_round"]]["version"]
        before, after = script.decisions[row["published_round"] - 1 : row["published_round"] + 1]
        assert before["model_version"] < version <= after["model_version"]
        decode_estimate(row["result"])
    assert worker.differences(name) == []


@pytest.mark.parametrize(
    ("database_url", "name"), [("sqlite", "default"), ("postgresql", "smoothed")], indirect=["database_url"]
)
def test_a_restart_in_the_middle_of_a_job_changes_no_digit(direct, clock, name):
    """R15, R16: with many new workers, while the job is waiting, done or published."""
    first = direct()
    whole = Script(PLAYED[name], clock, name="whole").create(first.post)
    play(whole, first, 60, patience=4)
    parts = Script(PLAYED[name], clock, name="parts").create(first.post)
    phases = play(parts, first, 60, patience=4, restart=direct)
    assert {"waiting", "done", "published"} <= set(phases)
    assert parts.answers == whole.answers
    one, other = (
        [
            (row["input_round"], row["input_arrived"], row["status"], row["published_round"], row["result"])
            for row in first.rows(jobs)
            if row["campaign_id"] == first.campaign(campaign).campaign_id
        ]
        for campaign in ("whole", "parts")
    )
    assert one == other  # to the last bit of every result
    assert first.differences("parts") == []


@on_sqlite
def test_a_worker_that_missed_a_publication_catches_up(direct, clock, monkeypatch):
    """R15, R16, R21: even if the result was deleted because a snapshot contains it."""
    monkeypatch.setattr(service.engine.recovery, "SNAPSHOT_ROUNDS", 10)
    first, second = direct(), direct()
    whole = Script(CONFIGS["smoothed"], clock, name="whole").create(first.post)
    parts = Script(CONFIGS["smoothed"], clock, name="parts").create(first.post)
    for script, begins in ((whole, first), (parts, second)):
        script.play(begins.post, 35)  # a job is waiting
        begins.finish_all()
        script.play(first.post, 60)  # it is published
        first.finish_all()  # with snapshots
        script.play(begins.post, 70)
        first.work.clear()
    assert None in [row["result"] for row in first.rows(jobs) if row["status"] == "published"]
    assert parts.answers == whole.answers
    first.execute(sa.delete(snapshots))  # then every job is run again
    for script in (whole, parts):
        script.play(direct().post, 90)
    assert parts.answers == whole.answers
    assert first.differences("parts") == []


@on_sqlite
def test_a_failover_repeats_the_estimation(direct, clock):
    """The new server may lack some of the rounds that the estimate used."""
    worker = direct()
    script = Script(CONFIGS["smoothed"], clock).create(worker.post).play(worker.post, 35)
    (work,) = worker.work
    before = worker.store.generation
    worker.store.generation += 1
    finish = FinishJob(script.name, work.campaign_id, work.state.round, JobResult("nothing", None, 0.0), before)
    worker.process(finish)
    assert [row["status"] for row in worker.rows(jobs)] == ["waiting"]
    worker.process(replace(finish, generation=before + 1))
    assert [row["status"] for row in worker.rows(jobs)] == ["nothing"]


@on_sqlite
def test_one_request_over_many_stages_publishes_a_job_once(direct, clock):
    """R16, R18: the job that the request starts is not the one that was finished before."""
    worker = direct()
    script = Script(CONFIGS["smoothed"], clock).create(worker.post)
    play(script, worker, 42, patience=1)
    assert statuses(worker) == ["published"]
    context = {"season": "spring", "spend": 5, "tenure": 2}
    items = [{"decision_id": f"batch {i}", "context": context} for i in range(40)]
    worker.post("/decide/batch", {"campaign": "smoothed", "items": items})
    assert statuses(worker) == ["published", "waiting"]
    assert [row["round"] for row in worker.rows(models) if row["kind"] == "estimation"] == [35]
    assert worker.differences("smoothed") == []


@on_sqlite
def test_inline_estimation_starts_no_job(direct, clock):
    """R16: replays and parity checks use it, so it must not depend on background work."""
    worker = direct()
    config = CONFIGS["smoothed"] | {"beliefs": CONFIGS["smoothed"]["beliefs"] | {"estimation": "inline"}}
    Script(config, clock).create(worker.post).play(worker.post, 50)
    assert worker.rows(jobs) == worker.work == []
    assert [row["round"] for row in worker.rows(models) if row["kind"] == "estimation"] == [31, 44]


# --- the real background ------------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch):
    """Re-estimations block until the test releases them."""
    warm_up()  # which estimates too
    begun, let_go = threading.Event(), threading.Event()
    estimate = StagedPolicy.estimate

    def slow(policy, state):
        begun.set()
        assert let_go.wait(60)
        return estimate(policy, state)

    monkeypatch.setattr(StagedPolicy, "estimate", slow)
    yield begun, let_go
    let_go.set()


def statuses(worker):
    return [row["status"] for row in worker.rows(jobs)]


def test_decisions_go_on_while_a_job_is_at_work(start, direct, clock, held):
    """R16: re-estimations that become due are skipped and logged; the job's result is published afterwards."""
    begun, let_go = held
    post, log = http_post(start().client), direct()
    script = Script(CONFIGS["smoothed"], clock).create(post).play(post, 33)
    assert begun.wait(60)
    script.play(post, 60)
    assert statuses(log) == ["waiting"]
    assert {row["kind"] for row in log.rows(models)} == {"update"}
    skipped = [(row["round"], row["kind"]) for row in log.rows(events)]
    assert skipped == [(44, "skipped_estimation"), (57, "skipped_estimation")]
    let_go.set()
    eventually(lambda: statuses(log) == ["done"], "done")
    script.play(post, 66)
    assert statuses(log)[0] == "published"
    (row, *_) = log.rows(jobs)
    assert row["input_round"] == 31
    assert row["published_round"] in (60, 65)
    assert "estimation" in {row["kind"] for row in log.rows(models)}
    assert log.differences("smoothed") == []


def abandon_job(worker, clock, name):
    """Create a campaign with a job that its dead worker never ran; return the result that the job must have."""
    script = Script(PLAYED[name], clock).create(worker.post)
    while not worker.work:
        script.step(worker.post)
    (job,) = worker.work
    status, result, _ = run_estimation(job.policy, job.state)
    assert status == "done"
    script.step(worker.post)
    return script, result


@pytest.mark.parametrize(
    ("database_url", "name"), [("sqlite", "default"), ("postgresql", "smoothed")], indirect=["database_url"]
)
def test_a_dead_workers_job_is_taken_over(start, direct, clock, name):
    """R16, with the same result: as soon as its lease ends, or at once if only one process uses the database (R19)."""
    dead = direct()
    script, result = abandon_job(dead, clock, name)
    (before,) = dead.rows(jobs)
    assert (before["status"], before["attempts"], before["owner"]) == ("waiting", 1, dead.campaigns.owner)
    if not dead.store.embedded:
        clock.now = before["leased_until"] + 1
    taking = start()
    eventually(lambda: statuses(dead) != ["waiting"], "taken over")
    (after,) = dead.rows(jobs)
    assert (after["status"], after["attempts"], after["result"]) == ("done", 2, result)
    assert after["owner"] == taking.service.campaigns.owner != before["owner"]
    script.play(http_post(taking.client), script.round + 10)
    assert statuses(dead)[0] == "published"
    assert dead.differences(name) == []


@on_sqlite
def test_a_job_that_kills_its_workers_is_given_up(start, direct, clock):
    """R14, R16: it fails after three attempts; the campaign goes on and shows the failure."""
    dead = direct()
    script, _ = abandon_job(dead, clock, "smoothed")
    dead.execute(sa.update(jobs).values(attempts=3, leased_until=clock.now - 1))
    worker = start()
    eventually(lambda: statuses(dead) == ["failed"], "given up")
    script.play(http_post(worker.client), 41)
    assert "round 31" in worker.client.get("/campaigns/smoothed").json()["failure"]
    assert dead.differences("smoothed") == []


def test_a_lease_is_respected(direct, clock):
    """R16: no other worker takes a job before its lease ends."""
    worker, other = direct(), direct()
    abandon_job(worker, clock, "smoothed")
    (row,) = worker.rows(jobs)
    assert row["leased_until"] == row["created_at"] + LEASE_SECONDS * 1_000_000

    def claim(now):
        with other.store.writing() as tx:
            return claim_jobs(tx, "other", now, now + 1_000)

    assert claim(row["leased_until"]) == []
    assert claim(row["leased_until"] + 1) == [(row["campaign_id"], "smoothed", row["input_round"], 1)]
    assert claim(row["leased_until"] + 2) == []  # leased again
    assert [(row["owner"], row["attempts"]) for row in worker.rows(jobs)] == [("other", 2)]


@on_sqlite
def test_the_first_result_counts(direct, clock):
    """R16: a worker that seemed dead may still submit its result."""
    worker = direct()
    abandon_job(worker, clock, "smoothed")
    (job,) = worker.work
    worker.finish(job)
    before = worker.rows(jobs)
    worker.finish(job)
    assert worker.rows(jobs) == before


@on_sqlite
def test_a_job_that_fails_stops_nothing(start, direct, clock, monkeypatch, caplog):
    """R14, R16: the job, the log and the campaign show it, and the next job works."""
    fail_until(monkeypatch, "estimate", 40)
    client, log = start().client, direct()
    post = http_post(client)
    with caplog.at_level(logging.ERROR, "undercurrent"):
        script = Script(CONFIGS["smoothed"], clock).create(post).play(post, 33)
        eventually(lambda: statuses(log) == ["failed"], "failed")
    assert "the re-estimation of round 31 failed" in caplog.text
    script.play(post, 36)
    failure = client.get("/campaigns/smoothed").json()["failure"]
    findings = client.get("/campaigns/smoothed/diagnostics").json()["findings"]
    assert "update_failed" in [finding["code"] for finding in findings]
    scrape = Scrape(client)
    assert scrape.counted("failed_updates_total", "campaign", "kind") == {("smoothed", "publication"): 1}
    assert scrape.value("campaign_failing", campaign="smoothed") == 1
    script.play(post, 46)
    eventually(lambda: statuses(log) == ["failed", "done"], "done")
    script.play(post, 57)
    assert statuses(log)[:2] == ["failed", "published"]
    assert log.differences("smoothed") == []
    assert client.get("/campaigns/smoothed").json()["failure"] is None
    assert Scrape(client).value("campaign_failing", campaign="smoothed") == 0
    assert failure is not None
    assert "round 31" in failure


@on_sqlite
def test_a_damaged_published_result_is_recomputed(direct, clock):
    """R21: the fold recomputes it exactly, and `verify` names it."""
    first = direct()
    whole = Script(PLAYED["smoothed"], clock, name="whole").create(first.post)
    parts = Script(PLAYED["smoothed"], clock, name="parts").create(first.post)
    for script in (whole, parts):
        play(script, first, 50, patience=4)
    number = first.campaign("parts").campaign_id
    published = [row for row in first.rows(jobs) if (row["campaign_id"], row["status"]) == (number, "published")]
    damaged = published[-1]["input_round"]
    mine = (jobs.c.campaign_id == number) & (jobs.c.input_round == damaged)
    first.execute(sa.update(jobs).where(mine).values(result=b"damaged"))
    first.campaigns.cache._entries.clear()  # so that the log is folded, as after a restart
    for script in (whole, parts):
        play(script, first, 60, patience=4)
    assert parts.answers == whole.answers
    assert [d.partition(":")[0] for d in first.differences("parts")] == [f"re-estimation of round {damaged}"]


@on_sqlite
def test_a_result_that_cannot_be_published_stops_nothing(direct, clock):
    """R14, R16: the campaign keeps its model and logs the failure; the fold does the same."""
    worker = direct()
    script, _ = abandon_job(worker, clock, "smoothed")
    worker.finish(worker.work.pop())
    worker.execute(sa.update(jobs).values(result=b"damaged"))
    script.play(worker.post, 40)
    (row,) = worker.rows(jobs)
    assert (row["status"], row["published_round"]) == ("failed", None)
    (event,) = worker.rows(events)
    assert (event["kind"], event["round"]) == ("failed_publication", 35)
    assert {row["kind"] for row in worker.rows(models)} == {"update"}
    assert worker.differences("smoothed") == []
    script.play(direct().post, 60)
    assert worker.differences("smoothed") == []


@on_sqlite
def test_a_job_that_finds_nothing_stops_nothing(direct, clock):
    """R7, R16: too little data is no failure; the next job comes at its usual time."""
    worker = direct()
    config = CONFIGS["spectral"] | {"beliefs": CONFIGS["spectral"]["beliefs"] | {"start_round": 4, "every": 9}}
    script = Script(config, clock).create(worker.post)
    play(script, worker, 40, patience=1)
    found = statuses(worker)
    assert found[0] == "nothing"
    assert worker.campaign("spectral").failure is None
    assert worker.rows(events) == []
    assert worker.differences("spectral") == []
