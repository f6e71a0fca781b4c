"""Real server processes on real databases, and callers of them; nothing of it outlives its test."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.databases import KINDS
from tests.e2e.load import Load
from tests.e2e.server import Launch, Server, launching


class Served(NamedTuple):
    """A database, and the servers on it."""

    database_url: str
    servers: Sequence[Server]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Called with a database, it starts a server on it, without waiting until it is ready."""
    with launching(tmp_path) as launch:
        yield launch


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[str], str]) -> Iterator[dict[str, Served]]:
    """By kind, a database and servers for all tests that leave them alive: two on PostgreSQL, one on SQLite (R19)."""
    with launching(tmp_path_factory.mktemp("servers")) as launch:
        urls = {kind: new_database(kind) for kind in KINDS}
        yield {
            kind: Served(url, [launch(url) for _ in range(2 if kind == "postgresql" else 1)])
            for kind, url in urls.items()
        }


@pytest.fixture(params=KINDS)
def served(request: pytest.FixtureRequest, shared: dict[str, Served]) -> Served:
    """One of the two."""
    return shared[request.param]


@pytest.fixture
def load() -> Iterator[Load]:
    """Callers, none at work yet."""
    load = Load()
    yield load
    load.stop()
