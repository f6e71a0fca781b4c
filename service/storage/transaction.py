"""One transaction: the statements of the write path, and the log as the fold reads it.

The other queries are functions of a transaction in the module of their subject: campaigns, models, snapshots, jobs,
events, keys, erasure, audit, and reading (the log for people and files).

The write path hands its statements (statements.py) directly to the driver. A transaction of several requests has five
of them, and SQLAlchemy's layers would take more time than the work itself.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.engine import Connection

from service.base.errors import UnavailableError
from service.storage.rows import (
    APPENDED,
    AppendedRow,
    DecisionIdRow,
    DecisionRow,
    JobRow,
    KnownDecision,
    LiveRow,
    RevisionRow,
    RewardRow,
    select_rows,
)
from service.storage.statements import PAGE, UPDATED_COLUMNS, Channel, CursorChannel, Query, Statement
from service.storage.tables import config_revisions, events, jobs, models

LONGEST_LIST = 10_000  # rounds looked up at a time
MOST_CACHED = 2_000  # live rows that SQLite's writer remembers
Read = TypeVar("Read", bound=NamedTuple)


class LiveRowCache:
    """Live rows as SQLite's only writer left them; valid until another connection writes."""

    def __init__(self) -> None:
        self.rows: dict[str, LiveRow] = {}
        self.version = -1  # SQLite's data_version, which changes with every commit of another connection


class Transaction:
    """One transaction on one connection. `cache` is given on SQLite only."""

    def __init__(
        self,
        connection: Connection,
        statements: Mapping[str, Statement],
        cache: LiveRowCache | None,
        channel: Channel | None = None,
    ) -> None:
        self.embedded = cache is not None
        self._connection = connection
        self._channel: Channel = channel or CursorChannel(connection)
        self._statements = statements
        self._cache = cache
        self._updated: dict[str, LiveRow] = {}
        self._begun: sa.RootTransaction | None = None  # SQLAlchemy's part of the transaction
        self._prefetched: list[tuple[Query, list[tuple[Any, ...]]]] = []

    def begin(self) -> None:
        """Begin to write. SQLAlchemy begins only when it is used: that takes as long as a decision."""
        self._channel.begin()

    def commit(self) -> None:
        """Commit. Raises if the transaction has already ended."""
        if self._begun is None:
            self._channel.commit()
            if self._cache is not None:
                self._cache.rows.update(self._updated)
            return
        self._channel.flush()
        self._begun.commit()
        if self._cache is not None:
            self._cache.rows.clear()  # other statements may have changed any row

    def roll_back(self) -> None:
        """Undo everything."""
        if self._cache is not None:
            self._cache.rows.clear()
        if self._begun is None:
            self._channel.roll_back()
        else:
            self._begun.rollback()

    def close(self) -> None:
        self._channel.close()

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, for every statement that is not hot."""
        self._channel.flush()
        self._prefetched.clear()
        if self._begun is None and not self._connection.in_transaction():
            self._begun = self._connection.begin()
        return self._connection

    def read_rows(self, kind: type[Read], query: sa.Select[Any]) -> list[Read]:
        """The rows of a query with the columns of their type."""
        return [kind._make(row) for row in self.connection.execute(query)]

    # --- the write path ----------------------------------------------------------------------------------------

    def _encode_list(self, items: Iterable[str | int]) -> Any:
        return json.dumps(list(items)) if self.embedded else list(items)

    def _query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        for place, (query, rows) in enumerate(self._prefetched):
            if query == (statement, parameters):
                del self._prefetched[place]
                return rows
        (rows,) = self._channel.query([self._bind(Query(statement, parameters))])
        return rows

    def _bind(self, query: Query) -> tuple[str, Sequence[Any]]:
        sql, order = self._statements[query.statement]
        return sql, [query.parameters[name] for name in order]

    def _execute(self, statement: str, rows: Sequence[Sequence[Any]]) -> int | None:
        self._prefetched.clear()  # out of date after this
        return self._channel.execute(self._statements[statement].sql, rows)

    def lock_campaigns(self, names: Collection[str], prefetch: Iterable[Query] = ()) -> dict[str, LiveRow]:
        """Lock the campaigns of these names that exist, until the transaction ends.

        PostgreSQL is sent the `prefetch` queries along with it: waiting for an answer costs as much as a statement.
        """
        if self._cache is not None:
            return self._get_cached(self._cache, names)
        queries = [Query("lock", {"names": self._encode_list(names)}), *prefetch]
        rows, *answers = self._channel.query(map(self._bind, queries))
        self._prefetched = list(zip(queries[1:], answers, strict=True))
        return {row.name: row for row in map(LiveRow._make, rows)}

    def _get_cached(self, cache: LiveRowCache, names: Collection[str]) -> dict[str, LiveRow]:
        """SQLite's transaction is itself the lock, and rows that nobody has changed since need not be read."""
        (((version,),),) = self._channel.query([("PRAGMA data_version", ())])
        if version != cache.version or self._begun is not None or len(cache.rows) > MOST_CACHED:
            cache.rows.clear()
            cache.version = version
        rows = {name: cache.rows[name] for name in names if name in cache.rows}
        if missing := [name for name in names if name not in rows]:
            found = self._query("lock", names=self._encode_list(missing))
            rows |= {row.name: row for row in map(LiveRow._make, found)}
        return rows

    def get_known_decisions(self, campaign: int, rounds: Sequence[int]) -> dict[str, KnownDecision]:
        """The decisions of these rounds, by their ids."""
        decisions: dict[str, KnownDecision] = {}
        for start in range(0, len(rounds), LONGEST_LIST):
            part = self._encode_list(rounds[start : start + LONGEST_LIST])
            rows = self._query("known decisions", campaign=campaign, rounds=part)
            decisions |= {row.decision_id: row for row in map(KnownDecision._make, rows)}
        return decisions

    @staticmethod
    def build_known_decisions_query(campaign: int, rounds: Sequence[int]) -> Query:
        """The query of `get_known_decisions`, for `lock_campaigns` to prefetch."""
        return Query("known decisions", {"campaign": campaign, "rounds": list(rounds[:LONGEST_LIST])})

    def prefetch_log(self, campaign: int, decisions: tuple[int, int], rewards: tuple[int, int]) -> None:
        """Ask PostgreSQL at once for the pages that the fold reads next; pairs are (after, last)."""
        if self.embedded:
            return
        pages = [
            (Query(statement, {"campaign": campaign, "after": after}), after < last)
            for statement, (after, last) in (("decision page", decisions), ("reward page", rewards))
        ]
        answers = iter(self._channel.query([self._bind(query) for query, has_rows in pages if has_rows]))
        self._prefetched += [(query, next(answers) if has_rows else []) for query, has_rows in pages]

    def get_newest_job(self, campaign: int) -> JobRow | None:
        rows = self._query("newest job", campaign=campaign)
        return JobRow._make(rows[0]) if rows else None

    def get_last_round(self, campaign: int, until: int) -> int:
        """The last round decided by that time (microseconds), 0 if there is none."""
        ((last,),) = self._query("last round", campaign=campaign, until=until)
        return int(last or 0)

    def append(self, rows: Sequence[AppendedRow]) -> None:
        """Append rows, all to one table."""
        if rows:
            self._execute(APPENDED[type(rows[0])].name, rows)

    def update_live_row(self, before: LiveRow, after: LiveRow) -> None:
        """Replace the campaign's live row."""
        values: dict[str, Any] = {f"new_{name}": getattr(after, name) for name in UPDATED_COLUMNS}
        values |= {"campaign": before.campaign_id, "before": before.version}
        self._updated[after.name] = after
        order = self._statements["update live row"].order
        changed = self._execute("update live row", [[values[name] for name in order]])
        if changed == 0:  # impossible under the lock
            raise UnavailableError(f"Campaign {before.name} was changed by another worker; try again")

    # --- the log, as the fold reads it -------------------------------------------------------------------------

    def _read_pages(self, statement: str, kind: type[Read], counter: str, campaign: int, after: int) -> Iterator[Read]:
        """Rows of a campaign in the order of a counter, beginning after a value of it; queries one page at a time."""
        rows: list[Read] | None = None
        while rows is None or len(rows) == PAGE:
            rows = [kind._make(row) for row in self._query(statement, campaign=campaign, after=after)]
            yield from rows
            after = getattr(rows[-1], counter) if rows else after

    def read_decisions(self, campaign: int, after_round: int) -> Iterator[DecisionRow]:
        """The decisions after a round, in order."""
        return self._read_pages("decision page", DecisionRow, "round", campaign, after_round)

    def read_rewards(self, campaign: int, after_arrival: int) -> Iterator[RewardRow]:
        """The rewards after an arrival number, in the order they were committed."""
        return self._read_pages("reward page", RewardRow, "arrival", campaign, after_arrival)

    def read_decision_ids(self, campaign: int, after_round: int) -> Iterator[str]:
        """The ids of the decisions after a round, in order."""
        rows = self._read_pages("id page", DecisionIdRow, "round", campaign, after_round)
        return (row.decision_id for row in rows)

    def read_revisions(self, campaign: int, after_revision: int) -> list[RevisionRow]:
        """The changes of a campaign after a revision, in order."""
        query = select_rows(RevisionRow, config_revisions).where(config_revisions.c.campaign_id == campaign)
        query = query.where(config_revisions.c.revision > after_revision).order_by(config_revisions.c.revision)
        return self.read_rows(RevisionRow, query)

    def read_jobs(self, campaign: int, after_round: int) -> list[JobRow]:
        """The jobs that were not over before a round: published later, or not published yet."""
        is_over = jobs.c.published_round.is_not(None) & (jobs.c.published_round < after_round)
        query = select_rows(JobRow, jobs).where(jobs.c.campaign_id == campaign, ~is_over).order_by(jobs.c.input_round)
        return self.read_rows(JobRow, query)

    def read_events(self, campaign: int, from_round: int) -> list[tuple[int, str]]:
        """(round, kind) of the events from a round on."""
        query = select(events.c.round, events.c.kind).where(events.c.campaign_id == campaign)
        query = query.where(events.c.round >= from_round).order_by(events.c.number)
        return [(row.round, row.kind) for row in self.connection.execute(query)]

    def read_estimation_rounds(self, campaign: int) -> list[int]:
        """The rounds after which an estimate took effect; twice if one by a job and one made inline did so."""
        query = select(models.c.round).where(models.c.campaign_id == campaign, models.c.kind == "estimation")
        return list(self.connection.execute(query).scalars())
