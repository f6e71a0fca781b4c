"""What a step will cost, by counts and never by the clock, so that it is known before the step begins.

An operation is the unit of `Estimator.get_size`: OPERATIONS_PER_MS of them take about a millisecond on a common
machine. The service decides by these counts what runs on the event loop, what in a thread and what as a job (R16).
"""

import numpy as np

from policy import linucb
from policy.exposure import find_reached
from policy.history import LONG_AGO
from policy.staged import StagedPolicy
from policy.state import State

OPERATIONS_PER_MS = 10_000
QUICK_OPERATIONS = 2 * OPERATIONS_PER_MS  # what may run on an event loop: about 2 ms
_FEW = 20  # rounds that are quick if nothing is due


def count_update_operations(policy: StagedPolicy, state: State, now: int = LONG_AGO) -> int:
    """About how many operations the next stage update costs, at `now`; 0 if it has nothing to fold."""
    rows = state.arrived - (state.history.gone.arrivals if state.rebuild else state.folded)
    if state.exposure is not None:
        exposure = state.exposure._replace(now=max(now, state.exposure.now))
        reached = find_reached(exposure, state.history, state.round)
        before = state.history.first if state.rebuild else exposure.reached
        rows += int(np.maximum(reached - before, 0).sum())
    features = policy.maps[state.belief.size]
    return linucb.count_operations(state.statistics, features, policy.ridge, rows, anew=state.rebuild)


def is_quick(policy: StagedPolicy, state: State, rounds: int, now: int = LONG_AGO) -> bool:
    """Do the next `rounds` rounds cost at most QUICK_OPERATIONS at `now`, with all that is due before them?"""
    if rounds <= _FEW and rounds <= state.rounds_ahead:  # the usual case, which must cost nothing
        return True
    columns, last = policy.maps[state.belief.size].most_active, state.round + rounds
    operations = rounds * (len(policy.config.actions) * columns**2 // 100 + 10)
    if state.next_update <= last:
        operations += count_update_operations(policy, state, now)
    while 0 < state.next_estimation <= last and operations <= QUICK_OPERATIONS:
        state = state._replace(round=max(state.round, state.next_estimation - 1))
        operations += policy.estimator.get_size(state)
        if policy.config.beliefs.statistics in ("refiltered", "smoothed"):  # the next update folds all rounds again
            operations += count_update_operations(policy, state._replace(rebuild=True), now)
        state = policy.skip_estimation(state)
    return operations <= QUICK_OPERATIONS
