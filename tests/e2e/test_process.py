"""The process as those who run it see it: it stops when told to, and finishes what it has accepted."""

import json
import os
import signal
import socket

import httpx
import pytest

from service.access.auth import id_of
from service.cli.commands import main
from tests.e2e.load import PATIENCE_SECONDS, Exchange, client_of, wait_until

CALLERS = 8
HALF = Exchange("/decide", {"campaign": "spring", "context": {"risk": "low", "revenue": 1}, "decision_id": "half"})


def connect(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), PATIENCE_SECONDS)


def until_closed(connection: socket.socket) -> bytes:
    """All that the server still sends, once it has closed the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def send_head(url: str, asked: Exchange) -> socket.socket:
    """A request that the server has accepted, and whose body is still to be sent."""
    connection, length = connect(url), len(json.dumps(asked.body))
    head = f"POST {asked.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def finish(connection: socket.socket, asked: Exchange) -> Exchange:
    """Send the body; the request with its answer."""
    connection.sendall(json.dumps(asked.body).encode())
    head, _, answer = until_closed(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return asked._replace(answer=answer)


@pytest.mark.parametrize(("kind", "workers"), [("sqlite", 1), ("postgresql", 2)])
def test_sigterm_finishes_what_was_accepted(new_database, launch, load, kind, workers):
    """Whoever gets no answer may ask again: it was not done. No complaints, exit code 0, no process left (R18, R19)."""
    database_url = new_database(kind)
    server = launch(database_url, "--workers", str(workers))
    campaigns = load.create(server.url, "spring", "autumn")
    idle, half = connect(server.url), send_head(server.url, HALF)
    load.start([server.url], campaigns, CALLERS)
    load.wait_for(150)
    server.terminate()
    assert until_closed(idle) == b""
    if workers == 1:  # else the parent's socket holds new connections until all is over
        with pytest.raises(ConnectionRefusedError):
            connect(server.url)
    load.acknowledged.append(finish(half, HALF))
    load.join()
    assert server.exit_code() == 0
    assert server.complaints() == ""
    assert len(load.unanswered) == CALLERS
    assert load.refusals == []
    assert load.check(database_url) == []


def test_sigterm_at_the_very_start(new_database, launch):
    """As soon as it has told its address it can be stopped; that is no failure."""
    server = launch(new_database("sqlite"))
    assert server.announced
    server.terminate()
    assert server.exit_code() == 0
    assert "Traceback" not in server.complaints()


def test_every_process_hears_of_keys(new_database, launch, capsys):
    """The first key and a revoked one, in both worker processes of one server and in another server."""
    database_url = new_database("postgresql")
    servers = [launch(database_url, "--workers", "2"), launch(database_url)]

    def keys(*arguments: str) -> str:
        assert main(["keys", *arguments, "--database-url", database_url]) == 0
        return capsys.readouterr().out.strip()

    def answers(key: str = "") -> set[int]:
        """Of many new connections, which the processes share among them."""
        headers = {"x-api-key": key} if key else {}
        statuses = set()
        for server in servers:
            for _ in range(12):
                with client_of(server.url) as client:
                    statuses.add(client.get("/campaigns", headers=headers).status_code)
        return statuses

    assert answers() == {200}
    key, other = keys("create", "--role", "admin"), keys("create", "--role", "viewer")
    wait_until(lambda: answers() == {401})
    assert answers(key) == answers(other) == {200}
    keys("revoke", id_of(key))
    wait_until(lambda: answers(key) == {401})
    assert answers(other) == {200}
    assert [server.complaints() for server in servers] == ["", ""]


def test_workers_that_start_slowly_are_waited_for(new_database, launch, load, tmp_path, monkeypatch):
    """On a busy machine a worker takes its time to load; its supervisor must not take it for dead and start over."""
    slow = "import sys, time\nif '--multiprocessing-fork' in sys.orig_argv:\n    time.sleep(8)\n"
    (tmp_path / "sitecustomize.py").write_text(slow, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    server = launch(new_database("postgresql"), "--workers", "2")
    load.create(server.url, "patient")


def test_workers_do_not_outlive_their_parent(new_database, launch, load):
    """Killed itself, it cannot stop them. They finish what they have accepted and leave, and the address is free."""
    database_url = new_database("postgresql")
    server = launch(database_url, "--workers", "2")
    load.start([server.url], load.create(server.url, "orphans"), CALLERS)
    load.wait_for(50)
    server.kill()
    assert server.exit_code() == -signal.SIGKILL  # once nobody holds its stdout any more
    load.join()
    with pytest.raises(ConnectionRefusedError):
        connect(server.url)
    load.check(database_url)
    assert "Traceback" not in server.complaints()
