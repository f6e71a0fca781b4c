"""The process as those who watch it see it: metrics of all its workers together, logs that a program can read."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from service.engine.metrics import SHARED_FOLDER
from service.storage.store import Store
from tests.e2e.load import CAMPAIGN, client_of, wait_until
from tests.e2e.server import outside
from tests.service.answers import good
from tests.service.scraping import Scrape

READY = "Application startup complete."  # each worker says so at level debug


def workers(server):
    """The processes that answer: those that know of the shared folder."""
    children = psutil.Process(server.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline()) and child.is_running()]


def connected(server, worker):
    """A client whose connection is this worker's: the others are held while it is made."""
    client, others = client_of(server.url), [other for other in workers(server) if other != worker]
    for other in others:
        other.suspend()
    try:
        good(client.get("/healthz"))
    finally:
        for other in others:
            other.resume()
    return client


def decide(client, numbers):
    """Ask for decisions; which workers answered, by how their ids begin."""
    answered = set()
    for number in numbers:
        body = {"campaign": "spring", "decision_id": f"d{number}", "context": {"risk": "low", "revenue": 20}}
        answer = client.post("/decide", json=body)
        good(answer)
        answered.add(answer.headers["x-request-id"].partition("-")[0])
    return answered


def totals(client):
    """What a worker says that all have done: decisions, requests for them, their times, operations, rounds."""
    found = Scrape(client)
    return [
        found.by("decisions_total", "campaign")["spring"],
        found.by("requests_total", "route", status="200")["/decide"],
        found.by("request_seconds_count", "route")["/decide"],
        found.value("gather_operations_sum") - 1,  # the creation
        found.value("campaign_rounds", campaign="spring"),
    ]


def test_counters_of_all_workers_add_up_and_never_go_back(new_database, launch):
    """Each sample once, whichever worker is asked; also after one was killed, and nothing is left behind."""
    server = launch(new_database("postgresql"), "--workers", "2", "--log-level", "debug")
    assert server.url
    wait_until(lambda: server.said().count(READY) == 2)
    first, second = workers(server)
    folder = Path(first.environ()[SHARED_FOLDER])
    assert folder.stat().st_mode & 0o077 == 0
    with closing(connected(server, first)) as one:
        good(one.post("/campaigns", json=CAMPAIGN | {"name": "spring"}), 201)
        answered = decide(one, range(20))
        with closing(connected(server, second)) as other:
            answered |= decide(other, range(20, 50))
            assert len(answered) == 2
            decide(one, range(40, 45))  # known ones
            wait_until(lambda: totals(one) == totals(other) == [50, 55, 55, 55, 50])
    first.suspend()
    time.sleep(1)  # by now it was asked whether it lives: it ends while its answer is waited for
    first.kill()
    with closing(client_of(server.url)) as other:
        assert totals(other) == [50, 55, 55, 55, 50]
        wait_until(lambda: server.said().count(READY) == 3)
        assert totals(other) == [50, 55, 55, 55, 50]
        (third,) = (worker for worker in workers(server) if worker != second)
        with closing(connected(server, third)) as late:
            assert not decide(late, range(50, 60)) & answered
            wait_until(lambda: totals(late) == totals(other) == [60, 65, 65, 65, 60])
    server.terminate()
    assert server.exit_code() == 0
    assert not folder.exists()


def test_a_worker_that_cannot_be_replaced_leaves_the_others_alone(new_database, launch):
    """After a migration, or while PostgreSQL is away; it is tried again, and told of."""
    url = new_database("postgresql")
    server = launch(url, "--workers", "2", "--log-level", "debug")
    assert server.url
    wait_until(lambda: server.said().count(READY) == 2)
    first, second = workers(server)
    with closing(Store(url)) as store:

        def migrate(to):
            with store.writing() as tx:
                before = tx.schema_revision()
                tx.connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{to}'"))
            return before

        before = migrate("9999")
        shutil.rmtree(first.environ()[SHARED_FOLDER])  # as who cleans up temporary files does
        first.kill()
        wait_until(lambda: server.said().count("a worker has ended") >= 3)
        with closing(client_of(server.url)) as client:
            good(client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}), 201)
        migrate(before)
    wait_until(lambda: server.said().count(READY) == 3)
    assert second in workers(server)
    assert f"a worker has ended pid={first.pid} exit_code=-9" in server.said()
    assert server.said().count("exit_code=3") >= 2
    server.terminate()
    assert server.exit_code() == 0


NONE_STARTS = """
import socket, sys
from service.cli.commands import uvicorn_config
from service.cli.workers import Workers
several = Workers(uvicorn_config("failing:app", workers=2, lifespan="on"), sockets=[socket.create_server(("", 0))])
several.run()
sys.exit(several.failed)
"""


def test_if_no_worker_can_start_the_service_ends(tmp_path):
    """Else it would try for ever, and whoever started it would take it for alive."""
    (tmp_path / "failing.py").write_text("async def app(scope, receive, send): raise RuntimeError\n")
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    command = [sys.executable, "-c", NONE_STARTS]
    done = subprocess.run(command, env=outside() | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize(("kind", "workers"), [("sqlite", 1), ("postgresql", 2)])
def test_every_line_is_json(new_database, launch, kind, workers):
    """Ours and the server's, of every worker; with the id that the caller got."""
    flags = ["--log-format", "json", "--access-log", "--log-level", "debug", "--workers", str(workers)]
    server = launch(new_database(kind), *flags, "--host", "0.0.0.0")
    with client_of(server.url) as client:
        made = client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}, headers={"X-Request-ID": "mine"})
        good(made, 201)
        client.get("/nothing?token=swordfish")
    server.terminate()
    assert server.exit_code() == 0
    lines = [json.loads(line) for line in server.said().splitlines()]
    assert all(list(line)[:5] == ["ts", "level", "logger", "message", "request_id"] for line in lines)
    assert "there is no key yet, so the service listens on 127.0.0.1 only" in lines[0]["message"]
    mine = [line for line in lines if line["request_id"] == "mine"]
    assert [line["logger"] for line in mine] == ["undercurrent.admin", "undercurrent.request"]
    assert mine[0]["message"] == "create"
    assert mine[1]["message"] in ("request", "slow request")  # a busy machine's
    assert mine[0]["campaign"] == "spring"
    assert mine[1]["status"] == 201
    assert "uvicorn.error" in {line["logger"] for line in lines}  # at level debug it tells of its start
    assert "swordfish" not in server.said()


def test_why_it_cannot_start_is_json_too(launch):
    """Whatever the level: else nobody would learn why."""
    server = launch("postgresql://nobody@127.0.0.1:1/none", "--log-format", "json", "--log-level", "error")
    assert server.exit_code() == 1
    (line,) = map(json.loads, server.said().splitlines())
    assert (line["level"], line["message"].partition(":")[0]) == ("error", "The database does not answer")


def test_text_is_what_it_says_by_default(new_database, launch):
    """At level info an administrator's doings are told, a good decision is not."""
    server = launch(new_database("sqlite"))
    with client_of(server.url) as client:
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}), 201)
        decide(client, range(3))
    server.terminate()
    assert server.exit_code() == 0
    told = [line for line in server.said().splitlines() if "undercurrent" in line]
    (line,) = [line for line in told if "undercurrent.request: slow request" not in line]  # a busy machine's
    assert " INFO undercurrent.admin: create request_id=" in line
    assert line.endswith(" campaign=spring by=local")
    assert server.complaints() == ""
