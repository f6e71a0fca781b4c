"""Several worker processes that share one listening socket: started, watched, replaced and stopped from here."""

import logging
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import uvicorn

__all__ = ["Workers"]

RESTART_SECONDS = 2.0  # between two attempts to replace a worker that cannot start
STARTUP_FAILURE = 3  # uvicorn's exit code for an application that cannot start
log = logging.getLogger("undercurrent")


class WorkerProcess:
    """One process that serves. Asked over a pipe, it tells whether it has started."""

    def __init__(self, config: uvicorn.Config, sockets: Sequence[socket.socket]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(config, list(sockets), other_end))
        self.process.start()
        other_end.close()  # only the worker holds it now, so waiting for a dead worker's answer ends at once

    def check(self, timeout: float) -> bool | None:
        """Return whether the worker has started, or None if it is dead or does not answer in time."""
        try:
            self._connection.send(None)
            return bool(self._connection.recv()) if self._connection.poll(timeout) else None
        except (OSError, EOFError):
            return None

    def terminate(self) -> None:
        """Ask the worker to finish what it has accepted and to end."""
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.join()

    def join(self) -> None:
        self.process.join()
        self._connection.close()


def _serve(config: uvicorn.Config, sockets: list[socket.socket], connection: Connection) -> None:
    """Serve until told to stop: what a worker process runs."""
    config.configure_logging()
    server = uvicorn.Server(config)

    def answer_checks() -> None:
        while True:
            try:
                connection.recv()
                connection.send(server.started)
            except (OSError, EOFError):  # the parent has gone; from_environment ends this process
                return

    threading.Thread(target=answer_checks, daemon=True).start()
    with suppress(KeyboardInterrupt):  # Ctrl-C reaches every process of the terminal
        server.run(sockets)


class Workers:
    """Worker processes, each replaced as soon as it ends or hangs.

    If none can start, `run` ends and `failed` is true. But once one has served, a replacement that cannot start
    (because the database is away, or was just migrated) is tried again while the others go on.

    SIGHUP replaces the workers one by one; SIGTTIN adds one and SIGTTOU removes one.
    """

    def __init__(self, config: uvicorn.Config, sockets: Sequence[socket.socket]) -> None:
        self.failed = False
        self._config, self._sockets = config, sockets
        self._workers: list[WorkerProcess] = []
        self._has_served = False
        self._stopping = threading.Event()
        self._received: list[int] = []  # signals; they are handled between two rounds of checks
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, lambda number, _: self._received.append(number))

    def run(self) -> None:
        """Start the workers and watch them until a signal stops them all."""
        self._workers = [self._start() for _ in range(self._config.workers)]
        while not self._stopping.wait(0.5):
            while self._received:
                self._handle(self._received.pop(0))
            self._replace_ended()
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._config, self._sockets)

    def _handle(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            self._stopping.set()
        elif number == signal.SIGHUP:
            self._restart()
        elif number == signal.SIGTTIN:
            self._workers.append(self._start())
        elif len(self._workers) > 1:
            worker = self._workers.pop()
            worker.terminate()
            worker.join()

    def _replace_ended(self) -> None:
        for place, worker in enumerate(self._workers):
            if self._stopping.is_set():
                return
            started = worker.check(self._config.timeout_worker_healthcheck)
            if started is not None:
                self._has_served = self._has_served or started
                continue
            worker.kill()
            process = worker.process
            log.warning("a worker has ended", extra={"pid": process.pid, "exit_code": process.exitcode})
            if process.exitcode == STARTUP_FAILURE:
                if not self._has_served:
                    self.failed = True
                    self._stopping.set()
                    return
                self._stopping.wait(RESTART_SECONDS)
            self._workers[place] = self._start()

    def _restart(self) -> None:
        """Replace every worker. A replacement must have started before its predecessor is stopped."""
        for place, old in enumerate(self._workers):
            new, timeout = self._start(), self._config.timeout_worker_healthcheck
            deadline = time.monotonic() + timeout
            while (started := new.check(timeout)) is False and time.monotonic() < deadline:
                time.sleep(0.1)
            if not started:
                new.kill()
                log.error("a new worker did not start; the others go on", extra={"pid": new.process.pid})
                return
            old.terminate()
            old.join()
            self._workers[place] = new
