"""The store: engine, transactions and every query. All that SQLite and PostgreSQL do differently is here.

Statements are written once with SQLAlchemy and compiled once for the database at hand. The hot path hands them to the
driver's cursor itself: a gathered transaction has five of them, and the layers between would cost more than the work.
"""

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.errors import UnavailableError
from service.tables import (
    campaigns,
    config_revisions,
    decisions,
    events,
    jobs,
    keys,
    live,
    models,
    outbox,
    rewards,
    snapshots,
)

__all__ = [
    "APPENDED",
    "FAILURES",
    "PAGE",
    "ClaimedJob",
    "DecisionRow",
    "JobRow",
    "KeyRow",
    "KnownDecision",
    "LiveRow",
    "NewDecision",
    "NewEvent",
    "NewJob",
    "NewMessage",
    "NewModel",
    "NewRevision",
    "NewReward",
    "NewRow",
    "Query",
    "RevisionRow",
    "RewardRow",
    "Row",
    "Store",
    "Transaction",
]

Row = Mapping[str, Any]
BUSY_SECONDS = 10  # that SQLite waits for another process's transaction, and PostgreSQL's pool for a connection
# Of SQLite's pages in memory. The writer knows them all; a reader has to forget its own whenever somebody writes.
WRITER_KIB, READER_KIB = 65_536, 2_048
IDLE_SECONDS = 1.0  # after which a connection is asked whether it is still one
PAGE = 5_000  # rows of the log read at a time
LONGEST_LIST = 10_000  # ids looked up at a time
FAILURES = (DBAPIError, PoolTimeoutError, sqlite3.Error, psycopg.Error)  # of the database, however it was asked
NO_SPACE = "The disk of the database is full: free some space, then try again"
WHAT_TO_DO: dict[int | str, str] = {  # by SQLite's primary code or PostgreSQL's
    sqlite3.SQLITE_FULL: NO_SPACE,
    "53100": NO_SPACE,
    sqlite3.SQLITE_READONLY: "The database is read-only: make its file and folder writable, then try again",
    "25006": "The database is read-only, as a standby is: promote it or connect to another, then try again",
    sqlite3.SQLITE_IOERR: "The disk of the database fails, is full or over a limit: see to it, then try again",
}
LIVE = tuple(column.name for column in live.c if column.name != "campaign_id")
MOVED = tuple(name for name in LIVE if name not in ("snapshot_round", "reduced"))
# What several queries begin with: campaigns with where they stand, and decisions with their rewards.
STANDING = select(
    live.c.campaign_id, campaigns.c.name, *(live.c[name] for name in LIVE), campaigns.c.archived_at
).join_from(campaigns, live)
REWARDED = decisions.outerjoin(
    rewards, (rewards.c.campaign_id == decisions.c.campaign_id) & (rewards.c.round == decisions.c.round)
)


# What goes when a request is not kept: who it was about, and the hash by which it could be guessed.
REDUCED: dict[str, Any] = {"request_hash": None, "subject": None}
NOTHING = '{"belief":[],"scores":[]}'  # explained


class LiveRow(NamedTuple):
    """A campaign and where it stands, locked until the transaction ends."""

    campaign_id: int
    name: str
    version: int
    round: int
    arrived: int
    folded: int
    settled: int
    model_version: int
    belief: str
    clock: int
    last_at: int
    snapshot_round: int
    changes: int
    guarded: bool
    reduced: int
    regime: int | None
    failure: str | None
    archived_at: int | None


class KnownDecision(NamedTuple):
    """A decision that is already in the log, with its reward."""

    decision_id: str
    round: int
    request_hash: bytes | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    decided_at: int
    erased: bool
    reward: float | None = None
    source: str | None = None
    received_at: int | None = None


class DecisionRow(NamedTuple):
    """A decision as the fold reads it: the request, and what was answered."""

    round: int
    context: str | None
    excluded_actions: str | None
    subject: str | None
    at: int | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    request_hash: bytes | None  # None if the row does not carry its request: it can only be followed


class RewardRow(NamedTuple):
    """A reward as the fold reads it."""

    arrival: int
    round: int
    after_round: int
    reward: float | None  # None once it is erased


class JobRow(NamedTuple):
    """A re-estimation that was left to a background job (R16)."""

    input_round: int
    input_arrived: int
    status: str
    result: bytes | None
    published_round: int | None
    seconds: float | None


class RevisionRow(NamedTuple):
    """A change of a campaign as the fold reads it.

    The configuration from then on, the model it went back to, or how many decisions were erased.
    """

    revision: int
    round: int
    arrived: int
    config: str
    restored: int | None
    erased: int | None
    created_at: int


class ClaimedJob(NamedTuple):
    """A job that was taken over, and how often it had been tried before."""

    campaign_id: int
    campaign: str
    input_round: int
    attempts: int


class KeyRow(NamedTuple):
    """A key as it is stored: not the secret, only its hash."""

    id: str
    secret_hash: bytes
    name: str
    role: str
    campaigns: str | None
    rate_limit: float | None
    created_at: int
    revoked_at: int | None = None


class NewDecision(NamedTuple):
    campaign_id: int
    round: int
    decision_id: str
    request_hash: bytes | None
    subject: str | None
    context: str | None
    excluded_actions: str | None
    at: int | None
    model_version: int
    mode: str
    action: str
    propensity: float
    explanation: str
    decided_at: int


class NewReward(NamedTuple):
    campaign_id: int
    round: int
    arrival: int
    after_round: int
    reward: float
    source: str
    received_at: int


class NewModel(NamedTuple):
    campaign_id: int
    version: int
    kind: str
    round: int
    arrived: int
    folded: int
    regimes: int
    theta: bytes
    seconds: float
    published_at: int


class NewJob(NamedTuple):
    campaign_id: int
    input_round: int
    input_arrived: int
    status: str
    owner: str
    leased_until: int
    attempts: int
    created_at: int


class NewEvent(NamedTuple):
    campaign_id: int
    number: int
    round: int
    kind: str
    body: str
    created_at: int


class NewMessage(NamedTuple):
    campaign_id: int
    event: int
    status: str
    url: str
    attempts: int
    due_at: int
    created_at: int


class NewRevision(NamedTuple):
    campaign_id: int
    revision: int
    round: int
    arrived: int
    config: str
    restored: int | None
    erased: int | None
    created_at: int


NewRow = NewDecision | NewReward | NewModel | NewJob | NewEvent | NewMessage | NewRevision
APPENDED: dict[type[NewRow], sa.Table] = {  # in the order that foreign keys need
    NewDecision: decisions,
    NewReward: rewards,
    NewModel: models,
    NewJob: jobs,
    NewEvent: events,
    NewMessage: outbox,
    NewRevision: config_revisions,
}


class Store:
    """One database, for one process; `failed` is told why whenever it does not answer."""

    def __init__(self, url: str, pool_size: int = 8, failed: Callable[[str], None] = lambda reason: None) -> None:
        self._failed = failed
        self.embedded = make_url(url).get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(url) if self.embedded else _postgresql_engine(url, pool_size)
        self._statements = _statements(self.engine, self.embedded)
        # SQLite reads from one moment anyway.
        self._reader = (
            self.engine if self.embedded else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        self._writer: Connection | None = None
        self._turn = threading.Lock()
        self._takes_writes = False  # not known before one was tried, nor after one has failed

    @contextmanager
    def writing(self) -> Iterator["Transaction"]:
        """One transaction that may write; committed at the end, unless an exception leaves it."""
        with self._turn if self.embedded else nullcontext(), self._errors(writes=True):
            connection = self._writing_connection()
            try:
                transaction = connection.begin()
                inside = Transaction(connection, self._statements, self.embedded)
                try:
                    yield inside
                    inside.commit_at_once()
                    transaction.commit()  # by name: it fails if anything has ended the transaction before
                except BaseException as error:
                    inside.wait(error)
                    transaction.rollback()
                    raise
                finally:
                    inside.close()
            except FAILURES as error:
                if not self._still_good(error):
                    connection.invalidate()
                    self._writer = None
                raise
            finally:
                if connection is not self._writer:
                    connection.close()

    def _writing_connection(self) -> Connection:
        if self._writer is not None:
            return self._writer
        connection = self.engine.connect()
        connection.info["writes"] = True
        if self.embedded:  # SQLite's one writer keeps it: taking it from the pool each time costs as much as a commit
            connection.connection.cursor().execute(f"PRAGMA cache_size=-{WRITER_KIB}")
            self._writer = connection
        return connection

    @contextmanager
    def reading(self) -> Iterator["Transaction"]:
        """One transaction that only reads, all of it from one moment."""
        pool = self.engine.pool
        with self._errors(), self._reader.connect() as connection:
            connection.info["writes"] = False
            try:
                with connection.begin(), closing(Transaction(connection, self._statements, self.embedded)) as inside:
                    yield inside
            finally:
                if self.engine.pool is not pool:
                    # Disposed of meanwhile. Nobody would close what goes back there, and as long as this process has a
                    # read-only file of SQLite's open, it cannot write, not even through another connection.
                    connection.invalidate()

    @contextmanager
    def scanning(self) -> Iterator["Transaction"]:
        """`reading` for one that walks through a whole log: it may work on a page for long."""
        with self.reading() as inside:
            if not self.embedded:  # PostgreSQL would take it for dead
                inside.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield inside

    def overwrite_journal(self) -> None:
        """SQLite's journal holds what was written, and so what is erased by now, until it begins anew."""
        if self.embedded:
            with self._errors(), closing(self.engine.raw_connection()) as driver:
                driver.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")  # as far as readers allow

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
        except FAILURES as error:
            if writes:
                self._takes_writes = False
            if not self._still_good(error) if self.embedded else _disconnected(error):
                self.engine.dispose()  # the other connections of the pool are dead too, or may hold a file that is gone
            self._failed(_first_line(error))
            raise UnavailableError(_told(error)) from error

    def _still_good(self, error: BaseException) -> bool:
        """Can SQLite's connections go on once the trouble is over? On a full disk nobody could open another one."""
        return self.embedded and _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.engine.dispose()


def _code(error: BaseException) -> int | str | None:
    """What kind of error it is: SQLite's primary code, or PostgreSQL's SQLSTATE."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF
    return getattr(original, "sqlstate", None)


def _disconnected(error: BaseException) -> bool:
    """Did PostgreSQL go away? Then its errors have no code, or one of the classes for that."""
    original, code = getattr(error, "orig", None) or error, str(_code(error) or "")
    return isinstance(original, psycopg.OperationalError) and (not code or code.startswith(("08", "57P")))


def _told(error: Exception) -> str:
    """The error, and for the common ones what to do."""
    what = WHAT_TO_DO.get(_code(error) or 0)
    return f"{what} ({_first_line(error)})" if what else f"The database does not answer: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().partition("\n")[0] or type(original).__name__


def _sqlite_engine(url: str) -> Engine:
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
        # Random ids change pages all over their index: fewer checkpoints write fewer of them twice. 40 MB of journal.
        connection.execute("PRAGMA wal_autocheckpoint=10000")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE: one that reads first and writes later would fail at once when another one writes in between.
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.cursor().execute("BEGIN IMMEDIATE" if connection.info["writes"] else "BEGIN")

    return engine


def _postgresql_engine(url: str, pool_size: int) -> Engine:
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
            "tcp_user_timeout": 2_000 * BUSY_SECONDS,  # milliseconds
            "options": f"-c lock_timeout={BUSY_SECONDS}s -c idle_in_transaction_session_timeout={6 * BUSY_SECONDS}s",
        },
    )

    @sa.event.listens_for(engine, "checkin")
    def used(connection: Any, record: Any) -> None:
        record.info["used"] = time.monotonic()

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


class _Statement(NamedTuple):
    """A statement as the driver takes it, and the order of its parameters."""

    sql: str
    order: Sequence[str]


def _page(table: sa.Table, counter: sa.Column[Any], fields: Sequence[str]) -> sa.Select[Any]:
    """A page of a campaign's rows by a counting column, from the one after that on."""
    own = table.c.campaign_id == bindparam("campaign")
    columns = [table.c[name] for name in fields]
    query = select(*columns).where(own, counter > bindparam("after")).order_by(counter)
    # Written out, both: SQLite's dialect would make a parameter even of an offset that nobody asked for.
    return query.limit(sa.literal_column(str(PAGE), sa.Integer)).offset(sa.literal_column("0", sa.Integer))


def _statements(engine: Engine, embedded: bool) -> dict[str, _Statement]:
    """The hot statements."""

    def compiled(statement: sa.ClauseElement, **options: Any) -> _Statement:
        made = statement.compile(engine, **options)
        order = made.positiontup  # type: ignore[attr-defined]
        return _Statement(str(made), order)

    def among(column: sa.Column[Any], name: str) -> sa.ColumnElement[bool]:
        if embedded:
            return column.in_(select(sa.func.json_each(bindparam(name)).table_valued("value").c.value))
        return column == sa.any_(bindparam(name, type_=postgresql.ARRAY(sa.Text)))

    campaign: sa.BindParameter[int] = bindparam("campaign")
    newest = select(sa.func.max(jobs.c.input_round)).where(jobs.c.campaign_id == campaign).scalar_subquery()
    statements: dict[str, sa.ClauseElement] = {
        "lock": STANDING.where(among(campaigns.c.name, "names")).with_for_update(of=[live, campaigns]),
        "known": select(
            *(decisions.c[name] for name in KnownDecision._fields[:-3]),
            *(rewards.c[name] for name in KnownDecision._fields[-3:]),
        )
        .select_from(REWARDED)
        .where(decisions.c.campaign_id == campaign, among(decisions.c.decision_id, "ids")),
        "newest job": select(*(jobs.c[name] for name in JobRow._fields)).where(
            jobs.c.campaign_id == campaign,
            jobs.c.input_round == newest,
        ),
        "last decided": select(sa.func.max(decisions.c.round)).where(
            decisions.c.campaign_id == campaign,
            decisions.c.decided_at
            == select(sa.func.max(decisions.c.decided_at))
            .where(decisions.c.campaign_id == campaign, decisions.c.decided_at <= bindparam("until"))
            .scalar_subquery(),
        ),
        "decision page": _page(decisions, decisions.c.round, DecisionRow._fields),
        "reward page": _page(rewards, rewards.c.arrival, RewardRow._fields),
        "move": update(live)
        .where(live.c.campaign_id == campaign, live.c.version == bindparam("before"))
        .values({name: bindparam(f"new_{name}") for name in MOVED}),
    }
    hot = {name: compiled(statement) for name, statement in statements.items()}
    for row, table in APPENDED.items():
        hot[table.name] = compiled(insert(table), column_keys=list(row._fields))
        assert tuple(hot[table.name].order) == row._fields, f"{row.__name__} has another order than its table"
    return hot


class Query(NamedTuple):
    """A hot query, by its name, and its parameters."""

    statement: str
    parameters: Mapping[str, Any]


class Transaction:
    """What can be asked and said inside one transaction."""

    def __init__(self, connection: Connection, statements: Mapping[str, _Statement], embedded: bool) -> None:
        self._connection = connection
        self._cursor = connection.connection.cursor()
        self._statements = statements
        self._embedded = embedded
        self._pipeline: AbstractContextManager[psycopg.Pipeline] | None = None
        self._ahead: list[tuple[Query, Any]] = []  # sent before anybody asked, with the cursors that get the answers

    def _without_waiting(self) -> None:
        """Send what follows to PostgreSQL without waiting for each answer: a wait costs as much as a statement."""
        if self._pipeline is None and not self._embedded:
            driver = self._connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            self._pipeline = driver.pipeline()
            self._pipeline.__enter__()

    def commit_at_once(self) -> None:
        """PostgreSQL gets the commit with the writes before it, and everything is waited for once.

        If one of them fails, those after it are not done, and neither is the commit.
        """
        if self._pipeline is not None:
            self._cursor.execute("COMMIT")
            self.wait()

    def wait(self, error: BaseException | None = None) -> None:
        """Until everything sent is done; raises what failed, unless that `error` is being raised already."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(type(error) if error else None, error, None)

    def close(self) -> None:
        """Let go: SQLite's connections do not end before the last cursor that has used them, whoever still holds it."""
        self._cursor.close()
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        """What was answered ahead, before something is written, is no answer afterwards."""
        for _, cursor in self._ahead:
            cursor.close()
        self._ahead.clear()

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's, for all that is not hot, and for the schema's tools."""
        self.wait()
        self._forget_ahead()
        return self._connection

    # --- the hot path ------------------------------------------------------------------------------------------

    def _list(self, items: Iterable[str]) -> Any:
        return json.dumps(list(items)) if self._embedded else list(items)

    def _hot(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        for place, (query, cursor) in enumerate(self._ahead):
            if query == (statement, parameters):
                del self._ahead[place]
                with closing(cursor):
                    return list(cursor.fetchall())
        sql, order = self._statements[statement]
        self.wait()
        self._cursor.execute(sql, [parameters[name] for name in order])
        return list(self._cursor.fetchall())

    def lock(self, names: Iterable[str], ahead: Iterable[Query] = ()) -> dict[str, LiveRow]:
        """The campaigns of these names that exist; nobody else moves them before this transaction ends.

        `ahead` is what will probably be asked next. PostgreSQL gets it along: a wait costs as much as a statement.
        """
        queries = [Query("lock", {"names": self._list(names)}), *(() if self._embedded else ahead)]
        if len(queries) > 1:
            self._without_waiting()
            for query in queries:
                sql, order = self._statements[query.statement]
                cursor = self._connection.connection.cursor()
                self._ahead.append((query, cursor))
                cursor.execute(sql, [query.parameters[name] for name in order])
        return {row[1]: LiveRow._make(row) for row in self._hot("lock", **queries[0].parameters)}

    def known(self, campaign: int, ids: Sequence[str]) -> dict[str, KnownDecision]:
        """Those of the decisions that are in the log."""
        found: dict[str, KnownDecision] = {}
        for start in range(0, len(ids), LONGEST_LIST):
            part = self._list(ids[start : start + LONGEST_LIST])
            found |= {row[0]: KnownDecision._make(row) for row in self._hot("known", campaign=campaign, ids=part)}
        return found

    @staticmethod
    def will_ask(campaign: int, ids: Sequence[str], after: tuple[int, int] | None = None) -> Iterator[Query]:
        """For `lock`: which of the decisions are known, and what came after a (round, arrival) if that is given."""
        if ids:
            yield Query("known", {"campaign": campaign, "ids": list(ids[:LONGEST_LIST])})
        if after is not None:
            yield Query("decision page", {"campaign": campaign, "after": after[0]})
            yield Query("reward page", {"campaign": campaign, "after": after[1]})

    def newest_job(self, campaign: int) -> JobRow | None:
        rows = self._hot("newest job", campaign=campaign)
        return JobRow._make(rows[0]) if rows else None

    def last_decided(self, campaign: int, until: int) -> int:
        """The last round decided by then, 0 for none."""
        rows = self._hot("last decided", campaign=campaign, until=until)
        return int(rows[0][0] or 0)

    def append(self, rows: Sequence[NewRow]) -> None:
        """New rows, all of one table."""
        if rows:
            self._forget_ahead()
            self._without_waiting()
            self._cursor.executemany(self._statements[APPENDED[type(rows[0])].name].sql, rows)

    def move(self, before: LiveRow, after: LiveRow) -> None:
        """The campaign's live row, as it stands now."""
        values: dict[str, Any] = {f"new_{name}": getattr(after, name) for name in MOVED}
        values |= {"campaign": before.campaign_id, "before": before.version}
        sql, order = self._statements["move"]
        self._forget_ahead()
        self._without_waiting()
        self._cursor.execute(sql, [values[name] for name in order])
        if self._embedded and self._cursor.rowcount != 1:  # impossible under the lock; PostgreSQL answers later
            raise UnavailableError(f"Campaign {before.name} was changed by someone else; try again")

    def schema_revision(self) -> str | None:
        """What alembic has written, None for a database it has never seen."""
        if not sa.inspect(self.connection).has_table("alembic_version"):
            return None
        found = self.connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
        return str(found[0]) if found else None

    # --- campaigns ---------------------------------------------------------------------------------------------

    def add_campaign(self, name: str, request_hash: bytes, config: str, belief: str, now: int) -> bool:
        """A new campaign; False if another worker has just created one of that name."""
        values = {"name": name, "request_hash": request_hash, "created_at": now}
        new = (sqlite.insert if self._embedded else postgresql.insert)(campaigns).values(values)
        number = self.connection.execute(new.on_conflict_do_nothing().returning(campaigns.c.id)).scalar_one_or_none()
        if number is None:
            return False
        self.append([NewRevision(number, 1, 0, 0, config, None, None, now)])
        self.connection.execute(
            insert(live).values(
                {
                    **dict.fromkeys(LIVE, 0),
                    "campaign_id": number,
                    "version": 1,
                    "belief": belief,
                    "clock": now,
                    "last_at": -(2**62),  # any time is later
                    "regime": None,
                    "failure": None,
                }
            )
        )
        return True

    def creation_hash(self, campaign: int) -> bytes:
        query = select(campaigns.c.request_hash).where(campaigns.c.id == campaign)
        return bytes(self.connection.execute(query).scalar_one())

    def archive(self, campaign: int, at: int | None) -> None:
        """Archived at that time, or no longer."""
        self.connection.execute(update(campaigns).where(campaigns.c.id == campaign).values(archived_at=at))

    def delete_campaign(self, campaign: int) -> None:
        """The campaign and every row of it."""
        self.connection.execute(campaigns.delete().where(campaigns.c.id == campaign))

    def config(self, campaign: int) -> str:
        """The configuration in force, as JSON."""
        return self.revision_page(campaign, None, 1)[0].config

    def revision_page(self, campaign: int, before: int | None, limit: int) -> list[RevisionRow]:
        """The newest revisions before one of them."""
        counter = config_revisions.c.revision
        query = select(*(config_revisions.c[name] for name in RevisionRow._fields)).order_by(counter.desc())
        query = query.where(config_revisions.c.campaign_id == campaign).limit(limit)
        if before is not None:
            query = query.where(counter < before)
        return [RevisionRow._make(row) for row in self.connection.execute(query)]

    def campaign(self, name: str) -> tuple[LiveRow, int] | None:
        """Where a campaign stands and when it was created, without a lock."""
        query = STANDING.add_columns(campaigns.c.created_at).where(campaigns.c.name == name)
        row = self.connection.execute(query).one_or_none()
        return (LiveRow._make(row[:-1]), row[-1]) if row else None

    def campaign_page(
        self, after: str, limit: int, archived: bool | None = None, among: Collection[str] | None = None
    ) -> list[LiveRow]:
        """Campaigns by name, from the one after that name on: all, the (un)archived ones, those among some names."""
        query = STANDING.where(campaigns.c.name > after).order_by(campaigns.c.name).limit(limit)
        if archived is not None:
            query = query.where(campaigns.c.archived_at.is_not(None) if archived else campaigns.c.archived_at.is_(None))
        if among is not None:
            query = query.where(campaigns.c.name.in_(among))
        return [LiveRow._make(row) for row in self.connection.execute(query)]

    def standing(self) -> list[LiveRow]:
        """Where every campaign stands."""
        return [LiveRow._make(row) for row in self.connection.execute(STANDING.order_by(campaigns.c.name))]

    def decision(self, campaign: int, decision_id: str) -> Row | None:
        """A decision with its request and its reward."""
        query = (
            select(decisions, rewards.c.reward, rewards.c.source, rewards.c.received_at)
            .select_from(REWARDED)
            .where(decisions.c.campaign_id == campaign, decisions.c.decision_id == decision_id)
        )
        row = self.connection.execute(query).mappings().one_or_none()
        return dict(row) if row else None

    def model_page(self, campaign: int, before: int | None, limit: int) -> list[Row]:
        """The newest models before a version."""
        query = select(models).where(models.c.campaign_id == campaign).order_by(models.c.version.desc()).limit(limit)
        if before is not None:
            query = query.where(models.c.version < before)
        return [dict(row) for row in self.connection.execute(query).mappings()]

    # --- the log, as the fold reads it -------------------------------------------------------------------------

    def _paged(self, table: sa.Table, order: str, campaign: int, after: int, fields: Sequence[str]) -> Iterator[Any]:
        """Rows of a campaign by a counting column, from the one after that on, a page at a time."""
        counter, columns = table.c[order], [table.c[name] for name in fields]
        query = select(counter, *columns).where(table.c.campaign_id == campaign).order_by(counter).limit(PAGE)
        rows: Sequence[Any] = range(PAGE)
        while len(rows) == PAGE:
            rows = self.connection.execute(query.where(counter > after)).all()
            yield from (row[1:] for row in rows)
            after = rows[-1][0] if rows else after

    def _hot_pages(self, statement: str, campaign: int, after: int) -> Iterator[tuple[Any, ...]]:
        """The same by a hot statement, whose first column is the counter."""
        rows: Sequence[tuple[Any, ...]] = [()] * PAGE
        while len(rows) == PAGE:
            rows = self._hot(statement, campaign=campaign, after=after)
            yield from rows
            after = rows[-1][0] if rows else after

    def decisions_after(self, campaign: int, round: int) -> Iterator[DecisionRow]:
        """The decisions after a round, in order."""
        return map(DecisionRow._make, self._hot_pages("decision page", campaign, round))

    def rewards_after(self, campaign: int, arrival: int) -> Iterator[RewardRow]:
        """The rewards after the so-manieth, in the order they were committed."""
        return map(RewardRow._make, self._hot_pages("reward page", campaign, arrival))

    def revisions_after(self, campaign: int, revision: int) -> list[RevisionRow]:
        """The changes after a revision, in order."""
        rows = self._paged(config_revisions, "revision", campaign, revision, RevisionRow._fields)
        return [RevisionRow._make(row) for row in rows]

    def models_of(self, campaign: int) -> Iterator[NewModel]:
        """All models, in order."""
        return map(NewModel._make, self._paged(models, "version", campaign, 0, NewModel._fields))

    def jobs_after(self, campaign: int, round: int) -> list[JobRow]:
        """The jobs that were not over by that round: published later, or not at all so far."""
        over = jobs.c.published_round.is_not(None) & (jobs.c.published_round < round)
        query = select(*(jobs.c[name] for name in JobRow._fields)).where(jobs.c.campaign_id == campaign, ~over)
        return [JobRow._make(row) for row in self.connection.execute(query.order_by(jobs.c.input_round))]

    def events_after(self, campaign: int, round: int) -> list[tuple[int, str]]:
        """(round, kind) of the events from that round on."""
        query = select(events.c.round, events.c.kind).where(events.c.campaign_id == campaign, events.c.round >= round)
        return [(row.round, row.kind) for row in self.connection.execute(query.order_by(events.c.number))]

    def bodies_of_events(self, campaign: int, kind: str) -> list[str]:
        """What the events of a kind say, in order."""
        query = select(events.c.body).where(events.c.campaign_id == campaign, events.c.kind == kind)
        return list(self.connection.execute(query.order_by(events.c.number)).scalars())

    def erasure_version(self, campaign: int) -> int:
        """The model of the last erasure, 0 without one: those before it cannot be made again (R22)."""
        own = models.c.campaign_id == campaign, models.c.kind == "erasure"
        return self.connection.execute(select(sa.func.max(models.c.version)).where(*own)).scalar_one() or 0

    def estimation_rounds(self, campaign: int) -> list[int]:
        """The rounds after which an estimate was put in force, by a job or inline; twice, if both happened then."""
        query = select(models.c.round).where(models.c.campaign_id == campaign, models.c.kind == "estimation")
        return list(self.connection.execute(query).scalars())

    def decided_at(self, campaign: int, round: int) -> int:
        """When a round was decided."""
        query = select(decisions.c.decided_at).where(decisions.c.campaign_id == campaign, decisions.c.round == round)
        return int(self.connection.execute(query).scalar_one())

    def event_count(self, campaign: int) -> int:
        query = select(sa.func.coalesce(sa.func.max(events.c.number), 0)).where(events.c.campaign_id == campaign)
        return int(self.connection.execute(query).scalar_one())

    # --- the log as pictures need it ----------------------------------------------------------------------------

    def columns(self, query: sa.Select[Any]) -> list[str]:
        """The columns of a query, each as a JSON array; in which order the rows come, the query cannot say.

        The database writes them several times faster than rows become objects one by one, and other threads go on
        meanwhile.
        """
        rows = query.subquery()
        gathered = [
            sa.func.json_group_array(column) if self._embedded else sa.cast(sa.func.json_agg(column), sa.Text)
            for column in rows.c
        ]
        return [text or "[]" for text in self.connection.execute(select(*gathered)).one()]

    def cut(self, text: sa.ColumnElement[str], start: int, end: str) -> sa.ColumnElement[str]:
        """A part of a text: from a place, counted from 1, to the first occurrence of `end`, and with it."""
        position = sa.func.instr if self._embedded else sa.func.strpos
        return sa.func.substr(text, start, position(text, end) + len(end) - start)

    # --- snapshots ---------------------------------------------------------------------------------------------

    def snapshot_moments(self, campaign: int) -> list[tuple[int, int, int]]:
        """(round, rewards, revision) of every snapshot, newest first."""
        moment = snapshots.c.round, snapshots.c.arrived, snapshots.c.revision
        query = select(*moment).where(snapshots.c.campaign_id == campaign).order_by(snapshots.c.round.desc())
        return [(row.round, row.arrived, row.revision) for row in self.connection.execute(query)]

    def snapshot(self, campaign: int, round: int) -> bytes:
        query = select(snapshots.c.state).where(snapshots.c.campaign_id == campaign, snapshots.c.round == round)
        return bytes(self.connection.execute(query).scalar_one())

    def add_snapshot(self, row: Row, keep: Iterable[int]) -> None:
        """A new snapshot; of the older ones only those of the rounds to keep remain."""
        campaign, older = (
            row["campaign_id"],
            snapshots.c.round.not_in([round for round in keep if round < row["round"]]),
        )
        self.connection.execute(snapshots.delete().where(snapshots.c.campaign_id == campaign, older))
        self.connection.execute(insert(snapshots).values(row))
        self.connection.execute(update(live).where(live.c.campaign_id == campaign).values(snapshot_round=row["round"]))
        # A result that a snapshot contains need not be kept: the fold starts after it.
        self.connection.execute(
            update(jobs)
            .where(jobs.c.campaign_id == campaign, jobs.c.published_round < row["round"])
            .values(result=None)
        )

    # --- erasure and retention ---------------------------------------------------------------------------------

    def campaigns_of_subject(self, subject: str, among: Collection[str] | None = None) -> list[str]:
        """The campaigns that have decided for someone; of all, or among some names."""
        own = select(decisions.c.round).where(decisions.c.campaign_id == campaigns.c.id, decisions.c.subject == subject)
        query = select(campaigns.c.name).where(own.exists()).order_by(campaigns.c.name)
        if among is not None:
            query = query.where(campaigns.c.name.in_(among))
        return list(self.connection.execute(query).scalars())

    def subject_rounds(self, campaign: int, subject: str) -> list[int]:
        """The rounds that were decided for someone."""
        query = select(decisions.c.round).where(decisions.c.campaign_id == campaign, decisions.c.subject == subject)
        return list(self.connection.execute(query.order_by(decisions.c.round)).scalars())

    def erase(self, campaign: int, rounds: Sequence[int]) -> None:
        """Decisions without what was personal about them (R22), and nothing left that was made from it."""
        for start in range(0, len(rounds), PAGE):
            part = rounds[start : start + PAGE]
            self.connection.execute(
                update(decisions)
                .where(decisions.c.campaign_id == campaign, decisions.c.round.in_(part))
                .values(REDUCED | {"context": None, "excluded_actions": None, "explanation": NOTHING, "erased": True})
            )
            self.connection.execute(
                update(rewards)
                .where(rewards.c.campaign_id == campaign, rewards.c.round.in_(part))
                .values(reward=None, source="erased")
            )
        self.connection.execute(snapshots.delete().where(snapshots.c.campaign_id == campaign))
        self.connection.execute(update(jobs).where(jobs.c.campaign_id == campaign).values(result=None))
        self._forget_import_hashes(campaign)

    def _forget_import_hashes(self, campaign: int) -> None:
        """By the hash of what was imported it could be guessed; later retries are known by their id alone."""
        own = events.c.campaign_id == campaign, events.c.kind == "import"
        for number, body in self.connection.execute(select(events.c.number, events.c.body).where(*own)).all():
            told = json.loads(body)
            if told.pop("hash", None) is not None:
                changed = update(events).where(*own, events.c.number == number)
                self.connection.execute(changed.values(body=json.dumps(told)))

    def requests_between(self, campaign: int, after: int, last: int) -> list[tuple[int, str]]:
        """(round, context) of rows that have one."""
        query = select(decisions.c.round, decisions.c.context).where(
            decisions.c.campaign_id == campaign,
            decisions.c.round > after,
            decisions.c.round <= last,
            decisions.c.context.is_not(None),
        )
        return [(row.round, row.context) for row in self.connection.execute(query)]

    def reduce(self, campaign: int, contexts: Mapping[int, str], after: int, until: int) -> None:
        """Rounds after one and up to another whose requests are kept no more, with what is left of their contexts."""
        span = decisions.c.round > after, decisions.c.round <= until
        self.connection.execute(update(decisions).where(decisions.c.campaign_id == campaign, *span).values(REDUCED))
        self._forget_import_hashes(campaign)
        if contexts:
            row = decisions.c.campaign_id == campaign, decisions.c.round == bindparam("of_round")
            values = [{"of_round": round, "left": context} for round, context in contexts.items()]
            self.connection.execute(update(decisions).where(*row).values(context=bindparam("left")), values)
        self.connection.execute(update(live).where(live.c.campaign_id == campaign).values(reduced=until))

    # --- jobs --------------------------------------------------------------------------------------------------

    def finish_job(self, campaign: int, input_round: int, status: str, result: bytes | None, seconds: float) -> None:
        """A job's result; whoever finishes first counts, all find the same."""
        self.connection.execute(
            update(jobs)
            .where(jobs.c.campaign_id == campaign, jobs.c.input_round == input_round, jobs.c.status == "waiting")
            .values(status=status, result=result, seconds=seconds)
        )

    def close_job(self, campaign: int, input_round: int, status: str, published_round: int | None) -> None:
        unneeded = {"result": None} if published_round is None else {}
        self.connection.execute(
            update(jobs)
            .where(jobs.c.campaign_id == campaign, jobs.c.input_round == input_round)
            .values({"status": status, "published_round": published_round} | unneeded)
        )

    def claim_jobs(self, owner: str, now: int, until: int) -> list[ClaimedJob]:
        """Jobs whose worker has not finished them in time, now leased to `owner` until then.

        A lease that ends much later than any new one is of a clock that has gone back since: nobody waits for that.
        """
        over = (jobs.c.leased_until < now) | (jobs.c.leased_until > until + (until - now))
        expired = (
            select(jobs.c.campaign_id, campaigns.c.name, jobs.c.input_round, jobs.c.attempts)
            .join_from(jobs, campaigns)
            .where(jobs.c.status == "waiting", over)
            .with_for_update(of=jobs, skip_locked=True)
        )
        found = [ClaimedJob._make(row) for row in self.connection.execute(expired)]
        for job in found:
            self.connection.execute(
                update(jobs)
                .where(jobs.c.campaign_id == job.campaign_id, jobs.c.input_round == job.input_round)
                .values(owner=owner, leased_until=until, attempts=jobs.c.attempts + 1)
            )
        return found

    # --- keys --------------------------------------------------------------------------------------------------

    def add_key(self, key: KeyRow) -> None:
        self.connection.execute(insert(keys).values(key._asdict()))

    def all_keys(self) -> list[KeyRow]:
        """The revoked ones too, oldest first."""
        query = select(*(keys.c[name] for name in KeyRow._fields)).order_by(keys.c.created_at, keys.c.id)
        return [KeyRow._make(row) for row in self.connection.execute(query)]

    def revoke_key(self, key_id: str, now: int) -> bool:
        """From now on the key is good for nothing; False if there is none, or it was revoked before."""
        revoked = update(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None)).values(revoked_at=now)
        return self.connection.execute(revoked).rowcount == 1
