"""How SQLite and PostgreSQL are opened, and what their errors mean."""

import sqlite3
import time
from typing import Any, Protocol

import asyncpg
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.base.errors import UnavailableError

POOL_SIZE = 8  # PostgreSQL connections of the threads kept open; twice as many at most
BUSY_SECONDS = 10  # SQLite waits this long for another process's transaction, PostgreSQL's pool for a connection
SILENCE_SECONDS = 2 * BUSY_SECONDS  # after which the server of a statement counts as gone
# SQLite's page caches. The writer's stays valid; a reader's is dropped at every commit.
WRITER_KIB, READER_KIB = 65_536, 2_048
IDLE_SECONDS = 1.0  # an idle connection is tested before use after this time
# Of asyncpg's: a server that cannot be reached or does not answer is an OSError, which TimeoutError is one of, and a
# connection that the server has closed just now may be an internal error.
ASYNCPG_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, sqlite3.Error, *ASYNCPG_ERRORS)
NO_ANSWER = "The database does not answer"
NO_SPACE = "The disk of the database is full: free some space, then try again"
POOLER = (
    "The database address leads to a pooler that gives each transaction another connection, such as PgBouncer with "
    "pool_mode = transaction. Prepared statements need pool_mode = session"
)
WHAT_TO_DO: dict[int | str, str] = {  # by SQLite's primary code or PostgreSQL's
    sqlite3.SQLITE_FULL: NO_SPACE,
    "53100": NO_SPACE,
    sqlite3.SQLITE_READONLY: "The database is read-only: make its file and folder writable, then try again",
    "25006": "The database is read-only, perhaps a standby: promote it or connect to the primary, then try again",
    sqlite3.SQLITE_IOERR: "The disk of the database failed, is full or over its quota: fix it, then try again",
    "26000": POOLER,
    "42P05": POOLER,
}
# Settings by a statement and not at the start of the session, where poolers refuse them.
PREPARE_SESSION = (
    f"SELECT set_config('jit', 'off', false), set_config('lock_timeout', '{BUSY_SECONDS}s', false), "
    f"set_config('idle_in_transaction_session_timeout', '{6 * BUSY_SECONDS}s', false), "
    "extract(epoch FROM pg_postmaster_start_time())::text"
)


def get_error_code(error: BaseException) -> int | str | None:
    """The code of a database error: SQLite's primary code, or PostgreSQL's SQLSTATE."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF
    return getattr(original, "sqlstate", None)


def explain_failure(error: Exception) -> UnavailableError:
    """The error as a 503, with advice for the common ones. Clients do not see its text, which names hosts and users."""
    what, reason = WHAT_TO_DO.get(get_error_code(error) or 0), get_reason(error)
    if what is not None:
        return UnavailableError(f"{what} ({reason})", public=what)
    return UnavailableError(f"{NO_ANSWER}: {reason}", public=f"{NO_ANSWER}; the service's log says why")


def get_reason(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().partition("\n")[0] or type(original).__name__


def hide_password(url: URL | str) -> str:
    """A database's address without its passwords, wherever they are."""
    url = make_url(url)
    hidden = {name: "hidden" for name in url.query if name in ("password", "sslpassword")}
    if url.get_backend_name() == "postgresql":  # other programs do not know the driver's name
        url = url.set(drivername="postgresql")
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def create_sqlite_engine(url: str) -> Engine:
    arguments = {"check_same_thread": False, "timeout": BUSY_SECONDS}
    # No pool: readers open the file in a tenth of a millisecond, and never hold one that is gone. Parameters are hidden
    # because they may be personal data.
    engine = sa.create_engine(url, connect_args=arguments, hide_parameters=True, poolclass=sa.NullPool)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # we send BEGIN: the driver would begin only at the first write
        # secure_delete: erased data (R22) is overwritten, not only unlinked.
        settings = (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
            f"cache_size=-{READER_KIB}",
        )
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if not driver.in_transaction:  # a writer's already is, see Transaction.begin
            driver.cursor().execute("BEGIN")

    return engine


class Health(Protocol):
    """What is known about a server: by all connections to it together."""

    failed_at: float  # the last failure, by the monotonic clock

    def note_server(self, server: object) -> None:
        """Called for each new connection, with a value that identifies the run of its server."""


def create_postgresql_engine(url: str, health: Health) -> Engine:
    """The engine of threads and commands."""
    engine = sa.create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        paramstyle="format",  # by position, as the other drivers
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=BUSY_SECONDS,
        hide_parameters=True,
        connect_args={
            "connect_timeout": BUSY_SECONDS,
            "application_name": "undercurrent",
            "prepare_threshold": None,  # these connections go from one kind of work to another
            "tcp_user_timeout": 1_000 * SILENCE_SECONDS,  # milliseconds
        },
    )
    _watch_connections(engine, health)
    return engine


def _watch_connections(engine: Engine, health: Health) -> None:
    """Prepare new connections, and test those that were idle before they are used."""

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        health.note_server(_execute(connection, PREPARE_SESSION)[-1])
        connection.commit()

    @sa.event.listens_for(engine, "checkin")
    def note_use(connection: Any, record: Any) -> None:
        record.info["used"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def test_idle(connection: Any, record: Any, proxy: Any) -> None:
        """After an outage the first request would get a dead connection; testing each time would cost too much."""
        used, now = record.info.get("used"), time.monotonic()
        if used is not None and used < max(now - IDLE_SECONDS, health.failed_at):
            try:
                _execute(connection, "SELECT 1")
                connection.rollback()
            except (engine.dialect.loaded_dbapi.Error, TimeoutError) as error:
                raise DisconnectionError(str(error)) from error


def _execute(connection: Any, sql: str) -> tuple[Any, ...]:
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        row: tuple[Any, ...] = cursor.fetchone()
        return row
    finally:
        cursor.close()
