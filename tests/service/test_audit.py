"""The audit log: who did what, in the transaction that did it, for as long as the database lives."""

import json

import httpx
import pytest
import sqlalchemy as sa

from service.access import gate
from service.access.keys import PAGE, get_key_id
from service.cli.commands import main
from service.storage.audit import read_audit_page
from service.storage.keys import revoke_key
from service.storage.store import Store
from service.storage.transaction import Transaction
from tests.service.answers import error_of, good
from tests.service.playing import eventually
from tests.service.test_auth import bearer, make

CONFIG = {"name": "spring", "actions": ["none", "mail"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
PERSON = "customer-4711"
HOOK = "https://hooks.example/services/T00/swordfish"


@pytest.fixture
def store(database_url):
    store = Store(database_url)
    yield store
    store.close()


@pytest.fixture
def admin(start, store):
    """A client with an admin's key, and the key's id."""
    key = make(store)
    client = start(webhook_secret="0123456789abcdef").client
    client.headers.update(bearer(key))
    return client, get_key_id(key)


def entries(client: httpx.Client, **query: object) -> list[dict]:
    return good(client.get("/audit", params=query))["entries"]


def play(client: httpx.Client, rounds: int) -> None:
    for i in range(rounds):
        who = {"decision_id": f"order-{i}", "subject": PERSON, "context": {"risk": "low"}}
        good(client.post("/decide", json={"campaign": "spring", **who}))
        good(client.post("/reward", json={"campaign": "spring", "decision_id": f"order-{i}", "reward": 1.0}))


def test_every_administrative_action_has_its_row(admin):
    """In order, with the actor and the action; deciding, reading, retries and refused requests have none."""
    client, key = admin
    path, headers = "/campaigns/spring", {"X-Request-ID": "ticket-7"}
    for _ in range(2):  # the second is a retry
        good(client.post("/campaigns", json=CONFIG | {"stage_length": 4}, headers=headers), 201)
    error_of(client.post("/campaigns", json=CONFIG), 409)
    rows = [{"action": "none", "context": {"risk": "low"}, "reward": 1.0, "subject": PERSON}] * 6
    for _ in range(2):
        good(client.post(f"{path}/import", json={"import_id": "old", "rows": rows}))
    play(client, 12)
    good(client.patch(path, json={"paused": True, "alerts": {"webhook": HOOK}}))
    good(client.patch(path, json={"paused": True}))  # as it is
    error_of(client.patch(path, json={"stage_length": 9}), 409)
    good(client.patch(path, json={"paused": False}))
    good(client.post(f"{path}/actions", json={"action": "call"}))
    good(client.post(f"{path}/actions/retire", json={"action": "mail"}))
    for _ in range(2):
        good(client.post(f"{path}/rollback", json={"model_version": 1}))
    error_of(client.post(f"{path}/rollback", json={"model_version": 99}), 422)
    good(client.post("/subjects/export", json={"subject": PERSON}))
    for _ in range(2):
        good(client.post("/subjects/erase", json={"subject": PERSON}))
    good(client.post(f"{path}/clone", json={"name": "autumn"}), 201)
    for action in ("archive", "archive", "unarchive", "archive"):
        good(client.post(f"{path}/{action}"))
    error_of(client.delete(path, params={"confirm": "other"}), 422)
    assert client.delete(path, params={"confirm": "spring"}).status_code == 204
    shown = {"rounds": 20, "webhook": "https://hooks.example/…"}
    alerts = {"from": shown | {"webhook": None}, "to": shown}
    paused, resumed = ({"from": not value, "to": value} for value in (True, False))
    actions = [{"from": ["none", "mail"], "to": ["none", "mail", "call"]}, {"from": [], "to": ["mail"]}]
    found = entries(client)[::-1]
    assert [(entry["action"], entry["campaign"], entry["details"]) for entry in found] == [
        ("create", "spring", {}),
        ("import", "spring", {"rows": 6}),
        ("change", "spring", {"fields": ["alerts", "paused"], "changed": {"paused": paused, "alerts": alerts}}),
        ("change", "spring", {"fields": ["paused"], "changed": {"paused": resumed}}),
        ("add action", "spring", {"action": "call", "changed": {"actions": actions[0]}}),
        ("retire action", "spring", {"action": "mail", "changed": {"retired_actions": actions[1]}}),
        ("rollback", "spring", {"model_version": 1}),
        ("export subject", None, {"campaigns": ["spring"], "decisions": 18}),
        ("erase", "spring", {"decisions": 18}),
        ("clone", "autumn", {"source": "spring", "given": ["name"], "webhook": "https://hooks.example/…"}),
        ("archive", "spring", {}),
        ("unarchive", "spring", {}),
        ("archive", "spring", {}),
        ("delete", "spring", {"rounds": 18}),
    ]
    assert {(entry["actor"], entry["role"], entry["outcome"]) for entry in found} == {(key, "admin", "done")}
    assert found[0]["request_id"] == "ticket-7"
    assert all(entry["request_id"] for entry in found)
    text = json.dumps(found)
    assert not [secret for secret in (PERSON, "order-", "swordfish") if secret in text]


def test_pages_and_filters(client, clock):
    """Newest first; by campaign, which may be gone, and by time: from it on, and before it."""
    for name in ("a", "b", "a2"):
        good(client.post("/campaigns", json=CONFIG | {"name": name}), 201)
        clock.advance(60)
    good(client.post("/campaigns/a/archive"))
    client.delete("/campaigns/a", params={"confirm": "a"})
    everything = entries(client)
    assert {(entry["actor"], entry["role"]) for entry in everything} == {("local", None)}  # there are no keys
    assert [entry["campaign"] for entry in everything] == ["a", "a", "a2", "b", "a"]
    assert [entry["action"] for entry in entries(client, campaign="a")] == ["delete", "archive", "create"]
    assert entries(client, campaign="nowhere") == []
    second = everything[3]["at"]
    assert [entry["campaign"] for entry in entries(client, **{"from": second, "to": everything[2]["at"]})] == ["b"]
    pages, cursor = [], None
    while True:
        found = good(client.get("/audit", params={"limit": 2} | ({"cursor": cursor} if cursor else {})))
        pages.append(found["entries"])
        cursor = found["next_cursor"]
        if cursor is None:
            break
    assert [len(each) for each in pages] == [2, 2, 1]
    assert [entry for each in pages for entry in each] == everything
    for query in (
        {"from": "yesterday"},
        {"limit": 0},
        {"cursor": 0},
        {"campaign": "x\x00"},
        {"from": second, "to": "2000-01-01T00:00:00Z"},
    ):
        error_of(client.get("/audit", params=query), 422)


def test_a_change_that_is_not_committed_has_no_row_and_no_row_no_change(client, store, monkeypatch):
    """They are one transaction."""
    good(client.post("/campaigns", json=CONFIG), 201)
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE audit RENAME TO hidden"))
    for attempt in (
        lambda: client.patch("/campaigns/spring", json={"paused": True}),
        lambda: client.post("/campaigns/spring/archive"),
        lambda: client.post("/campaigns", json=CONFIG | {"name": "autumn"}),
        lambda: client.post("/subjects/export", json={"subject": PERSON}),
    ):
        error_of(attempt(), 503)
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE hidden RENAME TO audit"))
    state = good(client.get("/campaigns/spring"))
    assert (state["paused"], state["archived_at"]) == (False, None)
    error_of(client.get("/campaigns/autumn"), 404)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Transaction, "update_live_row", broken)
    error_of(client.patch("/campaigns/spring", json={"paused": True}), 500)
    monkeypatch.undo()
    assert [entry["action"] for entry in entries(client)] == ["create"]


def test_refused_keys_are_counted_and_written_down_once_a_minute(start, store, monkeypatch):
    """So that nobody can fill the disk by trying keys; the rest is recorded when the service stops."""
    good_key, revoked = make(store), make(store, "viewer")
    with store.writing() as tx:
        revoke_key(tx, get_key_id(revoked), 2)
    worker = start()
    now = [1_000.0]
    worker.service.keys._clock = lambda: now[0]

    def rows() -> list[dict]:
        with store.reading() as tx:
            return [json.loads(row.details) for row in read_audit_page(tx, None, 100)][::-1]

    def attempts(count: int) -> None:
        for _ in range(count):
            error_of(worker.client.get("/campaigns", headers=bearer("uc_0000000000_swordfish")), 401)
            error_of(worker.client.post("/login", json={"key": revoked}, headers={PAGE: "1"}), 401)

    attempts(1)
    error_of(worker.client.get("/campaigns"), 401)  # no key at all is no wrong one
    eventually(lambda: rows(), "the first are recorded at once")
    attempts(50)
    worker.service.keys.record_refusals()
    assert sum(row["unknown"] for row in rows()) <= 2  # those that fell into the first row
    now[0] += gate.RECORD_SECONDS
    eventually(lambda: sum(row["unknown"] for row in rows()) == 51, "recorded a minute later")
    assert sum(row["revoked"] for row in rows()) == 51
    assert len(rows()) == 2
    attempts(1)
    (newest, *_) = good(worker.client.get("/audit", headers=bearer(good_key)))["entries"]
    assert (newest["actor"], newest["action"], newest["outcome"]) == ("unknown", "refuse keys", "refused")


def test_the_command_line_is_recorded_and_prints_the_log(new_database, tmp_path, capsys):
    url = new_database("sqlite")
    assert main(["keys", "create", "--role", "client", "--campaign", "spring", "--database-url", url]) == 0
    key = capsys.readouterr().out.strip()
    assert main(["keys", "revoke", get_key_id(key), "--database-url", url]) == 0
    assert main(["keys", "revoke", get_key_id(key), "--database-url", url]) == 0  # was revoked before
    capsys.readouterr()
    assert main(["audit", "--database-url", url]) == 0
    revoked, created = map(json.loads, capsys.readouterr().out.splitlines())
    assert (revoked["action"], revoked["details"]) == ("revoke key", {"key": get_key_id(key)})
    assert created["details"] == {"key": get_key_id(key), "role": "client", "campaigns": ["spring"], "rate_limit": None}
    assert created["actor"] == revoked["actor"] == "command line"
    assert key.split("_", 2)[2] not in json.dumps([created, revoked])
    assert main(["audit", "autumn", "--database-url", url]) == 0
    assert main(["audit", "--to", created["at"], "--database-url", url]) == 0
    assert capsys.readouterr().out == ""
    assert main(["audit", "--from", "yesterday", "--database-url", url]) == 1
    assert "not a time" in capsys.readouterr().err
