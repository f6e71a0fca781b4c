"""How the statements of the write path reach the database: two drivers, one interface.

They pass SQLAlchemy's layers by, which would take several times as long as the statements themselves. Its pools,
connections and compiled SQL are used all the same, and everything that is not of the write path goes through it.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, Protocol

from sqlalchemy.engine import Connection

Rows = Sequence[Sequence[Any]]
# SQLite inserts this many rows with one statement where there are enough of them; old versions take 999 parameters.
# Each statement releases the interpreter lock.
ROWS_PER_INSERT = (60, 20, 5, 1)


class Channel(Protocol):
    """The connection of one transaction."""

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection."""

    def query(self, sql: str, values: Sequence[Any]) -> Rows: ...

    def write(self, sql: str, rows: Rows) -> int:
        """Write rows with one statement; return how many have changed."""

    def close(self) -> None: ...


class SQLiteChannel:
    """SQLite's cursor."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor: sqlite3.Cursor = connection.connection.cursor()  # type: ignore[assignment]

    def query(self, sql: str, values: Sequence[Any]) -> Rows:
        return self._cursor.execute(sql, values).fetchall()

    def write(self, sql: str, rows: Rows) -> int:
        changed = 0
        for size in ROWS_PER_INSERT if sql.startswith("INSERT") else (1,):
            if whole := len(rows) - len(rows) % size:
                together = (tuple(chain.from_iterable(rows[i : i + size])) for i in range(0, whole, size))
                changed += self._cursor.executemany(_repeat_values(sql, size), together).rowcount
                rows = rows[whole:]
        return changed

    def close(self) -> None:
        """Close the cursor: an SQLite connection stays open until the last cursor that used it is closed."""
        self._cursor.close()


@cache
def _repeat_values(insertion: str, rows: int) -> str:
    """An insertion of several rows: of the time of a single-row insertion, a fifth is the statement itself."""
    head, values, row = insertion.partition("VALUES ")
    return f"{head}{values}{', '.join([row] * rows)}"


class ThreadChannel:
    """PostgreSQL from a thread or a command."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def query(self, sql: str, values: Sequence[Any]) -> Rows:
        return self.connection.exec_driver_sql(sql, tuple(values)).all()

    def write(self, sql: str, rows: Rows) -> int:
        return self.connection.exec_driver_sql(sql, tuple(map(list, zip(*rows, strict=True)))).rowcount

    def close(self) -> None:
        """Nothing is held."""
