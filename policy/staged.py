"""StagedPolicy: observe → belief → scores → action → reward → stage update. State in, state out.

The order inside round t: a re-estimation that is due (R3), the update that ends a stage (R1), the filter step, the
scores, the draw. A re-estimation due at a stage's end comes first, so that update already uses what it recomputed.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policy import bonus, em, hmm, kernels, linucb, spectral
from policy.config import LARGEST_REWARD, CampaignConfig, GrowthFactor
from policy.errors import ArgumentError, ContextError, FieldProblem, RewardError
from policy.features import Contexts, feature_map
from policy.history import History
from policy.hmm import HmmParameters
from policy.kernels import Statistics

__all__ = ["MODES", "Decision", "Request", "Score", "StagedPolicy", "State"]

FloatArray = npt.NDArray[np.float64]
MODES = ("warm_start", "optimistic", "control")
RECENT = 300  # the filter forgets exponentially fast: this many contexts give the belief (R5)


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


class Request(NamedTuple):
    """One item of a batch."""

    context: Mapping[str, Any]
    excluded_actions: Collection[str] = ()
    subject: str | None = None


class _Rows(NamedTuple):
    """Requests as tables, as the kernel takes them: encoded contexts, eligible actions, (subject hash, present?)."""

    codes: npt.NDArray[np.int16]
    numbers: FloatArray
    eligible: npt.NDArray[np.bool_]
    subjects: npt.NDArray[np.uint64]

    def part(self, start: int, stop: int) -> "_Rows":
        codes, numbers, eligible, subjects = self
        return _Rows(codes[start:stop], numbers[start:stop], eligible[start:stop], subjects[start:stop])


_NO_SUBJECT = np.zeros((1, 2), np.uint64)
_NO_MATRIX = np.empty((0, 0))


class State(NamedTuple):
    """Everything a campaign knows. Never changed: every step returns the next one."""

    round: int  # rounds decided
    belief: FloatArray  # after the last round's context
    hmm: HmmParameters | None  # the aligned estimate in force
    next_estimation: int  # the round that is due for re-estimation, 0 for never
    statistics: Statistics
    model_version: int  # publications so far: stage updates and re-estimations
    history: History
    arrived: int  # rewards taken
    folded: int  # of them, folded into the statistics
    rebuild: bool  # the next stage update recomputes the statistics from round 1 (R4)


class StagedPolicy:
    """The paper's method for one campaign; holds only what follows from the configuration."""

    def __init__(self, config: CampaignConfig) -> None:
        self.config = config
        self.features = feature_map(config)
        self._exploration = bonus.exploration(config)
        self._tabled = self._exploration.form in (kernels.TABLED, kernels.TABLED_ELLIPTICAL)
        self.ridge = bonus.effective_ridge(config, self.features)
        self.chance = kernels.Chance(
            config.seed, config.control.share, config.control.kind == "baseline", config.propensity_floor
        )
        # What every decision hands to the kernel, gathered once: a decision takes microseconds.
        plan = self.features.plan
        self._fixed = (plan.terms, plan.positions, plan.sizes, *self.chance, config.warm_start_rounds)
        self._row_shape = (len(config.variables), self.features.numbers, self.features.regimes)
        self._shape = (self.features.dimension, self.features.regimes, self._row_shape)
        self._action_index = {name: i for i, name in enumerate(config.actions)}
        self._all_eligible = np.ones((1, len(config.actions)), np.bool_)

    def exploration(self, first_round: int, count: int) -> kernels.Exploration:
        """The bonus rule for the given rounds."""
        if self._tabled:
            return bonus.tabled(self.config, self.features, first_round, count)
        return self._exploration

    # --- decisions -------------------------------------------------------------------------------------------

    def initial_state(self) -> State:
        config, features = self.config, self.features
        regimes, given = features.regimes, config.beliefs.parameters
        known = HmmParameters.checked(given.transition, given.emission, given.initial) if given else None
        estimated = config.beliefs.estimator in ("spectral", "em") and regimes > 1
        return State(
            round=0,
            belief=known.initial if known else np.full(regimes, 1.0 / regimes),
            hmm=known,
            next_estimation=config.beliefs.start_round or 0 if estimated else 0,
            statistics=linucb.initial_statistics(features.dimension, self.ridge),
            model_version=0,
            history=History(*self._row_shape),
            arrived=0,
            folded=0,
            rebuild=False,
        )

    def decide(
        self,
        state: State,
        context: Mapping[str, Any],
        *,
        excluded_actions: Collection[str] = (),
        subject: str | None = None,
    ) -> tuple[State, Decision]:
        """Decide one round."""
        codes, numbers = self.features.encode_one(context)
        rows = _Rows(codes, numbers, *self._rules(excluded_actions, subject))
        state, decisions = self._advance(state, rows)
        return state, decisions[0]

    def decide_batch(self, state: State, requests: Sequence[Request]) -> tuple[State, list[Decision]]:
        """Decide several rounds: exactly what one-by-one calls in that order give; all or nothing."""
        if not all(isinstance(request, Request) for request in requests):
            raise ArgumentError("requests", "holds something else", "a list of policy.Request")
        rules = [self._rules(r.excluded_actions, r.subject, f"items[{i}].") for i, r in enumerate(requests)]
        codes, numbers = self.features.encode_rows([r.context for r in requests])
        if not rules:
            return state, []
        eligible, subjects = (np.concatenate(column) for column in zip(*rules, strict=True))
        return self._advance(state, _Rows(codes, numbers, eligible, subjects))

    def play(
        self,
        state: State,
        contexts: Contexts,
        reward_table: FloatArray,
        beliefs: FloatArray | None = None,
        decided: FloatArray | None = None,
    ) -> State:
        """Decide a row after the other and take each reward at once, all in compiled code: offline evaluation.

        `reward_table` (rows × actions) holds what each action would earn. Exactly what `decide` and `reward` row by
        row give. `beliefs` (rows × H) are used instead of estimating them, so that many runs share one belief path.
        `decided` (rows × H) is filled with the beliefs each row was decided with; the history's may be recomputed (R4).
        """
        self._check(state)
        rows, arms = contexts.symbols.size, len(self.config.actions)
        low, high = self.config.rewards.range or (-LARGEST_REWARD, LARGEST_REWARD)
        if reward_table.shape != (rows, arms) or not ((reward_table >= low) & (reward_table <= high)).all():
            allowed = f"({rows}, {arms}), every number from {low:g} to {high:g}"
            raise ArgumentError("reward_table", f"shape {reward_table.shape}", allowed)
        self.features.check(contexts)
        for field, given in (("beliefs", beliefs), ("decided", decided)):
            if given is not None and given.shape != (rows, self.features.regimes):
                raise ArgumentError(field, f"shape {given.shape}", f"({rows}, {self.features.regimes})")
        if beliefs is not None and not np.isfinite(beliefs).all():
            raise ArgumentError("beliefs", "hold a number that is not finite", "laws of the regimes")
        folded_rows = state.history.arrivals(0, state.folded)
        if state.arrived != state.round or not np.array_equal(folded_rows, np.arange(state.folded)):
            message = "has rewards that are missing or were folded out of round order"
            raise ArgumentError("state", message, "a state whose every round has its reward, taken in order")
        begun, done, length = state.round, 0, self.config.stage_length
        statistics = linucb.copied(state.statistics)
        while done < rows:
            if beliefs is None and state.next_estimation and state.round + 1 >= state.next_estimation:
                state = self.reestimate(state)
            stop = rows
            if beliefs is None and state.next_estimation:
                stop = min(rows, state.next_estimation - 1 - begun)
            part = contexts.rows(done, stop)
            if beliefs is None:
                path = np.empty((stop - done, self.features.regimes))
                kernels.belief_path(*self._chain(state), part.symbols, path)
            else:
                path = beliefs[done:stop]
            if decided is not None:
                decided[done:stop] = path
            history = state.history.at(state.round, state.arrived)
            start, end = begun + done, begun + stop
            history.append(part, np.zeros(stop - done, np.int16), path)
            folded = kernels.play_rounds(
                self.features.plan, self.chance, self.exploration(start + 1, stop - done), statistics,
                start, end, -1 if state.rebuild else state.folded, self.ridge,
                self.config.warm_start_rounds, history.contexts.levels, history.contexts.values,
                history.beliefs, reward_table[done:stop], history.actions, history.rewards,
            )  # fmt: skip
            history.all_rewarded(start, end)
            state = state._replace(
                round=end,
                belief=path[-1].copy(),
                statistics=statistics,
                model_version=state.model_version + (end - 1) // length - max(start - 1, 0) // length,
                history=history,
                arrived=end,
                folded=state.folded if folded < 0 else folded,
                rebuild=folded < 0,
            )
            done = stop
        return state

    def preview(
        self,
        state: State,
        context: Mapping[str, Any],
        *,
        excluded_actions: Collection[str] = (),
        subject: str | None = None,
    ) -> Decision:
        """What `decide` would answer; nothing is recorded, so what is due at a boundary is worked out again later."""
        codes, numbers = self.features.encode_one(context)
        rows = _Rows(codes, numbers, *self._rules(excluded_actions, subject))
        return self._decide_rows(self._at_boundary(state), rows, History(*self._row_shape, 1))[0][0]

    def _rules(
        self, excluded: Collection[str], subject: str | None, where: str = ""
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """A request's exclusions and subject, checked, as tables of one row: eligible actions, (hash, present?)."""
        eligible, key = self._all_eligible, _NO_SUBJECT
        if excluded:
            field = f"{where}excluded_actions"
            if isinstance(excluded, str) or not isinstance(excluded, Collection):
                raise ContextError([FieldProblem(field, f"{excluded!r:.60} is not a list", "a list of actions")])
            if unknown := [x for x in excluded if not isinstance(x, str) or x not in self._action_index]:
                raise ContextError([FieldProblem(field, f"unknown: {unknown}", list(self.config.actions))])
            eligible = eligible.copy()
            eligible[0, [self._action_index[name] for name in excluded]] = False
            if not eligible.any():
                raise ContextError([FieldProblem(field, "excludes every action", "at least one action left")])
        if subject is not None:
            if not isinstance(subject, str):
                raise ContextError([FieldProblem(f"{where}subject", f"{subject!r:.60} is not text", "text")])
            # The control assignment of a subject is sticky (R13).
            digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).digest()
            key = np.array([[int.from_bytes(digest[:8], "big"), 1]], np.uint64)
        return eligible, key

    def _advance(self, state: State, rows: "_Rows") -> tuple[State, list[Decision]]:
        """Run rows through the rounds, stopping at each boundary for what is due there."""
        decisions: list[Decision] = []
        done, count, length = 0, len(rows.codes), self.config.stage_length
        while done < count:
            state = self._at_boundary(state)
            size = count - done
            if size > 1:
                size = min(size, length - state.round % length)
                if state.next_estimation:
                    size = min(size, state.next_estimation - 1 - state.round)
            part = rows if size == count else rows.part(done, done + size)
            history = state.history.at(state.round, state.arrived)
            made, belief = self._decide_rows(state, part, history)
            state = State(
                state.round + size, belief, state.hmm, state.next_estimation, state.statistics,
                state.model_version, history, state.arrived, state.folded, state.rebuild,
            )  # fmt: skip
            decisions += made
            done += size
        return state, decisions

    def _check(self, state: State) -> None:
        """A state of another campaign would make the kernels read foreign memory."""
        if (state.statistics.theta.size, state.belief.size, state.history.shape) != self._shape:
            raise ArgumentError("state", "is another campaign's", "a state of this campaign")

    def _at_boundary(self, state: State) -> State:
        """What is due before the next round is decided; at a boundary that may be a whole re-estimation."""
        self._check(state)
        if state.next_estimation and state.round + 1 >= state.next_estimation:
            state = self.reestimate(state)
        if state.round > 0 and state.round % self.config.stage_length == 0:
            state = self.update(state)
        return state

    def _decide_rows(self, state: State, rows: "_Rows", history: History) -> tuple[list[Decision], FloatArray]:
        """Decide rows that share one reward model and one HMM, and append them; also give the belief after them."""
        names, length = self.config.actions, self.config.stage_length
        count, arms, t = len(rows.codes), len(names), state.round + 1
        answers = np.empty((count, 3 + 2 * arms + self.features.regimes))
        history.reserve(count)
        kernels.decide_rounds(
            *self._fixed, *(self.exploration(t, count) if self._tabled else self._exploration),
            *state.statistics[2:4], state.folded, *self._chain(state), *rows, t,
            history.rounds, *history.contexts, history.actions, history.beliefs, answers,
        )  # fmt: skip
        history.rounds += count
        decisions = []
        everyone = rows.eligible is self._all_eligible
        for i, answer in enumerate(answers.tolist()):
            who, estimates, bonuses = names, tuple(answer[3 : arms + 3]), tuple(answer[arms + 3 : 2 * arms + 3])
            if not everyone:
                left = np.flatnonzero(rows.eligible[i]).tolist()
                who = tuple([names[a] for a in left])
                estimates, bonuses = tuple([estimates[a] for a in left]), tuple([bonuses[a] for a in left])
            decisions.append(
                Decision(
                    t + i, (t + i - 1) // length + 1, state.model_version, MODES[int(answer[1])], names[int(answer[0])],
                    answer[2], tuple(answer[2 * arms + 3 :]), who, estimates, bonuses,
                )
            )  # fmt: skip
        return decisions, history.beliefs[history.rounds - 1]

    def _chain(self, state: State) -> tuple[FloatArray, FloatArray, FloatArray, int]:
        """How the belief takes the next symbols (R5): transition, emission, belief before them, kind of step."""
        if state.hmm is None:
            return _NO_MATRIX, _NO_MATRIX, state.belief, kernels.STILL
        return state.hmm.transition, state.hmm.emission, state.belief, kernels.MOVING if state.round else kernels.FIRST

    # --- rewards and stage updates ---------------------------------------------------------------------------

    def reward(self, state: State, round: int, reward: float) -> State:
        """Take the reward of a round, in any order and at any time; it counts from the next stage update on."""
        if isinstance(round, bool) or not isinstance(round, int | np.integer) or not 1 <= round <= state.round:
            raise RewardError("round", f"{round!r} was not decided", f"1 to {state.round}")
        if isinstance(reward, bool | np.bool_ | str | bytes):
            raise RewardError("reward", f"{reward!r} is not a number", "a finite number")
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise RewardError("reward", f"{reward!r:.60} is not a number", "a finite number") from None
        limits = self.config.rewards.range
        if not abs(value) <= LARGEST_REWARD or (limits and not limits[0] <= value <= limits[1]):
            raise RewardError("reward", f"{reward!r:.60}", list(limits) if limits else f"within ±{LARGEST_REWARD:g}")
        history = state.history.at(state.round, state.arrived)
        if not math.isnan(history.rewards[round - 1]):
            raise RewardError("round", f"{round} already has its reward", "one reward a round")
        history.add_reward(int(round) - 1, value)
        return State(
            state.round, state.belief, state.hmm, state.next_estimation, state.statistics, state.model_version,
            history, state.arrived + 1, state.folded, state.rebuild,
        )  # fmt: skip

    def update(self, state: State) -> State:
        """The update that ends a stage: fold what has arrived, in round order (R1, R2)."""
        history, start = state.history, state.statistics
        if state.rebuild:
            start = linucb.initial_statistics(self.features.dimension, self.ridge)
        statistics = linucb.updated(
            start, self.features, self.ridge, history.contexts, history.actions, history.beliefs,
            history.rewards, history.arrivals(0 if state.rebuild else state.folded, state.arrived),
        )  # fmt: skip
        return state._replace(
            statistics=statistics,
            model_version=state.model_version + 1,
            folded=state.arrived,
            rebuild=False,
        )

    # --- re-estimation ---------------------------------------------------------------------------------------

    def reestimate(self, state: State) -> State:
        """Re-estimate the HMM from all contexts so far and publish it (R3); stays as it is if not estimable."""
        symbols = state.history.contexts.symbols[: state.round]
        found = self.estimate(symbols, state.hmm)
        scheduled = state._replace(next_estimation=self._next_estimation(state.round + 1))
        return self._put_in_force(scheduled, found) if isinstance(found, HmmParameters) else scheduled

    def estimate(
        self, symbols: npt.NDArray[np.int16], previous: HmmParameters | None
    ) -> HmmParameters | spectral.NotEstimable:
        """The campaign's estimator on a symbol history; regimes not yet aligned."""
        regimes, count, seed = self.features.regimes, self.features.symbols, self.config.seed
        if self.config.beliefs.estimator == "spectral":
            return spectral.estimate(symbols, regimes, count, seed)
        return em.estimate(symbols, regimes, count, seed, previous)

    def _next_estimation(self, t: int) -> int:
        every = self.config.beliefs.every
        if isinstance(every, GrowthFactor):
            return max(t + 1, math.ceil(t * every.factor))
        return t + (every or 1)

    def publish(self, state: State, found: HmmParameters) -> State:
        """Put new HMM parameters in force: align (R6), recompute the belief (R5), mark statistics to rebuild (R4)."""
        found = HmmParameters.checked(*found)
        if found.emission.shape != (self.features.regimes, self.features.symbols):
            allowed = f"({self.features.regimes}, {self.features.symbols})"
            raise ArgumentError("emission", f"shape {found.emission.shape}", allowed)
        self._check(state)
        return self._put_in_force(state, found)

    def _put_in_force(self, state: State, found: HmmParameters) -> State:
        if state.hmm is not None:
            found, _ = spectral.align(found, state.hmm)
        symbols = state.history.contexts.symbols[: state.round]
        statistics = self.config.beliefs.statistics
        history = state.history
        if statistics == "as_decided":
            filtered = hmm.filter_history(found, symbols[-RECENT:]).beliefs
        else:
            filtered = hmm.filter_history(found, symbols).beliefs
            history = history.copy(state.round, state.arrived)
            history.beliefs[: state.round] = (
                filtered if statistics == "refiltered" else hmm.smooth_history(found, symbols).beliefs
            )
        return state._replace(
            belief=filtered[-1] if symbols.size else found.initial,
            hmm=found,
            model_version=state.model_version + 1,
            history=history,
            rebuild=state.rebuild or statistics != "as_decided",
        )
