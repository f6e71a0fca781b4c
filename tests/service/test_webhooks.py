"""Webhook messages: signed, sent by one sender at a time, retried until accepted, never to an internal network."""

import asyncio
import pickle
import re
import socket
import threading
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

import service.engine.webhooks
from service.base.settings import Settings, SettingsError
from service.engine.addresses import AddressError, is_public, parse_target, resolve_host
from service.engine.metrics import Metrics
from service.engine.webhooks import MOST_ATTEMPTS, Sender, compute_delay
from service.storage.events import claim_messages
from service.storage.store import Store
from service.storage.tables import outbox
from tests.service.answers import allowed_by_field, good
from tests.service.playing import CONFIGS, eventually, on_sqlite
from tests.service.receiving import receiving
from tests.service.scraping import Scrape
from tests.service.test_alerts import batch

SECRET = "a secret that nobody knows"
HIDDEN = SecretStr(SECRET)
CAMPAIGN = CONFIGS["given"] | {"name": "spring", "regime_labels": ["calm", "storm"]}
ONE_CHANGE = [0] * 10 + [3] * 10
DOCS = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def campaign(webhook, name="spring"):
    return CAMPAIGN | {"name": name, "alerts": {"rounds": 5, "webhook": webhook}}


def genuine():
    """Return the check of signatures from the documentation."""
    section = DOCS.partition("## Regime alerts")[2].partition("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    known = {}
    exec(compile(example, "docs/data.md", "exec"), known)
    return known["genuine"]


@pytest.fixture
def worker(direct):
    return direct()


def queue_messages(worker, webhook, seasons=ONE_CHANGE):
    """Create a campaign whose regime changes; return the waiting messages."""
    worker.post("/campaigns", campaign(webhook))
    worker.post("/decide/batch", batch(seasons))
    return list_waiting(worker)


def list_waiting(worker):
    return [row for row in worker.rows(outbox) if row["status"] == "waiting"]


@asynccontextmanager
async def sending(worker, clock, *, private=True, resolve=resolve_host, store=None, secret=HIDDEN):
    sender = Sender(store or worker.store, clock, Metrics(), secret, private, lambda: 0.5, resolve)
    sender.start()
    try:
        yield sender
    finally:
        await sender.close()


async def wait_until(found, what):
    await asyncio.to_thread(eventually, found, what)


def send_until(found, worker, clock, **how):
    """Run a sender until something is true."""

    async def run():
        async with sending(worker, clock, **how):
            await wait_until(found, "sent")

    asyncio.run(run())


def is_all_sent(worker):
    """Return a check that no message waits."""
    return lambda: not list_waiting(worker)


def has_failed(worker, clock, attempts=1):
    """Return a check that this many attempts are recorded as failed, with the time of the next one."""
    due = clock.now + compute_delay(attempts, 0.5) * 1_000_000
    return lambda: [(row["attempts"], row["due_at"]) for row in worker.rows(outbox)] == [(attempts, due)]


# --- one sender -------------------------------------------------------------------------------------------------------


def test_a_hanging_receiver_delays_no_other(direct, clock):
    """Only one message to each address is under way at a time."""
    worker = direct()
    for name, hook, switches in (("slow", "http://slow.example/", 40), ("quick", "http://quick.example/", 2)):
        worker.post("/campaigns", campaign(hook) | {"name": name, "alerts": {"rounds": 1, "webhook": hook}})
        items = batch([3 * (i // 4 % 2) for i in range(4 * switches)])["items"]
        worker.post("/decide/batch", {"campaign": name, "items": items})
    waiting = Counter(row["url"] for row in worker.rows(outbox))
    assert waiting["http://slow.example/"] > 8
    times = clock(), clock() + 60_000_000
    with worker.store.writing() as tx:
        taken = [message.url for message in claim_messages(tx, *times, 8)]
        assert sorted(taken) == sorted(waiting)
        assert claim_messages(tx, *times, 8, busy=taken) == []
        again = [message.url for message in claim_messages(tx, *times, 8)]
    assert again == [url for url, count in waiting.items() if count > 1]


def test_a_receiver_that_fails_twice_gets_the_same_message_three_times(start, clock, database_url):
    """Over HTTP: configured, sent at once, again after 10 and 20 seconds, listed, counted."""
    with receiving(500, "close") as receiver:
        running = start(webhook_secret=SECRET, webhook_private=True)
        client, sender = running.client, running.service.sender
        sender._chance = lambda: 0.5
        good(client.post("/campaigns", json=campaign(receiver.url)), 201)
        made = good(client.post("/decide/batch", json=batch(ONE_CHANGE)))["decisions"]

        def delivery():
            return alerts(client, "spring")[0]["delivery"]

        for attempt, failure in ((1, "answered 500"), (2, "RemoteProtocolError")):
            eventually(lambda failure=failure: (delivery()["failure"] or "").startswith(failure), failure)
            assert (delivery()["status"], delivery()["attempts"]) == ("waiting", attempt)
            clock.advance(9.9 * attempt)
            sender.wake()
            assert len(receiver.received) == attempt
            clock.advance(0.2 * attempt)
            sender.wake()
        eventually(lambda: delivery()["status"] == "sent", "sent")
        assert (delivery()["attempts"], delivery()["failure"]) == (3, None)
        assert delivery()["sent_at"] > made[-1]["decided_at"]

        first, *again = receiver.received
        assert [message.body for message in again] == [first.body] * 2
        assert first.path == "/hook?key=1"
        (alert,) = alerts(client, "spring")
        assert first.told == {
            "event": "regime_change",
            "campaign": "spring",
            "delivery": "spring-1-1",
            "number": 1,
            "round": alert["round"],
            "since_round": alert["round"] - 4,
            "from": {"regime": 1, "label": "calm"},
            "to": {"regime": 2, "label": "storm"},
            "belief": made[alert["round"] - 1]["belief"],
            "at": alert["created_at"],
        }
        check = genuine()
        headers = {"content-type": "application/json", "host": f"127.0.0.1:{receiver.port}"}
        headers |= {"x-undercurrent-event": "regime_change", "x-undercurrent-delivery": "spring-1-1"}
        for seconds, message in zip((0, 10.1, 30.3), receiver.received, strict=True):
            assert {name: message.headers[name] for name in headers} == headers
            signed, now = message.headers["x-undercurrent-signature"], 1_790_000_000 + int(seconds)
            assert signed.startswith(f"t={now},v1=")
            assert check(SECRET, signed, message.body, now + 200)
            assert not check(SECRET, signed, message.body, now + 400)
            assert not check(SECRET, signed, message.body + b" ", now)
            assert not check(SECRET + "!", signed, message.body, now)
        found = Scrape(client)
        assert found.by("alerts_total", "campaign") == {"spring": 1}
        assert found.by("webhook_attempts_total", "outcome") == {"retried": 2, "sent": 1, "given_up": 0}
        assert SECRET not in client.get("/metrics").text


@on_sqlite
@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (302, "answered 302 (redirects are not followed)"),
        (404, "answered 404"),
        ("hang", "no answer within 1 seconds"),
        ("close", "RemoteProtocolError: Server disconnected without sending a response."),
    ],
)
def test_any_other_answer_is_retried(worker, clock, monkeypatch, answer, failure):
    with receiving(answer) as receiver:
        queue_messages(worker, receiver.url)
        with monkeypatch.context() as patch:
            if answer == "hang":
                patch.setattr(service.engine.webhooks, "ATTEMPT_SECONDS", 1)
            send_until(has_failed(worker, clock), worker, clock)
        (row,) = worker.rows(outbox)
        assert (row["status"], row["failure"]) == ("waiting", failure)
        clock.advance(11)
        send_until(is_all_sent(worker), worker, clock)
        assert [message.path for message in receiver.received] == ["/hook?key=1"] * 2


@on_sqlite
def test_a_message_that_is_never_accepted_is_given_up(worker, clock):
    """After 12 attempts in about three and a half hours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # where, from now on, nobody listens
    queue_messages(worker, f"http://127.0.0.1:{port}/")

    async def run():
        async with sending(worker, clock) as sender:
            for attempt in range(1, MOST_ATTEMPTS):
                await wait_until(has_failed(worker, clock, attempt), "tried")
                clock.advance(compute_delay(attempt, 0.5) + 0.1)
                sender.wake()
            await wait_until(lambda: not list_waiting(worker), "given up")

    begun = clock.now
    asyncio.run(run())
    (row,) = worker.rows(outbox)
    assert (row["status"], row["attempts"], row["sent_at"]) == ("failed", MOST_ATTEMPTS, None)
    assert row["failure"].startswith("ConnectError: ")
    assert 3 * 3_600 < (clock.now - begun) / 1_000_000 < 4 * 3_600

    assert [compute_delay(attempt, 0.5) for attempt in (1, 2, 3, 9, 10, 11)] == [10, 20, 40, 2_560, 3_600, 3_600]
    assert (compute_delay(1, 0.0), compute_delay(1, 1.0)) == (8, pytest.approx(12))  # randomized


@on_sqlite
def test_a_message_that_kills_every_sender_is_given_up(worker, clock):
    with receiving() as receiver:
        queue_messages(worker, receiver.url)
        worker.execute(outbox.update().values(attempts=MOST_ATTEMPTS))
        send_until(is_all_sent(worker), worker, clock)
        assert receiver.received == []
    (row,) = worker.rows(outbox)
    assert (row["status"], row["failure"]) == ("failed", "no attempt ended")


def test_the_message_of_a_dead_sender_is_sent_when_its_lease_ends(worker, clock, monkeypatch):
    """At least once: if the receiver's answer was not recorded, it gets the message again, with the same id."""
    monkeypatch.setattr(service.engine.webhooks, "CLOSING_SECONDS", 0.05)

    async def run():
        with receiving("hang") as receiver:
            queue_messages(worker, receiver.url)
            async with sending(worker, clock):
                await wait_until(lambda: receiver.received, "received")
            (row,) = worker.rows(outbox)
            assert (row["status"], row["attempts"], row["failure"]) == ("waiting", 1, None)
            async with sending(worker, clock) as sender:
                await asyncio.sleep(0.1)
                assert len(receiver.received) == 1
                clock.advance(61)
                sender.wake()
                await wait_until(lambda: not list_waiting(worker), "sent")
            assert len({message.headers["x-undercurrent-delivery"] for message in receiver.received}) == 1
            assert worker.rows(outbox)[0]["attempts"] == len(receiver.received) == 2

    asyncio.run(run())


@on_sqlite
def test_a_sender_that_is_woken_can_be_closed_at_any_step(worker, clock, monkeypatch):
    """The search that an ending delivery asks for must not swallow the order to stop."""
    monkeypatch.setattr(service.engine.webhooks, "_create_client", partial(httpx.AsyncClient, verify=False))

    async def run():
        for steps in range(8):
            async with asyncio.timeout(60), sending(worker, clock) as sender:
                await asyncio.sleep(0.05)  # it has searched, and waits
                sender.wake()
                for _ in range(steps):
                    await asyncio.sleep(0)

    asyncio.run(run())


@on_sqlite
def test_archived_campaigns_send_their_messages_and_deleted_ones_do_not(start, clock):
    with receiving(500, 500) as receiver:
        running = start(webhook_secret=SECRET, webhook_private=True)
        client = running.client
        for name in ("kept", "gone"):
            good(client.post("/campaigns", json=campaign(receiver.url, name)), 201)
            good(client.post("/decide/batch", json=batch(ONE_CHANGE, name=name)))
        for name in ("kept", "gone"):
            eventually(lambda name=name: alerts(client, name)[0]["delivery"]["failure"], "refused")
            good(client.post(f"/campaigns/{name}/archive"))
        assert client.delete("/campaigns/gone", params={"confirm": "gone"}).status_code == 204
        clock.advance(20)
        running.service.sender.wake()
        eventually(lambda: alerts(client, "kept")[0]["delivery"]["status"] == "sent", "sent")
        with running.service.store.reading() as tx:
            assert len(tx.connection.execute(outbox.select()).all()) == 1
        assert [message.told["campaign"] for message in receiver.received[2:]] == ["kept"]


def alerts(client, name):
    return good(client.get(f"/campaigns/{name}/alerts"))["alerts"]


# --- several senders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_senders_send_each_message_once(worker, clock, database_url):
    """Both search at the same time, and each message goes to one of them."""
    switching = ([0] * 7 + [3] * 7) * 20
    stores = [Store(database_url) for _ in range(2)]

    async def run():
        with receiving() as receiver:
            count = len(queue_messages(worker, receiver.url, switching))
            assert count > 30
            async with sending(worker, clock, store=stores[0]), sending(worker, clock, store=stores[1]):
                await wait_until(lambda: not list_waiting(worker), "sent")
            names = [message.headers["x-undercurrent-delivery"] for message in receiver.received]
            assert len(names) == len(set(names)) == count
            assert {row["attempts"] for row in worker.rows(outbox)} == {1}

    asyncio.run(run())
    for store in stores:
        store.close()


# --- where they may go ------------------------------------------------------------------------------------------------

PRIVATE = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.0.0.1.", "0.0.0.0", "0",
    "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "2852039166", "192.0.2.1",
    "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::1]",
    "[2002:7f00:1::]", "[2002:c0a8:1::1]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[fc00::1]",
    "[fec0::1]", "[ff02::1]", "[ff0e::1]", "[2001:db8::1]", "localhost", "LOCALHOST", "localhost.", "a.localhost",
    "127。0。0。1",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "1.1.1.1", "[2606:4700::1111]", "[64:ff9b::101:101]", "[2002:101:101::1]", "hooks.example"]


NO_ADDRESS = ["0177.0.0.1", "a b", "a\\b", "a%2fb", "①②⑦.0.0.1", "host:0", "host:70000", "[::1", "-"]


def test_only_public_addresses_are_allowed():
    """In any notation."""
    for host in PRIVATE:
        for port in ("", ":8443"):
            with pytest.raises(AddressError, match="UNDERCURRENT_WEBHOOK_PRIVATE"):
                parse_target(f"https://{host}{port}/hook").require_public()
        literal = parse_target(f"http://{host}/").literal
        assert literal is None or not is_public(literal)
    for host in PUBLIC:
        parse_target(f"https://{host}:8443/hook").require_public()
    for host in NO_ADDRESS:
        with pytest.raises(AddressError, match=r"^(is not an address|has a )"):
            parse_target(f"http://{host}/")
    with pytest.raises(AddressError, match="cannot be resolved"):
        resolve_host("nobody.invalid", 80)


@on_sqlite
def test_campaigns_with_a_webhook_that_cannot_be_used_are_refused(start, database_url):
    """When created, changed or cloned; a webhook that was allowed before does not prevent other changes."""
    without = start()
    allowed = allowed_by_field(without.client.post("/campaigns", json=campaign("https://hooks.example/")))
    assert allowed == {"alerts.webhook": "set UNDERCURRENT_WEBHOOK_SECRET first"}
    without.stop()
    client = start(webhook_secret=SECRET).client
    assert allowed_by_field(client.post("/campaigns", json=campaign("http://0x7f.1/"))).keys() == {"alerts.webhook"}
    good(client.post("/campaigns", json=campaign("https://hooks.example/")), 201)
    patch = {"alerts": {"webhook": "http://10.0.0.1/"}}
    assert allowed_by_field(client.patch("/campaigns/spring", json=patch)).keys() == {"alerts.webhook"}
    clone = {"name": "summer"} | patch
    assert allowed_by_field(client.post("/campaigns/spring/clone", json=clone)).keys() == {"alerts.webhook"}
    good(client.patch("/campaigns/spring", json={"alerts": {"webhook": "https://other.example/x"}}))
    client = start().client  # without a secret
    good(client.patch("/campaigns/spring", json={"alerts": {"rounds": 7}}))
    good(client.patch("/campaigns/spring", json={"alerts": {"webhook": None}}))
    assert allowed_by_field(client.patch("/campaigns/spring", json=patch)).keys() == {"alerts.webhook"}


@on_sqlite
@pytest.mark.parametrize("host", ["localhost", "2130706433", "mixed.example"])
def test_a_private_address_gets_nothing(worker, clock, host):
    """Each attempt checks again; here nothing was checked at configuration.

    A name with a private address among public ones is refused too, and the failure reveals no internal address.
    """

    def resolve(name, port):
        mixed = [ip_address("93.184.216.34"), ip_address("::1")]
        return mixed if name == "mixed.example" else resolve_host(name, port)

    with receiving() as receiver:
        queue_messages(worker, f"http://{host}:{receiver.port}/")
        send_until(has_failed(worker, clock), worker, clock, private=False, resolve=resolve)
        assert receiver.received == []
    (row,) = worker.rows(outbox)
    assert row["failure"] == "the address is private; UNDERCURRENT_WEBHOOK_PRIVATE=true allows such addresses"


@on_sqlite
def test_the_connection_goes_to_the_address_that_was_checked(worker, clock):
    """The name is resolved once, and stays in the Host header; the first address that answers gets the message."""
    asked = []

    def resolve(name, port):
        asked.append((name, port))
        return [ip_address("127.0.0.2"), ip_address("127.0.0.1")]

    with receiving() as receiver:
        queue_messages(worker, f"http://Hooks.Example:{receiver.port}/a%20b?c=d")
        send_until(is_all_sent(worker), worker, clock, resolve=resolve)
    (message,) = receiver.received
    assert (message.headers["host"], message.path) == (f"hooks.example:{receiver.port}", "/a%20b?c=d")
    assert asked == [("hooks.example", receiver.port)]


@on_sqlite
def test_tls_uses_the_name(worker, clock):
    """The unencrypted ClientHello contains the name; an answer that is not TLS ends the attempt."""
    hellos = []

    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            hellos.append(connection.recv(4_096))
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        queue_messages(worker, f"https://hooks.example:{listener.getsockname()[1]}/")
        send_until(has_failed(worker, clock), worker, clock, resolve=lambda name, port: [ip_address("127.0.0.1")])
        thread.join()
    assert b"hooks.example" in hellos[0]
    (row,) = worker.rows(outbox)
    assert row["status"] == "waiting"
    assert row["failure"].startswith("ConnectError: [SSL")


# --- the secret -------------------------------------------------------------------------------------------------------


def test_the_secret_is_never_shown():
    """Neither in printed settings nor in an error; worker processes still get it."""
    settings = Settings(webhook_secret=SECRET, webhook_private=True)
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert SECRET not in shown
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert Settings.load({"UNDERCURRENT_WEBHOOK_SECRET": ""}, {}).webhook_secret is None
    with pytest.raises(SettingsError, match="16 characters") as refused:
        Settings.load({"UNDERCURRENT_WEBHOOK_SECRET": "swordfish"}, {})
    assert "swordfish" not in str(refused.value)


@on_sqlite
def test_without_a_secret_messages_wait(worker, clock):
    with receiving() as receiver:
        queue_messages(worker, receiver.url)

        async def run():
            async with sending(worker, clock, secret=None) as sender:
                sender.wake()
                await asyncio.sleep(0.1)

        asyncio.run(run())
        assert receiver.received == []
        assert len(list_waiting(worker)) == 1
