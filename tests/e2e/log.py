"""The log as it is stored, read beside the service."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.storage.store import Store
from service.storage.tables import campaigns, config_revisions, decisions, jobs, live, rewards

__all__ = ["Log", "read_logs", "read_open_jobs"]


class Log(NamedTuple):
    """What is stored of one campaign: decisions and rewards by decision id, each in their order, and its changes."""

    live: Mapping[str, Any]
    decisions: dict[str, Mapping[str, Any]]
    rewards: dict[str, Mapping[str, Any]]
    revisions: list[Mapping[str, Any]]
    repeated: list[str]  # what is there more than once
    gaps: list[str]  # where counting 1, 2, … fails (R1), or the live row stands elsewhere than at the end


def read_logs(database_url: str, strict: bool = True) -> dict[str, Log]:
    """Every campaign by name, all at one moment; nothing may be out of order, unless the caller looks by itself."""
    store = Store(database_url)
    with store.reading() as tx:
        numbers = tx.connection.execute(sa.select(campaigns.c.name, campaigns.c.id)).all()
        logs = {name: _log(tx.connection, number) for name, number in numbers}
    store.close()
    if strict:
        for log in logs.values():
            assert log.repeated == log.gaps == []
    return logs


def read_open_jobs(store: Store) -> set[tuple[int, int, str]]:
    """Re-estimations that someone is at, or has died at: campaign, input round and who has the lease."""
    query = sa.select(jobs.c.campaign_id, jobs.c.input_round, jobs.c.owner).where(jobs.c.status == "waiting")
    with store.reading() as tx:
        return {(campaign, round, owner) for campaign, round, owner in tx.connection.execute(query)}


def _log(connection: sa.Connection, campaign: int) -> Log:
    def rows(query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return [dict(row) for row in connection.execute(query).mappings()]

    its_decision = (decisions.c.campaign_id == rewards.c.campaign_id) & (decisions.c.round == rewards.c.round)
    made = rows(sa.select(decisions).where(decisions.c.campaign_id == campaign).order_by(decisions.c.round))
    paid = sa.select(rewards, decisions.c.decision_id).join_from(rewards, decisions, its_decision, isouter=True)
    paid = rows(paid.where(rewards.c.campaign_id == campaign).order_by(rewards.c.arrival))
    changes = config_revisions.c
    revised = sa.select(config_revisions).where(changes.campaign_id == campaign).order_by(changes.revision)
    (standing,) = rows(sa.select(live).where(live.c.campaign_id == campaign))
    return Log(
        standing,
        {row["decision_id"]: row | json.loads(row["explanation"]) for row in made},
        {row["decision_id"]: row for row in paid if row["decision_id"] is not None},  # a lost decision is told of there
        rows(revised),
        [
            f"{what} of {name!r} is there {times} times"
            for what, kind in (("decision", made), ("reward", paid))
            for name, times in Counter(row["decision_id"] for row in kind).items()
            if times > 1 and name is not None
        ],
        [
            f"{what} {number} is {'repeated' if times else 'missing' if number <= last else 'after the last one'}"
            for what, last, kind in (("round", standing["round"], made), ("arrival", standing["arrived"], paid))
            for number, times in _miscounted([row[what] for row in kind], last)
        ],
    )


def _miscounted(numbers: list[int], last: int) -> list[tuple[int, int]]:
    """Numbers that are not there exactly once among 1…last: how often too many, 0 for missing or beyond."""
    if numbers == list(range(1, last + 1)):
        return []
    times = Counter(numbers)
    wanted = [*range(1, last + 1), *(number for number in sorted(times) if not 1 <= number <= last)]
    return [(number, max(0, times[number] - 1)) for number in wanted if times[number] != (1 <= number <= last)]
