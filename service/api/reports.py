"""The report: does it pay, which action, in which regime, and what would another policy have earned?"""

from typing import Annotated, NamedTuple

import msgspec
from fastapi import FastAPI, Query
from pydantic import Field

from policy import CampaignConfig, evaluation
from policy.config import MOST_ROUNDS
from policy.evaluation import OffPolicySums
from policy.frozen import FrozenModel
from service.access.roles import READERS, allow
from service.analysis.summary import Summary, Version
from service.api.report_answer import (
    ActionRow,
    Cell,
    Decisions,
    Group,
    LeftOut,
    Lift,
    OffPolicy,
    PolicyValue,
    RegimeRow,
    Regimes,
    Report,
    Rewards,
    Rounds,
)
from service.base.errors import ConflictError, FieldProblem, InvalidError
from service.base.times import timestamp
from service.engine.recovery import get_campaign, load_config, rebuild_model
from service.engine.worker import Service
from service.storage.reading import logged, rounds_between
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction
from service.web.openapi import describe_errors
from service.web.times import Moment, interval

__all__ = ["add_report_routes"]

MOST_VERSIONS = 5
Versions = Annotated[
    list[Annotated[int, Field(ge=1, le=MOST_ROUNDS)]],
    Query(max_length=MOST_VERSIONS, description="models to evaluate, as GET …/stages lists them; may be repeated"),
]


class _Range(NamedTuple):
    """What was asked for: microseconds, and the rounds they mean (after the first, up to the second)."""

    start: int | None
    end: int | None
    after: int
    last: int


def add_report_routes(app: FastAPI, service: Service) -> None:
    """The report of a campaign."""

    @app.get("/campaigns/{name}/report", tags=["reports"], responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def report(
        name: str,
        start: Annotated[Moment, Query(alias="from")] = None,
        to: Moment = None,
        model_version: Versions = [],  # noqa: B006 - FastAPI copies it
    ) -> Report:
        """What was decided from `from` on and before `to`, and what it earned: by action and regime, the lift over
        control, and what other policies would have earned. Where the log cannot tell, it says why."""
        begin, end = interval(start, to)
        with service.store.reading() as tx:
            row, _ = get_campaign(tx, name)
            asked = _Range(begin, end, *rounds_between(tx, row.campaign_id, begin, end))
            config = load_config(tx, row.campaign_id)
            versions, erased = _versions(tx, row, sorted(set(model_version)))
            summary = Summary(
                tx.revisions_after(row.campaign_id, 0),
                len(msgspec.json.decode(row.belief)),
                versions,
                None if config.rewards.default is None else row.settled,
            )
            after = min([asked.after, *(version.round for version in versions)])
            for page in logged(tx, row.campaign_id, after, asked.last):
                summary.add(page, asked.after)
        return _report(config, asked, summary, erased)


def _versions(tx: Transaction, row: LiveRow, asked: list[int]) -> tuple[list[Version], list[int]]:
    """The models to evaluate, and those that an erasure since then made impossible to find again (R22)."""
    if unknown := [version for version in asked if version > row.model_version]:
        allowed = f"1 to {row.model_version}" if row.model_version else "there is no model yet"
        message = f"{unknown[0]} is no model of this campaign"
        raise InvalidError([FieldProblem(field="model_version", message=message, allowed=allowed)])
    oldest = tx.erasure_version(row.campaign_id)
    versions = []
    for version in asked:
        if version >= oldest:
            try:
                _, policy, state = rebuild_model(tx, row, version)
            except ConflictError as error:  # it is damaged
                problem = FieldProblem(field="model_version", message=error.message, allowed="another version")
                raise InvalidError([problem]) from None
            versions.append(Version(version, state.round, FrozenModel(policy, state), OffPolicySums()))
    return versions, [version for version in asked if version < oldest]


def _report(config: CampaignConfig, asked: _Range, summary: Summary, erased: list[int]) -> Report:
    received = sum(summary.sources.values())
    settled = summary.decisions - summary.erased - summary.open
    return Report.model_validate(
        {
            "campaign": config.name,
            "from": None if asked.start is None else timestamp(asked.start),
            "to": None if asked.end is None else timestamp(asked.end),
            "rounds": Rounds(first=asked.after + 1, last=asked.last) if summary.decisions else None,
            "decisions": Decisions(
                total=summary.decisions,
                by_mode={mode: summary.modes[mode] for mode in ("warm_start", "optimistic", "control", "imported")},
                erased=summary.erased,
            ),
            "rewards": Rewards(
                received=received,
                awaited=summary.awaited,
                by_source={source: summary.sources[source] for source in ("client", "default", "import")},
                open=summary.open,
                rate=received / settled if settled else None,
                mean=_mean(summary.by_action[2].sum(), received),
            ),
            "actions": [
                ActionRow(
                    action=action,
                    retired=action in config.retired_actions,
                    decisions=int(decisions),
                    rewards=int(rewards),
                    mean_reward=_mean(total, rewards),
                )
                for action, (decisions, rewards, total) in zip(summary.actions, summary.by_action.T, strict=True)
            ],
            "regimes": _regimes(config, summary),
            "lift": _lift(summary),
            "off_policy": _off_policy(config, summary, erased),
        }
    )


def _mean(total: float, weight: float) -> float | None:
    return float(total / weight) if weight > 0.0 else None


def _regimes(config: CampaignConfig, summary: Summary) -> Regimes:
    labels, rows = dict(enumerate(config.regime_labels)), []
    for regime in range(summary.by_regime.shape[2]):
        cells = summary.by_regime[:, :, regime]
        decisions, rewards, total = cells.sum(axis=1)
        rows.append(
            RegimeRow(
                regime=regime + 1,
                label=labels.get(regime),
                decisions=decisions,
                rewards=rewards,
                mean_reward=_mean(total, rewards),
                actions=[
                    Cell(action=action, decisions=cell[0], rewards=cell[1], mean_reward=_mean(cell[2], cell[1]))
                    for action, cell in zip(summary.actions, cells.T, strict=True)
                ],
            )
        )
    return Regimes(regimes=rows, left_out=summary.other_regimes)


def _lift(summary: Summary) -> Lift:
    lift, changed = summary.lift.result(), summary.control_changed_at
    if changed is not None:
        refusal = evaluation.Refusal(
            "mixed_control",
            "The control was of kind uniform for a time and of kind baseline for another: there is no one lift.",
            f"Ask for a range with one kind: from={timestamp(changed)} on there is.",
        )
        lift = evaluation.Lift(lift.decided, lift.control, refusal=refusal)
    kind = None if summary.control_baseline is None else "baseline" if summary.control_baseline else "uniform"
    groups = {
        name: Group(rewards=group.rewards, mean_reward=group.value)
        for name, group in (("decided", lift.decided), ("control", lift.control))
    }
    return Lift.model_validate(lift._asdict() | groups | {"control_kind": kind})


def _off_policy(config: CampaignConfig, summary: Summary, erased: list[int]) -> OffPolicy:
    values = [
        _value("action", sums, action=action)
        for action, sums in zip(summary.actions, summary.always, strict=True)
        if action not in config.retired_actions
    ]
    values.append(_value("baseline", summary.baseline))
    values += [_value("model", v.sums, model_version=v.number, after_round=v.round) for v in summary.versions]
    gone = evaluation.Refusal(
        "erased",
        "Decisions that this model learned from were erased since: it cannot be made again.",
        "Ask for a model version that was published after the erasure.",
    )
    for version in erased:
        values.append(_value("model", OffPolicySums(), gone, model_version=version))
    left_out = LeftOut(
        erased=summary.erased,
        imported=summary.imported,
        awaited=summary.ours_awaited,
        unexplained=summary.unexplained,
    )
    return OffPolicy(left_out=left_out, policies=values)


def _value(
    policy: str,
    sums: OffPolicySums,
    refusal: evaluation.Refusal | None = None,
    *,
    action: str | None = None,
    model_version: int | None = None,
    after_round: int = 0,
) -> PolicyValue:
    found = sums.result()
    note = None
    if model_version is not None:
        note = (
            f"Only decisions after round {after_round}, when it was published, count: on those that it learned from its"
            " value would be too good."
        )
    own = {"policy": policy, "action": action, "model_version": model_version, "after_round": after_round, "note": note}
    return PolicyValue.model_validate(own | found._asdict() | ({"refusal": refusal} if refusal else {}))
