"""The schema of the database: upgrade it, or refuse to work with another version.

Alembic is imported only when it is needed, so that a start with an up-to-date database does not wait for it.
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

HERE = Path(migrations.__file__).parent


def build_alembic_config(connection: sa.Connection | None = None) -> "Config":
    """Build Alembic's configuration; its commands use the connection, if one is given."""
    from alembic.config import Config

    config = Config(stdout=sys.stdout)  # the default is the stdout at the time of import
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def get_head() -> str:
    """The revision that this version of the service needs: the last file's, since files are named by their revision."""
    return max(file.name.partition("_")[0] for file in HERE.glob("versions/[0-9]*.py"))


def get_schema_revision(tx: Transaction) -> str | None:
    """The revision that Alembic has stored, None if the database has none."""
    if not sa.inspect(tx.connection).has_table("alembic_version"):
        return None
    revision: str | None = tx.connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def upgrade(store: Store) -> None:
    """Upgrade the database to the revision that this version needs, completely or not at all."""
    with store.reading() as tx:
        if get_schema_revision(tx) == get_head():
            return
    from alembic import command
    from alembic.util import CommandError

    try:
        with store.migrating() as tx:
            command.upgrade(build_alembic_config(tx.connection), "head")
    except CommandError as error:
        hint = ". Was it written by a newer version?" if "locate revision" in str(error) else ""
        raise UnavailableError(f"The database cannot be migrated: {error}{hint}") from None


def require_current(store: Store) -> None:
    """Raise unless the schema is the one this version needs. Clients are not told where the database is."""
    file = store.engine.url.database
    if store.embedded and file and not Path(file).exists():  # SQLite would create it
        raise UnavailableError(f"There is no database file {file}", public="There is no database file")
    with store.reading() as tx:
        found, needed = get_schema_revision(tx), get_head()
    if found is not None and found > needed:
        versions = f"The database is at revision {found}, not {needed}"
        raise UnavailableError(f"{versions}: a newer version has written it, so upgrade the service")
    if found != needed:
        state = "has no tables yet" if found is None else f"is at revision {found}, not {needed}"
        message = f"The database {state}; run: undercurrent migrate"
        hint = " (with its password)" if store.engine.url.password else ""
        address = f"--database-url {hide_password(store.engine.url)}{hint}"
        raise UnavailableError(f"{message} {address}", public=message)
