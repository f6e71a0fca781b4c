"""Disks in trouble, for real: full, as far as we may mount a small one, or by a limit on files; and read-only."""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

__all__ = ["BOUND", "DISKS", "Disk", "limited", "read_only"]

SIZE = "16m"  # of a small disk
LEAST = 65_536  # bytes that a file may have under the limit: SQLite's shared memory has half as many
# Root may write where permissions forbid it, unless it gives that up.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
Full = Callable[[int | None], AbstractContextManager[Sequence[str]]]


class Disk:
    """Where a database may be; `full` is for a running process, or gives what another one is to be started under."""

    def __init__(self, folder: Path, full: Full) -> None:
        self.database_url = f"sqlite:///{folder}/undercurrent.db"
        self.full = full


@cache
def _mounting() -> Sequence[str] | None:
    """How a command begins that mounts something; None if we may not."""
    for prefix in ([], ["sudo", "-n"]):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([*prefix, "unshare", "--mount", "true"], check=True, capture_output=True, timeout=10)
            return prefix
    return None


@contextmanager
def _small(folder: Path) -> Iterator[Disk]:
    """A disk of its own, which others can fill."""
    prefix, rubbish = _mounting(), folder / "rubbish"
    assert prefix is not None
    options = f"size={SIZE},mode=700,uid={os.getuid()},gid={os.getgid()}"
    subprocess.run([*prefix, "mount", "-t", "tmpfs", "-o", options, "small", folder], check=True)

    @contextmanager
    def full(pid: int | None = None) -> Iterator[Sequence[str]]:
        over, filled = threading.Event(), threading.Event()

        def fill() -> None:
            """A page at a time, until not even one is left; and whatever is given back is taken at once."""
            with rubbish.open("wb", buffering=0) as file:
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
            rubbish.unlink()

    try:
        yield Disk(folder, full)
    finally:
        subprocess.run([*prefix, "umount", "--lazy", folder], check=True)


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """The process cannot make its files any larger."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LEAST, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def _limited(folder: Path) -> Iterator[Disk]:
    """Full for one process, as by a quota; anybody can do that."""

    @contextmanager
    def full(pid: int | None = None) -> Iterator[Sequence[str]]:
        if pid is None:
            yield ["prlimit", f"--fsize={LEAST // 4}"]
            return
        with limited(pid):
            yield []

    yield Disk(folder, full)


# The truer one, if this machine allows it.
DISKS: Mapping[str, Callable[[Path], AbstractContextManager[Disk]]] = (
    {"limited": _limited} if _mounting() is None else {"small": _small}
)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever opens a file of the folder can only read it, and nobody can make another one."""
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
