"""The decisions for a subject that a reward can be credited to, and those that one was credited to."""

from typing import NamedTuple

from sqlalchemy import select

from service.storage.rows import KnownDecision, KnownReward, select_rows
from service.storage.statements import DECISIONS_WITH_REWARDS
from service.storage.tables import decisions, rewards
from service.storage.transaction import Transaction


class Credited(NamedTuple):
    """A decision that has a reward with a certain id."""

    decision_id: str
    subject: str | None
    reward: KnownReward


def read_decisions_to_credit(
    tx: Transaction, campaign: int, subject: str, since: int, until: int, most: int
) -> list[KnownDecision]:
    """The newest decisions for a subject between two times (microseconds), in order."""
    query = select_rows(KnownDecision, decisions, rewards).select_from(DECISIONS_WITH_REWARDS)
    query = query.where(
        decisions.c.campaign_id == campaign,
        decisions.c.subject == subject,
        decisions.c.decided_at.between(since, until),
    )
    found = tx.read_rows(KnownDecision, query.order_by(decisions.c.round.desc()).limit(most))
    return found[::-1]


def read_credited(tx: Transaction, campaign: int, reward_id: str) -> list[Credited]:
    """The decisions that have a reward with this id, in order."""
    query = (
        select(decisions.c.decision_id, decisions.c.subject, *select_rows(KnownReward, rewards).selected_columns)
        .join_from(
            rewards,
            decisions,
            (rewards.c.campaign_id == decisions.c.campaign_id) & (rewards.c.round == decisions.c.round),
        )
        .where(rewards.c.campaign_id == campaign, rewards.c.reward_id == reward_id)
        .order_by(decisions.c.round)
    )
    return [Credited(row[0], row[1], KnownReward._make(row[2:])) for row in tx.connection.execute(query)]
