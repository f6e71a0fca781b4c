"""Stage updates: what has come since the last one is folded into G and Σ z r (R1, R2)."""

from typing import TYPE_CHECKING

import numpy as np

from policy import linucb
from policy.delays import SLICES
from policy.exposure import Exposure, Waiting, find_reached, list_due
from policy.history import History
from policy.kept import WEIGHT
from policy.kernels import Statistics
from policy.state import State

if TYPE_CHECKING:
    from policy.staged import StagedPolicy


def run_update(policy: "StagedPolicy", state: State) -> State:
    """`StagedPolicy.update`."""
    if state.exposure is None:
        history, exposure, statistics = state.history, None, _fold_rewards(policy, state)
    else:
        history = state.get_exact_history()
        exposure, statistics = _fold_slices(policy, state, state.exposure, history)
    return policy.skip_update(state)._replace(
        statistics=statistics,
        model_version=state.model_version + 1,
        history=history.exclude_erased(state.round, state.folded, state.arrived),
        folded=state.arrived,
        rebuild=False,
        exposure=exposure,
    )


def _fold_rewards(policy: "StagedPolicy", state: State) -> Statistics:
    """Fold the rewards that have arrived, and what revisions have changed."""
    history, start, folded = state.history, state.statistics, state.folded
    if state.rebuild:
        folded, start = 0, _start_again(policy, state)
    return linucb.update_statistics(
        start, policy.maps[state.belief.size], policy.ridge, history.contexts, history.actions, history.beliefs,
        history.get_rewards(state.arrived), history.get_arrivals(folded, state.arrived),
        history.get_differences(folded, state.arrived),
    )  # fmt: skip


def _fold_slices(
    policy: "StagedPolicy", state: State, exposure: Exposure, history: History
) -> tuple[Exposure, Statistics]:
    """With a default reward: fold the slices of rounds that are due, and the rewards of rounds that are in."""
    default = policy.config.rewards.default or 0.0
    before, folded, start = exposure.reached, state.folded, state.statistics
    if state.rebuild:
        before, folded, start = np.zeros_like(before), 0, _start_again(policy, state)
    reached = np.maximum(before, find_reached(exposure, history, state.round))
    due = list_due(history, before, folded, Waiting(default, reached))
    statistics = linucb.fold_slices(
        start, policy.maps[state.belief.size], policy.ridge, history.contexts, history.actions, history.beliefs,
        due, default,
    )  # fmt: skip
    return exposure._replace(reached=reached), statistics


def _start_again(policy: "StagedPolicy", state: State) -> Statistics:
    """Statistics of the rounds that have left alone, in the units of the model in force."""
    fresh, units = (
        linucb.create_statistics(policy.maps[state.belief.size].dimension, policy.ridge),
        state.statistics.units,
    )
    kept = state.selection.in_use.kept if state.selection else None
    if kept is None:
        return fresh._replace(units=units)
    kept = kept.move_centre(float(units[0]))
    counted = kept.known if state.exposure is None else round(kept.rewards[WEIGHT] * SLICES)
    counters = np.array([counted, fresh.counters[1]], np.int64)
    return fresh._replace(gram=fresh.gram + kept.gram, moment=kept.moment, counters=counters, units=units)
