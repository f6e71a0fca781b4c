"""Measure the estimators of the hidden chain on the paper's environment: belief error and regret.

    python -m benchmarks.estimators [--seeds 1951-1958] [--rounds 50000] [--jobs 1] [--environment credit-card]

Everything but the estimator and its schedule is the paper's best cell (preset paper-complex, statistics as decided), so
regrets differ by the beliefs alone. The belief error is the mean L1 distance between the beliefs that decisions used
and the true ones, under the best numbering of the regimes, in the rounds named in the table.
"""

import argparse
import itertools
import sys
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import linear_sum_assignment

from benchmarks import print_table
from policy import StagedPolicy
from policy.arrays import FloatArray
from simulator.environment import load_environment
from simulator.presets import build_config
from simulator.replay import average

AS_DECIDED = {"statistics": "as_decided"}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "spectral, from 1,000": {},  # as in the preset
    "batch EM, from 1,000": {"estimator": "em", "start_round": 1000, **AS_DECIDED},
    "online EM, from 1,000": {"estimator": "online_em", "start_round": 1000, **AS_DECIDED},
    "batch EM, from 250": {"estimator": "em", "start_round": 250, **AS_DECIDED},
    "online EM, from 250": {"estimator": "online_em", "start_round": 250, **AS_DECIDED},
}
SPANS = (0.02, 0.1, 0.4, 1.0)  # of all rounds: where the spans of the table end and the next begin


class Outcome(NamedTuple):
    """One seed."""

    errors: FloatArray  # in each span
    regret: float


def compute_errors(beliefs: FloatArray, truth: FloatArray) -> FloatArray:
    """The mean L1 distance in each span, with the regimes numbered as they agree best in the last one."""
    edges = [round(share * len(truth)) for share in SPANS]
    late = slice(edges[-2], edges[-1])
    costs = np.abs(beliefs[late, :, None] - truth[late, None, :]).sum(axis=0)
    gaps = np.abs(beliefs[:, linear_sum_assignment(costs.T)[1]] - truth).sum(axis=1)
    return np.array([gaps[first:last].mean() for first, last in itertools.pairwise(edges)])


def play(environment: str, beliefs: dict[str, Any], seed: int, rounds: int) -> Outcome:
    """Play the paper's policy with an estimator."""
    world = load_environment(environment)
    episode = world.draw(rounds, np.random.default_rng(seed))
    policy = StagedPolicy(build_config("paper-complex", world, seed, {"beliefs": beliefs} if beliefs else None))
    decided = np.zeros_like(episode.beliefs)
    state = policy.play(policy.initial_state(), episode.contexts, episode.rewards, decided=decided)
    regret = float(episode.compute_regrets(state.history.actions[:rounds])[0, -1])
    return Outcome(compute_errors(decided, episode.beliefs), regret)


def format_mean(values: list[float], digits: int) -> str:
    mean, two_se, _ = average(values)
    return f"{mean:.{digits}f} ± {two_se:.{digits}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="credit-card")
    parser.add_argument("--seeds", default="1951-1958", help="first-last")
    parser.add_argument("--rounds", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    first, last = (int(seed) for seed in options.seeds.split("-"))
    edges = [round(share * options.rounds) for share in SPANS]
    spans = [f"error, {start + 1:,}-{stop:,}" for start, stop in itertools.pairwise(edges)]
    rows = []
    for name, beliefs in ESTIMATORS.items():
        work = (delayed(play)(options.environment, beliefs, seed, options.rounds) for seed in range(first, last + 1))
        outcomes = Parallel(options.jobs)(work)
        errors = np.array([outcome.errors for outcome in outcomes])
        regrets = [outcome.regret for outcome in outcomes]
        cells = [format_mean(column.tolist(), 3) for column in errors.T]
        rows.append((name, *cells, format_mean(regrets, 0), f"{max(regrets):.0f}"))
        print(" | ".join(rows[-1]), flush=True)
    title = f"{options.environment}, seeds {options.seeds}, {options.rounds:,} rounds"
    print_table(title, ("estimator", *spans, "regret", "worst seed"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
