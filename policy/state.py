"""What goes into a decision and what comes out: requests, decisions, and the state of a campaign."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policy.history import History
from policy.hmm import HmmParameters
from policy.kernels import Statistics
from policy.selection import Selection

__all__ = ["MODES", "Decided", "Decision", "PastRound", "Request", "Score", "State"]

FloatArray = npt.NDArray[np.float64]
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
        """Why: what each eligible action was worth."""
        each = zip(self.eligible, self.estimates, self.bonuses, strict=True)
        return tuple(Score(action, estimate, bonus, estimate + bonus) for action, estimate, bonus in each)


class Decided(NamedTuple):
    """Rounds that one model has decided, as a table: whoever has many need not make a Decision of each.

    They may go on over the ends of stages whose updates had nothing to fold: the same model, under the next versions.
    """

    first: int  # of the rounds
    stage_length: int
    first_version: int  # of the model
    actions: tuple[str, ...]
    eligible: npt.NDArray[np.bool_]  # rounds × K
    answers: FloatArray  # a row each: action, mode, propensity, K estimates, K bonuses, H beliefs

    @property
    def versions(self) -> list[int]:
        """Of the model, for each of the rounds."""
        begun, length = (self.first - 1) % self.stage_length, self.stage_length
        return [self.first_version + place // length for place in range(begun, begun + len(self.answers))]

    def decisions(self) -> list[Decision]:
        """The same, one by one."""
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
    at: float | None = None  # seconds since any fixed moment; needed where the campaign has a clock


class PastRound(NamedTuple):
    """A round whose action was not chosen here, or cannot be chosen again: its request is not there (any more)."""

    context: Mapping[str, Any] | None  # None if it is missing: the filter only predicts there (R22)
    action: str
    at: float | None = None


class State(NamedTuple):
    """Everything a campaign knows. Never changed: every step returns the next one."""

    round: int  # rounds decided
    belief: FloatArray  # after the last round's context
    hmm: HmmParameters | None  # the aligned estimate in force
    next_estimation: int  # the round that is due for re-estimation, 0 for never
    next_update: int  # the round before which the update that ends the stage is due
    statistics: Statistics
    model_version: int  # publications so far: stage updates and re-estimations
    history: History
    arrived: int  # rewards taken
    folded: int  # of them, folded into the statistics
    rebuild: bool  # the next stage update recomputes the statistics from round 1 (R4)
    selection: Selection | None  # the candidates behind joint statistics, None before the first estimate
    period: int  # of the clock, counted from time 0; the last one seen
    trial_end: int = 0  # up to this round, a stage's last, every action is tried now and then: one of them is new
    trial_first: int = 0  # the place of the first of those that are new

    @property
    def counted(self) -> int:
        """The rewards in the model: those folded, but for the excluded ones (R21, R22)."""
        return self.folded - self.history.excluded.size
