"""Nasty payloads: each is refused with a clear 4xx (R24) or stored as it was sent; never a 5xx, never a NaN."""

import csv
import io
import json
import logging
import socket
from itertools import product
from urllib.parse import quote

import pyarrow.parquet
import pytest

from service.base.logs import JsonFormatter, TextFormatter
from service.web.bodies import SMALL_BODY
from tests.databases import KINDS
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.nasty import ASKED, BODIES, CONFIG, CONTEXT, NOT_TEXT, STRINGS, Raw, encoded, places, put, wrong

pytestmark = pytest.mark.slow

WITH_BODY = [asked for asked in ASKED if asked.body is not None]
TEXTS = {**STRINGS, **NOT_TEXT}
UNFIT = ("body", "rows", "actions")  # a rank may fit no campaign, or those that other tests have made as well
CONTEXTS = [("context",), ("items", 0, "context"), ("rows", 0, "context"), ("contextFeatures", 0)]
ODD_TEXTS = ["..", ".", "%", "%zz", "\ufffd", "-1", "1e400", "NaN", "true", "[]", "{}"]
TO_DATABASES = ("sql", "percent", "not a character", "nul", "surrogate", "very long")


def label(asked):
    return f"{asked.method} {asked.path}"


class Nasty:
    """A worker with a campaign that has made decisions, and ways to send requests to it."""

    def __init__(self, worker, texts=TEXTS):
        self.worker, self.client, self.texts = worker, worker.client, texts
        for name in ("nasty", "fresh"):
            actions = CONFIG["actions"] if name == "nasty" else ["nothing", "mail"]
            good(self.client.post("/campaigns", json={**CONFIG, "name": name, "actions": actions}), 201)
        items = [{"decision_id": f"d{n}", "context": CONTEXT} for n in range(1, 31)]
        good(self.client.post("/decide/batch", json={"campaign": "nasty", "items": items}))
        rewards = [{"decision_id": f"d{n}", "reward": n % 2} for n in range(2, 31)]
        good(self.client.post("/reward/batch", json={"campaign": "nasty", "items": rewards}))
        self.document = good(self.client.get("/openapi.json"))

    def ask(self, asked, content=None, query=None, **more):
        params = asked.query if query is None else query
        return self.client.request(asked.method, asked.address, content=content, params=params, **more)

    def places(self, asked):
        content = self.document["paths"][asked.path][asked.method.lower()]["requestBody"]["content"]
        return list(places(self.document, content["application/json"]["schema"]))

    def state(self):
        return good(self.client.get("/campaigns/nasty"))

    def raw(self, request, ends=False):
        """Send these bytes and return the whole answer; `ends` closes the sending side."""
        host, _, port = self.worker.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.fixture(scope="module", params=KINDS)
def nasty(request, new_database):
    worker = Worker(new_database(request.param), Clock())
    # Most text is refused or parsed before any database sees it.
    yield Nasty(worker, TEXTS if request.param == "sqlite" else {name: TEXTS[name] for name in TO_DATABASES})
    worker.stop()


@pytest.fixture(scope="module")
def sqlite(new_database):
    worker = Worker(new_database("sqlite"), Clock())
    yield Nasty(worker)
    worker.stop()


def answered(response):
    """Return the status of an answer, which is a success or a well-formed 4xx error."""
    if response.status_code >= 400:
        assert response.status_code < 500, (response.request.url, response.request.content[:300])
        error = error_of(response)
        assert error["fields"] or response.status_code != 422
    return response.status_code


def refused(response, *statuses):
    """Return the fields that an error names."""
    assert answered(response) in statuses, (response.request.content[:300], response.text[:500])
    return [problem["field"] for problem in response.json()["error"]["fields"]]


def named(way):
    """Return the name of a field as in errors."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in way)[1:]


# --- whatever is no JSON, or of the wrong kind ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", WITH_BODY, ids=label)
def test_values_that_the_document_does_not_allow(sqlite, asked):
    """For every field of the OpenAPI document, all values that it does not allow there."""
    before, found = sqlite.state(), sqlite.places(asked)
    assert found
    alike = asked.path in ("/campaigns/check", "/campaigns/{name}/clone")  # to /campaigns: a third of it will do
    for number, place in enumerate(found):
        way = named(place.way)
        near = (way, way.rpartition(".")[0] or way, way.partition(".")[0].partition("[")[0], "body", "config")
        for value in wrong(sqlite.document, place)[number % 3 :: 3] if alike else wrong(sqlite.document, place):
            told = refused(sqlite.ask(asked, encoded(put(asked.body, place.way, value))), 409, 422)
            assert any(field.startswith(near) for field in told), (way, value, told)
    assert sqlite.state() == before


@pytest.mark.parametrize("asked", WITH_BODY, ids=label)
def test_bodies_that_are_not_valid(sqlite, asked):
    before = sqlite.state()
    for name, body in BODIES.items():
        for kind in ("application/json", "text/plain; charset=utf-16"):
            fields = refused(sqlite.ask(asked, body, headers={"content-type": kind}), 422, 413)
            assert fields or len(body) > SMALL_BODY, name
    assert sqlite.state() == before


@pytest.mark.parametrize("path", ["/decide", "/subjects/export"])  # one of each kind of route
def test_ten_megabytes(sqlite, path):
    """Refused unread, whether or not the request announces its length."""
    (asked,) = [asked for asked in ASKED if asked.path == path]
    body = b'{"a": "' + b"x" * 10_000_000 + b'"}'
    assert refused(sqlite.ask(asked, body), 413) == []
    parts = (body[at : at + 1_000_000] for at in range(0, len(body), 1_000_000))
    assert refused(sqlite.ask(asked, parts), 413) == []


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 400, "1" + "0" * 5_000]
)
def test_numbers_that_are_not_finite_are_refused(sqlite, number):
    """Where the document allows any value, because it depends on the campaign's variables."""
    before, value = sqlite.state(), Raw(number)
    for variable in CONTEXT:
        for wrapped, asked, way in product((value, [value], {"a": value}), WITH_BODY, CONTEXTS):
            if _has(asked.body, way):
                body = put(asked.body, way, {**CONTEXT, variable: wrapped})
                body |= {key: f"new {number[:9]}" for key in ("decision_id", "eventId") if key in body}
                fields = refused(sqlite.ask(asked, encoded(body)), 409, 422)
                conflicts = [field for field in fields if field.endswith("decision_id")]  # the id is known
                assert fields == conflicts or any(variable in field or field in UNFIT for field in fields), fields
    assert sqlite.state() == before


@pytest.mark.parametrize("depth", [20, 190])
def test_deeply_nested_values(sqlite, depth):
    """As deep as a body may be: a request is hashed before its context is checked."""
    before, value = sqlite.state(), Raw("[" * depth + "1" + "0" * 400 + "]" * depth)
    for asked in WITH_BODY:
        if "context" in asked.body:
            body = {**asked.body, "context": {**CONTEXT, "season": value}}
            body |= {"decision_id": "deep"} if "decision_id" in body else {}
            assert refused(sqlite.ask(asked, encoded(body)), 422)
    assert sqlite.state() == before


def test_the_last_of_two_values_counts(sqlite):
    """On every kind of route, for authorization as well as for the decision."""
    twice = b'{"campaign": "nobody", "campaign": "nasty", "decision_id": "twice", "context": %b}' % encoded(CONTEXT)
    assert good(sqlite.client.post("/decide", content=twice))["campaign"] == "nasty"
    patched = sqlite.client.patch("/campaigns/nasty", content=b'{"paused": true, "paused": false}')
    assert good(patched)["paused"] is False


def _has(body, way):
    for part in way:
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and body and isinstance(part, int)):
            body = body[part]
        else:
            return False
    return True


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", WITH_BODY, ids=label)
def test_text_in_every_field(nasty, asked):
    """Invalid names are refused, also on PostgreSQL, whose text has no zero byte."""
    before, texts = nasty.state(), nasty.texts
    if asked.path.endswith(("/import", "/actions")):  # where each that is taken takes its time
        asked, texts = asked._replace(names=(("name", "fresh"),)), {name: TEXTS[name] for name in TO_DATABASES}
    for place in (place for place in nasty.places(asked) if place.text):
        plain = any("pattern" in kind for kind in place.kinds)
        for name, text in texts.items():
            response = nasty.ask(asked, encoded(put(asked.body, place.way, text)))
            status = answered(response)
            assert not plain or name in STRINGS or status in (404, 409, 413, 422), (place.way, name)
    after = nasty.state()
    assert after["round"] == before["round"] or "/decide" in asked.path or asked.path.startswith("/personalizer")


@pytest.mark.parametrize("asked", ASKED, ids=label)
def test_text_in_every_address(nasty, asked):
    texts = [text for text in nasty.texts.values() if not isinstance(text, Raw)]
    texts += ["a" * 64, "9" * 400, str(2**31), str(2**53 - 1), *ODD_TEXTS]
    for text in texts:
        if len(text) > 60_000:
            continue
        for name, _ in asked.names if "{" in asked.path else ():
            names = tuple((key, quote(text, safe="") if key == name else value) for key, value in asked.names)
            answered(nasty.ask(asked._replace(names=names), encoded(asked.body) if asked.body is not None else None))
        for name, _ in asked.query:
            query = [(key, text if key == name else value) for key, value in asked.query]
            if (asked.method, text) != ("DELETE", "nasty"):
                answered(nasty.ask(asked, query=query))


HEADERS = [
    "x-request-id", "authorization", "x-api-key", "cookie", "accept", "content-type", "origin", "x-forwarded-proto",
]  # fmt: skip
READ = [asked for asked in ASKED if asked.path in ("/campaigns/{name}/model", "/subjects/export", "/metrics")]


def test_text_in_headers(sqlite):
    """A request id that is not plain text is replaced; headers are never more than text."""
    for header in HEADERS:
        for number, (name, text) in enumerate(TEXTS.items()):
            if isinstance(text, Raw) or name in ("forged line", "nul", "very long"):
                continue  # what no client can send: CONTRADICTIONS has some
            asked = READ[number % 3]
            content = encoded(asked.body) if asked.body is not None else None
            response = sqlite.ask(asked, content, headers={header: text.strip().encode()})
            if response.status_code == 400:
                continue  # it is not HTTP: the server itself answers
            assert answered(response) in (200, 403)  # 403: what could be another site's origin
            told = response.headers["x-request-id"]
            assert told.isascii()
            assert told.isprintable()
            assert len(told) <= 128


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_text_forges_a_line_of_the_log(formatter):
    for text in TEXTS.values():
        told = {"name": "undercurrent.admin", "msg": "add action", "action": text}
        line = formatter.format(logging.makeLogRecord(told))
        assert line.splitlines() == [line]
        assert line.isprintable()


# --- names that are strange, and good ---------------------------------------------------------------------------------


def test_strange_names_come_back_unchanged(nasty, caplog):
    """In reads, files of every format and reports; in the log a name stays on its line."""
    names = list(STRINGS.values())
    variable = "it's <b>\u202e"
    config = {
        "name": "strange", "actions": names, "variables": [{"name": variable, "levels": names}], "signals": [variable],
        "features": {"shared": [variable], "per_regime": ["intercept", "actions"]},
        "regimes": 2, "regime_labels": names[:2], "warm_start_rounds": 0, "stage_length": 5,
        "beliefs": {"estimator": "given", "parameters": {
            "transition": [[0.9, 0.1], [0.1, 0.9]], "initial": [0.5, 0.5],
            "emission": 2 * [len(names) * [1 / len(names)]],
        }},
    }  # fmt: skip
    created = good(nasty.client.post("/campaigns", json=config), 201)
    assert (created["actions"], created["variables"][0]["levels"]) == (names, names)
    items = [
        {"decision_id": name, "subject": name, "context": {variable: name}, "excluded_actions": [name]}
        for name in names
    ]
    made = good(nasty.client.post("/decide/batch", json={"campaign": "strange", "items": items}))["decisions"]
    assert [decision["decision_id"] for decision in made] == names
    rewards = [{"decision_id": name, "reward": n} for n, name in enumerate(names)]
    taken = good(nasty.client.post("/reward/batch", json={"campaign": "strange", "items": rewards}))["results"]
    assert [result["decision_id"] for result in taken] == names
    actions = [decision["action"] for decision in made]
    for name, decision in zip(names, made, strict=True):
        kept = good(nasty.client.post("/campaigns/strange/explain", json={"decision_id": name}))
        assert (kept["decision_id"], kept["context"], kept["action"]) == (name, {variable: name}, decision["action"])
        assert kept["excluded_actions"] == [name]
        if not name.endswith("/"):
            read = nasty.client.get(f"/campaigns/strange/decisions/{quote(name, safe='')}")
            assert good(read)["decision_id"] == name
        (found,) = good(nasty.client.post("/subjects/export", json={"subject": name}))["campaigns"]
        assert [one["decision_id"] for one in found["decisions"]] == [name]
    lines = nasty.client.get("/campaigns/strange/decisions").content.decode().split("\n")[:-1]
    assert [json.loads(line)["decision_id"] for line in lines] == names
    assert [json.loads(line)["action"] for line in lines] == actions
    text = nasty.client.get("/campaigns/strange/decisions?format=csv").content.decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert [row[rows[0].index("decision_id")] for row in rows[1:]] == names
    file = nasty.client.get("/campaigns/strange/decisions?format=parquet").content
    table = pyarrow.parquet.read_table(io.BytesIO(file))
    assert table["decision_id"].to_pylist() == names
    assert table["action"].to_pylist() == actions
    assert {row["action"] for row in good(nasty.client.get("/campaigns/strange/report"))["actions"]} == set(names)
    told = good(nasty.client.get("/campaigns/strange/regimes"))["regimes"]
    assert [regime["label"] for regime in told] == names[:2]
    for path in ("model", "series", "diagnostics", "alerts", "revisions", "stages"):
        good(nasty.client.get(f"/campaigns/strange/{path}"))
    good(nasty.client.post("/campaigns/strange/actions/retire", json={"action": names[1]}))
    assert good(nasty.client.get("/campaigns/strange"))["config"]["retired_actions"] == [names[1]]
    exposition = nasty.client.get("/metrics").text
    assert 'campaign="strange"' in exposition
    assert all(len(line.split()) > 1 for line in exposition.split("\n") if line)
    good(nasty.client.post("/subjects/erase", json={"subject": names[0]}))
    assert refused(nasty.client.post("/campaigns/strange/explain", json={"decision_id": names[0]}), 410) == []


# --- HTTP itself ------------------------------------------------------------------------------------------------------

PATHS = [
    "/campaigns/%00", "/campaigns/a%00b", "/campaigns/%2f", "/campaigns/..", "/campaigns/%2e%2e/keys", "//campaigns",
    "/campaigns//", "/campaigns/nasty//model", "/campaigns/nasty/", "/campaigns/%ff%fe",
    "/campaigns/nasty/decisions/%00", "/campaigns/nasty/decisions/../../nasty", "/docs-assets/../../../../etc/passwd",
    "/docs-assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/docs-assets/..%2f..%2fetc/passwd", "/docs-assets/%00",
    "/dashboard-assets/%2e%2e/%2e%2e/login.py", "/dashboard-assets//etc/passwd", "/dashboard-assets/%ff",
    "/view/%00/x", "/campaigns/" + "a" * 8_000, "/;/campaigns", "/campaigns;a=b", "/CAMPAIGNS", "/campaigns%20",
    "/%63ampaigns/%00", "/personalizer/v1.0/events/%00/activate", "/dashboard-assets/" + "a" * 5_000,
    "/docs-assets/" + "../" * 100,
]  # fmt: skip


def test_tricks_with_paths(nasty):
    """Sent raw, because a client would normalize some of them."""
    for path in PATHS if nasty.texts is TEXTS else [path for path in PATHS if "%00" in path or "%ff" in path]:
        for method in (b"GET", b"POST"):
            answer = nasty.raw(
                b"%b %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                % (method, path.encode())
            )
            head, _, body = answer.partition(b"\r\n\r\n")
            assert int(head.split()[1]) in (404, 405, 422), answer[:300]
            assert json.loads(body)["error"]["message"], answer[:300]


LINE = b"POST /subjects/export HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
BODY = b'{"subject": "x"}'
LENGTH = b"content-length: %d\r\n" % len(BODY)
CONTRADICTIONS = {
    "two lengths": LINE + LENGTH + b"content-length: 5\r\n\r\n" + BODY,
    "a length and chunks": LINE + LENGTH + b"transfer-encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "no number": LINE + b"content-length: abc\r\n\r\n" + BODY,
    "a negative length": LINE + b"content-length: -1\r\n\r\n" + BODY,
    "a signed length": LINE + b"content-length: +16\r\n\r\n" + BODY,
    "a length in Python's way": LINE + b"content-length: 1_6\r\n\r\n" + BODY,
    "a huge length": LINE + b"content-length: 99999999999999999999999999\r\n\r\n" + BODY,
    "an unknown encoding": LINE + b"transfer-encoding: gzip\r\n\r\n" + BODY,
    "chunked twice": LINE + b"transfer-encoding: chunked, chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks of no size": LINE + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk of a negative size": LINE + b"transfer-encoding: chunked\r\n\r\n-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a header without a name": LINE + b": x\r\n\r\n",
    "a header over two lines": LINE + b"x-a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
    "a NUL in a header": LINE + b"x-request-id: a\x00b\r\n" + LENGTH + b"\r\n" + BODY,
    "a bare return in a header": LINE + b"x-request-id: a\rset-cookie: b\r\n" + LENGTH + b"\r\n" + BODY,
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no such method": b"STEAL / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    "no such version": b"GET / HTTP/9.9\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    "a space in the path": b"GET /campaigns /x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_requests_that_contradict_themselves(sqlite, name):
    answer = sqlite.raw(CONTRADICTIONS[name], ends=True)
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert (status == 200 and name in ("a header over two lines",)) or 400 <= status < 500, answer[:300]
        if b"application/json" in head:
            assert status == 200 or json.loads(body)["error"]["code"], answer[:300]
        else:  # the server itself refuses what is not HTTP
            assert (status, body) == (400, b"Invalid HTTP request received."), answer[:300]
    good(sqlite.client.get("/healthz"))
