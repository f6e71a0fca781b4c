"""Disks and databases that fail a running server: told clearly, nothing half-written, and over when the fault is."""

import pytest

from service.cli import main
from tests.e2e.disks import BOUND, DISKS, limited, read_only
from tests.e2e.load import CAMPAIGN, client_of
from tests.service.answers import error_of, good

CALLERS = 8
CONTEXT = {"risk": "low", "revenue": 1}
READ = ("", "/mine", "/mine/stages", "/mine/revisions", "/mine/decisions/d7", "/mine/model", "/mine/diagnostics")


def begin(load, url):
    """Callers at work, and a campaign of our own with two models."""
    with client_of(url) as client:
        good(client.post("/campaigns", json=CAMPAIGN | {"name": "mine"}), 201)
        items = [{"decision_id": f"d{i}", "context": CONTEXT} for i in range(25)]
        good(client.post("/decide/batch", json={"campaign": "mine", "items": items}))
    load.start([url], load.create(url, "spring", "autumn"), CALLERS)
    load.wait_for(40)


def every_kind(client):
    """A write of every kind, in an order in which all can succeed."""
    yield client.post("/decide", json={"campaign": "mine", "decision_id": "one", "context": CONTEXT})
    yield client.post("/decide/batch", json={"campaign": "mine", "items": [{"decision_id": "two", "context": CONTEXT}]})
    yield client.post("/reward", json={"campaign": "mine", "decision_id": "d3", "reward": 0.5})
    yield client.post("/campaigns", json=CAMPAIGN | {"name": "new"})
    yield client.patch("/campaigns/mine", json={"propensity_floor": 0.05})
    yield client.post("/campaigns/mine/rollback", json={"model_version": 1})
    yield client.post("/campaigns/mine/actions", json={"action": "letter"})
    yield client.post("/campaigns/mine/archive")


def check_refused(answer, *said):
    """R18, R24: a clear 503 that says what to do, and when to ask again."""
    error = error_of(answer, 503)
    assert (error["code"], answer.headers["retry-after"]) == ("unavailable", "1")
    assert error["message"].startswith(said), error
    assert "then try again (" in error["message"]


def check_reads(client):
    """What needs no write is answered; the process lives, and says that it cannot decide."""
    for path in READ:
        good(client.get(f"/campaigns{path}"))
    good(client.get("/healthz"))
    assert "undercurrent_database_up 1.0" in client.get("/metrics").text


def check_end(load, server, database_url):
    """It goes on without a restart: what was refused can be done, and the log is what was answered (R14, R17)."""
    load.wait_for(40)
    load.stop()
    assert load.unanswered == []
    with client_of(server.url) as client:
        good(client.get("/readyz"))
        for answer in every_kind(client):
            assert answer.is_success, answer.text
    load.retry(server.url)
    assert load.check(database_url) == []
    assert main(["verify", "mine", "--database-url", database_url]) == 0
    assert "Traceback" not in server.complaints()


def check_no_start(server, *said):
    """A message for people, and the exit code of a failure."""
    assert server.exit_code() == 1
    (line,) = server.said().splitlines()
    assert line.startswith(tuple(f"undercurrent: {message}" for message in said)), line


@pytest.fixture
def folder(tmp_path):
    """For a database and nothing else."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


NO_SPACE = ("The disk of the database is full: free some space", "The disk of the database fails, is full or over a")


@pytest.mark.parametrize("kind", DISKS)
def test_a_full_disk(folder, launch, load, kind):
    """It fills up under load, twice; and at two starts, after a clean end and after a crash."""
    with DISKS[kind](folder) as disk:
        server = launch(disk.database_url)
        begin(load, server.url)
        with client_of(server.url) as client:
            for _ in range(2):
                with disk.full(server.pid):
                    load.wait_for_refusals(CALLERS)
                    for answer in every_kind(client):
                        check_refused(answer, *NO_SPACE)
                    check_refused(client.get("/readyz"), *NO_SPACE)
                    check_reads(client)
                load.wait_for(40)
        check_end(load, server, disk.database_url)
        for refusal in load.refusals:
            check_refused(refusal, *NO_SPACE)
        server.kill()
        with disk.full() as under:
            check_no_start(launch(disk.database_url, under=under), *NO_SPACE)
        assert main(["verify", "spring", "--database-url", disk.database_url]) == 0  # whose end was a clean one
        with disk.full() as under:
            check_no_start(launch(disk.database_url, under=under), *NO_SPACE)


def test_a_read_only_file(folder, launch, load):
    """Who has it open could write on; whoever opens it again, as after any fault, can only read. And at a start."""
    database_url, read_only_told = f"sqlite:///{folder}/undercurrent.db", "The database is read-only: make its file"
    server = launch(database_url, under=BOUND)
    begin(load, server.url)
    with client_of(server.url) as client, read_only(folder):
        with limited(server.pid):
            load.wait_for_refusals(1)  # the fault after which it opens the file again
        load.wait_for_refusals(2 * CALLERS)
        for answer in every_kind(client):
            check_refused(answer, read_only_told)
        check_refused(client.get("/readyz"), read_only_told)
        check_reads(client)
    check_end(load, server, database_url)
    server.terminate()
    assert server.exit_code() == 0
    with read_only(folder):
        check_no_start(launch(database_url, under=BOUND), read_only_told, "The database does not answer: unable to")
