"""`undercurrent`: the command that runs the service."""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence

import uvicorn

from service import __version__
from service.app import create_app
from service.settings import Settings, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 when it failed, 2 when it was called wrongly."""
    parser = argparse.ArgumentParser(
        prog="undercurrent", description="Contextual bandits under a hidden regime, as a REST service."
    )
    parser.add_argument("--version", action="version", version=f"undercurrent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve_parser = commands.add_parser("serve", help="start the service", description="Start the service.")
    serve_parser.add_argument("--host", help="address to listen on (UNDERCURRENT_HOST, default 127.0.0.1)")
    serve_parser.add_argument("--port", help="port, 0 for any free one (UNDERCURRENT_PORT, default 8000)")
    flags = vars(parser.parse_args(arguments))
    try:
        settings = Settings.load(os.environ, flags)
    except SettingsError as error:
        parser.error(str(error))
    return serve(settings)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        reason, _, _ = str(error.strerror).partition(" (while")  # create_server repeats the address there
        print(
            f"undercurrent: cannot listen on {settings.host} port {settings.port}: {reason}. "
            "Choose another with --host and --port.",
            file=sys.stderr,
        )
        return 1
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if family == socket.AF_INET6 else f"http://{host}:{port}"
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="warning", access_log=False))
    # When done, uvicorn raises the signal that stopped it once more; a stop that was asked for is no failure.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: None)
    print(f"Undercurrent {__version__} is at {url}", flush=True)
    print(f"API documentation: {url}/docs (Ctrl-C stops the service)", flush=True)
    server.run(sockets=[listener])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
