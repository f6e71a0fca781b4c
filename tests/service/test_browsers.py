"""A service without keys and the browsers of its machine: their own pages may do everything, other sites' nothing."""

import httpx
import pytest

from service.access.browsers import Visitors
from service.access.keys import PAGE
from service.base.errors import ForbiddenError
from service.base.settings import Settings, SettingsError
from service.storage.store import Store
from tests.service.answers import error_of, good
from tests.service.test_auth import CONFIG, bearer, make

BODY = {"name": "spring", **CONFIG}
TEXT = {"content-type": "text/plain"}  # what any page may send without asking


@pytest.fixture
def database_url(new_database):
    return new_database("sqlite")  # the database does not matter here


def create(client: httpx.Client, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/campaigns", json=BODY, headers=named)


def test_programs_and_our_own_pages_are_served(client):
    """curl says nothing about pages; a marketing system may have another agent's name, never a browser's headers."""
    good(create(client), 201)
    good(create(client, content_type="text/plain"), 201)  # `curl -d` says what it likes
    own = str(client.base_url).rstrip("/")
    good(create(client, origin=own, sec_fetch_site="same-origin"), 201)
    good(create(client, origin=own), 201)  # a browser that does not say where it is
    good(create(client, sec_fetch_site="none"), 201)
    good(create(client, origin="https://behind.example", sec_fetch_site="same-origin"), 201)  # a proxy changed the host


def test_another_sites_page_changes_nothing(client):
    requests = [("POST", "/campaigns"), ("POST", "/decide"), ("POST", "/subjects/export"), ("DELETE", "/campaigns/a")]
    for headers in (
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},  # another port of this machine
        {"sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},  # a frame without an origin, a file
        {"origin": "null", **TEXT},
        {"origin": "http://["},
        {"origin": "http://localhost.evil.example", **TEXT},
    ):
        for method, path in requests:
            answer = client.request(method, path, json=BODY, headers=headers)
            assert "another site" in error_of(answer, 403)["message"]
        assert client.get("/", headers=headers).status_code == 200  # a link leads here
    assert good(client.get("/campaigns"))["campaigns"] == []
    assert good(client.get("/audit"))["entries"] == []


def test_a_name_that_means_this_machine_only_now_is_refused(client):
    """DNS rebinding: the page's own name points here by now, so to the browser it is one of ours."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0"):
        for method, path in (("GET", "/campaigns"), ("POST", "/campaigns"), ("GET", "/"), ("GET", "/metrics")):
            answer = client.request(method, path, headers={"host": host, "sec-fetch-site": "same-origin"})
            message = error_of(answer, 403)["message"]
            assert repr(host) in message
            assert "UNDERCURRENT_ALLOWED_HOSTS" in message


def refused(visitors: Visitors, host: str, origin: str | None = None) -> bool:
    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    try:
        visitors.admit({"method": "POST", "headers": headers})
    except ForbiddenError:
        return True
    return False


def test_names_of_this_machine():
    ours = ["localhost", "LOCALHOST:8000", "a.localhost:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "localhost."]
    for host in ours:
        assert not refused(Visitors(), host)
        assert not refused(Visitors(), host, f"http://{host}")
        assert refused(Visitors(), host, "http://other.example")
    for host in ("[::2]:80", "[", "[]", "a b", "@", "localhost@evil.example:80/x", "evil.example#localhost", ":80"):
        assert refused(Visitors(), host), host
    assert not Visitors().admit({"method": "POST", "headers": []})  # HTTP/1.0: no browser


def test_names_that_were_allowed(start):
    settings = Settings(allowed_hosts="bandits.example, Other.Example:8443, fd00::7", host="here.example")
    visitors = Visitors(settings.hosts)
    for host in ("bandits.example", "bandits.example:8443", "other.example", "here.example:8000", "[fd00::7]:8000"):
        assert not refused(visitors, host)
        assert not refused(visitors, host, f"https://{host}")
    assert refused(visitors, "x.bandits.example")
    assert refused(visitors, "localhost", "https://evil.example")
    client = start(allowed_hosts="bandits.example").client
    good(client.get("/campaigns", headers={"host": "bandits.example"}))
    with pytest.raises(SettingsError, match="ALLOWED_HOSTS"):
        Settings.load({"UNDERCURRENT_ALLOWED_HOSTS": "https://a/"}, {})


def test_only_so_many_hosts_are_remembered():
    visitors = Visitors()
    for number in range(500):
        assert not refused(visitors, f"localhost:{number}")
    assert visitors._is_own_host.cache_info().currsize <= 100


def test_with_keys_the_key_decides(start, database_url):
    """A proxy may forward any of a browser's headers under any host; for pages the rule of the cookie applies."""
    store = Store(database_url)
    key = make(store)
    store.close()
    client = start().client
    foreign = {"origin": "https://shop.example", "sec-fetch-site": "cross-site", "host": "bandits.example"}
    good(client.post("/campaigns", json=BODY, headers=foreign | bearer(key)), 201)
    error_of(client.post("/campaigns", json=BODY, headers=foreign), 401)
    cookie = {"cookie": f"undercurrent_key={key}"}
    error_of(client.post("/campaigns", json=BODY, headers=foreign | cookie), 403)
    good(client.post("/campaigns", json=BODY, headers={PAGE: "1"} | cookie), 201)
