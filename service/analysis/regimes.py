"""What each regime looks like, and whether the labels people gave the regimes can still be trusted."""

from itertools import takewhile
from typing import NamedTuple

import msgspec

from policy import CampaignConfig, StagedPolicy, State
from policy.regimes import Likeliest, RegimeDescription, describe_regimes, explain_no_regimes, get_likeliest_regime
from service.engine.recovery import get_campaign
from service.storage.models import get_regimes_before
from service.storage.transaction import Transaction


class RegimesSummary(NamedTuple):
    """The regimes of the model in force."""

    regimes: tuple[RegimeDescription, ...]  # empty with one regime, and before the first estimate
    current: Likeliest
    note: str | None  # why there are no regimes
    labels_note: str | None  # why the labels should be checked


def summarize_regimes(tx: Transaction, policy: StagedPolicy, state: State) -> RegimesSummary:
    regimes, config = describe_regimes(policy, state), policy.config
    labels_note = None
    if regimes and config.regime_labels and policy.estimator.get_initial_hmm() is None:
        labels_note = _check_labels(tx, get_campaign(tx, config.name).campaign_id, config, len(regimes))
    return RegimesSummary(regimes, get_likeliest_regime(state), explain_no_regimes(policy, state), labels_note)


def _check_labels(tx: Transaction, campaign: int, config: CampaignConfig, regimes: int) -> str | None:
    """Why the labels may no longer fit: they belong to regime numbers, which not every change preserves (R6)."""
    revisions, labels = tx.read_revisions(campaign, 0), list(config.regime_labels)
    newest = reversed(revisions)
    unchanged = [*takewhile(lambda row: msgspec.json.decode(row.config).get("regime_labels") == labels, newest)]
    if not unchanged:  # the labels were changed just now
        return None
    labelled = unchanged[-1]
    check = "Check that the labels fit; if not, set regime_labels again."
    then = get_regimes_before(tx, campaign, labelled.round)
    if then is None:
        return f"The labels were set before the regimes were estimated. {check}"
    if then != regimes:
        count = f"{then} regime{'s' if then > 1 else ''}"
        return f"The labels were set at round {labelled.round}, with {count} in use; now there are {regimes}. {check}"
    if any(row.restored is not None and row.revision > labelled.revision for row in revisions):
        return f"The campaign was rolled back after the labels were set. {check}"
    return None
