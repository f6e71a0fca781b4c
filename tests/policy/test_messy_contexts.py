"""Contexts with values that are missing, levels nobody declared, numbers out of range, and variables too many."""

import numpy as np
import pytest

from policy import CampaignConfig, ConfigError, ContextError, FeatureMap, PastRound, Request, StagedPolicy, describe
from policy.regimes import describe_regimes

VARIABLES = [
    {"name": "device_type", "levels": ["phone", "tablet"]},
    {"name": "age", "cuts": [30, 50]},
    {"name": "spend", "range": [0, 200]},
]
LENIENT = [
    VARIABLES[0] | {"missing": "level", "unseen": "other"},
    VARIABLES[1] | {"missing": "level"},
    VARIABLES[2] | {"missing": "level", "outside": "clip"},
]
MESSY = {"device_type": "foldable", "age": None, "spend": 5_000, "crm_id": "c-17"}


def build(variables=VARIABLES, **fields):
    basics = {"name": "telecom", "actions": ["none", "call"], "signals": ["device_type", "age"], "seed": 3}
    return CampaignConfig.model_validate(basics | {"variables": variables} | fields)


def lenient(**fields):
    return build(LENIENT, extra_variables="ignore", **fields)


def test_a_strict_campaign_names_the_setting_that_would_allow_each_value():
    with pytest.raises(ContextError) as caught:
        StagedPolicy(build()).decide(StagedPolicy(build()).initial_state(), MESSY)
    problems = {problem.field: problem for problem in caught.value.problems}
    assert {field: problem.message.partition("; ")[2] for field, problem in problems.items()} == {
        "context.crm_id": "leave it out, or set extra_variables: ignore for this campaign",
        "context.device_type": "send one of those, or set unseen: other for this variable",
        "context.age": "send a value, or set missing: level for this variable",
        "context.spend": "send such a number, or set outside: clip for this variable",
    }
    assert [problem.refused for problem in problems.values()] == [
        ("(unknown variable)", "crm_id"),
        ("device_type", "foldable"),
        ("age", "(missing)"),
        ("spend", "(too high)"),
    ]


@pytest.mark.parametrize(
    ("variable", "value", "refused"),
    [
        ("device_type", True, "(not a level)"),
        ("device_type", ["phone"], "(not a level)"),
        ("device_type", 7, "7"),
        ("device_type", "x" * 41, "(too long)"),
        ("device_type", "a\u202eb", "(too long)"),
        ("age", "thirty", "(not a number)"),
        ("age", float("nan"), "(not a number)"),
        ("spend", -1, "(too low)"),
    ],
)
def test_a_refused_value_is_counted_in_a_few_words(variable, value, refused):
    context = {"device_type": "phone", "age": 20, "spend": 10} | {variable: value}
    with pytest.raises(ContextError) as caught:
        FeatureMap(build()).encode_one(context)
    (problem,) = caught.value.problems
    assert problem.refused == (variable, refused)


@pytest.mark.parametrize("value", [True, 3.5, ["phone"], {}])
def test_what_is_no_level_at_all_is_refused_by_lenient_campaigns_too(value):
    with pytest.raises(ContextError) as caught:
        FeatureMap(lenient()).encode_one(MESSY | {"device_type": value})
    assert "set" not in caught.value.problems[0].message  # no setting would allow it


def test_lenient_contexts_have_levels_of_their_own():
    made = FeatureMap(lenient())
    assert made.variables[0].level_names == ("phone", "tablet", "missing", "other")
    assert made.variables[1].level_names == ("1", "2", "3", "missing")
    assert made.symbols == 16
    rows = [MESSY, {}, {"device_type": None, "age": 31, "spend": -3}, {"device_type": "tablet", "age": 51, "spend": 50}]
    contexts = made.encode(rows)
    assert contexts.levels.tolist() == [[3, 3, 0], [2, 3, 1], [2, 1, 0], [1, 2, 0]]
    assert contexts.values[:, 0].tolist() == [1.0, 1.0, 0.0, 0.25]
    assert contexts.symbols.tolist() == [15, 11, 9, 6]
    for row, context in enumerate(rows):  # one by one as all together
        codes, numbers = made.encode_one(context)
        assert codes[0].tolist() == [*contexts.levels[row], contexts.symbols[row]]
        assert numbers.tolist() == contexts.values[row : row + 1].tolist()
    made.check(contexts)


def test_a_level_of_that_name_that_is_declared_is_the_one_that_is_used():
    variable = {"name": "v", "levels": ["other", "a", "missing"], "missing": "level", "unseen": "other"}
    made = FeatureMap(build([variable], signals=["v"]))
    assert made.variables[0].level_names == ("other", "a", "missing")
    assert made.encode([{"v": "b"}, {"v": "a"}, {}, {"v": "missing"}]).levels[:, 0].tolist() == [0, 1, 2, 2]


def test_a_missing_number_has_a_column_of_its_own_and_leaves_the_slope_alone():
    made = FeatureMap(lenient(features={"shared": ["spend"], "per_regime": ["intercept", "actions:spend"]}, regimes=1))
    parts = [(column.term, column.action, column.level) for column in made.column_parts]
    assert parts == [
        ("spend", None, None), ("spend", None, "missing"), ("intercept", None, None),
        ("actions:spend", "call", None), ("actions:spend", "call", "missing"),
    ]  # fmt: skip
    belief, contexts = np.ones(1), made.encode([{"spend": 50}, {}])
    assert made.dense(belief, 1, contexts, 0).tolist() == [0.25, 0, 1, 0.25, 0]
    assert made.dense(belief, 1, contexts, 1).tolist() == [0, 1, 1, 0, 1]
    assert not made.plan.null.any()  # all of these columns can be told apart


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ({"cuts": [1], "unseen": "other"}, "unseen"),
        ({"range": [0, 1], "unseen": "other"}, "unseen"),
        ({"levels": ["a", "b"], "outside": "clip"}, "outside"),
        ({"cuts": [1], "outside": "clip"}, "outside"),
        ({"cuts": [1], "levels": ["few", "missing"], "missing": "level"}, "levels"),
        ({"levels": ["a", "b"], "missing": "skip"}, "missing"),
    ],
)
def test_settings_that_make_no_sense_for_a_variable_are_refused(variable, field):
    with pytest.raises(ConfigError) as caught:
        build([{"name": "v"} | variable], signals=[])
    (problem,) = caught.value.problems
    assert problem.field == f"variables[0].{field}"


@pytest.mark.parametrize("context", [MESSY, {}, {"device_type": 7, "age": 30.5, "spend": 199}])
def test_a_reduced_context_has_the_same_encoding(context):
    made = FeatureMap(lenient())
    reduced = made.reduce(made.drop_ignored(context))
    assert "crm_id" not in reduced
    assert reduced.get("device_type") in (None, "other")
    for before, after in zip(made.encode_one(context), made.encode_one(reduced), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_messy_campaign_learns_and_batches_equal_single_calls():
    policy, rng = StagedPolicy(lenient(warm_start_rounds=20)), np.random.default_rng(8)
    contexts = [
        {
            "device_type": rng.choice(["phone", "tablet", "foldable", None]),
            "age": rng.choice([20, 40, 60, None]),
            "spend": rng.choice([10.0, 150.0, 900.0, None]),
        }
        for _ in range(300)
    ]
    single, batch = policy.initial_state(), policy.initial_state()
    for start in range(0, 300, 25):
        part, alone = contexts[start : start + 25], []
        for context in part:
            single, decision = policy.decide(single, context)
            alone.append(decision)
        batch, together = policy.decide_batch(batch, [Request(context) for context in part])
        assert alone == together
        for decision, context in zip(alone, part, strict=True):
            reward = (decision.action == "call") * (2.0 if context["spend"] is None else -1.0)
            single = policy.reward(single, decision.round, reward)
            batch = policy.reward(batch, decision.round, reward)
    worth = {(each.term, each.level): each.estimate for each in describe(policy, single).coefficients}
    assert worth["actions:spend", "missing"] > 1.0 > 0.0 > worth["actions:spend", None]


def test_expected_rewards_by_regime_count_missing_numbers():
    emission = [[(1 + x) / 136 for x in range(16)], [(16 - x) / 136 for x in range(16)]]
    given = {"transition": [[0.9, 0.1], [0.2, 0.8]], "emission": emission, "initial": [0.5, 0.5]}
    policy = StagedPolicy(lenient(regimes=2, beliefs={"estimator": "given", "parameters": given}))
    state, contexts = policy.initial_state(), [MESSY, {}, {"device_type": "phone", "age": 20, "spend": 50}]
    for turn in range(60):
        state, decision = policy.decide(state, contexts[turn % 3])
        state = policy.reward(state, decision.round, float(turn % 7))
    beliefs = state.history.beliefs[:60]
    for regime, description in enumerate(describe_regimes(policy, state)):
        vertex, weights = np.eye(2)[regime], beliefs[:, regime] / beliefs[:, regime].sum()
        for action, expected in enumerate(description.expected_rewards):
            rows = [policy.features.dense(vertex, action, state.history.contexts, row) for row in range(60)]
            assert expected.expected_reward == pytest.approx(weights @ rows @ state.statistics.theta)


def test_a_past_round_may_be_as_messy():
    policy = StagedPolicy(lenient())
    prepared = policy.prepare_past([PastRound(MESSY, "call"), PastRound(None, "none"), PastRound({}, "none")])
    assert prepared.codes[:, -1].tolist() == [15, -1, 11]
