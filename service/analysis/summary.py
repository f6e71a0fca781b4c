"""The sums behind a report, over pages of the log: counts and means, the lift, the values of other policies."""

import math
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from policy.arrays import BoolArray, FloatArray, IntArray
from policy.evaluation import GROUPS, LiftSums, OffPolicySums, Rewarded
from policy.frozen import FrozenModel, choose_greedily
from policy.lift import ALONE, Compared
from policy.logging_law import Logged, compute_logging_law, list_floors, mark_first_eligible
from service.base.times import SECOND
from service.storage.reading import LoggedDecision
from service.storage.rows import RevisionRow


class _Score(msgspec.Struct, gc=False):
    action: str
    estimate: float
    score: float


class _Explanation(msgspec.Struct):
    belief: list[float] = []
    scores: list[_Score] = []


class _Control(msgspec.Struct):
    share: float
    kind: str


class _Config(msgspec.Struct):
    """The parts of a configuration that the probabilities of a decision depend on."""

    actions: list[str]
    retired_actions: list[str]
    control: _Control
    propensity_floor: float
    stage_length: int


_explanations = msgspec.json.Decoder(list[_Explanation])


class Version(NamedTuple):
    """A model to evaluate, only on rounds after its publication."""

    number: int
    round: int
    model: FrozenModel
    sums: OffPolicySums


class _Page(NamedTuple):
    """Rows of the log as arrays: n decisions, K actions."""

    rows: Sequence[LoggedDecision]
    taken: IntArray
    beliefs: Sequence[list[float]]
    rewards: FloatArray  # NaN where there is none
    erased: BoolArray
    imported: BoolArray
    scores: FloatArray  # n×K, NaN where an action was not eligible
    estimates: FloatArray


class Summary:
    """What a report says about the decisions that were added."""

    def __init__(
        self, revisions: Sequence[RevisionRow], regimes: int, versions: Sequence[Version], settled: int | None = None
    ) -> None:
        """With a default reward, `settled` is the last round up to which every decision has its reward. Later rounds do
        not count yet: the rewards that have already come are not like those that have not."""
        self._settled = math.inf if settled is None else settled
        configs = [msgspec.json.decode(row.config, type=_Config) for row in revisions]
        self.actions = configs[-1].actions  # actions are only ever appended
        self._stage_length = configs[-1].stage_length
        self._index = {action: place for place, action in enumerate(self.actions)}
        self._since = np.array([row.round for row in revisions])  # a revision is in force from the next round on
        self._share = np.array([config.control.share for config in configs])
        self._baseline = np.array([config.control.kind == "baseline" for config in configs])
        self._floors = np.array(
            [list_floors(c.propensity_floor, len(c.actions) - len(c.retired_actions)) for c in configs]
        )
        count = len(self.actions)
        self.decisions = self.erased = self.imported = self.awaited = self.open = self.other_regimes = 0
        self.ours_awaited = self.unexplained = 0
        self.modes, self.sources = Counter[str](), Counter[str]()
        self.control_baseline: bool | None = None  # in the last decision while control was on
        self.control_changed_at: int | None = None  # the last time its kind changed
        # Decisions, rewards, and the sum of rewards: by action, and by action and regime.
        self.by_action = np.zeros((3, count))
        self.by_regime = np.zeros((3, count, regimes))
        self.lift = LiftSums()
        self.always = [OffPolicySums() for _ in self.actions]
        self.baseline = OffPolicySums()
        self.versions = versions

    def add(self, rows: Sequence[LoggedDecision], start: int) -> None:
        """Add the next rows of the log. Rows up to round `start` only advance the beliefs of the versions."""
        inside = [row for row in rows if row.round > start]
        contexts = self._parse_contexts(rows)
        values = [(version, self._predict(version, rows, contexts, len(inside))) for version in self.versions]
        if not inside:
            return
        page = self._parse_page(inside)
        self._count(page)
        revision = np.searchsorted(self._since, [row.round - 1 for row in inside], side="right") - 1
        clusters = _cluster_by_subject(inside)
        self._add_lift(page, revision, clusters)
        self._add_off_policy(page, revision, clusters, values)

    # --- counts and means --------------------------------------------------------------------------------------

    def _parse_page(self, rows: Sequence[LoggedDecision]) -> _Page:
        texts = ",".join("{}" if row.erased else row.explanation for row in rows)
        explanations = _explanations.decode(f"[{texts}]")
        shape, index = (len(rows), len(self.actions)), self._index
        scores, estimates = np.full(shape, np.nan), np.full(shape, np.nan)
        each = [score for explanation in explanations for score in explanation.scores]
        place = (
            np.repeat(np.arange(len(rows)), [len(explanation.scores) for explanation in explanations]),
            np.array([index[score.action] for score in each], np.intp),
        )
        scores[place] = [score.score for score in each]
        estimates[place] = [score.estimate for score in each]
        return _Page(
            rows,
            np.array([index[row.action] for row in rows], np.intp),
            [explanation.belief for explanation in explanations],
            np.array(
                [
                    np.nan if row.reward is None or row.erased or row.round > self._settled else row.reward
                    for row in rows
                ]
            ),
            np.array([row.erased for row in rows], np.bool_),
            np.array([row.mode == "imported" for row in rows], np.bool_),
            scores,
            estimates,
        )

    def _count(self, page: _Page) -> None:
        known, rewarded = ~page.erased, ~np.isnan(page.rewards)
        self.open += sum(row.round > self._settled and not row.erased for row in page.rows)
        self.decisions += len(page.rows)
        self.erased += int(page.erased.sum())
        self.imported += int((known & page.imported).sum())
        self.awaited += int((known & ~rewarded).sum())
        self.ours_awaited += int((known & ~rewarded & ~page.imported).sum())
        self.modes.update(row.mode for row in page.rows)
        self.sources.update(row.source for row, came in zip(page.rows, rewarded, strict=True) if came and row.source)
        count, regimes = self.by_regime.shape[1:]
        weights = np.stack([np.ones_like(page.rewards), rewarded, np.where(rewarded, page.rewards, 0.0)])
        for total, weight in zip(self.by_action, weights, strict=True):
            total += np.bincount(page.taken, weight, count)
        fits = np.array([len(belief) == regimes for belief in page.beliefs], np.bool_)
        self.other_regimes += int((known & ~fits).sum())
        beliefs = np.array([belief for belief, fit in zip(page.beliefs, fits, strict=True) if fit]).reshape(-1, regimes)
        for total, weight in zip(self.by_regime, weights[:, fits], strict=True):
            np.add.at(total, page.taken[fits], weight[:, None] * beliefs)

    # --- lift and other policies -------------------------------------------------------------------------------

    def _add_lift(self, page: _Page, revision: IntArray, clusters: IntArray) -> None:
        share = self._share[revision]
        controlled = np.array([row.mode == "control" for row in page.rows], np.bool_)
        decided = np.array([row.mode == "optimistic" for row in page.rows], np.bool_)
        counted = (controlled | decided) & (share > 0.0)
        self.lift.awaited += int((counted & np.isnan(page.rewards)).sum())
        counted &= ~np.isnan(page.rewards)
        self.lift.add(Compared(page.rewards[counted], controlled[counted], share[counted], clusters[counted]))
        for place, baseline in zip(np.flatnonzero(counted).tolist(), self._baseline[revision[counted]], strict=True):
            if self.control_baseline not in (None, baseline):
                self.control_changed_at = page.rows[place].decided_at
            self.control_baseline = bool(baseline)

    def _add_off_policy(
        self, page: _Page, revision: IntArray, clusters: IntArray, values: Sequence[tuple[Version, FloatArray]]
    ) -> None:
        own = ~page.erased & ~page.imported
        propensity = np.array([row.propensity for row in page.rows])
        law, explained = compute_logging_law(
            Logged(
                page.scores,
                np.array([row.mode == "warm_start" for row in page.rows], np.bool_),
                page.taken,
                propensity,
                self._share[revision],
                self._baseline[revision],
                self._floors[revision],
            )
        )
        rewarded = own & ~np.isnan(page.rewards)
        self.unexplained += int((rewarded & ~explained).sum())
        counted = rewarded & explained
        # Before the first stage update θ̂ is not an estimate (Box A starts from 1/λ), so nothing is predicted.
        rounds = np.array([row.round for row in page.rows])
        predictions = np.where((rounds > self._stage_length)[:, None], page.estimates, 0.0)
        every = Rewarded(page.rewards, page.taken, propensity, law, predictions, clusters)
        rows, eligible = every.take(counted), ~np.isnan(page.scores)
        for place, sums in enumerate(self.always):
            target = np.zeros(rows.law.shape)
            target[:, place] = 1.0
            sums.add(rows, target)
        self.baseline.add(rows, mark_first_eligible(eligible[counted]))
        for version, expected in values:
            target = choose_greedily(expected, eligible)
            later = counted & (rounds > version.round) & (target.sum(axis=1) > 0.0)
            version.sums.add(every.take(later), target[later])

    def _parse_contexts(self, rows: Sequence[LoggedDecision]) -> list[dict[str, Any] | None]:
        if not self.versions:
            return []
        contexts: list[dict[str, Any] | None]
        contexts = msgspec.json.decode(f"[{','.join(row.context or 'null' for row in rows)}]")
        return contexts

    def _predict(
        self, version: Version, rows: Sequence[LoggedDecision], contexts: Sequence[dict[str, Any] | None], inside: int
    ) -> FloatArray:
        """The reward a version expects of each action in the last `inside` rows; NaN up to its publication."""
        first = bisect_right(rows, version.round, key=attrgetter("round"))
        times = [None if row.at is None else row.at / SECOND for row in rows[first:]]
        expected = version.model.follow(contexts[first:], times)
        values = np.full((len(rows), len(self.actions)), np.nan)
        values[first:, : expected.shape[1]] = expected
        return values[len(rows) - inside :]


def _cluster_by_subject(rows: Sequence[LoggedDecision]) -> IntArray:
    groups = [ALONE if row.subject is None else zlib.crc32(row.subject.encode()) % GROUPS for row in rows]
    return np.array(groups, np.intp)
