"""How Alembic runs here: on the connection it is given, else on the database of UNDERCURRENT_DATABASE_URL."""

import os

import sqlalchemy as sa
from alembic import context

from service.storage.tables import metadata


def run(connection: sa.Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = sa.make_url(os.environ.get("UNDERCURRENT_DATABASE_URL", "sqlite:///undercurrent.db"))
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    with sa.create_engine(url).connect() as own:
        run(own)
        own.commit()
