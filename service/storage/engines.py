"""How SQLite and PostgreSQL are opened, and what their errors mean."""

import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.base.errors import UnavailableError
from service.storage import fibers

POOL_SIZE = 8  # PostgreSQL connections kept open; twice as many at most
BUSY_SECONDS = 10  # SQLite waits this long for another process's transaction, PostgreSQL's pool for a connection
# SQLite's page caches. The writer's stays valid; a reader's is dropped at every commit.
WRITER_KIB, READER_KIB = 65_536, 2_048
IDLE_SECONDS = 1.0  # an idle connection is tested before use after this time
DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, sqlite3.Error, psycopg.Error)
NO_ANSWER = "The database does not answer"
NO_SPACE = "The disk of the database is full: free some space, then try again"
WHAT_TO_DO: dict[int | str, str] = {  # by SQLite's primary code or PostgreSQL's
    sqlite3.SQLITE_FULL: NO_SPACE,
    "53100": NO_SPACE,
    sqlite3.SQLITE_READONLY: "The database is read-only: make its file and folder writable, then try again",
    "25006": "The database is read-only, perhaps a standby: promote it or connect to the primary, then try again",
    sqlite3.SQLITE_IOERR: "The disk of the database failed, is full or over its quota: fix it, then try again",
}


def get_error_code(error: BaseException) -> int | str | None:
    """The code of a database error: SQLite's primary code, or PostgreSQL's SQLSTATE."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF
    return getattr(original, "sqlstate", None)


def is_disconnected(error: BaseException) -> bool:
    """Is this a lost connection to PostgreSQL? Such errors have no code, or one of two classes."""
    original, code = getattr(error, "orig", None) or error, str(get_error_code(error) or "")
    return isinstance(original, psycopg.OperationalError) and (not code or code.startswith(("08", "57P")))


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
    engine = sa.create_engine(url, connect_args=arguments, hide_parameters=True)  # parameters may be personal data

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


def create_postgresql_engine(url: str, connected: Callable[[object], None]) -> Engine:
    """`connected` is called for each new connection with a value that identifies the run of its server."""
    engine = sa.create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        paramstyle="format",  # by position, as SQLite does: rows are tuples
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=BUSY_SECONDS,
        hide_parameters=True,
        connect_args={
            "connect_timeout": BUSY_SECONDS,
            "application_name": "undercurrent",
            "prepare_threshold": None,  # the driver would deallocate Wire's statements with its own
            "tcp_user_timeout": 2_000 * BUSY_SECONDS,  # milliseconds
            "options": f"-c lock_timeout={BUSY_SECONDS}s -c idle_in_transaction_session_timeout={6 * BUSY_SECONDS}s",
        },
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> psycopg.Connection:
        connection = fibers.Connection.connect(*arguments, **options)
        try:
            connected(connection.execute("SELECT pg_postmaster_start_time()").fetchone())
            connection.rollback()
        except psycopg.Error:
            connection.close()
            raise
        return connection

    @sa.event.listens_for(engine, "checkin")
    def note_use(connection: Any, record: Any) -> None:
        record.info["used"] = record.info.pop("kept", time.monotonic())

    @sa.event.listens_for(engine, "checkout")
    def test_idle(connection: psycopg.Connection, record: Any, proxy: Any) -> None:
        """After an outage the first request would get a dead connection; testing each time would cost too much."""
        if time.monotonic() - record.info.get("used", math.inf) > IDLE_SECONDS:
            try:
                connection.execute("SELECT 1")
                connection.rollback()
            except psycopg.Error as error:
                raise DisconnectionError(str(error)) from error

    return engine
