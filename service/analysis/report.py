"""The report on a campaign: does it pay, which action, in which regime, and what would another policy have earned?"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from policy import CampaignConfig, evaluation
from policy.arrays import FloatArray
from policy.evaluation import OffPolicySums, Refusal
from policy.frozen import FrozenModel
from policy.widening import widen_to_read
from service.analysis.summary import Summary, Version
from service.base.errors import ConflictError, FieldProblem, InvalidError
from service.base.times import format_minute, format_timestamp
from service.engine.recovery import get_campaign, load_config, load_wait, rebuild_model
from service.storage.models import get_erasure_version
from service.storage.reading import find_rounds_between, read_decision_pages
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction

SOURCES = ("client", "correction", "subject", "default", "import")
ERASED = Refusal(
    "erased",
    "Decisions that this model learned from have been erased, so the model cannot be rebuilt.",
    "Choose a model version published after the erasure.",
)


def build_report(
    tx: Transaction, name: str, times: tuple[int | None, int | None], model_versions: Sequence[int], now: int
) -> dict[str, Any]:
    """The report on the decisions between two times (microseconds, half open), as `GET …/report` answers."""
    row = get_campaign(tx, name)
    after, last = find_rounds_between(tx, row.campaign_id, *times)
    config = load_config(tx, row.campaign_id)
    versions, erased = _load_versions(tx, row, sorted(set(model_versions)))
    wait = load_wait(tx, row, now)
    summary = Summary(tx.read_revisions(row.campaign_id, 0), len(msgspec.json.decode(row.belief)), versions, wait)
    first = min([after, *(version.round for version in versions)])
    for page in read_decision_pages(tx, row.campaign_id, first, last, wait=wait):
        summary.add(page, after)
    start, end = map(_format_time, times)
    return {
        "campaign": config.name,
        "from": start,
        "to": end,
        "rounds": {"first": after + 1, "last": last} if summary.counts["decisions"] else None,
        **_describe_totals(summary),
        "actions": [
            {"action": action, "retired": action in config.retired_actions, **_describe_sums(sums)}
            for action, sums in zip(summary.actions, summary.by_action.T, strict=True)
        ],
        "regimes": _describe_regimes(config, summary),
        "lift": _describe_lift(summary),
        "off_policy": _describe_off_policy(config, summary, erased),
    }


def _load_versions(tx: Transaction, row: LiveRow, numbers: list[int]) -> tuple[list[Version], list[int]]:
    """The models to evaluate, and the numbers of those that an erasure made impossible to rebuild (R22)."""
    if unknown := [number for number in numbers if number > row.model_version]:
        allowed = f"1 to {row.model_version}" if row.model_version else "there is no model yet"
        message = f"{unknown[0]} is not a model of this campaign"
        raise InvalidError([FieldProblem(field="model_version", message=message, allowed=allowed)])
    oldest, newest = get_erasure_version(tx, row.campaign_id), load_config(tx, row.campaign_id)
    versions = []
    for number in numbers:
        if number >= oldest:
            try:
                _, policy, state = rebuild_model(tx, row, number)
            except ConflictError as error:  # the stored model is damaged
                problem = FieldProblem(field="model_version", message=error.message, allowed="another version")
                raise InvalidError([problem]) from None
            model = FrozenModel(*widen_to_read(policy, state, newest))
            versions.append(Version(number, state.round, model, OffPolicySums()))
    return versions, [number for number in numbers if number < oldest]


def _describe_totals(summary: Summary) -> dict[str, Any]:
    counts, counted = summary.counts, summary.sources.total()
    due = counts["decisions"] - counts["erased"] - counts["open"]
    return {
        "decisions": {
            "total": counts["decisions"],
            "by_mode": {mode: summary.modes[mode] for mode in ("warm_start", "optimistic", "control", "imported")},
            "erased": counts["erased"],
        },
        "rewards": {
            "received": counted - summary.sources["default"] + counts["early"],
            "counted": counted,
            "awaited": counts["awaited"],
            "by_source": {source: summary.sources[source] for source in SOURCES},
            "open": counts["open"],
            "early": counts["early"],
            "early_count_from": _format_time(summary.early_count_from),
            "complete_at": _format_time(summary.complete_at),
            "rate": counted / due if due else None,
            "mean": _mean(summary.by_action[2].sum(), counted),
        },
    }


def _format_time(time: int | None) -> str | None:
    return None if time is None else format_timestamp(time)


def _mean(total: float, weight: float) -> float | None:
    return float(total / weight) if weight > 0.0 else None


def _describe_sums(sums: FloatArray) -> dict[str, Any]:
    decisions, rewards, total = sums.tolist()
    return {"decisions": decisions, "rewards": rewards, "mean_reward": _mean(total, rewards)}


def _describe_regimes(config: CampaignConfig, summary: Summary) -> dict[str, Any]:
    labels = dict(enumerate(config.regime_labels))
    rows = [
        {
            "regime": regime + 1,
            "label": labels.get(regime),
            **_describe_sums(cells.sum(axis=1)),
            "actions": [
                {"action": action, **_describe_sums(sums)}
                for action, sums in zip(summary.actions, cells.T, strict=True)
            ],
        }
        for regime, cells in enumerate(np.moveaxis(summary.by_regime, 2, 0))
    ]
    return {"regimes": rows, "left_out": summary.counts["other_regimes"]}


def _describe_lift(summary: Summary) -> dict[str, Any]:
    lift, changed_at = summary.lift.result(), summary.control_changed_at
    if lift.refusal is not None:
        lift = lift._replace(refusal=_tell_early(summary, lift.refusal))
    if changed_at is not None:
        refusal = Refusal(
            "mixed_control",
            "In part of this range the control was uniform, in another part the baseline: they have no common lift.",
            f"Choose a range with one kind of control, for example from={format_timestamp(changed_at)}.",
        )
        lift = evaluation.Lift(lift.decided, lift.control, refusal=refusal)
    kind = None if summary.control_baseline is None else "baseline" if summary.control_baseline else "uniform"
    groups = {
        name: {"rewards": group.rewards, "mean_reward": group.value}
        for name, group in (("decided", lift.decided), ("control", lift.control))
    }
    return lift._asdict() | groups | {"control_kind": kind}


def _tell_early(summary: Summary, refusal: Refusal) -> Refusal:
    """Say of rewards that have come and do not count yet when they will."""
    if refusal.code != "no_rewards" or summary.early_count_from is None:
        return refusal
    early, start = summary.counts["early"], format_minute(summary.early_count_from)
    return refusal._replace(
        reason=f"{early} rewards have come, and none counts yet: each does when the wait of its decision is over, the "
        f"first from {start} on.",
        remedy="Wait until then; no further decision is needed.",
    )


def _describe_off_policy(config: CampaignConfig, summary: Summary, erased: list[int]) -> dict[str, Any]:
    policies = [
        _describe_value("action", sums, action=action)
        for action, sums in zip(summary.actions, summary.always, strict=True)
        if action not in config.retired_actions
    ]
    policies.append(_describe_value("baseline", summary.baseline))
    policies += [_describe_model(version.number, version.round, version.sums) for version in summary.versions]
    for each in policies:
        if each["refusal"] is not None:
            each["refusal"] = _tell_early(summary, each["refusal"])
    policies += [_describe_model(number, 0, OffPolicySums()) | {"refusal": ERASED} for number in erased]
    left_out = {name: summary.counts[name] for name in ("erased", "imported", "unexplained")}
    return {"left_out": left_out | {"awaited": summary.counts["ours_awaited"]}, "policies": policies}


def _describe_model(number: int, round: int, sums: OffPolicySums) -> dict[str, Any]:
    note = (
        f"Only decisions after round {round}, when this model was published, count: on the decisions it learned from, "
        "its value would look too good."
    )
    return _describe_value("model", sums, model_version=number, after_round=round, note=note)


def _describe_value(policy: str, sums: OffPolicySums, **fields: Any) -> dict[str, Any]:
    unset = {"action": None, "model_version": None, "after_round": 0, "note": None}
    return {"policy": policy, **unset, **fields, **sums.result()._asdict()}
