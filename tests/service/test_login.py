"""Login for the pages: a cookie that may read, and with the pages' own header may do all that its key allows.

What each kind of key may do with a cookie is in test_matrix.py, and that no key is logged in test_secrets.py.
"""

from http.cookies import SimpleCookie

import httpx
import pytest

from service.access.gate import RELOAD_SECONDS
from service.access.keys import COOKIE, PAGE, get_key_id
from service.storage.keys import revoke_key
from service.storage.store import Store
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker
from tests.service.playing import eventually
from tests.service.test_auth import CONFIG, bearer, make

FROM_A_PAGE = {PAGE: "1"}


@pytest.fixture(scope="module")
def database(new_database):
    return new_database("sqlite")


@pytest.fixture(scope="module")
def keys(database):
    store = Store(database)
    keys = {
        "admin": make(store),
        "viewer": make(store, "viewer"),
        "limited": make(store, "viewer", "mine", "also-mine"),
        "revoked": make(store, "viewer"),
    }
    yield keys
    store.close()


@pytest.fixture(scope="module")
def worker(database, keys):
    worker = Worker(database, Clock())
    yield worker
    worker.stop()


@pytest.fixture
def browser(worker):
    with httpx.Client(base_url=worker.url) as client:
        yield client


def log_in(browser: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return browser.post("/login", json={"key": key}, headers={**FROM_A_PAGE, **headers})


def read_cookie(response: httpx.Response):
    (header,) = response.headers.get_list("set-cookie")
    return SimpleCookie(header)[COOKIE]


# --- the cookie -------------------------------------------------------------------------------------------------------


def test_a_key_in_a_header_comes_before_the_cookie(browser, keys):
    log_in(browser, keys["viewer"])
    good(browser.post("/campaigns", json={"name": "by-header", **CONFIG}, headers=bearer(keys["admin"])), 201)
    error_of(browser.get("/campaigns", headers=bearer("uc_0000000000_wrong")), 401)


def test_the_cookie_is_found_among_others(browser, keys):
    def status(cookies: str) -> int:
        return browser.get("/campaigns", headers={"cookie": cookies}).status_code

    key = keys["viewer"]
    assert status(f"theme=dark; {COOKIE}={key};x=y") == 200
    assert status(f"my_{COOKIE}={key}") == 401
    assert status(f"theme={COOKIE}={key}") == 401
    for broken in (f"{COOKIE}=", COOKIE, ";;=;", f"{COOKIE}=uc_x", f"{COOKIE}={key}x"):
        assert status(broken) == 401


def test_a_revoked_keys_cookie_is_refused_within_a_second(browser, database, keys):
    log_in(browser, keys["revoked"])
    good(browser.get("/campaigns"))
    store = Store(database)
    with store.writing() as tx:
        revoke_key(tx, get_key_id(keys["revoked"]), 2)
    store.close()
    assert RELOAD_SECONDS <= 0.5  # so a second is enough, however busy the machine is
    eventually(lambda: browser.get("/campaigns").status_code == 401, "refused")
    assert "revoked" in error_of(browser.get("/campaigns"), 401)["message"]
    assert good(browser.get("/whoami")) == {"keys": True, "role": None, "campaigns": None}
    error_of(log_in(browser, keys["revoked"]), 401)


# --- logging in and out -----------------------------------------------------------------------------------------------


def test_login_describes_the_key_and_sets_a_safe_cookie(browser, keys):
    response = log_in(browser, f" {keys['limited']}\n")  # as pasted
    assert good(response) == {"keys": True, "role": "viewer", "campaigns": ["also-mine", "mine"]}
    assert response.headers["cache-control"] == "no-store"
    cookie = read_cookie(response)
    assert cookie.value == keys["limited"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert cookie["expires"] == cookie["max-age"] == cookie["domain"] == ""  # for this host, until the browser closes
    assert not cookie["secure"]  # this connection is not encrypted
    for encrypted in ({"x-forwarded-proto": "https"}, {"origin": "https://bandits.example"}):
        assert read_cookie(log_in(browser, keys["viewer"], **encrypted))["secure"] is True


def test_a_wrong_key_cannot_log_in(browser, keys):
    for wrong in ("", "nonsense", f"{keys['admin']}x", "uc_0000000000_wrong", "schlüssel"):
        response = log_in(browser, wrong)
        assert error_of(response, 401)["message"] == "This key is not known"
        assert "set-cookie" not in response.headers
    for body in ({}, {"key": 5}, {"key": "x" * 201}, {"key": keys["admin"], "more": 1}):
        error = error_of(browser.post("/login", json=body, headers=FROM_A_PAGE), 422)
        assert keys["admin"] not in str(error)
    assert not browser.cookies


def test_only_a_page_logs_in_and_out(browser, keys):
    """Otherwise another site could make a user work under a key of its own."""
    response = browser.post("/login", json={"key": keys["admin"]})
    assert PAGE in error_of(response, 403)["message"]
    assert "set-cookie" not in response.headers
    error_of(browser.post("/logout"), 403)


def test_logout_deletes_the_cookie(browser, keys):
    log_in(browser, keys["viewer"])
    response = browser.post("/logout", headers=FROM_A_PAGE)
    assert response.status_code == 204
    cookie = read_cookie(response)
    assert (cookie.value, cookie["max-age"], cookie["path"], cookie["httponly"]) == ("", "0", "/", True)
    assert not browser.cookies
    error_of(browser.get("/campaigns"), 401)


def test_whoami_describes_the_key_of_the_request(browser, keys):
    nobody = {"keys": True, "role": None, "campaigns": None}
    assert good(browser.get("/whoami")) == nobody
    assert good(browser.get("/whoami", headers=bearer("wrong"))) == nobody
    assert good(browser.get("/whoami", headers=bearer(keys["admin"]))) == nobody | {"role": "admin"}
    log_in(browser, keys["limited"])
    assert good(browser.get("/whoami")) == {"keys": True, "role": "viewer", "campaigns": ["also-mine", "mine"]}


def test_a_service_without_keys_says_so(new_database):
    worker = Worker(new_database("sqlite"), Clock())
    client = worker.client
    assert good(client.get("/whoami")) == {"keys": False, "role": None, "campaigns": None}
    error_of(log_in(client, "anything"), 401)
    good(client.post("/campaigns", json={"name": "open", **CONFIG}), 201)
    worker.stop()
