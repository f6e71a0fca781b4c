"""vowpalwabbit's contextual bandits: ε-greedy and SquareCB, with every variable crossed with the actions."""

import random
from collections.abc import Mapping

import numpy as np

from benchmarks.worlds import Episode, World
from policy.arrays import IntArray


def play(world: World, episode: Episode, setting: Mapping[str, float], seed: int) -> IntArray:
    """Play ε-greedy with an `epsilon` and a `learning_rate`, or SquareCB with a `gamma_scale`."""
    from vowpalwabbit import LabelType, Workspace

    explore = "" if "epsilon" in setting else "--squarecb"
    options = " ".join(f"--{name} {value:g}" for name, value in setting.items())
    workspace = Workspace(f"--cb_explore_adf --cb_type mtr {explore} {options} -q sa --quiet --random_seed {seed}")
    count = episode.rewards.shape[1]
    actions = [f"|a action{a}" for a in range(count)]
    shared = describe_contexts(world, episode)
    draws, taken = random.Random(seed), np.empty(len(shared), np.int64)
    for t, (context, earned) in enumerate(zip(shared, episode.rewards.tolist(), strict=True)):
        examples = workspace.parse([context, *actions], LabelType.CONTEXTUAL_BANDIT)
        law = workspace.predict(examples)
        a = draws.choices(range(count), law)[0]
        examples[1 + a].set_label_string(f"0:{-earned[a]}:{law[a]}")
        workspace.learn(examples)
        workspace.finish_example(examples)
        taken[t] = a
    workspace.finish()
    return taken


def describe_contexts(world: World, episode: Episode) -> list[str]:
    """Write each context in the input format, as the features that the actions share."""
    parts = np.full(len(episode.rewards), "shared |s", object)
    number = 0
    for i, variable in enumerate(world.variables):
        name = variable["name"]
        if "range" in variable:
            parts += [f" {name}:{value:.4f}" for value in episode.contexts.values[:, number]]
            number += 1
        else:
            parts += np.array([f" {name}{level}" for level in variable["levels"]], object)[
                episode.contexts.levels[:, i]
            ]
    described: list[str] = parts.tolist()
    return described
