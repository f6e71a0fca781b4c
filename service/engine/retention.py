"""Retention: requests older than a campaign's `retention_days` are reduced to what its statistics need.

Numbers that enter as levels become one number of their level, and who it was about goes, with the hash of the request.
What a round taught stays to the bit: the fold follows such a row instead of deciding it again.
"""

import msgspec

from policy import CampaignConfig
from policy.features import get_feature_map
from service.engine.fold import SECOND
from service.storage.campaigns import get_config, read_campaigns
from service.storage.erasure import read_contexts, reduce_rounds
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction

__all__ = ["campaigns_to_reduce", "reduced"]

ROWS = 1_000  # in one transaction: some 20 ms
DAY = 86_400 * SECOND


class _Rule(msgspec.Struct):
    """The one field of a configuration that matters here."""

    retention_days: float | None = None


def campaigns_to_reduce(tx: Transaction, now: int) -> list[str]:
    """The campaigns that keep some request for longer than they should."""
    return [row.name for row in read_campaigns(tx) if _last(tx, row, now) > row.reduced]


def reduced(tx: Transaction, row: LiveRow, now: int) -> bool:
    """Reduce the oldest requests of a campaign; are there more?"""
    last = _last(tx, row, now)
    if last <= row.reduced:
        return False
    features = get_feature_map(CampaignConfig.model_validate_json(get_config(tx, row.campaign_id)))
    until = min(last, row.reduced + ROWS)
    contexts = {
        round: msgspec.json.encode(features.reduce(msgspec.json.decode(context))).decode()
        for round, context in read_contexts(tx, row.campaign_id, row.reduced, until).items()
    }
    reduce_rounds(tx, row.campaign_id, contexts, row.reduced, until)
    return until < last


def _last(tx: Transaction, row: LiveRow, now: int) -> int:
    """The last round whose request is too old, 0 if there is none."""
    days = msgspec.json.decode(get_config(tx, row.campaign_id), type=_Rule).retention_days
    return 0 if days is None else tx.get_last_round(row.campaign_id, now - int(days * DAY))
