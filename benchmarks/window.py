"""Measure what a window does to the default policy: its regret beside that of all rounds, and the cost at any age.

    python -m benchmarks.window regret [--seeds 1951-1962] [--rounds 50000] [--window 10000] [--jobs 1]
    python -m benchmarks.window cost [--window 50000] [--rounds 100000 1000000]

`regret` plays each seed of the credit-card environment with and without the window. `cost` plays one campaign, and says
at each of the rounds how long a re-estimation takes, how large the encoded state is, and the memory of the process.
"""

import argparse
import itertools
import resource
import sys
import time
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks import print_table
from policy import StagedPolicy, encode
from simulator.environment import load_environment
from simulator.presets import build_config
from simulator.replay import average

ENVIRONMENT = "credit-card"
PART = 10_000  # rounds drawn at a time, so that the environment takes little memory


def make_policy(environment: str, seed: int, window: int | None) -> StagedPolicy:
    """The default policy with a window, or with all rounds."""
    return StagedPolicy(
        build_config("default", load_environment(environment), seed, {"beliefs": {"window_rounds": window}})
    )


def compute_regret(environment: str, seed: int, rounds: int, window: int | None) -> float:
    episode = load_environment(environment).draw(rounds, np.random.default_rng(seed))
    policy, actions = make_policy(environment, seed, window), np.zeros(rounds, np.int16)
    policy.play(policy.initial_state(), episode.contexts, episode.rewards, chosen=actions)
    return float(episode.compute_regrets(actions)[0, -1])


def compare_regrets(arguments: argparse.Namespace) -> None:
    """Print the mean regret with and without the window, and the mean of the differences."""
    windows = (None, arguments.window)
    work = list(itertools.product(arguments.seeds, windows))
    runs = Parallel(arguments.jobs, return_as="generator")(
        delayed(compute_regret)(arguments.environment, seed, arguments.rounds, window) for seed, window in work
    )
    regrets = np.array(list(tqdm(runs, total=len(work), disable=None))).reshape(-1, 2)
    differences = regrets[:, 1] - regrets[:, 0]
    rows = []
    for name, values in (("all rounds", regrets[:, 0]), ("window", regrets[:, 1]), ("difference", differences)):
        mean, two_se, _ = average(values.tolist())
        rows.append([name, f"{mean:.1f} ± {two_se:.1f}", f"{values.min():.1f}", f"{values.max():.1f}"])
    title = f"{arguments.environment}, {len(regrets)} seeds, T = {arguments.rounds:,}, W = {arguments.window:,}"
    print_table(title, ["rounds read", "regret, ± 2 s.e.", "smallest", "largest"], rows)


def measure_cost(arguments: argparse.Namespace) -> None:
    """Play one campaign in parts, and measure at each of the rounds."""
    environment, window = load_environment(arguments.environment), arguments.window or None
    policy, generator = make_policy(arguments.environment, 7, window), np.random.default_rng(7)
    state, rows = policy.initial_state(), []
    for stop in arguments.rounds:
        while state.round < stop:
            episode = environment.draw(min(PART, stop - state.round), generator)
            state = policy.play(state, episode.contexts, episode.rewards)
        seconds = [_time_estimate(policy, state) for _ in range(3)]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = len(encode(state)) / 2**20
        rows.append([f"{stop:,}", f"{state.rows:,}", f"{min(seconds):.2f} s", f"{size:.1f} MiB", f"{memory:.0f} MiB"])
    print_table(
        f"the cost of W = {arguments.window:,}",
        ["round", "rows held", "re-estimation", "snapshot", "peak memory"],
        rows,
    )


def _time_estimate(policy: StagedPolicy, state: Any) -> float:
    started = time.perf_counter()
    policy.reestimate(state)
    return time.perf_counter() - started


def parse_seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default=ENVIRONMENT)
    parts = parser.add_subparsers(dest="part", required=True)
    regret = parts.add_parser("regret")
    regret.add_argument("--seeds", type=parse_seeds, default=range(1951, 1963))
    regret.add_argument("--rounds", type=int, default=50_000)
    regret.add_argument("--window", type=int, default=10_000)
    regret.add_argument("--jobs", type=int, default=1)
    cost = parts.add_parser("cost")
    cost.add_argument("--window", type=int, default=50_000, help="0: all rounds")
    cost.add_argument("--rounds", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    compare_regrets(arguments) if arguments.part == "regret" else measure_cost(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
