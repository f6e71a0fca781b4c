"""Full and read-only disks. A full one is a small file system if we may mount one, else a limit on file sizes."""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

SIZE = "16m"  # of the small file system
MAX_FILE_BYTES = 65_536  # under the limit: SQLite's shared memory has half as many
# Root ignores file permissions unless it gives up these capabilities.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
Full = Callable[..., AbstractContextManager[Sequence[str]]]


def _find_mount_prefix() -> Sequence[str] | None:
    """How a command must begin to be allowed to mount; None if we may not mount."""
    for prefix in ([], ["sudo", "-n"]):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([*prefix, "unshare", "--mount", "true"], check=True, capture_output=True, timeout=10)
            return prefix
    return None


@contextmanager
def open_disk(folder: Path) -> Iterator[Full]:
    """Turn the folder into a disk that can fill up: the more realistic one that this machine allows.

    Yields `full`: `full(pid)` fills the disk for a running process, and `full()` yields a command to start one under.
    """
    prefix = _find_mount_prefix()
    if prefix is None:
        yield limited
        return
    options = f"size={SIZE},mode=700,uid={os.getuid()},gid={os.getgid()}"
    subprocess.run([*prefix, "mount", "-t", "tmpfs", "-o", options, "small", folder], check=True)
    try:
        yield lambda pid=None: _filled(folder / "filler")
    finally:
        subprocess.run([*prefix, "umount", "--lazy", folder], check=True)


@contextmanager
def _filled(filler: Path) -> Iterator[Sequence[str]]:
    """Fill the file system with another file."""
    over, filled = threading.Event(), threading.Event()

    def fill() -> None:
        """Write a page at a time until none is left, and take pages that become free at once."""
        with filler.open("wb", buffering=0) as file:
            while not over.is_set():
                try:
                    file.write(bytes(4096))
                except OSError:
                    filled.set()
                    over.wait(0.001)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        filled.wait()
        yield []
    finally:
        over.set()
        filling.join()
        filler.unlink()


@contextmanager
def limited(pid: int | None = None) -> Iterator[Sequence[str]]:
    """Forbid a process to make its files any larger, as a quota does; needs no rights."""
    if pid is None:
        yield ["prlimit", f"--fsize={MAX_FILE_BYTES // 4}"]
        return
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, hard))
    try:
        yield []
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the folder and its files read-only."""
    files = list(folder.iterdir())
    for file in files:
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)
        for file in files:
            with suppress(FileNotFoundError):
                file.chmod(0o644)
