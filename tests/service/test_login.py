"""The pages' key: a cookie that reads, and with the pages' own header does everything its key may; login and logout."""

import logging
from http.cookies import SimpleCookie

import httpx
import pytest

from service.access.auth import COOKIE, PAGE, RELOAD_SECONDS, id_of
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
    made = {
        "admin": make(store),
        "viewer": make(store, "viewer"),
        "limited": make(store, "viewer", "mine", "also-mine"),
        "revoked": make(store, "viewer"),
    }
    yield made
    store.close()


@pytest.fixture(scope="module")
def worker(database, keys):
    worker = Worker(database, Clock(), access_log=True)
    yield worker
    worker.stop()


@pytest.fixture
def browser(worker):
    with httpx.Client(base_url=worker.url) as client:
        yield client


def log_in(browser: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return browser.post("/login", json={"key": key}, headers={**FROM_A_PAGE, **headers})


def cookie_of(response: httpx.Response):
    (told,) = response.headers.get_list("set-cookie")
    return SimpleCookie(told)[COOKIE]


# --- the cookie -------------------------------------------------------------------------------------------------------


def test_a_cookie_reads(browser, keys):
    error_of(browser.get("/campaigns"), 401)
    log_in(browser, keys["viewer"])
    good(browser.get("/campaigns"))


def test_a_cookie_changes_something_only_with_the_pages_header(browser, keys):
    """Another site can make a browser send the cookie, but not the header; not even what reads by POST is let in."""
    log_in(browser, keys["admin"])
    body = {"name": "from-a-page", **CONFIG}
    requests = [
        ("POST", "/campaigns", body),
        ("PATCH", "/campaigns/from-a-page", {"paused": True}),
        ("POST", "/campaigns/from-a-page/preview", {"context": {"risk": "low"}}),
        ("DELETE", "/campaigns/from-a-page?confirm=from-a-page", None),
    ]
    for method, path, sent in requests:
        error = error_of(browser.request(method, path, json=sent), 403)
        assert PAGE in error["message"]
    error_of(browser.get("/campaigns/from-a-page"), 404)
    good(browser.post("/campaigns", json=body, headers=FROM_A_PAGE), 201)
    good(browser.patch("/campaigns/from-a-page", json={"paused": True}, headers=FROM_A_PAGE))


def test_a_cookie_has_the_rights_of_its_key(browser, keys):
    log_in(browser, keys["viewer"])
    refused = browser.post("/campaigns", json={"name": "viewers", **CONFIG}, headers=FROM_A_PAGE)
    assert "role admin" in error_of(refused, 403)["message"]
    log_in(browser, keys["limited"])
    error_of(browser.get("/campaigns/other"), 403)


def test_the_header_alone_is_no_key(browser):
    error_of(browser.get("/campaigns", headers=FROM_A_PAGE), 401)
    error_of(browser.post("/campaigns", json={"name": "nobodys", **CONFIG}, headers=FROM_A_PAGE), 401)


def test_a_key_in_a_header_comes_before_the_cookie(browser, keys):
    log_in(browser, keys["viewer"])
    good(browser.post("/campaigns", json={"name": "by-header", **CONFIG}, headers=bearer(keys["admin"])), 201)
    error_of(browser.get("/campaigns", headers=bearer("uc_0000000000_wrong")), 401)


def test_the_cookie_is_found_among_others(worker, keys):
    def status(cookies: str) -> int:
        return httpx.get(f"{worker.url}/campaigns", headers={"cookie": cookies}).status_code

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
        tx.revoke_key(id_of(keys["revoked"]), 2)
    store.close()
    assert RELOAD_SECONDS <= 0.5  # so that a second is enough, whatever else the machine does
    eventually(lambda: browser.get("/campaigns").status_code == 401, "refused")
    assert "revoked" in error_of(browser.get("/campaigns"), 401)["message"]
    assert good(browser.get("/whoami")) == {"keys": True, "role": None, "campaigns": None}
    error_of(log_in(browser, keys["revoked"]), 401)


# --- logging in and out -----------------------------------------------------------------------------------------------


def test_login_says_who_it_is_and_sets_a_safe_cookie(browser, keys):
    response = log_in(browser, f" {keys['limited']}\n")  # as it is pasted
    assert good(response) == {"keys": True, "role": "viewer", "campaigns": ["also-mine", "mine"]}
    assert response.headers["cache-control"] == "no-store"
    cookie = cookie_of(response)
    assert cookie.value == keys["limited"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert cookie["expires"] == cookie["max-age"] == cookie["domain"] == ""  # this host's, until the browser is closed
    assert not cookie["secure"]  # there is no encryption here


@pytest.mark.parametrize("told", [{"x-forwarded-proto": "https"}, {"origin": "https://bandits.example"}])
def test_the_cookie_of_an_encrypted_page_stays_on_encrypted_connections(browser, keys, told):
    assert cookie_of(log_in(browser, keys["viewer"], **told))["secure"] is True


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
    """Or another site could make someone work under its own key."""
    response = browser.post("/login", json={"key": keys["admin"]})
    assert PAGE in error_of(response, 403)["message"]
    assert "set-cookie" not in response.headers
    error_of(browser.post("/logout"), 403)


def test_logout_takes_the_cookie_away(browser, keys):
    log_in(browser, keys["viewer"])
    response = browser.post("/logout", headers=FROM_A_PAGE)
    assert response.status_code == 204
    cookie = cookie_of(response)
    assert (cookie.value, cookie["max-age"], cookie["path"], cookie["httponly"]) == ("", "0", "/", True)
    assert not browser.cookies
    error_of(browser.get("/campaigns"), 401)


def test_whoami_tells_about_the_key_that_asks(browser, keys):
    nobody = {"keys": True, "role": None, "campaigns": None}
    assert good(browser.get("/whoami")) == nobody
    assert good(browser.get("/whoami", headers=bearer("wrong"))) == nobody
    assert good(browser.get("/whoami", headers=bearer(keys["admin"]))) == nobody | {"role": "admin"}
    log_in(browser, keys["limited"])
    assert good(browser.get("/whoami")) == {"keys": True, "role": "viewer", "campaigns": ["also-mine", "mine"]}


def test_a_service_without_keys_says_so(client):
    assert good(client.get("/whoami")) == {"keys": False, "role": None, "campaigns": None}
    error_of(log_in(client, "anything"), 401)
    good(client.post("/campaigns", json={"name": "open", **CONFIG}), 201)


def test_no_key_of_a_page_is_logged(browser, keys, caplog):
    caplog.set_level(logging.DEBUG)
    log_in(browser, keys["admin"])
    log_in(browser, "uc_0000000000_swordfish")
    browser.post("/login", content=b'{"key": "swordfish', headers=FROM_A_PAGE)
    browser.get("/whoami")
    browser.post("/campaigns", json={"name": "logged", **CONFIG})
    ours = [str(vars(record)) for record in caplog.records if not record.name.startswith("http")]  # the client's
    assert any("undercurrent.request" in line for line in ours)
    assert not any("swordfish" in line or keys["admin"].split("_", 2)[2] in line for line in ours)


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/login", "/new"])
def test_a_page_is_a_shell_that_anyone_may_have(browser, path):
    response = browser.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in response.headers["content-security-policy"]
    assert browser.get("/dashboard-assets/app.css").status_code == 200
