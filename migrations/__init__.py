"""The history of the database schema: one Alembic chain for SQLite and PostgreSQL."""
