"""What a client may send and in which time, over a real socket: sizes, slow headers, slow bodies."""

import gc
import itertools
import json
import time
from collections.abc import Iterator

import pytest

from service.web import protocol
from service.web.protocol import KEEP_ALIVE_SECONDS, LARGEST_BODY, LARGEST_UNASKED, Protocol
from tests.service.answers import error_of, good
from tests.service.connecting import Connection, head
from tests.service.playing import eventually

SHORT = 0.4  # instead of 30 s
CONFIG = {"name": "a", "actions": ["x", "y"], "variables": [{"name": "v", "levels": ["0", "1"]}]}
DECIDE = json.dumps({"campaign": "a", "context": {"v": "0"}}).encode()
LEAN, OTHER = "/decide", "/nothing"  # a route outside the framework, and one of its own answers
only_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
pytestmark = [only_sqlite, pytest.mark.slow]  # nothing here is about the database; the tests wait for time-outs


@pytest.fixture
def worker(start, monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", SHORT)
    worker = start()
    good(worker.client.post("/campaigns", json=CONFIG), 201)
    return worker


@pytest.fixture
def connect(worker) -> Iterator:
    open_ones = []

    def connect() -> Connection:
        open_ones.append(Connection(worker.url))
        return open_ones[-1]

    yield connect
    for connection in open_ones:
        connection.close()


@pytest.fixture
def patient(worker, monkeypatch) -> None:
    """For tests of sizes: no request times out, even on a slow machine."""
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 30.0)


def rounds(worker) -> int:
    return good(worker.client.get("/campaigns/a"))["round"]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_declared_size_is_refused_before_anything_is_read(connect):
    for method, path in itertools.product(("POST", "PATCH", "DELETE"), (LEAN, OTHER)):
        connection = connect()
        connection.send(head(path, f"Content-Length: {LARGEST_BODY + 1}", "Expect: 100-continue", method=method))
        response = connection.answer()  # not 100 Continue: the body is not wanted
        assert str(LARGEST_BODY) in error_of(response, 413)["message"]


def test_an_undeclared_size_is_refused_when_it_is_reached(worker, connect, patient):
    for path in (LEAN, OTHER):
        connection = connect()
        connection.send(head(path, "Transfer-Encoding: chunked"))
        chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
        connection.send(*[chunk] * 4, b"1\r\n \r\n")
        assert error_of(connection.answer(), 413)["code"] == "too_large"
    good(worker.client.post(LEAN, content=DECIDE + b" " * (LARGEST_BODY - len(DECIDE))))
    assert error_of(worker.client.post(OTHER, content=b" " * LARGEST_BODY), 404)["code"] == "not_found"
    assert error_of(worker.client.put(LEAN, content=b" " * LARGEST_BODY), 405)["code"] == "method_not_allowed"


def test_headers_have_an_end(connect):
    connection = connect()
    connection.offer(head(LEAN)[:-2] + b"x: ", *[b"y" * 2**20] * (LARGEST_UNASKED // 2**20 + 1))
    assert connection.rest() == b""


# --- times ------------------------------------------------------------------------------------------------------------


def test_headers_that_never_end_close_the_connection(connect):
    """Whether nothing arrives, or a byte now and then."""
    letters = [bytes([letter]) for letter in head(LEAN)[:20]]
    for parts in ([], [b"\r\n"] * 20, [b"POST /decide HTTP/1.1\r\nhost: test\r\n"], letters):
        began = time.monotonic()
        connection = connect()
        connection.offer(*parts, pause=SHORT / 10)
        assert connection.rest() == b""
        assert time.monotonic() - began > SHORT / 2


def test_a_body_that_never_ends_gets_408(worker, connect):
    """Even if the part that arrived would be valid."""
    letters = [bytes([letter]) for letter in DECIDE[:20]]
    for path, parts in itertools.product((LEAN, OTHER), ([], [DECIDE], letters)):
        connection = connect()
        connection.send(head(path, f"Content-Length: {len(DECIDE) + 1}"))
        connection.offer(*parts, pause=SHORT / 10)
        response = connection.answer()
        error = error_of(response, 408)
        assert error["code"] == "request_timeout"
        assert f"{SHORT:g} s" in error["message"]
        assert response.headers["connection"] == "close"
        assert connection.rest() == b""
    connection = connect()
    connection.send(head(LEAN, f"Content-Length: {len(DECIDE) + 1}"), DECIDE)
    connection.close()  # a body that is cut off is not decided either
    time.sleep(SHORT / 2)
    assert rounds(worker) == 0


def test_a_refused_body_does_not_keep_the_connection(connect):
    connection = connect()
    connection.send(head(LEAN, f"Content-Length: {LARGEST_BODY + 1}"))
    error_of(connection.answer(), 413)
    connection.offer(*[b" "] * 30, pause=SHORT / 10)
    assert connection.rest() == b""


def test_requests_in_pieces_are_answered_and_idle_connections_kept(worker, connect, monkeypatch):
    long = 5 * SHORT
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", long)
    connection = connect()
    whole = head(LEAN, f"Content-Length: {len(DECIDE)}") + DECIDE
    connection.send(whole[:30], whole[30:50], whole[50:80], whole[80:], pause=SHORT / 8)
    assert good(connection.answer())["round"] == 1
    time.sleep(1.5 * long)  # the time-out of a request does not concern a connection without one
    connection.send(whole)
    assert good(connection.answer())["round"] == 2
    connection.send(whole[:-1], pause=SHORT / 4)
    connection.send(whole[-1:] + whole)  # and the next request at once
    assert good(connection.answer())["round"] == 3
    assert good(connection.answer())["round"] == 4
    assert rounds(worker) == 4


def test_a_client_that_closes_the_connection_gets_a_whole_answer(connect):
    length = f"Content-Length: {len(DECIDE)}"
    closing, old = head(LEAN, length, "Connection: close"), head(LEAN, length).replace(b"HTTP/1.1", b"HTTP/1.0")
    for round, request in enumerate((closing, old), start=1):
        connection = connect()
        connection.send(request + DECIDE)
        answer = connection.answer()
        assert good(answer)["round"] == round
        assert answer.headers["connection"] == "close"
        assert connection.rest() == b""  # and it is closed


def test_a_connection_that_is_reset_is_forgotten_at_once(worker, connect):
    """Not when its keep-alive time is over: downloads that are aborted would fill the memory of a minute."""
    others, begun = _protocols(), time.monotonic()
    for _ in range(5):
        connection = connect()
        connection.send(head("/healthz", method="GET"))
        good(connection.answer())
        connection.reset()
    eventually(lambda: _protocols() <= others, "forgotten")
    assert time.monotonic() - begun < KEEP_ALIVE_SECONDS / 2


def _protocols() -> int:
    gc.collect()
    return sum(isinstance(each, Protocol) for each in gc.get_objects())
