"""Campaign configuration: what is required, what is filled in, and one clear message for every kind of mistake."""

import json
import math

import pytest
from pydantic import ValidationError

from policy import CampaignConfig, ConfigError, FeatureMap
from policy.config import Beliefs, GrowthFactor, Term
from policy.config.bonus import DEFAULT_SCALES

REQUIRED = {
    "name": "cards",
    "actions": ["none", "call", "mail"],
    "variables": [
        {"name": "risk", "levels": ["low", "high"]},
        {"name": "income", "cuts": [10, 36]},
        {"name": "tenure", "range": [0, 20]},
    ],
}
GIVEN = {
    "transition": [[0.9, 0.1], [0.2, 0.8]],
    "emission": [[0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]],
    "initial": [0.5, 0.5],
}

GENERAL = {"form": "theory_general", "risk": 0.1, "horizon": 500, "c_theta": 1.0, "gamma": 0.5, "c_eta": 0.04}
SIMPLIFIED = {"form": "theory_simplified", "risk": 0.1, "c_theta": 1.0, "v_eta": 0.2}
JOINT = Beliefs()
WARM = CampaignConfig.model_fields["warm_start_rounds"].default


def build(**changes):
    return CampaignConfig(**{**REQUIRED, **changes})


def only_variable(**fields):
    return {"variables": [{"name": "v", **fields}]}


def given(**changes):
    return {"beliefs": {"estimator": "given", "parameters": {**GIVEN, **changes}}}


# --- defaults --------------------------------------------------------------------------------------------------


def test_only_name_actions_and_variables_are_required():
    with pytest.raises(ConfigError) as caught:
        CampaignConfig()
    assert [p.field for p in caught.value.problems] == ["name", "actions", "variables"]
    assert isinstance(build(), CampaignConfig)


def test_every_default_is_filled_in():
    config = build()
    assert config.signals == ("risk", "income")
    assert config.symbols == 6
    assert config.regimes == "auto"
    # R10, the default map.
    assert [t.term for t in config.features.shared] == ["risk", "income", "tenure", "actions:tenure"]
    assert [t.term for t in config.features.per_regime] == [
        "intercept", "actions", "actions:risk", "actions:income",
    ]  # fmt: skip
    # Tuned numbers are not repeated here; what must hold between them is.
    tuned = {name: CampaignConfig.model_fields[name].default for name in ("stage_length", "ridge", "warm_start_rounds")}
    assert {name: getattr(config, name) for name in tuned} == tuned
    assert min(tuned.values()) > 0
    assert (config.bonus.form, config.bonus.scale) == ("noise", DEFAULT_SCALES["noise"])
    assert config.beliefs.estimator == "em"
    assert config.beliefs.start_round == config.warm_start_rounds + 1  # the first estimate ends the warm start
    assert isinstance(config.beliefs.every, GrowthFactor)
    assert config.beliefs.statistics == "joint"
    assert config.clock is None
    assert (config.rewards.range, config.rewards.wait_seconds, config.rewards.default) == (None, None, None)
    assert (config.control.share, config.control.kind) == (0.0, "uniform")
    assert config.propensity_floor == 0.0


@pytest.mark.parametrize(
    ("beliefs", "expected"),
    [
        ({"estimator": "spectral"}, (1000, 37, "as_decided")),
        ({"estimator": "em"}, (WARM + 1, JOINT.every, "joint")),
        ({"statistics": "joint"}, (WARM + 1, JOINT.every, "joint")),
        ({"estimator": "em", "every": 50, "start_round": 30}, (30, 50, "joint")),
        ({"estimator": "em", "statistics": "refiltered"}, (250, JOINT.every, "refiltered")),
        ({"estimator": "em", "statistics": "smoothed"}, (250, JOINT.every, "smoothed")),
        ({"estimator": "none"}, (None, None, "as_decided")),
        ({"estimator": "given", "parameters": GIVEN}, (None, None, "as_decided")),
    ],
)
def test_beliefs_default_by_estimator(beliefs, expected):
    made = build(beliefs=beliefs).beliefs
    assert (made.start_round, made.every, made.statistics) == expected


@pytest.mark.parametrize(("warm", "start"), [(0, 4), (2, 4), (3, 4), (4, 5), (300, 301)])
def test_joint_statistics_start_when_the_warm_start_ends(warm, start):
    """R8: the first estimate, with σ̂, ends it; four rounds are the least. Beliefs alone know no warm start."""
    assert JOINT.start_round is None
    for beliefs in ({}, {"estimator": "em"}, {"statistics": "joint"}):
        assert build(warm_start_rounds=warm, beliefs=beliefs).beliefs.start_round == start
    assert build(warm_start_rounds=warm, beliefs={"start_round": 77}).beliefs.start_round == 77
    assert build(warm_start_rounds=warm, beliefs={"statistics": "smoothed"}).beliefs.start_round == 250


@pytest.mark.parametrize(
    ("bonus", "scale"),
    [
        ({"form": "complex"}, 5e-4),
        ({"form": "simplified"}, 5e-3),
        ({"form": "plain"}, 0.05),
        ({"form": "elliptical"}, 0.6),
        ({"form": "noise"}, DEFAULT_SCALES["noise"]),
        ({}, DEFAULT_SCALES["noise"]),
        (GENERAL, 1.0),
        (SIMPLIFIED, 1.0),
        ({"form": "complex", "scale": 0}, 0.0),
    ],
)
def test_scale_defaults_by_form(bonus, scale):
    assert build(bonus=bonus, stage_length=1).bonus.scale == scale


def test_defaults_that_depend_on_other_fields():
    one = build(regimes=1)
    assert one.signals == ()
    assert one.symbols == 1
    assert "actions:risk" in [t.term for t in one.features.shared]  # not a signal, so shared
    assert build(signals=[]).regimes == 1
    assert build(**only_variable(range=[0, 1])).regimes == 1  # nothing can be a signal
    chosen = build(signals=["income"])
    assert [t.term for t in chosen.features.shared] == [
        "risk", "income", "tenure", "actions:risk", "actions:tenure",
    ]  # fmt: skip
    assert [t.term for t in chosen.features.per_regime] == ["intercept", "actions", "actions:income"]
    assert CampaignConfig(name="bare", actions=["a", "b"], variables=[]).regimes == 1


def test_default_signals_take_64_combinations_but_not_65():
    eight = [{"name": n, "levels": list(range(8))} for n in ("v", "w")]
    assert build(variables=eight).symbols == 64
    nine = [{"name": "v", "levels": list(range(8))}, {"name": "w", "levels": list(range(9))}]
    with pytest.raises(ConfigError) as caught:
        build(variables=nine)
    (problem,) = caught.value.problems
    assert problem.field == "signals"
    assert "choose" in problem.message
    assert "72" in problem.message
    assert problem.allowed == ["v", "w"]
    assert build(variables=nine, regimes=1).signals == ()  # without regimes there is nothing to choose
    assert build(variables=nine, signals=["v", "w"]).symbols == 72


def test_a_missing_seed_is_random_and_stored():
    seeds = {build().seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert json.loads(build(seed=11).model_dump_json())["seed"] == 11


def test_level_names():
    by_number, by_cut, labelled = CampaignConfig(
        name="levels",
        actions=["a", "b"],
        variables=[
            {"name": "u", "levels": [1, "2", 3]},
            {"name": "v", "cuts": [0.5]},
            {"name": "w", "cuts": [0.5], "levels": ["young", "old"]},
        ],
    ).variables
    assert by_number.level_names == ("1", "2", "3")
    assert by_cut.level_names == ("1", "2")
    assert labelled.level_names == ("young", "old")


# --- one value, everywhere the same ----------------------------------------------------------------------------

ROUND_TRIPS = [
    {},
    {"regimes": 1},
    {"regimes": "auto", "clock": {"period_seconds": 3600}},
    {"regimes": 3, "beliefs": {"statistics": "joint"}, "bonus": {"scale": 2}},
    {"signals": ["income"], "control": {"share": 0.1, "kind": "baseline"}, "propensity_floor": 0.05},
    {"features": {"shared": ["risk"], "per_regime": [{"term": "actions:risk", "levels": ["low"]}, "intercept"]}},
    {"beliefs": {"estimator": "given", "parameters": GIVEN}},
    {"beliefs": {"estimator": "spectral", "every": 12, "start_round": 99}},
    {"beliefs": {"every": {"factor": 1.5}, "statistics": "refiltered"}, "bonus": {"form": "plain", "scale": 0.05}},
    {"bonus": GENERAL},
    {"bonus": SIMPLIFIED, "stage_length": 1},
    {"rewards": {"range": [-1, 5], "wait_seconds": 3600, "default": 0}, "ridge": 1e-9, "stage_length": 1},
]


@pytest.mark.parametrize("changes", ROUND_TRIPS)
def test_json_round_trip_is_equal(changes):
    config = build(**changes)
    text = config.model_dump_json()
    assert CampaignConfig.model_validate_json(text) == config
    assert CampaignConfig.model_validate(json.loads(text)) == config
    assert CampaignConfig(**config.model_dump()) == config
    assert CampaignConfig.model_validate_json(text).model_dump_json() == text


def test_terms_are_written_as_users_write_them():
    features = {"shared": ["risk"], "per_regime": [{"term": "actions:risk", "levels": ["low"]}]}
    config = build(features=features)
    assert config.model_dump(mode="json")["features"] == features
    assert config.features.per_regime[0] == Term(term="actions:risk", levels=("low",))


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (lambda c: c, "ridge"),
        (lambda c: c.bonus, "scale"),
        (lambda c: c.variables[0], "name"),
        (lambda c: c.beliefs, "every"),
        (lambda c: c.features.shared[0], "term"),
    ],
)
def test_frozen(part, field):
    config = build(seed=3)
    with pytest.raises(ValidationError):
        setattr(part(config), field, 2.0)
    assert config == build(seed=3)


# --- mistakes ----------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
WIDE = {"variables": [{"name": n, "levels": list(range(30))} for n in ("v", "w")]}

# (what is changed, the field that the one problem names, a word of what it says or allows)
MISTAKES = [
    # name and actions
    ({"name": "Cards"}, "name", "slug"),
    ({"name": "a--b"}, "name", "slug"),
    ({"name": "cards\n"}, "name", "slug"),
    ({"name": ""}, "name", "at least 1 character"),
    ({"name": "a" * 65}, "name", "64"),
    ({"name": 3}, "name", "string"),
    ({"actions": ["call"]}, "actions", "min length 2"),
    ({"actions": [str(i) for i in range(65)]}, "actions", "max length 64"),
    ({"actions": ["none", "call", "call"]}, "actions", "repeated: call (allowed: distinct"),
    ({"actions": ["none", "call", ""]}, "actions[2]", "at least 1 character"),
    ({"actions": ["none", "call", "x" * 101]}, "actions[2]", "100"),
    ({"actions": ["none", "call", 5]}, "actions[2]", "string"),
    ({"actions": "none"}, "actions", "a list"),
    # variables
    ({"variables": {"risk": ["low", "high"]}}, "variables", "a list"),
    ({"variables": ["risk"]}, "variables[0]", "an object"),
    ({"variables": [{"name": f"v{i}", "range": [0, 1]} for i in range(65)]}, "variables", "max length 64"),
    ({"variables": [{"name": "v", "range": [0, 1]}] * 2}, "variables", "repeated: v (allowed: distinct"),
    ({"variables": [{"levels": ["a", "b"]}]}, "variables[0].name", "required"),
    ({"variables": [{"name": "", "range": [0, 1]}]}, "variables[0].name", "at least 1 character"),
    ({"variables": [{"name": "a:b", "range": [0, 1]}]}, "variables[0].name", 'reserved (allowed: no ":"'),
    ({"variables": [{"name": "actions", "range": [0, 1]}]}, "variables[0].name", "reserved"),
    ({"variables": [{"name": "intercept", "range": [0, 1]}]}, "variables[0].name", "reserved"),
    (only_variable(), "variables[0]", "allowed: levels | cuts (levels as labels) | range"),
    (only_variable(levels=["a", "b"], range=[0, 1]), "variables[0]", "exactly one kind"),
    (only_variable(cuts=[0.5], range=[0, 1]), "variables[0]", "exactly one kind"),
    (only_variable(levels=[]), "variables[0].levels", "2 to 512"),
    (only_variable(levels=["a"]), "variables[0].levels", "2 to 512"),
    (only_variable(levels=list(range(513))), "variables[0].levels", "2 to 512"),
    (only_variable(levels=["a", ""]), "variables[0].levels[1]", "min length 1"),
    (only_variable(levels=["a", "b" * 101]), "variables[0].levels[1]", "max length 100"),
    (only_variable(levels=["a", "b\x00"]), "variables[0].levels[1]", "control characters"),
    (only_variable(cuts=[-1e308, 1]), "variables[0].cuts[0]", "≥ -1e+100"),
    (only_variable(range=[0, 1e101]), "variables[0].range[1]", "≤ 1e+100"),
    (only_variable(levels=["a", "b", "a"]), "variables[0].levels", "repeated: a (allowed: distinct"),
    (only_variable(levels=[1, "1"]), "variables[0].levels", "repeated: 1"),
    (only_variable(levels=["{x}", "{x}"]), "variables[0].levels", "repeated"),
    (only_variable(levels=["a", 1.5]), "variables[0].levels[1]", "string"),
    (only_variable(levels=["a", True]), "variables[0].levels[1]", "string"),
    (only_variable(levels="ab"), "variables[0].levels", "a list"),
    (only_variable(cuts=[]), "variables[0].cuts", "at least 1"),
    (only_variable(cuts=[3, 2]), "variables[0].cuts", "strictly increasing"),
    (only_variable(cuts=list(range(512))), "variables[0].cuts", "max length 511"),
    (only_variable(cuts=[0, NAN]), "variables[0].cuts[1]", "finite"),
    (only_variable(cuts=["x"]), "variables[0].cuts[0]", "number"),
    (only_variable(cuts=[1, 2], levels=["a", "b"]), "variables[0].levels", "3, one more than cuts"),
    (only_variable(range=[1, 1]), "variables[0].range", "low < high"),
    (only_variable(range=[0]), "variables[0].range[1]", "required"),
    (only_variable(range=[0, 1, 2]), "variables[0].range", "2"),
    (only_variable(range=[NAN, 1]), "variables[0].range[0]", "finite"),
    # signals and regimes
    ({"signals": "risk"}, "signals", "a list"),
    ({"signals": ["riks"]}, "signals[0]", "'riks' is not a variable with levels or cuts (allowed: ['risk', 'income']"),
    ({"signals": ["tenure"]}, "signals[0]", "['risk', 'income']"),
    ({"signals": ["risk", "risk"]}, "signals", "repeated: risk"),
    ({**WIDE, "signals": ["v", "w"]}, "signals", "900 level combinations (allowed: at most 512"),
    (WIDE, "signals", "choose"),
    ({"regimes": 0}, "regimes", "≥ 1"),
    ({"regimes": 9}, "regimes", "≤ 8"),
    ({"regimes": 2.5}, "regimes", "integer"),
    ({"regimes": "two"}, "regimes", "'two' is not a number of regimes (allowed: 'auto', or 1 to 8)"),
    ({"regimes": 3, "signals": ["risk"]}, "regimes", "1 to 2, or more signals"),
    ({"regimes": 2, "signals": []}, "regimes", "more signals"),
    # features
    ({"features": ["risk"]}, "features", "an object"),
    ({"features": {"shared": "actions"}}, "features.shared", "a list"),
    ({"features": {"shared": [3]}}, "features.shared[0]", "an object"),
    ({"features": {"shared": [{}]}}, "features.shared[0].term", "required"),
    ({"features": {"shared": ["actions", "agge"]}}, "features.shared[1]", "unknown term 'agge'"),
    ({"features": {"per_regime": ["actions", "actions:agge"]}}, "features.per_regime[1]", "'actions:tenure'"),
    ({"features": {"shared": ["actions:intercept"]}}, "features.shared[0]", "unknown term"),
    ({"features": {"shared": ["actions", "risk", "risk"]}}, "features.shared[2]", "listed twice"),
    ({"features": {"shared": ["actions"], "per_regime": ["actions"]}}, "features.per_regime[0]", "listed twice"),
    (
        {"features": {"shared": [{"term": "actions:risk", "levels": ["low"]}], "per_regime": ["actions:risk"]}},
        "features.per_regime[0]",
        "each column once",
    ),
    ({"features": {"shared": [{"term": "actions:risk", "levels": ["loww"]}]}}, "features.shared[0]", "['low', 'high']"),
    ({"features": {"shared": [{"term": "actions:risk", "levels": []}]}}, "features.shared[0]", "['low', 'high']"),
    (
        {"features": {"shared": [{"term": "actions:risk", "levels": ["low", "low"]}]}},
        "features.shared[0]",
        "['low', 'high']",
    ),
    ({"features": {"shared": [{"term": "actions", "levels": ["low"]}]}}, "features.shared[0]", "no levels"),
    ({"features": {"shared": [{"term": "actions:tenure", "levels": ["1"]}]}}, "features.shared[0]", "no levels"),
    ({"features": {}}, "features", "no term depends on the action"),
    ({"features": {"shared": ["risk"], "per_regime": ["intercept"]}}, "features", "no term depends on the action"),
    # stages, ridge, bonus, warm start
    ({"stage_length": 0}, "stage_length", "≥ 1"),
    ({"stage_length": 1_000_001}, "stage_length", "≤ 1000000"),
    ({"stage_length": 1.5}, "stage_length", "integer"),
    ({"ridge": 0}, "ridge", "greater"),
    ({"ridge": 1e-200}, "ridge", "≥ 1e-12"),
    ({"ridge": 1e300}, "ridge", "≤ 1000000000000"),
    ({"ridge": INF}, "ridge", "finite"),
    ({"ridge": "small"}, "ridge", "number"),
    ({"bonus": "complex"}, "bonus", "an object"),
    ({"bonus": {"form": "optimal"}}, "bonus.form", "'complex', 'simplified', 'plain', 'elliptical'"),
    ({"bonus": {"scale": -0.1}}, "bonus.scale", "≥ 0"),
    ({"bonus": {"form": "theory_general"}}, "bonus.risk", "theory_general: risk, horizon, c_theta, gamma, c_eta"),
    ({"bonus": {**GENERAL, "horizon": None}}, "bonus.horizon", "needed by form 'theory_general'"),
    ({"bonus": {**GENERAL, "v_eta": 0.2}}, "bonus.v_eta", "used only by a theorem's form"),
    ({"bonus": {"form": "complex", "risk": 0.1}}, "bonus.risk", "allowed: complex: no constants"),
    ({"bonus": {**GENERAL, "risk": 1.0}}, "bonus.risk", "< 1"),
    ({"bonus": {**GENERAL, "risk": 0.0}}, "bonus.risk", "≥ 1e-12"),
    ({"bonus": {**GENERAL, "horizon": 1}}, "bonus.horizon", "≥ 2"),
    ({"bonus": {**GENERAL, "c_theta": 0}}, "bonus.c_theta", "≥ 1e-12"),
    ({"bonus": {**GENERAL, "gamma": 1}}, "bonus.gamma", "< 1"),
    ({"bonus": {**SIMPLIFIED, "v_eta": 0}, "stage_length": 1}, "bonus.v_eta", "≥ 1e-12"),
    ({"beliefs": {"start_round": 2**63}}, "beliefs.start_round", "≤ 9007199254740991"),
    ({"beliefs": {"every": 2**63}}, "beliefs.every", "≤ 9007199254740991"),
    ({"bonus": SIMPLIFIED}, "stage_length", "1 for bonus form theory_simplified"),
    ({"warm_start_rounds": -1}, "warm_start_rounds", "≥ 0"),
    ({"warm_start_rounds": 1_000_001}, "warm_start_rounds", "≤ 1000000"),
    # beliefs
    ({"beliefs": {"estimator": "kalman"}}, "beliefs.estimator", "'spectral', 'em', 'given' or 'none'"),
    ({"beliefs": {"start_round": 3}}, "beliefs.start_round", "≥ 4"),
    ({"beliefs": {"every": 0}}, "beliefs.every", "≥ 1"),
    ({"beliefs": {"every": "often"}}, "beliefs.every", "integer"),
    ({"beliefs": {"every": {}}}, "beliefs.every.factor", "required"),
    ({"beliefs": {"every": {"factor": 1.0}}}, "beliefs.every.factor", "> 1"),
    ({"beliefs": {"every": {"factor": 11}}}, "beliefs.every.factor", "≤ 10"),
    ({"beliefs": {"statistics": "joint-ish"}}, "beliefs.statistics", "'refiltered', 'smoothed' or 'joint'"),
    ({"beliefs": {"estimator": "spectral", "statistics": "joint"}}, "beliefs.statistics", "needs estimator 'em'"),
    ({"beliefs": {"estimator": "none", "statistics": "joint"}}, "beliefs.statistics", "allowed: as_decided"),
    ({"beliefs": {"statistics": "smoothed"}, "regimes": "auto"}, "regimes", "needs statistics 'joint'"),
    ({"beliefs": {"estimator": "spectral"}, "bonus": {"form": "noise"}}, "bonus.form", "needs statistics 'joint'"),
    # clock
    ({"clock": 60}, "clock", "an object"),
    ({"clock": {}}, "clock.period_seconds", "required"),
    ({"clock": {"period_seconds": 0.99e-3}}, "clock.period_seconds", "≥ 0.001"),
    ({"clock": {"period_seconds": 2e9}}, "clock.period_seconds", "≤ 1000000000"),
    ({"clock": {"period_seconds": 60}, "beliefs": {"estimator": "spectral"}}, "clock", "per-decision clock"),
    (
        {"beliefs": {"estimator": "given", "parameters": GIVEN, "statistics": "refiltered"}},
        "beliefs.statistics",
        "allowed: as_decided",
    ),
    ({"beliefs": {"estimator": "given"}}, "beliefs.parameters", "needed by estimator 'given'"),
    ({"beliefs": {"parameters": GIVEN}}, "beliefs.parameters", "only by estimator 'given'"),
    (given(transition=[[1.0, 0.0]]), "beliefs.parameters.transition", "2 rows, one per regime"),
    (given(emission=[[1.0] + [0.0] * 5] * 3), "beliefs.parameters.emission", "2 rows, one per regime"),
    (given(transition=[[0.9, 0.1, 0.0], [0.2, 0.8]]), "beliefs.parameters.transition[0]", "2 numbers"),
    (given(transition=[[0.9, 0.1], [0.2, 0.9]]), "beliefs.parameters.transition[1]", "summing to 1"),
    (given(emission=[[1.0] + [0.0] * 5, [0.5, 0.5]]), "beliefs.parameters.emission[1]", "6 numbers"),
    (given(emission=[[1.0] + [0.0] * 5, [0.5] + [0.0] * 5]), "beliefs.parameters.emission[1]", "summing to 1"),
    (given(initial=[1.0]), "beliefs.parameters.initial", "2 numbers"),
    (given(initial=[0.5, 0.4]), "beliefs.parameters.initial", "summing to 1"),
    (given(initial=[1.5, 0.0]), "beliefs.parameters.initial[0]", "≤ 1"),
    (given(initial=[1.0, -0.5]), "beliefs.parameters.initial[1]", "≥ 0"),
    (given(initial=[0.5, NAN]), "beliefs.parameters.initial[1]", ""),
    (given(initial=0.5), "beliefs.parameters.initial", "a list"),
    (
        {"beliefs": {"estimator": "given", "parameters": {k: GIVEN[k] for k in ("transition", "emission")}}},
        "beliefs.parameters.initial",
        "required",
    ),
    # rewards
    ({"rewards": {"range": [1, 1]}}, "rewards.range", "low < high"),
    ({"rewards": {"range": [0, INF]}}, "rewards.range[1]", "finite"),
    ({"rewards": {"wait_seconds": 60}}, "rewards.default", "together"),
    ({"rewards": {"default": 0}}, "rewards.wait_seconds", "together"),
    ({"rewards": {"wait_seconds": 0, "default": 0}}, "rewards.wait_seconds", "> 0"),
    ({"rewards": {"wait_seconds": 60, "default": NAN}}, "rewards.default", "finite"),
    ({"rewards": {"range": [0, 1], "wait_seconds": 60, "default": 2}}, "rewards.default", "[0.0, 1.0]"),
    # control, floor, seed
    ({"control": {"share": 1.0}}, "control.share", "< 1"),
    ({"control": {"share": -0.1}}, "control.share", "≥ 0"),
    ({"control": {"kind": "best"}}, "control.kind", "'uniform' or 'baseline'"),
    ({"propensity_floor": -0.01}, "propensity_floor", "≥ 0"),
    ({"propensity_floor": 0.34}, "propensity_floor", "0 to 1/3"),
    ({"propensity_floor": NAN}, "propensity_floor", ""),
    ({"seed": -1}, "seed", "≥ 0"),
    ({"seed": 2**53}, "seed", "≤ 9007199254740991"),
    ({"seed": 0.5}, "seed", "integer"),
    ({"seed": None}, "seed", "integer"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "says"), MISTAKES)
def test_each_mistake_is_one_problem_that_names_field_and_what_is_allowed(changes, field, says):
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert says in str(problem)


UNKNOWN = [
    ({"ridgee": 1}, "ridgee", "ridge"),
    ({"rounds": 100}, "rounds", "stage_length"),
    ({"ridge[0]": 1}, "ridge[0]", "ridge"),
    (only_variable(range=[0, 1], unit="k"), "variables[0].unit", "cuts"),
    ({"features": {"shard": []}}, "features.shard", "per_regime"),
    ({"features": {"shared": [{"term": "actions", "level": ["low"]}]}}, "features.shared[0].level", "levels"),
    ({"bonus": {"c": 1}}, "bonus.c", "scale"),
    ({"beliefs": {"rounds": 5}}, "beliefs.rounds", "every"),
    ({"beliefs": {"every": {"factor": 2, "rounds": 5}}}, "beliefs.every.rounds", "factor"),
    (given(start=[1.0]), "beliefs.parameters.start", "initial"),
    ({"rewards": {"wait": 5}}, "rewards.wait", "wait_seconds"),
    ({"control": {"fraction": 0.1}}, "control.fraction", "share"),
]


@pytest.mark.parametrize(("changes", "field", "allowed"), UNKNOWN)
def test_an_unknown_field_is_named_with_the_fields_of_its_own_part(changes, field, allowed):
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    (problem,) = caught.value.problems
    assert (problem.field, problem.message) == (field, "unknown field")
    assert allowed in problem.allowed


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"regimes": True}, "regimes"),
        ({"stage_length": True}, "stage_length"),
        ({"stage_length": "5"}, "stage_length"),
        ({"ridge": "0.3"}, "ridge"),
        ({"ridge": True}, "ridge"),
        ({"bonus": {"scale": False}}, "bonus.scale"),
        ({"beliefs": {"every": True}}, "beliefs.every"),
        ({"control": {"share": False}}, "control.share"),
        ({"seed": "7"}, "seed"),
        (only_variable(cuts=["1", "2"]), "variables[0].cuts[0]"),
        (only_variable(range=[False, True]), "variables[0].range[0]"),
    ],
)
def test_truth_values_and_text_are_not_numbers(changes, field):
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    assert field in [problem.field for problem in caught.value.problems]


def test_an_empty_list_of_cuts_does_not_hide_beside_a_range():
    with pytest.raises(ConfigError):
        build(regimes=1, **only_variable(cuts=[], range=[0, 1]))


def test_several_mistakes_are_all_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build(name="No Slug", ridge=-1, bonus={"form": "x", "scale": -1}, signals=None, stage_length=0)
    fields = [p.field for p in caught.value.problems]
    assert fields == ["name", "stage_length", "ridge", "bonus.form", "bonus.scale"]
    assert all(field in str(caught.value) for field in fields)


def test_several_wrong_laws_are_all_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build(**given(transition=[[0.9, 0.2], [0.2, 0.9]], initial=[1.0, 1.0]))
    where = "beliefs.parameters"
    assert [p.field for p in caught.value.problems] == [
        f"{where}.initial", f"{where}.transition[0]", f"{where}.transition[1]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "make", [CampaignConfig.model_validate, lambda x: CampaignConfig.model_validate_json(json.dumps(x))]
)
@pytest.mark.parametrize("value", [{**REQUIRED, "ridge": -1}, {}, [1], None, "cards"])
def test_every_way_of_making_one_raises_the_policys_error(make, value):
    with pytest.raises(ConfigError):
        make(value)


def test_text_that_is_no_json_raises_the_policys_error():
    with pytest.raises(ConfigError):
        CampaignConfig.model_validate_json("{")


def test_too_many_columns():
    with pytest.raises(ConfigError) as caught:
        FeatureMap(build(variables=[{"name": "v", "levels": list(range(500))}], signals=[]))
    (problem,) = caught.value.problems
    assert problem.field == "features"
    assert "1503" in problem.message
    assert "at most 1024" in problem.allowed


@pytest.mark.parametrize("levels", [["--1", "2"], ["-", "+"], ["01", "1"], ["²", "1"], ["1" * 100, "2"], ["-0", "0"]])
def test_levels_that_almost_look_like_numbers_are_just_names(levels):
    features = FeatureMap(build(**only_variable(levels=levels)))
    assert [features.encode_one({"v": level})[0][0, 0] for level in levels] == [0, 1]
