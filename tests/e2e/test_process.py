"""The process as those who run it see it: it stops when told to, and finishes what it has accepted."""

import json
import os
import socket

import httpx
import pytest

from tests.e2e.load import PATIENCE_SECONDS, Exchange

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
    head = f"POST {asked.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
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


def test_workers_that_start_slowly_are_waited_for(new_database, launch, load, tmp_path, monkeypatch):
    """On a busy machine a worker takes its time to load; its supervisor must not take it for dead and start over."""
    slow = "import sys, time\nif '--multiprocessing-fork' in sys.orig_argv:\n    time.sleep(8)\n"
    (tmp_path / "sitecustomize.py").write_text(slow, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    server = launch(new_database("postgresql"), "--workers", "2")
    load.create(server.url, "patient")
