"""Every query and every write of the service, inside one transaction; what the two databases do not share is in here.

The hot path hands its statements (statements.py) to the driver itself: a gathered transaction has five of them, and the
layers between would cost more than the work.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from service.base.errors import UnavailableError
from service.storage.rows import (
    APPENDED,
    ClaimedJob,
    DecisionRow,
    JobRow,
    KeyRow,
    KnownDecision,
    LiveRow,
    NewModel,
    NewRevision,
    NewRow,
    RevisionRow,
    RewardRow,
    Row,
)
from service.storage.statements import LIVE, MOVED, PAGE, REWARDED, STANDING, Cursor, Query, Statement, Talk
from service.storage.tables import (
    campaigns,
    config_revisions,
    decisions,
    events,
    id_blocks,
    jobs,
    keys,
    live,
    models,
    rewards,
    snapshots,
)

__all__ = ["Seen", "Transaction"]

LONGEST_LIST = 10_000  # rounds looked up at a time
MOST_SEEN = 2_000  # live rows that SQLite's writer remembers
# What goes when a request is not kept: who it was about, and the hash by which it could be guessed.
REDUCED: dict[str, Any] = {"request_hash": None, "subject": None}
NOTHING = '{"belief":[],"scores":[]}'  # explained


class Seen:
    """Live rows as SQLite's one writer left them: good as long as no other connection has written anything."""

    __slots__ = ("rows", "version")

    def __init__(self) -> None:
        self.rows: dict[str, LiveRow] = {}
        self.version = -1  # SQLite's own, which changes with every commit of others

    def forget(self) -> None:
        self.rows.clear()


class Transaction:
    """What can be asked and said inside one transaction; `seen` is what SQLite's writer knows."""

    def __init__(
        self,
        connection: Connection,
        statements: Mapping[str, Statement],
        seen: Seen | None,
        talk: Talk | None = None,
    ) -> None:
        self._connection = connection
        self._talk: Talk = talk or Cursor(connection)
        self._statements = statements
        self._seen = seen
        self._embedded = seen is not None
        self._moved: dict[str, LiveRow] = {}
        self._begun: sa.RootTransaction | None = None  # SQLAlchemy's side of it
        self._ahead: list[tuple[Query, list[tuple[Any, ...]]]] = []  # answers that nobody has asked for yet

    def begin(self) -> None:
        """Begin to write. SQLAlchemy is told only if it is needed: it would take as long as a decision."""
        self._talk.begin()

    def commit(self) -> None:
        """Commit; it fails if anything has ended the transaction before."""
        if self._begun is None:
            self._talk.commit()
            if self._seen is not None:
                self._seen.rows.update(self._moved)
            return
        self._talk.settle()
        self._begun.commit()
        if self._seen is not None:
            self._seen.forget()  # it may have changed any row

    def roll_back(self) -> None:
        """Undo everything."""
        if self._seen is not None:
            self._seen.forget()
        if self._begun is None:
            self._talk.roll_back()
        else:
            self._begun.rollback()

    def close(self) -> None:
        self._talk.close()

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's, for all that is not hot, and for the schema's tools."""
        self._talk.settle()
        self._ahead.clear()
        if self._begun is None and not self._connection.in_transaction():
            self._begun = self._connection.begin()
        return self._connection

    # --- the hot path ------------------------------------------------------------------------------------------

    def _list(self, items: Iterable[str | int]) -> Any:
        return json.dumps(list(items)) if self._embedded else list(items)

    def _hot(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        for place, (query, rows) in enumerate(self._ahead):
            if query == (statement, parameters):
                del self._ahead[place]
                return rows
        (rows,) = self._talk.ask([self._compiled(Query(statement, parameters))])
        return rows

    def _compiled(self, query: Query) -> tuple[str, Sequence[Any]]:
        sql, order = self._statements[query.statement]
        return sql, [query.parameters[name] for name in order]

    def _tell(self, statement: str, rows: Sequence[Sequence[Any]]) -> int | None:
        """Write something; what was answered ahead is no answer after that."""
        self._ahead.clear()
        return self._talk.tell(self._statements[statement].sql, rows)

    def lock(self, names: Collection[str], ahead: Iterable[Query] = ()) -> dict[str, LiveRow]:
        """The campaigns of these names that exist; nobody else moves them before this transaction ends.

        `ahead` is what will probably be asked next. PostgreSQL gets it along: a wait costs as much as a statement.
        """
        if self._seen is not None:
            return self._locked(self._seen, names)
        queries = [Query("lock", {"names": self._list(names)}), *ahead]
        rows, *answers = self._talk.ask(map(self._compiled, queries))
        self._ahead = list(zip(queries[1:], answers, strict=True))
        return {row[1]: LiveRow._make(row) for row in rows}

    def _locked(self, seen: Seen, names: Collection[str]) -> dict[str, LiveRow]:
        """On SQLite the transaction itself is the lock; what nobody has changed since need not be read."""
        (((version,),),) = self._talk.ask([("PRAGMA data_version", ())])
        if version != seen.version or self._begun is not None or len(seen.rows) > MOST_SEEN:
            seen.forget()
            seen.version = version
        rows = {name: seen.rows[name] for name in names if name in seen.rows}
        if unseen := [name for name in names if name not in rows]:
            rows |= {row[1]: LiveRow._make(row) for row in self._hot("lock", names=self._list(unseen))}
        return rows

    def known(self, campaign: int, rounds: Sequence[int]) -> dict[str, KnownDecision]:
        """The decisions of these rounds, by their ids."""
        found: dict[str, KnownDecision] = {}
        for start in range(0, len(rounds), LONGEST_LIST):
            part = self._list(rounds[start : start + LONGEST_LIST])
            found |= {row[0]: KnownDecision._make(row) for row in self._hot("known", campaign=campaign, rounds=part)}
        return found

    @staticmethod
    def will_ask(campaign: int, rounds: Sequence[int]) -> Query:
        """For `lock`: the decisions of some rounds."""
        return Query("known", {"campaign": campaign, "rounds": list(rounds[:LONGEST_LIST])})

    def ask_log(self, campaign: int, decisions: tuple[int, int], rewards: tuple[int, int]) -> None:
        """What the fold reads next, each from after one up to the last: asked together, and only if there is any."""
        if self._embedded:
            return
        pages = [
            (Query(statement, {"campaign": campaign, "after": after}), after < last)
            for statement, (after, last) in (("decision page", decisions), ("reward page", rewards))
        ]
        answers = iter(self._talk.ask([self._compiled(query) for query, is_any in pages if is_any]))
        self._ahead += [(query, next(answers) if is_any else []) for query, is_any in pages]

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
            self._tell(APPENDED[type(rows[0])].name, rows)

    def move(self, before: LiveRow, after: LiveRow) -> None:
        """The campaign's live row, as it stands now."""
        values: dict[str, Any] = {f"new_{name}": getattr(after, name) for name in MOVED}
        values |= {"campaign": before.campaign_id, "before": before.version}
        self._moved[after.name] = after
        moved = self._tell("move", [[values[name] for name in self._statements["move"].order]])
        if moved == 0:  # impossible under the lock
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

    def decision(self, campaign: int, round: int) -> Row | None:
        """A decision with its request and its reward."""
        query = (
            select(decisions, rewards.c.reward, rewards.c.source, rewards.c.received_at)
            .select_from(REWARDED)
            .where(decisions.c.campaign_id == campaign, decisions.c.round == round)
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

    def ids_after(self, campaign: int, round: int) -> Iterator[str]:
        """The ids of the decisions after a round, in order."""
        return (name for _, name in self._hot_pages("id page", campaign, round))

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

    def id_blocks(self, campaign: int) -> Iterator[tuple[int, bytes]]:
        """(last round, hashes) of the blocks of ids, in order."""
        query = select(id_blocks.c.last_round, id_blocks.c.hashes).where(id_blocks.c.campaign_id == campaign)
        for row in self.connection.execute(query.order_by(id_blocks.c.last_round)):
            yield row.last_round, bytes(row.hashes)

    def last_in_blocks(self, campaign: int) -> int:
        """The round up to which ids are in blocks."""
        query = select(sa.func.coalesce(sa.func.max(id_blocks.c.last_round), 0))
        return int(self.connection.execute(query.where(id_blocks.c.campaign_id == campaign)).scalar_one())

    def add_id_block(self, campaign: int, last_round: int, hashes: bytes) -> None:
        self.connection.execute(insert(id_blocks).values(campaign_id=campaign, last_round=last_round, hashes=hashes))

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
