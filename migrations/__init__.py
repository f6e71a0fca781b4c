"""The database's schema history: one Alembic chain for SQLite and PostgreSQL."""
