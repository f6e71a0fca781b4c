"""Offline evaluation: a whole episode played in compiled code, every reward known at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from policy import hmm, kernels, linucb
from policy.arrays import FloatArray, SmallInts
from policy.clock import count_steps
from policy.config import LARGEST_REWARD
from policy.encoding import Contexts
from policy.errors import ArgumentError
from policy.state import State

if TYPE_CHECKING:
    from policy.staged import StagedPolicy


class Episode(NamedTuple):
    """What happens to the policy, a row per round; see `StagedPolicy.play`."""

    contexts: Contexts
    reward_table: FloatArray  # rows × K
    beliefs: FloatArray | None  # rows × H: used instead of estimates
    decided: FloatArray | None  # rows × H: filled with the beliefs used
    at: Sequence[float] | None  # rows: times in seconds
    chosen: SmallInts | None = None  # rows: filled with the actions


def play_episode(policy: "StagedPolicy", state: State, episode: Episode) -> State:
    """Play an episode: the same state as `decide` and `reward` row by row."""
    _check_episode(policy, episode)
    _check_state(policy, state)
    rows, clock = episode.contexts.symbols.size, policy.config.clock
    gaps, periods = count_steps(clock, state, [None] * rows if episode.at is None else episode.at, "at[{}]")
    if not gaps.size:
        gaps = hmm.check_steps(None, rows) if state.round == 0 else np.ones(rows, np.int16)
    begun, done = state.round, 0
    while done < rows:
        if episode.beliefs is None and state.is_estimation_due:
            state = policy.reestimate(state)
        stop = rows
        if episode.beliefs is None and state.next_estimation:
            stop = min(rows, state.next_estimation - 1 - begun)
        if state.statistics.theta.size > kernels.NARROW:
            stop = min(stop, state.next_update + (policy.config.stage_length if state.is_update_due else 0) - 1 - begun)
        state = _play_part(policy, state, episode, gaps, done, stop)
        state = state._replace(period=int(periods[stop - 1]) if periods.size else 0)
        done = stop
    return state


def _play_part(policy: "StagedPolicy", state: State, episode: Episode, gaps: SmallInts, done: int, stop: int) -> State:
    """Play rows done … stop-1, between which nothing is re-estimated."""
    part, regimes, count = episode.contexts.rows(done, stop), state.belief.size, stop - done
    if episode.beliefs is None:
        path = np.empty((count, regimes))
        kernels.belief_path(*policy.get_chain(state), gaps[done:stop], part.symbols, path)
    else:
        path = episode.beliefs[done:stop]
    if episode.decided is not None:
        episode.decided[done:stop] = 0.0
        episode.decided[done:stop, :regimes] = path
    history = state.history.cut(state.round, state.arrived)
    start, end, length, first = state.round, state.round + count, policy.config.stage_length, history.first
    history.append(part, gaps[done:stop], np.zeros(count, np.int16), path)
    statistics, folded = linucb.copy_statistics(state.statistics), -1 if state.rebuild else state.folded
    if policy.maps[regimes].dimension > kernels.NARROW and start and start % length == 0:
        # The kernel leaves wide maps to LAPACK: update here, after which it has nothing to fold.
        statistics, folded = policy.update(state).statistics, start
    folded = kernels.play_rounds(
        policy.maps[regimes].plan, policy.chance,
        policy.get_exploration(start + 1, count, statistics.units), statistics,
        first, start - first, end - first, folded if folded < 0 else folded - first, policy.ridge,
        policy.count_warm_rounds(state), state.search_rounds, history.contexts.levels, history.contexts.values,
        history.beliefs, episode.reward_table[done:stop], history.actions, history.rewards,
    )  # fmt: skip
    history.mark_rewarded(start - first, end - first)
    if episode.chosen is not None:
        episode.chosen[done:stop] = history.actions[start - first : end - first]
    return state._replace(
        round=end,
        belief=path[-1].copy(),
        statistics=statistics,
        model_version=state.model_version + (end - 1) // length - max(start - 1, 0) // length,
        history=history,
        arrived=end,
        folded=state.folded if folded < 0 else first + folded,
        rebuild=folded < 0,
        next_update=((end - 1) // length + 1) * length + 1,
    )


def _check_episode(policy: "StagedPolicy", episode: Episode) -> None:
    contexts, table, beliefs, decided, at, chosen = episode
    rows, arms, regimes = contexts.symbols.size, len(policy.config.actions), policy.features.regimes
    low, high = policy.config.rewards.range or (-LARGEST_REWARD, LARGEST_REWARD)
    if table.shape != (rows, arms) or not ((table >= low) & (table <= high)).all():
        allowed = f"({rows}, {arms}), every number from {low:g} to {high:g}"
        raise ArgumentError("reward_table", f"shape {table.shape}", allowed)
    policy.features.check(contexts)
    for field, given in (("beliefs", beliefs), ("decided", decided)):
        if given is not None and given.shape != (rows, regimes):
            raise ArgumentError(field, f"shape {given.shape}", f"({rows}, {regimes})")
    uses_rewards = policy.estimator.uses_rewards
    if beliefs is not None and (uses_rewards or not np.isfinite(beliefs).all()):
        message = "are estimated with the rewards" if uses_rewards else "hold a number that is not finite"
        raise ArgumentError("beliefs", message, "none with joint statistics, else laws of the regimes")
    if chosen is not None and chosen.shape != (rows,):
        raise ArgumentError("chosen", f"shape {chosen.shape}", f"({rows},)")
    if at is not None and len(at) != rows:
        raise ArgumentError("at", f"{len(at)} times", f"{rows}, one per row")


def _check_state(policy: "StagedPolicy", state: State) -> None:
    policy.check_state(state)
    if policy.config.rewards.default is not None:
        raise ArgumentError("state", "is of a campaign with a default reward", "a campaign in which no round waits")
    if policy.config.retired_actions or state.round < state.trial_end:
        raise ArgumentError("state", "has retired actions, or one on trial", "all actions in ordinary use")
    folded_rows = state.history.get_arrivals(0, state.folded)
    first, revised = state.history.first, state.history.count_revisions(state.arrived)
    in_order = np.array_equal(folded_rows, np.arange(state.folded - first)) and not revised
    if state.arrived != state.round or not in_order:
        message = "has rewards that are missing, were revised, or were folded out of round order"
        raise ArgumentError("state", message, "a state in which every round has its reward, taken in order")
    length = policy.config.stage_length
    if state.next_update != max(1, -(-state.round // length)) * length + 1:
        raise ArgumentError("state", "has already run what is due before its next round", "a state that `decide` left")
