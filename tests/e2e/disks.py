"""Full and read-only disks. A full one is a small file system if we may mount one, else a limit on file sizes."""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

SIZE = "16m"  # of the small file system
MAX_FILE_BYTES = 65_536  # under the limit: SQLite's shared memory has half as many
# Root ignores file permissions unless it gives up these capabilities.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
Full = Callable[[int | None], AbstractContextManager[Sequence[str]]]


class Disk:
    """A folder for a database. `full` fills it for a running process, or yields a command to start a process under."""

    def __init__(self, folder: Path, full: Full) -> None:
        self.database_url = f"sqlite:///{folder}/undercurrent.db"
        self.full = full


@cache
def _find_mount_prefix() -> Sequence[str] | None:
    """How a command must begin to be allowed to mount; None if we may not mount."""
    for prefix in ([], ["sudo", "-n"]):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([*prefix, "unshare", "--mount", "true"], check=True, capture_output=True, timeout=10)
            return prefix
    return None


@contextmanager
def _small(folder: Path) -> Iterator[Disk]:
    """A small file system, which another file fills."""
    prefix, filler = _find_mount_prefix(), folder / "filler"
    assert prefix is not None
    options = f"size={SIZE},mode=700,uid={os.getuid()},gid={os.getgid()}"
    subprocess.run([*prefix, "mount", "-t", "tmpfs", "-o", options, "small", folder], check=True)

    @contextmanager
    def full(pid: int | None = None) -> Iterator[Sequence[str]]:
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

    try:
        yield Disk(folder, full)
    finally:
        subprocess.run([*prefix, "umount", "--lazy", folder], check=True)


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """Forbid the process to make its files any larger."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def _limited(folder: Path) -> Iterator[Disk]:
    """Full for one process, as with a quota; needs no rights."""

    @contextmanager
    def full(pid: int | None = None) -> Iterator[Sequence[str]]:
        if pid is None:
            yield ["prlimit", f"--fsize={MAX_FILE_BYTES // 4}"]
            return
        with limited(pid):
            yield []

    yield Disk(folder, full)


# The more realistic one that this machine allows.
DISKS: Mapping[str, Callable[[Path], AbstractContextManager[Disk]]] = (
    {"limited": _limited} if _find_mount_prefix() is None else {"small": _small}
)


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
