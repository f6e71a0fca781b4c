"""Measure campaigns that hear of conversions only, and late, beside the same ones that hear of everything at once.

    python -m benchmarks.late [--quick] [--seeds 1951-1970] [--jobs 1] [--one-regime]

The policy runs in this process with a simulated clock. 4,000 decisions are spread over 30 days; a conversion is
reported after an exponential delay of 2 days on average; what has not converted is never reported, and counts as 0
after 14 days. Halfway an action may be added. Earnings are the true means of the actions played, as a share of those of
the same campaign with every outcome reported at once. "late" are the conversions that came after the wait and were
refused.
"""

import argparse
import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from policy import CampaignConfig, StagedPolicy
from policy.changes import adapt_state, add_config_action

SEEDS = (1951, 1970)
ROUNDS, DAYS, WAIT_DAYS = 4_000, 30.0, 14.0
DAY = 86_400_000_000  # microseconds
START = 1_000 * DAY
LAST = 500  # decisions by which an added action is judged
REPORTED = "at once"


class Action(NamedTuple):
    """How often an action converts, what a conversion earns, and how long it takes to be reported."""

    rate: float
    amount: float
    delay_days: float = 2.0

    @property
    def value(self) -> float:
        return self.rate * self.amount


class World(NamedTuple):
    """The actions, by name, the baseline first; and one that is added halfway."""

    name: str
    actions: dict[str, Action]
    added: tuple[str, Action] | None = None
    after_wait: float = 0.0  # the share of conversions that are reported only after the wait


class Outcome(NamedTuple):
    """One run: the mean true value of a decision, and the share of the added action among the last ones."""

    earned: float
    share: float
    late: float  # share of the conversions that was refused


NONE, CALL, EMAIL = Action(0.02, 50.0), Action(0.05, 60.0), Action(0.30, 50.0)
BASE = {"none": NONE, "call": CALL, "email": EMAIL}
WORLDS = (
    World("the scenario", BASE),
    World("equal amounts", {name: action._replace(amount=50.0) for name, action in BASE.items()}),
    World("email takes twice as long", BASE | {"email": EMAIL._replace(delay_days=4.0)}),
    World(
        "none and call take twice as long",
        {n: a._replace(delay_days=4.0 - 2.0 * (n == "email")) for n, a in BASE.items()},
    ),
    World("20 % after the wait", BASE, after_wait=0.2),
    World("a better action added", BASE, ("letter", Action(0.40, 60.0))),
    World("a better one, twice as slow, added", BASE, ("letter", Action(0.40, 60.0, 4.0))),
    World("a worse action added", BASE, ("letter", Action(0.02, 50.0))),
)


def build_config(world: World, seed: int, mode: str, one_regime: bool) -> CampaignConfig:
    """A campaign that leaves everything else to its default."""
    waiting = {"default": 0, "wait_seconds": WAIT_DAYS * 86_400, "while_waiting": mode}
    return CampaignConfig(
        name="late",
        actions=list(world.actions),
        variables=[{"name": "segment", "levels": ["a", "b", "c"]}],
        signals=[] if one_regime else ["segment"],
        beliefs={"estimation": "inline"},
        seed=seed,
        **({} if mode == REPORTED else {"rewards": waiting}),
    )


def play(world: World, seed: int, mode: str, one_regime: bool) -> Outcome:
    """Play a world; `mode` is a value of `rewards.while_waiting`, or REPORTED."""
    generator = np.random.default_rng(seed)
    times = START + np.sort(generator.random(ROUNDS) * DAYS * DAY).astype(np.int64)
    segments = generator.integers(0, 3, ROUNDS)
    luck, delays, lost = generator.random(ROUNDS), generator.exponential(1.0, ROUNDS), generator.random(ROUNDS)
    policy = StagedPolicy(build_config(world, seed, mode, one_regime))
    state, actions = policy.initial_state(), dict(world.actions)
    coming: list[tuple[int, int, float]] = []
    earned, shares, conversions, late = 0.0, [], 0, 0
    for t in range(ROUNDS):
        if t == ROUNDS // 2 and world.added is not None:
            before, policy = policy, StagedPolicy(add_config_action(policy.config, world.added[0]))
            state, actions = adapt_state(before, policy, state), actions | dict([world.added])
        while coming and coming[0][0] <= times[t]:
            came, round, amount = heappop(coming)
            state = policy.reward(state, round, amount, came)
        state, decision = policy.decide(state, {"segment": "abc"[segments[t]]}, now=int(times[t]))
        action = actions[decision.action]
        earned += action.value
        shares.append(world.added is not None and decision.action == world.added[0])
        amount = action.amount * float(luck[t] < action.rate)
        if mode == REPORTED:
            state = policy.reward(state, decision.round, amount)
        elif amount:
            conversions += 1
            delay = WAIT_DAYS + 1.0 if lost[t] < world.after_wait else delays[t] * action.delay_days
            if delay < WAIT_DAYS:
                heappush(coming, (int(times[t] + delay * DAY), decision.round, amount))
            else:
                late += 1
    return Outcome(earned / ROUNDS, float(np.mean(shares[-LAST:])), late / max(conversions, 1))


def measure(worlds: Sequence[World], seeds: range, jobs: int, one_regime: bool, modes: Sequence[str]) -> None:
    """Print a row for every world and way of waiting."""
    print("| world | while waiting | earned | of all at once | worst seed | added action, last 500 (at once) | late |")
    print("|---|---|---|---|---|---|---|")
    with Parallel(jobs) as parallel:
        for world in worlds:
            full = parallel(delayed(play)(world, seed, REPORTED, one_regime) for seed in seeds)
            best = np.array([outcome.earned for outcome in full])
            for mode in modes:
                outcomes = parallel(delayed(play)(world, seed, mode, one_regime) for seed in seeds)
                earned = np.array([outcome.earned for outcome in outcomes])
                ratio = earned / best
                error = 2.0 * ratio.std(ddof=1) / np.sqrt(len(ratio))
                share, ideal = (np.mean([o.share for o in each]) for each in (outcomes, full))
                added = "-" if world.added is None else f"{100 * share:.0f} % ({100 * ideal:.0f} %)"
                late = 100 * np.mean([o.late for o in outcomes])
                print(
                    f"| {world.name} | {mode} | {earned.mean():.2f} | {100 * ratio.mean():.1f} % ± {100 * error:.1f} "
                    f"| {100 * ratio.min():.0f} % | {added} | {late:.0f} % |",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 seeds of the first world")
    parser.add_argument("--seeds", default="{}-{}".format(*SEEDS), help="first-last")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one-regime", action="store_true", help="a campaign without signals, which is faster")
    parser.add_argument("--modes", nargs="+", default=["provisional", "hold"])
    options = parser.parse_args()
    first, last = (int(seed) for seed in options.seeds.split("-"))
    seeds, worlds = range(first, last + 1), WORLDS
    if options.quick:
        seeds, worlds = seeds[:4], WORLDS[:1]
    measure(worlds, seeds, options.jobs, options.one_regime, options.modes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
