"""A service in the test's own process, on a real socket and with a clock that the test moves."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn

import service.web.requests
from service.base.settings import Settings
from service.cli.application import configure_server, create_app
from service.engine.worker import Service
from tests.service.playing import Direct


class Clock:
    """The service's time, in microseconds since 1970; a test moves it."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@pytest.fixture(autouse=True)
def no_slow_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's slow answers are no news; tests of them set their own limit."""
    monkeypatch.setattr(service.web.requests, "SLOW_SECONDS", 60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Worker:
    """A service in a thread of the test's process, on a real socket."""

    def __init__(self, database_url: str, clock: Clock, **own: Any) -> None:
        settings = Settings(database_url=database_url, **own)
        self.service = Service(settings, clock)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(configure_server(create_app(settings, self.service)))
        # A daemon: a worker that could not start must not keep the test run from ending.
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.client = self.open_client()
        # On a new machine the service may compile its kernels first.
        assert self.client.get("/healthz", timeout=300).status_code == 200

    def open_client(self) -> httpx.Client:
        """A client for one more thread: one that looks for a free connection may close what another has just taken."""
        # Loading certificates, which nobody needs here, takes longer than starting the service.
        return httpx.Client(base_url=self.url, timeout=60, verify=False)

    def stop(self) -> None:
        """Stop as SIGTERM does."""
        self.client.close()
        self._server.should_exit = True
        self._thread.join(300)  # on a new machine it may still compile the kernels
        assert not self._thread.is_alive()


@pytest.fixture
def start(database_url: str, clock: Clock) -> Iterator[Callable[..., Worker]]:
    """Start a worker on the test's database; called again it starts another one, beside the first or after it."""
    workers: list[Worker] = []

    def start(**settings: Any) -> Worker:
        workers.append(Worker(database_url, clock, **settings))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def client(start: Callable[[], Worker]) -> httpx.Client:
    """A client of one worker on the test's database."""
    return start().client


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> Iterator[httpx.Client]:
    """A client of one worker that all tests of a module share, for those to whom only their own campaign matters."""
    worker = Worker(new_database(request.param), Clock())
    yield worker.client
    worker.stop()


@pytest.fixture(scope="module")
def http(new_database: Callable[[str], str]) -> Iterator[httpx.Client]:
    """A client of one worker on SQLite that all tests of a module share, for behaviour that no database touches."""
    worker = Worker(new_database("sqlite"), Clock())
    yield worker.client
    worker.stop()


@pytest.fixture
def direct(database_url: str, clock: Clock) -> Iterator[Callable[[], Direct]]:
    """A worker without a socket on the test's database; called again, another one, as after a restart."""
    workers: list[Direct] = []

    def start() -> Direct:
        workers.append(Direct(database_url, clock))
        return workers[-1]

    yield start
    for worker in workers:
        worker.store.close()
