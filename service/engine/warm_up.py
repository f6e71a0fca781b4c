"""Compile every kernel that a request may need, or load it from the cache, before the first request."""

import threading
from functools import cache
from itertools import product
from typing import Any

from policy import CampaignConfig, Request, StagedPolicy, decode, describe, encode, kernels

ROUNDS = 99  # enough for regimes to be fitted, and judged once
_lock = threading.Lock()


def warm_up() -> None:
    """Run a small campaign of each kind through everything that a service does with it; once in a process."""
    with _lock:
        for number in range(len(_build_configs())):
            _run_campaign(number)


def load_first() -> bool:
    """Load the kernels of a default campaign; return whether they came from the cache, as the others then do too."""
    with _lock:
        _run_campaign(0)
    compiled = (getattr(kernel, "stats", None) for kernel in vars(kernels).values())
    return not any(stats.cache_misses for stats in compiled if stats is not None)


@cache
def _run_campaign(number: int) -> None:
    policy = StagedPolicy(CampaignConfig(**_build_configs()[number]))
    state = policy.initial_state()
    requests = [
        Request({"season": season, "size": size, "age": age}, at=float(i))
        for i, (season, size, age) in enumerate(product("abcdefgh", (1, 3), (0.2, 0.7)))
    ]
    while state.round < ROUNDS:
        now = 1_000_000 * (state.round + 1)
        state, decision = policy.decide(
            state, requests[0].context, excluded_actions=["y"], subject="s", at=state.round, now=now
        )
        later = [request._replace(at=float(state.round + i)) for i, request in enumerate(requests)]
        state, decisions = policy.decide_batch(state, later, now)
        for decided in (decision, *decisions[:-3]):
            state = policy.reward(state, decided.round, float(decided.round % 3), now)
        state = policy.reward(state, 1, float(state.round % 3))
        state = decode(encode(state))
    policy.preview(state, requests[0].context, at=float(state.round))
    describe(policy, policy.update(policy.reestimate(state) if state.next_estimation else state))


def _build_configs() -> list[dict[str, Any]]:
    """Build one configuration for each path through the kernels."""
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
    given = {"transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.125] * 8] * 2, "initial": [0.5, 0.5]}
    spectral = {"estimator": "spectral", "start_round": 30}
    beliefs = (
        {"estimator": "none"},
        {"estimator": "given", "parameters": given},
        spectral,
        {"estimator": "online_em", "start_round": 30, "every": 7},
        *({"estimator": "em", "start_round": 30, "statistics": s} for s in ("as_decided", "refiltered", "smoothed")),
    )
    return [
        plain,
        plain | {"clock": {"period_seconds": 2.0}},
        plain | {"regimes": 1, "rewards": {"wait_seconds": 30.0, "default": 0.0}},
        *(plain | {"regimes": regimes} for regimes in range(1, 9)),  # the smoother is compiled for each number
        *(plain | {"regimes": 2, "beliefs": each} for each in beliefs),
        *(
            plain | {"regimes": 2, "beliefs": spectral, "bonus": {"form": form}}
            for form in ("complex", "simplified", "plain")
        ),
    ]


if __name__ == "__main__":  # part of the set-up, so that the first start is quick
    load_first()
    warm_up()
