"""The log as it is stored, read beside the service."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.store import Store
from service.tables import campaigns, decisions, live, rewards

__all__ = ["Log", "read_logs"]


class Log(NamedTuple):
    """What is stored of one campaign: decisions and rewards by decision id, each in their order."""

    live: Mapping[str, Any]
    decisions: dict[str, Mapping[str, Any]]
    rewards: dict[str, Mapping[str, Any]]


def read_logs(database_url: str) -> dict[str, Log]:
    """Every campaign by name, all at one moment, after checking the order of each."""
    store = Store(database_url)
    with store.reading() as tx:
        numbers = tx.connection.execute(sa.select(campaigns.c.name, campaigns.c.id)).all()
        logs = {name: _log(tx.connection, number) for name, number in numbers}
    store.close()
    for log in logs.values():
        _check_order(log)
    return logs


def _log(connection: sa.Connection, campaign: int) -> Log:
    def rows(query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return [dict(row) for row in connection.execute(query).mappings()]

    its_decision = (decisions.c.campaign_id == rewards.c.campaign_id) & (decisions.c.round == rewards.c.round)
    made = sa.select(decisions).where(decisions.c.campaign_id == campaign).order_by(decisions.c.round)
    paid = sa.select(rewards, decisions.c.decision_id).join_from(rewards, decisions, its_decision)
    paid = paid.where(rewards.c.campaign_id == campaign).order_by(rewards.c.arrival)
    (standing,) = rows(sa.select(live).where(live.c.campaign_id == campaign))
    return Log(
        standing,
        {row["decision_id"]: row | json.loads(row["explanation"]) for row in rows(made)},
        {row["decision_id"]: row for row in rows(paid)},
    )


def _check_order(log: Log) -> None:
    """Rounds and rewards count 1, 2, … without gap or repeat (R1), and the live row stands at their end."""
    assert [row["round"] for row in log.decisions.values()] == list(range(1, log.live["round"] + 1))
    assert [row["arrival"] for row in log.rewards.values()] == list(range(1, log.live["arrived"] + 1))
