"""Numbers that stay numbers: whatever the rewards, contexts and constants, every number of a campaign is finite."""

import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from policy import CampaignConfig, ConfigError, RewardError, StagedPolicy, describe
from policy.config import LARGEST_REWARD
from policy.encoding import Contexts

EXAMPLES = int(os.environ.get("UNDERCURRENT_EXAMPLES", "0"))  # `make machine` sets it
NUMBERS = settings(derandomize=not EXAMPLES, max_examples=EXAMPLES or 30)

LEVELS = ["a", "b", "c", "d"]
PLAIN: dict[str, Any] = {
    "name": "numbers",
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "season", "levels": LEVELS},
        {"name": "size", "cuts": [1]},
        {"name": "age", "range": [0, 8]},
    ],
    "signals": ["season"],
    "warm_start_rounds": 6,
    "seed": 3,
}
GIVEN = {
    "transition": [[1.0, 0.0], [0.0, 1.0]],
    "emission": [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]],  # nobody ever expects a "d"
    "initial": [1.0, 0.0],
}
THEORY = {"risk": 0.05, "horizon": 1000, "c_theta": 1.0}
FORMS: dict[str, dict[str, Any]] = {
    **{form: {} for form in ("complex", "simplified", "plain", "elliptical")},
    "theory_general": THEORY | {"gamma": 0.5, "c_eta": 1.0},
    "theory_simplified": {"risk": 0.05, "c_theta": 1.0, "v_eta": 1.0},
}
REWARDS = {
    "zero": [0.0],
    "constant": [3.7],
    "largest": [LARGEST_REWARD],
    "both ends": [LARGEST_REWARD, -LARGEST_REWARD],
    "smallest": [5e-324, -5e-324, 0.0],
    "tiny": [1e-300, 2e-300, -1e-300],
    "mixed": [LARGEST_REWARD, -1e50, 1.0, 1e-9, 1e-300, 0.0],
    "offset": [1e15, 1e15 + 1, 1e15 + 2],
    "usual": [0.3, -0.2, 1.1, 0.0],
}


@st.composite
def campaigns(draw):
    """Every estimator × statistics × form × clock, with λ and bonus up to their limits."""
    estimator, statistics = draw(
        st.sampled_from(
            [("none", None), ("given", None), ("spectral", "as_decided"), ("spectral", "smoothed")]
            + [("em", kind) for kind in ("as_decided", "refiltered", "smoothed", "joint", "joint")]
        )
    )
    beliefs: dict[str, Any] = {"estimator": estimator, "statistics": statistics}
    if estimator == "given":
        beliefs["parameters"] = GIVEN
    elif estimator != "none":
        beliefs["start_round"] = draw(st.sampled_from([4, 12]))
        beliefs["every"] = draw(st.sampled_from([1, 7, {"factor": 1.3}]))
    form = draw(st.sampled_from([*FORMS, *(["noise"] * 3 if statistics == "joint" else [])]))
    regimes = 2 if estimator == "given" else draw(st.sampled_from([1, 2, 4]))
    return PLAIN | {
        "beliefs": beliefs,
        "regimes": "auto" if statistics == "joint" and draw(st.booleans()) else regimes,
        "bonus": FORMS.get(form, {}) | {"form": form, "scale": draw(st.sampled_from([0.0, 0.6, 1e12]))},
        "stage_length": 1 if form == "theory_simplified" else draw(st.sampled_from([1, 4, 10])),
        "ridge": draw(st.sampled_from([1e-12, 1.0, 1e12])),
        "clock": {"period_seconds": 5} if estimator != "spectral" and draw(st.booleans()) else None,
        "propensity_floor": draw(st.sampled_from([0.0, 1e-300, 1 / 3])),
        "control": {"share": draw(st.sampled_from([0.0, 0.3]))},
    }  # fmt: skip


@st.composite
def context_lists(draw, count: int = 95):
    """Contexts that say little: one level only, twice the same variable, a number that never changes; late symbols."""
    kind = draw(st.sampled_from(["one context", "collinear", "late symbol", "any"]))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    seasons = generator.integers(0, 2 if kind == "late symbol" else 4, count)
    if kind == "one context":
        seasons[:] = 1
    if kind == "late symbol":
        seasons[-9:] = 3
    ages = np.full(count, 8.0) if kind != "any" else generator.random(count) * 8
    sizes = seasons > 1 if kind == "collinear" else np.zeros(count, bool)
    return [
        {"season": LEVELS[season], "size": 2 if large else 0, "age": age}
        for season, large, age in zip(seasons.tolist(), sizes.tolist(), ages.tolist(), strict=True)
    ]


def finite(*values: Any) -> bool:
    """Is every number in there one?"""
    for value in values:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            if not finite(*value):
                return False
        elif isinstance(value, float | np.ndarray) and not np.isfinite(value).all():
            return False
    return True


def check_decision(decision: Any) -> None:
    """Numbers only; the belief is a law and the propensity a chance."""
    assert finite(decision), decision
    assert finite(decision.scores), decision
    assert 0.0 < decision.propensity <= 1.0
    assert math.isclose(math.fsum(decision.belief), 1.0, abs_tol=1e-9)
    assert min(decision.belief) >= 0.0
    assert min(decision.bonuses) >= 0.0


def check_model(policy: StagedPolicy, state: Any) -> None:
    """Statistics, chain, candidates and what people are told of them."""
    assert finite(*state.statistics), state.statistics
    assert state.hmm is None or finite(*state.hmm)
    assert finite(describe(policy, state))


@NUMBERS
@for_all(
    changes=campaigns(),
    contexts=context_lists(),
    kind=st.sampled_from(sorted(REWARDS)),
    silence=st.sampled_from([0, 0, 1, 3]),
    seed=st.integers(0, 99),
)
def test_every_number_stays_finite(changes, contexts, kind, silence, seed):
    """Also where most rewards, or all after a while, never come."""
    policy, generator = StagedPolicy(CampaignConfig(**changes)), np.random.default_rng(seed)
    state = policy.initial_state()
    for i, context in enumerate(contexts):
        before = state.model_version
        state, decision = policy.decide(state, context, at=1.3 * i)
        check_decision(decision)
        if state.model_version > before:
            check_model(policy, state)
        if not silence or (i % silence and i < 60):
            state = policy.reward(state, decision.round, float(generator.choice(REWARDS[kind])))
    check_decision(policy.preview(state, contexts[0], at=500.0))
    for reward in (1.01 * LARGEST_REWARD, -1e308):
        with pytest.raises(RewardError):
            policy.check_reward(reward)


@pytest.mark.parametrize("statistics", ["as_decided", "smoothed"])
@pytest.mark.parametrize("estimator", ["em", "spectral"])
@pytest.mark.parametrize("only", [None, "s3"])
def test_more_regimes_than_the_data_support(estimator, statistics, only):
    """H = 8 from twenty rounds, and from one symbol alone."""
    levels = [f"s{i}" for i in range(8)]
    beliefs = {"estimator": estimator, "statistics": statistics, "start_round": 4, "every": 1}
    config = {"name": "eight", "actions": ["a", "b"], "variables": [{"name": "x", "levels": levels}], "regimes": 8}
    policy = StagedPolicy(CampaignConfig(**config, beliefs=beliefs, stage_length=2, warm_start_rounds=4, seed=1))
    state = policy.initial_state()
    for i in range(20):
        state, decision = policy.decide(state, {"x": only or levels[3 * i % 8]})
        state = policy.reward(state, decision.round, float(i % 3))
        check_decision(decision)
        check_model(policy, state)
    if only:
        assert state.hmm is None  # nothing to estimate from


def test_a_symbol_that_nobody_expects():
    """Given parameters give it probability 0 in every regime: it only moves the belief on (R7)."""
    policy = StagedPolicy(CampaignConfig(**PLAIN, regimes=2, beliefs={"estimator": "given", "parameters": GIVEN}))
    state = policy.initial_state()
    for i in range(40):
        state, decision = policy.decide(state, {"season": "d" if i % 2 else "c", "size": 0, "age": 0})
        check_decision(decision)
        state = policy.reward(state, decision.round, 1.0)
    check_model(policy, state)


KINDS: dict[str, dict[str, Any]] = {
    "none": {"beliefs": {"estimator": "none"}, "regimes": 1, "signals": []},
    "given": {"beliefs": {"estimator": "given", "parameters": GIVEN}, "regimes": 2},
    "smoothed": {"beliefs": {"estimator": "em", "statistics": "smoothed", "every": {"factor": 3.0}}, "regimes": 2},
    "spectral": {"beliefs": {"estimator": "spectral", "every": 100_000}, "regimes": 2},
    "joint": {"beliefs": {"every": {"factor": 3.0}}},
}
MILLION = 1_000_000


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [(kind, MILLION) for kind in KINDS] if EXAMPLES else [("none", 300_000), ("given", 100_000), ("joint", 10_000)],
)
@pytest.mark.parametrize("rewards", ["both ends", "usual"] if EXAMPLES else ["both ends"])
def test_a_million_rounds(kind, rounds, rewards):
    config = PLAIN | KINDS[kind] | {"stage_length": 100, "warm_start_rounds": 50}
    policy, generator = StagedPolicy(CampaignConfig(**config)), np.random.default_rng(1)
    seasons = (np.arange(rounds) // 200 % 2 + generator.integers(0, 2, rounds)).astype(np.int16)
    levels = np.stack([seasons, generator.integers(0, 2, rounds), np.zeros(rounds)], axis=1).astype(np.int16)
    symbols = seasons if policy.config.signals else np.zeros(rounds, np.int16)
    table = generator.choice(REWARDS[rewards], (rounds, 3))
    state = policy.play(policy.initial_state(), Contexts(levels, np.ones((rounds, 1)), symbols), table)
    check_model(policy, state)
    for level in LEVELS:
        state, decision = policy.decide(state, {"season": level, "size": 0, "age": 3.0})
        check_decision(decision)
    assert state.round == rounds + len(LEVELS)


def test_constants_whose_arithmetic_would_leave_the_floats():
    """They are refused when the campaign is made, with what is allowed; none is left for a decision to meet."""
    wide = {"variables": [{"name": "age", "range": [0, 1.7e308]}], "signals": []}
    constants = {"risk": 5e-324, "horizon": 10**400, "c_theta": 1e308, "c_eta": 1e308, "v_eta": 1e308}
    cases = [("variables[0].range[1]", wide)]
    for name, value in constants.items():
        form = "theory_simplified" if name == "v_eta" else "theory_general"
        cases.append((f"bonus.{name}", {"bonus": FORMS[form] | {"form": form, name: value}, "stage_length": 1}))
    for field, changes in cases:
        with pytest.raises(ConfigError) as refused:
            CampaignConfig(**PLAIN | changes)
        (problem,) = refused.value.problems
        assert problem.field == field
        assert problem.allowed
