"""The hot statements, written once with SQLAlchemy and compiled once for the database at hand; how they reach it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine

from service.storage.rows import APPENDED, DecisionRow, JobRow, KnownDecision, RewardRow
from service.storage.tables import campaigns, decisions, jobs, live, rewards

__all__ = ["LIVE", "MOVED", "PAGE", "REWARDED", "STANDING", "Cursor", "Query", "Statement", "Talk", "hot_statements"]

PAGE = 5_000  # rows of the log read at a time
# That SQLite gets in one statement, if there are as many; older ones take 999 values. Each lets go of the interpreter.
ROWS_TOGETHER = (60, 20, 5)
LIVE = tuple(column.name for column in live.c if column.name != "campaign_id")
MOVED = tuple(name for name in LIVE if name not in ("snapshot_round", "reduced"))
# What several queries begin with: campaigns with where they stand, and decisions with their rewards.
STANDING = select(
    live.c.campaign_id, campaigns.c.name, *(live.c[name] for name in LIVE), campaigns.c.archived_at
).join_from(campaigns, live)
REWARDED = decisions.outerjoin(
    rewards, (rewards.c.campaign_id == decisions.c.campaign_id) & (rewards.c.round == decisions.c.round)
)


class Statement(NamedTuple):
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


def _last_decided(campaign: sa.BindParameter[int]) -> sa.Select[Any]:
    """The last round decided until a time: times never fall along the rounds, so bisection needs no index."""
    zero, one, two = (sa.literal_column(number, sa.BigInteger) for number in "012")  # parameters would have to be given
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


def hot_statements(engine: Engine, embedded: bool) -> dict[str, Statement]:
    """The hot statements."""

    def compiled(statement: sa.ClauseElement, **options: Any) -> Statement:
        made = statement.compile(engine, **options)
        order = made.positiontup  # type: ignore[attr-defined]
        return Statement(str(made), order)

    def among(column: sa.Column[Any], name: str, kind: type[sa.Text | sa.BigInteger]) -> sa.ColumnElement[bool]:
        if embedded:
            return column.in_(select(sa.func.json_each(bindparam(name)).table_valued("value").c.value))
        return column == sa.any_(bindparam(name, type_=postgresql.ARRAY(kind)))

    campaign: sa.BindParameter[int] = bindparam("campaign")
    newest = select(sa.func.max(jobs.c.input_round)).where(jobs.c.campaign_id == campaign).scalar_subquery()
    statements: dict[str, sa.ClauseElement] = {
        "lock": STANDING.where(among(campaigns.c.name, "names", sa.Text)).with_for_update(of=[live, campaigns]),
        "known": select(
            *(decisions.c[name] for name in KnownDecision._fields[:-3]),
            *(rewards.c[name] for name in KnownDecision._fields[-3:]),
        )
        .select_from(REWARDED)
        .where(decisions.c.campaign_id == campaign, among(decisions.c.round, "rounds", sa.BigInteger)),
        "newest job": select(*(jobs.c[name] for name in JobRow._fields)).where(
            jobs.c.campaign_id == campaign,
            jobs.c.input_round == newest,
        ),
        "last decided": _last_decided(campaign),
        "decision page": _page(decisions, decisions.c.round, DecisionRow._fields),
        "reward page": _page(rewards, rewards.c.arrival, RewardRow._fields),
        "id page": _page(decisions, decisions.c.round, ("round", "decision_id")),
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


class Talk(Protocol):
    """How the hot statements reach the database. What is told is done by the commit at the latest."""

    def begin(self) -> None: ...
    def ask(self, queries: Iterable[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]: ...
    def tell(self, sql: str, rows: Sequence[Sequence[Any]]) -> int | None: ...  # rows changed, if it is known already
    def settle(self) -> None: ...
    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def close(self) -> None: ...


@cache
def _several(insert: str, rows: int) -> str:
    """An insertion of so many rows at a time: a fifth of a row's time is what its own statement takes."""
    head, values, row = insert.partition("VALUES ")
    return f"{head}{values}{', '.join([row] * rows)}"


class Cursor:
    """Through the driver's cursor, at once: SQLite, and all that only reads."""

    def __init__(self, connection: Connection) -> None:
        self._cursor: Any = connection.connection.cursor()

    def begin(self) -> None:
        # IMMEDIATE: one that reads first and writes later would fail at once when another one writes in between.
        self._cursor.execute("BEGIN IMMEDIATE")

    def ask(self, queries: Iterable[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]:
        return [self._cursor.execute(sql, values).fetchall() for sql, values in queries]

    def tell(self, sql: str, rows: Sequence[Sequence[Any]]) -> int | None:
        for size in ROWS_TOGETHER if sql.startswith("INSERT") else ():
            if whole := len(rows) - len(rows) % size:
                together = (chain.from_iterable(rows[i : i + size]) for i in range(0, whole, size))
                self._cursor.executemany(_several(sql, size), map(tuple, together))
                rows = rows[whole:]
        if rows:
            self._cursor.executemany(sql, rows)
        changed: int = self._cursor.rowcount
        return changed

    def settle(self) -> None:
        """Everything is done."""

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def roll_back(self) -> None:
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Let go: SQLite's connections do not end before the last cursor that has used them, whoever still holds it."""
        self._cursor.close()
