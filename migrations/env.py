"""Runs Alembic on the connection it is given, or on the database of UNDERCURRENT_DATABASE_URL."""

import os

import sqlalchemy as sa
from alembic import context

from service.storage.tables import metadata


def run_migrations(connection: sa.Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


connection = context.config.attributes.get("connection")
if connection is not None:
    run_migrations(connection)
else:
    url = sa.make_url(os.environ.get("UNDERCURRENT_DATABASE_URL", "sqlite:///undercurrent.db"))
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    with sa.create_engine(url).connect() as own:
        run_migrations(own)
        own.commit()
