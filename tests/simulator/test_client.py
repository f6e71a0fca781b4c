"""The client: what it sends, what it retries and for how long, and how it reads answers."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from simulator import client as client_module
from simulator.client import Client, Item, MismatchError, ServiceError, UnreachableError

DECISION = json.loads("""
{"decision_id": "o-1", "campaign": "c", "round": 7, "stage": 1, "model_version": 2, "mode": "optimistic",
 "action": "email", "propensity": 0.5, "belief": [0.25, 0.75], "something_new": true,
 "scores": [{"action": "email", "estimate": 1, "bonus": 0.5, "score": 1.5}], "decided_at": "2026-11-16T07:20:04.1Z"}
""")
BUSY = {"error": {"code": "unavailable", "message": "Temporarily unavailable", "fields": []}}
Answer = httpx.Response | Exception


class Wire:
    """A connection to a service that gives the prepared answers in order, and then repeats the last one."""

    def __init__(self, *answers: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.requests, self.waits, self.now = list(answers), [], [], 100.0
        monkeypatch.setattr(client_module.time, "monotonic", lambda: self.now)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def client(self, key: str | None = None, patience: float = 60.0, url: str = "http://service.test") -> Client:
        return Client(url, key, patience, sleep=self.sleep, transport=httpx.MockTransport(self.answer))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Wire]:
    return lambda *answers: Wire(*answers, monkeypatch=monkeypatch)


def read_body(request: httpx.Request) -> Any:
    return json.loads(request.content)


# --- requests and answers ---------------------------------------------------------------------------------------------


def test_decide(line):
    wire = line(httpx.Response(200, json=DECISION))
    with wire.client(key="k-1") as client:
        decision = client.decide("c", "o-1", {"risk": "low"})
        client.decide("c", "o-2", {}, excluded_actions=["call"], subject="s", at=datetime(2026, 11, 16, tzinfo=UTC))
    assert (decision.action, decision.round, decision.belief) == ("email", 7, (0.25, 0.75))
    assert decision.scores[0].score == 1.5
    first, second = wire.requests
    assert (first.method, first.url) == ("POST", "http://service.test/decide")
    assert first.headers["authorization"] == "Bearer k-1"
    assert read_body(first) == {"campaign": "c", "decision_id": "o-1", "context": {"risk": "low"}}
    optional = {"excluded_actions": ["call"], "subject": "s", "at": "2026-11-16T00:00:00+00:00"}
    assert read_body(second) == {"campaign": "c", "decision_id": "o-2", "context": {}, **optional}


def test_batches(line):
    refused = {"code": "conflict", "message": "it cannot change", "fields": []}
    results = [
        {"decision_id": "o-1", "committed": {"round": 7, "reward": 1.0}, "error": None},
        {"decision_id": "o-2", "committed": None, "error": refused},
    ]
    wire = line(httpx.Response(200, json={"decisions": [DECISION]}), httpx.Response(200, json={"results": results}))
    with wire.client() as client:
        (decision,) = client.decide_batch("c", [Item("o-1", {"risk": "low"})])
        good, bad = client.reward_batch("c", [("o-1", 1.0), ("o-2", 2.0)])
    assert decision.action == "email"
    assert read_body(wire.requests[0])["items"] == [{"decision_id": "o-1", "context": {"risk": "low"}}]
    assert (good.round, good.error) == (7, None)
    assert (bad.round, bad.error.status, bad.error.code) == (None, 409, "conflict")
    assert "authorization" not in wire.requests[0].headers


def test_campaigns(line):
    state = {"name": "c", "round": 3, "model_version": 1, "rewards_received": 2, "rewards_waiting": 1}
    answer = httpx.Response(200, json={**state, "failure": None, "config": {"name": "c"}, "belief": [1.0]})
    wire = line(httpx.Response(201, json={"name": "c", "seed": 1}), answer)
    with wire.client(url="http://service.test/behind/a/proxy/") as client:
        assert client.create_campaign({"name": "c"}) == {"name": "c", "seed": 1}
        assert client.get_campaign("c").rewards_received == 2
    assert [request.url.path for request in wire.requests] == [
        f"/behind/a/proxy{path}" for path in ("/campaigns", "/campaigns/c")
    ]


# --- patience ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.RemoteProtocolError("half an answer")]
)
def test_a_request_without_an_answer_is_repeated_unchanged(line, failure):
    wire = line(failure, failure, httpx.Response(200, json=DECISION))
    with wire.client() as client:
        assert client.decide("c", "o-1", {}).round == 7
    assert len(wire.requests) == 3
    assert {request.content for request in wire.requests} == {wire.requests[0].content}
    assert wire.waits == [0.1, 0.2]


def test_retry_after_is_respected(line):
    busy = httpx.Response(503, json=BUSY, headers={"retry-after": "3"})
    wire = line(busy, httpx.Response(503, json=BUSY), httpx.Response(200, json={"round": 4}))
    with wire.client() as client:
        assert client.reward("c", "o-1", 1.0) == 4
    assert wire.waits == [3.0, 0.2]


def test_patience_runs_out(line):
    wire = line(httpx.ConnectError("refused"))
    with wire.client(patience=5.0) as client, pytest.raises(UnreachableError, match=r"for 5 seconds: refused"):
        client.reward("c", "o-1", 1.0)
    assert 4 < sum(wire.waits) <= 5
    assert max(wire.waits) == 1.0
    wire = line(httpx.Response(503, json=BUSY, headers={"retry-after": "1"}))
    with wire.client(patience=5.0) as client, pytest.raises(ServiceError, match=r"Temporarily unavailable \(503\)"):
        client.reward("c", "o-1", 1.0)
    assert wire.waits == [1.0] * 5


def test_patience_begins_anew_after_an_answer(line):
    lost, answer = httpx.ConnectError("refused"), httpx.Response(200, json={"round": 4})
    wire = line(lost, lost, answer, lost, lost, answer)
    with wire.client(patience=0.5) as client:
        client.reward("c", "o-1", 1.0)
        wire.now += 1000.0
        client.reward("c", "o-2", 1.0)
    assert len(wire.requests) == 6


# --- refusals ---------------------------------------------------------------------------------------------------------


def refusal(status: int, code: str, message: str, fields: list = ()) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": message, "fields": list(fields)}})


def test_a_refusal_is_not_repeated_and_says_what_is_allowed(line):
    fields = [
        {"field": "context.risk", "message": "'x' is not a level", "allowed": ["low", "high"]},
        {"field": "subject", "message": "is too long", "allowed": None},
    ]
    wire = line(refusal(422, "invalid", "two mistakes", fields))
    with wire.client() as client, pytest.raises(ServiceError) as raised:
        client.decide("c", "o-1", {"risk": "x"})
    error = raised.value
    assert (error.status, error.code, error.message, error.fields) == (422, "invalid", "two mistakes", fields)
    assert str(error) == ("context.risk: 'x' is not a level (allowed: ['low', 'high']); subject: is too long (422)")
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *((refusal(status, "code", "Used before"), rf"^Used before \({status}\)$") for status in (404, 409, 429, 500)),
        (refusal(401, "unauthorized", "No such key"), r"^wrong key for http://service.test: No such key \(401\)$"),
        (refusal(403, "forbidden", "Only to read"), r"^wrong key for http://service.test: Only to read \(403\)$"),
        (httpx.Response(502, text="<h1>proxy</h1>"), r"^http://service.test/reward answers 'Bad Gateway' \(502\)$"),
        (httpx.Response(301, headers={"location": "/x"}), r"answers 'Moved Permanently' \(301\)$"),
        (httpx.Response(400, json={"error": "text"}), r"answers 'Bad Request' \(400\)$"),
    ],
)
def test_messages_of_refusals(line, answer, words):
    with line(answer).client(key="k") as client, pytest.raises(ServiceError, match=words):
        client.reward("c", "o-1", 1.0)


def test_what_json_cannot_say(line):
    """A reward that is not a number, and an answer that is not JSON."""
    with line(httpx.Response(200, text="hello")).client() as client:
        with pytest.raises(ValueError, match="JSON"):
            client.reward("c", "o-1", float("nan"))
        with pytest.raises(MismatchError, match="JSON"):
            client.get_campaign("c")


# --- which service ----------------------------------------------------------------------------------------------------


def test_the_version_must_be_the_same(line):
    wire = line(httpx.Response(200, json={"status": "ok", "version": "1.2"}))
    with wire.client() as client:
        client.check_version("1.2")
        with pytest.raises(MismatchError, match=r"is Undercurrent 1\.2, this client is 1\.3"):
            client.check_version("1.3")


@pytest.mark.parametrize(
    ("status", "text"), [(200, "<html>"), (200, "[1]"), (200, '{"status": "ok"}'), (404, "gone"), (302, "")]
)
def test_a_server_that_is_not_a_service_is_refused(line, status, text):
    client = line(httpx.Response(status, text=text)).client()
    with client, pytest.raises(MismatchError, match="not an Undercurrent service"):
        client.check_version("1.2")


def test_a_refusal_at_the_first_contact_is_reported_and_not_retried(line):
    client = line(refusal(401, "unauthorized", "This key is not known")).client(key="secret")
    with client, pytest.raises(ServiceError, match=r"^wrong key for \S+: This key is not known \(401\)$"):
        client.check_version("1.2")
    wire = line(httpx.ConnectError("refused"))
    with wire.client() as client, pytest.raises(UnreachableError, match=r"no service at .*refused.*make run"):
        client.get_version()
    assert wire.waits == []
