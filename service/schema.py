"""The database's schema: bring it up to date, or say which command does."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

import migrations
from service.errors import UnavailableError
from service.store import Store

__all__ = ["alembic_config", "head", "require_current", "upgrade"]


def alembic_config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration; it works on the connection, if one is given."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this version of the service needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert revision is not None
    return revision


def upgrade(store: Store, revision: str = "head") -> None:
    """Bring the database to a revision, all of it or nothing."""
    try:
        with store.writing() as tx:
            command.upgrade(alembic_config(tx.connection), revision)
    except CommandError as error:
        raise UnavailableError(f"The database cannot be migrated: {error}; is it of a newer version?") from None


def require_current(store: Store) -> None:
    """The schema must be the one this version was written for."""
    file = store.engine.url.database
    if store.embedded and file and not Path(file).exists():  # SQLite would make one
        raise UnavailableError(f"There is no database file {file}")
    with store.reading() as tx:
        found = tx.schema_revision()
    if found != head():
        state = "has no tables yet" if found is None else f"is at revision {found}, not {head()}"
        url = store.engine.url.render_as_string(hide_password=True)
        hint = " (with its password)" if store.engine.url.password else ""
        raise UnavailableError(f"The database {state}; run: undercurrent migrate --database-url {url}{hint}")
