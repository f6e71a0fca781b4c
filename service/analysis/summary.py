"""The sums behind a report, over pages of the log: counts and means, the lift, the values of other policies."""

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from policy.arrays import FloatArray, IntArray
from policy.evaluation import GROUPS, LiftSums, OffPolicySums, Rewarded
from policy.frozen import FrozenModel, choose_greedily
from policy.lift import ALONE, Compared
from policy.logging_law import Logged, compute_logging_law, list_floors, mark_first_eligible
from service.base.times import SECOND
from service.base.waits import Wait
from service.engine.encoding import Explanation
from service.storage.erasure import EMPTY_EXPLANATION
from service.storage.reading import LoggedDecision
from service.storage.rows import RevisionRow

_explanations = msgspec.json.Decoder(list[Explanation])


class Version(NamedTuple):
    """A model to evaluate, only on rounds after its publication."""

    number: int
    round: int
    model: FrozenModel
    sums: OffPolicySums


class _Page:
    """Rows of the log as arrays: n decisions, K actions. Rewards of decisions whose wait is not over do not count."""

    def __init__(self, rows: Sequence[LoggedDecision], index: Mapping[str, int], wait: Wait) -> None:
        self.rows = rows
        self.rounds = np.array([row.round for row in rows])
        self.modes = np.array([row.mode for row in rows])
        self.taken = np.array([index[row.action] for row in rows], np.intp)
        self.propensity = np.array([row.propensity for row in rows])
        self.known = np.array([not row.erased for row in rows], np.bool_)
        ends = np.array([wait.get_end(row.decided_at) for row in rows])
        waits = wait.default is not None and (ends > wait.now)
        self.open = self.known & (self.modes != "imported") & waits
        rewards = np.array([row.reward for row in rows], np.float64)  # None becomes NaN
        self.early = self.open & ~np.isnan(rewards)
        self.ends = ends
        self.rewards = np.where(self.known & ~self.open, rewards, np.nan)
        self.clusters = np.array(
            [ALONE if row.subject is None else zlib.crc32(row.subject.encode()) % GROUPS for row in rows], np.intp
        )
        texts = [EMPTY_EXPLANATION if row.erased else row.explanation for row in rows]
        explanations = _explanations.decode(f"[{','.join(texts)}]")
        self.beliefs = [explanation.belief for explanation in explanations]
        lengths = [len(explanation.scores) for explanation in explanations]
        scores = [score for explanation in explanations for score in explanation.scores]
        place = np.repeat(np.arange(len(rows)), lengths), np.array([index[score.action] for score in scores], np.intp)
        self.scores, self.estimates = np.full((2, len(rows), len(index)), np.nan)  # NaN: the action was not eligible
        self.scores[place] = [score.score for score in scores]
        self.estimates[place] = [score.estimate for score in scores]


class Summary:
    """What a report says about the decisions that were added."""

    def __init__(self, revisions: Sequence[RevisionRow], regimes: int, versions: Sequence[Version], wait: Wait) -> None:
        """With a default reward, decisions do not count until their wait is over: the rewards that have come already
        are not like those that have not."""
        self._wait = wait
        self.early_count_from: int | None = None  # when the first reward that came early will count
        self.complete_at: int | None = None  # when all will
        configs = [msgspec.json.decode(row.config) for row in revisions]
        self.actions: list[str] = configs[-1]["actions"]  # actions are only ever appended
        self._stage_length = configs[-1]["stage_length"]
        self._index = {action: place for place, action in enumerate(self.actions)}
        self._since = np.array([row.round for row in revisions])  # a revision is in force from the next round on
        self._share = np.array([config["control"]["share"] for config in configs])
        self._baseline = np.array([config["control"]["kind"] == "baseline" for config in configs])
        self._floors = np.array(
            [list_floors(c["propensity_floor"], len(c["actions"]) - len(c["retired_actions"])) for c in configs]
        )
        self.counts, self.modes, self.sources = Counter[str](), Counter[str](), Counter[str]()
        self.control_baseline: bool | None = None  # in the last decision while control was on
        self.control_changed_at: int | None = None  # the last time its kind changed
        # Decisions, rewards, and the sum of rewards: by action, and by action and regime.
        self.by_action = np.zeros((3, len(self.actions)))
        self.by_regime = np.zeros((3, len(self.actions), regimes))
        self.lift = LiftSums()
        self.always = [OffPolicySums() for _ in self.actions]
        self.baseline = OffPolicySums()
        self.versions = versions

    def add(self, rows: Sequence[LoggedDecision], start: int) -> None:
        """Add the next rows of the log. Rows up to round `start` only advance the beliefs of the versions."""
        inside = [row for row in rows if row.round > start]
        expected = self._predict(rows, len(inside))
        if inside:
            page = _Page(inside, self._index, self._wait)
            revision = np.searchsorted(self._since, page.rounds - 1, side="right") - 1
            self._count(page)
            self._add_lift(page, revision)
            self._add_off_policy(page, revision, expected)

    def _count(self, page: _Page) -> None:
        known, rewarded, imported = page.known, ~np.isnan(page.rewards), page.modes == "imported"
        fits = np.array([len(belief) == self.by_regime.shape[2] for belief in page.beliefs], np.bool_)
        for name, counted in (
            ("decisions", np.ones_like(known)),
            ("erased", ~known),
            ("open", page.open),
            ("early", page.early),
            ("imported", known & imported),
            ("awaited", known & ~rewarded),
            ("ours_awaited", known & ~rewarded & ~imported),
            ("other_regimes", known & ~fits),
        ):
            self.counts[name] += int(counted.sum())
        if page.early.any() and self.early_count_from is None:
            self.early_count_from = int(page.ends[page.early][0])
        if page.open.any():
            self.complete_at = int(page.ends[page.open][-1])
        self.modes.update(page.modes.tolist())
        self.sources.update(row.source for row, came in zip(page.rows, rewarded, strict=True) if came and row.source)
        weights = np.stack([np.ones_like(page.rewards), rewarded, np.where(rewarded, page.rewards, 0.0)])
        for total, weight in zip(self.by_action, weights, strict=True):
            total += np.bincount(page.taken, weight, total.size)
        beliefs = np.array([belief for belief, fit in zip(page.beliefs, fits, strict=True) if fit])
        if beliefs.size:
            for total, weight in zip(self.by_regime, weights[:, fits], strict=True):
                np.add.at(total, page.taken[fits], weight[:, None] * beliefs)

    def _add_lift(self, page: _Page, revision: IntArray) -> None:
        share, baseline = self._share[revision], self._baseline[revision]
        controlled, came = page.modes == "control", ~np.isnan(page.rewards)
        compared = (controlled | (page.modes == "optimistic")) & (share > 0.0)
        self.lift.awaited += int((compared & ~came).sum())
        counted = compared & came
        self.lift.add(Compared(*(column[counted] for column in (page.rewards, controlled, share, page.clusters))))
        for place in np.flatnonzero(counted).tolist():
            if self.control_baseline not in (None, baseline[place]):
                self.control_changed_at = page.rows[place].decided_at
            self.control_baseline = bool(baseline[place])

    def _add_off_policy(self, page: _Page, revision: IntArray, expected: Sequence[FloatArray]) -> None:
        warm, in_force = page.modes == "warm_start", (self._share[revision], self._baseline[revision])
        logged = Logged(page.scores, warm, page.taken, page.propensity, *in_force, self._floors[revision])
        law, explained = compute_logging_law(logged)
        rewarded = page.known & (page.modes != "imported") & ~np.isnan(page.rewards)
        self.counts["unexplained"] += int((rewarded & ~explained).sum())
        counted = rewarded & explained
        # Before the first stage update θ̂ is not an estimate (Box A starts from 1/λ), so nothing is predicted.
        predictions = np.where((page.rounds > self._stage_length)[:, None], page.estimates, 0.0)
        every = Rewarded(page.rewards, page.taken, page.propensity, law, predictions, page.clusters)
        rows, eligible = every.take(counted), ~np.isnan(page.scores)
        for sums, action in zip(self.always, np.eye(len(self.actions)), strict=True):
            sums.add(rows, np.broadcast_to(action, rows.law.shape))
        self.baseline.add(rows, mark_first_eligible(eligible[counted]))
        for version, values in zip(self.versions, expected, strict=True):
            target = choose_greedily(values, eligible)
            later = counted & (page.rounds > version.round) & (target.sum(axis=1) > 0.0)
            version.sums.add(every.take(later), target[later])

    def _predict(self, rows: Sequence[LoggedDecision], inside: int) -> list[FloatArray]:
        """The reward that each version expects of each action in the last `inside` rows; NaN up to its publication."""
        if not self.versions:
            return []
        contexts: list[dict[str, Any] | None]
        contexts = msgspec.json.decode(f"[{','.join(row.context or 'null' for row in rows)}]")
        times = [None if row.at is None else row.at / SECOND for row in rows]
        predictions = []
        for version in self.versions:
            first = bisect_right(rows, version.round, key=attrgetter("round"))
            expected = version.model.follow(contexts[first:], times[first:])
            values = np.full((len(rows), len(self.actions)), np.nan)
            values[first:, : expected.shape[1]] = expected
            predictions.append(values[len(rows) - inside :])
        return predictions
