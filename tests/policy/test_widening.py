"""Levels that a living campaign gains: what was learned stays, and the new ones are learned like any other."""

import numpy as np
import pytest

from policy import CampaignConfig, ConfigError, FixedError, StagedPolicy, decode, describe, encode
from policy.changes import adapt_state, add_config_action, add_config_level, patch_config, roll_back
from policy.frozen import FrozenModel
from policy.widening import widen_to_read

FIELDS = {
    "name": "growing",
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "risk", "levels": ["low", "middle", "high"]},
        {"name": "income", "cuts": [10, 36]},
        {"name": "device", "levels": ["phone", "tablet"]},
        {"name": "tenure", "range": [0, 20]},
    ],
    "signals": ["risk", "income"],
    "stage_length": 7,
    "ridge": 0.3,
    "warm_start_rounds": 20,
    "seed": 11,
}
KINDS = {
    "joint": {},
    "spectral": {"regimes": 2, "beliefs": {"estimator": "spectral", "start_round": 30, "every": 20}},
    "smoothed": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 30}},
    "one regime": {"regimes": 1, "signals": [], "beliefs": {"estimator": "none"}},
    "wide": {"regimes": 1, "signals": [], "actions": ["none", *(f"a{i}" for i in range(20))]},
    "tiny ridge": {"ridge": 1e-9, "regimes": 1, "signals": [], "beliefs": {"estimator": "none"}},
}
CONTEXT = {"risk": "high", "income": 20.0, "device": "phone", "tenure": 3.0}
# Each is a change that brings new levels.
GAINS = {
    "a signal's": lambda config: add_config_level(config, "risk", "extreme"),
    "another's": lambda config: add_config_level(config, "device", "foldable"),
    "missing": lambda config: patch_config(config, {"variables": change(config, missing="level")}),
    "other": lambda config: patch_config(config, {"variables": change(config, "risk", unseen="other")}),
}


def change(config, *names, **settings):
    """The variables with some settings changed, of all of them or of those named."""
    fields = config.model_dump(mode="json")["variables"]
    return [each | settings if each["name"] in (names or [each["name"]]) else each for each in fields]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def policy_of(kind, **fields):
    return StagedPolicy(CampaignConfig.model_validate(FIELDS | KINDS[kind] | fields))


def draw_context(state, rng, levels=("low", "middle", "high"), devices=("phone", "tablet")):
    regime = (state.round // 40) % 2
    weights = np.array([0.7, 0.2, 0.1] if regime else [0.1, 0.2, 0.7])
    weights = np.concatenate([weights, np.full(len(levels) - 3, 0.3)])
    return {
        "risk": str(rng.choice(levels, p=weights / weights.sum())),
        "income": float(rng.uniform(0, 50)),
        "device": str(rng.choice(devices)),
        "tenure": float(rng.uniform(0, 20)),
    }


def play(policy, state, rounds, rng, by_regime=False, **levels):
    """Rounds with their rewards at once, but for every sixth; `by_regime`: the best action changes with the regime."""
    decisions = []
    for _ in range(rounds):
        state, decision = policy.decide(state, draw_context(state, rng, **levels))
        decisions.append(decision)
        if state.round % 6:
            best = ("mail", "a3") if (state.round // 40) % 2 or not by_regime else ("call", "a5")
            state = policy.reward(state, state.round, float(decision.action in best) + 0.1 * rng.normal())
    return state, decisions


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_stays(kind, gain, rng):
    before = policy_of(kind)
    after = StagedPolicy(GAINS[gain](before.config))
    state, _ = play(before, before.initial_state(), 150, rng)
    wide = adapt_state(before, after, state)
    was, now = before.preview(state, CONTEXT), after.preview(wide, CONTEXT)
    assert now.action == was.action
    rounding = 1e-6 if kind == "tiny ridge" else 1e-9  # G⁻¹ has 1/λ = 1e9 in the direction of the new level
    assert now.estimates == pytest.approx(was.estimates, abs=1e-12)
    for name in ("belief", "bonuses"):
        np.testing.assert_allclose(getattr(now, name), getattr(was, name), rtol=rounding, atol=1e-9, err_msg=name)
    known = {c[:4]: c.estimate for c in describe(before, state).coefficients}
    found = {c[:4]: c.estimate for c in describe(after, wide).coefficients}
    assert {name: found.pop(name) for name in known} == known
    assert found == dict.fromkeys(found, 0.0)
    assert wide.model_version == state.model_version + 1
    assert encode(decode(encode(wide))) == encode(wide)
    assert wide.trial_end == 0


@pytest.mark.parametrize("kind", ["one regime", "wide", "spectral", "smoothed"])
def test_a_later_level_is_as_one_that_was_there_and_never_seen(kind, rng):
    """G, Σzr, G⁻¹ and θ̂ are those of a campaign that had the level from the start, and so is the history."""
    before = policy_of(kind)
    after = StagedPolicy(GAINS["a signal's"](GAINS["another's"](before.config)))
    state, _ = play(before, before.initial_state(), 150, rng)
    wide = adapt_state(before, after, before.update(state._replace(rebuild=True)))
    rebuilt = after.update(wide._replace(rebuild=True))
    for name, found in wide.statistics._asdict().items():
        if name != "counters":
            np.testing.assert_allclose(found, getattr(rebuilt.statistics, name), rtol=1e-8, atol=1e-8, err_msg=name)


def test_indices_and_symbols_of_past_rounds_are_those_of_the_new_levels(rng):
    before = policy_of("spectral", variables=change(policy_of("spectral").config, "risk", missing="level"))
    contexts = [draw_context(before.initial_state(), rng) | {"risk": risk} for risk in ("low", None, "high", "middle")]
    state = before.initial_state()
    for context in contexts:
        state, _ = before.decide(state, context)
    fields = change(before.config, "risk", levels=["none", "low", "middle", "extreme", "high"], unseen="other")
    after = StagedPolicy(patch_config(before.config, {"variables": fields}))
    wide, expected = adapt_state(before, after, state), after.features.encode(contexts)
    for name, found in wide.history.contexts.rows(0, 4)._asdict().items():
        np.testing.assert_array_equal(found, getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("kind", ["joint", "spectral", "smoothed"])
def test_a_new_symbol_says_nothing_about_the_regime_until_it_is_estimated(kind, rng):
    before = policy_of(kind, **{"regimes": 2} if kind == "joint" else {})
    after = StagedPolicy(GAINS["a signal's"](before.config))
    state, _ = play(before, before.initial_state(), 400, rng, by_regime=True)
    assert state.hmm is not None
    wide = adapt_state(before, after, state)
    np.testing.assert_allclose(wide.hmm.emission.sum(axis=1), 1.0)
    decision = after.preview(wide, CONTEXT | {"risk": "extreme"})
    np.testing.assert_allclose(decision.belief, state.belief @ state.hmm.transition)
    later, decisions = play(after, wide, 300, rng, by_regime=True, levels=("low", "middle", "high", "extreme"))
    assert later.hmm is not None
    assert np.isfinite(later.statistics.theta).all()
    emission = later.hmm.emission.reshape(2, 4, 3).sum(axis=2)  # by regime and risk
    assert emission[:, 3].min() > 0.05  # a quarter of 300 of 700 rounds had it
    assert {decision.mode for decision in decisions} == {"optimistic"}


def test_the_reward_of_a_new_level_is_learned(rng):
    before = policy_of("one regime")
    after = StagedPolicy(GAINS["another's"](before.config))
    state, _ = play(before, before.initial_state(), 150, rng)
    state = adapt_state(before, after, state)
    foldable = CONTEXT | {"device": "foldable"}
    assert min(after.preview(state, foldable).bonuses) > max(after.preview(state, CONTEXT).bonuses)
    for _ in range(200):
        state, decision = after.decide(state, foldable)
        state = after.reward(state, state.round, 3.0 * (decision.action == "call"))
    assert after.preview(state, foldable).action == "call"
    assert after.preview(state, CONTEXT).action == "mail"


def test_more_symbols_may_allow_more_regimes(rng):
    """`auto` tries up to as many regimes as there are symbols, so the beliefs of past rounds need room for one more."""
    before = policy_of("joint", signals=["risk"])
    assert sorted(before.maps) == [1, 2, 3]
    after = StagedPolicy(GAINS["a signal's"](before.config))
    assert sorted(after.maps) == [1, 2, 3, 4]
    state, _ = play(before, before.initial_state(), 150, rng)
    wide, _ = play(after, adapt_state(before, after, state), 150, rng, levels=("low", "middle", "high", "extreme"))
    assert wide.history.beliefs.shape[1] == 4


def test_going_back_before_a_level_and_an_action_were_added(rng):
    before = policy_of("joint")
    past = before.update(play(before, before.initial_state(), 120, rng)[0])
    after = StagedPolicy(add_config_action(GAINS["a signal's"](before.config), "message"))
    state, _ = play(after, adapt_state(before, after, past), 100, rng, levels=("low", "middle", "high", "extreme"))
    back = roll_back(after, state, before, past)
    was, now = before.preview(past, CONTEXT), after.preview(back, CONTEXT)
    np.testing.assert_allclose(now.estimates[:3], was.estimates, rtol=1e-8)
    later, _ = play(after, back, 60, rng, levels=("low", "middle", "high", "extreme"))
    assert np.isfinite(later.statistics.theta).all()


def test_an_earlier_model_reads_what_came_later(rng):
    before = policy_of("one regime", variables=change(policy_of("one regime").config, "risk", unseen="other"))
    state, _ = play(before, before.initial_state(), 150, rng)
    newest = add_config_level(add_config_level(before.config, "device", "foldable"), "risk", "extreme")
    newest = patch_config(newest, {"variables": change(newest, "tenure", "income", missing="level")})
    contexts = [CONTEXT, CONTEXT | {"device": "foldable", "tenure": 99.0, "crm": 7}, CONTEXT | {"risk": "extreme"}, {}]
    contexts[3] = {"risk": "low", "device": "phone"}
    frozen = FrozenModel(*widen_to_read(before, state, newest))
    values = frozen.follow(contexts, [None] * 4)
    assert np.isfinite(values).all()
    own = FrozenModel(before, state).follow([CONTEXT, CONTEXT | {"risk": "never seen"}], [None] * 2)
    np.testing.assert_allclose(values[[0, 2]], own, rtol=1e-8)  # what this model takes for other stays other


def test_only_levels_can_be_gained_and_none_be_lost():
    config = policy_of("one regime").config
    assert add_config_level(config, "risk", "low") is config
    for variables in (
        config.model_dump(mode="json")["variables"][1:],
        change(config, "risk", levels=["low", "high"]),
        change(config, "income", cuts=[10, 37]),
        change(config, "tenure", range=[0, 30]),
        change(config)[::-1],
    ):
        with pytest.raises(FixedError, match="variables"):
            patch_config(config, {"variables": variables})
    lenient = patch_config(config, {"variables": change(config, missing="level")})
    with pytest.raises(FixedError, match=r"variables\[0\]"):
        patch_config(lenient, {"variables": change(lenient, "risk", missing="reject")})
    clipping = patch_config(
        config, {"variables": change(config, "tenure", outside="clip"), "extra_variables": "ignore"}
    )
    assert patch_config(clipping, {"variables": change(config), "extra_variables": None}) == config
    policy, state = StagedPolicy(config), StagedPolicy(config).initial_state()
    assert adapt_state(policy, StagedPolicy(clipping), state) is state  # nothing to learn anew
    for variable in ("income", "tenure", "nobody"):
        with pytest.raises(ConfigError, match="variable"):
            add_config_level(config, variable, "x")


def test_given_parameters_have_no_room_for_a_signals_new_level(small, given):
    config = small(regimes=2, beliefs=given)
    with pytest.raises(ConfigError, match="emission"):
        add_config_level(config, "risk", "extreme")
    assert add_config_level(config, "region", "west").variables[2].levels == ("north", "south", "west")


def test_a_level_that_makes_the_map_too_wide_is_refused(rng):
    """`auto` would use fewer regimes then, but not fewer than the campaign has learned."""
    actions = [f"a{i}" for i in range(40)]
    fields = {
        "actions": actions,
        "features": {"shared": [], "per_regime": ["actions", "actions:risk", "actions:device"]},
    }
    before = policy_of("joint", **fields)
    assert max(before.maps) == 4
    state, _ = play(before, before.initial_state(), 60, rng)
    after = StagedPolicy(GAINS["a signal's"](before.config))
    assert max(after.maps) == 3
    kept = adapt_state(before, after, state)  # one regime so far
    assert kept.history.shape[2] == 3
    learned = state._replace(belief=np.full(4, 0.25))
    with pytest.raises(ConfigError, match="regimes"):
        adapt_state(before, after, learned)
