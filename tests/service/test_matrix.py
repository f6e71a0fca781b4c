"""Who may call what: every route, asked by everyone. The table is written out here, so that no rule changes unseen."""

from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa

from service.access.auth import COOKIE, PAGE, RULES, id_of
from service.storage.store import Store
from service.storage.tables import metadata
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.test_auth import BODIES, CONFIG, bearer, make

# method, path, who may (a: admin, c: client, v: viewer, * anyone without a key), and where it names its campaign
TABLE = """
GET     /healthz                                             *
GET     /readyz                                              *
GET     /docs                                                *
GET     /redoc                                               *
GET     /openapi.json                                        *
HEAD    /openapi.json                                        *
*       /docs-assets/{path:path}                             *
*       /dashboard-assets/{path:path}                        *
GET     /                                                    *
GET     /login                                               *
GET     /new                                                 *
GET     /view/{name}                                         *
GET     /view/{name}/decision                                *
GET     /view/{name}/try                                     *
POST    /login                                               *
POST    /logout                                              *
GET     /whoami                                              *
POST    /decide                                              ac    body
POST    /decide/batch                                        ac    body
POST    /reward                                              ac    body
POST    /reward/batch                                        ac    body
POST    /personalizer/v1.0/rank                              ac    among
POST    /personalizer/v1.0/events/{eventId:path}/reward      ac    among
POST    /personalizer/v1.0/events/{eventId:path}/activate    ac    among
GET     /campaigns                                           acv   list
GET     /campaigns/{name}                                    acv   path
GET     /campaigns/{name}/decisions                          av    path
GET     /campaigns/{name}/decisions/{decision_id:path}       acv   path
GET     /campaigns/{name}/model                              acv   path
GET     /campaigns/{name}/stages                             acv   path
GET     /campaigns/{name}/revisions                          acv   path
GET     /campaigns/{name}/alerts                             acv   path
GET     /campaigns/{name}/report                             acv   path
GET     /campaigns/{name}/regimes                            acv   path
GET     /campaigns/{name}/diagnostics                        acv   path
GET     /campaigns/{name}/series                             acv   path
POST    /campaigns/{name}/preview                            acv   path
POST    /campaigns/{name}/explain                            acv   path
POST    /campaigns                                           a     body
POST    /campaigns/check                                     a     body
PATCH   /campaigns/{name}                                    a     path
DELETE  /campaigns/{name}                                    a     path
POST    /campaigns/{name}/archive                            a     path
POST    /campaigns/{name}/unarchive                          a     path
POST    /campaigns/{name}/rollback                           a     path
POST    /campaigns/{name}/actions                            a     path
POST    /campaigns/{name}/actions/retire                     a     path
POST    /campaigns/{name}/import                             a     path
POST    /campaigns/{name}/clone                              a     path
POST    /subjects/erase                                      a     list
POST    /subjects/export                                     a     list
GET     /metrics                                             av
GET     /audit                                               a
"""
LETTERS = {"a": "admin", "c": "client", "v": "viewer"}
CHANGE_NOTHING = {"/campaigns/{name}/preview", "/campaigns/{name}/explain"}  # although they are POST
# A body that a route can understand, so that nothing but the key decides.
MORE_BODIES: dict[str, Any] = {
    "/campaigns/{name}": {"paused": False},
    "/campaigns/{name}/preview": {"context": {"risk": "low"}},
    "/campaigns/{name}/explain": {"decision_id": "d1"},
    "/campaigns/{name}/rollback": {"model_version": 1},
    "/campaigns/{name}/actions": {"action": "call"},
    "/campaigns/{name}/actions/retire": {"action": "call"},
    "/campaigns/{name}/import": {"import_id": "i", "rows": [{"action": "none", "context": {"risk": "low"}}]},
    "/campaigns/{name}/clone": {"name": "spare"},
    "/subjects/erase": {"subject": "customer-1"},
    "/subjects/export": {"subject": "customer-1"},
    "/personalizer/v1.0/rank": {"actions": [{"id": "none", "features": []}], "eventId": "e"},
    "/personalizer/v1.0/events/{eventId:path}/reward": {"value": 1},
}
PATHS = {"{path:path}": "nothing", "{decision_id:path}": "d1", "{eventId:path}": "d1"}


class Line(NamedTuple):
    method: str
    path: str
    roles: str
    campaign: str | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def may(self, role: str) -> bool:
        return role in {LETTERS[letter] for letter in self.roles}


LINES = [Line(*line.split()) for line in TABLE.strip().splitlines()]
GUARDED = [line for line in LINES if line.roles != "*"]
ROLES = tuple(LETTERS.values())


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
        tx.revoke_key(id_of(keys["revoked"]), 2)
    headers = {who: bearer(key) for who, key in keys.items()}
    headers["unknown"] = bearer(f"uc_{id_of(keys['admin'])}_wrong")
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


def expected(line: Line, who: str) -> int | None:
    """The status that refuses someone, None if they are let in. All requests are about campaign `spare`."""
    if who in ("nobody", "unknown", "revoked", "revoked's page", "nobody's page"):
        return 401
    role, _, how = who.replace("'s", "").partition(" ")
    if how == "cookie" and line.method not in ("GET", "HEAD"):
        return 403  # another site can make a browser send it
    if not line.may(role):
        return 403
    if how == "of other":
        return None if line.campaign in ("list", "among") else 403
    if how == "of spare":
        return None if line.campaign is not None else 403
    return None


def test_the_rules_are_these_and_no_others():
    told = {}
    for (method, path), rule in RULES.items():
        roles = "*" if "anyone" in rule.roles else "".join(sorted(role[0] for role in rule.roles))
        told[method, path] = (roles, rule.campaign)
    assert told == {(line.method, line.path): (line.roles, line.campaign) for line in LINES}


def test_a_viewer_changes_nothing_and_a_client_only_decides():
    """For the two that are POSTs, tests/service/test_preview.py looks at every row."""
    for line in GUARDED:
        assert line.method == "GET" or line.path in CHANGE_NOTHING or not line.may("viewer"), line
        deciding = line.path.startswith(("/decide", "/reward", "/personalizer"))
        assert line.method == "GET" or line.path in CHANGE_NOTHING or deciding or not line.may("client"), line


@pytest.mark.parametrize("line", GUARDED, ids=str)
def test_everyone_at_every_route(everyone, line):
    """First those who are refused: nothing of the database changes. Then those who are not."""
    before = everyone.rows()
    for who in everyone.headers:
        status = expected(line, who)
        if status is not None:
            answer = everyone.ask(who, line.method, line.path)
            assert answer.status_code == status, f"{who}: {answer.text}"
            error_of(answer, status)
    assert everyone.rows() == before
    for who in everyone.headers:
        if expected(line, who) is None:
            answer = everyone.ask(who, line.method, line.path)
            assert answer.status_code not in (401, 403, 405, 500), f"{who}: {answer.text}"
    if line.campaign in ("path", "body"):  # a key of another campaign learns not even whether there is one
        texts = {
            error_of(everyone.ask("admin of other", line.method, line.path, name), 403)["message"].replace(name, "X")
            for name in ("spare", "nowhere")
        }
        assert len(texts) == 1
    everyone.worker.client.post(  # some of them delete it
        "/campaigns", json={"name": "spare", **CONFIG}, headers=everyone.headers["admin"]
    )


@pytest.mark.parametrize("line", [line for line in LINES if line.roles == "*"], ids=str)
def test_everyone_gets_what_is_public(everyone, line):
    method, asset = line.method, line.path.replace("{path:path}", "favicon.png" if "docs" in line.path else "app.css")
    for who, headers in everyone.headers.items():
        answer = everyone.ask(who, "GET" if method == "*" else method, asset)
        if (method, line.path) in (("POST", "/login"), ("POST", "/logout")):
            expecting = {403, 422} if PAGE not in headers else {204, 422}  # 422: there was no body
            assert answer.status_code in expecting, who
        else:
            assert answer.status_code == 200, who


@pytest.mark.parametrize("path", sorted({line.path for line in LINES}))
def test_other_methods_are_for_nobody(everyone, path):
    """Without a key they look like everything else; with one, the answer is that there is no such thing."""
    known = {line.method for line in LINES if line.path == path}
    if "*" in known:  # a mount: files, which answer GET and HEAD only
        assert everyone.ask("nobody", "POST", path).status_code == 405
        return
    if path == "/campaigns/check":
        known |= {"GET", "DELETE"}  # of a campaign of that name
    for method in {"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"} - known:
        assert everyone.ask("nobody", method, path).status_code == 401, method
        assert everyone.ask("admin", method, path).status_code in (404, 405), method
