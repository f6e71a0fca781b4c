"""Every route under schemathesis with all its checks, and every status that the OpenAPI document has, seen for real."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa

from service.access.roles import READERS, WATCHERS
from service.compat import matching
from service.storage.store import Store
from service.storage.tables import metadata
from service.web import bodies
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.fuzzing import fuzz, living
from tests.service.nasty import ASKED as OWN
from tests.service.nasty import CONFIG, CONTEXT, CORRECTION, CREDIT, EVALUATION, EVALUATIONS, LEVEL, Asked, encoded
from tests.service.routes import list_routes
from tests.service.test_auth import bearer, make
from tests.service.test_limits import Connection

SEED = 1
ASKED = [*EVALUATIONS, *OWN]
PLAIN = ("/decide", "/decide/batch", "/reward", "/reward/correct", "/reward/subject", "/reward/batch")
WITH_BODY = [asked for asked in ASKED if asked.method != "GET"]
KEYED = [asked for asked in ASKED if (asked.method, asked.path) not in (("GET", "/healthz"), ("GET", "/readyz"))]


class Place(NamedTuple):
    """A worker that asks for keys, and its keys."""

    worker: Worker
    database_url: str
    keys: dict[str, str]

    def ask(self, asked: Asked, key: str | None = "admin") -> httpx.Response:
        headers = {} if key is None else bearer(self.keys[key])
        content = None if asked.body is None else encoded(asked.body)
        return self.worker.client.request(
            asked.method, asked.address, content=content, params=asked.query, headers=headers
        )


@pytest.fixture(scope="module")
def place(new_database) -> Iterator[Place]:
    database_url = new_database("sqlite")
    store = Store(database_url)
    keys = {role: make(store, role) for role in ("admin", "client", "viewer")}
    keys |= {"elsewhere": make(store, "admin", "elsewhere"), "slow": make(store, rate=0.001)}
    store.close()
    worker = Worker(database_url, Clock())
    yield Place(worker, database_url, keys)
    worker.stop()


@pytest.fixture(scope="module")
def document(place) -> dict[str, Any]:
    return good(place.worker.client.get("/openapi.json"))


def documented(document: dict[str, Any]) -> set[tuple[str, int]]:
    return {
        (f"{method.upper()} {path}", int(status))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
    }


# --- schemathesis -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_schemathesis_finds_nothing(new_database, document):
    """All checks in all phases, on campaigns that live; the same requests in every run. `make fuzz` asks much more."""
    database_url = new_database("sqlite")
    store = Store(database_url)
    key = make(store)
    store.close()
    worker = Worker(database_url, time_now)
    try:
        with httpx.Client(base_url=worker.url, headers=bearer(key), timeout=60) as client:
            living(client)
        found = fuzz(worker.url, key, seed=SEED, examples=1, deterministic=True)
    finally:
        worker.stop()
    assert not found.failures, "\n\n".join(found.failures)
    assert {label for label, _ in found.seen} == {label for label, _ in documented(document)}
    # Beyond the methods that a route has, which every path answers with 405, there is nothing that it does not say.
    assert found.seen.keys() <= documented(document)


def time_now() -> int:
    return time.time_ns() // 1_000


# --- every status -----------------------------------------------------------------------------------------------------


def test_every_documented_status_is_real(place, document, monkeypatch):
    """Each answer that the document names can be had, and nothing else is answered."""
    seen: dict[tuple[str, int], httpx.Response] = {}

    def see(asked: Asked, response: httpx.Response) -> None:
        if response.status_code >= 400:
            error_of(response)
        seen[f"{asked.method} {asked.path}", response.status_code] = response

    monkeypatch.setattr(matching, "RELOAD_SECONDS", 0.0)
    for asked in _script():
        see(asked, place.ask(asked))
        if asked.path in PLAIN:  # the same with the campaign in the path
            body = {**asked.body}
            names = (("name", body.pop("campaign")),)
            again = Asked("POST", f"/campaigns/{{name}}{asked.path}", body, names=names)
            see(again, place.ask(again))
    for asked in KEYED:
        see(asked, place.ask(asked, None))  # 401
        see(asked, place.ask(asked, _unfit(asked)))  # 403
        place.ask(asked, "slow")
        see(asked, place.ask(asked, "slow"))  # 429
    for asked, response in _unsent(place, monkeypatch):
        see(asked, response)  # 408, 413
    for asked, response in _without_database(place):
        see(asked, response)  # 503
    headers = {"if-none-match": "*", **bearer(place.keys["admin"])}
    see(EVALUATIONS[1], place.worker.client.post(EVALUATIONS[1].path, json=EVALUATION, headers=headers))  # 304
    in_document = documented(document)
    assert {f"{label}: {status}" for label, status in seen.keys() - in_document} == set(), "not in the document"
    assert {f"{label}: {status}" for label, status in in_document - seen.keys()} == set(), "only in the document"


def _unfit(asked: Asked) -> str:
    """A key that is good, but not for this."""
    (roles,) = (
        served.access.roles
        for served in list_routes()
        if (served.method, served.path.replace(":path}", "}")) == (asked.method, asked.path)
    )
    return "elsewhere" if roles == READERS else "client" if roles == WATCHERS else "viewer"


def _script() -> Iterator[Asked]:
    """A campaign's life, with every mistake on the way."""
    post, item = "POST", {"decision_id": "d1", "context": CONTEXT}
    other = {**CONTEXT, "season": "winter"}
    for asked in ASKED[-3:]:
        yield asked
    # Before it is there.
    for asked in ASKED:
        if asked.path not in ("/campaigns", "/campaigns/check"):
            yield asked  # 404; rank: 422
    yield Asked(post, "/campaigns/check", CONFIG)
    yield Asked(post, "/campaigns/check", {**CONFIG, "actions": ["one"]})
    yield Asked(post, "/campaigns", {**CONFIG, "actions": ["one"]})
    yield Asked(post, "/campaigns", CONFIG)
    yield Asked(post, "/campaigns", {**CONFIG, "seed": 2})
    yield Asked(post, "/campaigns/check", {**CONFIG, "seed": 2})
    yield Asked(post, "/campaigns/{name}/clone", {"name": "nasty-2"})
    yield Asked(post, "/campaigns/{name}/clone", {"name": "nasty"})
    yield Asked(post, "/campaigns/{name}/clone", {"name": "Not a slug"})
    row = {"context": CONTEXT, "action": "mail", "reward": 1}
    yield Asked(post, "/campaigns/{name}/import", {"import_id": "i", "rows": [{**row, "action": "no action"}]})
    yield Asked(post, "/campaigns/{name}/import", {"import_id": "i", "rows": [row]}, names=(("name", "nasty-2"),))
    # Decisions.
    for subject, name in (("s1", "d1"), ("s2", "d2"), ("s2", "e2")):
        yield Asked(post, "/decide", {"campaign": "nasty", **item, "subject": subject, "decision_id": name})
    yield Asked(post, "/decide", {"campaign": "nasty", **item, "context": other})
    yield Asked(post, "/decide", {"campaign": "nasty", "context": {}})
    items = [{"decision_id": f"b{n}", "context": CONTEXT} for n in range(20)]
    yield Asked(post, "/decide/batch", {"campaign": "nasty", "items": items})
    yield Asked(post, "/decide/batch", {"campaign": "nasty", "items": [{**item, "context": other}]})
    yield Asked(post, "/decide/batch", {"campaign": "nasty", "items": []})
    yield Asked(post, "/reward", {"campaign": "nasty", "decision_id": "d1", "reward": 1})
    yield Asked(post, "/reward", {"campaign": "nasty", "decision_id": "d1", "reward": 2})
    yield Asked(post, "/reward", {"campaign": "nasty", "decision_id": "d1", "reward": 3})
    yield Asked(post, "/reward", {"campaign": "nasty", "decision_id": "b2", "reward": 3})
    for reward in (1, 2, None):
        yield Asked(post, "/reward/correct", {"campaign": "nasty", **CORRECTION, "reward": reward})
        yield Asked(post, "/reward/subject", {"campaign": "nasty", **CREDIT, "reward": reward})
    yield Asked(post, "/reward/subject", {"campaign": "nasty", **CREDIT, "subject": "nobody", "reward_id": "c3"})
    yield Asked(post, "/reward/batch", {"campaign": "nasty", "items": [{"decision_id": "b1", "reward": 1}]})
    yield Asked(post, "/reward/batch", {"campaign": "nasty", "items": []})
    actions = {"actions": [{"id": action} for action in CONFIG["actions"]]}
    rank = {**actions, "contextFeatures": [CONTEXT], "eventId": "r1"}
    event = (("eventId", "r1"),)
    yield Asked(post, "/campaigns/{name}/archive", names=(("name", "nasty-2"),))  # so that one campaign fits
    yield Asked(post, "/personalizer/v1.0/rank", rank)
    yield Asked(post, "/personalizer/v1.0/rank", {**rank, "contextFeatures": [other]})
    for value in ("x", 1, 2):
        yield Asked(post, "/personalizer/v1.0/events/{eventId}/reward", {"value": value}, names=event)
    yield Asked(post, "/personalizer/v1.0/events/{eventId}/activate", names=event)
    yield Asked(post, "/personalizer/v1.0/events/{eventId}/activate", names=(("eventId", "%00"),))
    yield EVALUATIONS[0]
    for path in ("/ofrep/v1/evaluate/flags/{name}", "/ofrep/v1/evaluate/flags"):
        yield Asked(post, path, {"context": None})
    # An event of two campaigns.
    yield Asked(post, "/campaigns/{name}/unarchive", names=(("name", "nasty-2"),))
    yield Asked(post, "/decide", {"campaign": "nasty-2", **item})
    yield Asked(post, "/personalizer/v1.0/events/{eventId}/activate", names=(("eventId", "d1"),))
    # What was erased is gone.
    yield Asked(post, "/subjects/export", {"subject": "s2"})
    yield Asked(post, "/subjects/erase", {"subject": "s2"})
    for path in ("/subjects/export", "/subjects/erase"):
        yield Asked(post, path, {"subject": ""})
    for name in ("d2", "e2"):
        yield Asked(post, "/decide", {"campaign": "nasty", **item, "decision_id": name, "subject": "s2"})
        yield Asked(post, "/decide/batch", {"campaign": "nasty", "items": [{**item, "decision_id": name}]})
        yield Asked(post, "/reward", {"campaign": "nasty", "decision_id": name, "reward": 1})
        yield Asked(post, "/reward/correct", {"campaign": "nasty", **CORRECTION, "decision_id": name})
        yield Asked(post, "/personalizer/v1.0/events/{eventId}/reward", {"value": 1}, names=(("eventId", name),))
        yield Asked(post, "/personalizer/v1.0/events/{eventId}/activate", names=(("eventId", name),))
        yield Asked(post, "/campaigns/{name}/explain", {"decision_id": name})
        names = (("name", "nasty"), ("decision_id", name))
        yield Asked("GET", "/campaigns/{name}/decisions/{decision_id}", names=names)
    yield Asked(post, "/campaigns/{name}/archive", names=(("name", "nasty-2"),))
    yield Asked(post, "/personalizer/v1.0/rank", {**rank, "eventId": "e2"})
    # Reading.
    yield Asked("GET", "/campaigns", query=(("limit", "0"),))
    yield Asked("GET", "/audit", query=(("limit", "0"),))
    for path in ("stages", "revisions", "alerts", "report", "series", "decisions"):
        wrong = {"report": "model_version", "series": "points", "decisions": "format"}.get(path, "limit")
        yield Asked("GET", f"/campaigns/{{name}}/{path}", query=((wrong, "no"),))
    for asked in ASKED:
        if asked.method == "GET":
            yield asked
    # Changes.
    for path in ("preview", "explain", "actions", "actions/retire", "levels", "rollback"):
        yield Asked(post, f"/campaigns/{{name}}/{path}", {"no": "such field"})
    yield Asked(post, "/campaigns/{name}/preview", {"context": CONTEXT})
    yield Asked(post, "/campaigns/{name}/explain", {"decision_id": "d1"})
    yield Asked(post, "/campaigns/{name}/import", {"import_id": "late", "rows": [row]})
    yield Asked("PATCH", "/campaigns/{name}", {"paused": 1})
    yield Asked("PATCH", "/campaigns/{name}", {"stage_length": 7})
    yield Asked("PATCH", "/campaigns/{name}", {"control": {"share": 0.2}})
    yield Asked(post, "/campaigns/{name}/rollback", {"model_version": 1})
    yield Asked(post, "/campaigns/{name}/rollback", {"model_version": 99})
    yield Asked(post, "/campaigns/{name}/actions", {"action": "message"})
    yield Asked(post, "/campaigns/{name}/levels", LEVEL)
    yield Asked(post, "/campaigns/{name}/actions/retire", {"action": "message"})
    yield Asked("DELETE", "/campaigns/{name}", query=(("confirm", "nasty"),))  # 409: in use
    yield Asked(post, "/campaigns/{name}/archive")
    yield Asked(post, "/campaigns/{name}/actions", {"action": "more"})
    yield Asked(post, "/campaigns/{name}/levels", LEVEL)
    yield Asked(post, "/campaigns/{name}/actions/retire", {"action": "call"})
    yield Asked(post, "/campaigns/{name}/rollback", {"model_version": 1})
    yield Asked("DELETE", "/campaigns/{name}", query=(("confirm", "nastier"),))
    yield Asked("DELETE", "/campaigns/{name}", query=(("confirm", "nasty"),))
    yield Asked(post, "/campaigns", CONFIG)


def _unsent(place: Place, monkeypatch: Any) -> Iterator[tuple[Asked, httpx.Response]]:
    """Bodies that say they are too large, and bodies that never come."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    waiting = []
    for asked in WITH_BODY:
        for length in (bodies.LARGEST_BODY + 1, 10):
            connection = Connection(place.worker.url)
            top = [f"{asked.method} {asked.address}?confirm=nasty HTTP/1.1", "host: a", f"content-length: {length}"]
            top += [f"authorization: Bearer {place.keys['admin']}", "", ""]
            connection.send("\r\n".join(top).encode())
            waiting.append((asked, connection))
    for asked, connection in waiting:
        yield asked, connection.answer()
        connection.close()


def _without_database(place: Place) -> Iterator[tuple[Asked, httpx.Response]]:
    """All that needs the database while its tables are away; keys are known still."""
    tables = [*metadata.tables, "alembic_version"]
    engine = sa.create_engine(place.database_url)
    try:
        for before, after in (("", "_away"), ("_away", "")):
            with engine.begin() as connection:
                for table in tables:
                    connection.execute(sa.text(f'ALTER TABLE "{table}{before}" RENAME TO "{table}{after}"'))
            if after:
                for asked in ASKED:
                    yield asked, place.ask(asked)
    finally:
        engine.dispose()
