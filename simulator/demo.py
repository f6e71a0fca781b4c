"""`undercurrent-sim demo`: a service of its own, four policies as campaigns of it, and then the service is yours."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["running_service"]

STOP_SECONDS = 15.0


@contextmanager
def running_service(port: int) -> Iterator[str]:
    """`undercurrent serve` on a temporary SQLite file; gives its address, and stops it at the end."""
    with _ended_by(signal.SIGTERM, signal.SIGHUP), tempfile.TemporaryDirectory(prefix="undercurrent-demo-") as folder:
        command = [str(Path(sys.executable).with_name("undercurrent")), "serve", "--port", str(port)]
        command += ["--log-level", "warning"]  # the demo says itself what it does
        command += ["--database-url", f"sqlite:///{folder}/demo.db"]
        # In a group of its own: Ctrl-C is for us, and we stop the service when we no longer need it.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as service:
            try:
                assert service.stdout is not None
                first = service.stdout.readline()  # "Undercurrent 1.0 is at http://…"
                if " is at " not in first:
                    raise OSError("the service did not start")
                yield first.rsplit(" ", 1)[1].strip()
            finally:
                service.terminate()
                try:
                    service.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    service.kill()


@contextmanager
def _ended_by(*signals: signal.Signals) -> Iterator[None]:
    """However we are stopped, we come past our `finally`s and take the service with us."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
