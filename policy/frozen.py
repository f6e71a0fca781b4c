"""A published model version, kept as it was: what it would expect and choose in later rounds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policy import joint, kernels
from policy.arrays import BoolArray, FloatArray, SmallInts
from policy.clock import LONGEST_GAP
from policy.encoding import Contexts
from policy.staged import StagedPolicy
from policy.state import State


class FrozenModel:
    """The state at a publication. It learns nothing more, but its HMM keeps filtering the contexts."""

    def __init__(self, policy: StagedPolicy, state: State) -> None:
        self.actions = policy.config.actions
        self._features, self._clock = policy.maps[state.belief.size], policy.config.clock
        self._theta = state.statistics.theta
        *self._chain, self._belief = policy.get_chain(state)
        self._period, self._begun = state.period, state.round > 0

    def follow(self, contexts: Sequence[Mapping[str, Any] | None], times: Sequence[float | None]) -> FloatArray:
        """The expected reward of each of its actions, up to a constant, in the next rounds; NaN without a context.

        Times are in seconds. Where a context is missing the filter only predicts (R22).
        """
        count = len(contexts)
        encoded, present = self._encode(contexts)
        beliefs = np.empty((count, self._belief.size))
        kernels.belief_path(*self._chain, self._belief, self._count_steps(times), encoded.symbols, beliefs)
        if count:
            self._belief = beliefs[-1].copy()
        values = np.empty((count, len(self.actions)))
        for action in range(len(self.actions)):
            columns = joint.make_design(self._features, encoded, np.full(count, action, np.int16))
            values[:, action] = (joint.predict(columns, self._theta) * beliefs).sum(axis=1)
        values[~present] = np.nan
        return values

    def _encode(self, contexts: Sequence[Mapping[str, Any] | None]) -> tuple[Contexts, BoolArray]:
        present = np.array([context is not None for context in contexts], np.bool_)
        known = self._features.encode([context for context in contexts if context is not None])
        levels = np.zeros((present.size, known.levels.shape[1]), np.int16)
        values = np.zeros((present.size, known.values.shape[1]))
        symbols = np.full(present.size, -1, np.int16)
        levels[present], values[present], symbols[present] = known
        return Contexts(levels, values, symbols), present

    def _count_steps(self, times: Sequence[float | None]) -> SmallInts:
        """Moves of the chain before each row, as decisions count them (StagedPolicy): 1, or what the clock says."""
        if self._clock is None:
            steps = np.ones(len(times), np.int16)
            steps[:1] = self._begun
            self._begun = self._begun or bool(times)
            return steps
        steps = np.zeros(len(times), np.int16)
        for i, at in enumerate(times):
            period = self._period if at is None else math.floor(at / self._clock.period_seconds)
            if not self._begun:
                self._period, self._begun = period, True
            steps[i] = min(max(period - self._period, 0), LONGEST_GAP)
            self._period = max(period, self._period)
        return steps


def choose_greedily(values: FloatArray, eligible: BoolArray) -> FloatArray:
    """The law (T × K) that plays the best eligible action; ties share. All 0 where no action is eligible."""
    finite = np.where(eligible & ~np.isnan(values), values, -np.inf)
    best = finite.max(axis=1)
    winners = (finite == best[:, None]) & np.isfinite(best)[:, None]
    law: FloatArray = winners / np.maximum(winners.sum(axis=1), 1)[:, None]
    return law
