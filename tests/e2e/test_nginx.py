"""deploy/nginx.conf in the real nginx, in front of two servers on one PostgreSQL."""

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.databases import Databases
from tests.e2e.load import CAMPAIGN, open_client, wait_until
from tests.e2e.programs import find_program
from tests.e2e.server import Server, launch_servers
from tests.service.answers import error_of, good
from tests.service.connecting import Connection, head
from tests.service.scraping import Scrape
from tests.test_project import ROOT

CAMPAIGNS = [f"hashed-{number}" for number in range(12)]
CONTEXT = {"risk": "low", "revenue": 1}
pytestmark = pytest.mark.slow


class Proxy(NamedTuple):
    """nginx, and the servers behind it."""

    url: str
    client: httpx.Client
    servers: list[Server]

    def connect(self) -> Connection:
        """Open a connection whose owner decides which bytes come when."""
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", httpx.URL(self.url).port), 30)
        return Connection(self.url, tls.wrap_socket(plain, server_hostname="localhost"))

    def count(self, name: str, label: str) -> list[Mapping[str, float]]:
        """What each server has counted, by a label."""
        counts = []
        for server in self.servers:
            with open_client(server.url) as client:
                counts.append(Scrape(client).counted(name, label))
        return counts


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_config(folder: Path, port: int, servers: list[Server]) -> Path:
    """Write deploy/nginx.conf with the addresses, paths and short time-outs of this test."""
    certificate, key = folder / "tls.pem", folder / "tls.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    config = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    for before, after in {
        "http {\n": f"http {{\n{temporary}",
        "service:8000": servers[0].url.removeprefix("http://"),
        "service-2:8000": servers[1].url.removeprefix("http://"),
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/nginx/undercurrent.pem": str(certificate),
        "/etc/nginx/undercurrent.key": str(key),
        "client_header_timeout 10s": "client_header_timeout 1s",
        "client_body_timeout 10s": "client_body_timeout 1s",
    }.items():
        assert config.count(before) == 1, before
        config = config.replace(before, after)
    path = folder / "nginx.conf"
    path.write_text(config)
    return path


@pytest.fixture(scope="module")
def proxy(new_database: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    program, folder = find_program("nginx"), tmp_path_factory.mktemp("nginx")
    database_url, port = new_database("postgresql"), find_free_port()
    with launch_servers(folder / "servers") as launch:
        servers = [launch(database_url) for _ in range(2)]
        config = write_config(folder, port, servers)
        settings = f"daemon off; user root; pid {folder}/pid;"  # as another user it could not enter the folder
        command = [program, "-c", str(config), "-p", str(folder), "-e", "stderr", "-g", settings]
        with (folder / "nginx.log").open("w") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            with open_client(f"https://localhost:{port}") as client:
                wait_until(lambda: process.poll() is not None or (folder / "pid").exists())
                assert process.poll() is None, (folder / "nginx.log").read_text()
                wait_until(lambda: client.get("/readyz").status_code == 200)
                for name in CAMPAIGNS:
                    good(client.post("/campaigns", json={"name": name} | CAMPAIGN), 201)
                yield Proxy(f"https://localhost:{port}", client, servers)
        finally:
            process.terminate()
            process.wait()


def test_each_campaign_is_served_by_one_worker(proxy):
    """Decisions and rewards, one by one and in batches, of many campaigns: no campaign is on both workers."""
    for number in range(5):
        for name in CAMPAIGNS:
            item = {"decision_id": f"d{number}", "context": CONTEXT}
            made = good(proxy.client.post(f"/campaigns/{name}/decide", json=item))
            assert (made["campaign"], made["round"]) == (name, 2 * number + 1)
            items = [item | {"decision_id": f"b{number}"}]
            good(proxy.client.post(f"/campaigns/{name}/decide/batch", json={"items": items}))
            rewards = [{"decision_id": f"{kind}{number}", "reward": 1} for kind in "db"]
            good(proxy.client.post(f"/campaigns/{name}/reward", json=rewards[0]))
            good(proxy.client.post(f"/campaigns/{name}/reward/batch", json={"items": rewards}))
    for name in ("decisions_total", "rewards_total"):
        one, other = proxy.count(name, "campaign")
        assert one.keys() | other.keys() == set(CAMPAIGNS)
        assert not one.keys() & other.keys()
        assert one
        assert other


def test_other_paths_go_to_any_worker(proxy):
    for number in range(20):
        body = {"campaign": CAMPAIGNS[0], "decision_id": f"any{number}", "context": CONTEXT}
        good(proxy.client.post("/decide", json=body))
    assert all(counts.get("/decide") for counts in proxy.count("requests_total", "route"))


def test_ids_of_requests_are_passed_on(proxy):
    assert proxy.client.get("/healthz", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    ids = {proxy.client.get("/healthz").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(len(made) == 32 for made in ids)


def test_bodies_and_headers_have_limits(proxy):
    """Too large, or too slow: nginx refuses them, and the service never sees them."""
    path = f"/campaigns/{CAMPAIGNS[0]}/decide/batch"
    error = error_of(proxy.client.post(path, content=b" " * (4 * 2**20 + 1)), 413)
    assert error["code"] == "too_large"
    good(
        proxy.client.post("/campaigns/check", content=json.dumps({"name": "x"} | CAMPAIGN) + " " * (4 * 2**20 - 1_000))
    )
    before = proxy.count("requests_total", "route")
    for begun in (
        b"POST ",
        head(path)[:-2],
        head(path)[:-2] + b"x: " + b"y" * 40_000,
        head(path, "Content-Length: 9") + b"{",
    ):
        connection = proxy.connect()
        connection.offer(begun)
        answer = connection.rest()
        assert answer == b"" or answer.split()[1] in (b"400", b"408"), answer
        connection.close()
    after = proxy.count("requests_total", "route")
    assert [counts.get("/campaigns/{name}/decide/batch") for counts in before] == [
        counts.get("/campaigns/{name}/decide/batch") for counts in after
    ]


def test_a_worker_that_is_gone(proxy):
    """Its campaigns move to the other one; if both are gone, the answer has the service's shape."""
    proxy.servers[0].kill()
    for name in CAMPAIGNS:
        good(proxy.client.post(f"/campaigns/{name}/decide", json={"decision_id": "moved", "context": CONTEXT}))
    proxy.servers[1].kill()
    answer = proxy.client.post(f"/campaigns/{CAMPAIGNS[0]}/decide", json={"context": CONTEXT})
    assert error_of(answer, 503)["code"] == "unavailable"
    assert answer.headers["retry-after"] == "1"
