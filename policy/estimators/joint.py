"""The default policy's estimator: regimes, their number, θ̂ and σ̂ together, from symbols and rewards.

The number of regimes, θ̂ and G must change together, so its estimates are due at the ends of stages (R3) and take effect
at once.
"""

import numpy as np

from policy import hmm, joint, noise, selection
from policy.defaults import FIRST_ROUNDS, LEAST_PERIODS
from policy.delays import SLICES
from policy.errors import ArgumentError
from policy.estimators.base import Estimate, ScheduledEstimator
from policy.exposure import Waiting
from policy.history import History
from policy.kernels import Statistics
from policy.selection import Selection
from policy.spectral import NotEstimable
from policy.state import State, find_stage_start
from policy.window import SPARE


class JointEstimator(ScheduledEstimator):
    """Candidates with different numbers of regimes, fitted jointly and judged by their predictions (selection.py)."""

    uses_rewards = True

    @property
    def start_regimes(self) -> int:
        return 1

    @property
    def first_rewards(self) -> int:
        """Rewards that the first estimate needs: half as many as the warm start has rounds (R8), and a few for σ̂."""
        return max(4, (self.config.warm_start_rounds + 1) // 2)

    def get_first_round(self) -> int:
        return find_stage_start(self.config.beliefs.start_round or 0, self.config.stage_length)

    def get_next_round(self, state: State) -> int:
        if self._is_too_early(state):
            return find_stage_start(state.round + 2, self.config.stage_length)
        due, window = super().get_next_round(state), self.config.beliefs.window_rounds
        if window is not None:  # until then no round leaves
            due = min(due, state.round + 1 + window // SPARE)
        return find_stage_start(due, self.config.stage_length)

    def is_required(self, state: State) -> bool:
        """The bonus needs the noise σ̂, which only an estimate has."""
        return state.selection is None

    def count_missing_rewards(self, state: State) -> int:
        if state.selection is not None:
            return super().count_missing_rewards(state)
        waiting = state.find_waiting(self.config.rewards.default)
        if waiting is not None:
            return max(self.first_rewards - int(waiting.reached.sum()) // SLICES, 0)
        return max(self.first_rewards - state.history.get_arrivals(0, state.arrived).size, 0)

    def get_size(self, state: State) -> int:
        return 0 if self._is_too_early(state) else selection.count_operations(self.maps, state.rows, state.selection)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        if self._is_too_early(state):
            return NotEstimable(f"fewer than {self.first_rewards} rewards so far")
        self._check_candidates(state)
        waiting = state.find_waiting(self.config.rewards.default)
        history = state.history if waiting is None else state.get_exact_history()
        return selection.estimate(
            self.maps, self.ridge, self.config.seed, history, state.round, state.arrived, state.selection,
            named=self.config.regimes != "auto", waiting=waiting, window=self.config.beliefs.window_rounds,
        )  # fmt: skip

    def explain_missing(self, state: State) -> str | None:
        if self.is_required(state) and (missing := self.count_missing_rewards(state)):
            return f"{missing} more rewards are needed"
        if state.round < FIRST_ROUNDS:
            return f"fewer than {FIRST_ROUNDS} rounds so far"
        if not state.history.first and np.count_nonzero(state.history.steps[: state.round]) < 2 * LEAST_PERIODS:
            return f"fewer than {2 * LEAST_PERIODS} periods of the clock so far"
        return super().explain_missing(state)

    def publish(self, state: State, estimate: Estimate) -> State:
        """Put the chosen candidate in force, with statistics over all rounds and all rewards known by now.

        Rounds after those of the estimate enter with the context-only beliefs of the new parameters. The rounds that
        the estimate lets go leave the history.
        """
        if not isinstance(estimate, selection.Estimate):
            raise ArgumentError("estimate", f"{type(estimate).__name__}", "what `estimate` of this campaign returns")
        chosen, covered = estimate.selection, estimate.posterior.shape[0]
        model, leaving = chosen.in_use, chosen.first - state.history.first
        if model.regimes not in self.maps or covered > state.rows or not 0 <= leaving <= covered:
            message = "was made for another campaign or a later round"
            raise ArgumentError("estimate", message, "an estimate of this campaign")
        if leaving:
            history = state.history.let_leave(leaving, state.round, state.arrived, chosen.arrived)
        else:
            history = state.history.copy(state.round, state.arrived)
        rows, covered = state.round - history.first, covered - leaving
        symbols, steps = history.contexts.symbols[:rows], history.steps[:rows]
        filtered = hmm.filter_history(model.start, symbols, steps).beliefs
        if model.regimes == 1:
            filtered[:] = 1.0  # R5, to the last bit
        history.beliefs[:rows, model.regimes :] = 0.0
        history.beliefs[:covered, : model.regimes] = estimate.posterior[leaving:]
        history.beliefs[covered:rows, : model.regimes] = filtered[covered:]
        waiting = state.find_waiting(self.config.rewards.default)
        return state._replace(
            belief=filtered[-1],
            hmm=model.hmm if model.regimes > 1 else None,
            statistics=self._recompute_statistics(state, history, chosen, covered, waiting),
            model_version=state.model_version + 1,
            history=history.exclude_erased(state.round, state.folded, state.arrived),
            folded=state.arrived,
            selection=chosen,
            rebuild=False,
            exposure=state.exposure and waiting and state.exposure._replace(reached=waiting.reached),
        )

    def _recompute_statistics(
        self, state: State, history: History, chosen: Selection, covered: int, waiting: Waiting | None
    ) -> Statistics:
        """G, Σ z r and θ̂ over all rounds with the beliefs in `history`; the estimate covered the first `covered`."""
        model = chosen.in_use
        features = self.maps[model.regimes]
        data = joint.gather(features, history, state.round, state.arrived, waiting, chosen.candidates[0].kept)
        data = data.add_kept(model.kept)
        posterior = np.ascontiguousarray(history.beliefs[: state.round - history.first, : model.regimes])
        if data.has_gaps:
            spread = np.zeros((data.symbols.size, model.regimes))
            spread[data.rows] = posterior
            posterior = spread
        vertices = int(data.rows[covered - 1]) + 1 if model.joint and covered else 0
        columns = joint.make_design(features, data.contexts, data.actions)
        statistics = joint.compute_statistics(data, columns, self.ridge, posterior, vertices)
        limits = None if chosen.is_varied else self.config.rewards.range
        noises = noise.estimate_action_noises(
            data, columns, statistics, posterior, vertices, model.units[1],
            limits[1] - limits[0] if limits else None,
        )  # fmt: skip
        return statistics._replace(units=np.array([data.centre, model.units[1], *noises]))

    def _is_too_early(self, state: State) -> bool:
        return self.is_required(state) and self.count_missing_rewards(state) > 0

    def _check_candidates(self, state: State) -> None:
        """The kernels check no bounds, and a state may come from a file."""
        for candidate in state.selection.candidates if state.selection else ():
            features = self.maps.get(candidate.regimes)
            shapes = candidate.theta.shape, candidate.hmm.emission.shape
            if features is None or shapes != ((features.dimension,), (features.regimes, features.symbols)):
                raise ArgumentError("state", "holds candidates of another campaign", "a state of this campaign")
            kept = candidate.kept
            actions = len(features.actions)
            if kept and not kept.has_shapes(features.regimes, features.symbols, features.dimension, actions):
                raise ArgumentError("state", "holds sums of another campaign", "a state of this campaign")
