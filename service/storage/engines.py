"""SQLite and PostgreSQL: how each is opened, and what their errors mean."""

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

__all__ = [
    "DATABASE_ERRORS",
    "IDLE_SECONDS",
    "WRITER_KIB",
    "create_postgresql_engine",
    "create_sqlite_engine",
    "explain_failure",
    "get_error_code",
    "get_reason",
    "hide_password",
    "is_disconnected",
]

BUSY_SECONDS = 10  # that SQLite waits for another process's transaction, and PostgreSQL's pool for a connection
# Of SQLite's pages in memory. The writer knows them all; a reader has to forget its own whenever somebody writes.
WRITER_KIB, READER_KIB = 65_536, 2_048
IDLE_SECONDS = 1.0  # after which a connection is asked whether it is still one
DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, sqlite3.Error, psycopg.Error)  # of the database, however it was asked
NO_ANSWER = "The database does not answer"
NO_SPACE = "The disk of the database is full: free some space, then try again"
WHAT_TO_DO: dict[int | str, str] = {  # by SQLite's primary code or PostgreSQL's
    sqlite3.SQLITE_FULL: NO_SPACE,
    "53100": NO_SPACE,
    sqlite3.SQLITE_READONLY: "The database is read-only: make its file and folder writable, then try again",
    "25006": "The database is read-only, as a standby is: promote it or connect to another, then try again",
    sqlite3.SQLITE_IOERR: "The disk of the database fails, is full or over a limit: see to it, then try again",
}


def get_error_code(error: BaseException) -> int | str | None:
    """What kind of error it is: SQLite's primary code, or PostgreSQL's SQLSTATE."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF
    return getattr(original, "sqlstate", None)


def is_disconnected(error: BaseException) -> bool:
    """Did PostgreSQL go away? Then its errors have no code, or one of the classes for that."""
    original, code = getattr(error, "orig", None) or error, str(get_error_code(error) or "")
    return isinstance(original, psycopg.OperationalError) and (not code or code.startswith(("08", "57P")))


def explain_failure(error: Exception) -> UnavailableError:
    """The error, and for the common ones what to do. Its own words name hosts, users and files: not for clients."""
    what, reason = WHAT_TO_DO.get(get_error_code(error) or 0), get_reason(error)
    if what is not None:
        return UnavailableError(f"{what} ({reason})", public=what)
    return UnavailableError(f"{NO_ANSWER}: {reason}", public=f"{NO_ANSWER}; the service's log says why")


def get_reason(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().partition("\n")[0] or type(original).__name__


def hide_password(url: URL) -> str:
    """An address as it may be told: without its passwords, wherever they stand."""
    hidden = {name: "hidden" for name in url.query if name in ("password", "sslpassword")}
    if url.get_backend_name() == "postgresql":  # whatever the driver: other programs do not know its name
        url = url.set(drivername="postgresql")
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def create_sqlite_engine(url: str) -> Engine:
    arguments = {"check_same_thread": False, "timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, connect_args=arguments, hide_parameters=True)  # rows are personal, errors are not

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: the driver would only begin at the first write
        # secure_delete: what is erased (R22) is overwritten, not only unlinked.
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"cache_size=-{READER_KIB}",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if not driver.in_transaction:  # that of a writer is, see Transaction.begin
            driver.cursor().execute("BEGIN")

    return engine


def create_postgresql_engine(
    url: str, pool_size: int, connected: Callable[[object], None] = lambda server: None
) -> Engine:
    """`connected` is told, for each new connection, what tells its server's life from any other."""
    engine = sa.create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        paramstyle="format",  # by position, like SQLite's: rows are tuples
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=BUSY_SECONDS,
        hide_parameters=True,
        connect_args={
            "connect_timeout": BUSY_SECONDS,
            "application_name": "undercurrent",
            "prepare_threshold": None,  # the driver's own would be forgotten now and then, and Wire's with them
            "tcp_user_timeout": 2_000 * BUSY_SECONDS,  # milliseconds
            "options": f"-c lock_timeout={BUSY_SECONDS}s -c idle_in_transaction_session_timeout={6 * BUSY_SECONDS}s",
        },
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> psycopg.Connection:
        made = fibers.Connection.connect(*arguments, **options)
        try:
            connected(made.execute("SELECT pg_postmaster_start_time()").fetchone())
            made.rollback()
        except psycopg.Error:
            made.close()
            raise
        return made

    @sa.event.listens_for(engine, "checkin")
    def used(connection: Any, record: Any) -> None:
        record.info["used"] = record.info.pop("kept", time.monotonic())

    @sa.event.listens_for(engine, "checkout")
    def alive(connection: psycopg.Connection, record: Any, proxy: Any) -> None:
        """After an outage the first request would meet a dead connection; asking each time would cost too much."""
        if time.monotonic() - record.info.get("used", math.inf) > IDLE_SECONDS:
            try:
                connection.execute("SELECT 1")
                connection.rollback()
            except psycopg.Error as error:
                raise DisconnectionError(str(error)) from error

    return engine
