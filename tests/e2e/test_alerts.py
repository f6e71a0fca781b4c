"""Regime alerts from two worker processes on one PostgreSQL: each change is delivered once."""

from concurrent.futures import ThreadPoolExecutor

from service.cli.commands import main
from tests.e2e.load import open_client, wait_until
from tests.service.playing import CONFIGS
from tests.service.receiving import receiving
from tests.service.test_alerts import batch

SECRET = "shared by both workers"
NAMES = [f"campaign-{number}" for number in range(4)]


def test_two_workers_send_each_message_once(new_database, launch):
    """Whichever worker decides, one of them sends. The secret does not appear in the log, and `verify` agrees."""
    database_url = new_database("postgresql")
    environ = {"UNDERCURRENT_WEBHOOK_SECRET": SECRET}
    server = launch(database_url, "--workers", "2", "--webhook-private", environ=environ)

    def play(name: str) -> None:
        """A campaign whose regime changes every ten rounds."""
        config = CONFIGS["given"] | {"name": name, "alerts": {"rounds": 4, "webhook": receiver.url}}
        for first in range(1, 101, 10):
            with open_client(server.url) as client:  # either worker may accept the new connection
                if first == 1:
                    assert client.post("/campaigns", json=config).status_code == 201
                body = batch([0 if first % 20 == 1 else 3] * 10, first, name)
                assert client.post("/decide/batch", json=body).status_code == 200

    with receiving() as receiver:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            list(pool.map(play, NAMES))
        with open_client(server.url) as client:

            def list_alerts():
                pages = {name: client.get(f"/campaigns/{name}/alerts").json() for name in NAMES}
                return [(name, alert) for name, page in pages.items() for alert in page["alerts"]]

            wait_until(lambda: all(alert["delivery"]["sent_at"] for _, alert in list_alerts()))
            expected = [(name, str(alert["number"])) for name, alert in list_alerts()]
        server.terminate()
        assert server.wait_for_exit() == 0
    assert len(expected) == 9 * len(NAMES)
    deliveries = [message.headers["x-undercurrent-delivery"].rsplit("-", 2) for message in receiver.received]
    assert sorted((name, number) for name, _, number in deliveries) == sorted(expected)
    assert SECRET not in server.read_stderr()
    assert server.read_complaints() == ""
    assert main(["verify", "--database-url", database_url]) == 0
