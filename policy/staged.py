"""StagedPolicy: observe → belief → scores → action → reward → stage update. State in, state out.

The order inside round t: a re-estimation that is due (R3), the update that ends a stage (R1), the filter step, the
scores, the draw. A re-estimation due at a stage's end comes first, so the update already uses what it recomputed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from policy import bonus, hmm, kernels, linucb
from policy.arrays import FloatArray, IntArray, SmallInts
from policy.blocks import use_one_thread
from policy.clock import NO_GAPS, NO_PERIODS, count_steps
from policy.config import LARGEST_REWARD, CampaignConfig
from policy.defaults import TRIAL_SHARE
from policy.encoding import Contexts
from policy.errors import ArgumentError, RewardError, format_value
from policy.estimators import Estimate, make_estimator
from policy.exposure import pass_time, start_exposure
from policy.features import get_feature_maps
from policy.following import follow_rounds
from policy.history import LONG_AGO, History
from policy.playing import Episode, play_episode
from policy.requests import Encoder, Prepared, PreparedPast, Rows
from policy.spectral import NotEstimable
from policy.state import Decided, Decision, PastRound, Request, Score, State
from policy.updates import run_update

_FOREVER = 2**62
_NO_MATRIX = np.empty((0, 0))
_NO_TIMES = np.empty(0, np.int64)


class StagedPolicy:
    """The paper's method for one campaign; holds only what follows from the configuration."""

    def __init__(self, config: CampaignConfig) -> None:
        use_one_thread()
        self.config = config
        self.maps = get_feature_maps(config)  # by number of regimes
        self.features = self.maps[max(self.maps)]
        self.ridge = bonus.get_effective_ridge(config, self.features)
        self.estimator = make_estimator(config, self.maps, self.ridge)
        self._encoder = Encoder(config, self.features)
        self._exploration = bonus.make_exploration(config)
        self._tabled = self._exploration.form in (kernels.TABLED, kernels.TABLED_ELLIPTICAL)
        self._scaled = config.bonus.form == "noise"
        self._varying = self._tabled or self._scaled
        self.keeps_times = config.rewards.default is not None
        self.chance = kernels.Chance(
            config.seed, config.control.share, config.control.kind == "baseline", config.propensity_floor
        )
        # What every decision needs, looked up once: a decision takes microseconds.
        self._names, self._length, self._clock = config.actions, config.stage_length, config.clock
        self._row_shape = (len(config.variables), self.features.numbers, self.features.regimes)
        active = len(config.actions) - len(config.retired_actions)
        trial = self.chance._replace(floor=max(config.propensity_floor, TRIAL_SHARE / active))
        # By the sizes that a state must have, see `check_state`.
        self._fixed = {
            (m.dimension, regimes, self._row_shape): ((*m.plan[:3], *self.chance), (*m.plan[:3], *trial))
            for regimes, m in self.maps.items()
        }

    def get_exploration(self, first_round: int, count: int, units: FloatArray) -> kernels.Exploration:
        """The bonus rule for `count` rounds from `first_round` on; `units` are those of the statistics."""
        if self._tabled:
            return bonus.tabulate_bonus(self.config, self.features, first_round, count)
        if self._scaled:
            return bonus.scale_by_noise(self._exploration, units, len(self._names))
        return self._exploration

    def count_warm_rounds(self, state: State) -> int:
        """The least number of warm-start rounds (R8); without end while a required estimate is missing."""
        return _FOREVER if self.estimator.is_required(state) else self.config.warm_start_rounds

    # --- decisions -------------------------------------------------------------------------------------------

    def initial_state(self) -> State:
        """The state before round 1."""
        features, known = self.maps[self.estimator.start_regimes], self.estimator.get_initial_hmm()
        return State(
            round=0,
            belief=known.initial if known else np.full(features.regimes, 1.0 / features.regimes),
            hmm=known,
            next_estimation=self.estimator.get_first_round(),
            next_update=self._length + 1,
            statistics=linucb.create_statistics(features.dimension, self.ridge),
            model_version=0,
            history=History(*self._row_shape),
            arrived=0,
            folded=0,
            rebuild=False,
            selection=None,
            period=0,
            exposure=start_exposure(self.config.rewards),
        )

    def decide(
        self,
        state: State,
        context: Mapping[str, Any],
        *,
        excluded_actions: Collection[str] = (),
        subject: str | None = None,
        at: float | None = None,
        now: int | None = None,
    ) -> tuple[State, Decision]:
        """Decide one round; `at` (seconds) is required if the campaign has a clock.

        `now`, the time of the decision in microseconds, is required if it has a default reward.
        """
        codes, numbers = self.features.encode_one(context)
        gaps, periods = count_steps(self._clock, state, (at,)) if self._clock else (NO_GAPS, NO_PERIODS)
        eligible, key = self._encoder.encode_rules(excluded_actions, subject)
        decided_at = self._check_times(state, now, 1)
        state, (decided,) = self._advance(state, Rows(gaps, codes, numbers, eligible, key, decided_at), periods)
        return state, decided.decisions()[0]

    def decide_batch(
        self, state: State, requests: Sequence[Request], now: int | None = None
    ) -> tuple[State, list[Decision]]:
        """Decide several rounds, exactly as one-by-one calls in that order would; all or nothing."""
        state, decided = self.decide_prepared(state, self.prepare(requests), now)
        return state, [decision for part in decided for decision in part.decisions()]

    def prepare(self, requests: Sequence[Request], prefixes: Sequence[str] | None = None) -> Prepared:
        """Check and encode requests for `decide_prepared`; `prefixes` begin the field names in errors."""
        return self._encoder.prepare(requests, prefixes)

    def decide_prepared(
        self, state: State, prepared: Prepared, now: int | Sequence[int] | None = None
    ) -> tuple[State, list[Decided]]:
        """Decide prepared requests, or a part of them; returns one table per model that decided.

        `now` is the time of all decisions, or of each.
        """
        gaps, periods = count_steps(self._clock, state, prepared.times)
        decided_at = self._check_times(state, now, len(prepared.codes))
        rows = Rows(gaps, prepared.codes, prepared.numbers, prepared.eligible, prepared.subjects, decided_at)
        return self._advance(state, rows, periods)

    def _check_times(self, state: State, now: int | Sequence[int] | None, count: int) -> IntArray:
        """The time of each of the next decisions, which never falls; empty in campaigns without a default reward."""
        if not self.keeps_times:
            return _NO_TIMES
        if now is None:
            raise ArgumentError("now", "is missing", "microseconds: the campaign has a default reward")
        last = state.history.times[state.rows - 1] if state.round else LONG_AGO
        return np.maximum.accumulate(np.maximum(np.broadcast_to(np.asarray(now, np.int64), count), last))

    def prepare_past(self, rounds: Sequence[PastRound], prefixes: Sequence[str] | None = None) -> PreparedPast:
        """Check and encode past rounds for `follow`; `prefixes` begin the field names in errors."""
        return self._encoder.prepare_past(rounds, prefixes)

    def follow(self, state: State, prepared: PreparedPast) -> tuple[State, FloatArray]:
        """Record past rounds with the actions taken then; also returns their beliefs (n × H).

        A belief is a function of the contexts alone, so the state is the one that deciding them would have left.
        """
        return follow_rounds(self, state, prepared)

    def play(
        self,
        state: State,
        contexts: Contexts,
        reward_table: FloatArray,
        beliefs: FloatArray | None = None,
        decided: FloatArray | None = None,
        at: Sequence[float] | None = None,
        chosen: SmallInts | None = None,
    ) -> State:
        """Decide row after row and take each reward at once, all in compiled code: for offline evaluation.

        The same as `decide` and `reward` row by row. `reward_table` (rows × K) holds what each action would earn.
        `beliefs` (rows × H) replace the estimated ones, so that many runs can share one belief path. `decided`
        (rows × H) is filled with the beliefs of each decision, and `chosen` (rows) with the actions: the history has
        only the last rounds, and beliefs that may be recomputed (R4). `at` (rows) are times in seconds, required if the
        campaign has a clock.
        """
        return play_episode(self, state, Episode(contexts, reward_table, beliefs, decided, at, chosen))

    def preview(
        self,
        state: State,
        context: Mapping[str, Any],
        *,
        excluded_actions: Collection[str] = (),
        subject: str | None = None,
        at: float | None = None,
        now: int = LONG_AGO,
    ) -> Decision:
        """What `decide` would answer. Nothing is recorded, so work due at a boundary is done again by `decide`."""
        codes, numbers = self.features.encode_one(context)
        gaps, _ = count_steps(self._clock, state, (at,))
        if not gaps.size:
            gaps = np.array([1 if state.round else 0], np.int16)  # the scratch history below is empty
        rows = Rows(gaps, codes, numbers, *self._encoder.encode_rules(excluded_actions, subject), _NO_TIMES)
        return self._decide_rows(self.cross(state, now), rows, History(*self._row_shape, 1))[0].decisions()[0]

    def score_under(self, state: State, beliefs: FloatArray, request: Request) -> list[tuple[Score, ...]]:
        """The score of each eligible action in the next round under each of the beliefs (n × H).

        The beliefs are used as they are, whatever the context says about the regime: a row that is certain of a regime
        shows what would be chosen in it. Work due at a boundary is not done.
        """
        self.check_state(state)
        beliefs = np.ascontiguousarray(beliefs, np.float64)
        if beliefs.ndim != 2 or beliefs.shape[1] != state.belief.size or not np.isfinite(beliefs).all():
            raise ArgumentError("beliefs", f"shape {beliefs.shape}", f"rows of {state.belief.size} finite numbers")
        codes, numbers = self.features.encode_one(request.context)
        rules = self._encoder.encode_rules(request.excluded_actions, request.subject)
        rows = Rows(NO_GAPS, codes, numbers, *rules, _NO_TIMES)
        still = state._replace(hmm=None)  # without parameters a belief stays as it is (R5)
        scores = []
        for belief in beliefs:
            decided, _ = self._decide_rows(still._replace(belief=belief), rows, History(*self._row_shape, 1))
            scores.append(decided.decisions()[0].scores)
        return scores

    def _advance(self, state: State, rows: Rows, periods: IntArray) -> tuple[State, list[Decided]]:
        """Decide rows, stopping at each boundary for what is due there."""
        tables: list[Decided] = []
        done, count = 0, len(rows.codes)
        while done < count:
            size, updates = count - done, 0
            if size > state.rounds_ahead:
                if not self.count_rounds_alike(state):
                    state = self.cross(state, int(rows.decided_at[done]) if self.keeps_times else LONG_AGO)
                size = min(size, self.count_rounds_alike(state))
                updates = self.count_updates(state, size)
            part = rows if size == count else rows.part(done, done + size)
            history = state.history.cut(state.round, state.arrived)
            decided, belief = self._decide_rows(state, part, history)
            state = State(
                state.round + size, belief, state.hmm, state.next_estimation,
                state.next_update + updates * self._length, state.statistics, state.model_version + updates, history,
                state.arrived, state.folded, state.rebuild, state.selection,
                int(periods[done + size - 1]) if self._clock else 0, state.trial_end, state.trial_first, state.online,
                state.exposure,
            )  # fmt: skip
            tables.append(decided)
            done += size
        return state, tables

    def check_state(self, state: State) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Refuse another campaign's state, with which the kernels would read memory out of bounds.

        Returns the fields of Plan and Chance for the kernel: in ordinary rounds, and while an action is on trial.
        """
        fixed = self._fixed.get((state.statistics.theta.size, state.belief.size, state.history.shape))
        if fixed is None:
            raise ArgumentError("state", "belongs to another campaign", "a state of this campaign")
        return fixed

    def cross(self, state: State, now: int = LONG_AGO) -> State:
        """Do what is due before the next round, at its time: perhaps a re-estimation, perhaps an update."""
        self.check_state(state)
        if not state.rounds_ahead:
            state = self.pass_time(state, now)
        if state.is_estimation_due:
            state = self.reestimate(state)
        if state.is_update_due:
            state = self.update(state)
        return state

    def count_rounds_alike(self, state: State) -> int:
        """The number of rounds that one model decides, under one version or several; 0 when something is due.

        An update that has nothing to fold changes only the version. Most updates inside a batch are such, because no
        reward comes between its decisions. With a default reward, time passes and the rounds themselves are folded.
        """
        ahead = state.rounds_ahead
        nothing_new = state.arrived == state.folded and not state.rebuild and linucb.is_current(state.statistics)
        if (
            not ahead or not nothing_new or state.exposure is not None or state.round < state.trial_end
        ):  # a trial ends with a stage
            return ahead
        return state.next_estimation - 1 - state.round if state.next_estimation else _FOREVER

    def count_updates(self, state: State, rounds: int) -> int:
        """The number of stage updates before the last of the next `rounds` rounds."""
        return max(0, state.round + rounds - state.next_update + self._length) // self._length

    def _decide_rows(self, state: State, rows: Rows, history: History) -> tuple[Decided, FloatArray]:
        """Decide rows that share one reward model and one HMM, and record them; also returns the belief after them."""
        names, history_rows = self._names, history.rows
        count, arms, first, regimes = len(rows.codes), len(names), state.round + 1, state.belief.size
        answers = np.empty((count, 3 + 2 * arms + regimes))
        history.reserve(count)
        _, _, inverse, theta, _, units = state.statistics
        # Either all rows are in one stage, or there is no trial.
        ordinary, trial = self.check_state(state)
        kernels.decide_rounds(
            *(ordinary if first > state.trial_end else trial),
            self.count_warm_rounds(state), state.search_rounds,
            *(self.get_exploration(first, count, units) if self._varying else self._exploration),
            inverse, theta, units[0], state.counted, *self.get_chain(state), *rows[:-1], first,
            history_rows, *history.contexts, history.steps, history.actions, history.beliefs, answers,
        )  # fmt: skip
        history.rows = history_rows + count
        if rows.decided_at.size:
            history.times[history_rows : history.rows] = rows.decided_at
        decided = Decided(first, self._length, state.model_version, names, rows.eligible, answers)
        return decided, history.beliefs[history_rows + count - 1, :regimes]

    @staticmethod
    def get_chain(state: State) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What the filter starts from (R5): transition and emission, 0 × 0 if there are none, and the belief."""
        if state.hmm is None:
            return _NO_MATRIX, _NO_MATRIX, state.belief
        return state.hmm.transition, state.hmm.emission, state.belief

    # --- rewards and stage updates ---------------------------------------------------------------------------

    def reward(self, state: State, round: int, reward: float, now: int = LONG_AGO) -> State:
        """Take the reward of a round, in any order and at any time; the next stage update folds it.

        Called again for the same round, it revises the reward: the next update takes the difference. `now`, in
        microseconds, tells how long it took; without it the law of delays learns nothing.
        """
        if isinstance(round, bool) or not isinstance(round, int | np.integer) or not 1 <= round <= state.round:
            raise RewardError("round", f"{format_value(round)} was not decided", f"1 to {state.round}")
        value = self.check_reward(reward)
        history = state.history.cut(state.round, state.arrived)
        row = int(round) - 1 - history.first
        if row >= 0 and history.contexts.symbols[row] == hmm.MISSING:
            value = math.nan  # without its context a reward teaches nothing, like an erased one
        history.add_reward(row, value, now if self.keeps_times else LONG_AGO)
        return State(
            state.round, state.belief, state.hmm, state.next_estimation, state.next_update, state.statistics,
            state.model_version, history, state.arrived + 1, state.folded, state.rebuild, state.selection, state.period,
            state.trial_end, state.trial_first, state.online, state.exposure,
        )  # fmt: skip

    def check_reward(self, reward: float) -> float:
        """The reward as a float; raises RewardError if the campaign cannot take it."""
        if isinstance(reward, bool | np.bool_ | str | bytes):
            raise RewardError("reward", f"{format_value(reward)} is not a number", "a finite number")
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise RewardError("reward", f"{format_value(reward)} is not a number", "a finite number") from None
        limits = self.config.rewards.range
        if not abs(value) <= LARGEST_REWARD or (limits and not limits[0] <= value <= limits[1]):
            allowed, name = (list(limits), "rewards.range") if limits else (f"within ±{LARGEST_REWARD:g}", "range")
            raise RewardError("reward", f"{format_value(reward)} is out of {name}", allowed)
        return value

    def take_erased_reward(self, state: State, round: int) -> State:
        """Count a reward that arrived and was erased (R22): it keeps its place among the arrivals and is never used."""
        history = state.history.cut(state.round, state.arrived)
        history.add_reward(round - 1 - history.first, math.nan)
        return state._replace(history=history, arrived=state.arrived + 1)

    def update(self, state: State) -> State:
        """Run the update that ends a stage: fold the rewards that have arrived, in round order, or revised (R1, R2)."""
        return run_update(self, state)

    def pass_time(self, state: State, now: int) -> State:
        """What a boundary before a round that is decided at `now` (microseconds) begins with.

        In a campaign with a default reward, time decides how much each round counts. Elsewhere nothing happens.
        """
        if state.exposure is None:
            return state
        history = state.get_exact_history()
        exposure = pass_time(state.exposure, self.config.rewards, history, state.arrived, now)
        return state._replace(exposure=exposure)

    def skip_update(self, state: State) -> State:
        """End a stage without its update, because that failed; the next update folds what has arrived."""
        return state._replace(next_update=(state.round // self._length + 1) * self._length + 1)

    # --- re-estimation ---------------------------------------------------------------------------------------

    def reestimate(self, state: State) -> State:
        """Re-estimate from all rounds so far and publish the result (R3), if there is one."""
        estimate, scheduled = self.estimate(state), self.skip_estimation(state)
        if estimate is None or isinstance(estimate, NotEstimable):
            return scheduled
        return self.publish(scheduled, estimate)

    def skip_estimation(self, state: State) -> State:
        """Go on without the re-estimation that is due: it failed, or is made elsewhere (R16)."""
        return state._replace(next_estimation=self.estimator.get_next_round(state))

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        """What the campaign's estimator finds in a state, not yet in force."""
        return self.estimator.estimate(state)

    def publish(self, state: State, estimate: Estimate) -> State:
        """Put an estimate in force; it may come from an earlier state of the same campaign (R16)."""
        self.check_state(state)
        return self.estimator.publish(state, estimate)
