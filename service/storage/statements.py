"""The hot statements: written once with SQLAlchemy, compiled once for the database, and how they are sent to it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine

from service.storage.rows import (
    APPENDED,
    DecisionIdRow,
    DecisionRow,
    JobRow,
    KnownDecision,
    LiveRow,
    RewardRow,
    select_rows,
)
from service.storage.tables import campaigns, decisions, jobs, live, rewards

PAGE = 5_000  # rows of the log read at a time
# SQLite inserts this many rows with one statement where there are enough of them; old versions take 999 parameters.
# Each statement releases the interpreter lock.
ROWS_PER_INSERT = (60, 20, 5)
LIVE_COLUMNS = tuple(column.name for column in live.c if column.name != "campaign_id")
# Those that every transaction on a campaign writes; the others have statements of their own.
UPDATED_COLUMNS = tuple(name for name in LIVE_COLUMNS if name not in ("snapshot_round", "reduced"))
LIVE_ROWS = select_rows(LiveRow, live, campaigns).join_from(campaigns, live)
DECISIONS_WITH_REWARDS = decisions.outerjoin(
    rewards, (rewards.c.campaign_id == decisions.c.campaign_id) & (rewards.c.round == decisions.c.round)
)


class Statement(NamedTuple):
    """A statement as the driver takes it, and the order of its parameters."""

    sql: str
    order: Sequence[str]


def _select_page(columns: sa.Select[Any], table: sa.Table, counter: sa.Column[Any]) -> sa.Select[Any]:
    """Select a page of a campaign's rows in the order of a counter, beginning after a given value of it."""
    own = table.c.campaign_id == bindparam("campaign")
    query = columns.where(own, counter > bindparam("after")).order_by(counter)
    # As literals: SQLite's dialect would turn the limit and even an absent offset into parameters.
    return query.limit(sa.literal_column(str(PAGE), sa.Integer)).offset(sa.literal_column("0", sa.Integer))


def _select_last_round(campaign: sa.BindParameter[int]) -> sa.Select[Any]:
    """Select the last round decided until a time. Times never fall along the rounds: bisection needs no index."""
    zero, one, two = (sa.literal_column(number, sa.BigInteger) for number in "012")  # not parameters of the statement
    newest = select(live.c.round).where(live.c.campaign_id == campaign).scalar_subquery()
    span = select(sa.cast(zero, sa.BigInteger).label("low"), newest.label("high")).cte("span", recursive=True)
    by_then = decisions.c.decided_at <= bindparam("until")
    halved = select(
        sa.case((by_then, decisions.c.round), else_=span.c.low),
        sa.case((by_then, span.c.high), else_=decisions.c.round - one),
    ).where(
        span.c.low < span.c.high,
        decisions.c.campaign_id == campaign,
        decisions.c.round == (span.c.low + span.c.high + one) // two,
    )
    return select(sa.func.max(span.union_all(halved).c.low))


def compile_statements(engine: Engine, embedded: bool) -> dict[str, Statement]:
    """Compile the hot statements for the engine's database, by name; insertions are named after their table."""

    def compile_one(statement: sa.ClauseElement, **options: Any) -> Statement:
        compiled = statement.compile(engine, **options)
        order = compiled.positiontup  # type: ignore[attr-defined]
        return Statement(str(compiled), order)

    def is_in(column: sa.Column[Any], name: str, kind: type[sa.Text | sa.BigInteger]) -> sa.ColumnElement[bool]:
        if embedded:
            return column.in_(select(sa.func.json_each(bindparam(name)).table_valued("value").c.value))
        return column == sa.any_(bindparam(name, type_=postgresql.ARRAY(kind)))

    campaign: sa.BindParameter[int] = bindparam("campaign")
    newest = select(sa.func.max(jobs.c.input_round)).where(jobs.c.campaign_id == campaign).scalar_subquery()
    statements: dict[str, sa.ClauseElement] = {
        "lock": LIVE_ROWS.where(is_in(campaigns.c.name, "names", sa.Text)).with_for_update(of=[live, campaigns]),
        "known decisions": select_rows(KnownDecision, decisions, rewards)
        .select_from(DECISIONS_WITH_REWARDS)
        .where(decisions.c.campaign_id == campaign, is_in(decisions.c.round, "rounds", sa.BigInteger)),
        "newest job": select_rows(JobRow, jobs).where(jobs.c.campaign_id == campaign, jobs.c.input_round == newest),
        "last round": _select_last_round(campaign),
        "decision page": _select_page(select_rows(DecisionRow, decisions), decisions, decisions.c.round),
        "reward page": _select_page(select_rows(RewardRow, rewards), rewards, rewards.c.arrival),
        "id page": _select_page(select_rows(DecisionIdRow, decisions), decisions, decisions.c.round),
        "update live row": update(live)
        .where(live.c.campaign_id == campaign, live.c.version == bindparam("before"))
        .values({name: bindparam(f"new_{name}") for name in UPDATED_COLUMNS}),
    }
    hot = {name: compile_one(statement) for name, statement in statements.items()}
    for kind, table in APPENDED.items():
        hot[table.name] = compile_one(insert(table), column_keys=list(kind._fields))
        assert tuple(hot[table.name].order) == kind._fields, f"{kind.__name__} is not in the order of its table"
    return hot


class Query(NamedTuple):
    """A hot query, by its name, and its parameters."""

    statement: str
    parameters: Mapping[str, Any]


class Channel(Protocol):
    """How the hot statements reach the database. What is executed is done by the commit at the latest."""

    def begin(self) -> None: ...
    def query(self, queries: Iterable[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]: ...
    def execute(self, sql: str, rows: Sequence[Sequence[Any]]) -> int | None: ...  # rows changed, None if not yet known
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def close(self) -> None: ...


@cache
def _repeat_values(insert: str, rows: int) -> str:
    """An insertion of several rows: of the time of a single-row insertion, a fifth is the statement itself."""
    head, values, row = insert.partition("VALUES ")
    return f"{head}{values}{', '.join([row] * rows)}"


class CursorChannel:
    """The driver's cursor, which executes at once: for SQLite, and for everything that only reads."""

    def __init__(self, connection: Connection) -> None:
        self._cursor: Any = connection.connection.cursor()

    def begin(self) -> None:
        # IMMEDIATE: a transaction that reads before it writes would fail if another one writes in between.
        self._cursor.execute("BEGIN IMMEDIATE")

    def query(self, queries: Iterable[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]:
        return [self._cursor.execute(sql, values).fetchall() for sql, values in queries]

    def execute(self, sql: str, rows: Sequence[Sequence[Any]]) -> int | None:
        for size in ROWS_PER_INSERT if sql.startswith("INSERT") else ():
            if whole := len(rows) - len(rows) % size:
                together = (chain.from_iterable(rows[i : i + size]) for i in range(0, whole, size))
                self._cursor.executemany(_repeat_values(sql, size), map(tuple, together))
                rows = rows[whole:]
        if rows:
            self._cursor.executemany(sql, rows)
        changed: int = self._cursor.rowcount
        return changed

    def flush(self) -> None:
        """Nothing waits."""

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def roll_back(self) -> None:
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Close the cursor: an SQLite connection stays open until the last cursor that used it is closed."""
        self._cursor.close()
