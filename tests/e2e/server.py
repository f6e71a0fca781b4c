"""Server processes for tests: `undercurrent serve`, started as users start it and never left behind."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import psutil

from service import __version__
from tests.e2e.load import PATIENCE_SECONDS, open_client, wait_until

UNDERCURRENT = [sys.executable, "-m", "service.cli"]
HARMLESS_LINE = re.compile(r"\S+ (INFO \S+|WARNING undercurrent\.request: slow request) .*\n")
FIRST_LINE = rf"Undercurrent {re.escape(__version__)} is at (http://[\d.]+:\d+)"


def get_environment() -> dict[str, str]:
    """The environment of the tests without the service's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UNDERCURRENT_")}


class Server:
    """`undercurrent serve` in a process group of its own."""

    def __init__(
        self, arguments: Iterable[str], environ: Mapping[str, str], stderr: Path, under: Sequence[str] = ()
    ) -> None:
        command = [*under, *UNDERCURRENT, *arguments]
        self._stderr, self._start_length = stderr, 0
        with stderr.open("w") as file:
            self._process = subprocess.Popen(
                command,
                env={**get_environment(), **environ},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    @cached_property
    def announced_url(self) -> str:
        """The URL that the server prints when it starts to listen."""
        stdout = self._process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], PATIENCE_SECONDS)[0], "the server printed nothing"
        line = re.search(FIRST_LINE, stdout.readline())
        assert line, self._stderr.read_text()
        return line[1]

    @cached_property
    def url(self) -> str:
        """The server's URL. Waits until the server is ready."""
        with open_client(self.announced_url) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, poll_seconds=0.02)
        self._start_length = len(self._stderr.read_text())  # a slow start may be logged
        return self.announced_url

    @property
    def pid(self) -> int:
        return self._process.pid

    def list_workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.pid).children()
        return [child for child in children if "--multiprocessing-fork" in child.cmdline()]

    @contextmanager
    def suspend_other_workers(self, worker: psutil.Process) -> Iterator[None]:
        """Until the end, new connections can only lead to this worker."""
        others = [other for other in self.list_workers() if other != worker]
        for other in others:
            other.suspend()
        try:
            yield
        finally:
            for other in others:
                other.resume()

    def read_stderr(self) -> str:
        return self._stderr.read_text()

    def read_complaints(self) -> str:
        """Warnings and errors on stderr since the server was ready, except slow requests: the machine may be busy."""
        return HARMLESS_LINE.sub("", self.read_stderr()[self._start_length :])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait_for_exit(self) -> int:
        """The exit code, once the server and all processes that it started have ended: each holds its stdout open."""
        self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode

    def end(self) -> None:
        """Kill the server and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


Launch = Callable[..., Server]


@contextmanager
def launch_servers(folder: Path) -> Iterator[Launch]:
    """Yields `launch(database_url, *arguments, under=command, environ=settings)`, and ends all servers that it started.

    `launch` does not wait until the server is ready; `Server.url` does. Stderr goes to a file in the folder.
    """
    servers: list[Server] = []
    folder.mkdir(exist_ok=True)

    def launch(
        database_url: str, *arguments: str, under: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Server:
        command = ["serve", "--port", "0", "--database-url", database_url, *arguments]
        servers.append(Server(command, environ or {}, folder / f"stderr-{len(servers)}", under))
        return servers[-1]

    try:
        yield launch
    finally:
        for server in servers:
            server.end()
