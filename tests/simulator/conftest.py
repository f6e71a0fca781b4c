"""A real service in a process of its own, which a test may kill and start again at the same address."""

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
    """`undercurrent serve` on a database, at a port that it keeps when it is started again."""

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
        assert select.select([stdout], [], [], START_SECONDS)[0], "it said nothing"
        self.url = stdout.readline().strip().rsplit(" ", 1)[1]
        self._port = self.url.rsplit(":", 1)[1]

    def kill(self) -> None:
        """End it at this very instant, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def round(self, campaign: str) -> int:
        """How many rounds a campaign has; 0 if there is none."""
        answer = httpx.get(f"{self.url}/campaigns/{campaign}", timeout=60)
        return int(answer.json()["round"]) if answer.status_code == 200 else 0


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """Called with a database's address, it starts a service on it."""
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
    """A service on SQLite for tests that leave it alive; each takes campaign names of its own."""
    return launch(new_database("sqlite"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes started now can be stopped by SIGINT, even where the test runner itself ignores it."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
