"""What our default policy is measured against: small implementations of other policies, each with a grid to tune.

A rival sees what ours sees: the encoded context of a round, and the reward of the action that it took, at once.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from benchmarks.rivals import linear, ours, vowpal
from benchmarks.worlds import Episode, World
from policy.arrays import IntArray

Setting = Mapping[str, float]  # by name
Play = Callable[[World, Episode, Setting, int], IntArray]  # with a seed; returns the actions

SCALES = (0.1, 0.3, 1.0)
DISCOUNTS = (0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
WINDOWS = (100, 250, 500, 1_000, 2_000, 5_000)


class Rival(NamedTuple):
    """A policy, and the settings among which the best one is looked up in hindsight."""

    play: Play
    settings: tuple[Setting, ...] = ({},)


def play_at_random(world: World, episode: Episode, setting: Setting, seed: int) -> IntArray:
    """Play every action equally often."""
    return np.random.default_rng([seed, 1]).integers(0, episode.values.shape[1], len(episode.values))


def list_grid(**values: tuple[float, ...]) -> tuple[Setting, ...]:
    """List every combination."""
    return tuple(dict(zip(values, each, strict=True)) for each in product(*values.values()))


RIVALS: dict[str, Rival] = {
    "default": Rival(ours.play_default),
    "one regime": Rival(ours.play_one_regime),
    "random": Rival(play_at_random),
    "LinUCB": Rival(linear.play_optimistically, list_grid(scale=(*SCALES, 3.0, 10.0))),
    "LinTS": Rival(linear.play_by_sampling, list_grid(scale=(*SCALES, 3.0))),
    "D-LinUCB": Rival(linear.play_optimistically, list_grid(discount=DISCOUNTS, scale=SCALES)),
    "SW-LinUCB": Rival(linear.play_optimistically, list_grid(window=WINDOWS, scale=SCALES)),
    "VW ε-greedy": Rival(vowpal.play, list_grid(epsilon=(0.02, 0.1), learning_rate=(0.05, 0.5))),
    "VW SquareCB": Rival(vowpal.play, list_grid(gamma_scale=(10.0, 100.0, 1_000.0))),
}
OURS = ("default", "one regime")
