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
    return {"variables": [{"name": "v"} | fields]}


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
LOW = {"term": "actions:risk", "levels": ["low"]}


def nest(path, value):
    """The change that sets the field at a path: `nest("bonus.scale", 1)` is {"bonus": {"scale": 1}}."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


# By field: wrong values, each with a word of what the one problem says or allows.
WRONG_VALUES = {
    "name": [("Cards", "slug"), ("cards\n", "slug"), ("", "at least 1"), ("a" * 65, "64"), (3, "string")],
    "actions": [
        (["call"], "at least 2"), ([str(i) for i in range(65)], "at most 64"), ("none", "a list"),
        (["none", "call", "call"], "repeated: call (allowed: distinct"),
    ],
    "variables": [
        ({"risk": ["low", "high"]}, "a list"), ([{"name": "v", "range": [0, 1]}] * 2, "repeated: v (allowed: distinct"),
        ([{"name": f"v{i}", "range": [0, 1]} for i in range(65)], "at most 64"),
    ],
    "signals": [("risk", "a list"), (["risk", "risk"], "repeated: risk")],
    "regimes": [
        (0, "≥ 1"), (9, "≤ 8"), (2.5, "integer"), (True, "integer"),
        ("two", "'two' is not a number of regimes (allowed: 'auto', or 1 to 8)"),
    ],
    "features": [
        (["risk"], "an object"), ({}, "no term depends on the action"),
        ({"shared": ["risk"], "per_regime": ["intercept"]}, "no term depends on the action"),
    ],
    "features.shared": [("actions", "a list")],
    "stage_length": [(0, "≥ 1"), (1_000_001, "≤ 1000000"), (1.5, "integer"), (True, "integer"), ("5", "integer")],
    "ridge": [(0, "greater"), (1e-200, "≥ 1e-12"), (1e300, "≤ 1000"), (INF, "finite"), ("x", "number")],
    "bonus": [("complex", "an object")],
    "bonus.form": [("optimal", "'complex', 'simplified', 'plain', 'elliptical'")],
    "bonus.scale": [(-0.1, "≥ 0"), (False, "number")],
    "warm_start_rounds": [(-1, "≥ 0"), (1_000_001, "≤ 1000000")],
    "beliefs.estimator": [("kalman", "'spectral', 'em', 'online_em', 'given' or 'none'")],
    "beliefs.start_round": [(3, "≥ 4"), (2**63, "≤ 9007199254740991")],
    "beliefs.every": [(0, "≥ 1"), ("often", "integer"), (2**63, "≤ 9007199254740991"), (True, "integer")],
    "beliefs.every.factor": [(1.0, "> 1"), (11, "≤ 10")],
    "beliefs.statistics": [("joint-ish", "'refiltered', 'smoothed' or 'joint'")],
    "clock": [(60, "an object")],
    "clock.period_seconds": [(0.99e-3, "≥ 0.001"), (2e9, "≤ 1000000000")],
    "rewards.range": [([1, 1], "low < high")],
    "control.share": [(1.0, "< 1"), (-0.1, "≥ 0"), (False, "number")],
    "control.kind": [("best", "'uniform' or 'baseline'")],
    "propensity_floor": [(-0.01, "≥ 0"), (0.34, "0 to 1/3"), (NAN, "")],
    "seed": [(-1, "≥ 0"), (2**53, "≤ 9007199254740991"), (0.5, "integer"), (None, "integer"), ("7", "integer")],
    # Unknown fields: the fields of their own part are allowed.
    "ridgee": [(1, "unknown field (allowed: ['name', 'actions',")],
    "ridge[0]": [(1, "unknown field (allowed: ['name', 'actions',")],
    "features.shard": [([], "unknown field (allowed: ['shared', 'per_regime'])")],
    "bonus.c": [(1, "unknown field (allowed: ['form', 'scale',")],
    "rewards.wait": [(5, "unknown field (allowed: ['range', 'wait_seconds', 'default', 'while_waiting', 'correct_sec")],
    "control.fraction": [(0.1, "unknown field (allowed: ['share', 'kind'])")],
}  # fmt: skip
WRONG_VARIABLES = {  # the same, of an only variable
    "": [
        ({}, "allowed: levels | cuts (levels as labels) | range"),
        ({"levels": ["a", "b"], "range": [0, 1]}, "exactly one kind"), ({"cuts": [1], "range": [0, 1]}, "one kind"),
    ],
    ".unit": [({"range": [0, 1], "unit": "k"}, "unknown field (allowed: ['name', 'levels', 'cuts', 'range', ")],
    ".name": [
        *(({"name": name, "range": [0, 1]}, says) for name, says in (
            ("", "at least"), ("a:b", 'reserved (allowed: no ":"'), ("actions", "reserved"), ("intercept", "reserved"),
        )),
    ],
    ".levels": [
        ({"levels": []}, "at least"), ({"levels": ["a"]}, "at least 2"), ({"levels": list(range(513))}, "at most 512"),
        ({"levels": ["a", "b", "a"]}, "repeated: a (allowed: distinct"), ({"levels": [1, "1"]}, "repeated: 1"),
        ({"levels": ["{x}", "{x}"]}, "repeated"), ({"levels": "ab"}, "a list"),
        ({"cuts": [1, 2], "levels": ["a", "b"]}, "3, one more than cuts"),
    ],
    ".levels[1]": [
        *(({"levels": ["a", level]}, says) for level, says in (
            ("", "length 1"), ("b" * 101, "length 100"), ("b\x00", "control char"), (1.5, "string"), (True, "string"),
        )),
    ],
    ".cuts": [({"cuts": []}, "at least 1"), ({"cuts": [3, 2]}, "increasing"), ({"cuts": list(range(512))}, "511")],
    ".cuts[0]": [({"cuts": [-1e308, 1]}, "≥ -1e+100"), ({"cuts": ["1"]}, "number")],
    ".cuts[1]": [({"cuts": [0, NAN]}, "finite")],
    ".range": [({"range": [1, 1]}, "low < high"), ({"range": [0, 1, 2]}, "2")],
    ".range[0]": [({"range": [NAN, 1]}, "finite"), ({"range": [False, 1]}, "number")],
    ".range[1]": [({"range": [0, 1e101]}, "≤ 1e+100"), ({"range": [0]}, "required")],
}  # fmt: skip
MISTAKES = [
    *((nest(field, value), field, says) for field, cases in WRONG_VALUES.items() for value, says in cases),
    *((only_variable(**v), f"variables[0]{place}", says) for place, all in WRONG_VARIABLES.items() for v, says in all),
    ({"variables": ["risk"]}, "variables[0]", "an object"),
    ({"variables": [{"levels": ["a", "b"]}]}, "variables[0].name", "required"),
    ({"actions": ["none", "call", ""]}, "actions[2]", "at least 1 character"),
    ({"actions": ["none", "call", "x" * 101]}, "actions[2]", "100"),
    ({"actions": ["none", "call", 5]}, "actions[2]", "string"),
    # signals and regimes
    ({"signals": ["riks"]}, "signals[0]", "'riks' is not a variable with levels or cuts (allowed: ['risk', 'income']"),
    ({"signals": ["tenure"]}, "signals[0]", "['risk', 'income']"),
    ({**WIDE, "signals": ["v", "w"]}, "signals", "900 level combinations (allowed: at most 512"),
    ({"regimes": 3, "signals": ["risk"]}, "regimes", "1 to 2, or more signals"),
    ({"regimes": 2, "signals": []}, "regimes", "more signals"),
    # features
    ({"features": {"shared": [3]}}, "features.shared[0]", "an object"),
    ({"features": {"shared": [{}]}}, "features.shared[0].term", "required"),
    ({"features": {"shared": [{"term": "actions", "level": ["low"]}]}}, "features.shared[0].level", "unknown field"),
    ({"features": {"shared": ["actions", "agge"]}}, "features.shared[1]", "unknown term 'agge'"),
    ({"features": {"per_regime": ["actions", "actions:agge"]}}, "features.per_regime[1]", "'actions:tenure'"),
    ({"features": {"shared": ["actions:intercept"]}}, "features.shared[0]", "unknown term"),
    ({"features": {"shared": ["actions", "risk", "risk"]}}, "features.shared[2]", "listed twice"),
    ({"features": {"shared": ["actions"], "per_regime": ["actions"]}}, "features.per_regime[0]", "listed twice"),
    ({"features": {"shared": [LOW], "per_regime": ["actions:risk"]}}, "features.per_regime[0]", "each column once"),
    *(({"features": {"shared": [LOW | {"levels": levels}]}}, "features.shared[0]", "['low', 'high']")
      for levels in (["loww"], [], ["low", "low"])),
    *(({"features": {"shared": [LOW | {"term": term}]}}, "features.shared[0]", "no levels")
      for term in ("actions", "actions:tenure")),
    # bonus
    ({"bonus": {"form": "theory_general"}}, "bonus.risk", "theory_general: risk, horizon, c_theta, gamma, c_eta"),
    *(({"bonus": {**GENERAL, field: value}}, f"bonus.{field}", says) for field, value, says in (
        ("horizon", None, "needed by form 'theory_general'"), ("v_eta", 0.2, "used only by a theorem's form"),
        ("risk", 1.0, "< 1"), ("risk", 0.0, "≥ 1e-12"), ("horizon", 1, "≥ 2"), ("c_theta", 0, "≥ 1e-12"),
        ("gamma", 1, "< 1"),
    )),
    ({"bonus": {"form": "complex", "risk": 0.1}}, "bonus.risk", "allowed: complex: no constants"),
    ({"bonus": {**SIMPLIFIED, "v_eta": 0}, "stage_length": 1}, "bonus.v_eta", "≥ 1e-12"),
    ({"bonus": SIMPLIFIED}, "stage_length", "1 for bonus form theory_simplified"),
    ({"beliefs": {"estimator": "spectral"}, "bonus": {"form": "noise"}}, "bonus.form", "needs statistics 'joint'"),
    # beliefs
    ({"beliefs": {"every": {}}}, "beliefs.every.factor", "required"),
    ({"beliefs": {"every": {"factor": 2, "rounds": 5}}}, "beliefs.every.rounds", "unknown field (allowed: ['factor'])"),
    ({"beliefs": {"estimator": "spectral", "statistics": "joint"}}, "beliefs.statistics", "needs estimator 'em'"),
    ({"beliefs": {"estimator": "none", "statistics": "joint"}}, "beliefs.statistics", "allowed: as_decided"),
    ({"beliefs": {"statistics": "smoothed"}, "regimes": "auto"}, "regimes", "needs statistics 'joint'"),
    (nest("beliefs", {**given()["beliefs"], "statistics": "refiltered"}), "beliefs.statistics", "allowed: as_decided"),
    ({"beliefs": {"estimator": "given"}}, "beliefs.parameters", "needed by estimator 'given'"),
    ({"beliefs": {"parameters": GIVEN}}, "beliefs.parameters", "only by estimator 'given'"),
    *((given(**{place.partition("[")[0]: value}), f"beliefs.parameters.{place}", says) for place, value, says in (
        ("transition", [[1.0, 0]], "2 rows, one per regime"), ("transition[0]", [[1.0, 0, 0], [0.2, 0.8]], "2 numbers"),
        ("transition[1]", [[0.9, 0.1], [0.2, 0.9]], "summing to 1"), ("emission", [[1.0] + [0.0] * 5] * 3, "2 rows"),
        ("emission[1]", [[1.0] + [0.0] * 5, [0.5, 0.5]], "6 numbers"),
        ("emission[1]", [[1.0] + [0.0] * 5, [0.5] + [0.0] * 5], "summing to 1"),
        ("initial", [1.0], "2 numbers"), ("initial", [0.5, 0.4], "summing to 1"), ("initial", 0.5, "a list"),
        ("initial[0]", [1.5, 0.0], "≤ 1"), ("initial[1]", [1.0, -0.5], "≥ 0"), ("initial[1]", [0.5, NAN], ""),
        ("start", [1.0], "unknown field (allowed: ['transition', 'emission', 'initial'])"),
    )),
    (nest("beliefs", {"estimator": "given", "parameters": {k: GIVEN[k] for k in ("transition", "emission")}}),
     "beliefs.parameters.initial", "required"),
    # clock and rewards
    ({"clock": {}}, "clock.period_seconds", "required"),
    ({"clock": {"period_seconds": 60}, "beliefs": {"estimator": "spectral"}}, "clock", "per-decision clock"),
    ({"rewards": {"range": [0, INF]}}, "rewards.range[1]", "finite"),
    ({"rewards": {"wait_seconds": 60}}, "rewards.default", "together"),
    ({"rewards": {"default": 0}}, "rewards.wait_seconds", "together"),
    ({"rewards": {"wait_seconds": 0, "default": 0}}, "rewards.wait_seconds", "> 0"),
    ({"rewards": {"wait_seconds": 60, "default": NAN}}, "rewards.default", "finite"),
    ({"rewards": {"range": [0, 1], "wait_seconds": 60, "default": 2}}, "rewards.default", "[0.0, 1.0]"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "says"), MISTAKES)
def test_each_mistake_is_one_problem_that_names_field_and_what_is_allowed(changes, field, says):
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert says in str(problem)


def test_an_empty_list_of_cuts_does_not_hide_beside_a_range():
    with pytest.raises(ConfigError):
        build(regimes=1, **only_variable(cuts=[], range=[0, 1]))


def test_several_mistakes_are_all_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build(name="No Slug", ridge=-1, bonus={"form": "x", "scale": -1}, signals=None, stage_length=0)
    fields = [p.field for p in caught.value.problems]
    assert fields == ["name", "stage_length", "ridge", "bonus.form", "bonus.scale"]
    assert all(field in str(caught.value) for field in fields)
    with pytest.raises(ConfigError) as caught:
        build(**given(transition=[[0.9, 0.2], [0.2, 0.9]], initial=[1.0, 1.0]))
    laws = [f"beliefs.parameters.{law}" for law in ("initial", "transition[0]", "transition[1]")]
    assert [p.field for p in caught.value.problems] == laws


@pytest.mark.parametrize(
    "make", [CampaignConfig.model_validate, lambda x: CampaignConfig.model_validate_json(json.dumps(x))]
)
@pytest.mark.parametrize("value", [{**REQUIRED, "ridge": -1}, {}, [1], None, "cards"])
def test_every_way_of_making_one_raises_the_policys_error(make, value):
    with pytest.raises(ConfigError):
        make(value)
    with pytest.raises(ConfigError):
        CampaignConfig.model_validate_json("{")


def list_unbounded(schema, where):
    """The lists inside a JSON schema that have no `maxItems`."""
    parts = enumerate(schema) if isinstance(schema, list) else schema.items() if isinstance(schema, dict) else ()
    found = [name for key, part in parts for name in list_unbounded(part, f"{where}.{key}")]
    is_open = isinstance(schema, dict) and schema.get("type") == "array" and "maxItems" not in schema
    return [*found, where] if is_open else found


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_every_list_has_a_bound(mode):
    assert list_unbounded(CampaignConfig.model_json_schema(mode=mode), "") == []


@pytest.mark.parametrize(
    ("changes", "field", "most"),
    [
        ({"signals": ["risk"] * 40_000}, "signals", 64),
        ({"retired_actions": ["call"] * 40_000}, "retired_actions", 64),
        ({"actions": ["call"] * 40_000}, "actions", 64),
        ({"features": {"shared": ["risk"] * 40_000}}, "features.shared", 1024),
        ({"features": {"shared": [{"term": "risk", "levels": ["1"] * 40_000}]}}, "features.shared[0].levels", 512),
        ({"variables": [{"name": "x", "levels": ["1"] * 40_000}]}, "variables[0].levels", 512),
        ({"variables": [{"name": "x", "cuts": list(range(40_000))}]}, "variables[0].cuts", 511),
        ({"regime_labels": ["x"] * 40_000}, "regime_labels", 8),
    ],
)
def test_a_list_that_is_too_long_is_refused_before_anything_is_computed_from_it(changes, field, most):
    """The one problem is the bound: neither repetitions nor unknown names have been looked for."""
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    assert [(p.field, p.allowed) for p in caught.value.problems] == [(field, f"at most {most} items")]


def test_an_error_names_a_few_unknown_terms_of_many():
    with pytest.raises(ConfigError) as caught:
        build(features={"shared": [f"x{i}" for i in range(1000)]})
    assert len(caught.value.problems) == 20


def test_too_many_columns():
    """Also where a list of them would not fit in memory."""
    many = [{"name": f"v{i}", "levels": list(range(512))} for i in range(64)]
    with pytest.raises(ConfigError) as caught:
        FeatureMap(build(variables=many, signals=["v0"], actions=[f"a{i}" for i in range(64)], regimes=8))
    assert f"{64 * 512 * 64 + 7 * 63 * 513 + 7 + 64} columns" in caught.value.problems[0].message
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
