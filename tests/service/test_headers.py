"""The security headers of every response: each exactly once, also on errors."""

import httpx
import pytest

from service.storage.store import Store
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


def read_headers(response: httpx.Response) -> dict[str, str]:
    """The headers, each of which must appear once: browsers handle duplicates in different ways."""
    for name in response.headers:
        assert name == "set-cookie" or len(response.headers.get_list(name)) == 1, f"{name} of {response.url}"
    return dict(response.headers)


@pytest.fixture
def database_url(new_database):
    return new_database("sqlite")  # no database is involved


@pytest.fixture(scope="module")
def client(new_database):
    worker = Worker(new_database("sqlite"), Clock())
    good(worker.client.post("/campaigns", json={"name": "spring", **CONFIG}), 201)
    yield worker.client
    worker.stop()


def test_api_responses_cannot_be_framed_cached_or_run(client):
    """Successes, and errors from our code, the framework and the router."""
    spring = "/campaigns/spring"
    responses = [
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
    for response, status in responses:
        assert response.status_code == status, response.url
        headers = read_headers(response)
        assert headers["content-security-policy"] == NOTHING
        assert headers["cache-control"] == "no-store"
        assert headers.items() >= ALWAYS.items()
        assert "strict-transport-security" not in headers
        assert "access-control-allow-origin" not in headers  # no other site may read anything
        assert "server" not in headers


def test_neither_can_refusals_and_failures(start, database_url, monkeypatch):
    """And with https, browsers are told to insist on it."""
    store = Store(database_url)
    key = make(store)
    store.close()
    worker = start(https=True)
    monkeypatch.setattr(type(worker.service.store), "reading", lambda self: 1 / 0)
    responses = [worker.client.get("/campaigns"), worker.client.get("/campaigns", headers=bearer(key))]
    monkeypatch.undo()
    assert [response.status_code for response in responses] == [401, 500]
    expected = {**ALWAYS, "content-security-policy": NOTHING, "strict-transport-security": "max-age=31536000"}
    for response in responses:
        assert read_headers(response).items() >= expected.items()


def test_pages_run_only_our_own_files(client):
    public = {served.path for served in list_routes() if served.access.is_public and served.method == "GET"}
    pages = {path.replace("{name}", "spring") for path in public - {"/healthz", "/readyz", "/openapi.json", "/whoami"}}
    assert {"/", "/docs", "/view/spring"} < pages
    for path in pages:
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/html")
        headers = read_headers(response)
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert headers.items() >= ALWAYS.items()


@pytest.mark.parametrize("path", ["/dashboard-assets/app.css", "/docs-assets/swagger.js", "/docs-assets/favicon.png"])
def test_files_are_revalidated(client, path):
    response = client.get(path)
    headers = read_headers(response)
    assert headers["cache-control"] == "no-cache"
    assert headers["content-security-policy"] == NOTHING
    assert headers.items() >= ALWAYS.items()
    again = client.get(path, headers={"if-none-match": headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert read_headers(again).items() >= ALWAYS.items()
    assert client.get(f"{path}.nothing").headers["content-security-policy"] == NOTHING
