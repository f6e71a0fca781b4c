"""A real service in a process of its own, which a test may kill and start again at the same address."""

from collections.abc import Callable, Iterator

import pytest

from tests.simulator.conftest import Server


@pytest.fixture
def launch() -> Iterator[Callable[[str], Server]]:
    """A function that starts a service on a database, given its address."""
    servers: list[Server] = []

    def launch(database_url: str) -> Server:
        servers.append(Server(database_url))
        servers[-1].start()
        return servers[-1]

    yield launch
    for server in servers:
        server.kill()
