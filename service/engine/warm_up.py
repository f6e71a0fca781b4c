"""Compile every kernel that a request may need, or load it from the compiler's cache: never inside a request."""

import threading
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from policy import CampaignConfig, Request, StagedPolicy, decode, describe, encode, kernels
from service.engine.ids import Ids, hash_ids

__all__ = ["load_first", "warm_up"]

ROUNDS = 99  # enough for regimes to be fitted, and judged once


_turn = threading.Lock()


def warm_up() -> None:
    """Run a small campaign of every kind, through all that a service does with it; once in a process."""
    with _turn:
        for number, _ in enumerate(_kinds()):
            _warmed_up(number)


def load_first() -> bool:
    """The kernels of a default campaign, which are half the work; were they compiled before? Then the rest were too."""
    with _turn:
        _warmed_up(0)
        ids = Ids()
        ids.extend(0, hash_ids(["warm"]))
        ids.find_rounds(hash_ids(["up"]))
    compiled = (getattr(kernel, "stats", None) for kernel in vars(kernels).values())
    return not any(stats.cache_misses for stats in compiled if stats is not None)


@cache
def _warmed_up(number: int) -> None:
    for kind in [kind for i, kind in enumerate(_kinds()) if i == number]:
        policy = StagedPolicy(CampaignConfig(**kind))
        state = policy.initial_state()
        requests = [
            Request({"season": season, "size": size, "age": age}, at=float(i))
            for i, (season, size, age) in enumerate(product("abcdefgh", (1, 3), (0.2, 0.7)))
        ]
        while state.round < ROUNDS:
            state, decision = policy.decide(
                state, requests[0].context, excluded_actions=["y"], subject="s", at=state.round
            )
            state, decisions = policy.decide_batch(
                state, [r._replace(at=float(state.round + i)) for i, r in enumerate(requests)]
            )
            for decided in (decision, *decisions[:-3]):
                state = policy.reward(state, decided.round, float(decided.round % 3))
            state = decode(encode(state))
        policy.preview(state, requests[0].context, at=float(state.round))
        describe(policy, policy.update(policy.reestimate(state) if state.next_estimation else state))


def _kinds() -> Iterator[dict[str, Any]]:
    """One configuration for each path through the kernels."""
    plain = {
        "name": "warm-up",
        "actions": ["x", "y", "z"],
        "variables": [
            {"name": "season", "levels": list("abcdefgh")},
            {"name": "size", "cuts": [2]},
            {"name": "age", "range": [0, 1]},
        ],
        "signals": ["season"],
        "warm_start_rounds": 20,
        "beliefs": {"estimator": "em", "every": 40},
        "control": {"share": 0.1},
        "propensity_floor": 0.01,
        "seed": 1,
    }
    yield plain
    yield plain | {"clock": {"period_seconds": 2.0}}
    yield plain | {"regimes": 1}
    for regimes in range(2, 9):
        yield plain | {"regimes": regimes}  # the smoother is compiled for each number of regimes
    given = {"transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.125] * 8] * 2, "initial": [0.5, 0.5]}
    for beliefs in (
        {"estimator": "none"},
        {"estimator": "given", "parameters": given},
        {"estimator": "spectral", "start_round": 30},
        *({"estimator": "em", "start_round": 30, "statistics": s} for s in ("as_decided", "refiltered", "smoothed")),
    ):
        yield plain | {"regimes": 2, "beliefs": beliefs}
    for form in ("complex", "simplified", "plain"):
        yield plain | {"regimes": 2, "beliefs": {"estimator": "spectral", "start_round": 30}, "bonus": {"form": form}}


if __name__ == "__main__":  # set-up runs it, so that the first start need not
    load_first()
    warm_up()
