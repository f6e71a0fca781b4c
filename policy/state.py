"""Requests, decisions, and the state of a campaign."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from policy.arrays import BoolArray, FloatArray
from policy.defaults import SEARCH_ROUNDS
from policy.delays import SLICES
from policy.exposure import Exposure, Waiting, find_reached
from policy.history import LONG_AGO, History
from policy.hmm import HmmParameters
from policy.kernels import Statistics
from policy.online import OnlineStatistics
from policy.selection import Selection

MODES = ("warm_start", "optimistic", "control")


class Score(NamedTuple):
    action: str
    estimate: float
    bonus: float
    score: float


class Decision(NamedTuple):
    """One answer: what was chosen in a round, how likely that was, and why."""

    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float
    belief: tuple[float, ...]
    eligible: tuple[str, ...]  # the actions that could be chosen, in the campaign's order
    estimates: tuple[float, ...]  # θ̂ᵀz of each of them
    bonuses: tuple[float, ...]  # ε_{t,a} of each of them

    @property
    def scores(self) -> tuple[Score, ...]:
        """The score of each eligible action."""
        each = zip(self.eligible, self.estimates, self.bonuses, strict=True)
        return tuple(Score(action, estimate, bonus, estimate + bonus) for action, estimate, bonus in each)


class Decided(NamedTuple):
    """Rounds decided by one model, as a table, which is faster than a Decision for each.

    They may cross the ends of stages whose updates had nothing to fold: the same model under later versions.
    """

    first: int  # round
    stage_length: int
    first_version: int  # model version of the first round
    actions: tuple[str, ...]
    eligible: BoolArray  # rounds × K
    answers: FloatArray  # a row per round: action, mode, propensity, K estimates, K bonuses, H beliefs

    @property
    def versions(self) -> list[int]:
        """The model version of each round."""
        begun, length = (self.first - 1) % self.stage_length, self.stage_length
        return [self.first_version + place // length for place in range(begun, begun + len(self.answers))]

    def decisions(self) -> list[Decision]:
        """A Decision for each round."""
        first, length, _, names, eligible, answers = self
        bonuses_at, beliefs_at = 3 + len(names), 3 + 2 * len(names)
        everyone = bool(eligible.all())
        decisions = []
        for t, (version, answer) in enumerate(zip(self.versions, answers.tolist(), strict=True), first):
            who, estimates, bonuses = names, tuple(answer[3:bonuses_at]), tuple(answer[bonuses_at:beliefs_at])
            if not everyone:
                left = np.flatnonzero(eligible[t - first]).tolist()
                who = tuple([names[a] for a in left])
                estimates, bonuses = tuple([estimates[a] for a in left]), tuple([bonuses[a] for a in left])
            decisions.append(
                Decision(
                    t, (t - 1) // length + 1, version, MODES[int(answer[1])], names[int(answer[0])],
                    answer[2], tuple(answer[beliefs_at:]), who, estimates, bonuses,
                )
            )  # fmt: skip
        return decisions


class Request(NamedTuple):
    """One item of a batch."""

    context: Mapping[str, Any]
    excluded_actions: Collection[str] = ()
    subject: str | None = None
    at: float | None = None  # seconds since any fixed moment; required if the campaign has a clock


class PastRound(NamedTuple):
    """A round to be recorded with the action it had: imported, or its request no longer exists."""

    context: Mapping[str, Any] | None  # None if missing: the filter only predicts (R22)
    action: str
    at: float | None = None
    decided_at: int = LONG_AGO  # microseconds; only used in campaigns with a default reward


class State(NamedTuple):
    """Everything a campaign has learned. Never changed in place: every step returns a new state."""

    round: int  # rounds decided
    belief: FloatArray  # after the last round's context
    hmm: HmmParameters | None  # the aligned estimate in force
    next_estimation: int  # the round before which a re-estimation is due, 0 for never
    next_update: int  # the round before which the update that ends the stage is due
    statistics: Statistics
    model_version: int  # publications so far: stage updates and re-estimations
    history: History
    arrived: int  # rewards taken, and revisions of them
    folded: int  # of them, folded into the statistics
    rebuild: bool  # the next stage update recomputes the statistics from round 1 (R4)
    selection: Selection | None  # the candidates of joint statistics, None before the first estimate
    period: int  # the last period of the clock seen, counted from time 0
    trial_end: int = 0  # the last round of a trial, in which every action is played now and then because one is new
    trial_first: int = 0  # the position of the first action on trial
    online: OnlineStatistics | None = None  # of the estimator online_em, None before its first estimate
    exposure: Exposure | None = None  # of a campaign with a default reward: how much of each round is in the model

    @property
    def counted(self) -> int:
        """The number of rounds whose reward is in the model: those folded, without excluded ones (R21, R22).

        With a default reward, the rounds in the model: a round that waits counts by its slices.
        """
        if self.exposure is not None:
            return int(self.statistics.counters[0]) // SLICES
        return self.history.count_first_arrivals(self.folded)

    @property
    def rows(self) -> int:
        """The rounds that the history has rows of: the last ones (window.py)."""
        return self.round - self.history.first

    def get_exact_history(self) -> History:
        """The history, without rounds and rewards that a later state has added to it."""
        return self.history.cut(self.round, self.arrived)

    def find_waiting(self, default: float | None) -> Waiting | None:
        """What counts now in a campaign with a default reward; None in others."""
        if self.exposure is None or default is None:
            return None
        return Waiting(default, find_reached(self.exposure, self.history, self.round))

    @property
    def search_rounds(self) -> int:
        """How much of the warm start goes on because rewards have not varied enough (R8); 0 once they have."""
        return SEARCH_ROUNDS if self.selection is not None and not self.selection.is_varied else 0

    @property
    def is_estimation_due(self) -> bool:
        """Is a re-estimation due before the next round (R3)?"""
        return 0 < self.next_estimation <= self.round + 1

    @property
    def is_update_due(self) -> bool:
        """Has a stage ended whose update has not run (R1)?"""
        return self.next_update <= self.round + 1

    @property
    def rounds_ahead(self) -> int:
        """The number of rounds that can be decided before something is due; 0 when something is."""
        due = self.next_update
        if 0 < self.next_estimation < due:
            due = self.next_estimation
        return max(0, due - 1 - self.round)


def find_stage_start(t: int, stage_length: int) -> int:
    """The first round ≥ t that begins a stage."""
    return (t + stage_length - 2) // stage_length * stage_length + 1
