"""Changes that no round makes: an action more, an earlier model again, and configurations merged by field."""

import numpy as np
import pytest

from policy import (
    ArgumentError,
    CampaignConfig,
    ConfigError,
    FixedError,
    Request,
    StagedPolicy,
    decode,
    describe,
    encode,
)
from policy.changes import (
    TRIAL_PLAYS,
    adapt_state,
    add_config_action,
    clone_config,
    patch_config,
    retire_config_action,
    roll_back,
)
from policy.defaults import TRIAL_SHARE

CONFIG = CampaignConfig(
    name="changing",
    actions=["none", "mail", "call"],
    variables=[{"name": "risk", "levels": ["low", "middle", "high"]}, {"name": "income", "cuts": [10, 36]}],
    stage_length=7,
    ridge=0.3,
    warm_start_rounds=20,
    seed=11,
)
KINDS = {
    "joint": {},
    "spectral": {"regimes": 2, "beliefs": {"estimator": "spectral", "start_round": 30, "every": 20}},
    "smoothed": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 30}},
    "one regime": {"regimes": 1, "signals": [], "beliefs": {"estimator": "none"}},
    "theory": {
        "regimes": 2,
        "beliefs": {"estimator": "spectral"},
        "bonus": {"form": "theory_general", "risk": 0.1, "horizon": 500, "c_theta": 1, "gamma": 0.5, "c_eta": 1},
    },
}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def policy_of(kind, **fields):
    return StagedPolicy(patchless(KINDS[kind] | fields))


def patchless(fields):
    return CampaignConfig.model_validate(CONFIG.model_dump(exclude_unset=True, mode="json") | fields)


def grown(kind, rng, rounds, **fields):
    """A policy, one with another action, and the states of both after some rounds of the first."""
    before = policy_of(kind, **fields)
    after = StagedPolicy(add_config_action(before.config, "message"))
    state, _ = played(before, before.initial_state(), rounds, rng)
    return before, after, state, adapt_state(before, after, state)


def played(policy, state, rounds, rng, value=lambda decision, rng: float(decision.action == "mail") + rng.normal()):
    """Rounds with their rewards at once, but for every sixth."""
    decisions = []
    for _ in range(rounds):
        regime = (state.round // 40) % 2
        risk = rng.choice(["low", "middle", "high"], p=[0.7, 0.2, 0.1] if regime else [0.1, 0.2, 0.7])
        state, decision = policy.decide(state, {"risk": str(risk), "income": float(rng.uniform(0, 50))})
        decisions.append(decision)
        if state.round % 6:
            state = policy.reward(state, state.round, value(decision, rng))
    return state, decisions


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_stays_to_the_bit(kind, rng):
    before, after, state, wide = grown(kind, rng, 150)
    context = {"risk": "high", "income": 20.0}
    was, now = before.preview(state, context), after.preview(wide, context)
    assert now.estimates[:3] == was.estimates
    assert now.bonuses[:3] == was.bonuses or kind == "theory"  # its bonus grows with the number of columns
    assert now.bonuses[3] >= max(now.bonuses[:3])
    known = {c[:4]: c.estimate for c in describe(before, state).coefficients}
    assert {c[:4]: c.estimate for c in describe(after, wide).coefficients if c[:4] in known} == known
    assert wide.model_version == state.model_version + 1
    assert encode(decode(encode(wide))) == encode(wide)


@pytest.mark.parametrize("kind", ["one regime", "spectral", "smoothed"])
def test_a_later_action_is_as_one_that_was_there_and_never_played(kind, rng):
    """G, Σzr, G⁻¹ and θ̂ are those of a campaign that had the action from the start."""
    before, after, state, wide = grown(kind, rng, 150)
    rebuilt = after.update(wide._replace(rebuild=True, arrived=wide.arrived))
    before_rebuilt = adapt_state(before, after, before.update(state._replace(rebuild=True)))
    for name, found in before_rebuilt.statistics._asdict().items():
        np.testing.assert_allclose(found, getattr(rebuilt.statistics, name), rtol=1e-9, atol=1e-9, err_msg=name)


def test_before_any_reward_the_new_columns_are_box_as(rng):
    _, after, _, wide = grown("one regime", rng, 0)
    fresh = after.initial_state()
    for name, found in wide.statistics._asdict().items():
        np.testing.assert_array_equal(found, getattr(fresh.statistics, name), err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_action_is_tried_with_its_true_propensity(kind, rng):
    _, after, _, wide = grown(kind, rng, 147)
    rounds = wide.trial_end - wide.round
    assert wide.trial_end % 7 == 0
    assert 0 <= rounds - TRIAL_PLAYS * 4 / TRIAL_SHARE < 7
    wide, decisions = played(after, wide, rounds, rng, lambda decision, rng: 5.0 * (decision.action == "mail"))
    assert all(decision.propensity >= TRIAL_SHARE / 4 for decision in decisions)
    chosen = [decision.action for decision in decisions]
    for action in after.config.actions:  # each with TRIAL_SHARE / 4 at least: 20 of 160, and 4 s.d. below
        assert chosen.count(action) >= 4, action
    _, later = played(after, wide, 40, rng, lambda decision, rng: 5.0 * (decision.action == "mail"))
    assert max(decision.propensity for decision in later) == 1.0


def test_a_batch_across_the_end_of_a_trial_is_what_single_decisions_are(rng):
    _, after, _, wide = grown("one regime", rng, 60)
    requests = [Request({"risk": "low", "income": float(i % 50)}) for i in range(200)]
    batch_state, batch = after.decide_batch(wide, requests)
    single, one_by_one = wide, []
    for request in requests:
        single, decision = after.decide(single, request.context)
        one_by_one.append(decision)
    assert batch == one_by_one
    assert encode(batch_state) == encode(single)


def test_actions_can_only_be_appended(rng):
    before = policy_of("one regime")
    state, _ = played(before, before.initial_state(), 30, rng)
    with pytest.raises(ArgumentError, match="actions"):
        adapt_state(before, policy_of("one regime", actions=["none", "fax", "mail", "call"]), state)
    assert adapt_state(before, policy_of("one regime", propensity_floor=0.1), state) is state


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_is_the_earlier_model(kind, rng):
    policy = policy_of(kind)
    past, _ = played(policy, policy.initial_state(), 120, rng)
    past = policy.update(past)
    state = policy.update(played(policy, past, 90, rng, lambda decision, rng: -100.0)[0])
    back = roll_back(policy, state, policy, past)
    assert (back.round, back.arrived, back.model_version) == (state.round, state.arrived, state.model_version + 1)
    for name, found in back.statistics._asdict().items():
        np.testing.assert_array_equal(found, getattr(past.statistics, name))
    assert back.belief.sum() == pytest.approx(1.0)
    assert back.belief.shape == past.belief.shape
    assert encode(decode(encode(back))) == encode(back)
    later, _ = played(policy, back, 60, rng)
    assert np.abs(later.statistics.theta).max() < 10  # none of the -100s counts
    with pytest.raises(ArgumentError, match="past"):
        roll_back(policy, past, policy, state)


@pytest.mark.parametrize("kind", ["one regime", "spectral", "smoothed"])
def test_excluded_rewards_count_as_if_they_had_never_come(kind, rng):
    """The statistics after a rebuild are those of a history without these rewards."""
    policy = policy_of(kind)
    past = policy.update(played(policy, policy.initial_state(), 70, rng)[0])
    state = policy.update(played(policy, past, 35, rng)[0])
    back = roll_back(policy, state, policy, past)
    rebuilt = policy.update(back._replace(rebuild=True))
    without = back.history.copy(back.round, 0)
    without.excluded = without.excluded[:0]
    for row in back.history.get_arrivals(0, back.arrived).tolist():
        without.add_reward(row, float(back.history.rewards[row]))
    never = policy.update(back._replace(rebuild=True, history=without, arrived=without.arrived))
    np.testing.assert_array_equal(rebuilt.statistics.theta, never.statistics.theta)
    np.testing.assert_array_equal(rebuilt.statistics.gram, never.statistics.gram)
    assert never.arrived < rebuilt.arrived


def test_going_back_before_an_action_was_added_tries_it_anew(rng):
    before = policy_of("joint")
    past = before.update(played(before, before.initial_state(), 120, rng)[0])
    after = StagedPolicy(add_config_action(before.config, "message"))
    state, _ = played(after, adapt_state(before, after, past), 300, rng)
    assert state.trial_end < state.round
    back = roll_back(after, state, before, past)
    assert back.trial_end > back.round
    assert after.decide(back, {"risk": "low", "income": 1.0})[1].eligible == after.config.actions


def test_a_trial_ends_when_its_action_is_retired(rng):
    _, after, _, state = grown("one regime", rng, 60)
    given_up = StagedPolicy(retire_config_action(after.config, "message"))
    assert adapt_state(after, given_up, state).trial_end == 63  # the end of the stage
    assert adapt_state(after, StagedPolicy(retire_config_action(after.config, "call")), state) is state
    wider = StagedPolicy(add_config_action(after.config, "visit"))
    wide, fewer = adapt_state(after, wider, state), StagedPolicy(retire_config_action(wider.config, "visit"))
    assert adapt_state(wider, fewer, wide) is wide
    assert wide.trial_end > state.round
    # A control group makes a trial longer: 20 · 4 / (0.5 · 0.5), and a whole stage.
    *_, longer = grown("one regime", rng, 0, control={"share": 0.5, "kind": "baseline"})
    assert longer.trial_end == 322


def test_an_action_that_comes_back_untried_is_tried(rng):
    """Given up before anybody saw it; but not one that was played often."""
    _, after, _, state = grown("one regime", rng, 60)
    given_up = StagedPolicy(retire_config_action(after.config, "message"))
    state, _ = played(given_up, adapt_state(after, given_up, state), 30, rng)
    assert adapt_state(given_up, after, state).trial_end >= state.round + TRIAL_PLAYS
    tried, _ = played(after, adapt_state(given_up, after, state), 300, rng)
    assert tried.trial_end < tried.round
    gone = adapt_state(after, given_up, tried)
    assert adapt_state(given_up, after, gone).trial_end < tried.round


def test_going_back_to_no_reward_at_all_is_a_warm_start(rng):
    """R8 and the joint estimate count the rewards that count."""
    for kind in ("one regime", "joint"):
        policy = policy_of(kind)
        begun, _ = played(policy, policy.initial_state(), 5, rng)
        past = policy.initial_state()._replace(model_version=1)
        state = policy.update(played(policy, begun, 100, rng)[0])
        back = roll_back(policy, state, policy, past)
        assert back.counted == 0
        later, decisions = played(policy, back, 8, rng, lambda decision, rng: 1.0)
        assert {decision.mode for decision in decisions} == {"warm_start"}
        later, decisions = played(policy, later, 40, rng)
        assert decisions[-1].mode == "optimistic"
        assert later.statistics.units[1] > 0.01


def test_retired_actions_are_not_eligible(rng):
    policy = StagedPolicy(retire_config_action(CONFIG, "mail"))
    state, decisions = played(policy, policy.initial_state(), 60, rng)
    assert {decision.action for decision in decisions} == {"none", "call"}
    assert all(decision.eligible == ("none", "call") for decision in decisions)
    assert decisions[0].propensity == 0.5
    assert add_config_action(policy.config, "mail") == CONFIG
    decision = policy.preview(state, {"risk": "low", "income": 1.0}, excluded_actions=["mail", "none"])
    assert decision.eligible == ("call",)


@pytest.mark.parametrize("retired", [["none"], ["fax"], ["mail", "mail"], ["mail", "call"]])
def test_what_cannot_be_retired(retired):
    with pytest.raises(ConfigError, match="retired_actions"):
        patchless({"retired_actions": retired})


def test_patches_merge_by_field():
    changed = patch_config(CONFIG, {"control": {"share": 0.2}, "bonus": {"scale": 2.0}})
    assert (changed.control.share, changed.control.kind, changed.bonus.scale) == (0.2, "uniform", 2.0)
    assert patch_config(changed, {"control": None}).control.share == 0.0
    with pytest.raises(FixedError, match="stage_length"):
        patch_config(CONFIG, {"stage_length": 8, "paused": True})
    with pytest.raises(ConfigError, match="unknown field"):
        patch_config(CONFIG, {"colour": "red"})
    deep = patch = {}
    for _ in range(2_000):
        patch["control"] = patch = {}
    with pytest.raises(ConfigError):
        patch_config(CONFIG, deep)


def test_clones_have_their_own_name_and_seed():
    clone = clone_config(retire_config_action(CONFIG, "call"), {"name": "second"})
    assert (clone.name, clone.actions, clone.retired_actions) == ("second", ("none", "mail"), ())
    assert clone.seed != CONFIG.seed
    assert clone_config(CONFIG, {"name": "third", "seed": 5, "ridge": 2.0}).ridge == 2.0
    with pytest.raises(ConfigError, match="name"):
        clone_config(CONFIG, {})


GIVEN = {"initial": [0.5, 0.5], "transition": [[0.9, 0.1], [0.1, 0.9]], "emission": [[0.9, 0.1], [0.1, 0.9]]}


def test_what_a_clone_has_by_default_follows_its_changes():
    """Another variable is no use if signals and features stay those of before."""
    mood = {"name": "mood", "levels": ["a", "b"]}
    body = {"name": "first", "seed": 3, "actions": ["none", "mail"], "variables": [mood]}
    config, other = CampaignConfig.model_validate(body), {"name": "age", "cuts": [30, 50]}
    for change in (
        {"variables": [*body["variables"], other]},
        {"variables": [other], "warm_start_rounds": 90},
        {"beliefs": {"estimator": "spectral"}, "regimes": 2},
        {"beliefs": {"estimator": "none"}},
        {"regimes": 1},
        {"signals": []},
    ):
        wanted = {"name": "second", "seed": 4} | change
        assert clone_config(config, wanted) == CampaignConfig.model_validate(body | wanted), change
    # What belongs to a choice goes with it.
    for before, change in (
        ({"bonus": {"form": "noise", "scale": 2.0}}, {"bonus": {"form": "elliptical"}}),
        ({"bonus": {"form": "noise", "scale": 2.0}}, {"beliefs": {"statistics": "as_decided"}, "regimes": 2}),
        ({"bonus": KINDS["theory"]["bonus"]}, {"bonus": {"form": "plain"}}),
        ({"beliefs": {"estimator": "given", "parameters": GIVEN}, "regimes": 2}, {"beliefs": {"estimator": "em"}}),
    ):
        wanted = {"name": "second", "seed": 4} | change
        clone = clone_config(CampaignConfig.model_validate(body | before), wanted)
        assert clone == CampaignConfig.model_validate(body | wanted), (before, change)
    scaled = CampaignConfig.model_validate(body | {"bonus": {"form": "noise", "scale": 2.0}})
    assert clone_config(scaled, {"name": "second", "ridge": 2.0}).bonus.scale == 2.0
    assert clone_config(scaled, {"name": "second", "bonus": {"form": "plain", "scale": 3.0}}).bonus.scale == 3.0
    with pytest.raises(ConfigError, match="bonus"):
        clone_config(scaled, {"name": "second", "bonus": 3})
    # What was chosen stays.
    chosen = body | {"variables": [mood, other], "signals": ["mood"], "regimes": 1}
    clone = clone_config(CampaignConfig.model_validate(chosen), {"name": "second", "variables": [other, mood]})
    assert (clone.signals, clone.regimes) == (("mood",), 1)
