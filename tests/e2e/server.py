"""Real server processes: `undercurrent serve`, as its users start it; nothing of it outlives who asked for it."""

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

import httpx

from service import __version__
from tests.e2e.load import PATIENCE_SECONDS, wait_until

__all__ = ["UNDERCURRENT", "Launch", "Server", "launching", "outside"]

START_SECONDS = 300  # on a fresh machine the first start compiles the kernels
UNDERCURRENT = [sys.executable, "-m", "service.cli.commands"]
NO_COMPLAINT = re.compile(r"\S+ (INFO \S+|WARNING undercurrent\.request: slow request) .*\n")
ANNOUNCED = rf"Undercurrent {re.escape(__version__)} is at (http://[\d.]+:\d+)"


def outside() -> dict[str, str]:
    """The test's own environment, without settings of a service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UNDERCURRENT_")}


class Server:
    """`undercurrent serve`, in a process group of its own."""

    def __init__(
        self, arguments: Iterable[str], environ: Mapping[str, str], stderr: Path, under: Sequence[str] = ()
    ) -> None:
        command = [*under, *UNDERCURRENT, *arguments]
        self._stderr, self._start_up = stderr, 0
        with stderr.open("w") as file:
            self._process = subprocess.Popen(
                command,
                env={**outside(), **environ},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    @cached_property
    def announced(self) -> str:
        """Its address, as soon as it says so."""
        stdout = self._process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], START_SECONDS)[0], "it said nothing"
        line = re.search(ANNOUNCED, stdout.readline())
        assert line, self._stderr.read_text()
        return line[1]

    @cached_property
    def url(self) -> str:
        """Its address, as soon as it can decide."""
        wait_until(lambda: httpx.get(f"{self.announced}/readyz", timeout=START_SECONDS).status_code == 200)
        self._start_up = len(self._stderr.read_text())  # a slow start may say why it is slow
        return self.announced

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        """All that it has said on stderr."""
        return self._stderr.read_text()

    def complaints(self) -> str:
        """What it has complained about on stderr since it was ready; a busy machine's slow answers are none."""
        return NO_COMPLAINT.sub("", self.said()[self._start_up :])

    def kill(self) -> None:
        """End it at this very instant."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """How it ended. Waits for it and for every process it has started: they all hold its stdout open."""
        self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode

    def end(self) -> None:
        """Whatever happened, nothing of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


Launch = Callable[..., Server]


@contextmanager
def launching(folder: Path) -> Iterator[Launch]:
    """Called with a database, it starts a server on it, without waiting until it is ready; `under` another command."""
    servers: list[Server] = []

    def launch(database_url: str, *arguments: str, under: Sequence[str] = ()) -> Server:
        command = ["serve", "--port", "0", "--database-url", database_url, *arguments]
        servers.append(Server(command, {}, folder / f"stderr-{len(servers)}", under))
        return servers[-1]

    try:
        yield launch
    finally:
        for server in servers:
            server.end()
