"""Keys: how they are checked, kept up to date and limited. Which key may call which route is in test_matrix.py."""

import asyncio
import hmac
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy as sa

from service.access import gate
from service.access.keys import Key, get_key_id, make_key
from service.access.roles import READERS, ROLES, allow
from service.base.errors import TooManyRequestsError
from service.base.settings import Settings
from service.cli.application import create_app
from service.engine.worker import Service
from service.storage.keys import add_key, revoke_key
from service.storage.store import Store
from service.storage.tables import keys as key_table
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.playing import eventually
from tests.service.scraping import Scrape

ONCE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # no database is involved
CONFIG = {"actions": ["none", "mail"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
ITEM = {"decision_id": "d1", "context": {"risk": "low"}}
CORRECTION = {"decision_id": "d1", "reward": 2, "reward_id": "r1"}
CREDIT = {"subject": "customer-1", "reward": 2, "reward_id": "r2"}
BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/decide": lambda campaign: {"campaign": campaign, **ITEM},
    "/decide/batch": lambda campaign: {"campaign": campaign, "items": [ITEM]},
    "/reward": lambda campaign: {"campaign": campaign, "decision_id": "d1", "reward": 1},
    "/reward/correct": lambda campaign: {"campaign": campaign, **CORRECTION},
    "/reward/subject": lambda campaign: {"campaign": campaign, **CREDIT},
    "/reward/batch": lambda campaign: {"campaign": campaign, "items": [{"decision_id": "d1", "reward": 1}]},
    "/campaigns/{name}/decide": lambda campaign: ITEM,
    "/campaigns/{name}/decide/batch": lambda campaign: {"items": [ITEM]},
    "/campaigns/{name}/reward": lambda campaign: {"decision_id": "d1", "reward": 1},
    "/campaigns/{name}/reward/correct": lambda campaign: CORRECTION,
    "/campaigns/{name}/reward/subject": lambda campaign: CREDIT,
    "/campaigns/{name}/reward/batch": lambda campaign: {"items": [{"decision_id": "d1", "reward": 1}]},
    "/campaigns": lambda campaign: {"name": campaign, **CONFIG},
    "/campaigns/check": lambda campaign: {"name": campaign, **CONFIG},
}


def make(store: Store, role: str = "admin", *campaigns: str, rate: float | None = None) -> str:
    """A key, as `undercurrent keys create` makes it."""
    key, row = make_key(role, campaigns, rate, "", 1)
    with store.writing() as tx:
        add_key(tx, row)
    return key


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Guarded(NamedTuple):
    """A worker that asks for keys, and keys of each kind; those called limited only cover `mine` and `spare`.

    Campaign `spare` is for requests of which only the status matters.
    """

    worker: Worker
    keys: dict[str, str]

    def ask(self, kind: str | None, method: str, path: str, campaign: str = "spare", **more: Any) -> httpx.Response:
        """A request for a route, about a campaign."""
        address = path.replace("{name}", campaign).replace("{decision_id:path}", "d1")
        body = BODIES[path](campaign) if method == "POST" and path in BODIES else None
        headers = bearer(self.keys[kind]) if kind else None
        return self.worker.client.request(method, address, json=body, headers=headers, **more)


@pytest.fixture(scope="module")
def guarded(new_database):
    database_url = new_database("sqlite")
    store = Store(database_url)
    keys = {role: make(store, role) for role in ROLES}
    keys |= {f"limited {role}": make(store, role, "mine", "spare") for role in ROLES}
    store.close()
    worker = Worker(database_url, Clock())
    found = Guarded(worker, keys)
    for name in ("mine", "other", "third"):
        good(found.ask("admin", "POST", "/campaigns", name), 201)
    yield found
    worker.stop()


@pytest.fixture
def store(database_url):
    store = Store(database_url)
    yield store
    store.close()


def test_refused_requests_are_counted_by_route(guarded):
    """By the route's template; a path without a route is `other`."""

    def counted():
        scrape = Scrape(guarded.worker.client, bearer(guarded.keys["admin"]))
        return scrape.by("requests_total", "route", "method", "status")

    before = counted()
    requests = (
        ("POST", "/decide", "/decide"),
        ("GET", "/campaigns/{name}", "/campaigns/{name}"),
        ("GET", "/x", "other"),
    )
    for method, path, route in requests:
        error_of(guarded.ask(None, method, path), 401)
        assert counted()[route, method, "401"] == before.get((route, method, "401"), 0) + 1


@pytest.fixture
def unstarted(tmp_path):
    """A service that knows one key, and its application below a proxy's path, without a socket."""
    settings = Settings(database_url=f"sqlite:///{tmp_path}/new.db")
    service = Service(settings)
    app = create_app(settings, service)
    with service.store.writing() as tx:
        key_table.create(tx.connection)
    key = make(service.store)
    service.keys.load()

    async def get(path: str, *headers: dict[str, str]) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path="/bandits")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/bandits") as client:
            return [await client.get(path, headers=one) for one in headers]

    yield app, service, lambda path: asyncio.run(get(path, bearer(key), {}))
    service.store.close()


def test_a_route_must_declare_who_may_call_it(unstarted):
    app, _, get = unstarted

    async def new(name: str) -> str:
        return name

    with pytest.raises(TypeError, match=r"new does not declare who may call it"):
        app.api.get("/new/{name}")(new)
    app.api.add_route("/new/a", new)  # not one of our own routes: it lets nobody in
    assert [answer.status_code for answer in get("/new/a")] == [500, 500]
    known, nobody = get("/newer")
    error_of(known, 404)
    error_of(nobody, 401)


def test_a_failure_of_the_check_lets_nobody_in(unstarted):
    """An unexpected exception, on any route."""
    app, service, get = unstarted
    called = []

    @app.api.get("/campaigns", name="before the real one")
    @allow(READERS, campaign="list")
    async def campaigns() -> None:
        called.append(True)

    app.api.router.routes.insert(0, app.api.router.routes.pop())
    assert get("/campaigns")[0].status_code == 200
    service.keys._clock = lambda: 1 / 0
    known, nobody = get("/campaigns")
    error_of(known, 500)
    error_of(nobody, 401)
    assert called == [True]


# --- who may call what ------------------------------------------------------------------------------------------------


def test_the_list_only_has_campaigns_that_the_key_covers(guarded):
    def names(kind: str, **query: Any) -> list[str]:
        page = good(guarded.ask(kind, "GET", "/campaigns", params=query))
        return [campaign["name"] for campaign in page["campaigns"] if campaign["name"] != "spare"]

    assert names("admin") == names("viewer") == ["mine", "other", "third"]
    assert names("limited viewer") == names("limited client", limit=1) == ["mine"]
    assert names("limited admin", cursor="mine") == []


def test_a_clone_needs_a_key_for_both_campaigns(guarded):
    def clone(kind: str, name: str) -> httpx.Response:
        headers = bearer(guarded.keys[kind])
        return guarded.worker.client.post("/campaigns/mine/clone", json={"name": name}, headers=headers)

    assert "'elsewhere'" in error_of(clone("limited admin", "elsewhere"), 403)["message"]
    assert clone("limited admin", "spare").status_code in (201, 409)
    assert clone("client", "spare").status_code == 403


# --- keys -------------------------------------------------------------------------------------------------------------


@ONCE
def test_a_key_is_long_random_and_stored_as_a_hash(store, database_url):
    found = [make(store) for _ in range(20)]
    for key in found:
        prefix, key_id, secret = key.split("_", 2)
        assert (prefix, get_key_id(key)) == ("uc", key_id)
        assert re.fullmatch(r"[0-9a-f]{10}", key_id)
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secret)  # 256 bits, six a character
    assert len({key.split("_", 2)[2] for key in found}) == len({get_key_id(key) for key in found}) == 20
    with store.reading() as tx:
        stored = repr(tx.connection.execute(sa.select(key_table)).all())
    assert not any(key.split("_", 2)[2] in stored for key in found)


def test_both_headers_carry_a_key(guarded):
    key = guarded.keys["viewer"]
    basic = {"authorization": "Basic dTpw"}
    for headers in (bearer(key), {"authorization": f"bearer  {key}"}, {"x-api-key": key}, basic | {"x-api-key": key}):
        assert guarded.worker.client.get("/campaigns", headers=headers).status_code == 200
    error_of(guarded.worker.client.get("/campaigns", headers=basic), 401)


def test_a_key_that_is_not_known(guarded):
    key, other = guarded.keys["viewer"], guarded.keys["admin"]
    _, key_id, secret = key.split("_", 2)
    wrong = ("", "_", f"_{secret}x", f"_{secret[:-1]}", f"_{other.split('_', 2)[2]}")
    strangers = [f"uc_{key_id}{end}" for end in wrong] + [f"uc_0000000000_{secret}"]
    for stranger in ("", "uc", "uc__", secret, *strangers, key.upper(), "ü".encode("latin-1")):
        response = guarded.worker.client.get("/campaigns", headers={"x-api-key": stranger})
        assert error_of(response, 401)["message"] == "This key is not known"
        assert response.headers["www-authenticate"] == "Bearer"


def test_an_unknown_id_is_compared_like_a_wrong_secret(guarded, monkeypatch):
    """Both in constant time, so that timing does not reveal which ids exist."""
    compared = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return hmac.compare_digest(first, second)

    monkeypatch.setattr(gate, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    for key in (f"uc_{get_key_id(guarded.keys['admin'])}_wrong", "uc_0000000000_wrong", "nonsense"):
        error_of(guarded.worker.client.get("/campaigns", headers=bearer(key)), 401)
    assert compared == [(32, 32)] * 3


def test_openapi_declares_the_keys(guarded):
    document = good(guarded.worker.client.get("/openapi.json"))
    schemes = document["components"]["securitySchemes"]
    assert (schemes["key"]["type"], schemes["key"]["scheme"]) == ("http", "bearer")
    assert schemes["personalizer"]["name"] == "Ocp-Apim-Subscription-Key"
    assert document["security"] == [{"key": []}]
    open_to_all = {path for path, methods in document["paths"].items() if methods.get("get", {}).get("security") == []}
    assert open_to_all == {"/healthz", "/readyz"}


# --- keeping up with the database -------------------------------------------------------------------------------------


def status(worker: Worker, key: str | None = None) -> int:
    return worker.client.get("/campaigns", headers=bearer(key) if key else None).status_code


def test_keys_take_effect_on_every_worker_without_a_restart(start, store):
    """The first one turns authentication on, a revoked one is useless; each within a second, for that is read twice."""
    assert gate.RELOAD_SECONDS <= 0.5
    workers = [start(), start()]
    assert [status(worker) for worker in workers] == [200, 200]  # no key: no authentication
    first = make(store)
    eventually(lambda: [status(worker) for worker in workers] == [401, 401], "asked for a key")
    assert [status(worker, first) for worker in workers] == [200, 200]
    second = make(store, "viewer")
    eventually(lambda: [status(worker, second) for worker in workers] == [200, 200], "known")
    with store.writing() as tx:
        assert revoke_key(tx, get_key_id(first), 2)
        assert not revoke_key(tx, get_key_id(first), 3)
        assert not revoke_key(tx, "nobody", 3)
    eventually(lambda: [status(worker, first) for worker in workers] == [401, 401], "revoked")
    response = workers[0].client.get("/campaigns", headers=bearer(first))
    assert error_of(response, 401)["message"] == "This key was revoked"
    assert [status(worker, second) for worker in workers] == [200, 200]
    with store.writing() as tx:
        revoke_key(tx, get_key_id(second), 4)
    eventually(lambda: status(workers[1], second) == 401, "revoked")
    assert status(workers[1]) == 401  # a revoked key is still a key: nothing is open again
    assert status(start()) == 401


def test_the_last_known_keys_are_good_while_the_database_is_away(start, store):
    """And an emptied table does not open the service, which may be public: only a restart does."""
    key = make(store)
    worker = start()
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE keys RENAME TO hidden"))
    other = make_key("admin", (), None, "", 1)[0]
    with pytest.raises(Exception, match="does not answer"):
        worker.service.keys.load()
    assert (status(worker, key), status(worker, other), status(worker)) == (200, 401, 401)
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE hidden RENAME TO keys"))
        tx.connection.execute(sa.delete(key_table))
    eventually(lambda: status(worker, key) == 401, "read again")
    assert status(worker) == 401


# --- rate limits ------------------------------------------------------------------------------------------------------


@ONCE
def test_a_key_above_its_rate_limit_gets_retry_after(start, store):
    """Every request counts, also refused ones; other keys are not affected."""
    slow, other = make(store, "client", rate=0.01), make(store, "client", rate=1000)
    worker = start()
    assert worker.client.get("/healthz", headers=bearer(slow)).status_code == 200  # public: no key is looked at
    assert worker.client.post("/campaigns", json={}, headers=bearer(slow)).status_code == 403
    response = worker.client.get("/campaigns", headers=bearer(slow))
    error = error_of(response, 429)
    assert error["code"] == "too_many_requests"
    assert "0.01 requests a second" in error["message"]
    assert 95 <= int(response.headers["retry-after"]) <= 100
    assert status(worker, other) == 200
    worker.service.keys.load()
    assert status(worker, slow) == 429  # reading the keys again gives no new tokens


def allowed(key: Key, now: float) -> int:
    """How many requests pass at a moment; the refusal's Retry-After is then long enough, and not a second longer."""
    count = 0
    while True:
        try:
            key.spend(now)
        except TooManyRequestsError as refused:
            seconds = int(refused.headers["retry-after"])
            assert seconds >= 1
            assert key._tokens + seconds * key._rate >= 1 - 1e-9 > key._tokens + (seconds - 1) * key._rate
            return count
        count += 1


@pytest.mark.parametrize(
    ("rate", "workers", "at_once", "after_two_seconds"),
    [(5, 1, 5, 5), (2.5, 1, 2, 2), (0.5, 1, 1, 1), (1, 1, 1, 1), (8, 4, 2, 2), (1, 4, 1, 0), (3, 2, 1, 1)],
)
def test_the_bucket(rate, workers, at_once, after_two_seconds):
    key = Key(make_key("client", (), rate, "", 1)[1], workers, 100.0)
    assert allowed(key, 100.0) == at_once
    assert allowed(key, 102.0) == after_two_seconds
    assert allowed(key, 1e6) == at_once  # and no more, however long it waited
    steps = 40 * workers
    seconds = steps / rate
    passed = sum(allowed(key, 1e6 + seconds * (i + 1) / 400) for i in range(400))
    assert passed == pytest.approx(steps / workers, abs=1)  # in the long run the rate, shared by the workers
