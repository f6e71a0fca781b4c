"""How the server process starts and stops: it finishes the requests that it has accepted, and leaves nothing behind."""

import json
import os
import re
import signal
from http.client import HTTPConnection

import httpx
import pytest

from service.access.keys import get_key_id
from service.cli.commands import main
from tests.e2e.findings import Exchange
from tests.e2e.load import PATIENCE_SECONDS, open_client, wait_until

CALLERS = 8
REQUEST = Exchange("/decide", {"campaign": "spring", "context": {"risk": "low", "revenue": 1}, "decision_id": "last"})


def connect(url: str) -> HTTPConnection:
    address = httpx.URL(url)
    connection = HTTPConnection(address.host, address.port, timeout=PATIENCE_SECONDS)
    connection.connect()
    return connection


def send_head(url: str, length: int) -> HTTPConnection:
    """Send the head of REQUEST, and wait until the server has accepted it."""
    connection = connect(url)
    connection.putrequest("POST", REQUEST.path)
    connection.putheader("Content-Length", length)
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


@pytest.mark.parametrize(("kind", "workers"), [("sqlite", 1), ("postgresql", 2)])
def test_sigterm_finishes_accepted_requests(new_database, launch, load, kind, workers):
    """R18, R19: a request without an answer was not done. The exit code is 0, and no process is left."""
    database_url = new_database(kind)
    server = launch(database_url, "--workers", str(workers))
    campaigns = load.create_campaigns(server.url, "spring", "autumn")
    body = json.dumps(REQUEST.body).encode()
    idle, accepted = connect(server.url), send_head(server.url, len(body))
    load.start([server.url], campaigns, CALLERS)
    load.wait_for_answers(150)
    server.terminate()
    assert idle.sock.recv(100) == b""
    idle.close()
    if workers == 1:  # with several, the parent's socket accepts connections until all workers have ended
        with pytest.raises(ConnectionRefusedError):
            connect(server.url)
    accepted.send(body)
    answer = accepted.getresponse()
    assert answer.status == 200
    load.acknowledged.append(REQUEST._replace(answer=answer.read()))
    accepted.close()
    load.join()
    assert server.wait_for_exit() == 0
    assert server.read_complaints() == ""
    assert len(load.unanswered) == CALLERS
    assert load.refusals == []
    assert load.check(database_url) == []
    # At level info the log names the changes of an administrator, but no successful decision.
    lines = re.findall(
        r" INFO undercurrent\.(\w+): (\w+) request_id=\S+ campaign=(\w+) by=(\w+)\n", server.read_stderr()
    )
    assert lines == [("admin", "create", "spring", "local"), ("admin", "create", "autumn", "local")]
    assert server.read_stderr().count(" INFO ") == 2


def test_sigterm_during_the_start(new_database, launch):
    """The server can be stopped as soon as it has printed its address; that is no failure."""
    server = launch(new_database("sqlite"))
    assert server.announced_url
    server.terminate()
    assert server.wait_for_exit() == 0
    assert "Traceback" not in server.read_stderr()


def test_every_worker_learns_of_keys(new_database, launch, capsys):
    """All processes on a database learn of the first key and of a revoked one."""
    database_url = new_database("postgresql")
    server = launch(database_url, "--workers", "2")

    def run_keys(*arguments: str) -> str:
        assert main(["keys", *arguments, "--database-url", database_url]) == 0
        return capsys.readouterr().out.strip()

    def get_statuses(key: str = "") -> set[int]:
        """The statuses of one request to each worker."""
        headers, statuses = {"x-api-key": key} if key else {}, set()
        for worker in server.list_workers():
            with server.suspend_other_workers(worker), open_client(server.url) as client:
                statuses.add(client.get("/campaigns", headers=headers).status_code)
        return statuses

    assert server.url
    wait_until(lambda: len(server.list_workers()) == 2)
    assert get_statuses() == {200}
    key, other = run_keys("create", "--role", "admin"), run_keys("create", "--role", "viewer")
    wait_until(lambda: get_statuses() == {401})
    wait_until(lambda: get_statuses(other) == {200})  # a worker may have read the keys before it was created
    assert get_statuses(key) == {200}
    run_keys("revoke", get_key_id(key))
    wait_until(lambda: get_statuses(key) == {401})
    assert get_statuses(other) == {200}
    assert server.read_complaints() == ""


@pytest.fixture
def slow_workers(tmp_path, monkeypatch):
    """Worker processes take longer to start than uvicorn waits for them by default."""
    code = "import sys, time\nif '--multiprocessing-fork' in sys.orig_argv:\n    time.sleep(6)\n"
    (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.mark.usefixtures("slow_workers")
def test_slow_workers_start_and_end_with_their_parent(new_database, launch, load):
    """The parent waits for workers on a busy machine. If it is killed, they finish their requests and end."""
    database_url = new_database("postgresql")
    server = launch(database_url, "--workers", "2")
    load.start([server.url], load.create_campaigns(server.url, "orphans"), CALLERS)
    load.wait_for_answers(50)
    server.kill()
    assert server.wait_for_exit() == -signal.SIGKILL  # returns once no worker holds its stdout
    load.join()
    with pytest.raises(ConnectionRefusedError):
        connect(server.url)
    load.check(database_url)
    assert "Traceback" not in server.read_complaints()
