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

from policy import bonus, em, hmm, joint, kernels, linucb, selection, spectral
from policy.config import LARGEST_REWARD, CampaignConfig, GrowthFactor
from policy.defaults import ITERATIONS
from policy.errors import ArgumentError, ConfigError, ContextError, FieldProblem, RewardError, shown
from policy.features import Contexts, FeatureMap, feature_map
from policy.history import History
from policy.hmm import HmmParameters
from policy.state import Decided, Decision, PastRound, Request, Score, State

__all__ = ["TRIAL_SHARE", "Prepared", "PreparedPast", "StagedPolicy", "recent_beliefs"]

FloatArray = npt.NDArray[np.float64]
RECENT = 300  # the filter forgets exponentially fast: this many contexts give the belief (R5)
TRIAL_SHARE = 0.5  # of the rounds while an action is new: they are shared evenly
LONGEST_GAP = 32  # periods between two decisions that count, each as a missing observation
_FOREVER = 2**62


class _Rows(NamedTuple):
    """Requests as tables, as the kernel takes them.

    Steps of the chain (empty without a clock), encoded contexts, eligible actions, (subject hash, present?).
    """

    gaps: npt.NDArray[np.int16]
    codes: npt.NDArray[np.int16]
    numbers: FloatArray
    eligible: npt.NDArray[np.bool_]
    subjects: npt.NDArray[np.uint64]

    def part(self, start: int, stop: int) -> "_Rows":
        gaps, codes, numbers, eligible, subjects = self
        cut = slice(start, stop)
        return _Rows(gaps[cut], codes[cut], numbers[cut], eligible[cut], subjects[cut])


_NO_SUBJECT = np.zeros((1, 2), np.uint64)
_NO_MATRIX = np.empty((0, 0))
_NO_GAPS, _NO_PERIODS = np.empty(0, np.int16), np.empty(0, np.int64)


class Prepared(NamedTuple):
    """Requests that `StagedPolicy.prepare` checked and encoded."""

    codes: npt.NDArray[np.int16]
    numbers: FloatArray
    eligible: npt.NDArray[np.bool_]
    subjects: npt.NDArray[np.uint64]
    times: Sequence[float | None]

    def part(self, start: int, stop: int) -> "Prepared":
        codes, numbers, eligible, subjects, times = self
        cut = slice(start, stop)
        return Prepared(codes[cut], numbers[cut], eligible[cut], subjects[cut], times[cut])


class PreparedPast(NamedTuple):
    """Past rounds that `StagedPolicy.prepare_past` checked and encoded."""

    codes: npt.NDArray[np.int16]
    numbers: FloatArray
    actions: npt.NDArray[np.int16]
    times: Sequence[float | None]

    def part(self, start: int, stop: int) -> "PreparedPast":
        codes, numbers, actions, times = self
        cut = slice(start, stop)
        return PreparedPast(codes[cut], numbers[cut], actions[cut], times[cut])


class StagedPolicy:
    """The paper's method for one campaign; holds only what follows from the configuration."""

    def __init__(self, config: CampaignConfig) -> None:
        self.config = config
        self.maps = _feature_maps(config)  # by number of regimes
        self.features = self.maps[max(self.maps)]
        self._joint = config.beliefs.statistics == "joint"
        self._exploration = bonus.exploration(config)
        self._tabled = self._exploration.form in (kernels.TABLED, kernels.TABLED_ELLIPTICAL)
        self._scaled = config.bonus.form == "noise"
        self._varying = self._tabled or self._scaled
        self.ridge = bonus.effective_ridge(config, self.features)
        self.chance = kernels.Chance(
            config.seed, config.control.share, config.control.kind == "baseline", config.propensity_floor
        )
        # What every decision needs, gathered once: a decision takes microseconds.
        self._names, self._length, self._clock = config.actions, config.stage_length, config.clock
        self._row_shape = (len(config.variables), self.features.numbers, self.features.regimes)
        active = len(config.actions) - len(config.retired_actions)
        trial = self.chance._replace(floor=max(config.propensity_floor, TRIAL_SHARE / active))
        # By what must fit in a state, see `_check`.
        self._fixed = {
            (m.dimension, regimes, self._row_shape): ((*m.plan[:3], *self.chance), (*m.plan[:3], *trial))
            for regimes, m in self.maps.items()
        }
        self._action_index = {name: i for i, name in enumerate(config.actions)}
        self._active = np.array([[name not in config.retired_actions for name in config.actions]])

    def exploration(self, first_round: int, count: int, noise: float = 1.0) -> kernels.Exploration:
        """The bonus rule for the given rounds; `noise` is σ̂ where it is estimated."""
        if self._tabled:
            return bonus.tabled(self.config, self.features, first_round, count)
        form, scale, length, table = self._exploration
        return kernels.Exploration(form, scale * noise if self._scaled else scale, length, table)

    def _warm_rounds(self, state: State) -> int:
        """R8; without a noise estimate there is no bonus, so the warm start lasts at least until the first one."""
        return _FOREVER if self._joint and state.selection is None else self.config.warm_start_rounds

    # --- decisions -------------------------------------------------------------------------------------------

    def initial_state(self) -> State:
        config, given = self.config, self.config.beliefs.parameters
        features = self.maps[1] if self._joint else self.features  # joint statistics begin with one regime
        known = HmmParameters.checked(given.transition, given.emission, given.initial) if given else None
        estimated = config.beliefs.estimator in ("spectral", "em") and (self._joint or features.regimes > 1)
        start = config.beliefs.start_round or 0
        return State(
            round=0,
            belief=known.initial if known else np.full(features.regimes, 1.0 / features.regimes),
            hmm=known,
            next_estimation=(self.stage_start(start) if self._joint else start) if estimated else 0,
            next_update=config.stage_length + 1,
            statistics=linucb.initial_statistics(features.dimension, self.ridge),
            model_version=0,
            history=History(*self._row_shape),
            arrived=0,
            folded=0,
            rebuild=False,
            selection=None,
            period=0,
        )

    def decide(
        self,
        state: State,
        context: Mapping[str, Any],
        *,
        excluded_actions: Collection[str] = (),
        subject: str | None = None,
        at: float | None = None,
    ) -> tuple[State, Decision]:
        """Decide one round; `at` (seconds) is needed where the campaign has a clock."""
        codes, numbers = self.features.encode_one(context)
        gaps, periods = self._ticks(state, (at,)) if self._clock else (_NO_GAPS, _NO_PERIODS)
        eligible, key = self._rules(excluded_actions, subject)
        state, (decided,) = self._advance(state, _Rows(gaps, codes, numbers, eligible, key), periods)
        return state, decided.decisions()[0]

    def decide_batch(self, state: State, requests: Sequence[Request]) -> tuple[State, list[Decision]]:
        """Decide several rounds: exactly what one-by-one calls in that order give; all or nothing."""
        state, decided = self.decide_prepared(state, self.prepare(requests))
        return state, [decision for part in decided for decision in part.decisions()]

    def prepare(self, requests: Sequence[Request], prefixes: Sequence[str] | None = None) -> "Prepared":
        """Requests checked and encoded, ready to be decided; `prefixes` begin the fields that errors name."""
        if not all(isinstance(request, Request) for request in requests):
            raise ArgumentError("requests", "holds something else", "a list of policy.Request")
        if prefixes is None:
            prefixes = [f"items[{i}]." for i in range(len(requests))]
        count = len(requests)
        eligible, subjects = np.repeat(self._active, count, axis=0), np.zeros((count, 2), np.uint64)
        for i, (request, prefix) in enumerate(zip(requests, prefixes, strict=True)):
            if request.excluded_actions or request.subject is not None:
                eligible[i], subjects[i] = self._rules(request.excluded_actions, request.subject, prefix)
        codes, numbers = self.features.encode_rows([r.context for r in requests], prefixes)
        times = [request.at for request in requests]
        if self.config.clock:
            for at, prefix in zip(times, prefixes, strict=True):
                _check_time(at, f"{prefix}at")
        return Prepared(codes, numbers, eligible, subjects, times)

    def decide_prepared(self, state: State, prepared: "Prepared") -> tuple[State, list[Decided]]:
        """Decide what `prepare` made, or a part of it: a table for each model that does."""
        codes, numbers, eligible, subjects, times = prepared
        gaps, periods = self._ticks(state, times) if self._clock else (_NO_GAPS, _NO_PERIODS)
        return self._advance(state, _Rows(gaps, codes, numbers, eligible, subjects), periods)

    def prepare_past(self, rounds: Sequence[PastRound], prefixes: Sequence[str] | None = None) -> "PreparedPast":
        """Past rounds checked and encoded; `prefixes` begin the fields that errors name."""
        if prefixes is None:
            prefixes = [f"rounds[{i}]." for i in range(len(rounds))]
        problems = [
            FieldProblem(f"{prefix}action", f"{shown(past.action)} is no action", list(self.config.actions))
            for past, prefix in zip(rounds, prefixes, strict=True)
            if past.action not in self._action_index
        ]
        present = [i for i, past in enumerate(rounds) if past.context is not None]
        codes = np.zeros((len(rounds), len(self.config.variables) + 1), np.int16)
        numbers = np.zeros((len(rounds), self.features.numbers))
        codes[:, -1] = hmm.MISSING
        try:
            contexts = [past.context for past in rounds if past.context is not None]
            codes[present], numbers[present] = self.features.encode_rows(contexts, [prefixes[i] for i in present])
        except ContextError as error:
            problems += error.problems
        times = [past.at for past in rounds]
        if self.config.clock:
            for at, prefix in zip(times, prefixes, strict=True):
                try:
                    _check_time(at, f"{prefix}at")
                except ContextError as error:
                    problems += error.problems
        if problems:
            raise ContextError(problems)
        actions = np.array([self._action_index[past.action] for past in rounds], np.int16)
        return PreparedPast(codes, numbers, actions, times)

    def follow(self, state: State, prepared: "PreparedPast") -> tuple[State, FloatArray]:
        """Rounds as `decide` would record them, but with the actions that were taken then; and their beliefs.

        A belief is a function of the contexts alone, so the state is that of the decisions themselves.
        """
        codes, numbers, actions, times = prepared
        gaps, periods = self._ticks(state, times)
        beliefs = np.zeros((actions.size, self._row_shape[2]))
        done = 0
        while done < actions.size:
            state = self._at_boundary(state)
            stop, regimes = min(actions.size, done + self.rounds_ahead(state)), state.belief.size
            symbols = np.ascontiguousarray(codes[done:stop, -1])
            steps = gaps[done:stop] if gaps.size else np.ones(stop - done, np.int16)
            if not (gaps.size or state.round):
                steps[0] = 0  # R5
            path = np.empty((stop - done, regimes))
            kernels.belief_path(*self._chain(state), steps, symbols, path)
            history = state.history.at(state.round, state.arrived)
            history.append(
                Contexts(codes[done:stop, :-1], numbers[done:stop], symbols), steps, actions[done:stop], path
            )
            beliefs[done:stop, :regimes] = path
            state = state._replace(
                round=state.round + stop - done,
                belief=path[-1].copy(),
                history=history,
                period=int(periods[stop - 1]) if periods.size else 0,
            )
            done = stop
        return state, beliefs

    def _ticks(
        self, state: State, times: Sequence[float | None], field: str = "at"
    ) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
        """Steps of the chain before each decision and the period it falls in; empty without a clock.

        Decisions of one period share a regime; the chain moves once for each period that has passed, up to
        LONGEST_GAP. A time earlier than the last one counts as the last one (R27).
        """
        clock = self.config.clock
        if clock is None:
            return _NO_GAPS, _NO_PERIODS
        gaps, periods = np.zeros(len(times), np.int16), np.empty(len(times), np.int64)
        last, first = state.period, state.round == 0
        for i, at in enumerate(times):
            now = math.floor(_check_time(at, field.format(i)) / clock.period_seconds)
            if not first and now > last:
                gaps[i] = min(now - last, LONGEST_GAP)
            last = periods[i] = now if first else max(now, last)
            first = False
        return gaps, periods

    def play(
        self,
        state: State,
        contexts: Contexts,
        reward_table: FloatArray,
        beliefs: FloatArray | None = None,
        decided: FloatArray | None = None,
        at: Sequence[float] | None = None,
    ) -> State:
        """Decide a row after the other and take each reward at once, all in compiled code: offline evaluation.

        `reward_table` (rows × actions) holds what each action would earn. Exactly what `decide` and `reward` row by
        row give. `beliefs` (rows × H) are used instead of estimating them, so that many runs share one belief path.
        `decided` (rows × H) is filled with the beliefs each row was decided with; the history's may be recomputed (R4).
        `at` are the rows' times, where the campaign has a clock.
        """
        self._check(state)
        if self.config.retired_actions or state.round < state.trial_end:
            raise ArgumentError("state", "has retired actions, or one on trial", "every action played as any other")
        rows, arms = contexts.symbols.size, len(self.config.actions)
        low, high = self.config.rewards.range or (-LARGEST_REWARD, LARGEST_REWARD)
        if reward_table.shape != (rows, arms) or not ((reward_table >= low) & (reward_table <= high)).all():
            allowed = f"({rows}, {arms}), every number from {low:g} to {high:g}"
            raise ArgumentError("reward_table", f"shape {reward_table.shape}", allowed)
        self.features.check(contexts)
        for field, given in (("beliefs", beliefs), ("decided", decided)):
            if given is not None and given.shape != (rows, self.features.regimes):
                raise ArgumentError(field, f"shape {given.shape}", f"({rows}, {self.features.regimes})")
        if beliefs is not None and (self._joint or not np.isfinite(beliefs).all()):
            message = "are estimated with the rewards" if self._joint else "hold a number that is not finite"
            raise ArgumentError("beliefs", message, "none with joint statistics, else laws of the regimes")
        folded_rows = state.history.arrivals(0, state.folded)
        if state.arrived != state.round or not np.array_equal(folded_rows, np.arange(state.folded)):
            message = "has rewards that are missing or were folded out of round order"
            raise ArgumentError("state", message, "a state whose every round has its reward, taken in order")
        if state.next_update != max(1, -(-state.round // self.config.stage_length)) * self.config.stage_length + 1:
            raise ArgumentError("state", "is at a boundary that was crossed already", "a state that `decide` left")
        if at is not None and len(at) != rows:
            raise ArgumentError("at", f"{len(at)} times", f"{rows}, one a row")
        gaps, periods = self._ticks(state, [None] * rows if at is None else at, "at[{}]")
        if not gaps.size:
            gaps = hmm.checked_steps(None, rows) if state.round == 0 else np.ones(rows, np.int16)
        begun, done, length = state.round, 0, self.config.stage_length
        while done < rows:
            if beliefs is None and self.estimation_due(state):
                state = self.reestimate(state)
            stop = rows
            if beliefs is None and state.next_estimation:
                stop = min(rows, state.next_estimation - 1 - begun)
            part, regimes = contexts.rows(done, stop), state.belief.size
            if beliefs is None:
                path = np.empty((stop - done, regimes))
                kernels.belief_path(*self._chain(state), gaps[done:stop], part.symbols, path)
            else:
                path = beliefs[done:stop]
            if decided is not None:
                decided[done:stop] = 0.0
                decided[done:stop, :regimes] = path
            history = state.history.at(state.round, state.arrived)
            start, end = begun + done, begun + stop
            history.append(part, gaps[done:stop], np.zeros(stop - done, np.int16), path)
            statistics = linucb.copied(state.statistics)
            folded = kernels.play_rounds(
                self.maps[regimes].plan, self.chance,
                self.exploration(start + 1, stop - done, statistics.units[1]), statistics,
                start, end, -1 if state.rebuild else state.folded, self.ridge,
                self._warm_rounds(state), history.contexts.levels, history.contexts.values,
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
                period=int(periods[stop - 1]) if periods.size else 0,
                next_update=((end - 1) // length + 1) * length + 1,
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
        at: float | None = None,
    ) -> Decision:
        """What `decide` would answer; nothing is recorded, so what is due at a boundary is worked out again later."""
        codes, numbers = self.features.encode_one(context)
        gaps, _ = self._ticks(state, (at,))
        if not gaps.size:
            gaps = np.array([1 if state.round else 0], np.int16)  # the scratch history below is empty
        rows = _Rows(gaps, codes, numbers, *self._rules(excluded_actions, subject))
        return self._decide_rows(self._at_boundary(state), rows, History(*self._row_shape, 1))[0].decisions()[0]

    def scores_under(self, state: State, beliefs: FloatArray, request: Request) -> list[tuple[Score, ...]]:
        """What each eligible action would be worth in the next round under each of the beliefs (n × H).

        The beliefs are taken as they are, whatever the context says about the regime: a row that is certain of one
        tells what would be chosen in it. What is due at a boundary is not worked out.
        """
        self._check(state)
        beliefs = np.ascontiguousarray(beliefs, np.float64)
        if beliefs.ndim != 2 or beliefs.shape[1] != state.belief.size or not np.isfinite(beliefs).all():
            raise ArgumentError("beliefs", f"shape {beliefs.shape}", f"rows of {state.belief.size} finite numbers")
        rows = _Rows(
            _NO_GAPS,
            *self.features.encode_one(request.context),
            *self._rules(request.excluded_actions, request.subject),
        )
        still = state._replace(hmm=None)  # without parameters a belief stays as it is (R5)
        return [
            self._decide_rows(still._replace(belief=belief), rows, History(*self._row_shape, 1))[0]
            .decisions()[0]
            .scores
            for belief in beliefs
        ]

    def _rules(
        self, excluded: Collection[str], subject: str | None, where: str = ""
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """A request's exclusions and subject, checked, as tables of one row: eligible actions, (hash, present?)."""
        eligible, key = self._active, _NO_SUBJECT
        if excluded:
            field = f"{where}excluded_actions"
            if isinstance(excluded, str) or not isinstance(excluded, Collection):
                raise ContextError([FieldProblem(field, f"{shown(excluded)} is not a list", "a list of actions")])
            if unknown := [x for x in excluded if not isinstance(x, str) or x not in self._action_index]:
                raise ContextError([FieldProblem(field, f"unknown: {unknown}", list(self.config.actions))])
            eligible = eligible.copy()
            eligible[0, [self._action_index[name] for name in excluded]] = False
            if not eligible.any():
                raise ContextError([FieldProblem(field, "excludes every action", "at least one action left")])
        if subject is not None:
            if not isinstance(subject, str):
                raise ContextError([FieldProblem(f"{where}subject", f"{shown(subject)} is not text", "text")])
            # The control assignment of a subject is sticky (R13).
            digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).digest()
            key = np.array([[int.from_bytes(digest[:8], "big"), 1]], np.uint64)
        return eligible, key

    def _advance(self, state: State, rows: "_Rows", periods: npt.NDArray[np.int64]) -> tuple[State, list[Decided]]:
        """Run rows through the rounds, stopping at each boundary for what is due there."""
        decided: list[Decided] = []
        done, count = 0, len(rows.codes)
        while done < count:
            size = min(count - done, self.rounds_alike(state))
            if size == 0:
                state = self._at_boundary(state)
                size = min(count - done, self.rounds_alike(state))
            passed = self.updates_passed(state, size)
            part = rows if size == count else rows.part(done, done + size)
            history = state.history.at(state.round, state.arrived)
            made, belief = self._decide_rows(state, part, history)
            state = State(
                state.round + size, belief, state.hmm, state.next_estimation, state.next_update + passed * self._length,
                state.statistics, state.model_version + passed, history, state.arrived, state.folded, state.rebuild,
                state.selection, int(periods[done + size - 1]) if self._clock else 0, state.trial_end,
                state.trial_first,
            )  # fmt: skip
            decided.append(made)
            done += size
        return state, decided

    def _check(self, state: State) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the state's decisions hand to the kernel, usually and while there is a trial.

        A state of another campaign would make the kernels read foreign memory.
        """
        found = self._fixed.get((state.statistics.theta.size, state.belief.size, state.history.shape))
        if found is None:
            raise ArgumentError("state", "is another campaign's", "a state of this campaign")
        return found

    def _at_boundary(self, state: State) -> State:
        """What is due before the next round is decided; at a boundary that may be a whole re-estimation."""
        self._check(state)
        if self.estimation_due(state):
            state = self.reestimate(state)
        if self.update_due(state):
            state = self.update(state)
        return state

    @staticmethod
    def estimation_due(state: State) -> bool:
        """Is a re-estimation due before the next round (R3)?"""
        return 0 < state.next_estimation <= state.round + 1

    @staticmethod
    def update_due(state: State) -> bool:
        """Has a stage ended whose update has not run (R1)?"""
        return state.next_update <= state.round + 1

    @staticmethod
    def rounds_ahead(state: State) -> int:
        """How many rounds can be decided before something is due; 0 when something is."""
        due = state.next_update
        if 0 < state.next_estimation < due:
            due = state.next_estimation
        return max(0, due - 1 - state.round)

    def rounds_alike(self, state: State) -> int:
        """How many rounds one model decides, whatever its version: an update that has nothing to fold changes nothing.

        Those are most of a batch's, since no reward comes between its decisions. 0 when something is due.
        """
        ahead = self.rounds_ahead(state)
        nothing_new = state.arrived == state.folded and not state.rebuild and linucb.is_current(state.statistics)
        if not ahead or not nothing_new or state.round < state.trial_end:  # a trial ends with a stage
            return ahead
        return state.next_estimation - 1 - state.round if state.next_estimation else _FOREVER

    def updates_passed(self, state: State, rounds: int) -> int:
        """How many updates lie before the last of the next `rounds`."""
        return max(0, state.round + rounds - state.next_update + self._length) // self._length

    def _decide_rows(self, state: State, rows: "_Rows", history: History) -> tuple[Decided, FloatArray]:
        """Decide rows that share one reward model and one HMM, and append them; also give the belief after them."""
        names, history_rows = self._names, history.rounds
        count, arms, first, regimes = len(rows.codes), len(names), state.round + 1, state.belief.size
        answers = np.empty((count, 3 + 2 * arms + regimes))
        history.reserve(count)
        _, _, inverse, theta, _, units = state.statistics
        # All rows are of one stage, or there is no trial.
        usual, trial = self._check(state)
        kernels.decide_rounds(
            *(usual if first > state.trial_end else trial), self._warm_rounds(state),
            *(self.exploration(first, count, units[1]) if self._varying else self._exploration),
            inverse, theta, units[0], state.counted, *self._chain(state), *rows, first,
            history_rows, *history.contexts, history.steps, history.actions, history.beliefs, answers,
        )  # fmt: skip
        history.rounds = history_rows + count
        decided = Decided(first, self._length, state.model_version, names, rows.eligible, answers)
        return decided, history.beliefs[history_rows + count - 1, :regimes]

    def _chain(self, state: State) -> tuple[FloatArray, FloatArray, FloatArray]:
        """How the belief takes the next symbols (R5): transition and emission, none yet or none needed; the belief."""
        if state.hmm is None:
            return _NO_MATRIX, _NO_MATRIX, state.belief
        return state.hmm.transition, state.hmm.emission, state.belief

    # --- rewards and stage updates ---------------------------------------------------------------------------

    def reward(self, state: State, round: int, reward: float) -> State:
        """Take the reward of a round, in any order and at any time; it counts from the next stage update on."""
        if isinstance(round, bool) or not isinstance(round, int | np.integer) or not 1 <= round <= state.round:
            raise RewardError("round", f"{shown(round)} was not decided", f"1 to {state.round}")
        value = self.checked_reward(reward)
        history = state.history.at(state.round, state.arrived)
        if not math.isnan(history.rewards[round - 1]):
            raise RewardError("round", f"{round} already has its reward", "one reward a round")
        if history.contexts.symbols[round - 1] == hmm.MISSING:
            value = math.nan  # nobody knows what it was for: it teaches nothing, like one that was erased
        history.add_reward(int(round) - 1, value)
        return State(
            state.round, state.belief, state.hmm, state.next_estimation, state.next_update, state.statistics,
            state.model_version, history, state.arrived + 1, state.folded, state.rebuild, state.selection, state.period,
            state.trial_end, state.trial_first,
        )  # fmt: skip

    def checked_reward(self, reward: float) -> float:
        """A reward that the campaign can take."""
        if isinstance(reward, bool | np.bool_ | str | bytes):
            raise RewardError("reward", f"{shown(reward)} is not a number", "a finite number")
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise RewardError("reward", f"{shown(reward)} is not a number", "a finite number") from None
        limits = self.config.rewards.range
        if not abs(value) <= LARGEST_REWARD or (limits and not limits[0] <= value <= limits[1]):
            allowed = list(limits) if limits else f"within ±{LARGEST_REWARD:g}"
            raise RewardError("reward", f"{shown(reward)} is out of range", allowed)
        return value

    def erased_reward(self, state: State, round: int) -> State:
        """The reward of a round came and was erased (R22): it is counted among those that arrived, and never used."""
        history = state.history.at(state.round, state.arrived)
        history.add_reward(round - 1, math.nan)
        return state._replace(history=history, arrived=state.arrived + 1)

    def update(self, state: State) -> State:
        """The update that ends a stage: fold what has arrived, in round order (R1, R2)."""
        history, start, features = state.history, state.statistics, self.maps[state.belief.size]
        if state.rebuild:
            start = linucb.initial_statistics(features.dimension, self.ridge)
        statistics = linucb.updated(
            start, features, self.ridge, history.contexts, history.actions, history.beliefs,
            history.rewards, history.arrivals(0 if state.rebuild else state.folded, state.arrived),
        )  # fmt: skip
        return state._replace(
            statistics=statistics,
            model_version=state.model_version + 1,
            history=history.without_erased(state.round, state.folded, state.arrived),
            folded=state.arrived,
            rebuild=False,
            next_update=self._next_update(state),
        )

    def without_update(self, state: State) -> State:
        """The stage ends with the model it had, because its update failed; what came is folded by the next one."""
        return state._replace(next_update=self._next_update(state))

    def _next_update(self, state: State) -> int:
        length = self.config.stage_length
        return (state.round // length + 1) * length + 1

    # --- re-estimation ---------------------------------------------------------------------------------------

    def reestimate(self, state: State) -> State:
        """Re-estimate from all rounds so far and publish what is found (R3); stays as it is if not estimable."""
        found, scheduled = self.estimate(state), self.without_estimation(state)
        return (
            scheduled if found is None or isinstance(found, spectral.NotEstimable) else self.publish(scheduled, found)
        )

    def without_estimation(self, state: State) -> State:
        """The schedule goes on without the re-estimation that is due: it failed, or is made elsewhere (R16)."""
        return state._replace(next_estimation=self._next_estimation(state))

    def estimation_size(self, state: State) -> int:
        """About how many multiplications a re-estimation costs: what decides if it may run inline (R16)."""
        if self._too_early(state):
            return 0
        if self.config.beliefs.estimator == "spectral":
            return state.round + self.features.symbols**3
        columns = len(self.config.variables) + 2 if self._joint else 1
        return state.round * ITERATIONS * sum(regimes * (regimes + columns) for regimes in self.maps)

    def estimate(self, state: State) -> HmmParameters | selection.Estimate | spectral.NotEstimable | None:
        """What the campaign's estimator finds in a state, not yet in force; with joint statistics a whole Estimate."""
        history, seed = state.history, self.config.seed
        if self._joint:
            if self._too_early(state):
                return spectral.NotEstimable(f"fewer than {self.first_rewards} rewards so far")
            self._check_candidates(state)
            return selection.estimate(
                self.maps, self.ridge, seed, history, state.round, state.arrived, state.selection,
                named=self.config.regimes != "auto",
            )  # fmt: skip
        regimes, count, symbols = self.features.regimes, self.features.symbols, history.contexts.symbols[: state.round]
        if self.config.beliefs.estimator == "spectral":
            return spectral.estimate(symbols, regimes, count, seed)
        steps = history.steps[: state.round] if self.config.clock else None
        return em.estimate(symbols, regimes, count, seed, state.hmm, steps)

    def _check_candidates(self, state: State) -> None:
        """The kernels check no bounds, and a state may come from a file."""
        for candidate in state.selection.candidates if state.selection else ():
            features = self.maps.get(candidate.regimes)
            found = candidate.theta.shape, candidate.hmm.emission.shape
            if features is None or found != ((features.dimension,), (features.regimes, features.symbols)):
                raise ArgumentError("state", "holds candidates of another campaign", "a state of this campaign")

    def _too_early(self, state: State) -> bool:
        return (
            self._joint
            and state.selection is None
            and state.history.arrivals(0, state.arrived).size < self.first_rewards
        )

    @property
    def first_rewards(self) -> int:
        """R8: the warm start ends when half as many rewards as it has rounds are known; a noise needs a few."""
        return max(4, (self.config.warm_start_rounds + 1) // 2)

    def _next_estimation(self, state: State) -> int:
        t, every = state.round + 1, self.config.beliefs.every
        if self._too_early(state):
            return self.stage_start(t + 1)
        due = max(t + 1, math.ceil(t * every.factor)) if isinstance(every, GrowthFactor) else t + (every or 1)
        return self.stage_start(due) if self._joint else due

    def stage_start(self, t: int) -> int:
        """The first round of a stage from t on: with joint statistics H, θ̂ and G change together, at a stage's end."""
        length = self.config.stage_length
        return (t + length - 2) // length * length + 1

    def publish(self, state: State, found: HmmParameters | selection.Estimate) -> State:
        """Put an estimate in force: align (R6), recompute the belief (R5) and the statistics (R4).

        It may have been made from an earlier state of the same campaign (R16). Statistics are recomputed at the next
        stage update, but with joint statistics at once, because the number of regimes may have changed.
        """
        self._check(state)
        if isinstance(found, selection.Estimate) != self._joint:
            raise ArgumentError("found", f"{type(found).__name__}", "what `estimate` of this campaign gives")
        if isinstance(found, selection.Estimate):
            return self._publish_joint(state, found)
        found = HmmParameters.checked(*found)
        if found.emission.shape != (self.features.regimes, self.features.symbols):
            allowed = f"({self.features.regimes}, {self.features.symbols})"
            raise ArgumentError("emission", f"shape {found.emission.shape}", allowed)
        if state.hmm is not None:
            found, _ = spectral.align(found, state.hmm)
        history, statistics = state.history, self.config.beliefs.statistics
        symbols, steps = history.contexts.symbols[: state.round], history.steps[: state.round]
        if statistics == "as_decided":
            filtered = recent_beliefs(found, symbols, steps)
        else:
            filtered = hmm.filter_history(found, symbols, steps).beliefs
            history = history.copy(state.round, state.arrived)
            history.beliefs[: state.round] = (
                filtered if statistics == "refiltered" else hmm.smooth_history(found, symbols, steps).beliefs
            )
        return state._replace(
            belief=filtered[-1] if symbols.size else found.initial,
            hmm=found,
            model_version=state.model_version + 1,
            history=history,
            rebuild=state.rebuild or statistics != "as_decided",
        )

    def _publish_joint(self, state: State, found: selection.Estimate) -> State:
        """The chosen candidate in force, its statistics over all rounds and all rewards that are known by now.

        Rounds after those of the estimate enter with the context-only beliefs of the new parameters.
        """
        model, made = found.selection.in_use, found.posterior.shape[0]
        if model.regimes not in self.maps or made > state.round:
            raise ArgumentError(
                "found", "was made for another campaign or a later round", "an estimate of this campaign"
            )
        features, history = self.maps[model.regimes], state.history.copy(state.round, state.arrived)
        symbols, steps = history.contexts.symbols[: state.round], history.steps[: state.round]
        filtered = hmm.filter_history(model.hmm, symbols, steps).beliefs
        if model.regimes == 1:
            filtered[:] = 1.0  # R5, to the last bit
        history.beliefs[: state.round, model.regimes :] = 0.0
        history.beliefs[:made, : model.regimes] = found.posterior
        history.beliefs[made : state.round, : model.regimes] = filtered[made:]
        data = joint.gather(features, history, state.round, state.arrived)
        posterior = np.ascontiguousarray(history.beliefs[: state.round, : model.regimes])
        if data.has_gaps:
            written_out = np.zeros((data.symbols.size, model.regimes))
            written_out[data.rows] = posterior
            posterior = written_out
        whole = int(data.rows[made - 1]) + 1 if model.joint else 0
        columns = joint.design(features, data.contexts, data.actions)
        statistics = joint.solved(data, columns, self.ridge, posterior, whole)
        statistics.units[:] = data.centre, model.units[1]
        return state._replace(
            belief=filtered[-1],
            hmm=model.hmm if model.regimes > 1 else None,
            statistics=statistics,
            model_version=state.model_version + 1,
            history=history.without_erased(state.round, state.folded, state.arrived),
            folded=state.arrived,
            selection=found.selection,
        )


def recent_beliefs(
    parameters: HmmParameters, symbols: npt.NDArray[np.int16], steps: npt.NDArray[np.int16]
) -> FloatArray:
    """The beliefs of the last contexts, filtered from a uniform one (R5)."""
    recent = steps[-RECENT:].copy()
    recent[:1] = 0
    return hmm.filter_history(parameters, symbols[-RECENT:], recent).beliefs


def _check_time(at: float | None, field: str) -> float:
    real = isinstance(at, int | float | np.integer | np.floating) and not isinstance(at, bool)
    if at is None or not real or not -1e12 <= at <= 1e12:
        allowed = "seconds: the campaign has a clock"
        raise ContextError([FieldProblem(field, f"{shown(at)} is not a time", allowed)])
    return float(at)


def _feature_maps(config: CampaignConfig) -> dict[int, FeatureMap]:
    """The feature map for each number of regimes the campaign may use; `auto` stops where a map would be too wide."""
    maps: dict[int, FeatureMap] = {}
    for regimes in config.regime_counts:
        try:
            maps[regimes] = feature_map(config, regimes)
        except ConfigError:
            if config.regimes != "auto" or not maps:
                raise
            break
    return maps
