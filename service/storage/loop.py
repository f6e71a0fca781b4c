"""The database from the event loop: what a gather reads, and the write that confirms its result.

On PostgreSQL that write is one statement, with asyncpg. Other work, in threads and commands, goes through SQLAlchemy.
Its asyncio extension would take longer than the statements themselves: a greenlet for each wait, and a task for each
connection that goes back to its pool.
"""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import asyncpg
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from service.storage.engines import BUSY_SECONDS, DATABASE_ERRORS, PREPARE_SESSION, SILENCE_SECONDS, Health
from service.storage.rows import WRITTEN, DecisionRow, KnownDecision, KnownReward, LiveRow, RewardRow
from service.storage.statements import Statement, compile_statement, compile_statements, write_unchanged
from service.storage.transaction import LoopTransaction, Transaction

POOL_SIZE = 4  # more than gathers are under way, so that none waits for a connection
# What a URL may say to libpq that asyncpg would take for a setting of the server.
ONLY_LIBPQ = (
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
    "gssencmode", "channel_binding",
)  # fmt: skip
PARAMETERS = {kind: [f"{table}_{name}" for name in kind._fields] for kind, table in WRITTEN.items()}
Added = TypeVar("Added", DecisionRow, RewardRow)


class News(NamedTuple):
    """What other workers have added to a campaign: rounds and arrivals, each after one number and until another."""

    campaign_id: int
    rounds: tuple[int, int]
    arrivals: tuple[int, int]


class LoopPool:
    """The event loop's connections."""

    def __init__(self, url: str, health: Health) -> None:
        compiler = sa.create_engine("postgresql+asyncpg://")  # never connects
        self._statements = compile_statements(compiler)
        self._compile_writing = cache(lambda kinds: compile_statement(compiler, write_unchanged(kinds)))
        address = make_url(url).set(drivername="postgresql").difference_update_query(ONLY_LIBPQ)
        self._dsn = address.render_as_string(hide_password=False)  # asyncpg reads it as libpq does
        self._health = health
        self._pool: Any = None

    async def open(self) -> None:
        """Create the pool. Connections are opened when they are needed."""
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=POOL_SIZE,
            max_inactive_connection_lifetime=0,
            timeout=BUSY_SECONDS,
            command_timeout=SILENCE_SECONDS,
            server_settings={"application_name": "undercurrent"},
            init=self._prepare,
            reset=_keep_session,
        )

    async def _prepare(self, connection: Any) -> None:
        row = await connection.fetchrow(PREPARE_SESSION)
        self._health.note_server(row[-1])
        connection.add_termination_listener(self._note_end)

    def _note_end(self, _: Any) -> None:
        """If the server has ended this connection, then perhaps others too: they are tested before their next use."""
        self._health.failed_at = time.monotonic()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["LoopConnection"]:
        """A connection. After a failure all are replaced: a new one may lead to another server, or other settings."""
        try:
            async with self._pool.acquire() as connection:
                yield LoopConnection(connection, self._statements, self._compile_writing)
        except DATABASE_ERRORS:
            await self._pool.expire_connections()
            raise

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


async def _keep_session(connection: Any) -> None:
    """Nothing to reset: each statement is a transaction of its own, and sessions keep their settings."""


class LoopConnection:
    """A connection while one gather uses it."""

    def __init__(self, connection: Any, statements: Mapping[str, Statement], compile_writing: Any) -> None:
        self._connection, self._statements, self._compile_writing = connection, statements, compile_writing

    async def _fetch(self, statement: Statement, parameters: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
        rows: Iterable[Any] = await self._connection.fetch(
            statement.sql, *[parameters[name] for name in statement.order]
        )
        return rows

    async def _query(self, name: str, **parameters: Sequence[Any]) -> Iterable[Any]:
        return await self._fetch(self._statements[name], parameters)

    async def read_campaigns(self, names: Collection[str]) -> dict[str, LiveRow]:
        """The campaigns of these names that exist, without a lock on them."""
        rows = await self._query("read", given=[name for name in names if "\x00" not in name])
        return {row.name: row for row in map(LiveRow._make, rows)}

    async def get_known_decisions(self, wanted: Sequence[tuple[int, str]]) -> list[KnownDecision]:
        """The decisions with these campaigns and ids, as far as there are any."""
        campaigns, ids = zip(*wanted, strict=True)
        rows = await self._query("known decisions", campaign_id=campaigns, decision_id=ids)
        return [KnownDecision._make(row) for row in rows]

    async def get_known_rewards(self, wanted: Sequence[tuple[int, str, str]]) -> list[KnownReward]:
        """The rewards with these campaigns, decision ids and reward ids, as far as there are any."""
        campaigns, ids, reward_ids = zip(*wanted, strict=True)
        rows = await self._query("known rewards", campaign_id=campaigns, decision_id=ids, reward_id=reward_ids)
        return [KnownReward._make(row) for row in rows]

    async def begin(self, news: Sequence[News]) -> LoopTransaction:
        """Read what other workers have added; return the transaction in which it can be folded."""
        decisions: dict[int, list[DecisionRow]] = {}
        rewards: dict[int, list[RewardRow]] = {}
        if news:
            decisions = await self._read_new("new decisions", DecisionRow, [(n.campaign_id, *n.rounds) for n in news])
            rewards = await self._read_new("new rewards", RewardRow, [(n.campaign_id, *n.arrivals) for n in news])
        return LoopTransaction(self._statements, decisions, rewards)

    async def _read_new(
        self, name: str, kind: type[Added], bounds: Sequence[tuple[int, int, int]]
    ) -> dict[int, list[Added]]:
        campaigns, after, until = zip(*bounds, strict=True)
        added: dict[int, list[Added]] = defaultdict(list)
        for row in await self._query(name, campaign_id=campaigns, after=after, until=until):
            added[row["campaign_id"]].append(kind._make(row))
        return added

    async def write(self, transaction: Transaction) -> set[int]:
        """Write everything that waits; return the ids of the campaigns that nobody held or had changed."""
        waiting = transaction.take_waiting()
        if not waiting.updated:
            return set()
        columns = {f"live_{name}": values for name, values in waiting.get_live_columns().items()}
        for kind, rows in waiting.appended.items():
            columns |= zip(PARAMETERS[kind], zip(*rows, strict=True), strict=True)
        kinds = tuple(kind for kind in WRITTEN if kind in waiting.appended)
        return {campaign for (campaign,) in await self._fetch(self._compile_writing(kinds), columns)}


class EmbeddedConnection:
    """The same for SQLite, whose only writer is on the event loop: its transaction waits for nothing."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def read_campaigns(self, names: Collection[str]) -> dict[str, LiveRow]:
        return self._transaction.lock_campaigns(names)

    async def get_known_decisions(self, wanted: Sequence[tuple[int, str]]) -> list[KnownDecision]:
        return self._transaction.get_known_decisions(wanted)

    async def get_known_rewards(self, wanted: Sequence[tuple[int, str, str]]) -> list[KnownReward]:
        return self._transaction.get_known_rewards(wanted)

    async def begin(self, _: Sequence[News]) -> Transaction:
        """Return the transaction, which reads what is new when it is folded."""
        return self._transaction

    async def write(self, transaction: Transaction) -> set[int]:
        return transaction.write_unchanged()
