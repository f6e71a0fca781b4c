"""What wide feature maps cost: python -m benchmarks.widths. CPU milliseconds of single steps, no peers."""

import statistics
from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import print_table
from policy import CampaignConfig, StagedPolicy, State, costs
from policy.encoding import Contexts

ROUNDS, STAGE, REPETITIONS = 1_000, 10, 5


class Shape(NamedTuple):
    """A campaign's actions, variables and levels."""

    actions: int
    variables: int
    levels: int


# About 50, 200 and 800 columns with one regime, and close to the limit of 1,024 with two: by many actions and by few.
SHAPES = (Shape(3, 4, 4), Shape(6, 5, 6), Shape(16, 6, 8), Shape(17, 6, 8), Shape(2, 15, 32))


def make_policy(shape: Shape) -> StagedPolicy:
    levels = [str(level) for level in range(shape.levels)]
    return StagedPolicy(
        CampaignConfig(
            name="wide",
            actions=[f"a{number}" for number in range(shape.actions)],
            variables=[{"name": f"v{number}", "levels": levels} for number in range(shape.variables)],
            signals=["v0"],
            stage_length=STAGE,
            seed=7,
        )
    )


def play(policy: StagedPolicy, shape: Shape) -> State:
    """Play rounds in which the level of the first variable stays for a while."""
    generator = np.random.default_rng(1)
    levels = generator.integers(0, shape.levels, (ROUNDS, shape.variables)).astype(np.int16)
    levels[:, 0] = np.where(np.arange(ROUNDS) // 50 % 2, levels[:, 0], levels[:, 0] // 2)
    contexts = Contexts(levels, np.empty((ROUNDS, 0)), np.ascontiguousarray(levels[:, 0]))
    rewards = generator.random((ROUNDS, shape.actions))
    return policy.play(policy.initial_state(), contexts, rewards)


def measure(step: Callable[[], Any], times: int = 1) -> float:
    """Return the median CPU time of a step in milliseconds."""
    step()
    seconds = []
    for _ in range(REPETITIONS):
        begun = process_time()
        for _ in range(times):
            step()
        seconds.append((process_time() - begun) / times)
    return 1e3 * statistics.median(seconds)


def describe(shape: Shape) -> list[str]:
    policy = make_policy(shape)
    state = play(policy, shape)
    context = {f"v{number}": "0" for number in range(shape.variables)}
    few, all_rows = state._replace(folded=state.arrived - STAGE), state._replace(rebuild=True)
    updated = policy.update(state)
    predicted = policy.estimator.get_size(state) / costs.OPERATIONS_PER_MS
    return [
        " × ".join(map(str, shape)),
        " to ".join(str(policy.maps[count].dimension) for count in (1, max(policy.maps))),
        f"{measure(lambda: policy.preview(updated, context), 100):.3f}",
        f"{measure(lambda: policy.update(few)):.2f}",
        f"{measure(lambda: policy.update(all_rows)):.1f}",
        f"{measure(lambda: policy.reestimate(state)):.0f} ({predicted:.0f})",
    ]


def main() -> None:
    header = (
        "actions × variables × levels",
        "columns",
        "decide",
        f"update, {STAGE} rewards",
        "update, all",
        "re-estimation",
    )
    print_table(f"CPU milliseconds at round {ROUNDS:,}", header, [describe(shape) for shape in SHAPES])


if __name__ == "__main__":
    main()
