"""`undercurrent serve`: start the service."""

import argparse
import gc
import logging
import logging.config
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from ipaddress import ip_address

import uvicorn

from service import __version__
from service.base.errors import ApiError
from service.base.logs import JsonFormatter, build_log_config
from service.base.settings import Settings
from service.cli.application import configure_server, create_app
from service.cli.flags import SETTINGS, Flags, add_settings, load_settings
from service.cli.supervisor import Supervisor, serve_worker
from service.engine.metrics import SHARED_FOLDER
from service.engine.warm_up import load_first, warm_up
from service.storage import engines, keys, schema
from service.storage.store import Store

Report = Callable[[int, str], None]  # shows a message, with its log level, to the person who starts the service
log = logging.getLogger("undercurrent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, SETTINGS)


def run(flags: Flags) -> int:
    settings = load_settings(flags)
    report: Report = _print
    if settings.log_format == "json":
        logging.config.dictConfig(build_log_config(settings))
        report = log.log
    try:
        return serve(settings, report)
    except ApiError as error:
        report(logging.ERROR, error.message)
        return 1


def serve(settings: Settings, report: Report) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    has_keys = _prepare_database(settings)
    host = settings.host if has_keys else choose_host(settings.host)
    if settings.rehearsal and (has_keys or host != settings.host):
        reason = "the database has keys" if has_keys else f"{settings.host} can be reached from elsewhere"
        report(logging.ERROR, f"--rehearsal is only for trying things out on this machine, without keys, and {reason}")
        return 1
    if host != settings.host:
        database = engines.hide_password(settings.database_url)
        report(
            logging.WARNING,
            f"there are no keys yet, so the service listens on {host} only, not on {settings.host}. "
            f"Create a key and start again: undercurrent keys create --role admin --database-url {database}",
        )
    _load_kernels(report)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, settings.port), family=family)
    except OSError as error:
        reason, _, _ = str(error.strerror).partition(" (while")  # create_server repeats the address there
        message = f"cannot listen on {host} port {settings.port}: {reason}. Choose another with --host and --port."
        report(logging.ERROR, message)
        return 1
    address, port = listener.getsockname()[:2]
    url = f"http://[{address}]:{port}" if family == socket.AF_INET6 else f"http://{address}:{port}"
    run_server = _serve_with_workers if settings.workers > 1 else _serve_alone
    has_started = run_server(settings, listener, _announcement(settings, url, has_keys))
    return 0 if has_started else 1


def _prepare_database(settings: Settings) -> bool:
    """Check the database, and bring an embedded one up to date; True if it has keys."""
    with closing(Store(settings.database_url)) as store:
        if store.embedded:
            schema.upgrade(store)  # no other process uses it, so there is no need to ask
            store.require_writes()
        schema.require_current(store)
        store.require_own_sessions()
        with store.reading() as tx:
            return bool(keys.read_keys(tx))


def _load_kernels(report: Report) -> None:
    message = "compiling the kernels, which takes about a minute; only the first start does"
    slow = threading.Timer(15.0, report, [logging.INFO, message])
    slow.start()
    if not load_first():  # otherwise a worker loads the rest while it already answers
        warm_up()
    slow.cancel()
    gc.freeze()  # the compiler leaves a million objects that stay, which the collector need not visit
    gc.enable()


def _serve_with_workers(settings: Settings, listener: socket.socket, announcement: str) -> bool:
    """Serve with several processes; False if none could start."""
    logging.config.dictConfig(build_log_config(settings))
    supervisor = Supervisor(settings.workers, serve_worker, settings, listener)
    with tempfile.TemporaryDirectory(prefix="undercurrent-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder  # the workers inherit it
        print(announcement, flush=True)
        return supervisor.run()


def _serve_alone(settings: Settings, listener: socket.socket, announcement: str) -> bool:
    """Serve in this process; False if the service could not start."""
    server = uvicorn.Server(configure_server(create_app(settings), settings))

    # Uvicorn handles signals only while it runs, and afterwards raises the signal that stopped it again. With this
    # handler that is not a failure.
    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(announcement, flush=True)
    server.run(sockets=[listener])
    return server.started


def _announcement(settings: Settings, url: str, has_keys: bool) -> str:
    """Where the service is, in the format of the logs."""
    head, data = f"Undercurrent {__version__} is at {url}", engines.hide_password(settings.database_url)
    if settings.log_format == "json":
        fields = {"docs": f"{url}/docs", "data": data, "keys": has_keys}
        record = {"name": log.name, "levelname": "INFO", "msg": head, **fields}
        return JsonFormatter().format(logging.makeLogRecord(record))
    lines = [head, f"API documentation: {url}/docs (Ctrl-C stops the service)", f"Data: {data}"]
    if settings.rehearsal:
        lines.append("Rehearsal: POST /rehearsal/clock moves the clock")
    if not has_keys:
        lines.append("No keys yet: anyone on this machine can do everything (undercurrent keys create)")
    return "\n".join(lines)


def choose_host(host: str) -> str:
    """Where to listen without keys: the host itself if only this machine can reach it, otherwise a loopback address."""
    try:
        addresses = {ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return host  # listening there will fail, and say why
    if all(address.is_loopback for address in addresses):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def _print(_: int, message: str) -> None:
    print(f"undercurrent: {message}", file=sys.stderr, flush=True)
