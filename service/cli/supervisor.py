"""Several worker processes on one listening socket: each one that ends is replaced."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import uvicorn

from service.base.settings import Settings
from service.cli.application import configure_server, create_app
from service.engine.metrics import SHARED_FOLDER

CANNOT_START = 3  # exit code of a worker
RESTART_SECONDS = 2.0  # between two attempts to replace a worker that cannot start
SPAWN = multiprocessing.get_context("spawn")
log = logging.getLogger("undercurrent")


class Supervisor:
    """Keeps worker processes running, and stops them all on SIGTERM or Ctrl-C, from its creation on.

    A worker is a process that runs `target(ready, *arguments)`, sends something to `ready` once it serves, and exits
    with CANNOT_START if it cannot. If the first workers cannot start, the supervisor gives up. Once one has served, it
    keeps trying: the database may be away, or being migrated, and the other workers still serve.
    """

    def __init__(self, workers: int, target: Callable[..., None], *arguments: object) -> None:
        self._workers, self._target, self._arguments = workers, target, arguments
        self._has_served = False
        # Pipes, because a process that is killed cannot leave one locked, and because they can be waited for.
        self._ready, self._send_ready = SPAWN.Pipe(duplex=False)
        self._stop, self._send_stop = SPAWN.Pipe(duplex=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._send_stop.send_bytes(b"stop"))

    def run(self) -> bool:
        """Run until a signal; False if no worker could start."""
        processes = [self._start() for _ in range(self._workers)]
        try:
            while True:
                wait([self._stop, *(process.sentinel for process in processes)])
                if self._stop.poll():
                    return True
                while self._ready.poll():
                    self._has_served = bool(self._ready.recv_bytes())
                for place, process in enumerate(processes):
                    if process.exitcode is None:
                        continue
                    log.warning("a worker has ended", extra={"pid": process.pid, "exit_code": process.exitcode})
                    if process.exitcode == CANNOT_START:
                        if not self._has_served:
                            return False
                        if self._stop.poll(RESTART_SECONDS):
                            return True
                    processes[place] = self._start()
        finally:
            for process in processes:
                process.terminate()  # SIGTERM: the worker finishes what it has accepted
            for process in processes:
                process.join()

    def _start(self) -> SpawnProcess:
        process = SPAWN.Process(target=_run_worker, args=(self._target, self._send_ready, self._arguments))
        process.start()
        return process


def _run_worker(target: Callable[..., None], ready: Connection, arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with suppress(KeyboardInterrupt):  # Ctrl-C reaches the workers too
        target(ready, *arguments)


def _stop_with_parent() -> None:
    """Without this, the worker of a killed supervisor would go on serving and keep its address from the next start."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def serve_worker(ready: Connection, settings: Settings, listener: socket.socket) -> None:
    # A cleaner of temporary files may have removed it.
    Path(os.environ[SHARED_FOLDER]).mkdir(mode=0o700, exist_ok=True)

    def report_start() -> None:
        with suppress(BrokenPipeError):  # the supervisor was killed, and this worker is about to stop
            ready.send_bytes(b"ready")

    app = create_app(settings, on_start=report_start)
    server = uvicorn.Server(configure_server(app, settings))
    server.run(sockets=[listener])
    if not server.started:
        sys.exit(CANNOT_START)
