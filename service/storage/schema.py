"""The database's schema: bring it up to date, or say which command does.

Alembic is imported where it works: a start with a database that is up to date does without it.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

import migrations
from service.base.errors import UnavailableError
from service.storage.engines import hide_password
from service.storage.store import Store
from service.storage.transaction import Transaction

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["alembic_config", "get_schema_revision", "head", "require_current", "upgrade"]


HERE = Path(migrations.__file__).parent


def alembic_config(connection: sa.Connection | None = None) -> "Config":
    """Alembic's configuration; it works on the connection, if one is given."""
    from alembic.config import Config

    config = Config(stdout=sys.stdout)  # by default that of its import
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this version of the service needs: the last one, and files are named by their revision."""
    return max(file.name.partition("_")[0] for file in HERE.glob("versions/[0-9]*.py"))


def get_schema_revision(tx: Transaction) -> str | None:
    """The revision that Alembic has stored, None if the database has none."""
    if not sa.inspect(tx.connection).has_table("alembic_version"):
        return None
    found = tx.connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
    return str(found[0]) if found else None


def upgrade(store: Store, revision: str = "head") -> None:
    """Bring the database to a revision, all of it or nothing."""
    if revision == "head":
        with store.reading() as tx:
            if get_schema_revision(tx) == head():
                return
    from alembic import command
    from alembic.util import CommandError

    try:
        with store.migrating() as tx:
            command.upgrade(alembic_config(tx.connection), revision)
    except CommandError as error:
        raise UnavailableError(f"The database cannot be migrated: {error}; is it of a newer version?") from None


def require_current(store: Store) -> None:
    """The schema must be the one this version was written for. Clients are not told where the database is."""
    file = store.engine.url.database
    if store.embedded and file and not Path(file).exists():  # SQLite would make one
        raise UnavailableError(f"There is no database file {file}", public="There is no database file")
    with store.reading() as tx:
        found = get_schema_revision(tx)
    if found is not None and found > head():
        told = f"The database is at revision {found}, not {head()}: it is of a newer version, so upgrade the service"
        raise UnavailableError(told)
    if found != head():
        state = "has no tables yet" if found is None else f"is at revision {found}, not {head()}"
        told = f"The database {state}; run: undercurrent migrate"
        hint = " (with its password)" if store.engine.url.password else ""
        raise UnavailableError(f"{told} --database-url {hide_password(store.engine.url)}{hint}", public=told)
