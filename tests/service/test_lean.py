"""Lean routes over a real socket: whatever way a request arrives, its answer, headers, counts and logs are the same."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

import service.engine.encoding
from service.base.errors import NotFoundError
from service.storage.store import Store
from tests.service.answers import error_of, good
from tests.service.connecting import Connection, head
from tests.service.playing import eventually
from tests.service.scraping import Scrape
from tests.service.test_auth import bearer, make
from tests.service.test_logs import lines  # noqa: F401  # a fixture

CONFIG = {"name": "a", "actions": ["x", "y"], "variables": [{"name": "v", "levels": ["0", "1"]}]}
ITEM = {"decision_id": "d", "context": {"v": "0"}}
REWARD = {"decision_id": "d", "reward": 1}
BODIES = {
    "/decide": ITEM,
    "/reward": REWARD,
    "/decide/batch": {"items": [ITEM]},
    "/reward/batch": {"items": [REWARD]},
}
# Nothing here is about the database.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def post(path: str, body: object, *headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, f"Content-Length: {len(text)}", *headers) + text


def decide(number: int) -> bytes:
    return post("/decide", {"campaign": "a", "decision_id": str(number), "context": {"v": "0"}})


@pytest.fixture
def worker(start):
    worker = start()
    good(worker.client.post("/campaigns", json=CONFIG), 201)
    return worker


@pytest.fixture
def connection(worker) -> Iterator[Connection]:
    with closing(Connection(worker.url)) as connection:
        yield connection


def rounds(worker) -> int:
    return good(worker.client.get("/campaigns/a"))["round"]


def count_requests(worker) -> dict:
    return Scrape(worker.client).by("requests_total", "route", "method", "status")


# --- the campaign in the path -----------------------------------------------------------------------------------------


def test_both_paths_give_the_same_answer(worker):
    """The first request decides, the other repeats it; each is counted by its own route."""
    for path, body in BODIES.items():
        by_path = good(worker.client.post(f"/campaigns/a{path}", json=body))
        assert by_path == good(worker.client.post(path, json={"campaign": "a", **body}))
        assert by_path == good(worker.client.post(f"/campaigns/a{path}", json={"campaign": "a", **body}))
        counts = count_requests(worker)
        assert counts[f"/campaigns/{{name}}{path}", "POST", "200"] == 2
        assert counts[path, "POST", "200"] == 1
    assert rounds(worker) == 1


def test_the_body_cannot_name_another_campaign(worker):
    good(worker.client.post("/campaigns", json={**CONFIG, "name": "b"}), 201)
    for path, body in BODIES.items():
        error = error_of(worker.client.post(f"/campaigns/a{path}", json={"campaign": "b", **body}), 422)
        assert [(problem["field"], problem["allowed"]) for problem in error["fields"]] == [("campaign", "a")]


def test_names_of_no_campaign(worker):
    """Names are percent-decoded. One that a campaign cannot have is unknown, and a slash makes it another path."""
    for path, body in BODIES.items():
        good(worker.client.post(f"/campaigns/%61{path}", json=body))
        for name in ("none", "A", "a%20b", "%C3%A4", "%25", "%00", "%ff", "..%2e", "x" * 100):
            assert (
                "There is no campaign"
                in error_of(worker.client.post(f"/campaigns/{name}{path}", json=body), 404)["message"]
            )
        for name in ("a%2Fb", "a/b", "", "/"):
            assert (
                "Nothing found" in error_of(worker.client.post(f"/campaigns/{name}{path}", json=body), 404)["message"]
            )
        error_of(worker.client.get(f"/campaigns/a{path}"), 405)


def test_a_key_must_cover_the_campaign_of_the_path(start, database_url):
    with closing(Store(database_url)) as store:
        admin, client, other = make(store), make(store, "client", "a"), make(store, "client", "b")
    worker = start()
    good(worker.client.post("/campaigns", json=CONFIG, headers=bearer(admin)), 201)
    for path, body in BODIES.items():
        good(worker.client.post(f"/campaigns/a{path}", json=body, headers=bearer(client)))
        for name, sent in (("a", body), ("a", {"campaign": "b", **body}), ("none", body)):
            answer = worker.client.post(f"/campaigns/{name}{path}", json=sent, headers=bearer(other))
            assert "does not cover" in error_of(answer, 403)["message"]


# --- however it arrives -----------------------------------------------------------------------------------------------


def test_a_request_may_arrive_in_pieces(worker, connection):
    whole = post("/decide", {"campaign": "a", **ITEM}, "X-Request-ID: mine")
    text = json.dumps({"campaign": "a", **ITEM}).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:9], text[9:]))
    chunked = head("/decide", "X-Request-ID: mine", "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"
    answers = []
    for parts in ([whole], [whole[:20], whole[20:-5], whole[-5:]], [chunked], [chunked[:-8], chunked[-8:]]):
        connection.send(*parts, pause=0.05)
        answers.append(connection.answer())
    for answer in answers:
        answer.headers.pop("date")
        assert good(answer) == good(answers[0])
        assert dict(answer.headers) == dict(answers[0].headers)
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["content-security-policy"]


def test_expect_100_continue(connection):
    request = post("/decide", {"campaign": "a", **ITEM}, "Expect: 100-continue")
    cut = request.index(b"\r\n\r\n") + 4
    connection.send(request[:cut])
    assert connection.answer().status_code == 100
    connection.send(request[cut:])
    good(connection.answer())


def test_pipelined_requests_are_answered_in_their_order(worker, connection):
    connection.send(decide(1) + post("/decide", b"{") + decide(2) + decide(3)[:40])
    assert good(connection.answer())["decision_id"] == "1"
    error_of(connection.answer(), 422)
    assert good(connection.answer())["decision_id"] == "2"
    connection.send(decide(3)[40:])
    assert good(connection.answer())["decision_id"] == "3"
    assert rounds(worker) == 3


def test_what_is_not_http_is_refused_by_the_server(worker, connection):
    connection.send(decide(1) + b"\x00nonsense\r\n\r\n")
    assert connection.rest().startswith(b"HTTP/1.1 ")
    with closing(Connection(worker.url)) as other:
        other.send(b"\x00nonsense\r\n\r\n")
        answer = other.answer()
        assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")
        assert other.rest() == b""


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_unexpected_exception_is_answered_in_the_one_shape(worker, lines, monkeypatch):  # noqa: F811
    """It is logged once, with the caller's id and the traceback."""

    def fail(*_):
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(service.engine.encoding, "hash_request", fail)
        lines.clear()
        answer = worker.client.post("/decide", json={"campaign": "a", **ITEM}, headers={"x-request-id": "mine"})
    error_of(answer, 500)
    assert answer.headers["x-request-id"] == "mine"
    (line,) = lines
    assert (line["level"], line["message"], line["route"]) == ("error", "request failed", "/decide")
    assert (line["status"], line["request_id"]) == (500, "mine")
    assert line["exception"].endswith("\nZeroDivisionError: a bug")
    good(worker.client.post("/decide", json={"campaign": "a", **ITEM}))


def test_an_error_that_cannot_be_encoded_is_a_failure(worker, monkeypatch):
    monkeypatch.setattr(
        logging.getLogger("undercurrent.request"), "disabled", True
    )  # pytest-xdist cannot send it either

    def refuse(*_):
        raise NotFoundError("half a surrogate pair: \ud800")

    monkeypatch.setattr(service.engine.encoding, "hash_request", refuse)
    error_of(worker.client.post("/decide", json={"campaign": "a", **ITEM}), 500)


def test_the_access_log_has_every_id_where_it_belongs(start, lines):  # noqa: F811
    worker = start(access_log=True)
    good(worker.client.post("/campaigns", json=CONFIG), 201)
    lines.clear()
    with closing(Connection(worker.url)) as connection:
        for body, name in (({"campaign": "a", **ITEM}, "first"), (b"{", "second"), ({"campaign": "a", **ITEM}, None)):
            connection.send(post("/decide", body, *([f"X-Request-ID: {name}"] if name else [])))
            made = connection.answer().headers["x-request-id"]
    eventually(lambda: len(lines) == 3, "all are logged")
    assert [line["request_id"] for line in lines] == ["first", "second", made]
    assert [line["status"] for line in lines] == [200, 422, 200]
    assert all(line["route"] == "/decide" and line["milliseconds"] > 0 for line in lines)


def test_a_caller_who_disconnects_before_the_answer(worker, caplog):
    """The request is committed and counted all the same, and nothing is logged."""
    logging.getLogger("uvicorn").addHandler(caplog.handler)
    for number, leave in enumerate((Connection.close, Connection.reset), start=1):
        connection = Connection(worker.url)
        connection.send(decide(number))
        leave(connection)
        eventually(lambda number=number: rounds(worker) == number, "committed")
        eventually(lambda number=number: count_requests(worker).get(("/decide", "POST", "200")) == number, "counted")
    logging.getLogger("uvicorn").removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_stopping_waits_for_answers(worker, connection):
    items = [{"decision_id": str(number), "context": {"v": "0"}} for number in range(1_000)]
    connection.send(post("/decide/batch", {"campaign": "a", "items": items}))
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    assert len(good(connection.answer())["decisions"]) == 1_000
    stopping.join()
