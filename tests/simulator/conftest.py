"""A real service in a separate process, which a test may kill and restart at the same address."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pytest

START_SECONDS = 300  # on a fresh machine the first start compiles the kernels
Launch = Callable[..., "Server"]


class Server:
    """`undercurrent serve` on a database, at a port that it keeps after a restart."""

    def __init__(self, database_url: str) -> None:
        self._database_url, self._port = database_url, "0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "service.cli", "serve", "--port", self._port]
        self._process = subprocess.Popen(
            [*command, "--database-url", self._database_url], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        stdout = self._process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], START_SECONDS)[0], "the service did not start"
        self.url = stdout.readline().strip().rsplit(" ", 1)[1]
        self._port = self.url.rsplit(":", 1)[1]

    def kill(self) -> None:
        """Kill it at once."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def get_round(self, campaign: str) -> int:
        """Return the rounds of a campaign; 0 if it does not exist."""
        answer = httpx.get(f"{self.url}/campaigns/{campaign}", timeout=60, verify=False)
        return int(answer.json()["round"]) if answer.status_code == 200 else 0


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """A function that starts a service on a database, given its address."""
    servers: list[Server] = []

    def launch(database_url: str) -> Server:
        servers.append(Server(database_url))
        servers[-1].start()
        return servers[-1]

    yield launch
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def embedded(launch: Launch, new_database: Callable[[str], str]) -> Server:
    """A service on SQLite that tests share and do not kill; each test uses its own campaign names."""
    return launch(new_database("sqlite"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT stop processes started by the test, even if the test runner ignores it."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
