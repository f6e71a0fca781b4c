"""The store: the connections to a database, and transactions on them."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url

from service.storage.checkpoints import LONGEST_JOURNAL, Checkpoints
from service.storage.engines import (
    DATABASE_ERRORS,
    IDLE_SECONDS,
    WRITER_KIB,
    create_postgresql_engine,
    create_sqlite_engine,
    explain_failure,
    get_error_code,
    get_reason,
    is_disconnected,
)
from service.storage.fibers import in_fiber
from service.storage.statements import compile_statements
from service.storage.transaction import LiveRowCache, Transaction
from service.storage.wire import Wire

MOST_KEPT = 8  # PostgreSQL connections kept ready for writing


class WouldBlockError(Exception):
    """A fiber would have to block the event loop: to open a connection, or to fold a long part of the log."""


class Store:
    """One database, for one process. `failed` is called with the reason whenever the database fails.

    `serving` is for a process that commits all the time: a thread then checkpoints SQLite's journal.
    """

    def __init__(self, url: str, failed: Callable[[str], None] = lambda reason: None, serving: bool = False) -> None:
        self._failed = failed
        self.embedded = make_url(url).get_backend_name() == "sqlite"
        self.engine = create_sqlite_engine(url) if self.embedded else create_postgresql_engine(url, self._connected)
        # Grows when a new connection leads to another server, or to a restarted one. A standby that took over may lack
        # the last commits, so nothing in memory from before is valid.
        self.generation = 0
        self._server: object = None
        self._statements = compile_statements(self.engine, self.embedded)
        # SQLite always reads from one snapshot.
        self._reader = (
            self.engine if self.embedded else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        file = self.engine.url.database if self.embedded and serving else None
        self._checkpoints = Checkpoints(file) if file else None
        self._writer: Connection | None = None
        self._kept: list[tuple[Connection, float]] = []  # PostgreSQL's, with the time of their last use
        # Reentrant: the garbage collector may end an abandoned transaction in a thread that is returning a connection.
        self._keeping = threading.RLock()
        self._cache = LiveRowCache()
        self._turn = threading.Lock()
        self._takes_writes = False  # unknown before the first write and after a failed one

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction that may write; committed at the end unless an exception leaves it."""
        with self._turn if self.embedded else nullcontext(), self._convert_errors(writes=True):
            connection = self._writing_connection()
            try:
                inside = self._transaction(connection)
                try:
                    inside.begin()
                    yield inside
                    inside.commit()
                    if self._checkpoints is not None:
                        self._checkpoints.note_commit()
                except BaseException:
                    inside.roll_back()
                    raise
                finally:
                    inside.close()
            except DATABASE_ERRORS as error:
                if not self._is_usable_after(error):
                    connection.invalidate()
                    self._writer = None
                raise
            finally:
                self._release(connection)

    def _transaction(self, connection: Connection) -> Transaction:
        if self.embedded:
            return Transaction(connection, self._statements, self._cache)
        pooled = connection.connection
        assert isinstance(pooled.driver_connection, psycopg.Connection)
        return Transaction(connection, self._statements, None, Wire(pooled.driver_connection, pooled.info))

    def _writing_connection(self) -> Connection:
        if self._writer is not None:
            return self._writer
        while (kept := self._take_kept()) is not None:
            connection, used = kept
            if time.monotonic() - used < IDLE_SECONDS:
                return connection
            self._give_back(connection, used)
        if in_fiber():
            raise WouldBlockError
        pool = self.engine.pool  # read first: if it is disposed of meanwhile, the connection is not kept
        connection = self.engine.connect()
        connection.info["pool"] = pool
        if self.embedded:  # the only writer keeps it: taking it from the pool costs as much as a commit
            connection.connection.cursor().execute(f"PRAGMA cache_size=-{WRITER_KIB}")
            if self._checkpoints is not None:
                connection.connection.cursor().execute(f"PRAGMA wal_autocheckpoint={LONGEST_JOURNAL}")
            self._writer = connection
        return connection

    def _take_kept(self) -> tuple[Connection, float] | None:
        """Take a kept connection, if there is one. Lanes in threads take them too."""
        with self._keeping:
            return self._kept.pop() if self._kept else None

    @property
    def has_spare_connection(self) -> bool:
        """Can a transaction on PostgreSQL begin at once, without opening or testing a connection?"""
        last = self._kept[-1:]  # one operation: a thread may take it meanwhile
        return bool(last) and time.monotonic() - last[0][1] < IDLE_SECONDS / 2

    def _release(self, connection: Connection) -> None:
        """Keep some of PostgreSQL's connections: taking one from the pool costs as much as a decision."""
        if connection is self._writer:
            return
        pool = None if connection.invalidated else connection.info["pool"]
        with self._keeping:
            if pool is self.engine.pool and len(self._kept) < MOST_KEPT:
                self._kept.append((connection, time.monotonic()))
                return
        self._return(connection, pool)

    def _return(self, connection: Connection, pool: object) -> None:
        """Return a connection to its pool, or close it if the pool was disposed of meanwhile."""
        with self._keeping:  # nobody disposes of the pool meanwhile
            if pool is not self.engine.pool and not connection.invalidated:
                connection.invalidate()
            connection.close()

    def _dispose(self) -> None:
        """Close all connections that are not in use; the others are closed when they are released."""
        with self._keeping:
            kept, self._kept = self._kept, []
            self.engine.dispose()
        for connection, _ in kept:
            connection.invalidate()
            connection.close()

    def _connected(self, server: object) -> None:
        """Note the server that a new connection leads to."""
        with self._keeping:
            if self._server not in (None, server):
                self.generation += 1
            self._server = server

    def _give_back_idle(self) -> None:
        """Return idle connections to the pool, which is small, so that readers can use them."""
        if not self._kept:
            return
        since = time.monotonic() - IDLE_SECONDS
        with self._keeping:
            idle = [kept for kept in self._kept if kept[1] < since]
            self._kept = [kept for kept in self._kept if kept[1] >= since]
        for connection, used in idle:
            self._give_back(connection, used)

    def _give_back(self, connection: Connection, used: float) -> None:
        """Return a connection to the pool, which will test it before use."""
        connection.info["kept"] = used
        self._return(connection, connection.info["pool"])

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction that only reads, everything from one snapshot."""
        self._give_back_idle()
        pool = self.engine.pool
        with self._convert_errors():
            connection = self._reader.connect()
            try:
                cache = LiveRowCache() if self.embedded else None
                with connection.begin(), closing(Transaction(connection, self._statements, cache)) as inside:
                    yield inside
            finally:
                # While this process has an SQLite file open that was read-only and is disposed of, it cannot write,
                # not even through another connection.
                self._return(connection, pool)

    @contextmanager
    def scanning(self) -> Iterator[Transaction]:
        """`reading` for a walk through a whole log, which may work on one page for a long time."""
        with self.reading() as inside:
            if not self.embedded:  # PostgreSQL would end the transaction as idle
                inside.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield inside

    @contextmanager
    def migrating(self) -> Iterator[Transaction]:
        """`writing` for changes of the schema.

        Some of them make SQLite copy a table. With foreign keys on, dropping the old table would delete all rows that
        refer to it, and they cannot be switched off inside a transaction.
        """
        if not self.embedded:
            with self.writing() as inside:
                yield inside
            return
        with self._convert_errors(writes=True):
            writer = self._writing_connection()
            writer.connection.cursor().execute("PRAGMA foreign_keys=OFF")
            try:
                with self.writing() as inside:
                    yield inside
                    broken = inside.connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                    if broken:
                        raise RuntimeError(f"the migration would leave rows with missing references: {broken[:3]}")
            finally:
                if writer is self._writer:  # otherwise it is closed
                    writer.connection.cursor().execute("PRAGMA foreign_keys=ON")

    def empty_journal(self) -> bool:
        """Empty SQLite's journal, which still holds data erased since; False if that was not possible in time."""
        with self._convert_errors():
            return self._checkpoints is None or self._checkpoints.empty()

    def require_writes(self) -> None:
        """Raise unless the database takes writes. Tries one only if the last one failed or there was none yet."""
        if not self._takes_writes:
            with self.writing() as tx:
                tx.connection.execute(sa.text("UPDATE alembic_version SET version_num = version_num"))
            self._takes_writes = True

    @contextmanager
    def _convert_errors(self, writes: bool = False) -> Iterator[None]:
        """Turn every error of the database into a 503: nothing was written, and a retry is safe (R18)."""
        try:
            yield
        except DATABASE_ERRORS as error:
            if writes:
                self._takes_writes = False
            if not self._is_usable_after(error) if self.embedded else is_disconnected(error):
                self._dispose()  # the other connections are dead too, or may have a file open that is gone
            self._failed(get_reason(error))
            raise explain_failure(error) from error

    def _is_usable_after(self, error: BaseException) -> bool:
        """Can SQLite's connections be used again after this error? On a full disk no new one could be opened."""
        return self.embedded and get_error_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._dispose()
