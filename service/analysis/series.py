"""A campaign over time, in buckets of rounds: the data behind the charts on its page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from policy import CampaignConfig
from policy.arrays import FloatArray, IntArray
from policy.lift import Compared, Lifts, cumulative_lift
from service.analysis.buckets import Changes, bucket_starts, find_lasting_changes, mean_beliefs, tally
from service.analysis.columns import KINDS, MODES, ColumnCache, Columns
from service.base.times import format_timestamp
from service.engine.campaigns import Campaigns
from service.engine.recovery import get_campaign
from service.storage.reading import find_rounds_between
from service.storage.rows import RevisionRow
from service.storage.transaction import Transaction

Beliefs = Literal["as_decided", "now"]
MAX_POINTS = 2_000  # buckets, and regime changes
MAX_NOTES = 200  # publications, and revisions: the newest


def compute_series(
    tx: Transaction,
    campaigns: Campaigns,
    cache: ColumnCache,
    name: str,
    times: tuple[int | None, int | None],
    points: int,
    beliefs: Beliefs,
) -> dict[str, Any]:
    """The decisions between two times (microseconds, half open) in at most `points` buckets, as `GET …/series` answers.

    A regime change always starts a bucket, so there are more buckets than `points` if there are more changes.
    """
    row = get_campaign(tx, name)
    after, last = find_rounds_between(tx, row.campaign_id, *times)
    revisions = tx.read_revisions(row.campaign_id, 0)
    state = campaigns.cache.read_entry(tx, row).state if beliefs == "now" else None
    config = CampaignConfig.model_validate_json(revisions[-1].config)
    with cache.read(tx, row, revisions, config) as columns:
        settled = row.round if config.rewards.default is None else row.settled
        rounds = _Rounds(columns, config, revisions, after, min(last, row.round), row.round, settled)
        if state is not None:
            rounds.replace_beliefs(state.history.beliefs[: row.round], state.belief.size)
        series = rounds.summarize(points)
    return series | {"campaign": row.name, "beliefs": beliefs, "regimes": len(msgspec.json.decode(row.belief))}


class _Rounds:
    """The rounds (after … last] of a campaign, and what they depend on before and after that range."""

    def __init__(
        self,
        columns: Columns,
        config: CampaignConfig,
        revisions: Sequence[RevisionRow],
        after: int,
        last: int,
        rounds: int,
        settled: int,
    ) -> None:
        self._after, self._last, self._rounds, self._settled = after, last, rounds, settled
        self._rows, self._models = columns.rows[:rounds], columns.models
        self._config, self._revisions = config, revisions
        self._configs = [msgspec.json.decode(revision.config) for revision in revisions]
        self._beliefs, self._regimes = self._rows["belief"], self._rows["regimes"]

    def replace_beliefs(self, beliefs: FloatArray, regimes: int) -> None:
        """Use these beliefs instead of those of the decisions."""
        self._beliefs, self._regimes = beliefs, np.full(len(beliefs), regimes, np.int8)

    def summarize(self, points: int) -> dict[str, Any]:
        after, last = self._after, self._last
        changes, left_out = self._find_changes()
        starts = bucket_starts(after, last, points, changes.since)
        models = self._models[self._is_inside(self._models["round"])]
        kinds = Counter(models["kind"].tolist())
        empty = after >= last
        return {
            "round": self._rounds,
            "first_round": None if empty else after + 1,
            "last_round": None if empty else last,
            "regime_labels": self._config.regime_labels,
            "action_names": self._config.actions,
            "alert_rounds": self._config.alerts.rounds,
            "buckets": [] if empty else self._fill_buckets(starts, models["round"]),
            "regime_changes": self._describe_changes(changes),
            "regime_changes_left_out": left_out,
            "regimes_in_use": self._list_regime_counts(),
            "models": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
            "publications": _list_publications(models[models["kind"] != "update"][-MAX_NOTES:]),
            "revisions": self._list_revisions(),
        }

    def _find_changes(self) -> tuple[Changes, int]:
        """The regime changes of the range, and how many of the shortest-lived were left out."""
        changes = find_lasting_changes(self._beliefs, self._regimes, self._config.alerts.rounds)
        changes = changes.select((changes.since >= self._after) & (changes.since < self._last))
        left_out = max(0, changes.since.size - MAX_POINTS)
        if left_out:
            durations = np.diff(changes.since, append=self._last)
            longest = np.argsort(-durations, kind="stable")[:MAX_POINTS]
            changes = changes.select(np.isin(np.arange(changes.since.size), longest))
        return changes, left_out

    def _is_inside(self, rounds: IntArray) -> npt.NDArray[np.bool_]:
        """Which events belong to the range, given the rounds decided before each of them.

        An event after the newest round of all belongs to a range that ends there.
        """
        newest = (rounds == self._last) & (self._last == self._rounds)
        inside: npt.NDArray[np.bool_] = (rounds >= self._after) & ((rounds < self._last) | newest)
        return inside

    # --- buckets -----------------------------------------------------------------------------------------------

    def _fill_buckets(self, starts: IntArray, published: IntArray) -> list[dict[str, Any]]:
        rows, span, count = self._rows[self._after : self._last], slice(self._after, self._last), starts.size
        ends = np.append(starts[1:], self._last)
        bucket = np.repeat(np.arange(count), ends - starts)
        # With a default reward, rounds after the settled ones have only the rewards that came early: a biased sample.
        rewarded = ~np.isnan(rows["reward"]) & (np.arange(self._after, self._last) < self._settled)
        rewards, modes, actions = np.where(rewarded, rows["reward"], 0.0), rows["mode"], rows["action"]
        kinds, names = len(MODES), self._config.actions
        counts = tally(bucket, count, modes, kinds, rewarded.astype(np.float64)).astype(np.int64)
        sums = tally(bucket, count, modes, kinds, rewards)
        model = np.searchsorted(starts, np.minimum(published, self._last - 1), side="right") - 1
        decided, control = MODES.index("optimistic"), MODES.index("control")
        columns: dict[str, Iterable[Any]] = {
            "first_round": (starts + 1).tolist(),
            "last_round": ends.tolist(),
            "first_decided_at": map(format_timestamp, self._rows["decided_at"][starts].tolist()),
            "last_decided_at": map(format_timestamp, self._rows["decided_at"][ends - 1].tolist()),
            "belief": self._list_beliefs(mean_beliefs(self._beliefs[span], self._regimes[span], starts - self._after)),
            "last_belief": self._list_beliefs(
                np.where(self._regimes[ends - 1, None] > 0, self._beliefs[ends - 1], np.nan)
            ),
            "actions": _name_counts(tally(bucket, count, actions, len(names)), names),
            "modes": _name_counts(tally(bucket, count, modes, kinds), MODES),
            "models": np.bincount(model, minlength=count).tolist(),
            "rewards": _list_rewards(counts.sum(axis=1), sums.sum(axis=1)),
            "decided": _list_rewards(counts[:, decided], sums[:, decided]),
            "control": _list_rewards(counts[:, control], sums[:, control]),
            "lift": _list_lifts(self._compute_lifts(rows, rewarded, ends - self._after)),
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _list_beliefs(self, beliefs: FloatArray) -> list[list[float] | None]:
        """Beliefs (NaN: unknown) over the largest number of regimes that was in use in the range."""
        most = max(1, int(self._regimes[self._after : self._last].max(initial=1)))
        return [None if isnan(belief[0]) else belief for belief in beliefs[:, :most].tolist()]

    def _compute_lifts(self, rows: npt.NDArray[Any], rewarded: npt.NDArray[np.bool_], ends: IntArray) -> Lifts:
        """The lift up to each bucket's end. Only rounds with the last kind of control count: two kinds do not mix."""
        rounds = np.arange(self._after, self._last)
        in_force = np.searchsorted([revision.round for revision in self._revisions], rounds, side="right") - 1
        share = np.array([config["control"]["share"] for config in self._configs])[in_force]
        kind = np.array([config["control"]["kind"] == "baseline" for config in self._configs])[in_force]
        controlled = rows["mode"] == MODES.index("control")
        counted = rewarded & (controlled | (rows["mode"] == MODES.index("optimistic"))) & (share > 0.0)
        if counted.any():
            counted &= kind == kind[np.flatnonzero(counted)[-1]]
        places = np.flatnonzero(counted)
        compared = Compared(rows["reward"][places], controlled[places], share[places], rows["cluster"][places])
        return cumulative_lift(compared, np.searchsorted(places, ends))

    # --- events ------------------------------------------------------------------------------------------------

    def _describe_changes(self, changes: Changes) -> list[dict[str, Any]]:
        labels, rounds = dict(enumerate(self._config.regime_labels)), self._config.alerts.rounds
        return [
            {
                "since_round": since + 1,
                "round": since + rounds,
                "decided_at": format_timestamp(int(self._rows["decided_at"][since])),
                "before": before + 1,
                "after": after + 1,
                "before_label": labels.get(before),
                "after_label": labels.get(after),
            }
            for since, before, after in zip(*(column.tolist() for column in changes), strict=True)
        ]

    def _list_regime_counts(self) -> list[dict[str, int]]:
        regimes = self._regimes[self._after : self._last]
        known = np.flatnonzero(regimes)
        changed = known[np.diff(regimes[known], prepend=0) != 0][-MAX_NOTES:]
        return [{"round": self._after + row + 1, "regimes": int(regimes[row])} for row in changed.tolist()]

    def _list_revisions(self) -> list[dict[str, Any]]:
        inside = self._is_inside(np.array([revision.round for revision in self._revisions])).tolist()
        notes, before = [], dict[str, Any]()
        for revision, fields, is_inside in zip(self._revisions, self._configs, inside, strict=True):
            if is_inside:
                changed = [name for name in fields if before and fields[name] != before.get(name)]
                notes.append(_describe_revision(revision, changed))
            before = fields
        return notes[-MAX_NOTES:]


def _describe_revision(revision: RevisionRow, changed: list[str]) -> dict[str, Any]:
    kind = "created" if revision.revision == 1 else "configuration"
    if revision.restored is not None:
        kind = "rollback"
    elif revision.erased is not None:
        kind = "erasure"
    return {
        "revision": revision.revision,
        "kind": kind,
        "round": revision.round,
        "changed": changed,
        "restored_model_version": revision.restored,
        "erased_decisions": revision.erased,
        "created_at": format_timestamp(revision.created_at),
    }


def _list_publications(models: npt.NDArray[Any]) -> list[dict[str, Any]]:
    return [
        {
            "model_version": int(model["version"]),
            "kind": str(model["kind"]),
            "round": int(model["round"]),
            "regimes": int(model["regimes"]),
            "published_at": format_timestamp(int(model["published_at"])),
        }
        for model in models
    ]


def _name_counts(table: FloatArray, names: Sequence[str]) -> list[dict[str, int]]:
    return [dict(zip(names, counts, strict=True)) for counts in table.astype(np.int64).tolist()]


def _list_rewards(counts: IntArray, sums: FloatArray) -> list[dict[str, Any]]:
    return [{"count": count, "sum": total} for count, total in zip(counts.tolist(), sums.tolist(), strict=True)]


def _list_lifts(lifts: Lifts) -> list[dict[str, Any]]:
    columns = {
        "decided_rewards": lifts.decided.rewards,
        "decided_mean": lifts.decided.mean,
        "control_rewards": lifts.control.rewards,
        "control_mean": lifts.control.mean,
        "difference": lifts.difference,
        "low": lifts.low,
        "high": lifts.high,
    }
    return [
        {name: None if isnan(value) else value for name, value in zip(columns, values, strict=True)}
        for values in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]
