"""The feature map (R9, R10): the paper's maps column by column, the encoding of contexts, and what is refused."""

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from policy import CampaignConfig, ContextError, FeatureMap
from policy.errors import ArgumentError
from policy.features import get_feature_map

MAIN_EFFECTS = ["age", "education", "marital", "revenue", "risk"]
KEPT = [{"term": "actions:risk", "levels": ["1", "2", "4", "5"]}, {"term": "actions:revenue", "levels": ["1", "4"]}]
EVERY = ["intercept", *MAIN_EFFECTS, "actions", "actions:risk", "actions:revenue"]
PUBLISHED = {"shared": MAIN_EFFECTS, "per_regime": ["intercept", "actions", *KEPT]}
TENSOR_72 = {"per_regime": ["intercept", *MAIN_EFFECTS, "actions", *KEPT]}
TENSOR_84 = {"per_regime": EVERY}
MAPS = {"published": (PUBLISHED, 2, 51), "tensor-72": (TENSOR_72, 2, 72), "tensor-84": (TENSOR_84, 2, 84),
        "one-regime": (PUBLISHED, 1, 36)}  # fmt: skip

ACTIONS = ["No action", "Call", "Email"]
LEVELS = {
    "age": ["1", "2", "3", "4", "5"],
    "education": ["graduate", "university", "high school", "others"],
    "marital": ["married", "single", "other"],
    "revenue": ["1", "2", "3", "4"],
    "risk": ["1", "2", "3", "4", "5"],
}
CUTS = {"age": [27, 31, 37, 43], "revenue": [10_000, 36_000, 54_000]}


def naive_level(variable, value):
    """The level by its definition: how many cuts lie strictly below the value."""
    if variable in CUTS:
        return LEVELS[variable][sum(value > cut for cut in CUTS[variable])]
    return str(value)


def naive_columns(terms):
    """The columns of listed terms, each as (name, function of action and level by variable)."""
    columns = []
    for term in terms:
        levels = None
        if isinstance(term, dict):
            term, levels = term["term"], term["levels"]
        with_actions, _, variable = term.partition(":") if term.startswith("actions") else ("", "", term)
        effects = [("", None)]
        if variable and variable != "intercept":
            effects = [(f"{variable}={x}", (variable, x)) for x in levels or LEVELS[variable]]
        for action in ACTIONS[1:] if with_actions else [None]:
            for text, effect in effects:
                name = " × ".join(part for part in (action, text) if part) or "intercept"

                def on(a, x, action=action, effect=effect):
                    return float(action in (None, a) and (effect is None or x[effect[0]] == effect[1]))

                columns.append((name, on))
    return columns


def naive_dense(features, regimes, belief, action, context):
    """z(b, a, x) built column by column from the words of R10."""
    levels = {name: naive_level(name, value) for name, value in context.items()}
    z = [(name, on(action, levels)) for name, on in naive_columns(features.get("shared", []))]
    for h in range(regimes):
        suffix = f" | regime {h + 1}" if regimes > 1 else ""
        z += [(name + suffix, belief[h] * on(action, levels)) for name, on in naive_columns(features["per_regime"])]
    return z


def name_columns(features):
    """Each column in one line, like "call × risk=low | regime 2"."""
    names = []
    for term, action, level, regime in features.column_parts:
        variable = term.removeprefix("actions:")
        effect = "" if variable in ("intercept", "actions") else variable + (f"={level}" if level is not None else "")
        name = " × ".join(part for part in (action, effect) if part) or "intercept"
        names.append(name if regime is None else f"{name} | regime {regime}")
    return names


def some_contexts(count=40):
    generator = np.random.default_rng(5)
    return [
        {
            "age": int(generator.integers(20, 60)),
            "education": str(generator.choice(LEVELS["education"])),
            "marital": str(generator.choice(LEVELS["marital"])),
            "revenue": float(generator.choice([5_000, 10_000, 20_000, 36_000, 50_000, 54_000, 90_000])),
            "risk": int(generator.integers(1, 6)),
        }
        for _ in range(count)
    ]


# --- the paper's maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", MAPS)
def test_the_papers_maps_column_by_column(credit_card, which):
    features, regimes, dimension = MAPS[which]
    made = FeatureMap(CampaignConfig(**{**credit_card, "regimes": regimes, "features": features}))
    assert made.dimension == dimension
    contexts = some_contexts()
    encoded = made.encode(contexts)
    generator = np.random.default_rng(1)
    touched = np.zeros(dimension, bool)
    for row, context in enumerate(contexts):
        belief = generator.dirichlet(np.ones(regimes))
        for a, action in enumerate(ACTIONS):
            expected = naive_dense(features, regimes, belief, action, context)
            assert name_columns(made) == [name for name, _ in expected]
            z = made.dense(belief, a, encoded, row)
            assert z.tolist() == [value for _, value in expected]
            touched |= z != 0
    assert touched.all()  # the contexts above reach every column


def test_the_full_tensor_is_a_kronecker_product(credit_card):
    """Every term per regime is the paper's z = b ⊗ φ(a, x), and φ is the map with H = 1."""
    fields = {**credit_card, "features": TENSOR_72}
    tensor, plain = FeatureMap(CampaignConfig(**fields)), FeatureMap(CampaignConfig(**{**fields, "regimes": 1}))
    belief = np.array([0.3, 0.7])
    contexts = tensor.encode(some_contexts())
    for row in range(40):
        for action in range(3):
            phi = plain.dense(np.ones(1), action, contexts, row)
            assert (tensor.dense(belief, action, contexts, row) == np.kron(belief, phi)).all()


# --- encoding ------------------------------------------------------------------------------------------------


def test_a_value_equal_to_a_cut_belongs_to_the_lower_level(credit_card):
    made, base = FeatureMap(CampaignConfig(**credit_card)), some_contexts(1)[0]
    ages = [-5, 26.9, 27, 27.1, 31, 32, 37, 38, 43, 43.0001, 1e9]
    levels = made.encode([{**base, "age": age} for age in ages]).levels[:, 0]
    assert levels.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_numbers_are_scaled_to_the_unit_interval():
    config = CampaignConfig(
        name="numbers", actions=["a", "b"],
        variables=[
            {"name": "u", "range": [-2, 6]}, {"name": "v", "levels": ["x", "y"]}, {"name": "w", "range": [0, 10]},
        ],
        features={"shared": ["u", "w"], "per_regime": ["intercept", "actions:w", "v"]},
    )  # fmt: skip
    made = FeatureMap(config)
    encoded = made.encode([{"u": 0, "v": "y", "w": 10}, {"u": -2, "v": "x", "w": Decimal("2.5")}])
    assert encoded.values.tolist() == [[0.25, 1.0], [0.0, 0.25]]
    assert name_columns(made)[:2] == ["u", "w"]
    # u, w, then per regime: intercept, b × w, v=x, v=y.
    belief = np.array([0.2, 0.8])
    z = made.dense(belief, 1, encoded, 1)
    assert z.tolist() == [0.0, 0.25, 0.2, 0.2 * 0.25, 0.2, 0.0, 0.8, 0.8 * 0.25, 0.8, 0.0]
    assert made.dense(belief, 0, encoded, 0).tolist() == [0.25, 1.0, 0.2, 0.0, 0.0, 0.2, 0.8, 0.0, 0.0, 0.8]


@pytest.mark.parametrize("signals", [["risk", "revenue"], ["revenue", "risk"], ["marital", "risk", "education"], []])
def test_symbols_are_row_major_over_the_signals(credit_card, signals):
    """R9: the last signal is fastest, in the order of `signals` and not of `variables`."""
    made = FeatureMap(CampaignConfig(**{**credit_card, "signals": signals, "regimes": None}))
    contexts = some_contexts()
    for context, symbol in zip(contexts, made.encode(contexts).symbols, strict=True):
        places = [LEVELS[name].index(naive_level(name, context[name])) for name in signals]
        expected = int(np.ravel_multi_index(places, [len(LEVELS[name]) for name in signals])) if signals else 0
        assert symbol == expected


def test_whole_numbers_and_their_text_are_the_same_level(credit_card):
    made = FeatureMap(CampaignConfig(**credit_card))
    base = some_contexts(1)[0]
    assert made.encode([{**base, "risk": 4}, {**base, "risk": "4"}]).levels[:, 4].tolist() == [3, 3]
    for value in (True, 1.0, "x" * 100_000):  # true is not the level 1
        with pytest.raises(ContextError) as caught:
            made.encode_one(base | {"risk": value})
        assert caught.value.problems[0].field == "context.risk"
        assert len(str(caught.value)) < 300  # a long value is not repeated in full
    assert [part.shape for part in made.encode([])] == [(0, 5), (0, 0), (0,)]


# --- what is refused -----------------------------------------------------------------------------------------

WRONG_VALUES = {
    ("risk", "['low', 'mid', 'high']"): ["extreme", "LOW", None, 1, True, ["low"]],
    ("income", "a finite number"): [math.nan, math.inf, -math.inf, True, "20", b"20", None, [20], 10**400],
    ("tenure", "a number from 0 to 20"): [math.nan, math.inf, -0.001, 20.001, False, "5", 1 + 2j],
}


@pytest.mark.parametrize(("name", "allowed"), WRONG_VALUES)
def test_a_wrong_value_names_its_variable_and_what_is_allowed(small, small_contexts, name, allowed):
    made = FeatureMap(small())
    for value in WRONG_VALUES[name, allowed]:
        context = small_contexts(1)[0] | {name: value}
        for encode, field in ((made.encode_one, "context"), (lambda c: made.encode([c]), "items[0].context")):
            with pytest.raises(ContextError) as caught:
                encode(context)
            (problem,) = caught.value.problems
            assert problem.field == f"{field}.{name}"
            assert str(problem.allowed) == allowed


def test_missing_and_extra_variables(small, small_contexts):
    made = FeatureMap(small())
    context = small_contexts(1)[0]
    context["incme"] = context.pop("income")
    with pytest.raises(ContextError) as caught:
        made.encode_one(context)
    extra, missing = caught.value.problems
    unknown = "unknown variable; leave it out, or set extra_variables: ignore for this campaign"
    assert (extra.field, extra.message) == ("context.incme", unknown)
    assert extra.allowed == ["risk", "income", "region", "tenure"]
    absent = "missing; send a value, or set missing: level for this variable"
    assert (missing.field, missing.message, missing.allowed) == ("context.income", absent, "a finite number")


@pytest.mark.parametrize("context", [None, 3, "risk", ["low", 20, "north", 5], [], {"low"}])
def test_a_context_must_be_an_object(small, context):
    with pytest.raises(ContextError) as caught:
        FeatureMap(small()).encode_one(context)
    (problem,) = caught.value.problems
    assert problem.field == "context"
    assert "not an object" in problem.message
    assert problem.allowed == ["risk", "income", "region", "tenure"]


def test_all_problems_of_all_contexts_at_once(small, small_contexts):
    good = small_contexts(1)[0]
    with pytest.raises(ContextError) as caught:
        FeatureMap(small()).encode(
            [good, {"risk": "no", "income": math.nan, "region": "north", "age": 3}, good, "nothing"]
        )
    assert [problem.field for problem in caught.value.problems] == [
        "items[1].context.age", "items[1].context.risk", "items[1].context.income", "items[1].context.tenure",
        "items[3].context",
    ]  # fmt: skip


USUAL = {
    "risk": st.sampled_from(["1", 1, "low", "high"]),
    "income": st.one_of(st.floats(-1e3, 1e3), st.sampled_from([10, 20, 2**53 + 1, -(10**30)])),
    "tenure": st.one_of(st.floats(0, 20), st.integers(0, 20)),
}
ODD = st.sampled_from([
    True, None, 1.0, "2", 3, math.nan, math.inf, 10**400, [], "x", np.str_("1"), np.int64(1), np.float64(2.0),
    Decimal(3), Decimal("NaN"),
])  # fmt: skip


@for_all(data=st.data(), usual=st.booleans())
def test_columns_encode_what_rows_do(data, usual):
    """Also what is wrong, which only rows tell: values that JSON has or has not, variables too few or too many."""
    variables = [
        {"name": "risk", "levels": ["1", "low", "high"]},
        {"name": "income", "cuts": [10, 20.5, 2**53]},
        {"name": "tenure", "range": [0, 20]},
    ]
    config = CampaignConfig(name="x", actions=["a", "b"], variables=variables, signals=["income", "risk"])
    made = get_feature_map(config)
    kind = st.fixed_dictionaries(USUAL)
    if not usual:
        some = {name: st.one_of(values, ODD) for name, values in USUAL.items()}
        kind = st.one_of(kind, st.fixed_dictionaries({}, optional=some | {"age": ODD}), st.sampled_from([None, "x", 3]))
    contexts = data.draw(st.lists(kind, min_size=2, max_size=8))
    problems, rows = [], []
    for i, context in enumerate(contexts):
        try:
            rows.append(made.encode_one(context, f"items[{i}]."))
        except ContextError as error:
            problems += error.problems
    if problems:
        with pytest.raises(ContextError) as caught:
            made.encode_rows(contexts)
        assert repr(list(caught.value.problems)) == repr(problems)
    else:
        for columns, expected in zip(made.encode_rows(contexts), zip(*rows, strict=True), strict=True):
            expected = np.concatenate(expected)
            assert (columns.dtype, columns.shape) == (expected.dtype, expected.shape)
            assert columns.tobytes() == expected.tobytes()
            assert columns.flags.c_contiguous


def test_columns_of_a_wrong_belief_or_action(small, small_contexts):
    made, half = FeatureMap(small(regimes=2)), [0.5, 0.5]
    for belief, action, field in (
        ([0.2, 0.3, 0.5], 0, "belief"),
        ([half], 0, "belief"),
        (half, 3, "action"),
        (half, -1, "action"),
    ):
        with pytest.raises(ArgumentError) as caught:
            made.dense(np.array(belief), action, made.encode(small_contexts(1)))
        assert caught.value.problems[0].field == field
        assert caught.value.problems[0].allowed


def test_norm_bound_and_context_dimension(credit_card):
    """What the theorems' bonuses need: ‖φ‖₂ ≤ bound, attained when every term is active, and d."""
    for features, regimes, dimension in MAPS.values():
        made = FeatureMap(CampaignConfig(**{**credit_card, "regimes": regimes, "features": features}))
        assert made.context_dimension == (42 if dimension == 84 else 36)
        contexts = made.encode(some_contexts(150))
        vertex = np.eye(regimes)[0]
        norms = [np.linalg.norm(made.dense(vertex, 1, contexts, row)) for row in range(150)]
        assert max(norms) == pytest.approx(made.norm_bound, rel=1e-14)


def test_campaigns_with_the_same_map_share_it(small):
    assert get_feature_map(small(seed=1)) is get_feature_map(small(seed=2, ridge=9.0))
    assert get_feature_map(small(signals=["income", "risk"])) is not get_feature_map(small())
    assert get_feature_map(small(regimes=3)).dimension > get_feature_map(small(regimes=2)).dimension
    auto = small()
    assert get_feature_map(auto) is get_feature_map(auto, auto.regime_counts[-1])  # the most it may use
    assert get_feature_map(auto, 2) is get_feature_map(small(regimes=2))
    assert [get_feature_map(auto, h).regimes for h in auto.regime_counts] == list(auto.regime_counts) == [1, 2, 3, 4]


# --- directions that no z has --------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [*MAPS, "small", "small-3", "bare"])
def test_null_projector(credit_card, small, small_contexts, which):
    """kernels.linucb adds it to G: it must be exactly the projector on the complement of the span of all z."""
    if which in MAPS:
        features, regimes, _ = MAPS[which]
        config = CampaignConfig(**{**credit_card, "regimes": regimes, "features": features})
        contexts = some_contexts(150)
    elif which == "bare":
        config, contexts = CampaignConfig(name="bare", actions=["a", "b"], variables=[]), [{}]
    else:
        config, contexts = small(regimes=3 if which == "small-3" else 2), small_contexts(150)
    made = FeatureMap(config)
    encoded = made.encode(contexts)
    generator = np.random.default_rng(2)
    beliefs = generator.dirichlet(np.ones(made.regimes), len(contexts))
    pairs = itertools.product(range(len(contexts)), range(len(config.actions)))
    stacked = np.array([made.dense(beliefs[row], action, encoded, row) for row, action in pairs])
    null = made.plan.null
    assert null.shape == (made.dimension, made.dimension)
    np.testing.assert_allclose(null, null.T, atol=1e-14)
    np.testing.assert_allclose(null @ null, null, atol=1e-12)
    np.testing.assert_allclose(stacked @ null, 0.0, atol=1e-12)
    rank = np.linalg.matrix_rank(stacked)
    assert round(np.trace(null)) == made.dimension - rank
    np.testing.assert_allclose(np.trace(null), made.dimension - rank, atol=1e-10)
