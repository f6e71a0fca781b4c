"""A real service in a process of its own, which a test may kill and start again at the same address."""

from collections.abc import Callable, Iterator

import pytest

from tests.clients.guide import make_patient, read_programs
from tests.clients.packages import run
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


@pytest.fixture(scope="module")
def service(new_database: Callable[[str], str]) -> Iterator[Server]:
    """A service with the campaign of docs/integrate.md."""
    server = Server(new_database("sqlite"))
    server.start()
    (create,) = read_programs("sh")
    run(["bash", "-euc", make_patient(create, server.url)])
    yield server
    server.kill()
