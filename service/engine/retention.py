"""Retention: requests older than a campaign's `retention_days` are reduced to what its statistics need.

A number that enters as a level is replaced by another number of the same level; the subject and the hash of the
request are removed. What a round taught stays exact: the fold follows such a row instead of deciding it again.
"""

import msgspec

from policy.features import get_feature_map
from service.base.times import SECOND
from service.engine.recovery import load_config
from service.storage.campaigns import get_config, read_campaigns
from service.storage.erasure import read_contexts, reduce_rounds
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction

ROWS = 1_000  # in one transaction: about 20 ms
DAY = 86_400 * SECOND


def list_campaigns_to_reduce(tx: Transaction, now: int) -> list[str]:
    """List the campaigns that have requests older than they may keep."""
    return [row.name for row in read_campaigns(tx) if _find_last_expired(tx, row, now) > row.reduced]


def reduce_oldest(tx: Transaction, row: LiveRow, now: int) -> bool:
    """Reduce the oldest expired requests of a campaign; return whether there are more."""
    last = _find_last_expired(tx, row, now)
    if last <= row.reduced:
        return False
    features = get_feature_map(load_config(tx, row.campaign_id))
    until = min(last, row.reduced + ROWS)
    contexts = {
        round: msgspec.json.encode(features.reduce(msgspec.json.decode(context))).decode()
        for round, context in read_contexts(tx, row.campaign_id, row.reduced, until).items()
    }
    reduce_rounds(tx, row.campaign_id, contexts, row.reduced, until)
    return until < last


def _find_last_expired(tx: Transaction, row: LiveRow, now: int) -> int:
    """Find the last round whose request is too old; 0 if there is none."""
    days = msgspec.json.decode(get_config(tx, row.campaign_id)).get("retention_days")
    return 0 if days is None else tx.get_last_round(row.campaign_id, now - int(days * DAY))
