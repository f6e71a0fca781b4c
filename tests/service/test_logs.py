"""Request ids and log lines: what is logged, with the id that the caller got, and without secrets."""

import json
import logging
import re
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

import service.web.requests
from service.base.logs import REQUEST_ID, JsonFormatter, TextFormatter, build_log_config
from service.base.settings import Settings
from service.storage.transaction import Transaction
from tests.databases import KINDS
from tests.service.answers import error_of, good

CAMPAIGN = {"name": "spring", "actions": ["none", "email"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
DECIDE = {"campaign": "spring", "decision_id": "order-1001", "subject": "customer-77", "context": {"risk": "low"}}
GENERATED = r"[0-9a-f]{12}-[0-9a-f]+"


@pytest.fixture
def database_url(request, new_database):
    """SQLite, unless a test asks for both databases."""
    return new_database(getattr(request, "param", "sqlite"))


@pytest.fixture
def lines():
    """The JSON lines logged at level info or above."""
    found = []

    class Collector(logging.Handler):
        def emit(self, record):
            text = self.format(record)
            assert "\n" not in text
            found.append(json.loads(text))

    handler, logger = Collector(), logging.getLogger("undercurrent")
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


def read_lines(client, lines):
    """The lines so far. A request is logged after its answer has left, so wait for the answer of another one."""
    good(client.get("/healthz"))
    return [line for line in lines if line.get("route") != "/healthz"]


# --- ids --------------------------------------------------------------------------------------------------------------


def test_every_answer_has_an_id(client):
    """Successes, errors, the framework's own errors and files; all ids differ."""
    answers = [
        client.post("/campaigns", json=CAMPAIGN),
        client.post("/decide", json=DECIDE),
        client.post("/decide", json=DECIDE | {"campaign": "autumn"}),
        client.post("/decide", content=b"{"),
        client.get("/campaigns/spring"),
        client.get("/campaigns/spring/decisions/none"),
        client.get("/campaigns?limit=0"),
        client.put("/decide"),
        client.get("/nothing"),
        client.get("/docs"),
        client.get("/docs-assets/favicon.png"),
        client.get("/metrics"),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 404, 422, 200, 404, 422, 405, 404, 200, 200, 200]
    ids = [answer.headers.get_list("x-request-id") for answer in answers]
    assert all(len(each) == 1 and re.fullmatch(GENERATED, each[0]) for each in ids)
    assert len({each[0] for each in ids}) == len(answers)


def test_the_callers_id_is_kept_if_it_is_valid(client):
    kept = ["order-1001", "!~", "x" * 128]
    for sent in (*kept, "x" * 129, "", "two words", "caf\u00e9".encode("latin-1"), "tab\there"):
        headers = {"X-Request-ID": sent}
        lean = client.post("/decide", json=DECIDE, headers=headers)
        for answer in (lean, client.get("/healthz", headers=headers)):
            found = answer.headers["x-request-id"]
            assert (found == sent) if sent in kept else re.fullmatch(GENERATED, found), sent


# --- requests ---------------------------------------------------------------------------------------------------------


def test_access_log_has_a_line_for_every_request(start, lines):
    """With the template instead of the path, which may contain an id; without body, query, key or subject."""
    client = start(access_log=True).client
    lines.clear()
    secret = {"Authorization": "Bearer swordfish", "X-Request-ID": "mine"}
    good(client.post("/campaigns", json=CAMPAIGN, headers=secret), 201)
    good(client.post("/decide", json=DECIDE, headers=secret))
    good(client.get("/campaigns/spring/decisions/order-1001?token=swordfish", headers=secret))
    client.get("/nothing/order-1001", headers=secret)
    client.put("/decide", headers=secret)
    administration, *requests = read_lines(client, lines)
    fields = ("level", "logger", "message", "campaign", "request_id")
    assert [administration[name] for name in fields] == ["info", "undercurrent.admin", "create", "spring", "mine"]
    fields = ("level", "message", "method", "route", "status")
    assert [[line[name] for name in fields] for line in requests] == [
        ["info", "request", "POST", "/campaigns", 201],
        ["info", "request", "POST", "/decide", 200],
        ["info", "request", "GET", "/campaigns/{name}/decisions/{decision_id}", 200],
        ["info", "request", "GET", "other", 404],
        ["info", "request", "PUT", "/decide", 405],
    ]
    assert all(line["request_id"] == "mine" and 0 < line["milliseconds"] < 60_000 for line in requests)
    text = json.dumps(lines)
    assert not [word for word in ("order-1001", "customer-77", "swordfish", "risk") if word in text]


def test_without_access_log_only_slow_requests_are_logged(client, lines, monkeypatch):
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    good(client.post("/decide", json=DECIDE))
    error_of(client.post("/decide", content=b"{"), 422)
    error_of(client.get("/nothing"), 404)
    assert {line["logger"] for line in read_lines(client, lines)} == {"undercurrent.admin"}
    monkeypatch.setattr(service.web.requests, "SLOW_SECONDS", 0.0)
    lines.clear()
    good(client.get("/readyz"))
    (line,) = read_lines(client, lines)
    expected = ("warning", "slow request", "/readyz", 200)
    assert (line["level"], line["message"], line["route"], line["status"]) == expected


def test_a_slow_sender_is_not_a_slow_request(start, lines):
    """The time before the request is complete does not count."""
    client = start(access_log=True).client
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    read_lines(client, lines)
    lines.clear()
    gap = 0.5

    def send_slowly():
        text = json.dumps(DECIDE).encode()
        yield text[:10]
        time.sleep(gap)
        yield text[10:]

    good(client.post("/decide", content=send_slowly()))
    (line,) = read_lines(client, lines)
    assert line["route"] == "/decide"
    assert line["milliseconds"] < 1_000 * gap


@pytest.mark.parametrize("database_url", KINDS, indirect=True)
def test_a_failure_of_the_database_is_logged_with_its_reason(start, direct, lines):
    client, database = start().client, direct()
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    database.execute("ALTER TABLE live RENAME TO hidden")
    lines.clear()
    error_of(client.post("/decide", json=DECIDE, headers={"X-Request-ID": "mine"}), 503)
    database.execute("ALTER TABLE hidden RENAME TO live")
    reason, request = read_lines(client, lines)
    assert (reason["level"], reason["message"]) == ("warning", "the database does not answer")
    assert "live" in reason["reason"]
    assert reason["request_id"] is None  # it failed all requests of the transaction
    assert (request["level"], request["message"], request["status"]) == ("warning", "request failed", 503)
    assert request["request_id"] == "mine"
    assert "exception" not in request


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [("POST", "/decide", "/decide"), ("GET", "/campaigns/spring", "/campaigns/{name}")],
    ids=["lean", "framework"],
)
def test_an_unexpected_error_is_logged_once_with_its_traceback(start, lines, caplog, monkeypatch, method, path, route):
    """With the id that the caller got; uvicorn does not log it again."""
    client = start().client
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    lines.clear()
    caplog.clear()
    monkeypatch.setattr(Transaction, "lock_campaigns", broken)
    monkeypatch.setattr("service.engine.recovery.find_campaign", broken)
    logging.getLogger("uvicorn").addHandler(caplog.handler)  # its records do not reach the root
    answer = client.request(method, path, json=DECIDE if method == "POST" else None, headers={"X-Request-ID": "mine"})
    found = read_lines(client, lines)
    logging.getLogger("uvicorn").removeHandler(caplog.handler)
    assert error_of(answer, 500)["code"] == "internal_error"
    assert answer.headers["x-request-id"] == "mine"
    (line,) = found
    assert (line["level"], line["message"], line["route"], line["status"]) == ("error", "request failed", route, 500)
    assert line["request_id"] == "mine"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("\nZeroDivisionError: a bug")
    assert [record.name for record in caplog.records] == ["undercurrent.request"]


def broken(*_, **__):
    raise ZeroDivisionError("a bug")


def test_concurrent_requests_keep_their_ids(start, lines):
    """Even when one transaction serves them all."""
    worker = start(access_log=True)
    client = worker.client
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    read_lines(client, lines)
    lines.clear()

    def decide(number):
        body = DECIDE | {"decision_id": str(number)} | ({"campaign": "autumn"} if number % 2 else {})
        with worker.open_client() as own:
            answer = own.post("/decide", json=body, headers={"X-Request-ID": f"id-{number}"})
        assert answer.headers["x-request-id"] == f"id-{number}"

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(decide, range(16)))
    found = {line["request_id"]: line["status"] for line in read_lines(client, lines)}
    assert found == {f"id-{number}": 404 if number % 2 else 200 for number in range(16)}


# --- the lines themselves ---------------------------------------------------------------------------------------------


def make_record(message="all %s", arguments=("well",), **extra):
    record = logging.getLogger("undercurrent.test").makeRecord(
        "undercurrent.test", logging.WARNING, "file.py", 1, message, arguments, None, extra=extra
    )
    record.created = datetime(2026, 11, 16, 7, 20, 4, 118_230, tzinfo=UTC).timestamp()
    return record


def test_a_json_line():
    token = REQUEST_ID.set("mine")
    line = json.loads(JsonFormatter().format(make_record(campaign="spring", level="none", odd={1}, color_message="x")))
    REQUEST_ID.reset(token)
    assert line == {
        "ts": "2026-11-16T07:20:04.118Z",
        "level": "warning",
        "logger": "undercurrent.test",
        "message": "all well",
        "request_id": "mine",
        "campaign": "spring",
        "odd": "{1}",
    }
    assert json.loads(JsonFormatter().format(make_record()))["request_id"] is None


def test_a_text_line():
    line = TextFormatter().format(make_record(campaign="spring", reason="it's\nlate", none=None))
    assert line == (
        '2026-11-16T07:20:04.118Z WARNING undercurrent.test: all well campaign=spring reason="it\'s\\nlate"'
    )


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_a_traceback_is_complete(formatter):
    failed = make_record()
    try:
        broken()
    except ZeroDivisionError:
        failed.exc_info = sys.exc_info()
    text = formatter().format(failed)
    if formatter is JsonFormatter:
        assert "\n" not in text
        text = json.loads(text)["exception"]
    assert "Traceback (most recent call last):\n" in text
    assert text.endswith("\nZeroDivisionError: a bug")


@pytest.mark.parametrize(
    ("level", "ours", "server", "others"),
    [
        ("debug", "DEBUG", "DEBUG", "WARNING"),
        ("info", "INFO", "WARNING", "WARNING"),
        ("warning", "WARNING", "WARNING", "WARNING"),
        ("error", "ERROR", "ERROR", "ERROR"),
    ],
)
def test_the_level_is_for_our_loggers(level, ours, server, others):
    """At level info an idle service logs nothing, not even uvicorn's starts and stops."""
    config = build_log_config(Settings(log_level=level))
    levels = (config["loggers"]["undercurrent"]["level"], config["loggers"]["uvicorn"]["level"])
    assert (*levels, config["root"]["level"]) == (ours, server, others)


def test_a_reset_connection_harms_no_other(client):
    """The request is complete, but the connection is reset before the answer."""
    at = client.base_url
    with socket.create_connection((at.host, at.port)) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {at.host}:{at.port}\r\n\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    good(client.get("/healthz"))
