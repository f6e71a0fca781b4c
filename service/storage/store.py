"""The store: a database's connections, and transactions on them. What is asked in one is in transaction.py."""

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

__all__ = ["Store", "WouldBlockError"]

MOST_KEPT = 8  # of PostgreSQL's connections at hand for writing


class WouldBlockError(Exception):
    """What a fiber needs would hold up the loop, and all others: a connection, or a long piece of the log."""


class Store:
    """One database, for one process; `failed` is told why whenever it does not answer.

    `serving` is for one that commits all the time: SQLite's journal is then written back beside it.
    """

    def __init__(
        self,
        url: str,
        pool_size: int = 8,
        failed: Callable[[str], None] = lambda reason: None,
        serving: bool = False,
    ) -> None:
        self._failed = failed
        self.embedded = make_url(url).get_backend_name() == "sqlite"
        self.engine = (
            create_sqlite_engine(url) if self.embedded else create_postgresql_engine(url, pool_size, self._connected)
        )
        # Grows when a connection leads to another server than before, or to one that was started again. A standby that
        # took over may lack what was committed last: nothing that was remembered before is to be believed.
        self.generation = 0
        self._server: object = None
        self._statements = compile_statements(self.engine, self.embedded)
        # SQLite reads from one moment anyway.
        self._reader = (
            self.engine if self.embedded else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        file = self.engine.url.database if self.embedded and serving else None
        self._checkpoints = Checkpoints(file) if file else None
        self._writer: Connection | None = None
        self._kept: list[tuple[Connection, float]] = []  # PostgreSQL's that have just written, and when
        # The collector may end an abandoned transaction in a thread that is just giving back another one's connection.
        self._keeping = threading.RLock()
        self._cache = LiveRowCache()
        self._turn = threading.Lock()
        self._takes_writes = False  # not known before one was tried, nor after one has failed

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction that may write; committed at the end, unless an exception leaves it."""
        with self._turn if self.embedded else nullcontext(), self._errors(writes=True):
            connection = self._writing_connection()
            try:
                inside = self._transaction(connection)
                try:
                    inside.begin()
                    yield inside
                    inside.commit()
                    if self._checkpoints is not None:
                        self._checkpoints.written()
                except BaseException:
                    inside.roll_back()
                    raise
                finally:
                    inside.close()
            except DATABASE_ERRORS as error:
                if not self._still_good(error):
                    connection.invalidate()
                    self._writer = None
                raise
            finally:
                self._let_go(connection)

    def _transaction(self, connection: Connection) -> Transaction:
        if self.embedded:
            return Transaction(connection, self._statements, self._cache)
        pooled = connection.connection
        assert isinstance(pooled.driver_connection, psycopg.Connection)
        return Transaction(connection, self._statements, None, Wire(pooled.driver_connection, pooled.info))

    def _writing_connection(self) -> Connection:
        if self._writer is not None:
            return self._writer
        while (kept := self._taken()) is not None:
            connection, used = kept
            if time.monotonic() - used < IDLE_SECONDS:
                return connection
            self._give_back(connection, used)
        if in_fiber():
            raise WouldBlockError
        pool = self.engine.pool  # before: if it is disposed of meanwhile, the connection is not kept
        connection = self.engine.connect()
        connection.info["pool"] = pool
        if self.embedded:  # SQLite's one writer keeps it: taking it from the pool each time costs as much as a commit
            connection.connection.cursor().execute(f"PRAGMA cache_size=-{WRITER_KIB}")
            if self._checkpoints is not None:
                connection.connection.cursor().execute(f"PRAGMA wal_autocheckpoint={LONGEST_JOURNAL}")
            self._writer = connection
        return connection

    def _taken(self) -> tuple[Connection, float] | None:
        """A connection at hand, which is no more. Lanes in threads take them too."""
        with self._keeping:
            return self._kept.pop() if self._kept else None

    @property
    def has_spare_connection(self) -> bool:
        """Can PostgreSQL be written to at once, without opening a connection or asking whether it is still one?"""
        last = self._kept[-1:]  # at once: a thread may take it meanwhile
        return bool(last) and time.monotonic() - last[0][1] < IDLE_SECONDS / 2

    def _let_go(self, connection: Connection) -> None:
        """Of PostgreSQL's connections some stay at hand: taking one from the pool costs as much as deciding."""
        if connection is self._writer:
            return
        pool = None if connection.invalidated else connection.info["pool"]
        with self._keeping:
            if pool is self.engine.pool and len(self._kept) < MOST_KEPT:
                self._kept.append((connection, time.monotonic()))
                return
        self._return(connection, pool)

    def _return(self, connection: Connection, pool: object) -> None:
        """To the pool that it came from. One that was disposed of meanwhile would never close it."""
        with self._keeping:  # nobody disposes of it just now
            if pool is not self.engine.pool and not connection.invalidated:
                connection.invalidate()
            connection.close()

    def _dispose(self) -> None:
        """Of all connections that are not in use; those that are follow when they are let go of."""
        with self._keeping:
            kept, self._kept = self._kept, []
            self.engine.dispose()
        for connection, _ in kept:
            connection.invalidate()
            connection.close()

    def _connected(self, server: object) -> None:
        """There is a new connection of PostgreSQL's, to that server."""
        with self._keeping:
            if self._server not in (None, server):
                self.generation += 1
            self._server = server

    def _give_back_idle(self) -> None:
        """The pool has but few connections: those that have not written for a while are for readers too."""
        if not self._kept:
            return
        since = time.monotonic() - IDLE_SECONDS
        with self._keeping:
            idle = [kept for kept in self._kept if kept[1] < since]
            self._kept = [kept for kept in self._kept if kept[1] >= since]
        for connection, used in idle:
            self._give_back(connection, used)

    def _give_back(self, connection: Connection, used: float) -> None:
        """To the pool, which asks whether it is still one."""
        connection.info["kept"] = used
        self._return(connection, connection.info["pool"])

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One transaction that only reads, all of it from one moment."""
        self._give_back_idle()
        pool = self.engine.pool
        with self._errors():
            connection = self._reader.connect()
            try:
                cache = LiveRowCache() if self.embedded else None
                with connection.begin(), closing(Transaction(connection, self._statements, cache)) as inside:
                    yield inside
            finally:
                # As long as this process has a read-only file of SQLite's open, which was disposed of meanwhile, it
                # cannot write, not even through another connection.
                self._return(connection, pool)

    @contextmanager
    def scanning(self) -> Iterator[Transaction]:
        """`reading` for one that walks through a whole log: it may work on a page for long."""
        with self.reading() as inside:
            if not self.embedded:  # PostgreSQL would take it for dead
                inside.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield inside

    @contextmanager
    def migrating(self) -> Iterator[Transaction]:
        """`writing` for changes of the schema.

        SQLite writes a table anew for some of them. With foreign keys in force, dropping the old one would take along
        all rows that refer to it, and inside a transaction they cannot be switched off.
        """
        if not self.embedded:
            with self.writing() as inside:
                yield inside
            return
        with self._errors(writes=True):
            writer = self._writing_connection()
            writer.connection.cursor().execute("PRAGMA foreign_keys=OFF")
            try:
                with self.writing() as inside:
                    yield inside
                    broken = inside.connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                    if broken:
                        raise RuntimeError(f"the migration would leave rows that refer to nothing: {broken[:3]}")
            finally:
                if writer is self._writer:  # else it is closed
                    writer.connection.cursor().execute("PRAGMA foreign_keys=ON")

    def empty_journal(self) -> bool:
        """SQLite's journal holds what was written, and so what is erased by now. False if it could not be emptied."""
        with self._errors():
            return self._checkpoints is None or self._checkpoints.empty()

    def require_writes(self) -> None:
        """Raise unless the database takes writes. Costs one, but only if the last one failed, or there was none yet."""
        if not self._takes_writes:
            with self.writing() as tx:
                tx.connection.execute(sa.text("UPDATE alembic_version SET version_num = version_num"))
            self._takes_writes = True

    @contextmanager
    def _errors(self, writes: bool = False) -> Iterator[None]:
        """Whatever the database says, the answer is 503: nothing was written, and the retry finds the truth (R18)."""
        try:
            yield
        except DATABASE_ERRORS as error:
            if writes:
                self._takes_writes = False
            if not self._still_good(error) if self.embedded else is_disconnected(error):
                self._dispose()  # the other connections are dead too, or may hold a file that is gone
            self._failed(get_reason(error))
            raise explain_failure(error) from error

    def _still_good(self, error: BaseException) -> bool:
        """Can SQLite's connections go on once the trouble is over? On a full disk nobody could open another one."""
        return self.embedded and get_error_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._dispose()
