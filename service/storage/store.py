"""The store: the connections to a database, and transactions on them."""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url

from service.base.errors import UnavailableError
from service.storage.channels import SQLiteChannel, ThreadChannel
from service.storage.checkpoints import LONGEST_JOURNAL, Checkpoints
from service.storage.engines import (
    DATABASE_ERRORS,
    POOLER,
    WRITER_KIB,
    create_postgresql_engine,
    create_sqlite_engine,
    explain_failure,
    get_error_code,
    get_reason,
)
from service.storage.loop import EmbeddedConnection, LoopConnection, LoopPool
from service.storage.statements import compile_statements
from service.storage.transaction import Transaction


class Store:
    """One database, for one process. `failed` is called with the reason whenever the database fails.

    `serving` is for a process that commits all the time: a thread then checkpoints SQLite's journal.
    """

    def __init__(self, url: str, failed: Callable[[str], None] = lambda reason: None, serving: bool = False) -> None:
        self._failed = failed
        self.embedded = make_url(url).get_backend_name() == "sqlite"
        # Grows when a new connection leads to another server, or to a restarted one. A standby that took over may lack
        # the last commits, so nothing in memory from before is valid.
        self.generation = 0
        self._server: object = None
        self.failed_at = 0.0  # the last failure, by the monotonic clock: connections from before are tested
        self.engine = create_sqlite_engine(url) if self.embedded else create_postgresql_engine(url, self)
        self._statements = compile_statements(self.engine)
        # The event loop's own connections to PostgreSQL. SQLite's only writer is on the event loop anyway.
        self._loop_pool = LoopPool(url, self) if serving and not self.embedded else None
        self._open_channel: type[SQLiteChannel | ThreadChannel] = SQLiteChannel if self.embedded else ThreadChannel
        # SQLite always reads from one snapshot.
        self._reader = (
            self.engine if self.embedded else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        file = self.engine.url.database if self.embedded and serving else None
        self._checkpoints = Checkpoints(file) if file else None
        self._writer: Connection | None = None  # SQLite's
        self._turn = threading.Lock()
        self._takes_writes = False  # unknown before the first write and after a failed one

    def require_own_sessions(self) -> None:
        """Refuse a pooler that lets two connections share a session: prepared statements would get lost."""
        if self.embedded:
            return
        with self._convert_errors(writes=False), self.engine.connect() as one, self.engine.connect() as other:
            sessions = set()
            for connection in (one, other):
                sessions.add(connection.scalar(sa.text("SELECT pg_backend_pid()")))
                connection.rollback()
        if len(sessions) == 1:
            raise UnavailableError(POOLER)

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction that may write; committed at the end unless an exception leaves it."""
        with self._convert_errors(writes=True):
            if self.embedded:
                with self._turn, self._writing_to_sqlite(self._open_writer()) as inside:
                    yield inside
            else:
                with self.engine.connect() as connection:
                    try:
                        with connection.begin():
                            inside = Transaction(ThreadChannel(connection), self._statements)
                            yield inside
                            inside.flush()
                    except DATABASE_ERRORS:
                        connection.invalidate()  # a new one may lead to another server, or to other settings
                        raise

    @asynccontextmanager
    async def gathering(self) -> AsyncIterator[LoopConnection | EmbeddedConnection]:
        """A connection of the event loop. On PostgreSQL the loop goes on while a statement waits for its answer."""
        if self.embedded:
            with self.writing() as inside:
                yield EmbeddedConnection(inside)
        else:
            assert self._loop_pool is not None, "only a process that serves gathers"
            with self._convert_errors(writes=True):
                async with self._loop_pool.connect() as connection:
                    yield connection

    @contextmanager
    def _writing_to_sqlite(self, connection: Connection) -> Iterator[Transaction]:
        """SQLite's statements go to its cursor; SQLAlchemy takes part only once its connection is used."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        try:
            with closing(Transaction(SQLiteChannel(connection), self._statements)) as inside:
                try:
                    # IMMEDIATE: a transaction that reads before it writes would fail if another one writes in between.
                    driver.execute("BEGIN IMMEDIATE")
                    yield inside
                    inside.flush()
                    if connection.in_transaction():
                        connection.commit()
                    else:
                        driver.execute("COMMIT")
                except BaseException:
                    connection.rollback()
                    if driver.in_transaction:
                        driver.execute("ROLLBACK")
                    raise
        except DATABASE_ERRORS as error:
            if not self._is_usable_after(error):
                connection.invalidate()
                self._writer = None
            raise
        if self._checkpoints is not None:
            self._checkpoints.note_commit()

    def _open_writer(self) -> Connection:
        """SQLite's only writer keeps its connection: taking it from the pool costs as much as a commit."""
        if self._writer is None:
            self._writer = self.engine.connect()
            cursor = self._writer.connection.cursor()
            cursor.execute(f"PRAGMA cache_size=-{WRITER_KIB}")
            if self._checkpoints is not None:
                cursor.execute(f"PRAGMA wal_autocheckpoint={LONGEST_JOURNAL}")
        return self._writer

    def note_server(self, server: object) -> None:
        """Note the server that a new connection leads to."""
        if self._server not in (None, server):
            self.generation += 1
        self._server = server

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction that only reads, everything from one snapshot."""
        with (
            self._convert_errors(),
            self._reader.connect() as connection,
            connection.begin(),
            closing(Transaction(self._open_channel(connection), self._statements)) as inside,
        ):
            yield inside

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
            writer = self._open_writer()
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
            self.failed_at = time.monotonic()
            self._failed(get_reason(error))
            raise explain_failure(error) from error

    def _is_usable_after(self, error: BaseException) -> bool:
        """Can SQLite's writer be used again after this error? On a full disk no new one could be opened."""
        return get_error_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)

    async def start(self) -> None:
        """Prepare the event loop's connections."""
        if self._loop_pool is not None:
            await self._loop_pool.open()

    async def stop(self) -> None:
        """Close everything, the event loop's connections included."""
        if self._loop_pool is not None:
            await self._loop_pool.close()
        self.close()

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.engine.dispose()
