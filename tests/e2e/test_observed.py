"""Metrics and logs of a server with two workers, and how its parent replaces them."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.engine.metrics import SHARED_FOLDER
from service.storage.schema import get_schema_revision
from service.storage.store import Store
from tests.e2e.load import CAMPAIGN, open_client, wait_until
from tests.e2e.server import get_environment, launch_servers
from tests.service.answers import good
from tests.service.scraping import Scrape

READY = "Application startup complete."  # each worker logs this at level debug
JSON_LOGS = ["--log-format", "json", "--access-log", "--log-level", "debug"]


def connect(server, worker):
    """A client that is connected to this worker."""
    client = open_client(server.url)
    with server.suspend_other_workers(worker):
        good(client.get("/healthz"))
    return client


def decide(client, numbers):
    """Request decisions, and return the prefix of each worker's request ids."""
    prefixes = set()
    for number in numbers:
        body = {"campaign": "spring", "decision_id": f"d{number}", "context": {"risk": "low", "revenue": 20}}
        answer = client.post("/decide", json=body)
        good(answer)
        prefixes.add(answer.headers["x-request-id"].partition("-")[0])
    return prefixes


def get_totals(client):
    """Totals of all workers, as the client's worker reports them: decisions, requests, times, operations, rounds."""
    scrape = Scrape(client)
    return [
        scrape.by("decisions_total", "campaign")["spring"],
        scrape.by("requests_total", "route", status="200")["/decide"],
        scrape.by("request_seconds_count", "route")["/decide"],
        scrape.value("gather_operations_sum"),
        scrape.value("campaign_rounds", campaign="spring"),
    ]


@pytest.fixture(scope="module")
def url(new_database):
    return new_database("postgresql")


@pytest.fixture(scope="module")
def server(url, tmp_path_factory):
    """A server with two workers, both ready, and a campaign."""
    with launch_servers(tmp_path_factory.mktemp("observed")) as launch:
        server = launch(url, "--workers", "2", "--host", "0.0.0.0", *JSON_LOGS)
        assert server.url
        wait_until(lambda: server.read_stderr().count(READY) == 2)
        with open_client(server.url) as client:
            headers = {"X-Request-ID": "creation"}
            good(client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}, headers=headers), 201)
        yield server


def test_log_lines_are_json(server):
    """The lines of every worker and of uvicorn are JSON, with the request id that the caller got."""
    with open_client(server.url) as client:
        client.get("/nothing?token=swordfish", headers={"X-Request-ID": "unknown-path"})
    wait_until(lambda: "unknown-path" in server.read_stderr())
    lines = [json.loads(line) for line in server.read_stderr().splitlines()]
    assert all(list(line)[:5] == ["ts", "level", "logger", "message", "request_id"] for line in lines)
    assert "there are no keys yet, so the service listens on 127.0.0.1 only" in lines[0]["message"]
    change, request = (line for line in lines if line["request_id"] == "creation")
    assert (change["logger"], change["message"], change["campaign"]) == ("undercurrent.admin", "create", "spring")
    assert (request["logger"], request["status"]) == ("undercurrent.request", 201)
    assert request["message"] in ("request", "slow request")  # slow on a busy machine
    assert "uvicorn.error" in {line["logger"] for line in lines}
    assert "swordfish" not in server.read_stderr()


def test_counters_of_all_workers_add_up(server):
    """Every worker reports the sums of all. They do not fall when a worker is killed and replaced."""
    first, second = server.list_workers()
    starts = server.read_stderr().count(READY)
    assert Path(first.environ()[SHARED_FOLDER]).stat().st_mode & 0o077 == 0
    with closing(connect(server, first)) as one:
        prefixes = decide(one, range(20))
        with closing(connect(server, second)) as other:
            prefixes |= decide(other, range(20, 50))
            assert len(prefixes) == 2
            decide(one, range(40, 45))  # repeated requests
            wait_until(lambda: get_totals(one) == get_totals(other) == [50, 55, 55, 56, 50])  # with the creation
    first.suspend()
    time.sleep(1)  # by now its parent waits for a sign of life
    first.kill()
    with closing(open_client(server.url)) as other:
        assert get_totals(other) == [50, 55, 55, 56, 50]
        wait_until(lambda: server.read_stderr().count(READY) == starts + 1)
        assert get_totals(other) == [50, 55, 55, 56, 50]
        (third,) = (worker for worker in server.list_workers() if worker != second)
        with closing(connect(server, third)) as late:
            assert not decide(late, range(50, 60)) & prefixes
            wait_until(lambda: get_totals(late) == get_totals(other) == [60, 65, 65, 66, 60])


def test_a_worker_that_cannot_be_replaced_leaves_the_other_alone(server, url):
    """A worker may not start after a migration or while PostgreSQL is away. The parent logs that and tries again."""
    first, second = server.list_workers()
    starts, pid = server.read_stderr().count(READY), first.pid
    with closing(Store(url)) as store:

        def set_revision(revision):
            with store.writing() as tx:
                before = get_schema_revision(tx)
                tx.connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))
            return before

        before = set_revision("9999")
        shutil.rmtree(first.environ()[SHARED_FOLDER])  # as a job that cleans up temporary files may do
        first.kill()
        wait_until(lambda: server.read_stderr().count('"exit_code": 3') >= 2)
        with closing(open_client(server.url)) as client:
            good(client.post("/campaigns", json=CAMPAIGN | {"name": "autumn"}), 201)
        set_revision(before)
    wait_until(lambda: server.read_stderr().count(READY) == starts + 1)
    assert second in server.list_workers()
    ended = [json.loads(line) for line in server.read_stderr().splitlines() if "a worker has ended" in line]
    assert (pid, -9) in [(line["pid"], line["exit_code"]) for line in ended]


def test_the_server_removes_its_folder_when_it_stops(server):
    folder = Path(server.list_workers()[0].environ()[SHARED_FOLDER])
    assert folder.exists()
    server.terminate()
    assert server.wait_for_exit() == 0
    assert not folder.exists()


NONE_STARTS = """
import socket, sys
from service.base.settings import Settings
from service.cli.supervisor import Supervisor, serve_worker
settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none", workers=2)
sys.exit(not Supervisor(2, serve_worker, settings, socket.create_server(("", 0))).run())
"""


def test_if_no_worker_can_start_the_server_ends(tmp_path):
    """Otherwise it would try for ever, and look alive."""
    environment = get_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    environment[SHARED_FOLDER] = str(tmp_path / "metrics")
    command = [sys.executable, "-c", NONE_STARTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr


def test_the_reason_for_a_failed_start_is_json_too(launch):
    """It is logged at every level."""
    server = launch("postgresql://nobody@127.0.0.1:1/none", "--log-format", "json", "--log-level", "error")
    assert server.wait_for_exit() == 1
    (line,) = map(json.loads, server.read_stderr().splitlines())
    assert (line["level"], line["message"].partition(":")[0]) == ("error", "The database does not answer")
