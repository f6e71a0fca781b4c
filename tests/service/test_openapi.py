"""The API's own description: complete, and every example in it works as it stands."""

import json
import re
from tempfile import gettempdir

import pytest

from service.base.settings import Settings
from service.cli.application import create_app
from tests.service.answers import good

ONCE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # no database is involved
BODIES = {
    "/campaigns": ("CampaignConfig", "201", "CampaignConfig"),
    "/campaigns/check": ("CampaignConfig", "200", "CampaignConfig"),
    "/campaigns/{name}/decide": ("DecideByPath", "200", "DecisionAnswer"),
    "/campaigns/{name}/decide/batch": ("DecideBatchByPath", "200", "DecisionBatch"),
    "/campaigns/{name}/reward": ("RewardByPath", "200", "RewardAnswer"),
    "/campaigns/{name}/reward/batch": ("RewardBatchByPath", "200", "RewardResults"),
    "/campaigns/{name}/import": ("ImportRequest", "200", "Imported"),
    "/decide": ("DecideRequest", "200", "DecisionAnswer"),
    "/decide/batch": ("DecideBatch", "200", "DecisionBatch"),
    "/reward": ("RewardRequest", "200", "RewardAnswer"),
    "/reward/correct": ("CorrectionRequest", "200", "IdentifiedReward"),
    "/reward/subject": ("SubjectRewardRequest", "200", "CreditAnswer"),
    "/campaigns/{name}/reward/correct": ("CorrectionByPath", "200", "IdentifiedReward"),
    "/campaigns/{name}/reward/subject": ("SubjectRewardByPath", "200", "CreditAnswer"),
    "/reward/batch": ("RewardBatch", "200", "RewardResults"),
}
PLAIN = ("/decide", "/reward", "/decide/batch", "/reward/batch", "/reward/correct", "/reward/subject")


@pytest.fixture(scope="module")
def document():
    app = create_app(Settings(database_url=f"sqlite:///{gettempdir()}/never-opened.db"))
    return json.loads(json.dumps(app.openapi()))


def operations(document):
    """(method, path, operation) of every route."""
    return [(method, path, one) for path, methods in document["paths"].items() for method, one in methods.items()]


def schema_of(document, content):
    """The schema of a body and its name; CampaignConfig has one for requests and one for answers. Of several schemas,
    the last is the ordinary one."""
    schema = content["application/json"]["schema"]
    name = schema.get("anyOf", [schema])[-1]["$ref"].rpartition("/")[2]
    return document["components"]["schemas"][name], re.sub(r"-(Input|Output)$", "", name)


def examples(document, path):
    """Examples stand beside the reference to the schema, or in it."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    beside = content["application/json"]["schema"].get("examples", [])
    return beside + schema_of(document, content)[0].get("examples", [])


def test_every_route_is_described(document):
    """R24: its purpose, its parameters, and the one shape of its errors. Which routes and errors: test_fuzz.py."""
    assert not document["components"]["schemas"].keys() & {"HTTPValidationError", "ValidationError"}
    for method, path, operation in operations(document):
        assert operation["description"], path
        for status, answer in operation["responses"].items():
            if status >= "400" and path.startswith("/ofrep/"):  # that protocol has a shape of its own
                assert schema_of(document, answer["content"])[1] == "EvaluationFailure"
            elif status >= "400":
                assert answer == {"$ref": f"#/components/responses/{status}"}
                _, name = schema_of(document, document["components"]["responses"][status]["content"])
                assert name == "ErrorBody"
        if method in ("get", "delete"):
            assert "requestBody" not in operation  # R25: reading takes no body
        named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_lean_routes_show_what_they_take_and_give(document):
    for path, (taken, status, given) in BODIES.items():
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["required"] is True
        body, name = schema_of(document, operation["requestBody"]["content"])
        assert name == taken
        assert body["additionalProperties"] is False
        (good_status,) = (code for code in operation["responses"] if code < "400")
        answer, name = schema_of(document, operation["responses"][good_status]["content"])
        assert (good_status, name) == (status, given)
        assert answer["required"]


def find_unbounded(document, schema, way):
    """Yield the place of every list without maxItems and of every object of any fields without maxProperties."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield way
    if schema.get("type") == "object" and schema.get("additionalProperties") and "maxProperties" not in schema:
        yield way
    for part in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for one in schema.get(part, ()):
            yield from find_unbounded(document, one, way)
    for name, one in schema.get("properties", {}).items():
        yield from find_unbounded(document, one, f"{way}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from find_unbounded(document, schema[part], f"{way}[]")


def test_every_list_in_a_request_has_a_bound(document):
    """It is checked before anything is computed from the list."""
    found = set()
    for method, path, operation in operations(document):
        schemas = [parameter["schema"] for parameter in operation.get("parameters", ())]
        if "requestBody" in operation:
            schemas.append(operation["requestBody"]["content"]["application/json"]["schema"])
        for schema in schemas:
            found |= {*find_unbounded(document, schema, f"{method} {path}")}
    assert not found


def test_reading_routes_show_what_they_give(document):
    for method, path, operation in operations(document):
        if path == "/metrics":  # Prometheus has a format of its own
            assert operation["responses"]["200"]["content"].keys() == {"text/plain"}
        elif path == "/campaigns/{name}/decisions":  # a file
            kinds = {"application/x-ndjson", "text/csv", "application/vnd.apache.parquet"}
            assert operation["responses"]["200"]["content"].keys() == kinds
        elif method == "get":
            answer, _ = schema_of(document, operation["responses"]["200"]["content"])
            assert answer["properties"], path


@ONCE
def test_every_example_works_as_it_stands(client):
    """In the order a newcomer would try them, on a fresh service; and once more, as retries."""
    document = good(client.get("/openapi.json"))
    for _ in range(2):
        for path in ("/campaigns", *PLAIN, *(f"/campaigns/{{name}}{path}" for path in PLAIN)):
            bodies = examples(document, path)
            assert bodies, path
            for body in bodies:
                address = path.replace("{name}", "spring-offers")
                answer = good(client.post(address, json=body), int(BODIES[path][1]))
                assert all(result["error"] is None for result in answer.get("results", ()))
    (campaign,) = good(client.get("/campaigns"))["campaigns"]
    decides = [body for path in ("/decide", "/decide/batch") for body in examples(document, path)]
    decided = sum(len(body.get("items", [body])) for body in decides)
    revised = 2  # a correction, and an amount for a subject
    assert (campaign["round"], campaign["rewards_received"]) == (decided, decided + revised)
