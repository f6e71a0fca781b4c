"""The statements of the write path: written once with SQLAlchemy, compiled once for each driver.

PostgreSQL's take arrays, so that their number does not grow with the campaigns of a transaction. SQLite's take lists as
JSON, or one row at a time: it has no network to wait for.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Engine

from service.storage.rows import (
    APPENDED,
    AppendedRow,
    DecisionRow,
    JobRow,
    KnownDecision,
    KnownReward,
    LiveRow,
    Replacement,
    RewardRow,
    select_rows,
)
from service.storage.tables import campaigns, decisions, jobs, live, rewards

PAGE = 5_000  # rows of the log read at a time
LIVE_COLUMNS = tuple(column.name for column in live.c if column.name != "campaign_id")
# Those that every transaction on a campaign writes; the others have statements of their own.
UPDATED_COLUMNS = tuple(name for name in LIVE_COLUMNS if name not in ("snapshot_round", "reduced"))
LIVE_ROWS = select_rows(LiveRow, live, campaigns).join_from(campaigns, live)
DECISIONS_WITH_REWARDS = decisions.outerjoin(
    rewards,
    (rewards.c.campaign_id == decisions.c.campaign_id)
    & (rewards.c.round == decisions.c.round)
    & (rewards.c.replaced_by == sa.literal_column("0", sa.BigInteger)),  # not a parameter of the statements
)


BEFORE = sa.column("before", sa.BigInteger)  # the version of a live row before its update
AFTER = [live.c.campaign_id, *(live.c[name] for name in UPDATED_COLUMNS), BEFORE]


class Statement(NamedTuple):
    """A statement as the driver takes it, and the order of its parameters."""

    sql: str
    order: Sequence[str]


def _unnest(columns: Iterable[sa.ColumnClause[Any]], prefix: str = "") -> Any:
    """Arrays as rows, one parameter for each column. The length of a text is checked where it is stored."""
    named = {column.name: column.type for column in columns}
    arrays = [
        bindparam(f"{prefix}{name}", type_=postgresql.ARRAY(sa.Text() if isinstance(kind, sa.String) else kind))
        for name, kind in named.items()
    ]
    values = sa.func.unnest(*arrays).table_valued(*(sa.column(name, kind) for name, kind in named.items()))
    return values.render_derived(name="given")


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


def _select_common(campaign: sa.BindParameter[int]) -> dict[str, sa.ClauseElement]:
    newest = select(sa.func.max(jobs.c.input_round)).where(jobs.c.campaign_id == campaign).scalar_subquery()
    return {
        "newest job": select_rows(JobRow, jobs).where(jobs.c.campaign_id == campaign, jobs.c.input_round == newest),
        "last round": _select_last_round(campaign),
        "decision page": _select_page(select_rows(DecisionRow, decisions), decisions, decisions.c.round),
        "reward page": _select_page(select_rows(RewardRow, rewards), rewards, rewards.c.arrival),
    }


def _select_known(wanted: sa.FromClause) -> sa.Select[Any]:
    """Select the decisions with the wanted campaigns and ids."""
    is_wanted = (decisions.c.campaign_id == wanted.c.campaign_id) & (decisions.c.decision_id == wanted.c.decision_id)
    return select_rows(KnownDecision, decisions, rewards).select_from(wanted.join(DECISIONS_WITH_REWARDS, is_wanted))


def _select_known_rewards(wanted: sa.FromClause) -> sa.Select[Any]:
    """Select the rewards of the wanted campaigns, decision ids and reward ids."""
    decision = (decisions.c.campaign_id == wanted.c.campaign_id) & (decisions.c.decision_id == wanted.c.decision_id)
    reward = (
        (rewards.c.campaign_id == wanted.c.campaign_id)
        & (rewards.c.reward_id == wanted.c.reward_id)
        & (rewards.c.round == decisions.c.round)
    )
    return select_rows(KnownReward, rewards).select_from(wanted.join(decisions, decision).join(rewards, reward))


def _write_for_sqlite() -> Mapping[str, sa.ClauseElement]:
    given = sa.func.json_each(bindparam("given")).table_valued("value").c.value
    names = ("campaign_id", "decision_id", "reward_id")
    columns = [sa.func.json_extract(given, sa.literal_column(f"'$[{i}]'")).label(name) for i, name in enumerate(names)]
    wanted, identified = select(*columns[:2]).subquery(), select(*columns).subquery()
    return {
        "lock": LIVE_ROWS.where(campaigns.c.name.in_(select(given))),
        "known decisions": _select_known(wanted),
        "known rewards": _select_known_rewards(identified),
        "live": update(live)
        .where(live.c.campaign_id == bindparam("campaign_id"), live.c.version == bindparam("before"))
        .values({name: bindparam(name) for name in UPDATED_COLUMNS}),
        "replaced": _replace_rewards(*(bindparam(name) for name in Replacement._fields)),
    } | {table.name: insert(table) for table in APPENDED.values()}


def _write_for_postgresql() -> Mapping[str, sa.ClauseElement]:
    names = bindparam("given", type_=postgresql.ARRAY(sa.Text))
    named = LIVE_ROWS.where(campaigns.c.name == sa.any_(names)).order_by(live.c.campaign_id)
    after = _unnest(AFTER)
    return {
        **{table.name: _insert(kind, _unnest(table.c)) for kind, table in APPENDED.items()},
        "read": named,
        # What has waited for a lock must also lock what it has joined, or it would see that as it was before the wait.
        "lock": named.with_for_update(of=[live, campaigns]),
        "known decisions": _select_known(_unnest([decisions.c.campaign_id, decisions.c.decision_id])),
        "known rewards": _select_known_rewards(
            _unnest([decisions.c.campaign_id, decisions.c.decision_id, rewards.c.reward_id])
        ),
        "new decisions": _select_new(DecisionRow, decisions, decisions.c.round),
        "new rewards": _select_new(RewardRow, rewards, rewards.c.arrival),
        "live": _update_live(after, live.c.version == after.c.before),
        "replaced": _replace_rewards(*_unnest_replacements().c),
    }


def _select_new(kind: type[AppendedRow], table: sa.Table, counter: sa.Column[int]) -> sa.Select[Any]:
    """Select the rows of several campaigns between two values of a counter each."""
    bounds = (sa.column(name, sa.BigInteger) for name in ("campaign_id", "after", "until"))
    given = _unnest(bounds)
    is_new = (table.c.campaign_id == given.c.campaign_id) & (counter > given.c.after) & (counter <= given.c.until)
    return select_rows(kind, table).join_from(given, table, is_new).order_by(table.c.campaign_id, counter)


def _update_live(after: Any, condition: sa.ColumnElement[bool]) -> sa.Update:
    own = live.c.campaign_id == after.c.campaign_id
    return update(live).where(own, condition).values({name: after.c[name] for name in UPDATED_COLUMNS})


def _unnest_replacements(prefix: str = "") -> Any:
    return _unnest((sa.column(name, sa.BigInteger) for name in Replacement._fields), prefix)


def _replace_rewards(campaign: Any, round: Any, arrival: Any) -> sa.Update:
    """Let arrivals take the place of the rewards in force of their rounds."""
    is_in_force = rewards.c.replaced_by == sa.literal_column("0", sa.BigInteger)
    own = (rewards.c.campaign_id == campaign) & (rewards.c.round == round)
    return update(rewards).where(own, is_in_force).values(replaced_by=arrival)


def _insert(kind: type[AppendedRow], rows: Any, *conditions: sa.ColumnElement[bool]) -> sa.Insert:
    return insert(APPENDED[kind]).from_select(kind._fields, select(rows).where(*conditions))


def write_unchanged(kinds: Sequence[type[AppendedRow | Replacement]]) -> sa.Select[Any]:
    """Append rows of these kinds and update live rows, of the campaigns that nobody has changed and nobody holds.

    A campaign that already has one of the new decision ids is left out too: its request may be a repeated one. One
    statement, which is a transaction of its own. It returns the ids of the campaigns that were written.
    """
    before = _unnest([live.c.campaign_id, BEFORE], "live_")
    unchanged = (
        select(live.c.campaign_id)
        .join_from(live, before, (before.c.campaign_id == live.c.campaign_id) & (before.c.before == live.c.version))
        .order_by(live.c.campaign_id)
        .with_for_update(of=live, skip_locked=True)
    )
    if DecisionRow in kinds:
        new = _unnest([decisions.c.campaign_id, decisions.c.decision_id], "decisions_")
        is_known = (decisions.c.campaign_id == new.c.campaign_id) & (decisions.c.decision_id == new.c.decision_id)
        repeating = select(decisions.c.campaign_id).join_from(new, decisions, is_known)
        unchanged = unchanged.where(live.c.campaign_id.not_in(repeating))
    free = unchanged.cte("free")
    after, is_free = _unnest(AFTER, "live_"), select(free.c.campaign_id)
    changes = [_update_live(after, after.c.campaign_id.in_(is_free)).cte("changed")]
    is_replaced: list[sa.ColumnElement[bool]] = []  # what has been replaced must be counted before rewards are inserted
    if Replacement in kinds:
        given = _unnest_replacements("replaced_")
        replacing = _replace_rewards(*given.c).where(given.c.campaign_id.in_(is_free)).returning(rewards.c.arrival)
        replaced = replacing.cte("replaced")
        is_replaced = [select(sa.func.count()).select_from(replaced).scalar_subquery() >= sa.literal_column("0")]
    for kind, table in APPENDED.items():
        if kind in kinds:
            rows = _unnest(table.c, f"{table.name}_")
            conditions = [rows.c.campaign_id.in_(is_free), *(is_replaced if kind is RewardRow else ())]
            changes.append(_insert(kind, rows, *conditions).cte(f"new_{table.name}"))
    return select(free.c.campaign_id).add_cte(*changes)


def compile_statements(engine: Engine) -> dict[str, Statement]:
    """Compile the statements for an engine, by name; those that append rows and `live` are named after their table."""
    embedded = engine.dialect.name == "sqlite"
    statements = {
        **_select_common(bindparam("campaign")),
        **(_write_for_sqlite() if embedded else _write_for_postgresql()),
    }
    compiled = {}
    for name, statement in statements.items():
        columns = [list(kind._fields) for kind, table in APPENDED.items() if embedded and table.name == name]
        compiled[name] = compile_statement(engine, statement, columns[0] if columns else None)
    return compiled


def compile_statement(engine: Engine, statement: sa.ClauseElement, columns: list[str] | None = None) -> Statement:
    result = statement.compile(engine, column_keys=columns)
    return Statement(str(result), result.positiontup)  # type: ignore[attr-defined]
