"""`undercurrent`: the command that runs the service, and the ones around its database."""

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
from collections.abc import Callable, Sequence
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy.engine import make_url

from policy import CampaignConfig, PolicyError
from service import __version__
from service.analysis.export_files import FORMATS
from service.analysis.verify import verify
from service.base.errors import ApiError
from service.base.logs import JsonFormatter, log_config
from service.base.settings import Settings, SettingsError
from service.cli.application import create_app
from service.cli.audit import print_audit
from service.cli.export import export
from service.cli.keys import add_commands as add_key_commands
from service.cli.keys import keys
from service.cli.load import load
from service.cli.workers import Workers
from service.engine.metrics import SHARED_FOLDER
from service.engine.warm_up import load_first, warm_up
from service.storage.engines import shown
from service.storage.schema import require_current, upgrade
from service.storage.store import Store
from service.web.protocol import KEEP_ALIVE_SECONDS, Protocol

__all__ = ["main", "uvicorn_config"]

FLAGS = {
    "host": "address to listen on (UNDERCURRENT_HOST, default 127.0.0.1)",
    "port": "port, 0 for any free one (UNDERCURRENT_PORT, default 8000)",
    "database_url": "sqlite:///FILE or postgresql://… (UNDERCURRENT_DATABASE_URL, default sqlite:///undercurrent.db)",
    "workers": "processes, with PostgreSQL only (UNDERCURRENT_WORKERS, default 1)",
    "log_format": "text or json (UNDERCURRENT_LOG_FORMAT, default text)",
    "log_level": "debug, info, warning or error (UNDERCURRENT_LOG_LEVEL, default info)",
    "access_log": "log every request, not only slow and failed ones (UNDERCURRENT_ACCESS_LOG, default False)",
    "https": "browsers come by https only: tell them never to use another (UNDERCURRENT_HTTPS, default False)",
    "allowed_hosts": "further names that a service without keys answers to: a,b (UNDERCURRENT_ALLOWED_HOSTS)",
    "webhook_private": "let webhooks point to private addresses (UNDERCURRENT_WEBHOOK_PRIVATE, default False)",
}
SWITCHES = ("access_log", "https", "webhook_private")
Tell = Callable[[str, int], None]  # what those who start the service must know, and how bad it is
log = logging.getLogger("undercurrent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 when it failed, 2 when it was called wrongly."""
    parser = _parser()
    flags = vars(parser.parse_args(arguments))
    if flags["command"] != "serve":  # which does so once everything is loaded (start.py)
        gc.enable()
    if flags["command"] == "config-check":
        return config_check(flags["file"])
    try:
        settings = Settings.load(os.environ, flags)
    except SettingsError as error:
        parser.error(str(error))
    tell: Tell = _printed
    if flags["command"] == "serve" and settings.log_format == "json":
        logging.config.dictConfig(log_config(settings))
        tell = _logged
    try:
        if flags["command"] == "migrate":
            return migrate(settings)
        if flags["command"] == "verify":
            return verify(settings, flags["campaign"])
        if flags["command"] == "export":
            asked = (flags[name] for name in ("campaign", "format", "from", "to", "output"))
            return export(settings, *asked)
        if flags["command"] == "import":
            return load(settings, flags["campaign"], flags["file"], flags["import_id"])
        if flags["command"] == "audit":
            return print_audit(settings, flags["campaign"], flags["from"], flags["to"])
        if flags["command"] == "keys":
            return keys(settings, flags)
        return serve(settings, tell)
    except ApiError as error:
        tell(error.message, logging.ERROR)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="undercurrent", description="Contextual bandits under a hidden regime, as a REST service."
    )
    parser.add_argument("--version", action="version", version=f"undercurrent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="start the service", description="Start the service.")
    migrating = commands.add_parser("migrate", help="bring the database's schema up to date")
    verifying = commands.add_parser(
        "verify",
        help="fold the log again and compare",
        description="Fold the log of a campaign, or of all, from its first round, and compare every decision and every "
        "model with what is stored. Exit code 1 if anything differs.",
    )
    verifying.add_argument("campaign", nargs="?", help="its name; all campaigns without one")
    exporting = commands.add_parser(
        "export",
        help="a campaign's decisions and rewards as a file",
        description="Write a campaign's decisions with their rewards, in round order, as GET /campaigns/NAME/decisions "
        "does, but from the database itself.",
    )
    exporting.add_argument("campaign", help="its name")
    exporting.add_argument("--format", choices=FORMATS, default="ndjson", help="default ndjson: a line of JSON each")
    exporting.add_argument("--from", metavar="TIME", help="decided then or later: 2026-10-01T00:00:00Z")
    exporting.add_argument("--to", metavar="TIME", help="decided before that")
    exporting.add_argument("--output", metavar="FILE", help="standard output without it")
    importing = commands.add_parser(
        "import",
        help="warm-start a new campaign from a file of past decisions",
        description="Warm-start a new campaign from a file of past decisions, in their order: all rows or none. "
        "Columns are named as `undercurrent export` writes them; only the action and the variables are needed.",
    )
    importing.add_argument("campaign", help="its name; it must not have decided yet")
    importing.add_argument("file", help=".ndjson, .csv or .parquet")
    importing.add_argument("--import-id", metavar="ID", help="the same id imports once; by default made of the content")
    checking = commands.add_parser(
        "config-check",
        help="check a campaign's configuration",
        description="Check a campaign's configuration (JSON) and print it with every default filled in.",
    )
    checking.add_argument("file", help="a JSON file, - for standard input")
    auditing = commands.add_parser(
        "audit",
        help="what administrators did",
        description="Print what administrators did, newest first, a line of JSON each, as GET /audit tells it.",
    )
    auditing.add_argument("campaign", nargs="?", help="its name; everything without one")
    auditing.add_argument("--from", metavar="TIME", help="done then or later: 2026-10-01T00:00:00Z")
    auditing.add_argument("--to", metavar="TIME", help="done before that")
    key_commands = add_key_commands(commands.add_parser("keys", help="create, list and revoke keys"))
    for flag, text in FLAGS.items():
        own = (
            (serving, migrating, verifying, exporting, importing, auditing, *key_commands)
            if flag == "database_url"
            else (serving,)
        )
        for command in own:
            switch: dict[str, Any] = {"nargs": "?", "const": "true"} if flag in SWITCHES else {}
            command.add_argument(f"--{flag.replace('_', '-')}", dest=flag, help=text, **switch)
    return parser


def config_check(file: str) -> int:
    """Print a configuration with every default, or what is wrong with it."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        config = CampaignConfig.model_validate_json(text)
    except OSError as error:
        print(f"undercurrent: cannot read {file}: {error.strerror}", file=sys.stderr)
        return 1
    except UnicodeDecodeError:
        print(f"undercurrent: {file} is not UTF-8 text", file=sys.stderr)
        return 1
    except PolicyError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    print(config.model_dump_json(indent=2))
    return 0


def migrate(settings: Settings) -> int:
    """Bring the schema up to date."""
    with closing(Store(settings.database_url)) as store:
        upgrade(store)
    print("The database is up to date.")
    return 0


def serve(settings: Settings, tell: Tell) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    with closing(Store(settings.database_url)) as store:
        if store.embedded:
            upgrade(store)  # nobody else uses it: no reason to ask
            store.require_writes()
        require_current(store)
        with store.reading() as tx:
            guarded = bool(tx.all_keys())
    host = settings.host if guarded else _loopback(settings.host)
    if host != settings.host:
        database = shown(make_url(settings.database_url))
        tell(
            f"there is no key yet, so the service listens on {host} only, not on {settings.host}. "
            f"Create one and start again: undercurrent keys create --role admin --database-url {database}",
            logging.WARNING,
        )
    slow = threading.Timer(15.0, tell, ["compiling the kernels: only at the first start, about a minute", logging.INFO])
    slow.start()
    if not load_first():  # else a worker loads the rest while it already answers
        warm_up()
    slow.cancel()
    gc.freeze()  # the compiler leaves a million objects that stay: the collector need not look at them again
    gc.enable()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, settings.port), family=family)
    except OSError as error:
        reason, _, _ = str(error.strerror).partition(" (while")  # create_server repeats the address there
        message = f"cannot listen on {host} port {settings.port}: {reason}. Choose another with --host and --port."
        tell(message, logging.ERROR)
        return 1
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if family == socket.AF_INET6 else f"http://{host}:{port}"
    announced = _announcement(settings, url, guarded)
    if settings.workers > 1:
        os.environ.update(settings.environment())  # how the worker processes learn of them
        config = uvicorn_config(
            "service.cli.application:from_environment", factory=True, workers=settings.workers, **_logging(settings)
        )
        several = Workers(config, sockets=[listener])  # from here on it hears signals
        with tempfile.TemporaryDirectory(prefix="undercurrent-metrics-") as folder:
            os.environ[SHARED_FOLDER] = folder  # for the workers
            print(announced, flush=True)
            several.run()
        return 1 if several.failed else 0
    server = uvicorn.Server(uvicorn_config(create_app(settings), **_logging(settings)))

    # Uvicorn hears signals only once it runs, and when done raises the one that stopped it once more: no failure.
    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(announced, flush=True)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _announcement(settings: Settings, url: str, guarded: bool) -> str:
    """Where the service is, in the format of its logs."""
    head, data = f"Undercurrent {__version__} is at {url}", shown(make_url(settings.database_url))
    if settings.log_format == "json":
        fields = {"docs": f"{url}/docs", "data": data, "keys": guarded}
        record = {"name": log.name, "levelname": "INFO", "msg": head, **fields}
        return JsonFormatter().format(logging.makeLogRecord(record))
    lines = [head, f"API documentation: {url}/docs (Ctrl-C stops the service)", f"Data: {data}"]
    if not guarded:
        lines.append("There is no key: whoever is on this machine may do everything (undercurrent keys create)")
    return "\n".join(lines)


def _loopback(host: str) -> str:
    """The address itself if nobody outside this machine can reach it, else one of which that is true."""
    try:
        found = {ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return host  # nobody can listen there; the attempt says why
    if all(address.is_loopback for address in found):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def _printed(notice: str, _: int) -> None:
    print(f"undercurrent: {notice}", file=sys.stderr, flush=True)


def _logged(notice: str, level: int) -> None:
    log.log(level, notice)


def uvicorn_config(app: object, **settings: object) -> uvicorn.Config:
    # No route asks who called or under which address, so nothing needs a proxy's headers.
    quiet = {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "http": Protocol,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": 30,  # for those who never finish sending
        # Until a worker process says that it lives. On a busy machine it loads its modules for longer than uvicorn's 5
        # seconds, would be killed, and started again, for ever.
        "timeout_worker_healthcheck": 60,
    }
    return uvicorn.Config(app, **{**quiet, **settings})  # type: ignore[arg-type]


def _logging(settings: Settings) -> dict[str, object]:
    """What makes uvicorn set up our logs, in every process that it starts."""
    return {"log_config": log_config(settings), "log_level": None}


if __name__ == "__main__":
    sys.exit(main())
