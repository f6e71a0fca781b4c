"""The stored log of every campaign, read directly from the database."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.storage.store import Store
from service.storage.tables import campaigns, config_revisions, decisions, jobs, live, rewards


class Log(NamedTuple):
    """The stored rows of one campaign. Decisions and rewards are keyed by decision id."""

    live: Mapping[str, Any]
    decisions: dict[str, Mapping[str, Any]]  # by round
    rewards: dict[str, Mapping[str, Any]]  # by arrival
    revisions: list[Mapping[str, Any]]
    repeated: list[str]  # rows that exist more than once
    gaps: list[str]  # numbers that are missing or beyond the live row's (R1)


def read_logs(database_url: str) -> dict[str, Log]:
    """Read all campaigns by name in one transaction."""
    with closing(Store(database_url)) as store, store.reading() as tx:
        rows = tx.connection.execute(sa.select(campaigns.c.name, campaigns.c.id)).all()
        return {name: _read_log(tx.connection, campaign_id) for name, campaign_id in rows}


def read_open_jobs(store: Store) -> set[tuple[int, int, str]]:
    """Re-estimations that somebody has leased and not finished: campaign id, input round, owner."""
    query = sa.select(jobs.c.campaign_id, jobs.c.input_round, jobs.c.owner).where(jobs.c.status == "waiting")
    with store.reading() as tx:
        return {(campaign, round, owner) for campaign, round, owner in tx.connection.execute(query)}


def _read_log(connection: sa.Connection, campaign_id: int) -> Log:
    def select(query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return [dict(row) for row in connection.execute(query).mappings()]

    is_rewarded = (decisions.c.campaign_id == rewards.c.campaign_id) & (decisions.c.round == rewards.c.round)
    decided = select(sa.select(decisions).where(decisions.c.campaign_id == campaign_id).order_by(decisions.c.round))
    rewarded = select(
        sa.select(rewards, decisions.c.decision_id)
        .join_from(rewards, decisions, is_rewarded, isouter=True)
        .where(rewards.c.campaign_id == campaign_id)
        .order_by(rewards.c.arrival)
    )
    revisions = sa.select(config_revisions).where(config_revisions.c.campaign_id == campaign_id)
    (live_row,) = select(sa.select(live).where(live.c.campaign_id == campaign_id))
    return Log(
        live_row,
        {row["decision_id"]: row | json.loads(row["explanation"]) for row in decided},
        {row["decision_id"]: row for row in rewarded if row["decision_id"] is not None},  # else the decision is lost
        select(revisions.order_by(config_revisions.c.revision)),
        [
            f"{kind} of {name!r} exists {times} times"
            for kind, rows in (("decision", decided), ("reward", rewarded))
            for name, times in Counter(row["decision_id"] for row in rows).items()
            if times > 1 and name is not None
        ],
        [
            *_find_gaps("round", [row["round"] for row in decided], live_row["round"]),
            *_find_gaps("arrival", [row["arrival"] for row in rewarded], live_row["arrived"]),
        ],
    )


def _find_gaps(what: str, numbers: list[int], last: int) -> list[str]:
    """Each of 1…last must occur once, and nothing else."""
    times = Counter(numbers)
    return [
        *(f"{what} {number} is missing" for number in range(1, last + 1) if not times[number]),
        *(f"{what} {number} is repeated" for number in sorted(times) if times[number] > 1),
        *(f"{what} {number} is after the last one" for number in sorted(times) if not 1 <= number <= last),
    ]
