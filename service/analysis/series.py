"""A campaign over time, in buckets of rounds: the data behind the charts on its page. Every regime change is kept."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isnan
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from policy import CampaignConfig, State
from policy.arrays import BoolArray, FloatArray, IntArray
from policy.lift import Compared, Lifts, cumulative_lift
from service.analysis.columns import KINDS, MODES, ColumnCache, Columns
from service.base.times import format_timestamp
from service.base.waits import Wait
from service.engine.alerts import find_regime_changes
from service.engine.campaigns import Campaigns
from service.engine.recovery import get_campaign
from service.storage.reading import find_rounds_between
from service.storage.rows import LiveRow, RevisionRow
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
        now = max(campaigns.clock(), row.clock)
        rounds = _Rounds(columns, config, revisions, row, after, min(last, row.round), now)
        if state is not None:  # today's beliefs instead of those of the decisions
            rounds.use_beliefs(state)
        series = rounds.summarize(points)
    return series | {"campaign": row.name, "beliefs": beliefs, "regimes": len(msgspec.json.decode(row.belief))}


class _Rounds:
    """The rounds (after … last] of a campaign, and what they depend on before and after that range."""

    def __init__(
        self,
        columns: Columns,
        config: CampaignConfig,
        revisions: Sequence[RevisionRow],
        row: LiveRow,
        after: int,
        last: int,
        now: int,
    ) -> None:
        self._after, self._last, self._rounds = after, last, row.round
        self._rows, self._models = columns.rows[: row.round], columns.models
        self._rewards = _list_counted(self._rows, config, now)
        self._config, self._revisions = config, revisions
        self._configs = [msgspec.json.decode(revision.config) for revision in revisions]
        self.beliefs, self.regimes = self._rows["belief"], self._rows["regimes"]

    def use_beliefs(self, state: State) -> None:
        """Take the beliefs of record (R4) in place of those of the decisions, as far back as the state has them."""
        first = state.history.first
        recent = state.history.beliefs[: self._rounds - first]
        older, shared = np.zeros((first, recent.shape[1])), min(recent.shape[1], self.beliefs.shape[1])
        older[:, :shared] = self.beliefs[:first, :shared]
        self.beliefs = np.concatenate((older, recent))
        self.regimes = self.regimes[: self._rounds].copy()
        self.regimes[first:] = state.belief.size

    def summarize(self, points: int) -> dict[str, Any]:
        after, last = self._after, self._last
        changes, left_out = self._find_changes()
        starts = bucket_starts(after, last, points, changes[:, 0])
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
            "publications": [
                {
                    "model_version": int(model["version"]),
                    "kind": str(model["kind"]),
                    "round": int(model["round"]),
                    "regimes": int(model["regimes"]),
                    "published_at": format_timestamp(int(model["published_at"])),
                }
                for model in models[models["kind"] != "update"][-MAX_NOTES:]
            ],
            "revisions": self._list_revisions(),
        }

    def _find_changes(self) -> tuple[IntArray, int]:
        """The regime changes of the range, and how many of the shortest-lived were left out."""
        changes = find_lasting_changes(self.beliefs, self.regimes, self._config.alerts.rounds)
        changes = changes[(changes[:, 0] >= self._after) & (changes[:, 0] < self._last)]
        left_out = max(0, len(changes) - MAX_POINTS)
        if left_out:
            durations = np.diff(changes[:, 0], append=self._last)
            changes = changes[np.sort(np.argsort(-durations, kind="stable")[:MAX_POINTS])]
        return changes, left_out

    def _is_inside(self, rounds: IntArray) -> BoolArray:
        """Which events belong to the range, given the rounds decided before each of them.

        An event after the newest round of all belongs to a range that ends there.
        """
        end = self._last + (self._last == self._rounds)
        inside: BoolArray = (rounds >= self._after) & (rounds < end)
        return inside

    def _fill_buckets(self, starts: IntArray, published: IntArray) -> list[dict[str, Any]]:
        span, ends = slice(self._after, self._last), np.append(starts[1:], self._last)
        rows, decided_at = self._rows[span], self._rows["decided_at"]
        bucket = np.repeat(np.arange(starts.size), ends - starts)

        def tally(codes: IntArray, kinds: int, weights: FloatArray | None = None) -> npt.NDArray[Any]:
            """The number of rows of each kind in each bucket, or the sum of their weights: buckets × kinds."""
            return np.bincount(bucket * kinds + codes, weights, starts.size * kinds).reshape(-1, kinds)

        rewards = self._rewards[span]
        rewarded = ~np.isnan(rewards)
        counts = tally(rows["mode"], len(MODES), rewarded.astype(np.float64))
        sums = tally(rows["mode"], len(MODES), np.where(rewarded, rewards, 0.0))
        model = np.searchsorted(starts, np.minimum(published, self._last - 1), side="right") - 1
        decided, control = MODES.index("optimistic"), MODES.index("control")
        known = np.add.reduceat((self.regimes[span] > 0).astype(np.float64), starts - self._after)
        with np.errstate(invalid="ignore"):  # NaN where no row of a bucket has a belief
            means = np.add.reduceat(self.beliefs[span], starts - self._after, axis=0) / known[:, None]
        lasts = np.where(self.regimes[ends - 1, None] > 0, self.beliefs[ends - 1], np.nan)
        columns: dict[str, Iterable[Any]] = {
            "first_round": (starts + 1).tolist(),
            "last_round": ends.tolist(),
            "first_decided_at": map(format_timestamp, decided_at[starts].tolist()),
            "last_decided_at": map(format_timestamp, decided_at[ends - 1].tolist()),
            "belief": self._list_beliefs(means),
            "last_belief": self._list_beliefs(lasts),
            "actions": _name_counts(tally(rows["action"], len(self._config.actions)), self._config.actions),
            "modes": _name_counts(tally(rows["mode"], len(MODES)), MODES),
            "models": np.bincount(model, minlength=starts.size).tolist(),
            "rewards": _list_rewards(counts.sum(axis=1), sums.sum(axis=1)),
            "decided": _list_rewards(counts[:, decided], sums[:, decided]),
            "control": _list_rewards(counts[:, control], sums[:, control]),
            "lift": _list_lifts(self._compute_lifts(rows, rewarded, ends - self._after)),
        }
        return _zip_dicts(columns)

    def _list_beliefs(self, beliefs: FloatArray) -> list[list[float] | None]:
        """Beliefs (NaN: unknown) over the largest number of regimes that was in use in the range."""
        most = max(1, int(self.regimes[self._after : self._last].max(initial=1)))
        return [None if isnan(belief[0]) else belief for belief in beliefs[:, :most].tolist()]

    def _compute_lifts(self, rows: npt.NDArray[Any], rewarded: BoolArray, ends: IntArray) -> Lifts:
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
        compared = Compared(
            self._rewards[self._after : self._last][places], controlled[places], share[places], rows["cluster"][places]
        )
        return cumulative_lift(compared, np.searchsorted(places, ends))

    def _describe_changes(self, changes: IntArray) -> list[dict[str, Any]]:
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
            for since, before, after in changes.tolist()
        ]

    def _list_regime_counts(self) -> list[dict[str, int]]:
        regimes = self.regimes[self._after : self._last]
        known = np.flatnonzero(regimes)
        changed = known[np.diff(regimes[known], prepend=0) != 0][-MAX_NOTES:]
        return [{"round": self._after + row + 1, "regimes": int(regimes[row])} for row in changed.tolist()]

    def _list_revisions(self) -> list[dict[str, Any]]:
        inside = self._is_inside(np.array([revision.round for revision in self._revisions]))
        notes = []
        for place in np.flatnonzero(inside)[-MAX_NOTES:].tolist():
            revision, fields, before = self._revisions[place], self._configs[place], self._configs[max(place - 1, 0)]
            kind = "created" if revision.revision == 1 else "configuration"
            if revision.restored is not None:
                kind = "rollback"
            elif revision.erased is not None:
                kind = "erasure"
            notes.append(
                {
                    "revision": revision.revision,
                    "kind": kind,
                    "round": revision.round,
                    "changed": [name for name in fields if fields[name] != before.get(name)],
                    "restored_model_version": revision.restored,
                    "erased_decisions": revision.erased,
                    "created_at": format_timestamp(revision.created_at),
                }
            )
        return notes


def _list_counted(rows: npt.NDArray[Any], config: CampaignConfig, now: int) -> FloatArray:
    """The reward of each round that counts by now, NaN elsewhere (R20).

    With a default reward, rounds whose wait is not over have only rewards that came early: a biased sample.
    """
    rewards: FloatArray = rows["reward"]
    wait = Wait.build(config.rewards.default, config.rewards.wait_seconds, now)
    if wait.default is None:
        return rewards
    is_over, is_erased = wait.get_end(rows["decided_at"]) <= now, rows["regimes"] == 0
    imported = rows["mode"] == MODES.index("imported")
    defaulted = np.where(np.isnan(rewards) & is_over & ~is_erased, wait.default, rewards)
    return np.where(is_over | imported, defaulted, np.nan)


def find_lasting_changes(beliefs: FloatArray, regimes: npt.NDArray[np.int8], rounds: int) -> IntArray:
    """The changes after which the new regime stayed the most likely for `rounds` rounds, as alerts count them.

    A row per change: the first row in which the new regime is the most likely, the regime before, the one after.
    `beliefs` is rows × the largest number of regimes; `regimes` is the number in use in each row. Where that number
    changes, counting starts again, because the old regime numbers mean nothing then. There is no change before the
    first estimate, while all regimes are equally likely (R5), nor with one regime. An erased row (0 regimes) repeats
    the row before it.
    """
    rows = np.arange(regimes.size)
    known = np.maximum.accumulate(np.where(regimes > 0, rows, 0))
    regimes, beliefs = regimes[known], beliefs[known]
    uneven = np.flatnonzero(beliefs.max(axis=1) * regimes > 1.0 + 1e-12)
    first = int(uneven[0]) if uneven.size else rows.size
    eras = np.append(np.flatnonzero(np.diff(regimes[first:], prepend=0)) + first, rows.size).tolist()
    changes = [
        (start + change.since_round - 1, change.before, change.after)
        for start, end in pairwise(eras)
        if regimes[start] > 1
        for change in find_regime_changes(beliefs[start:end, : regimes[start]], 0, rounds, None)[0]
    ]
    return np.array(changes, np.int64).reshape(-1, 3)


def bucket_starts(first: int, end: int, points: int, changes: IntArray) -> IntArray:
    """The first row of each bucket of the rows first … end-1: one at every change, the others evenly spaced.

    There are at most `points` buckets, or one more than there are changes if that is more.
    """
    if first >= end:
        return np.empty(0, np.int64)
    inner = changes[(changes > first) & (changes < end)]
    corners = np.concatenate(([first], inner, [end]))
    lengths = np.diff(corners)
    spare = max(0, points - lengths.size)
    # Each stretch between two changes gets one bucket, and its share of the spare ones by its length.
    shares = np.minimum(1 + spare * lengths // (end - first), lengths)
    place = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
    starts: IntArray = np.repeat(corners[:-1], shares) + place * np.repeat(lengths, shares) // np.repeat(shares, shares)
    return starts


def _zip_dicts(columns: dict[str, Iterable[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _name_counts(table: IntArray, names: Sequence[str]) -> list[dict[str, int]]:
    return [dict(zip(names, counts, strict=True)) for counts in table.tolist()]


def _list_rewards(counts: FloatArray, sums: FloatArray) -> list[dict[str, Any]]:
    return _zip_dicts({"count": counts.astype(np.int64).tolist(), "sum": sums.tolist()})


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
    return _zip_dicts({name: [None if isnan(v) else v for v in column.tolist()] for name, column in columns.items()})
