"""What a client may send and in which time, over a real socket: sizes, slow bodies, bodies in pieces."""

import itertools
import json
import time
from collections.abc import Iterator

import pytest

from service.web import bodies
from service.web.bodies import LARGEST_BODY, SMALL_BODY
from tests.service.answers import error_of, good
from tests.service.connecting import Connection, head

SHORT = 0.4  # instead of 30 s
CONFIG = {"name": "a", "actions": ["x", "y"], "variables": [{"name": "v", "levels": ["0", "1"]}]}
DECIDE = json.dumps({"campaign": "a", "context": {"v": "0"}}).encode()
LEAN, OTHER = "/decide", "/nothing"  # a route outside the framework, and one of its own answers
LARGE = "/decide/batch"
only_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
pytestmark = [only_sqlite, pytest.mark.slow]  # nothing here is about the database; the tests wait for time-outs


@pytest.fixture
def worker(start, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", SHORT)
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
    monkeypatch.setattr(bodies, "BODY_SECONDS", 30.0)


def rounds(worker) -> int:
    return good(worker.client.get("/campaigns/a"))["round"]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_declared_size_is_refused_before_anything_is_read(connect):
    for method, path in (("POST", LARGE), ("POST", LEAN), ("PATCH", LEAN), ("POST", OTHER), ("DELETE", OTHER)):
        largest = LARGEST_BODY if (method, path) == ("POST", LARGE) else SMALL_BODY
        connection = connect()
        connection.send(head(path, f"Content-Length: {largest + 1}", "Expect: 100-continue", method=method))
        response = connection.answer()  # not 100 Continue: the body is not wanted
        assert str(largest) in error_of(response, 413)["message"]


def test_an_undeclared_size_is_refused_when_it_is_reached(worker, connect, patient):
    for path, largest in ((LARGE, LARGEST_BODY), (LEAN, SMALL_BODY), (OTHER, SMALL_BODY)):
        connection = connect()
        connection.send(head(path, "Transfer-Encoding: chunked"))
        chunk = b"%x\r\n%s\r\n" % (2**14, b" " * 2**14)
        connection.send(*[chunk] * (largest // 2**14), b"1\r\n \r\n")
        assert error_of(connection.answer(), 413)["code"] == "too_large"
    good(worker.client.post(LEAN, content=DECIDE + b" " * (SMALL_BODY - len(DECIDE))))
    item = json.dumps({"campaign": "a", "items": [{"decision_id": "d", "context": {"v": "0"}}]})
    good(worker.client.post(LARGE, content=item + " " * (LARGEST_BODY - len(item))))
    assert error_of(worker.client.post(OTHER, content=b" " * SMALL_BODY), 404)["code"] == "not_found"
    assert error_of(worker.client.put(LEAN, content=b" " * SMALL_BODY), 405)["code"] == "method_not_allowed"


def test_many_values_are_refused_before_they_are_parsed(worker):
    """Lists that are far too long, and an item with far too many variables."""
    for path, body in (
        ("/decide/batch", b'{"campaign":"a","items":[%b1]}' % (b"1," * 1_500_000)),
        ("/decide/batch", b'{"campaign":"a","items":[{"context":{%b"x":1}}]}' % (b'"x":1,' * 200_000)),
        ("/decide/batch", b'{"campaign":"a","items":[{"context":{%b"x":1}}]}' % (b'"x":1,' * 20_000)),
        ("/campaigns/check", b'{"signals":[%b1]}' % (b"1," * 1_500_000)),
    ):
        assert "values" in error_of(worker.client.post(path, content=body), 413)["message"]


def test_a_large_batch_is_answered_as_a_small_one(worker):
    """Above 64 KiB the items are validated one by one; spaces make the same batch large."""
    item = {"decision_id": "d", "context": {"v": "0"}}
    for body, status in (
        ({"campaign": "a", "items": [item]}, 200),
        ({"campaign": "none", "items": [item]}, 404),
        ({"items": [item]}, 422),
        ({"campaign": 5, "items": [item, {"context": {}}, {**item, "no": 1}, 7]}, 422),
        ({"campaign": "a", "items": [item], "more": 1}, 422),
        ({"campaign": "a", "items": []}, 422),
        ({"campaign": "a", "items": [{}] * 300}, 422),
        ({"campaign": "a", "items": 5}, 422),
        ({"campaign": "a"}, 422),
        ([1], 422),
        ({"campaign": "a", "items": [{"context": {}}] * 1_001}, 413),
    ):
        text = json.dumps(body)
        small, large = (worker.client.post("/decide/batch", content=text + " " * n) for n in (0, SMALL_BODY))
        assert (small.status_code, small.json()) == (large.status_code, large.json())
        assert small.status_code == status, small.text
    for text in (
        b'{"campaign":"a","items":[{"decision_id":"\xff"}]}',
        b'{"campaign":"a","items":[{"decision_id":"\\ud800"}]}',
    ):
        small, large = (worker.client.post("/decide/batch", content=text + b" " * n) for n in (0, SMALL_BODY))
        assert error_of(small, 422) == error_of(large, 422)
        assert "Invalid JSON" in small.text


# --- times ------------------------------------------------------------------------------------------------------------


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


def test_a_refused_body_is_read_and_forgotten(worker, connect):
    """Many clients send all of it before they read; the connection serves on."""
    connection = connect()
    connection.send(head(LEAN, f"Content-Length: {LARGEST_BODY + 1}"))
    error_of(connection.answer(), 413)
    connection.send(*[b" " * 2**20] * 4, b" ", head("/healthz", method="GET"))
    good(connection.answer())


def test_requests_in_pieces_are_answered_and_idle_connections_kept(worker, connect, monkeypatch):
    long = 5 * SHORT
    monkeypatch.setattr(bodies, "BODY_SECONDS", long)
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
