"""`Estimator`: when an estimate is due, what it costs, what it returns, and how it takes effect."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from policy import hmm, selection, spectral
from policy.arrays import FloatArray
from policy.config import CampaignConfig, GrowthFactor
from policy.errors import ArgumentError
from policy.features import FeatureMap
from policy.history import History
from policy.hmm import HmmParameters
from policy.online import OnlineStatistics
from policy.spectral import NotEstimable
from policy.state import State

Estimate = HmmParameters | selection.Estimate | OnlineStatistics  # what can be published


class Estimator:
    """How a campaign learns its regimes (R3–R6). This class itself estimates nothing: the belief stays uniform (R5).

    It holds only what follows from the configuration; whatever it learns is in the state.
    """

    uses_rewards: ClassVar[bool] = False  # are beliefs estimated from the rewards too?

    def __init__(self, config: CampaignConfig, maps: Mapping[int, FeatureMap], ridge: float) -> None:
        self.config, self.maps, self.ridge = config, maps, ridge
        self.features = maps[max(maps)]

    # --- the start ---

    @property
    def start_regimes(self) -> int:
        """The number of regimes in use before the first estimate."""
        return self.features.regimes

    def get_initial_hmm(self) -> HmmParameters | None:
        """The parameters in force from round 1, if there are any."""
        return None

    # --- the schedule (R3) ---

    def get_first_round(self) -> int:
        """The round before which the first estimate is due, 0 for never."""
        return 0

    def get_next_round(self, state: State) -> int:
        """The round before which the next estimate is due if one is made now, 0 for never."""
        return 0

    def is_required(self, state: State) -> bool:
        """Must the warm start go on because there is no estimate yet (R8)?"""
        return False

    def count_missing_rewards(self, state: State) -> int:
        """Rewards that the warm start still waits for (R8): half as many as it has rounds."""
        return max((self.config.warm_start_rounds + 1) // 2 - state.counted, 0)

    # --- the estimate ---

    def get_size(self, state: State) -> int:
        """About how many multiplications an estimate costs, which decides whether it runs inline (R16)."""
        return 0

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        """An estimate from all rounds of a state, not yet in force; None if too little is new since the last one.

        Never called where no estimate is ever due.
        """
        return NotEstimable("the regimes are not estimated")

    def explain_missing(self, state: State) -> str | None:
        """What an estimate of several regimes lacks; None if it lacks nothing."""
        regimes = next(count for count in self.config.regime_counts if count > 1)
        symbols = state.history.contexts.symbols[: state.rows]
        if np.unique(symbols[symbols >= 0]).size < regimes:
            return f"fewer than {regimes} different symbols so far"
        return None

    # --- publication ---

    def publish(self, state: State, estimate: Estimate) -> State:
        """Put an estimate in force: align it (R6), recompute the belief (R5) and, if configured, the statistics (R4).

        The estimate may come from an earlier state of the campaign (R16). Recomputed statistics take effect at the
        next stage update.
        """
        if not isinstance(estimate, HmmParameters):
            raise ArgumentError("estimate", f"{type(estimate).__name__}", "what `estimate` of this campaign returns")
        parameters, shape = HmmParameters.check(*estimate), (self.features.regimes, self.features.symbols)
        if parameters.emission.shape != shape:
            raise ArgumentError("emission", f"shape {parameters.emission.shape}", f"{shape}")
        if state.hmm is not None:
            parameters, _ = spectral.align(parameters, state.hmm)
        history, statistics = state.history, self.config.beliefs.statistics
        symbols, steps = history.contexts.symbols[: state.rows], history.steps[: state.rows]
        if statistics == "as_decided":
            filtered = hmm.filter_recent(parameters, symbols, steps)
        else:
            filtered = hmm.filter_history(parameters, symbols, steps).beliefs
            history = history.copy(state.round, state.arrived)
            history.beliefs[: state.round] = (
                filtered if statistics == "refiltered" else hmm.compute_expectations(parameters, symbols, steps).beliefs
            )
        return state._replace(
            belief=filtered[-1] if symbols.size else parameters.initial,
            hmm=parameters,
            model_version=state.model_version + 1,
            history=history,
            rebuild=state.rebuild or statistics != "as_decided",
        )

    def restore_belief(self, state: State, past: State, history: History) -> FloatArray:
        """The belief after a rollback to the model of `past` (R21).

        Where statistics are recomputed, also writes the past model's beliefs into `history`, a copy of the state's.
        """
        regimes, rows = past.belief.size, state.rows
        symbols, steps = history.contexts.symbols[:rows], history.steps[:rows]
        uniform = np.full(regimes, 1.0 / regimes)
        known = past.hmm if symbols.size else None
        if self.config.beliefs.statistics == "as_decided":
            return uniform if known is None else hmm.filter_recent(known, symbols, steps)[-1]
        filtered = np.tile(uniform, (rows, 1))
        if known is not None:
            filtered = hmm.filter_history(known, symbols, steps).beliefs
        since = max(past.round - history.first, 0)  # rows that the past state had too
        left = history.first - past.history.first
        history.beliefs[:since] = past.history.beliefs[left : left + since]
        history.beliefs[since:rows] = 0.0
        history.beliefs[since:rows, :regimes] = filtered[since:]
        return filtered[-1] if symbols.size else uniform


class ScheduledEstimator(Estimator):
    """An estimator that runs again and again: first at `start_round`, then as `every` says."""

    def get_first_round(self) -> int:
        return (self.config.beliefs.start_round or 0) if self.features.regimes > 1 else 0

    def get_next_round(self, state: State) -> int:
        t, every = state.round + 1, self.config.beliefs.every
        return max(t + 1, math.ceil(t * every.factor)) if isinstance(every, GrowthFactor) else t + (every or 1)
