"""Complete requests to lean routes are handled without a task: with the same answers, and anything unusual as usual.

Over a real socket. A request that arrives in two pieces goes the ordinary way, so that the two can be compared.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

import service.api.decisions
import service.web.requests
from service.base.errors import NotFoundError
from service.base.settings import Settings
from service.cli.application import create_app
from service.engine.campaigns import Processed
from service.engine.lanes import Lanes
from service.storage.store import Store
from service.web import protocol
from service.web.protocol import Protocol
from service.web.requests import Requests
from tests.service.answers import error_of, good
from tests.service.connecting import Connection, head
from tests.service.playing import eventually
from tests.service.scraping import Scrape
from tests.service.test_auth import make
from tests.service.test_logs import lines  # noqa: F401  # a fixture

CONFIG = {"actions": ["x", "y"], "variables": [{"name": "v", "levels": ["0", "1"]}]}
ITEM = {"decision_id": "d", "context": {"v": "0"}}
DECIDE = {"campaign": "a", **ITEM}
REWARD = {"decision_id": "d", "reward": 1}
GOOD = {
    "/decide": DECIDE,
    "/reward": {"campaign": "a", **REWARD},
    "/decide/batch": {"campaign": "a", "items": [ITEM]},
    "/reward/batch": {"campaign": "a", "items": [REWARD]},
}
SHORT = 0.4  # instead of 30 s
READ: list[int] = []  # the length of each piece that the server has read
# Nothing here is about the database.
pytestmark = [pytest.mark.parametrize("database_url", ["sqlite"], indirect=True), pytest.mark.slow]


def post(path: str, body: object, *headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, f"Content-Length: {len(text)}", *headers) + text


@pytest.fixture
def ordinary(monkeypatch) -> list[str]:
    """The paths of the requests that went the ordinary way."""
    watch, seen = Requests.watch, []

    async def watching(requests, answer, scope, receive, send):
        seen.append(scope["path"])
        await watch(requests, answer, scope, receive, send)

    monkeypatch.setattr(Requests, "watch", watching)
    return seen


@pytest.fixture(autouse=True)
def reading(monkeypatch) -> None:
    """Tell what the server has read."""
    received = Protocol.data_received
    READ.clear()

    def receiving(protocol, data):
        READ.append(len(data))
        received(protocol, data)

    monkeypatch.setattr(Protocol, "data_received", receiving)


def send_apart(connection: Connection, *parts: bytes) -> None:
    """Each is read before the next one is sent."""
    for part in parts:
        before = len(READ)
        connection.send(part)
        eventually(lambda before=before: len(READ) > before, "read")


@pytest.fixture
def worker(start, ordinary):
    worker = start()
    good(worker.client.post("/campaigns", json=CONFIG | {"name": "a"}), 201)
    ordinary.clear()
    return worker


@pytest.fixture
def connection(worker) -> Iterator[Connection]:
    with closing(Connection(worker.url)) as connection:
        yield connection


@pytest.fixture
def gate(monkeypatch) -> Iterator[threading.Event]:
    """Until it is set, no transaction begins."""
    gather, gate = Lanes._gather, threading.Event()
    gate.set()

    def held(lanes, key, lane, seen):
        if gate.is_set():
            gather(lanes, key, lane, seen)
        else:
            lanes._loop.call_later(0.01, held, lanes, key, lane, seen)

    monkeypatch.setattr(Lanes, "_gather", held)
    yield gate
    gate.set()


def rounds(worker) -> int:
    return good(worker.client.get("/campaigns/a"))["round"]


def waiting(worker) -> int:
    return sum(len(lane.waiting) for lane in worker.service._lanes._lanes.values())


# --- the same answer either way ---------------------------------------------------------------------------------------


def either_way(url: str, request: bytes, ordinary: list[str]) -> list[httpx.Response]:
    """The answers to a request that arrives in one piece, and to the same in two pieces."""
    with ExitStack() as stack:
        whole, pieces = (stack.enter_context(closing(Connection(url))) for _ in range(2))
        ordinary.clear()
        whole.send(request)
        answers = [whole.answer()]
        assert not ordinary
        send_apart(pieces, request[:-1], request[-1:])
        answers.append(pieces.answer())
        assert len(ordinary) == 1
        for connection in (whole, pieces):  # and both are kept
            connection.send(head("/healthz", method="GET"))
            good(connection.answer())
    for answer in answers:
        answer.headers.pop("date")
        assert answer.headers["content-security-policy"]
    return answers


def counted(worker) -> dict:
    return Scrape(worker.client).by("requests_total", "route", "method", "status")


def same_answers(worker, ordinary: list[str], path: str, status: int, request: bytes) -> httpx.Response:
    """Check status, body, headers except for ids that are made, and what is counted; return the answer."""
    before, key = counted(worker), (path, "POST", str(status))
    whole, pieces = either_way(worker.url, request, ordinary)
    assert whole.status_code == pieces.status_code == status
    assert whole.json() == pieces.json()
    if b"x-request-id" not in request.lower():
        assert whole.headers.pop("x-request-id") != pieces.headers.pop("x-request-id")
    assert dict(whole.headers) == dict(pieces.headers)
    assert counted(worker)[key] == before.get(key, 0) + 2
    return whole


def test_answers_are_the_same(worker, ordinary):
    good(worker.client.post("/decide", json=DECIDE))
    for path, body, status in (
        *((path, body, 200) for path, body in GOOD.items()),
        ("/decide", b"{", 422),
        ("/decide", {"campaign": "a", "context": {"v": "2"}}, 422),
        ("/decide", DECIDE | {"context": {"v": "1"}}, 409),
        ("/decide", DECIDE | {"campaign": "none"}, 404),
        ("/reward", {"campaign": "a", "decision_id": "none", "reward": 1}, 404),
        ("/decide/batch", {"campaign": "a", "items": [{"context": {}}] * 1_001}, 413),
    ):
        same_answers(worker, ordinary, path, status, post(path, body))
    same_answers(worker, ordinary, "/decide", 403, post("/decide", DECIDE, "Origin: http://elsewhere.example"))


def test_keys_are_needed(start, ordinary, database_url):
    with closing(Store(database_url)) as store:
        keys = {role: make(store, role) for role in ("admin", "client", "viewer")}
        keys |= {"other": make(store, "client", "b"), "slow": make(store, "client", rate=0.01), "wrong": "uc_x_y"}
    worker = start()
    worker.client.headers["x-api-key"] = keys["admin"]
    good(worker.client.post("/campaigns", json=CONFIG | {"name": "a"}), 201)
    good(worker.client.post("/decide", json=DECIDE, headers={"x-api-key": keys["slow"]}))
    for kind, status in (("client", 200), ("wrong", 401), ("viewer", 403), ("other", 403), ("slow", 429), (None, 401)):
        sent = [f"X-API-Key: {keys[kind]}"] if kind else []
        same_answers(worker, ordinary, "/decide", status, post("/decide", DECIDE, *sent, "X-Request-ID: mine"))


def test_an_unexpected_exception_is_answered_in_the_one_shape(worker, ordinary, lines, monkeypatch):  # noqa: F811
    """Before the lane or in it; it is logged once, with the caller's id and the traceback."""

    def broken(*_):
        raise ZeroDivisionError("a bug")

    for patched, name in ((service.api.decisions, "hash_request"), (worker.service._lanes, "_process")):
        with monkeypatch.context() as patch:
            patch.setattr(patched, name, broken)
            lines.clear()
            whole, pieces = either_way(worker.url, post("/decide", DECIDE, "X-Request-ID: mine"), ordinary)
        assert error_of(whole, 500) == error_of(pieces, 500)
        assert dict(whole.headers) == dict(pieces.headers)
        for line in lines:
            assert (line["level"], line["message"], line["route"]) == ("error", "request failed", "/decide")
            assert (line["status"], line["request_id"]) == (500, "mine")
            assert line["exception"].endswith("\nZeroDivisionError: a bug")
        assert len(lines) == 2
    good(worker.client.post("/decide", json=DECIDE))


def test_an_error_that_cannot_be_encoded_is_a_failure(worker, connection, lines, monkeypatch):  # noqa: F811
    """Nobody waits for an answer for ever."""
    unencodable = NotFoundError("half a surrogate pair: \ud800")
    monkeypatch.setattr(
        worker.service.campaigns, "process", lambda operations: Processed([unencodable] * len(operations), [])
    )
    connection.send(post("/decide", DECIDE))
    error_of(connection.answer(), 500)
    eventually(lambda: bool(lines), "it is logged")
    (line,) = lines
    assert (line["level"], line["message"]) == ("error", "request failed")


# --- logs -------------------------------------------------------------------------------------------------------------


def test_the_access_log_has_every_id_where_it_belongs(start, ordinary, lines):  # noqa: F811
    worker = start(access_log=True)
    good(worker.client.post("/campaigns", json=CONFIG | {"name": "a"}), 201)
    good(worker.client.get("/healthz"))
    lines.clear()
    ordinary.clear()
    with closing(Connection(worker.url)) as connection:
        for body, name in ((DECIDE, "first"), (b"{", "second"), (DECIDE, None)):
            connection.send(post("/decide", body, *([f"X-Request-ID: {name}"] if name else [])))
            made = connection.answer().headers["x-request-id"]
            assert made == name or name is None
        assert not ordinary
    eventually(lambda: len(lines) == 3, "all are logged")
    assert [line["request_id"] for line in lines] == ["first", "second", made]
    assert [line["status"] for line in lines] == [200, 422, 200]
    assert all(line["route"] == "/decide" and line["milliseconds"] > 0 for line in lines)


# --- what goes the ordinary way ---------------------------------------------------------------------------------------


def test_other_requests_go_the_ordinary_way(connection, ordinary):
    requests = [
        (head("/decide", method="GET"), 405),
        (post("/campaigns", CONFIG | {"name": "b"}), 201),
        (post("//decide", DECIDE), 404),
        (post("/decide", json.dumps(DECIDE).encode() + b" " * 70_000), 200),
    ]
    for number, (request, status) in enumerate(requests, start=1):
        connection.send(request)
        assert connection.answer().status_code == status
        assert len(ordinary) == number


def test_below_a_proxys_path_requests_go_the_ordinary_way(database_url):
    app = create_app(Settings(database_url=database_url))
    scope = {"type": "http", "method": "POST", "path": "/bandits/decide", "root_path": "/bandits", "headers": []}
    assert not app.handle_directly(scope, b"{}", lambda *_: None)


def test_expect_100_continue(worker, connection, ordinary):
    """Also if the body is sent without waiting."""
    request = post("/decide", DECIDE, "Expect: 100-continue")
    cut = request.index(b"\r\n\r\n") + 4
    for first, rest in ((request, b""), (request[:cut], request[cut:])):
        connection.send(first)
        assert connection.answer().status_code == 100
        connection.send(rest)
        good(connection.answer())
    assert ordinary == ["/decide"] * 2


def test_an_upgrade_is_ignored(worker, connection):
    """What follows its headers would be the other protocol's: there is no body."""
    connection.send(post("/decide", DECIDE, "Connection: Upgrade", "Upgrade: h2c"))
    error_of(connection.answer(), 422)
    assert rounds(worker) == 0


def test_a_chunked_body_may_come_whole(connection, ordinary):
    text = json.dumps(DECIDE).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:9], text[9:]))
    connection.send(head("/decide", "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n")
    assert good(connection.answer())["round"] == 1
    assert not ordinary


# --- several on one connection ----------------------------------------------------------------------------------------


def decide(number: int, **more: object) -> bytes:
    return post("/decide", {"campaign": "a", "decision_id": str(number), "context": {"v": "0"}, **more})


def test_pipelined_requests_are_answered_in_their_order(worker, connection, gate):
    """Those that come together, and those that come while another is under way; refusals wait for their turn."""
    gate.clear()
    send_apart(connection, decide(1), post("/decide", b"{") + decide(2))
    connection.send(decide(3)[:40])  # not read before the others are answered
    assert waiting(worker) == 1
    gate.set()
    connection.send(decide(3)[40:])
    assert good(connection.answer())["decision_id"] == "1"
    error_of(connection.answer(), 422)
    assert good(connection.answer())["decision_id"] == "2"
    assert good(connection.answer())["decision_id"] == "3"
    assert rounds(worker) == 3


def test_very_many_in_one_piece(worker, connection):
    """However many are refused at once."""
    threading.Thread(target=connection.offer, args=(post("/decide", b"{") * 3_000 + decide(1),)).start()
    for _ in range(3_000):
        error_of(connection.answer(), 422)
    assert good(connection.answer())["round"] == 1


def test_after_a_refusal_the_connection_stays(connection, ordinary, monkeypatch):
    """The time for a request's headers does not run while there is none."""
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", SHORT)
    for _ in range(2):
        connection.send(post("/decide", b"{"))
        error_of(connection.answer(), 422)
        time.sleep(2 * SHORT)
    connection.send(decide(1))
    good(connection.answer())
    assert not ordinary


def test_requests_before_invalid_http_are_answered(worker, connection):
    connection.send(decide(1) + b"\x00nonsense\r\n\r\n")
    connection.rest()
    eventually(lambda: rounds(worker) == 1, "decided")


# --- callers who go, or do not read -----------------------------------------------------------------------------------


def test_a_caller_who_disconnects_before_the_answer(worker, gate, caplog):
    """The request is committed and counted all the same, and nothing is logged."""
    logging.getLogger("uvicorn").addHandler(caplog.handler)
    for number, leave in enumerate((Connection.close, Connection.reset), start=1):
        connection = Connection(worker.url)
        gate.clear()
        connection.send(decide(number))
        eventually(lambda: waiting(worker) == 1, "accepted")
        leave(connection)
        time.sleep(0.1)
        gate.set()
        eventually(lambda number=number: rounds(worker) == number, "committed")
        eventually(lambda number=number: counted(worker).get(("/decide", "POST", "200")) == number, "counted")
    logging.getLogger("uvicorn").removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def listening(worker) -> bool:
    try:
        Connection(worker.url).close()
    except ConnectionRefusedError:
        return False
    return True


def test_stopping_waits_for_answers(worker, connection, gate):
    gate.clear()
    connection.send(decide(1))
    eventually(lambda: waiting(worker) == 1, "accepted")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not listening(worker), "stopping")
    gate.set()
    answer = connection.answer()
    assert good(answer)["round"] == 1
    assert answer.headers["connection"] == "close"
    assert connection.rest() == b""
    stopping.join()


def test_a_caller_who_does_not_read_is_waited_for(worker, ordinary, monkeypatch):
    """Answers wait until there is room for them, and then come in their order."""
    pause, write, direct = Protocol.pause_writing, Protocol._write, Requests.handle_directly
    paused, written, taken = threading.Event(), list[int](), list[str]()

    def pausing(protocol):
        pause(protocol)
        paused.set()

    def writing(protocol, cycle, status, *answer):
        written.append(status)
        write(protocol, cycle, status, *answer)

    def taking(requests, answer, scope, *request):
        taken.append(scope["path"])
        direct(requests, answer, scope, *request)

    monkeypatch.setattr(Protocol, "pause_writing", pausing)
    monkeypatch.setattr(Protocol, "_write", writing)
    monkeypatch.setattr(Requests, "handle_directly", taking)
    items = [{"decision_id": str(number), "context": {"v": "0"}} for number in range(500)]
    request, sent = post("/decide/batch", {"campaign": "a", "items": items}), 0
    address = httpx.URL(worker.url)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    narrow.connect((address.host, address.port))
    with closing(Connection(worker.url, narrow)) as connection:
        while not paused.is_set():
            sent += 1
            connection.send(request)
            eventually(lambda sent=sent: len(written) == sent, "answered")
            assert sent < 200
        connection.send(request)  # its answer finds no room
        eventually(lambda: len(taken) + len(ordinary) == sent + 1, "begun")
        before = len(ordinary)
        send_apart(connection, request)  # and this one is behind it
        answers = [good(connection.answer()) for _ in range(sent + 2)]
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]["decisions"]) == 500
    assert len(ordinary) == before + 1  # the last
    assert rounds(worker) == 500
