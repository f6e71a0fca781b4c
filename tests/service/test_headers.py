"""The headers of every answer: each of them once, on whatever the service says, and none that allows more."""

import httpx
import pytest

from service.storage.store import Store
from service.web.headers import by_kind
from tests.service.answers import good
from tests.service.conftest import Clock, Worker
from tests.service.routes import list_routes
from tests.service.test_auth import CONFIG, bearer, make

NOTHING = "default-src 'none'; frame-ancestors 'none'"
ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
PAGES = ("/", "/login", "/new", "/view/spring", "/view/spring/decision", "/view/spring/try", "/docs", "/redoc")


def headers_of(answer: httpx.Response) -> dict[str, str]:
    """Each header once: of two policies browsers take both, of two other headers any one."""
    for name in answer.headers:
        assert name == "set-cookie" or len(answer.headers.get_list(name)) == 1, f"{name} of {answer.url}"
    return dict(answer.headers)


@pytest.fixture
def database_url(new_database):
    return new_database("sqlite")  # the other one would be asked the same


@pytest.fixture(scope="module")
def client(new_database):
    worker = Worker(new_database("sqlite"), Clock())
    good(worker.client.post("/campaigns", json={"name": "spring", **CONFIG}), 201)
    yield worker.client
    worker.stop()


def test_answers_of_the_api_cannot_be_shown_kept_or_run(client):
    """Good ones and errors of all makers: ours, the framework's, the router's."""
    spring = "/campaigns/spring"
    answers = [
        (client.post("/decide", json={"campaign": "spring", "context": {"risk": "low"}}), 200),
        (client.post("/decide/batch", json={"campaign": "spring", "items": []}), 422),
        (client.post("/decide", content=b"{"), 422),
        (client.post("/decide", content=b" " * (4 * 2**20 + 1)), 413),
        (client.post("/decide", json={"campaign": "nowhere", "context": {}}), 404),
        (client.post("/campaigns", json={"name": "spring"}), 422),
        (client.get(spring), 200),
        (client.get(f"{spring}/"), 404),
        (client.get(f"{spring}/decisions?format=csv"), 200),
        (client.get(f"{spring}/decisions?format=parquet"), 200),
        (client.get(f"{spring}/decisions?from=x"), 422),
        (client.get(f"{spring}/decisions/nothing"), 404),
        (client.get("/campaigns?limit=0"), 422),
        (client.get("/metrics"), 200),
        (client.get("/audit"), 200),
        (client.get("/openapi.json"), 200),
        (client.head("/openapi.json"), 200),
        (client.get("/healthz"), 200),
        (client.get("/whoami"), 200),
        (client.post("/logout"), 403),
        (client.get("/nothing"), 404),
        (client.put("/decide"), 405),
        (client.options("/decide"), 405),
        (client.post("/decide", json={}, headers={"origin": "https://evil.example"}), 403),
        (client.get("/campaigns", headers={"host": "evil.example"}), 403),
    ]
    for answer, status in answers:
        assert answer.status_code == status, answer.url
        found = headers_of(answer)
        assert found["content-security-policy"] == NOTHING
        assert found["cache-control"] == "no-store"
        assert found.items() >= ALWAYS.items()
        assert "strict-transport-security" not in found
        assert "access-control-allow-origin" not in found  # no other site reads anything
        assert "server" not in found


def test_so_cannot_refusals_and_failures(start, database_url, monkeypatch):
    store = Store(database_url)
    key = make(store)
    worker = start()
    monkeypatch.setattr(type(worker.service.store), "reading", lambda self: 1 / 0)
    answers = [worker.client.get("/campaigns"), worker.client.get("/campaigns", headers=bearer(key))]
    monkeypatch.undo()
    store.close()
    assert [answer.status_code for answer in answers] == [401, 500]
    for answer in answers:
        assert headers_of(answer).items() >= {**ALWAYS, "content-security-policy": NOTHING}.items()


@pytest.mark.parametrize("path", PAGES)
def test_pages_run_files_of_ours_only(client, path):
    found = headers_of(client.get(path))
    policy = dict(part.split(" ", 1) for part in found["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in found["content-security-policy"]
    assert "http" not in found["content-security-policy"]
    assert found["cross-origin-opener-policy"] == "same-origin"
    assert found["cache-control"] == "no-store"
    assert found.items() >= ALWAYS.items()


def test_these_are_all_pages():
    public = {served.path for served in list_routes() if served.access.is_public and served.method == "GET"}
    assert public - {"/healthz", "/readyz", "/openapi.json", "/whoami"} == {
        path.replace("spring", "{name}") for path in PAGES
    }


@pytest.mark.parametrize("path", ["/dashboard-assets/app.css", "/docs-assets/swagger.js", "/docs-assets/favicon.png"])
def test_files_are_asked_for_again_and_not_sent_again(client, path):
    answer = client.get(path)
    found = headers_of(answer)
    assert found["cache-control"] == "no-cache"
    assert found["content-security-policy"] == NOTHING
    assert found.items() >= ALWAYS.items()
    again = client.get(path, headers={"if-none-match": found["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert headers_of(again).items() >= ALWAYS.items()
    assert client.get(f"{path}.nothing").headers["content-security-policy"] == NOTHING


def test_https_is_demanded_where_it_is_spoken(start):
    found = headers_of(start(https=True).client.get("/healthz"))
    assert found["strict-transport-security"] == "max-age=31536000"


def test_they_are_encoded_once():
    for https in (False, True):
        for pairs in by_kind(https).values():
            assert len({name for name, _ in pairs}) == len(pairs)
            assert all(isinstance(part, bytes) for pair in pairs for part in pair)
