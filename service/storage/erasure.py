"""Erasure of one person's data (R22), and retention: requests that are kept no longer."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select, update

from service.storage.statements import PAGE
from service.storage.tables import campaigns, decisions, events, jobs, live, rewards, snapshots
from service.storage.transaction import Transaction

# What is deleted with a request: the person it was about, and the hash from which the request could be guessed.
REDUCED: dict[str, Any] = {"request_hash": None, "subject": None}
EMPTY_EXPLANATION = '{"belief":[],"scores":[]}'


def read_subject_campaigns(tx: Transaction, subject: str, among: Collection[str] | None = None) -> list[str]:
    """The names of the campaigns that have decided for a person: of all campaigns, or among some names."""
    own = select(decisions.c.round).where(decisions.c.campaign_id == campaigns.c.id, decisions.c.subject == subject)
    query = select(campaigns.c.name).where(own.exists()).order_by(campaigns.c.name)
    if among is not None:
        query = query.where(campaigns.c.name.in_(among))
    return list(tx.connection.execute(query).scalars())


def read_subject_rounds(tx: Transaction, campaign: int, subject: str) -> list[int]:
    """The rounds that were decided for a person, in order."""
    query = select(decisions.c.round).where(decisions.c.campaign_id == campaign, decisions.c.subject == subject)
    return list(tx.connection.execute(query.order_by(decisions.c.round)).scalars())


def erase_rounds(tx: Transaction, campaign: int, rounds: Sequence[int]) -> None:
    """Erase what is personal about these decisions (R22), and everything that was computed from it."""
    erased = REDUCED | {"context": None, "excluded_actions": None, "explanation": EMPTY_EXPLANATION, "erased": True}
    for start in range(0, len(rounds), PAGE):
        part = rounds[start : start + PAGE]
        tx.connection.execute(
            update(decisions).where(decisions.c.campaign_id == campaign, decisions.c.round.in_(part)).values(erased)
        )
        tx.connection.execute(
            update(rewards)
            .where(rewards.c.campaign_id == campaign, rewards.c.round.in_(part))
            .values(reward=None, source="erased", amount=None, reward_id=None)
        )
    tx.connection.execute(snapshots.delete().where(snapshots.c.campaign_id == campaign))
    tx.connection.execute(update(jobs).where(jobs.c.campaign_id == campaign).values(result=None))
    _delete_import_hashes(tx, campaign)


def _delete_import_hashes(tx: Transaction, campaign: int) -> None:
    """From the hash of an import its rows could be guessed. Without it, a retry is recognised by its id alone."""
    own = events.c.campaign_id == campaign, events.c.kind == "import"
    for number, text in tx.connection.execute(select(events.c.number, events.c.body).where(*own)).all():
        body = json.loads(text)
        if body.pop("hash", None) is not None:
            tx.connection.execute(update(events).where(*own, events.c.number == number).values(body=json.dumps(body)))


def read_contexts(tx: Transaction, campaign: int, after: int, last: int) -> dict[int, str]:
    """The contexts of the rounds after one and up to another, where there is one, by round."""
    query = select(decisions.c.round, decisions.c.context).where(
        decisions.c.campaign_id == campaign,
        decisions.c.round > after,
        decisions.c.round <= last,
        decisions.c.context.is_not(None),
    )
    return {row.round: row.context for row in tx.connection.execute(query)}


def reduce_rounds(tx: Transaction, campaign: int, contexts: Mapping[int, str], after: int, last: int) -> None:
    """Delete the requests of the rounds after one and up to another; `contexts` is what remains of theirs, by round."""
    part = decisions.c.round > after, decisions.c.round <= last
    tx.connection.execute(update(decisions).where(decisions.c.campaign_id == campaign, *part).values(REDUCED))
    _delete_import_hashes(tx, campaign)
    if contexts:
        row = decisions.c.campaign_id == campaign, decisions.c.round == bindparam("of_round")
        values = [{"of_round": round, "remaining": context} for round, context in contexts.items()]
        tx.connection.execute(update(decisions).where(*row).values(context=bindparam("remaining")), values)
    tx.connection.execute(update(live).where(live.c.campaign_id == campaign).values(reduced=last))
