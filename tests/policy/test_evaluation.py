"""Off-policy estimates and lift: by hand, beside obp's and scipy's, and refused where the log cannot tell."""

import json

import numpy as np
import pytest

from policy.evaluation import LiftSums, OffPolicySums, Rewarded
from policy.lift import ALONE, LEAST, Compared
from tests.policy.make_obp import PATH, log_of

# Four decisions between two actions; the second is what the target always takes.
TAKEN = [0, 1, 0, 1]
REWARDS = [1.0, 0.0, 2.0, 4.0]
LAW = [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75], [0.8, 0.2]]
PREDICTIONS = [[9.0, 1.0], [8.0, 1.0], [7.0, 2.0], [6.0, 3.0]]
COPIES = 15


def rewarded(copies=COPIES, shift=0.0, clusters=None, **changes):
    """The four decisions, so many times over."""
    columns = {
        "rewards": np.array(REWARDS) + shift,
        "taken": np.array(TAKEN),
        "propensity": np.array(LAW)[np.arange(4), TAKEN],
        "law": np.array(LAW),
        "predictions": np.array(PREDICTIONS) + shift,
        "clusters": np.full(4, ALONE),
    } | changes
    rows = Rewarded(**{name: np.concatenate([column] * copies) for name, column in columns.items()})
    return rows if clusters is None else rows._replace(clusters=np.array(clusters))


def always(action, rows):
    target = np.zeros(rows.law.shape)
    target[:, action] = 1.0
    return target


def evaluated(rows, action=1):
    sums = OffPolicySums()
    sums.add(rows, always(action, rows))
    return sums.result()


def assert_estimate(estimate, value, error, quantile=2.000995):  # Student's, of 59 degrees of freedom
    assert estimate.value == pytest.approx(value, rel=1e-12)
    assert estimate.standard_error == pytest.approx(error, rel=1e-9)
    assert estimate.low == pytest.approx(value - quantile * error, rel=1e-6)
    assert estimate.high == pytest.approx(value + quantile * error, rel=1e-6)


def test_by_hand():
    """w = 0, 2, 0, 5; w r = 0, 0, 0, 20; DR's terms are 1, 1 + 2(0 - 1), 2, 3 + 5(4 - 3)."""
    found = evaluated(rewarded())
    n = 4 * COPIES
    assert found.refusal is None
    assert found.decisions == n
    expected = n**2 / (COPIES * sum(1 / law for _, law in LAW))  # fewer than the draws, (Σ w)² / Σ w², make believe
    assert found.effective_sample_size == pytest.approx(expected)
    assert expected < (7 * COPIES) ** 2 / (29 * COPIES)
    assert_estimate(found.ips, 5.0, np.sqrt(COPIES * (3 * 25 + 225) / (n - 1) / n))
    assert_estimate(found.dr, 2.5, np.sqrt(COPIES * (1.5**2 + 3.5**2 + 0.5**2 + 5.5**2) / (n - 1) / n))
    # The influences w (r - 20/7) are 0, -40/7, 0, 40/7.
    assert_estimate(found.snips, 20 / 7, np.sqrt(2 * COPIES) * 40 / 7 / (7 * COPIES) * np.sqrt(n / (n - 1)))


def test_decisions_of_one_subject_are_one_observation():
    """Three copies of a row are one subject's: twenty clusters, each three times the deviation of its row."""
    found = evaluated(rewarded(clusters=[row + 4 * (copy // 3) for copy in range(COPIES) for row in range(4)]))
    n, often, quantile = 4 * COPIES, 3 * np.sqrt(COPIES / 3 * 20 / 19), 2.093024
    assert_estimate(found.ips, 5.0, often * np.sqrt(300) / n, quantile)
    assert_estimate(found.snips, 20 / 7, often * np.sqrt(2) * 40 / 7 / (7 * COPIES), quantile)
    assert_estimate(found.dr, 2.5, often * np.sqrt(45) / n, quantile)
    # Subjects of one decision each are no different from no subjects, and the two can be mixed.
    alone = evaluated(rewarded())
    for clusters in (range(n), [*range(n // 2), *[ALONE] * (n - n // 2)]):
        each = evaluated(rewarded(clusters=list(clusters)))
        for name in ("ips", "snips", "dr"):
            np.testing.assert_allclose(getattr(each, name), getattr(alone, name), rtol=1e-9)


def test_pages_and_a_shift_of_all_rewards_change_nothing():
    whole, sums = evaluated(rewarded()), OffPolicySums()
    for part in np.array_split(np.arange(4 * COPIES), 7):
        rows = rewarded().take(np.isin(np.arange(4 * COPIES), part))
        sums.add(rows, always(1, rows))
    np.testing.assert_allclose(sums.result().snips, whole.snips, rtol=1e-12)
    np.testing.assert_allclose(sums.result().dr, whole.dr, rtol=1e-12)
    far = evaluated(rewarded(shift=1e9))
    for name in ("snips", "dr"):
        assert getattr(far, name).value == pytest.approx(getattr(whole, name).value + 1e9, rel=1e-15)
        assert getattr(far, name).standard_error == pytest.approx(getattr(whole, name).standard_error, rel=1e-5)
    assert far.ips.value == pytest.approx((2 * 1e9 + 5 * (1e9 + 4)) / 4, rel=1e-12)


def test_obp_finds_the_same():
    """obp_estimates.json is written by make_obp.py, with obp itself."""
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    assert len(stored["logs"]) == 4
    for log in stored["logs"]:
        rewards, actions, logging, target, predictions = log_of(log["seed"], log["rounds"], log["arms"])
        assert rewards.sum() == pytest.approx(log["reward_sum"], rel=1e-12)
        propensity = logging[np.arange(rewards.size), actions]
        sums = OffPolicySums()
        sums.add(Rewarded(rewards, actions, propensity, logging, predictions, np.full(rewards.size, ALONE)), target)
        found = sums.result()
        for name in ("ips", "snips", "dr"):
            assert getattr(found, name).value == pytest.approx(log[name], rel=1e-11)
        for name in ("ips", "dr"):
            assert getattr(found, name).standard_error == pytest.approx(log[f"{name}_error"], rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        (rewarded().take(np.zeros(4 * COPIES, bool)), "no_rewards", "No decision"),
        (rewarded(law=np.array([*LAW[:3], [1.0, np.nan]]), taken=np.array([0, 1, 0, 0])), "not_eligible", "15 of 60"),
        (rewarded(law=np.array([[1.0, 0.0], *LAW[1:]])), "no_overlap", "15 of 60"),
        (rewarded(11), "too_few", "17.0"),
        (rewarded(clusters=np.arange(4 * COPIES) % 7), "too_few", "7 subjects"),
        (rewarded(taken=np.zeros(4, int)), "too_few", "0.0"),
    ],
)
def test_refused_where_the_log_cannot_tell(rows, code, told):
    found = evaluated(rows)
    assert (found.ips, found.snips, found.dr) == (None, None, None)
    assert found.refusal.code == code
    assert told in found.refusal.reason
    assert found.refusal.remedy
    assert found.decisions == rows.rewards.size


def test_an_action_that_the_target_never_takes_needs_no_overlap():
    rows = rewarded(law=np.array([[0.0, 1.0]] * 4), taken=np.ones(4, int), propensity=np.ones(4))
    found = evaluated(rows)
    assert found.refusal is None
    assert found.ips.value == pytest.approx(np.mean(REWARDS))


# --- lift ------------------------------------------------------------------------------------------------------------


def lifted(decided, control, share=0.25, clusters=None):
    rewards = np.array([*decided, *control], float)
    controlled = np.arange(rewards.size) >= len(decided)
    clusters = np.full(rewards.size, ALONE) if clusters is None else np.array(clusters)
    sums = LiftSums()
    for part in np.array_split(np.arange(rewards.size), 3):
        sums.add(Compared(rewards[part], controlled[part], np.full(part.size, share), clusters[part]))
    return sums.result()


def test_the_lift_is_welchs():
    from scipy.stats import ttest_ind

    generator = np.random.default_rng(5)
    decided, control = generator.normal(7.0, 2.0, 90), generator.normal(6.0, 1.0, 31)
    found, welch = lifted(decided, control), ttest_ind(decided, control, equal_var=False)
    assert found.decided == (90, pytest.approx(decided.mean()))
    assert found.control == (31, pytest.approx(control.mean()))
    assert found.difference.value == pytest.approx(decided.mean() - control.mean())
    assert found.difference.value / found.difference.standard_error == pytest.approx(welch.statistic)
    interval = welch.confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))


def test_the_relative_lift_is_fiellers():
    """Its ends are the ratios that a test of decided - ratio · control = 0 just does not refuse."""
    generator = np.random.default_rng(6)
    decided, control = generator.normal(3.0, 2.0, 80), generator.normal(2.0, 2.0, 40)
    found = lifted(decided, control)
    assert found.relative.value == pytest.approx(decided.mean() / control.mean() - 1.0)
    quantile = (found.difference.high - found.difference.value) / found.difference.standard_error
    for end in (found.relative.low, found.relative.high):
        ratio = 1.0 + end
        error = np.sqrt(decided.var(ddof=1) / 80 + ratio**2 * control.var(ddof=1) / 40)
        assert abs(decided.mean() - ratio * control.mean()) == pytest.approx(quantile * error)
    assert found.relative.low < found.relative.value < found.relative.high
    same = lifted(np.full(40, 2.0), np.full(40, 1.0))  # rewards that are all the same
    assert same.difference == same.relative == (1.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("decided", "control", "clusters", "code", "told"),
    [
        (0, 0, None, "no_control", "control was on"),
        (100, 0, None, "too_few", "control's decisions 0"),
        (100, LEAST - 1, None, "too_few", "19 subjects"),
        (LEAST - 1, 100, None, "too_few", "model's decisions 19"),
        (30, 30, [0] * 30 + list(range(30)), "too_few", "from 1 subjects"),
    ],
)
def test_no_lift_without_a_control_that_is_large_enough(decided, control, clusters, code, told):
    found = lifted(np.ones(decided), np.ones(control), clusters=clusters)
    assert (found.difference, found.relative) == (None, None)
    assert found.refusal.code == code
    assert told in found.refusal.reason


@pytest.mark.parametrize("level", [-3.0, 0.0, 0.2])
def test_no_relative_lift_over_a_control_that_earns_about_nothing(level):
    control = level + np.resize([-1.0, 1.0], 50)
    found = lifted(np.resize([0.0, 1.0], 50), control)
    assert found.relative is None
    assert found.relative_refusal.code == "control_near_zero"
    assert found.difference is not None
