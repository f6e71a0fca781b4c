"""One transaction: the statements of the write path, and the log as the fold reads it.

The other queries are functions of a transaction in the module of their subject: campaigns, models, snapshots, jobs,
events, keys, erasure, audit, and reading (the log for people and files).

What is appended waits in memory until the commit, or until a query needs it, and then takes one statement a table for
all campaigns (statements.py, channels.py).
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.engine import Connection

from service.base.errors import UnavailableError
from service.storage.channels import Channel, Rows, SQLiteChannel
from service.storage.rows import (
    WRITTEN,
    AppendedRow,
    DecisionRow,
    JobRow,
    KnownDecision,
    KnownReward,
    LiveRow,
    Replacement,
    RevisionRow,
    RewardRow,
    select_rows,
)
from service.storage.statements import PAGE, Statement
from service.storage.tables import config_revisions, events, jobs, models

LONGEST_LIST = 10_000  # ids looked up at a time
Read = TypeVar("Read", bound=NamedTuple)


class Transaction:
    """One transaction on one connection, which has begun."""

    def __init__(self, channel: Channel, statements: Mapping[str, Statement]) -> None:
        self.embedded = isinstance(channel, SQLiteChannel)
        self._channel, self._statements = channel, statements
        self._appended: dict[type[AppendedRow | Replacement], list[Any]] = {}
        self._updated: list[Update] = []

    def flush(self) -> None:
        """Send everything that waits."""
        if self._appended or self._updated:
            self._send(self.take_waiting())

    def take_waiting(self) -> "Waiting":
        """Take what waits to be written."""
        waiting = Waiting(self._appended, self._updated)
        self._appended, self._updated = {}, []
        return waiting

    def _send(self, waiting: "Waiting") -> None:
        for kind, name in WRITTEN.items():  # in the order that foreign keys need
            if rows := waiting.appended.get(kind):
                sql, order = self._statements[name]
                in_order = [[getattr(row, name) for name in order] for row in rows] if kind is Replacement else rows
                self._channel.write(sql, in_order)
        if waiting.updated:
            sql, order = self._statements["live"]
            columns = waiting.get_live_columns()
            rows = list(zip(*(columns[name] for name in order), strict=True))
            if self._channel.write(sql, rows) != len(rows):  # impossible under the lock
                raise ChangedError

    def close(self) -> None:
        self._channel.close()

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, for every statement that is not of the write path."""
        self.flush()
        return self._channel.connection

    def read_rows(self, kind: type[Read], query: sa.Select[Any]) -> list[Read]:
        """The rows of a query with the columns of their type."""
        return [kind._make(row) for row in self.connection.execute(query)]

    # --- the write path ----------------------------------------------------------------------------------------

    def _query(self, name: str, **parameters: Any) -> Rows:
        self.flush()
        sql, order = self._statements[name]
        return self._channel.query(sql, [parameters[parameter] for parameter in order])

    def lock_campaigns(self, names: Collection[str]) -> dict[str, LiveRow]:
        """Lock the campaigns of these names that exist, until the transaction ends.

        SQLite's transaction is itself the lock.
        """
        # PostgreSQL's text cannot hold a zero byte, so there is no such campaign.
        given: Any = [name for name in names if "\x00" not in name]
        rows = self._query("lock", given=json.dumps(given) if self.embedded else given)
        return {row.name: row for row in map(LiveRow._make, rows)}

    def get_known_decisions(self, wanted: Sequence[tuple[int, str]]) -> list[KnownDecision]:
        """The decisions with these campaigns and ids, as far as there are any."""
        decisions: list[KnownDecision] = []
        for start in range(0, len(wanted), LONGEST_LIST):
            part = wanted[start : start + LONGEST_LIST]
            if self.embedded:
                rows = self._query("known decisions", given=json.dumps(part))
            else:
                campaigns, ids = map(list, zip(*part, strict=True))
                rows = self._query("known decisions", campaign_id=campaigns, decision_id=ids)
            decisions += map(KnownDecision._make, rows)
        return decisions

    def get_known_rewards(self, wanted: Sequence[tuple[int, str, str]]) -> list[KnownReward]:
        """The rewards with these campaigns, decision ids and reward ids, as far as there are any."""
        rewards: list[KnownReward] = []
        for start in range(0, len(wanted), LONGEST_LIST):
            part = wanted[start : start + LONGEST_LIST]
            if self.embedded:
                rows = self._query("known rewards", given=json.dumps(part))
            else:
                campaigns, ids, reward_ids = map(list, zip(*part, strict=True))
                rows = self._query("known rewards", campaign_id=campaigns, decision_id=ids, reward_id=reward_ids)
            rewards += map(KnownReward._make, rows)
        return rewards

    def get_newest_job(self, campaign: int) -> JobRow | None:
        rows = self._query("newest job", campaign=campaign)
        return JobRow._make(rows[0]) if rows else None

    def get_last_round(self, campaign: int, until: int) -> int:
        """The last round decided by that time (microseconds), 0 if there is none."""
        ((last,),) = self._query("last round", campaign=campaign, until=until)
        return int(last or 0)

    def append(self, rows: Sequence[AppendedRow] | Sequence[Replacement]) -> None:
        """Append rows, all to one table; or note which rewards they replace."""
        if rows:
            self._appended.setdefault(type(rows[0]), []).extend(rows)

    def update_live_row(self, before: LiveRow, after: LiveRow) -> None:
        """Replace the campaign's live row."""
        self._updated.append(Update(before.version, after))

    def write_unchanged(self) -> set[int]:
        """Write what waits in SQLite's transaction, which has written nothing yet; return the campaigns' ids.

        Campaigns that another process has changed, or that have one of the new decision ids, are left out. That is
        rare, so only the database's refusal of a row makes this look which they are.
        """
        waiting = self.take_waiting()
        try:
            self._send(waiting)
        except (ChangedError, sqlite3.IntegrityError):
            for statement in ("ROLLBACK", "BEGIN IMMEDIATE"):
                self._channel.query(statement, ())
            waiting = waiting.select(self._find_unchanged(waiting))
            self._send(waiting)
        return {after.campaign_id for _, after in waiting.updated}

    def _find_unchanged(self, waiting: "Waiting") -> set[int]:
        rows = self.lock_campaigns([after.name for _, after in waiting.updated])
        versions = {row.campaign_id: row.version for row in rows.values()}
        ids = [(row.campaign_id, row.decision_id) for row in waiting.appended.get(DecisionRow, ())]
        repeating = {decision.campaign_id for decision in self.get_known_decisions(ids)}
        updates = (update for update in waiting.updated if versions.get(update.after.campaign_id) == update.before)
        return {update.after.campaign_id for update in updates} - repeating

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


class Update(NamedTuple):
    """A live row, and the version that it replaces."""

    before: int
    after: LiveRow


class Waiting(NamedTuple):
    """What is to be written: rows to append, by kind, and live rows."""

    appended: Mapping[type[AppendedRow | Replacement], Sequence[Any]]
    updated: Sequence[Update]

    def select(self, campaigns: Collection[int]) -> "Waiting":
        """Only what is of these campaigns."""
        return Waiting(
            {kind: [row for row in rows if row.campaign_id in campaigns] for kind, rows in self.appended.items()},
            [update for update in self.updated if update.after.campaign_id in campaigns],
        )

    def get_live_columns(self) -> dict[str, Sequence[Any]]:
        """The live rows as columns."""
        before, after = zip(*self.updated, strict=True)
        return dict(zip((*LiveRow._fields, "before"), (*zip(*after, strict=True), before), strict=True))


class ChangedError(UnavailableError):
    """A campaign's live row is not the one that its update was worked out from."""

    def __init__(self) -> None:
        super().__init__("A campaign was changed by another worker; try again")


class LongWorkError(Exception):
    """The event loop must not do this: it would take more than a few milliseconds, or wait for the database."""


class _NoChannel:
    """What the event loop's work needs of the database was read before it began. A query needs a thread."""

    @property
    def connection(self) -> Connection:
        raise LongWorkError

    def query(self, sql: str, values: Sequence[Any]) -> Rows:
        raise LongWorkError

    def write(self, sql: str, rows: Rows) -> int:
        raise LongWorkError

    def close(self) -> None:
        """Nothing is held."""


class LoopTransaction(Transaction):
    """The work of PostgreSQL's event loop, which LoopConnection writes with a single statement.

    `decisions` and `rewards` are what other workers have added to the log, by campaign.
    """

    def __init__(
        self,
        statements: Mapping[str, Statement],
        decisions: Mapping[int, Sequence[DecisionRow]],
        rewards: Mapping[int, Sequence[RewardRow]],
    ) -> None:
        super().__init__(_NoChannel(), statements)
        self._decisions, self._rewards = decisions, rewards

    def flush(self) -> None:
        """Nothing is sent before the end."""

    def read_decisions(self, campaign: int, after_round: int) -> Iterator[DecisionRow]:
        return iter(self._decisions.get(campaign, ()))

    def read_rewards(self, campaign: int, after_arrival: int) -> Iterator[RewardRow]:
        return iter(self._rewards.get(campaign, ()))
