"""What the policy tests share: the paper's credit-card campaign, a small one with every kind of variable, a player."""

from typing import Any

import numpy as np
import pytest

from policy import CampaignConfig

# Two regimes over the small campaign's 3 × 3 symbols; rows are laws, no two numbers alike by accident.
GIVEN = {
    "transition": [[0.9, 0.1], [0.25, 0.75]],
    "emission": [
        [0.20, 0.15, 0.05, 0.14, 0.11, 0.05, 0.12, 0.10, 0.08],
        [0.04, 0.06, 0.10, 0.05, 0.10, 0.15, 0.08, 0.12, 0.30],
    ],
    "initial": [0.3, 0.7],
}


@pytest.fixture(scope="session")
def given():
    """The estimator `given` with parameters that fit the small campaign."""
    return {"estimator": "given", "parameters": GIVEN}


@pytest.fixture(scope="session")
def credit_card():
    """Fields of the paper's campaign; age, education, marital status, revenue and risk have 5, 4, 3, 4, 5 levels."""
    return {
        "name": "credit-card",
        "actions": ["No action", "Call", "Email"],
        "variables": [
            {"name": "age", "cuts": [27, 31, 37, 43]},
            {"name": "education", "levels": ["graduate", "university", "high school", "others"]},
            {"name": "marital", "levels": ["married", "single", "other"]},
            {"name": "revenue", "cuts": [10_000, 36_000, 54_000]},
            {"name": "risk", "levels": [1, 2, 3, 4, 5]},
        ],
        "signals": ["risk", "revenue"],
        "regimes": 2,
        "seed": 1951,
    }


@pytest.fixture(scope="session")
def small():
    """A campaign with every kind of variable, 3 actions, 9 symbols and short periods; changes come on top."""

    def build(**changes: Any) -> CampaignConfig:
        fields = {
            "name": "small",
            "actions": ["none", "call", "mail"],
            "variables": [
                {"name": "risk", "levels": ["low", "mid", "high"]},
                {"name": "income", "cuts": [10, 36]},
                {"name": "region", "levels": ["north", "south"]},
                {"name": "tenure", "range": [0, 20]},
            ],
            "signals": ["risk", "income"],
            "stage_length": 5,
            "ridge": 0.3,
            "warm_start_rounds": 12,
            "seed": 7,
        }
        return CampaignConfig(**{**fields, **changes})

    return build


@pytest.fixture(scope="session")
def small_contexts():
    """Random contexts of the small campaign, a persistent mood moving its two signals."""

    def draw(count: int, seed: int = 0) -> list[dict[str, Any]]:
        generator = np.random.default_rng(seed)
        mood = 0
        contexts = []
        for _ in range(count):
            mood = mood if generator.random() < 0.85 else 1 - mood
            law = [0.6, 0.3, 0.1] if mood else [0.1, 0.3, 0.6]
            contexts.append(
                {
                    "risk": str(generator.choice(["low", "mid", "high"], p=law)),
                    "income": float(generator.choice([5, 10, 20, 36, 50], p=[0.3, 0.2, 0.2, 0.1, 0.2])),
                    "region": str(generator.choice(["north", "south"])),
                    "tenure": float(generator.uniform(0, 20)),
                }
            )
        return contexts

    return draw


@pytest.fixture(scope="session")
def play():
    """Decide contexts one by one, every reward given at once; rewards[t-1] maps an action's place to a number."""

    def run(policy: Any, contexts: Any, rewards: Any, state: Any = None) -> tuple[Any, list[Any]]:
        state = policy.initial_state() if state is None else state
        decisions = []
        for context in contexts:
            state, decision = policy.decide(state, context)
            action = policy.config.actions.index(decision.action)
            state = policy.reward(state, decision.round, rewards[decision.round - 1][action])
            decisions.append(decision)
        return state, decisions

    return run
