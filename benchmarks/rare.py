"""Measure the default policy where conversions are rare: how much is lost, and does any seed lock on doing nothing?

    python -m benchmarks.rare [--quick] [--seeds 1951-2050] [--rounds 20000 100000] [--jobs 1] [--range] [--one-regime]

The baseline earns exactly 0. An offer costs a little each time it is played and earns 1 when it converts. At stake is
what the best offer earns in all rounds. A seed is locked if the best offer is played in less than 5 % of the last fifth
of the rounds, although it pays. --range declares the range of the rewards; otherwise the policy has only what it sees.
The one variable, which matters for nothing, is a signal of regimes; with --one-regime it is not, which is faster.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from policy import CampaignConfig, StagedPolicy
from policy.arrays import FloatArray
from policy.encoding import Contexts

SEEDS = (1951, 2050)
LOCKED_SHARE, LAST = 0.05, 5  # a locked seed plays the best offer less often than this in the last fifth
WEAKER = (1.0, 0.5, 0.2)  # conversion rates of three offers, as shares of the best one's


class World(NamedTuple):
    """Offers beside a baseline that earns 0."""

    rates: tuple[float, ...]  # of conversion, the best offer first
    cost: float  # of every play of an offer

    @property
    def name(self) -> str:
        return f"{100 * self.rates[0]:g} %, cost {self.cost:g}, {len(self.rates) + 1} actions"

    @property
    def means(self) -> FloatArray:
        """What each action earns, the baseline first."""
        return np.array([0.0, *(rate - self.cost for rate in self.rates)])

    def draw(self, rounds: int, seed: int) -> tuple[Contexts, FloatArray]:
        """Contexts that matter for nothing, and what each action would earn (rounds × K)."""
        generator = np.random.default_rng(seed)
        symbols = generator.integers(0, 3, rounds).astype(np.int16)
        converts = generator.random((rounds, len(self.rates))) < np.array(self.rates)
        rewards = np.hstack([np.zeros((rounds, 1)), converts - self.cost])
        return Contexts(symbols[:, None].copy(), np.empty((rounds, 0)), symbols), rewards


class Setting(NamedTuple):
    """What the campaign declares."""

    declares_range: bool
    one_regime: bool


class Outcome(NamedTuple):
    """One seed of a world."""

    regret_share: float  # of what is at stake
    is_locked: bool


def list_worlds() -> list[World]:
    """All worlds: with and without costs, with 2 and with 4 actions."""
    costs = {0.05: 0.02, 0.02: 0.005, 0.01: 0.0025}
    return [
        World(tuple(rate * weaker for weaker in offers), cost)
        for rate in costs
        for cost in (costs[rate], 0.0)
        for offers in (WEAKER[:1], WEAKER)
    ]


def build_config(world: World, seed: int, setting: Setting) -> CampaignConfig:
    """A campaign that leaves everything else to its default."""
    return CampaignConfig(
        name="rare",
        actions=["nothing", *(f"offer-{number}" for number in range(1, len(world.rates) + 1))],
        variables=[{"name": "segment", "levels": ["a", "b", "c"]}],
        signals=[] if setting.one_regime else ["segment"],
        beliefs={"estimation": "inline"},
        seed=seed,
        **({"rewards": {"range": [-world.cost, 1.0]}} if setting.declares_range else {}),
    )


def play(world: World, rounds: int, seed: int, setting: Setting) -> Outcome:
    """Play a world with the default policy."""
    contexts, rewards = world.draw(rounds, seed)
    if setting.one_regime:
        contexts.symbols[:] = 0
    policy = StagedPolicy(build_config(world, seed, setting))
    actions = policy.play(policy.initial_state(), contexts, rewards).history.actions[:rounds]
    means = world.means
    regret = float((means.max() - means[actions]).sum())
    late = actions[-(rounds // LAST) :] == means.argmax()
    return Outcome(regret / (rounds * float(means.max())), float(late.mean()) < LOCKED_SHARE)


def measure(worlds: Sequence[World], rounds: Sequence[int], seeds: range, jobs: int, setting: Setting) -> None:
    """Print a row for every world and number of rounds."""
    print("| world | rounds | regret, share of the stake | worst seed | locked seeds |")
    print("|---|---|---|---|---|")
    for world in worlds:
        for length in rounds:
            work = (delayed(play)(world, length, seed, setting) for seed in seeds)
            outcomes = Parallel(jobs)(work)
            shares = np.array([outcome.regret_share for outcome in outcomes])
            error = 2.0 * shares.std(ddof=1) / np.sqrt(len(shares))
            locked = sum(outcome.is_locked for outcome in outcomes)
            print(
                f"| {world.name} | {length:,} | {100 * shares.mean():.1f} % ± {100 * error:.1f} "
                f"| {100 * shares.max():.0f} % | {locked} of {len(shares)} |",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 seeds and 20,000 rounds")
    parser.add_argument("--seeds", default="{}-{}".format(*SEEDS), help="first-last")
    parser.add_argument("--rounds", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--range", action="store_true", help="declare the range of the rewards")
    parser.add_argument("--one-regime", action="store_true", help="a campaign without signals")
    options = parser.parse_args()
    first, last = (int(seed) for seed in options.seeds.split("-"))
    seeds, rounds = range(first, last + 1), options.rounds
    if options.quick:
        seeds, rounds = seeds[:16], [20_000]
    measure(list_worlds(), rounds, seeds, options.jobs, Setting(options.range, options.one_regime))
    return 0


if __name__ == "__main__":
    sys.exit(main())
