"""Rounds that were decided elsewhere, or whose request no longer exists: recorded with the action they had."""

from typing import TYPE_CHECKING

import numpy as np

from policy import kernels
from policy.arrays import FloatArray
from policy.clock import count_steps
from policy.encoding import Contexts
from policy.requests import PreparedPast
from policy.state import State

if TYPE_CHECKING:
    from policy.staged import StagedPolicy


def follow_rounds(policy: "StagedPolicy", state: State, prepared: PreparedPast) -> tuple[State, FloatArray]:
    """`StagedPolicy.follow`: the state after the rounds, and their beliefs (n × H)."""
    codes, numbers, actions, times, decided_at = prepared
    gaps, periods = count_steps(policy.config.clock, state, times)
    beliefs = np.zeros((actions.size, policy.features.regimes))
    done = 0
    while done < actions.size:
        state = policy.cross(state, int(decided_at[done]))
        stop, regimes = min(actions.size, done + state.rounds_ahead), state.belief.size
        symbols = np.ascontiguousarray(codes[done:stop, -1])
        steps = gaps[done:stop] if gaps.size else np.ones(stop - done, np.int16)
        if not (gaps.size or state.round):
            steps[0] = 0  # R5
        path = np.empty((stop - done, regimes))
        kernels.belief_path(*policy.get_chain(state), steps, symbols, path)
        history = state.get_exact_history()
        history.append(Contexts(codes[done:stop, :-1], numbers[done:stop], symbols), steps, actions[done:stop], path)
        if policy.keeps_times:
            history.times[state.rows : history.rows] = decided_at[done:stop]
        beliefs[done:stop, :regimes] = path
        state = state._replace(
            round=state.round + stop - done,
            belief=path[-1].copy(),
            history=history,
            period=int(periods[stop - 1]) if periods.size else 0,
        )
        done = stop
    return state, beliefs
