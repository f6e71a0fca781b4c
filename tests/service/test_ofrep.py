"""OpenFeature's official provider, unchanged, against the service on a real socket; and the protocol's corners."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode

from service.engine.requests import CAMPAIGN_EXAMPLE
from service.storage.store import Store
from tests.service.answers import good
from tests.service.test_auth import bearer, make

FLAGS = "/ofrep/v1/evaluate/flags"
CUSTOMER = {"risk": "low", "revenue": 36_000}
ONCE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def connect(url: str, key: str | None = None) -> OpenFeatureClient:
    """An OpenFeature client of a provider of its own."""
    headers = (lambda: {"Authorization": f"Bearer {key}"}) if key else None
    api.set_provider(OFREPProvider(str(url), headers_factory=headers, timeout=60), domain="tests")
    return api.get_client("tests")


@pytest.fixture(scope="module")
def openfeature(http: httpx.Client) -> Iterator[OpenFeatureClient]:
    good(http.post("/campaigns", json={**CAMPAIGN_EXAMPLE, "seed": 1}), 201)
    yield connect(http.base_url)
    api.clear_providers()


def ask(client: OpenFeatureClient, flag: str = "spring-offers", subject: str | None = None, **attributes: Any) -> Any:
    return client.get_string_details(flag, "fallback", EvaluationContext(subject, attributes))


def fail(response: httpx.Response, status: int, code: str) -> str:
    """The details of an error, after checking the protocol's shape."""
    body = good(response, status)
    assert body.keys() == {"key", "errorCode", "errorDetails"}
    assert body["errorCode"] == code
    return body["errorDetails"]


def test_an_evaluation_decides(openfeature, http):
    details = ask(openfeature, subject="customer-1", decision_id="of-1", page="basket", **CUSTOMER)
    assert details.value == details.variant
    assert details.value in CAMPAIGN_EXAMPLE["actions"]
    assert details.reason == "SPLIT"  # the warm start draws at random
    stored = good(http.get("/campaigns/spring-offers/decisions/of-1"))
    assert (stored["context"], stored["action"]) == (CUSTOMER, details.value)  # attributes that are no variables: gone
    expected = {name: stored[name] for name in ("decision_id", "propensity", "model_version")}
    assert details.flag_metadata == expected
    good(http.post("/reward", json={"campaign": "spring-offers", "decision_id": "of-1", "reward": 1}))


def test_the_targeting_key_is_the_subject(openfeature, http):
    ask(openfeature, subject="customer-2", decision_id="of-2", **CUSTOMER)
    found = good(http.post("/subjects/export", json={"subject": "customer-2"}))
    assert "of-2" in str(found)


def test_a_repeated_evaluation_decides_once(openfeature, http):
    first = ask(openfeature, decision_id="of-3", **CUSTOMER)
    before = good(http.get("/campaigns/spring-offers"))["round"]
    again = ask(openfeature, decision_id="of-3", page="another", **CUSTOMER)
    assert (again.value, again.flag_metadata) == (first.value, first.flag_metadata)
    assert good(http.get("/campaigns/spring-offers"))["round"] == before
    changed = ask(openfeature, decision_id="of-3", risk="high", revenue=1)
    assert (changed.value, changed.error_code) == ("fallback", ErrorCode.GENERAL)
    ask(openfeature, **CUSTOMER)  # without an id, each evaluation is a decision
    ask(openfeature, **CUSTOMER)
    assert good(http.get("/campaigns/spring-offers"))["round"] == before + 2


def test_mistakes_give_the_programs_own_default(openfeature):
    unknown = ask(openfeature, "autumn-offers", **CUSTOMER)
    assert (unknown.value, unknown.error_code) == ("fallback", ErrorCode.FLAG_NOT_FOUND)
    assert "autumn-offers" in unknown.error_message
    wrong = ask(openfeature, risk="odd", revenue=1)
    assert (wrong.value, wrong.error_code) == ("fallback", ErrorCode.INVALID_CONTEXT)
    assert "context.risk" in wrong.error_message
    assert ask(openfeature, revenue=1).error_code == ErrorCode.INVALID_CONTEXT  # a variable is missing
    assert "targetingKey" in ask(openfeature, subject="x" * 201, **CUSTOMER).error_message
    assert "decision_id" in ask(openfeature, decision_id=7, **CUSTOMER).error_message
    assert openfeature.get_boolean_value("spring-offers", True, EvaluationContext(None, CUSTOMER)) is True


def test_reasons(http):
    """TARGETING_MATCH once the model decides, SPLIT while the action is drawn."""
    config = {**CAMPAIGN_EXAMPLE, "name": "reasons", "stage_length": 1, "warm_start_rounds": 2, "seed": 1, "regimes": 1}
    # Without a default reward, so that the warm start ends with the second reward.
    good(http.post("/campaigns", json=config | {"beliefs": {"statistics": "as_decided"}, "rewards": {}}), 201)
    reasons = []
    for number in range(6):
        body = {"context": {"decision_id": f"r{number}", **CUSTOMER}}
        reasons.append(good(http.post(f"{FLAGS}/reasons", json=body))["reason"])
        good(http.post("/reward", json={"campaign": "reasons", "decision_id": f"r{number}", "reward": 1}))
    assert reasons[0] == "SPLIT"
    assert reasons[-1] == "TARGETING_MATCH"


def test_bodies_that_are_no_request(openfeature, http):
    path = f"{FLAGS}/spring-offers"
    fail(http.post(path, content=b"{"), 400, "PARSE_ERROR")
    fail(http.post(path, content=b"[]"), 400, "PARSE_ERROR")
    fail(http.post(path, content=b""), 400, "PARSE_ERROR")
    fail(http.post(path, json={"context": 1}), 400, "INVALID_CONTEXT")
    fail(http.post(path, json={"context": {str(i): i for i in range(1_001)}}), 400, "INVALID_CONTEXT")
    fail(http.post(path, content=b" " * 70_000), 413, "GENERAL")
    fail(http.post(path, json={}), 400, "INVALID_CONTEXT")
    fail(http.post(f"{FLAGS}/nowhere", json={}), 404, "FLAG_NOT_FOUND")
    fail(http.get(path), 405, "GENERAL")
    assert "paused" in _refuse_while_paused(http, path)


def _refuse_while_paused(http: httpx.Client, path: str) -> str:
    good(http.patch("/campaigns/spring-offers", json={"paused": True}))
    details = fail(http.post(path, json={"context": CUSTOMER}), 400, "GENERAL")
    good(http.patch("/campaigns/spring-offers", json={"paused": False}))
    return details


def test_the_configuration(http):
    answer = good(http.get("/ofrep/v1/configuration"))
    assert answer["name"] == "undercurrent"
    assert answer["capabilities"]["flagEvaluation"] == {"supportedTypes": ["string"]}


# --- bulk -------------------------------------------------------------------------------------------------------------


@ONCE
def test_a_bulk_evaluation_decides_only_where_it_was_asked_for(client):
    for name in ("plain", "banner", "popup", "closed"):
        config = {**CAMPAIGN_EXAMPLE, "name": name, "bulk_evaluation": name != "plain"}
        good(client.post("/campaigns", json=config), 201)
    good(client.post("/campaigns/closed/archive"))
    good(client.patch("/campaigns/popup", json={"paused": True}))
    body = {"context": {"decision_id": "page-1", **CUSTOMER}}
    banner, popup = good(client.post(FLAGS, json=body))["flags"]
    assert (banner["key"], popup["key"]) == ("banner", "popup")
    assert (banner["metadata"]["decision_id"], popup["errorCode"]) == ("page-1", "GENERAL")
    first = client.post(FLAGS, json=body)
    tag = first.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = client.post(FLAGS, json=body, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.post(FLAGS, json=body, headers={"if-none-match": '"other"'}).status_code == 200
    assert [good(client.get(f"/campaigns/{name}"))["round"] for name in ("plain", "banner", "popup")] == [0, 1, 0]
    nameless = good(client.post(FLAGS, json={"context": CUSTOMER}))["flags"]
    assert [one["errorCode"] for one in nameless] == ["INVALID_CONTEXT"] * 2
    good(client.patch("/campaigns/banner", json={"bulk_evaluation": False}))
    good(client.patch("/campaigns/popup", json={"bulk_evaluation": None}))
    assert good(client.post(FLAGS, json=body)) == {"flags": []}


# --- keys -------------------------------------------------------------------------------------------------------------


@ONCE
def test_keys(start, database_url):
    store = Store(database_url)
    admin, limited, viewer = make(store), make(store, "client", "spring-offers"), make(store, "viewer")
    store.close()
    worker = start()
    http = worker.client
    for name in ("spring-offers", "other"):
        config = {**CAMPAIGN_EXAMPLE, "name": name, "bulk_evaluation": True}
        good(http.post("/campaigns", json=config, headers=bearer(admin)), 201)
    body = {"context": {"decision_id": "k-1", **CUSTOMER}}
    fail(http.post(f"{FLAGS}/spring-offers", json=body), 401, "GENERAL")
    fail(http.post(f"{FLAGS}/spring-offers", json=body, headers=bearer(viewer)), 403, "GENERAL")
    fail(http.post(f"{FLAGS}/other", json=body, headers=bearer(limited)), 403, "GENERAL")
    good(http.post(f"{FLAGS}/spring-offers", json=body, headers={"x-api-key": limited}))
    flags = good(http.post(FLAGS, json=body, headers=bearer(limited)))["flags"]
    assert [one["key"] for one in flags] == ["spring-offers"]
    good(http.get("/ofrep/v1/configuration", headers=bearer(viewer)))
    details = ask(connect(worker.url, limited), decision_id="k-2", **CUSTOMER)
    assert math.isclose(details.flag_metadata["propensity"], 1 / 3)
    assert "unauthorized" in ask(connect(worker.url), **CUSTOMER).error_message
    api.clear_providers()


@ONCE
def test_a_changed_campaign_is_read_again(start):
    """Another worker creates it, and this one changes it."""
    worker = start()
    http = worker.client
    good(http.post(f"{FLAGS}/late", json={}), 404)
    good(http.post("/campaigns", json={**CAMPAIGN_EXAMPLE, "name": "late"}), 201)
    good(http.post(f"{FLAGS}/late", json={"context": CUSTOMER}))
    good(http.post("/campaigns/late/levels", json={"variable": "risk", "level": "unknown"}))
    good(http.post(f"{FLAGS}/late", json={"context": CUSTOMER | {"risk": "unknown"}}))
    good(http.post("/campaigns/late/archive"))
    good(http.delete("/campaigns/late", params={"confirm": "late"}) and http.get("/campaigns/late"), 404)
    fail(http.post(f"{FLAGS}/late", json={"context": CUSTOMER}), 404, "FLAG_NOT_FOUND")
