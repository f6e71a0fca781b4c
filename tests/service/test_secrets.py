"""Logs and output never contain a secret or a personal identifier, whatever happens (R25)."""

import asyncio
import io
import json
import logging
from contextlib import ExitStack, closing, suppress

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fastapi.exceptions import ResponseValidationError
from sqlalchemy.engine import make_url

import service.web.requests
from policy.errors import ContextError, FieldProblem
from service.access.keys import PAGE, get_key_id
from service.base.logs import JsonFormatter, TextFormatter
from service.base.settings import Settings
from service.cli.commands import main
from service.storage.events import Message
from service.storage.keys import revoke_key
from service.storage.store import Store
from service.storage.transaction import Transaction
from tests.service.answers import error_of, good
from tests.service.playing import eventually, on_sqlite
from tests.service.test_auth import bearer, make

PERSON, ORDER, LEVEL = "customer-4711-erika", "order-0815-erika", "level-of-erika"
SECRET, PASSWORD, STRANGE = "hush-0123456789abcdef", "pass-swordfish", "uc_0000000000_swordfish"
PERSONAL = [PERSON, ORDER, LEVEL, "erika", "swordfish", SECRET, "4711.25"]
CONFIG = {
    "name": "spring",
    "actions": ["none", "mail"],
    "variables": [{"name": "risk", "levels": ["low", LEVEL]}],
    "stage_length": 2,
}
DECIDE = {"campaign": "spring", "decision_id": ORDER, "subject": PERSON, "context": {"risk": LEVEL}}


@pytest.fixture
def log():
    """Everything that is logged at level debug, in both formats, except by the tests' own HTTP client."""
    stream = io.StringIO()
    with ExitStack() as undo:
        for name in (None, "uvicorn", "undercurrent"):
            logger = logging.getLogger(name)
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG)
            for formatter in (
                (JsonFormatter(), TextFormatter()) if name != "undercurrent" else ()
            ):  # it reaches the root
                handler = logging.StreamHandler(stream)
                handler.setFormatter(formatter)
                handler.addFilter(lambda record: not record.name.startswith(("httpx", "httpcore")))
                logger.addHandler(handler)
                undo.callback(logger.removeHandler, handler)
        yield stream


def find_leaks(text: str, *more: str) -> list[str]:
    return [f"{word}: …{text[max(0, text.index(word) - 200) :][:400]}…" for word in (*PERSONAL, *more) if word in text]


def use_everything(client: httpx.Client, key: str) -> None:
    """The whole life of a campaign, with many invalid requests."""
    spring = "/campaigns/spring"
    good(client.post("/campaigns", json=CONFIG), 201)
    client.post("/campaigns", json=CONFIG | {"actions": [LEVEL]})
    rows = [{"action": "none", "context": {"risk": LEVEL}, "subject": PERSON, "decision_id": f"i-{ORDER}"}]
    client.post(f"{spring}/import", json={"import_id": "i", "rows": rows * 2})  # the same id twice
    good(client.post(f"{spring}/import", json={"import_id": "i", "rows": rows}))
    for i in range(5):
        good(client.post("/decide", json=DECIDE | {"decision_id": f"{ORDER}-{i}"}))
        good(client.post("/reward", json={"campaign": "spring", "decision_id": f"{ORDER}-{i}", "reward": 1}))
    batch = [{"decision_id": ORDER, "context": {"risk": "low"}}]
    good(client.post("/decide/batch", json={"campaign": "spring", "items": batch}))
    for wrong in (
        DECIDE | {"context": {"risk": f"not {LEVEL}"}},
        DECIDE | {"context": {"risk": {LEVEL: 1}}},
        DECIDE | {PERSON: 1},
        DECIDE | {"subject": [PERSON]},
        DECIDE | {"decision_id": f"{ORDER}\x00"},
        DECIDE | {"campaign": PERSON},
        DECIDE,  # another body under a known id
        {"campaign": "spring", "items": [DECIDE]},
    ):
        client.post("/decide", json=wrong)
        client.post("/decide/batch", json={"campaign": "spring", "items": [wrong, wrong]})
    client.post("/decide", content=f'{{"subject": "{PERSON}'.encode())
    client.post("/reward", json={"campaign": "spring", "decision_id": f"x{ORDER}", "reward": 4711.25})
    client.post("/reward", json={"campaign": "spring", "decision_id": f"{ORDER}-1", "reward": 4711.25})
    good(client.get(f"{spring}/decisions/{ORDER}-1"))
    client.get(f"{spring}/decisions/{PERSON}?key={key}")
    good(client.post(f"{spring}/explain", json={"decision_id": f"{ORDER}-1"}))
    client.post(f"{spring}/preview", json={"context": {"risk": LEVEL}})
    good(client.get(f"{spring}/decisions", params={"format": "csv"}) and client.get("/campaigns"))
    good(client.post("/subjects/export", json={"subject": PERSON}))
    client.post("/subjects/export", json={"subject": {PERSON: PERSON}})
    good(client.post("/subjects/erase", json={"subject": PERSON}))
    client.get(f"/nothing/{PERSON}?subject={PERSON}")
    client.put(f"{spring}/{PERSON}")
    client.patch(spring, json={PERSON: 1})
    client.patch(spring, json={"alerts": {"webhook": "http://erika:swordfish@hooks.example/"}})
    client.post(f"{spring}/actions", json={"action": "call"})
    for given in (key, STRANGE, f"{key}x"):
        client.post("/login", json={"key": given}, headers={PAGE: "1"})
        client.get("/whoami", headers={"x-api-key": given})
        client.get("/campaigns", headers={"authorization": f"Bearer {given}", "cookie": f"undercurrent_key={given}"})
    client.post("/login", content=f'{{"key": "{key}'.encode(), headers={PAGE: "1"})


@on_sqlite
def test_a_whole_life_leaves_no_trace_in_the_logs(start, database_url, log, capfd, monkeypatch):
    store = Store(database_url)
    key, revoked = make(store), make(store)
    with store.writing() as tx:
        revoke_key(tx, get_key_id(revoked), 2)
    monkeypatch.setattr(service.web.requests, "SLOW_SECONDS", 0.0)  # every request is logged
    worker = start(access_log=True, log_level="debug", webhook_secret=SECRET)
    worker.client.headers.update(bearer(key))
    use_everything(worker.client, key)
    worker.client.get("/campaigns", headers=bearer(revoked))
    good(worker.client.get("/healthz"))
    out, err = capfd.readouterr()
    text = log.getvalue() + out + err
    assert "slow request" in text
    assert "export subject" in text
    secrets = [each.split("_", 2)[2] for each in (key, revoked)]
    assert find_leaks(text, *secrets) == []
    entries = json.dumps(good(worker.client.get("/audit"))) + worker.client.get("/metrics").text
    assert find_leaks(entries.replace(LEVEL, ""), *secrets) == []  # a level is a part of the configuration
    store.close()


def test_failures_leave_no_trace_in_the_logs(start, log, monkeypatch):
    """Exceptions may quote values: their tracebacks are logged without messages."""
    client = start().client
    good(client.post("/campaigns", json=CONFIG), 201)
    good(client.post("/decide", json=DECIDE))
    for error in (
        KeyError(PERSON),
        ValueError(f"could not convert {LEVEL!r}"),
        ResponseValidationError([{"type": "missing", "loc": ("response",), "input": {"subject": PERSON}}]),
        msgspec.ValidationError(PERSON),
        ContextError([FieldProblem("context.x", f"{PERSON} is not allowed", [])]),
    ):

        def failing(*_: object, error: Exception = error) -> None:
            raise RuntimeError("a bug") from error

        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "append", failing)
            patched.setattr("service.storage.reading.find_decision", failing)
            assert client.post("/decide", json=DECIDE | {"decision_id": f"{ORDER}-new"}).status_code == 500
            assert client.get(f"/campaigns/spring/decisions/{ORDER}").status_code == 500

    def twice(self: Transaction, *_: object) -> None:
        """An error of the database that quotes a row."""
        columns = "name, request_hash, created_at"
        self.connection.exec_driver_sql(f"INSERT INTO campaigns ({columns}) SELECT {columns} FROM campaigns")

    with monkeypatch.context() as patched:
        patched.setattr("service.storage.reading.find_decision", twice)
        assert client.get(f"/campaigns/spring/decisions/{ORDER}").status_code == 503
    eventually(lambda: log.getvalue().count("request failed") >= 2 * 11, "logged")
    text = log.getvalue()
    assert text.count("RuntimeError: a bug") == 2 * 10
    assert text.count("KeyError") == 2 * 2
    assert "test_secrets.py" in text  # where it happened
    assert find_leaks(text) == []


@on_sqlite
def test_a_webhooks_address_and_the_secret_are_not_logged(start, log):
    """The path of the address may be the receiver's only secret."""
    assert SECRET not in repr(Settings(webhook_secret=SECRET))
    worker = start(webhook_secret=SECRET, webhook_private=True)
    sender, hook = worker.service.sender, "http://127.0.0.1:9/services/swordfish"
    good(worker.client.post("/campaigns", json=CONFIG | {"alerts": {"rounds": 1, "webhook": hook}}), 201)
    good(worker.client.patch("/campaigns/spring", json={"alerts": {"webhook": f"{hook}/2"}}))

    async def refused(*_: object) -> None:
        raise httpx.ConnectError("refused", request=httpx.Request("POST", hook))

    sender._post = refused
    asyncio.run(sender._deliver(Message(1, 1, 1, hook, "spring", 1, "{}", 0), b""))
    assert "did not accept its message" in log.getvalue()
    assert find_leaks(log.getvalue() + json.dumps(good(worker.client.get("/audit")))) == []


SERVE, ADDRESS = ["serve", "--port", "0"], f"postgresql://erika:{PASSWORD}@127.0.0.1:1/bandits"


@pytest.mark.parametrize(
    ("command", "url"),
    [
        *((command, ADDRESS) for command in (SERVE, ["migrate"], ["verify"], ["audit"], ["keys", "list"])),
        (SERVE, f"postgresql://erika:{PASSWORD}@no.such.host.invalid/bandits"),
        (SERVE, f"postgresql://erika:{PASSWORD}@[/bandits"),
        (SERVE, f"mysql://erika:{PASSWORD}@127.0.0.1/bandits"),
        (SERVE, f"postgresql://127.0.0.1:1/bandits?user=erika&password={PASSWORD}&sslpassword={PASSWORD}"),
    ],
)
def test_the_databases_password_is_not_printed(command, url, capfd):
    with suppress(SystemExit):  # if the setting itself is invalid
        assert main([*command, "--database-url", url]) == 1
    out, err = capfd.readouterr()
    assert err.strip()
    assert "swordfish" not in out + err


@pytest.mark.slow
def test_a_password_in_the_query_of_the_address_is_hidden(new_database, capfd):
    url = make_url(new_database("postgresql")).update_query_dict({"password": PASSWORD})
    address = url.render_as_string(hide_password=False)
    assert "swordfish" in address
    with closing(Store(address)) as store, store.writing() as tx:
        tx.connection.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    assert main(["serve", "--port", "0", "--database-url", address]) == 1
    printed = "".join(capfd.readouterr())
    assert "undercurrent migrate --database-url postgresql" in printed
    assert "password=hidden" in printed
    assert "swordfish" not in printed


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_readyz_does_not_say_where_the_database_is(start, database_url):
    worker = start()
    with worker.service.store.writing() as tx:
        tx.connection.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    message = error_of(worker.client.get("/readyz"), 503)["message"]
    assert message.endswith("; run: undercurrent migrate")
    assert "postgresql" not in message


def test_a_key_is_printed_once_and_nowhere_else(new_database, capfd):
    url = new_database("sqlite")
    assert main(["keys", "create", "--role", "admin", "--database-url", url]) == 0
    key = capfd.readouterr().out.strip()
    secret = key.split("_", 2)[2]
    for command in (["list"], ["revoke", key], ["revoke", f"uc_0000000000_{secret}"], ["revoke", "--", secret]):
        main(["keys", command[0], "--database-url", url, *command[1:]])  # a secret may begin with a hyphen
    main(["audit", "--database-url", url])
    printed = "".join(capfd.readouterr())
    assert get_key_id(key) in printed
    assert secret not in printed
