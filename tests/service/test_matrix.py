"""Every route, called by everyone: each lets in exactly those whom it declares."""

import re
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa

from service.access.keys import COOKIE, PAGE, get_key_id
from service.access.roles import ROLES
from service.storage.keys import revoke_key
from service.storage.store import Store
from service.storage.tables import metadata
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.routes import ServedRoute, list_routes
from tests.service.test_auth import BODIES, CONFIG, bearer, make

DECIDING = re.compile(r"(/campaigns/{name})?/(decide|reward)|/personalizer|/ofrep")
CHANGE_NOTHING = {"/campaigns/{name}/preview", "/campaigns/{name}/explain"}  # although they are POST
PUBLIC = {
    *("GET /healthz", "GET /readyz", "GET /docs", "GET /redoc", "GET /openapi.json", "HEAD /openapi.json"),
    *("* /docs-assets/{path:path}", "* /dashboard-assets/{path:path}"),
    *("GET /", "GET /login", "GET /new", "GET /view/{name}", "GET /view/{name}/decision", "GET /view/{name}/try"),
    *("POST /login", "POST /logout", "GET /whoami"),
}
# A body that a route can understand, so that nothing but the key decides.
MORE_BODIES: dict[str, Any] = {
    "/campaigns/{name}": {"paused": False},
    "/campaigns/{name}/preview": {"context": {"risk": "low"}},
    "/campaigns/{name}/explain": {"decision_id": "d1"},
    "/campaigns/{name}/rollback": {"model_version": 1},
    "/campaigns/{name}/actions": {"action": "call"},
    "/campaigns/{name}/actions/retire": {"action": "call"},
    "/campaigns/{name}/levels": {"variable": "risk", "level": "unknown"},
    "/campaigns/{name}/import": {"import_id": "i", "rows": [{"action": "none", "context": {"risk": "low"}}]},
    "/campaigns/{name}/clone": {"name": "spare"},
    "/subjects/erase": {"subject": "customer-1"},
    "/subjects/export": {"subject": "customer-1"},
    "/personalizer/v1.0/rank": {"actions": [{"id": "none", "features": []}], "eventId": "e"},
    "/personalizer/v1.0/events/{eventId:path}/reward": {"value": 1},
}
PATHS = {"{path:path}": "nothing", "{decision_id:path}": "d1", "{eventId:path}": "d1"}


class Everyone(NamedTuple):
    """A worker, its database, and the headers of all who may ask; campaign `spare` is there to suffer."""

    worker: Worker
    store: Store
    headers: dict[str, dict[str, str]]

    def ask(self, who: str, method: str, path: str, campaign: str = "spare") -> httpx.Response:
        address = path.replace("{name}", campaign)
        for part, value in PATHS.items():
            address = address.replace(part, value)
        if method == "DELETE":
            address += f"?confirm={campaign}"
        body = None
        if method in ("POST", "PATCH"):
            body = BODIES[path](campaign) if path in BODIES else MORE_BODIES.get(path)
        answer = self.worker.client.request(method, address, json=body, headers=self.headers[who])
        self.worker.client.cookies.clear()
        return answer

    def rows(self) -> dict[str, list[Any]]:
        """Everything that the database holds, but for the counts of refused keys."""
        found = {}
        with self.store.reading() as tx:
            for name, table in metadata.tables.items():
                query = sa.select(table).order_by(*table.primary_key)
                query = query.where(table.c.outcome != "refused") if name == "audit" else query
                found[name] = [tuple(row) for row in tx.connection.execute(query)]
        return found


@pytest.fixture(scope="module")
def everyone(new_database):
    database_url = new_database("sqlite")
    store = Store(database_url)
    keys = {role: make(store, role) for role in ROLES}
    keys |= {f"{role} of spare": make(store, role, "spare") for role in ROLES}
    keys |= {f"{role} of other": make(store, role, "other") for role in ROLES}
    keys["revoked"] = make(store)
    with store.writing() as tx:
        revoke_key(tx, get_key_id(keys["revoked"]), 2)
    headers = {who: bearer(key) for who, key in keys.items()}
    headers["unknown"] = bearer(f"uc_{get_key_id(keys['admin'])}_wrong")
    headers["nobody"] = {}
    for role in ROLES:
        headers[f"{role}'s cookie"] = {"cookie": f"{COOKIE}={keys[role]}"}
        headers[f"{role}'s page"] = headers[f"{role}'s cookie"] | {PAGE: "1"}
    headers["revoked's page"] = {"cookie": f"{COOKIE}={keys['revoked']}", PAGE: "1"}
    headers["nobody's page"] = {PAGE: "1"}
    worker = Worker(database_url, Clock())
    found = Everyone(worker, store, headers)
    for name in ("spare", "other"):
        good(worker.client.post("/campaigns", json={"name": name, **CONFIG}, headers=headers["admin"]), 201)
    yield found
    worker.stop()
    store.close()


def expected(served: ServedRoute, who: str) -> int | None:
    """The status that refuses someone, None if they are let in. All requests are about campaign `spare`."""
    if who in ("nobody", "unknown", "revoked", "revoked's page", "nobody's page"):
        return 401
    role, _, how = who.replace("'s", "").partition(" ")
    if how == "cookie" and served.method not in ("GET", "HEAD"):
        return 403  # another site can make a browser send it
    if not served.allows(role):
        return 403
    if how == "of other":
        return None if served.access.campaign in ("list", "among") else 403
    if how == "of spare":
        return None if served.access.campaign is not None else 403
    return None


GUARDED = [served for served in list_routes() if not served.access.is_public]
OPEN = [served for served in list_routes() if served.access.is_public]


def test_declarations_make_sense():
    """Viewers change nothing, clients only decide. Where a campaign is named, something checks it."""
    assert {str(served) for served in OPEN} == PUBLIC
    for served in GUARDED:
        assert served.allows("admin"), served
        if served.method != "GET" and served.path not in CHANGE_NOTHING:  # test_preview.py looks at every row of theirs
            assert not served.allows("viewer"), served
            assert DECIDING.match(served.path) or not served.allows("client"), served
        assert (served.access.campaign == "path") == ("{name}" in served.path), served
        assert served.access.campaign != "body" or served.is_lean, served


@pytest.mark.parametrize("served", GUARDED, ids=str)
def test_everyone_at_every_route(everyone, served):
    """First those who are refused: nothing of the database changes. Then those who are not."""
    before = everyone.rows()
    for who in everyone.headers:
        status = expected(served, who)
        if status is not None:
            answer = everyone.ask(who, served.method, served.path)
            assert answer.status_code == status, f"{who}: {answer.text}"
            error_of(answer, status)
    assert everyone.rows() == before
    for who in everyone.headers:
        if expected(served, who) is None:
            answer = everyone.ask(who, served.method, served.path)
            assert answer.status_code not in (401, 403, 405, 500), f"{who}: {answer.text}"
    if served.access.campaign in ("path", "body"):  # a key of another campaign learns not even whether there is one
        texts = {
            error_of(everyone.ask("admin of other", served.method, served.path, name), 403)["message"].replace(
                name, "X"
            )
            for name in ("spare", "nowhere")
        }
        assert len(texts) == 1
    everyone.worker.client.post(  # some of them delete it
        "/campaigns", json={"name": "spare", **CONFIG}, headers=everyone.headers["admin"]
    )


def test_public_routes_answer_everyone(everyone):
    for served in OPEN:
        path = served.path.replace("{path:path}", "favicon.png" if "docs" in served.path else "app.css")
        for who, headers in everyone.headers.items():
            answer = everyone.ask(who, "GET" if served.method == "*" else served.method, path)
            if str(served) in ("POST /login", "POST /logout"):
                expecting = {403, 422} if PAGE not in headers else {204, 422}  # 422: there was no body
                assert answer.status_code in expecting, (served, who)
            else:
                assert answer.status_code == 200, (served, who)


def test_other_methods_are_for_nobody(everyone):
    """Without a key they look like everything else; with one, the answer is that there is no such thing."""
    for path in {served.path for served in list_routes()}:
        known = {served.method for served in list_routes() if served.path == path}
        if "*" in known:  # a mount: files, which answer GET and HEAD only
            assert everyone.ask("nobody", "POST", path).status_code == 405
            continue
        if path == "/campaigns/check":
            known |= {"GET", "DELETE"}  # of a campaign of that name
        for method in {"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"} - known:
            assert everyone.ask("nobody", method, path).status_code == 401, (method, path)
            assert everyone.ask("admin", method, path).status_code in (404, 405), (method, path)
