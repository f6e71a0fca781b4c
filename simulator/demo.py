"""The temporary service behind `undercurrent-sim demo`."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

STOP_SECONDS = 15.0


@contextmanager
def run_service(port: int) -> Iterator[str]:
    """Run `undercurrent serve` on a temporary SQLite file, yield its address, and stop it at the end."""
    with (
        _interrupt_on(signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="undercurrent-demo-") as folder,
    ):
        command = [str(Path(sys.executable).with_name("undercurrent")), "serve", "--port", str(port)]
        command += ["--log-level", "warning"]  # the demo prints its own progress
        command += ["--database-url", f"sqlite:///{folder}/demo.db"]
        # In its own process group, so that Ctrl-C reaches only this process, which then stops the service.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as service:
            try:
                assert service.stdout is not None
                address = re.search(r"http://\S+", service.stdout.readline())
                if address is None:
                    raise OSError("the service did not start")
                yield address[0]
            finally:
                service.terminate()
                try:
                    service.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    service.kill()


@contextmanager
def _interrupt_on(*signals: signal.Signals) -> Iterator[None]:
    """Turn these signals into KeyboardInterrupt, so that `finally` blocks run and the service is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
