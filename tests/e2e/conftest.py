"""Server processes on real databases, and callers of them. Nothing outlives the tests."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.databases import KINDS, Databases
from tests.e2e.load import Load
from tests.e2e.programs import find_program
from tests.e2e.server import Launch, Server, launch_servers


class Deployment(NamedTuple):
    """A database and the servers on it."""

    database_url: str
    servers: Sequence[Server]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`launch(database_url)` starts a server and does not wait until it is ready; `Server.url` does."""
    with launch_servers(tmp_path) as launch:
        yield launch


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, new_database: Databases) -> Iterator[dict[str, Deployment]]:
    """Servers for tests that do not stop them: two on one PostgreSQL database, one on SQLite (R19)."""
    with launch_servers(tmp_path_factory.mktemp("servers")) as launch:
        urls = {kind: new_database(kind) for kind in KINDS}
        yield {
            kind: Deployment(url, [launch(url) for _ in range(2 if kind == "postgresql" else 1)])
            for kind, url in urls.items()
        }


@pytest.fixture(params=KINDS)
def deployment(request: pytest.FixtureRequest, shared: dict[str, Deployment]) -> Deployment:
    """The shared servers: the test runs once on each database."""
    return shared[request.param]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module. Not for the session: while it is open, nothing else in this thread can use asyncio."""
    path = find_program("chromium", "chromium-browser")
    with sync_playwright() as playwright:
        # Containers give Chromium neither its sandbox nor much shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def load() -> Iterator[Load]:
    """Callers that have not started yet."""
    load = Load()
    yield load
    load.stop()
