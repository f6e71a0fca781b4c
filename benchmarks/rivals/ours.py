"""Our own policy, with nothing set; and the same with one regime."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.worlds import Episode, World
from policy import StagedPolicy
from policy.arrays import IntArray


def play_default(world: World, episode: Episode, setting: Mapping[str, float], seed: int) -> IntArray:
    """Play the default policy."""
    return _play(world, episode, seed)


def play_one_regime(world: World, episode: Episode, setting: Mapping[str, float], seed: int) -> IntArray:
    """Play the default policy with one regime."""
    return _play(world, episode, seed, regimes=1)


def _play(world: World, episode: Episode, seed: int, **own: Any) -> IntArray:
    policy = StagedPolicy(world.build_config(seed, **own))
    contexts, rounds = policy.features.find_symbols(episode.contexts), len(episode.rewards)
    state = policy.play(policy.initial_state(), contexts, episode.rewards)
    return state.history.actions[:rounds].astype(np.int64)
