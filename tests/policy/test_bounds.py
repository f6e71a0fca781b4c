"""The theory's numbers against arithmetic written out here, by hand where the fractions are friendly."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest

from policy import HmmParameters, bounds
from policy.errors import ArgumentError

# Symmetric, so that every constant of the thresholds is a small fraction.
FRIENDLY_M = [[0.75, 0.25], [0.25, 0.75]]  # singular values 1 and 1/2, smallest entry 1/4
FRIENDLY_E = [[0.75, 0.25], [0.25, 0.75]]  # the same; the two rows are sqrt(1/2) apart
# Not symmetric and not square: tells singular values from eigenvalues and E from its transpose.
SKEWED_M = [[0.85, 0.15], [0.2, 0.8]]
SKEWED_E = [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]


def make_hmm(transition, emission, initial=None):
    uniform = np.full(len(transition), 1 / len(transition))
    return HmmParameters.check(transition, emission, uniform if initial is None else initial)


FRIENDLY = make_hmm(FRIENDLY_M, FRIENDLY_E)
COMMON = {"ridge": 4.0, "regimes": 2, "symbols": 5, "dimension": 7, "risk": 0.2, "c_theta": 1.5}
GENERAL = COMMON | {"stage_length": 3, "horizon": 10, "gamma": 0.25, "c_eta": 0.04}
SIMPLIFIED = COMMON | {"v_eta": 0.3}


def belief_error(t, risk, regimes, symbols):
    inside = 2 * math.log(6 * symbols * t * (t + 1) / risk) / t
    return math.log(t) * (regimes * math.sqrt(symbols) * math.sqrt(inside) + math.exp(-math.sqrt(t - 1)))


def belief_sum(n, risk, regimes, symbols):
    return math.fsum(belief_error(t, risk, regimes, symbols) for t in range(1, n + 1))


def smaller_singular_value(a, b, c, d):
    """Of the 2 x 2 matrix [[a, b], [c, d]], from the trace and the determinant of its Gram matrix."""
    trace, determinant = a * a + b * b + c * c + d * d, a * d - b * c
    return math.sqrt((trace - math.sqrt(trace**2 - 4 * determinant**2)) / 2)


def test_belief_error_by_hand():
    # t = 2, delta = 1/2, H = X = 1: 2 ln(6 * 2 * 3 * 2) / 2 = ln 72, and sqrt(t - 1) = 1.
    getcontext().prec = 40
    expected = Decimal(2).ln() * (Decimal(72).ln().sqrt() + 1 / Decimal(1).exp())
    assert float(bounds.belief_error(2, 0.5, 1, 1)) == pytest.approx(float(expected), rel=1e-14)
    assert float(bounds.belief_error(1, 0.5, 1, 1)) == 0.0


def test_belief_error_sum_crosses_blocks():
    counts = [0, 1, 2, 1023, 1024, 1025, 5000]
    expected = [belief_sum(n, 0.1, 3, 4) for n in counts]
    np.testing.assert_allclose(bounds.belief_error_sum(counts, 0.1, 3, 4), expected, rtol=1e-12)
    assert float(bounds.belief_error_sum(5000, 0.1, 3, 4)) == pytest.approx(expected[-1], rel=1e-12)
    assert bounds.belief_error_sum(np.array([], dtype=np.int64), 0.1, 3, 4).shape == (0,)


# sigma = 1/2 * 1/2 * 1/4 = 1/16 and eps_M = 1/4, so 12 / (eps^2 sigma^2) = 12 * 16 * 256 = 49152; X = 2.
# The maximum: 16 (2 * 4)^(1/3) / c0^(2/3) = 32 / c0^(2/3), 3 * 2 * 4 * 256 / c0^2 = 6144 / c0^2, or 1.
@pytest.mark.parametrize(("c0", "samples"), [(1 / 51408, 6144 * 51408**2), (16.0, 24.0), (64.0, 2.0), (1000.0, 1.0)])
def test_estimation_threshold_by_hand(c0, samples):
    expected = 2 * 49152**2 * (math.log(4) + 1) * samples
    assert bounds.compute_thresholds(FRIENDLY, c0).estimation == pytest.approx(expected, rel=1e-12)


# C_3 = 16 * 8 * (1 + 12 * 16 * 4096 + 256 * 16 * 256) = 128 * 1835009, C_1 = 21 * 256 * C_3.
FRIENDLY_C3 = 128 * 1835009
FRIENDLY_C1 = 21 * 256 * FRIENDLY_C3


def test_alignment_and_belief_thresholds_by_hand():
    expected = 1 + 32 * FRIENDLY_C1**2 * math.log(12) / 0.5
    assert bounds.compute_thresholds(FRIENDLY).alignment == pytest.approx(expected, rel=1e-12)
    # L_1 = 4 * 3^2 * 4 = 144, L_2 = 4 * (9/16) * 64 = 144, C_2 = 4 * 16 * (sqrt 2 + 21 * 2 * 256) * C_3.
    c2 = 64 * (math.sqrt(2) + 10752) * FRIENDLY_C3
    expected = 144 * (FRIENDLY_C1 + c2)
    assert bounds.compute_thresholds(FRIENDLY).log_belief == pytest.approx(expected, rel=1e-12)
    assert expected > 709.8, "T_B itself is beyond any float"


def test_thresholds_use_singular_values_and_regimes_in_rows():
    sigma_m = smaller_singular_value(0.85, 0.15, 0.2, 0.8)
    assert not math.isclose(sigma_m, 0.65, rel_tol=1e-3), "0.65 is the smaller eigenvalue"
    # E E^T = [[0.38, 0.26], [0.26, 0.46]]: eigenvalues (0.84 +- sqrt(0.84^2 - 4 (0.38 * 0.46 - 0.26^2))) / 2.
    sigma_e = math.sqrt((0.84 - math.sqrt(0.84**2 - 4 * (0.38 * 0.46 - 0.26**2))) / 2)
    eps = 0.15
    sigma = sigma_e * sigma_m * eps
    c3 = 16 / eps**1.5 * (1 + 12 / (eps**2 * sigma**3) + 256 / (eps**2 * sigma**2))
    c1, c2 = 21 / sigma**2 * c3, 4 / sigma * (math.sqrt(2) + 42 / sigma**2) * c3
    spectral = 2 * (12 / (eps**2 * sigma**2)) ** 2 * (math.log(6) + 1) * 6 * 51408**2 / (eps * sigma**2)
    aligned = 1 + math.ceil(32 * c1**2 * math.log(18) / (0.4**2 + 0.4**2))
    belief = 4 * (0.85 / 0.15) ** 2 / 0.1 * c1 + 4 * 0.85**2 / 0.15**3 * c2
    assert bounds.compute_thresholds(make_hmm(SKEWED_M, SKEWED_E)) == pytest.approx(
        (spectral, aligned, belief), rel=1e-11
    )


def test_thresholds_of_an_almost_irregular_hmm_are_infinite_not_an_error():
    transition = [[1 - 1e-60, 1e-60], [1e-60, 1 - 1e-60]]
    assert bounds.compute_thresholds(make_hmm(transition, FRIENDLY_E)) == (math.inf, math.inf, math.inf)


def test_settings_of_the_theorems():
    assert bounds.compute_forgetting_rate(np.array(SKEWED_M)) == pytest.approx(1 - 3 / 17)
    assert bounds.general_settings(10_000) == (1000.0, 1000)
    assert bounds.general_settings(10_001)[1] == 1001
    assert bounds.general_settings(50_000) == (pytest.approx(3343.70, abs=0.01), 3344)
    assert bounds.general_settings(1) == (1.0, 1)
    assert bounds.simplified_settings(10_000) == (100.0, 1)
    # 10^16 and 10^20 are fourth powers: their stage lengths are exact where floating point may round up.
    assert bounds.general_settings(10**16)[1] == 10**12
    assert bounds.general_settings(10**20)[1] == 10**15


def test_general_bonus_by_hand():
    additive, factor = bounds.General(**GENERAL).compute_bonus(np.arange(1, 11))
    np.testing.assert_array_equal(additive[:3], 1 + math.sqrt(7) / 4)
    np.testing.assert_array_equal(factor[:3], 0)
    # Round 8 is in stage 3 of 4, after 6 rounds; risk 0.2, so beliefs are taken at risk 0.1.
    deviation = 4 * math.sqrt(4 * 2 * (1 + 3 * 0.25) * 3 / (0.2 * 0.75))
    noise = math.sqrt(4 * 4 / 0.2 * 0.04 * 2 * 3)
    dependence = 2 * 2 * 0.25 / 0.75
    expected = 4 * math.sqrt(2) * 1.5 + deviation + noise + dependence + belief_sum(6, 0.1, 2, 5)
    assert factor[7] == pytest.approx(expected, rel=1e-13)
    assert additive[7] == pytest.approx(belief_error(8, 0.1, 2, 5), rel=1e-13)
    # Within a stage only the belief error of the round itself changes.
    assert factor[6] == factor[7] == factor[8]
    assert factor[3] < factor[6] < factor[9]


def test_simplified_bonus_by_hand():
    additive, factor = bounds.Simplified(**SIMPLIFIED).compute_bonus(np.arange(1, 11))
    assert (additive[0], factor[0]) == (1 + math.sqrt(7) / 4, 0)
    # Round 8, 14 columns, lambda = 4.
    noise = 0.3 * math.sqrt(2 * math.log(10) + 14 * math.log(1 + 8 / 56))
    expected = belief_sum(7, 0.1, 2, 5) / 2 + math.sqrt(8) * 1.5 + noise
    assert factor[7] == pytest.approx(expected, rel=1e-13)
    assert additive[7] == pytest.approx(belief_error(8, 0.1, 2, 5), rel=1e-13)


@pytest.mark.parametrize("theorem", [bounds.General(**GENERAL), bounds.Simplified(**SIMPLIFIED)])
def test_bonus_alone_in_a_batch_and_after_a_restart_has_the_same_bits(theorem):
    batch = theorem.compute_bonus(np.arange(1, 5001))
    for t in (1, 2, 3, 4, 1024, 1025, 1026, 3073, 5000):
        alone = theorem.compute_bonus(np.array([t]))
        assert [part[0] for part in alone] == [part[t - 1] for part in batch]
    bounds._block.cache_clear()
    bounds._block_ends.cache_clear()
    fresh = theorem.compute_bonus(np.arange(4001, 5001))
    for part, whole in zip(fresh, batch, strict=True):
        np.testing.assert_array_equal(part, whole[4000:])


def test_general_regret_bound_by_hand():
    # T = 10, l = 3: s_T = 4 stages, 12 rounds covered, 14 columns; T_0 = 3, lambda = 4.
    belief = belief_sum(10, 0.1, 2, 5)
    g_sum = math.sqrt(2 * 14 * 12 * (1 + 3 / 4) * math.log(1 + 12 / 56)) / 2
    widest = 4 * math.sqrt(2) * 1.5 + 4 * math.sqrt(10 * 4 * (1 + 4 * 0.25) / (0.2 * 0.75))
    widest += math.sqrt(4 * 4 / 0.2 * 10 * 0.04) + 2 * 4 * 0.25 / 0.75 + belief
    expected = (2 + 4 * 10 / 4) * 2 + 2 * belief + 2 * g_sum * widest
    assert bounds.General(**GENERAL).bound_regret(3) == pytest.approx(expected, rel=1e-12)


def test_simplified_regret_bound_by_hand():
    belief = belief_sum(10, 0.1, 2, 5)
    noise = 0.3 * math.sqrt(2 * math.log(10) + 14 * math.log(1 + 10 / 56))
    widest = belief / 2 + math.sqrt(8) * 1.5 + noise
    expected = 2 * 2 + 4 * 10 * 2 / 4 + 2 * belief + 2 * math.sqrt(2 * 14 * 10 * math.log(1 + 10 / 56)) * widest
    found = bounds.Simplified(**SIMPLIFIED).bound_regret(10, 3)
    assert found == pytest.approx(expected, rel=1e-12)


def played_bonuses(stage_length, additive, factor, *, elliptical, ridge, columns):
    """The bonuses of an arbitrary run with unit features and frozen stages, from the second stage on."""
    rng = np.random.default_rng(5)
    gram, pending, total = ridge * np.eye(columns), np.zeros((columns, columns)), 0.0
    for t in range(1, len(additive) + 1):
        z = rng.normal(size=columns)
        z /= np.linalg.norm(z)
        solved = np.linalg.solve(gram, z)
        norm = math.sqrt(z @ solved) if elliptical else float(np.linalg.norm(solved))
        total += additive[t - 1] + factor[t - 1] * norm if t > stage_length else 0.0
        pending += np.outer(z, z)
        if t % stage_length == 0:
            gram, pending = gram + pending, np.zeros_like(pending)
    return total


def test_regret_bounds_dominate_twice_the_bonuses_they_sum():
    horizon, columns = 400, 6
    ridge, stage_length = bounds.general_settings(horizon)
    settings = {"horizon": horizon, "ridge": ridge, "stage_length": stage_length, "dimension": 3}
    general = bounds.General(**GENERAL | settings)
    bonus = general.compute_bonus(np.arange(1, horizon + 1))
    paid = played_bonuses(stage_length, *bonus, elliptical=False, ridge=ridge, columns=columns)
    assert 0 < 2 * paid < general.bound_regret(1)

    ridge, stage_length = bounds.simplified_settings(horizon)
    simplified = bounds.Simplified(**SIMPLIFIED | {"ridge": ridge, "dimension": 3})
    bonus = simplified.compute_bonus(np.arange(1, horizon + 1))
    paid = played_bonuses(stage_length, *bonus, elliptical=True, ridge=ridge, columns=columns)
    assert 0 < 2 * paid < simplified.bound_regret(horizon, 1)


def test_check_assumptions_of_regular_parameters():
    features, theta = np.array([[0.6, 0.8], [0.0, 0.5]]), np.array([[1.0, 0.0], [0.3, 0.4]])
    checks = bounds.check_assumptions(make_hmm(SKEWED_M, SKEWED_E, [4 / 7, 3 / 7]), features, theta, 1)
    assert all(check.holds for check in checks)
    values = {check.name: check.value for check in checks}
    assert values == pytest.approx(
        {
            "feature norm": 1.0,
            "mean reward": 0.6,
            "parameter norm": 1.0,
            "emission rank": math.sqrt((0.84 - math.sqrt(0.84**2 - 4 * (0.38 * 0.46 - 0.26**2))) / 2),
            "smallest emission": 0.1,
            "transition invertible": smaller_singular_value(0.85, 0.15, 0.2, 0.8),
            "smallest transition": 0.15,
            "initial law stationary": 0.0,
            "forgetting rate": 14 / 17,
        },
        abs=1e-12,
    )
    labels = ("bound-R-linear", "regularity-hmm", "strong-mixing-hmm")
    assert {check.label for check in checks} == {f"assumption:{label}" for label in labels}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("feature norm", {"features": [[1.0, 1.0]]}),
        ("mean reward", {"theta": [[2.0, 0.0], [0.0, 0.0]], "c_theta": 2}),
        ("parameter norm", {"c_theta": 0.4}),
        ("emission rank", {"emission": [[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]]}),
        ("smallest emission", {"emission": [[0.5, 0.5, 0.0], [0.1, 0.3, 0.6]]}),
        ("transition invertible", {"transition": [[0.3, 0.7], [0.3, 0.7]], "initial": [0.3, 0.7]}),
        ("initial law stationary", {"initial": [0.5, 0.5]}),
    ],
)
def test_check_assumptions_reports_what_fails(name, change):
    given = {"transition": SKEWED_M, "emission": SKEWED_E, "initial": [4 / 7, 3 / 7]}
    given |= {"features": [[0.6, 0.8]], "theta": [[0.3, 0.0], [0.3, 0.4]], "c_theta": 0.5} | change
    hmm = make_hmm(given["transition"], given["emission"], given["initial"])
    checks = bounds.check_assumptions(hmm, np.array(given["features"]), np.array(given["theta"]), given["c_theta"])
    assert [check.name for check in checks if not check.holds] == [name]


def test_check_assumptions_with_fewer_symbols_than_regimes_and_a_zero_transition():
    transition = [[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]]
    hmm = make_hmm(transition, [[0.5, 0.5], [0.1, 0.9], [0.2, 0.8]], [0.25, 0.5, 0.25])
    checks = bounds.check_assumptions(hmm, np.eye(2), np.zeros((3, 2)), 1.0)
    failed = {check.name: check.value for check in checks if not check.holds}
    names = ["emission rank", "transition invertible", "smallest transition", "forgetting rate"]
    assert failed == pytest.approx(dict(zip(names, (0, 0, 0, 1), strict=True)), abs=1e-15)


WRONG_CONSTANTS = {
    "stage_length": 0, "ridge": 0.0, "regimes": 0, "symbols": 1.5, "dimension": -1, "horizon": 0, "risk": 1.0,
    "c_theta": 0.0, "gamma": 1.0, "c_eta": -0.1,
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [*WRONG_CONSTANTS.items(), ("risk", math.nan)])
def test_bad_general_constants_name_the_field(field, value):
    with pytest.raises(ArgumentError) as caught:
        bounds.General(**GENERAL | {field: value})
    assert caught.value.problems[0].field == field


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("t", lambda: bounds.belief_error([1, 0], 0.1, 2, 3)),
        ("t", lambda: bounds.belief_error(math.nan, 0.1, 2, 3)),
        ("n", lambda: bounds.belief_error_sum(-1, 0.1, 2, 3)),
        ("n", lambda: bounds.belief_error_sum(2.5, 0.1, 2, 3)),
        ("risk", lambda: bounds.belief_error(3, 0.0, 2, 3)),
        ("rounds", lambda: bounds.General(**GENERAL).compute_bonus([0, 1])),
        ("rounds", lambda: bounds.Simplified(**SIMPLIFIED).compute_bonus([1.0])),
        ("v_eta", lambda: bounds.Simplified(**SIMPLIFIED | {"v_eta": -1.0})),
        ("threshold", lambda: bounds.General(**GENERAL).bound_regret(0)),
        ("threshold", lambda: bounds.Simplified(**SIMPLIFIED).bound_regret(9, math.inf)),
        ("ridge", lambda: bounds.General(**GENERAL | {"ridge": 0.5}).bound_regret(3)),
        ("ridge", lambda: bounds.Simplified(**SIMPLIFIED | {"ridge": 0.5}).bound_regret(9, 3)),
        ("horizon", lambda: bounds.general_settings(0)),
        ("horizon", lambda: bounds.simplified_settings(0)),
        ("c0", lambda: bounds.compute_thresholds(FRIENDLY, c0=0.0)),
        ("transition", lambda: bounds.compute_thresholds(make_hmm([[1.0]], [[0.5, 0.5]]))),
        ("transition", lambda: bounds.compute_thresholds(make_hmm([[0.5, 0.5], [0.5, 0.5]], SKEWED_E))),
        ("transition", lambda: bounds.compute_thresholds(make_hmm([[1.0, 0.0], [0.2, 0.8]], SKEWED_E))),
        ("emission", lambda: bounds.compute_thresholds(make_hmm(SKEWED_M, [[0.5, 0.5], [0.5, 0.5]]))),
        ("emission", lambda: bounds.compute_thresholds(make_hmm(SKEWED_M, [[1.0, 0.0], [0.5, 0.5]]))),
    ],
)
def test_bad_arguments_name_the_field(field, call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert [problem.field for problem in caught.value.problems] == [field]
