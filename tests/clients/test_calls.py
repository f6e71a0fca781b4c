"""Both clients: what they send, what they retry and for how long, and how they read answers."""

import asyncio
import inspect
import json
import math
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import NoneType
from typing import Any, get_args, get_type_hints

import httpx
import msgspec
import pytest

import undercurrent_client
from service.api import reports
from undercurrent_client import (
    AccessError,
    AsyncClient,
    Client,
    ConflictError,
    InvalidError,
    Item,
    MismatchError,
    RewardItem,
    ServiceError,
    TooManyRequestsError,
    UnavailableError,
    UnreachableError,
)

DECISION = json.loads("""
{"decision_id": "o-1", "campaign": "c", "round": 7, "stage": 1, "model_version": 2, "mode": "optimistic",
 "action": "email", "propensity": 0.5, "belief": [0.25, 0.75], "something_new": true,
 "scores": [{"action": "email", "estimate": 1, "bonus": 0.5, "score": 1.5}], "decided_at": "2026-11-16T07:20:04.1Z"}
""")
REWARD = {"decision_id": "o-1", "campaign": "c", "round": 4, "reward": 1.0, "received_at": "2026-11-16T07:20:04.1Z"}
BUSY = {"error": {"code": "unavailable", "message": "Temporarily unavailable", "fields": []}}
Answer = httpx.Response | Exception


class Waiting:
    """An asynchronous client that is called like the other one: each call runs to its end."""

    def __init__(self, client: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not inspect.iscoroutinefunction(member):
            return member
        return lambda *args, **kwargs: self._loop.run_until_complete(member(*args, **kwargs))

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._client.close())


class Wire:
    """A connection to a service that gives the prepared answers in order, and then repeats the last one."""

    def __init__(self, *answers: Answer, loop: asyncio.AbstractEventLoop | None) -> None:
        self.answers, self.requests, self.waits, self.now, self._loop = list(answers), [], [], 100.0, loop

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def client(self, key: str | None = None, patience: float = 60.0, url: str = "http://service.test", **own) -> Any:
        transport = httpx.MockTransport(self.answer)
        if self._loop is None:
            client = Client(url, key, patience=patience, sleep=self.sleep, transport=transport, **own)
        else:
            client = AsyncClient(url, key, patience=patience, sleep=self.sleep_async, transport=transport, **own)
        client.core._clock, client.core._jitter = lambda: self.now, lambda: 1.0
        return client if self._loop is None else Waiting(client, self._loop)


@pytest.fixture(params=["sync", "async"])
def line(request: pytest.FixtureRequest):
    loop = asyncio.new_event_loop() if request.param == "async" else None
    yield lambda *answers: Wire(*answers, loop=loop)
    if loop is not None:
        loop.close()


def read_body(request: httpx.Request) -> Any:
    return json.loads(request.content)


# --- requests and answers ---------------------------------------------------------------------------------------------


def test_decide(line):
    wire = line(httpx.Response(200, json=DECISION))
    with wire.client(key="k-1") as client:
        decision = client.decide("c", {"risk": "low"}, decision_id="o-1")
        client.decide(
            "c", {}, decision_id="o-2", excluded_actions=["call"], subject="s", at=datetime(2026, 11, 16, tzinfo=UTC)
        )
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
        {"decision_id": "o-1", "committed": {**REWARD, "round": 7}, "error": None},
        {"decision_id": "o-2", "committed": None, "error": refused},
    ]
    wire = line(httpx.Response(200, json={"decisions": [DECISION]}), httpx.Response(200, json={"results": results}))
    with wire.client() as client:
        (decision,) = client.decide_batch("c", [Item({"risk": "low"}, "o-1")]).decisions
        good, bad = client.reward_batch("c", [RewardItem("o-1", 1.0), RewardItem("o-2", 2.0)])
    assert decision.action == "email"
    assert read_body(wire.requests[0])["items"] == [{"decision_id": "o-1", "context": {"risk": "low"}}]
    assert (good.committed.round, good.error) == (7, None)
    assert (bad.committed, bad.error.status, bad.error.code) == (None, 409, "conflict")
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
        assert client.decide("c", {}, decision_id="o-1").round == 7
    assert len(wire.requests) == 3
    assert {request.content for request in wire.requests} == {wire.requests[0].content}
    assert wire.waits == [0.1, 0.2]


def test_retry_after_is_respected(line):
    busy = httpx.Response(503, json=BUSY, headers={"retry-after": "3"})
    wire = line(busy, httpx.Response(503, json=BUSY), httpx.Response(200, json=REWARD))
    with wire.client() as client:
        assert client.reward("c", "o-1", 1.0).round == 4
    assert wire.waits == [3.0, 0.2]


def test_patience_runs_out(line):
    wire = line(httpx.ConnectError("refused"))
    with wire.client(patience=5.0) as client, pytest.raises(UnreachableError, match=r"for 5 seconds: refused"):
        client.reward("c", "o-1", 1.0)
    assert wire.waits == [0.1, 0.2, 0.4, 0.8, 1.6]
    wire = line(httpx.Response(503, json=BUSY, headers={"retry-after": "1"}))
    with wire.client(patience=5.0) as client, pytest.raises(ServiceError, match=r"Temporarily unavailable \(503\)"):
        client.reward("c", "o-1", 1.0)
    assert wire.waits == [1.0] * 5


def test_patience_begins_anew_after_an_answer(line):
    lost, answer = httpx.ConnectError("refused"), httpx.Response(200, json=REWARD)
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
        client.decide("c", {"risk": "x"}, decision_id="o-1")
    error = raised.value
    assert (error.status, error.code, error.message) == (422, "invalid", "two mistakes")
    assert [msgspec.to_builtins(field) for field in error.fields] == fields
    assert str(error) == ("context.risk: 'x' is not a level (allowed: ['low', 'high']); subject: is too long (422)")
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *((refusal(status, "code", "Used before"), rf"^Used before \({status}\)$") for status in (404, 409, 500)),
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
            client.reward("c", "o-1", math.nan)
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


# --- time-outs, limits and fallbacks ----------------------------------------------------------------------------------


def test_an_id_is_made_once_and_repeated(line):
    wire = line(httpx.ConnectError("refused"), httpx.Response(200, json=DECISION))
    with wire.client() as client:
        client.decide("c", {})
        client.decide("c", {})
    ids = [read_body(request)["decision_id"] for request in wire.requests]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(one) == 32 for one in ids)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_statuses_that_are_repeated(line, status):
    busy = httpx.Response(status, json=BUSY, headers={"retry-after": "2"})
    wire = line(busy, httpx.Response(200, json=REWARD))
    with wire.client() as client:
        assert client.reward("c", "o-1", 1.0).round == 4
    assert wire.waits == [2.0]
    kinds = {429: TooManyRequestsError}
    with line(busy).client(patience=1.0) as client, pytest.raises(kinds.get(status, UnavailableError)) as raised:
        client.reward("c", "o-1", 1.0)
    assert raised.value.retry_after == 2.0


def test_retry_after_may_be_a_date(line):
    when = datetime.now(UTC) + timedelta(seconds=40)
    busy = httpx.Response(503, json=BUSY, headers={"retry-after": format_datetime(when, usegmt=True)})
    odd = httpx.Response(503, json=BUSY, headers={"retry-after": "soon"})
    wire = line(busy, odd, httpx.Response(200, json=REWARD))
    with wire.client(patience=100) as client:
        client.reward("c", "o-1", 1.0)
    assert 0 <= wire.waits[0] <= 40
    assert wire.waits[1] == 0.2


def test_waits_are_spread(line):
    wire = line(httpx.ConnectError("refused"), httpx.Response(200, json=REWARD))
    with wire.client() as client:
        client.core._jitter = lambda: 0.0
        client.reward("c", "o-1", 1.0)
    assert wire.waits == [0.05]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.Response(503, json=BUSY, headers={"retry-after": "1"}),
        httpx.Response(429, json=BUSY, headers={"retry-after": "1"}),
        httpx.Response(502, text="<h1>proxy</h1>"),
        httpx.Response(500, json=BUSY),
    ],
)
def test_the_baseline_is_returned_when_the_service_does_not_answer(line, answer):
    wire = line(answer)
    with wire.client() as client:
        decision = client.decide("c", {}, decision_id="o-1", baseline="none")
    assert (decision.action, decision.mode, decision.is_baseline) == ("none", "baseline", True)
    assert (decision.decision_id, decision.campaign, decision.propensity) == ("o-1", "c", None)
    assert decision.problem
    assert sum(wire.waits) <= 0.25


def test_the_baseline_is_not_for_mistakes_and_not_for_answers(line):
    with line(httpx.Response(200, json=DECISION)).client() as client:
        decision = client.decide("c", {}, baseline="none", deadline=60.0)
        assert (decision.action, decision.is_baseline) == ("email", False)
        with pytest.raises(ValueError, match="excluded"):
            client.decide("c", {}, baseline="none", excluded_actions=["none"])
    with line(refusal(422, "invalid", "wrong")).client() as client, pytest.raises(InvalidError):
        client.decide("c", {}, baseline="none", deadline=60.0)


def test_an_answer_that_never_ends_does_not_hold_up_a_decide():
    """Each of its bytes comes in time for httpx; only the whole of it is too late."""
    hold = threading.Event()

    class Slow(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            hold.wait(60)
            return httpx.Response(200, json=DECISION)

    class SlowToo(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(60)
            return httpx.Response(200, json=DECISION)

    async def decide() -> undercurrent_client.Decision:
        async with AsyncClient("http://service.test", transport=SlowToo()) as client:
            return await client.decide("c", {}, baseline="none", deadline=0.05)

    with Client("http://service.test", transport=Slow(), deadline=0.05) as client:
        first = client.decide("c", {}, baseline="none")
        hold.set()
    for decision in (first, asyncio.run(decide())):
        assert (decision.action, decision.problem) == ("none", "no answer within 0.05 seconds")


def test_nothing_is_sent_after_the_deadline():
    """A first try that ends too late is not followed by another: the customer has got the baseline."""
    tried, late = threading.Event(), threading.Event()
    requests = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        tried.set()
        late.wait()
        raise httpx.ConnectError("refused")

    finished = threading.Event()
    client = Client("http://service.test", transport=httpx.MockTransport(answer), sleep=lambda _: finished.set())
    with client:
        assert client.decide("c", {}, baseline="none", deadline=0.5).is_baseline
        tried.wait()
        late.set()
        finished.wait()  # the pause before the second try, which then finds that it is too late
        client._threads.shutdown()
    assert len(requests) == 1


# --- rewards that change ----------------------------------------------------------------------------------------------


def test_an_amount_has_an_id_that_is_repeated(line):
    wire = line(httpx.ConnectError("lost"), httpx.Response(200, json={**REWARD, "amount": 1.0, "reward_id": "a"}))
    with wire.client() as client:
        first = client.reward("c", "o-1", 1.0, mode="add")
        client.reward("c", "o-1", 1.0, mode="add", reward_id="own")
        client.correct("c", "o-1", 0.0)
        client.reward("c", "o-1", 1.0)
    assert (first.amount, first.reward_id) == (1.0, "a")
    lost, repeated, own, correction, plain = map(read_body, wire.requests)
    assert lost == repeated
    assert len(lost["reward_id"]) == 32
    assert own == {"campaign": "c", "decision_id": "o-1", "reward": 1.0, "mode": "add", "reward_id": "own"}
    assert correction["reward_id"] not in (lost["reward_id"], None)
    assert str(wire.requests[3].url) == "http://service.test/reward/correct"
    assert plain == {"campaign": "c", "decision_id": "o-1", "reward": 1.0}
    item = RewardItem("o-1", 1.0, "add")
    assert item.to_json() == item.to_json() != RewardItem("o-1", 1.0, "add").to_json()


def test_a_reward_of_a_subject(line):
    credited = {**REWARD, "source": "subject", "amount": 0.5, "reward_id": "s"}
    wire = line(httpx.ConnectError("lost"), httpx.Response(200, json={"credited": [credited, credited]}))
    with wire.client() as client:
        one, other = client.reward_subject("c", "someone", 1.0, at=datetime(2026, 11, 16, tzinfo=UTC))
    assert one == other
    assert (one.source, one.amount, one.reward) == ("subject", 0.5, 1.0)
    lost, repeated = map(read_body, wire.requests)
    assert lost == repeated
    assert len(lost.pop("reward_id")) == 32
    assert lost == {"campaign": "c", "subject": "someone", "reward": 1.0, "at": "2026-11-16T00:00:00+00:00"}


# --- the rest of the surface ------------------------------------------------------------------------------------------


def test_campaigns_are_listed_page_by_page(line):
    state = {"round": 3, "model_version": 1, "rewards_received": 2, "rewards_waiting": 1}
    pages = [{"campaigns": [{"name": "a", **state}], "next_cursor": "a"}, {"campaigns": [{"name": "b", **state}]}]
    wire = line(*(httpx.Response(200, json=page) for page in pages))
    with wire.client() as client:
        assert [one.name for one in client.list_campaigns()] == ["a", "b"]
    assert [dict(request.url.params).get("cursor") for request in wire.requests] == [None, "a"]


def test_paths_and_queries(line):
    state = {"name": "c d/e", "round": 0, "model_version": 0, "rewards_received": 0, "rewards_waiting": 0}
    wire = line(httpx.Response(200, json=state))
    since = datetime(2026, 11, 1, tzinfo=UTC)
    with wire.client() as client:
        client.get_campaign("c d/e")
        client.change_campaign("c", {"paused": True})
        client.archive_campaign("c")
        client.unarchive_campaign("c")
        with pytest.raises(MismatchError):
            client.report("c", start=since, to=since)
        assert client.delete_campaign("c") is None
    sent = [f"{request.method} {request.url.raw_path.decode()}" for request in wire.requests]
    assert sent == [
        "GET /campaigns/c%20d%2Fe",
        "PATCH /campaigns/c",
        "POST /campaigns/c/archive",
        "POST /campaigns/c/unarchive",
        "GET /campaigns/c/report?from=2026-11-01T00%3A00%3A00%2B00%3A00&to=2026-11-01T00%3A00%3A00%2B00%3A00",
        "DELETE /campaigns/c?confirm=c",
    ]


def test_a_report_has_the_fields_of_the_service():
    """Field by field, with what may be null; only words that the service takes from a list are any text here."""

    def compare(ours: Any, theirs: Any) -> None:
        assert [one.encode_name for one in msgspec.structs.fields(ours)] == [
            field.alias or name for name, field in theirs.model_fields.items()
        ]
        hints = get_type_hints(theirs)
        for one in msgspec.structs.fields(ours):
            own, other = list_types(one.type), list_types(hints[one.name])
            assert (NoneType in own) == (NoneType in other), one.name
            parts = [[kind for kind in kinds if hasattr(kind, "__annotations__")] for kinds in (own, other)]
            for part, model in zip(*parts, strict=True):
                compare(part, model)

    def list_types(kind: Any) -> list[Any]:
        return [kind, *(found for part in get_args(kind) for found in list_types(part))]

    compare(undercurrent_client.Report, reports.Report)


def test_an_export_is_there_once_it_is_complete(line, tmp_path):
    wire = line(httpx.ConnectError("refused"), httpx.Response(200, content=b"1\n2\n"))
    file = tmp_path / "log.ndjson"
    with wire.client() as client:
        assert client.export("c", file) == file
        assert file.read_bytes() == b"1\n2\n"
    assert str(wire.requests[0].url).endswith("/campaigns/c/decisions?format=ndjson")
    with line(refusal(404, "not_found", "no campaign")).client() as client, pytest.raises(ServiceError):
        client.export("c", tmp_path / "other", format="csv")
    assert [path.name for path in tmp_path.iterdir()] == ["log.ndjson"]


def test_errors_have_types(line):
    for status, kind in ((401, AccessError), (403, AccessError), (409, ConflictError), (422, InvalidError)):
        with line(refusal(status, "code", "no")).client() as client, pytest.raises(kind):
            client.reward("c", "o-1", 1.0)


def test_both_clients_have_the_same_methods():
    def list_methods(kind: type) -> dict[str, Any]:
        named = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: inspect.signature(one) for name, one in named.items() if callable(one) and name != "run"}

    assert list_methods(Client) == list_methods(AsyncClient)
    assert "decide" in list_methods(Client)
    assert all(getattr(Client, name).__doc__ for name in [*list_methods(Client), "run"])


def test_the_public_surface():
    assert set(undercurrent_client.__all__) == {
        *("AsyncClient", "AsyncRewardQueue", "Client", "RewardQueue", "BATCH_LIMIT", "__version__"),
        *("Campaign", "Decision", "DecisionBatch", "Item", "RewardAnswer", "RewardItem", "RewardResult", "Score"),
        *("Estimate", "Report", "RewardMode"),
        *("Sent", "SkippedItem", "FieldProblem", "ClientError", "UnreachableError", "MismatchError", "QueueError"),
        *("ServiceError", "AccessError", "NotFoundError", "ConflictError", "GoneError", "TooLargeError"),
        *("InvalidError", "TooManyRequestsError", "UnavailableError"),
    }
