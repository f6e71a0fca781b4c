"""What another policy would have earned, and the lift over control, from a log with its propensities.

Arrays in, numbers out; T decisions, K actions. The law of a decision (R12) was fixed by the past alone, so with
w = target / logging probability of the action taken

    IPS    mean of w r
    SNIPS  Σ w r / Σ w
    DR     mean of Σ_a target(a) r̂(a) + w (r - r̂(action taken))

are sums of martingale differences around the target's value, and adaptivity does no harm; to DR neither, because its
r̂ are the estimates stored with each decision, made before its reward was known. Decisions of one subject share a
control assignment (R13) and a customer's habits: they are one cluster, and every variance is cluster-robust.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policy.arrays import BoolArray, FloatArray, IndexArray
from policy.lift import ALONE, LEAST, NORMAL, Compared, cumulative_lift, in_units

GROUPS = 16_384  # groups of subjects: memory stays bounded, and merging independent clusters does no harm
NOTHING = Compared(np.empty(0), np.empty(0, np.bool_), np.empty(0), np.empty(0, np.int64))


# --- numbers and refusals -------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A number, its standard error, and its 95 % confidence interval."""

    value: float
    standard_error: float
    low: float
    high: float


class Refusal(NamedTuple):
    """Why there is no number: a code for programs; the reason and a remedy for people."""

    code: str
    reason: str
    remedy: str


class Sums:
    """Totals of columns, and of their products cluster by cluster: what ratios of totals and their variances need."""

    def __init__(self, columns: int) -> None:
        self.totals = np.zeros(columns)
        self._alone, self._products = 0, np.zeros((columns, columns))
        self._groups = np.zeros((0, columns))
        self._present = np.zeros(0, np.bool_)

    def add(self, columns: FloatArray, clusters: IndexArray) -> None:
        """Add rows (n × columns); the cluster of a row is a number below GROUPS, or ALONE."""
        self.totals += columns.sum(axis=0)
        together = clusters != ALONE
        own = columns[~together]
        self._alone += len(own)
        self._products += own.T @ own
        if together.any():
            if not self._present.size:
                self._groups, self._present = np.zeros((GROUPS, self.totals.size)), np.zeros(GROUPS, np.bool_)
            np.add.at(self._groups, clusters[together], columns[together])
            self._present[clusters[together]] = True

    @property
    def clusters(self) -> int:
        return self._alone + int(self._present.sum())

    def ratio(self, over: npt.ArrayLike, under: npt.ArrayLike) -> tuple[float, float]:
        """The ratio of two combinations of totals, and its variance by the delta method, clusters independent."""
        over, under = np.asarray(over, np.float64), np.asarray(under, np.float64)
        whole, clusters = float(under @ self.totals), self.clusters
        value = float(over @ self.totals) / whole
        influence = over - value * under  # each row's, but for 1/whole; their sum is 0
        squares = influence @ self._products @ influence + ((self._groups @ influence) ** 2).sum()
        return value, max(float(squares), 0.0) / whole**2 * clusters / max(clusters - 1, 1)


def _estimate(value: float, variance: float, quantile: float) -> Estimate:
    error = math.sqrt(variance)
    return Estimate(value, error, value - quantile * error, value + quantile * error)


# --- another policy -------------------------------------------------------------------------------------------------


class Rewarded(NamedTuple):
    """Decisions whose law and reward are known."""

    rewards: FloatArray  # T
    taken: IndexArray  # T
    propensity: FloatArray  # T
    law: FloatArray  # T×K, NaN where an action was not eligible
    predictions: FloatArray  # T×K: r̂, of the eligible actions
    clusters: IndexArray  # T

    def take(self, rows: BoolArray) -> "Rewarded":
        return Rewarded._make(column[rows] for column in self)


class OffPolicy(NamedTuple):
    """What a target policy would have earned per decision: three estimates, or why there are none."""

    decisions: int
    effective_sample_size: float
    ips: Estimate | None = None
    snips: Estimate | None = None
    dr: Estimate | None = None
    refusal: Refusal | None = None


class OffPolicySums:
    """Collects a target policy's estimates, a page of decisions at a time."""

    def __init__(self) -> None:
        self._sums = Sums(4)  # columns: 1, w, w r, DR's terms; rewards less their level
        self._level = 0.0  # a constant near the rewards: without it their variance would be lost to rounding
        self._squares = np.zeros(2)  # Σ w², and Σ E[w²]
        self.ineligible = self.unsupported = 0

    def add(self, rows: Rewarded, target: FloatArray) -> None:
        """Add decisions, with the target's probability of every action (T × K, rows sum to 1)."""
        if not rows.rewards.size:
            return
        if not self._sums.totals[0]:
            self._level = float(rows.rewards[0])
        rewards, predictions = rows.rewards - self._level, rows.predictions - self._level
        wanted, every = target > 0.0, np.arange(rewards.size)
        self.ineligible += int((wanted & np.isnan(rows.law)).any(axis=1).sum())
        self.unsupported += int((wanted & (rows.law == 0.0)).any(axis=1).sum())
        weights = target[every, rows.taken] / rows.propensity
        direct = np.where(wanted, target * predictions, 0.0).sum(axis=1)
        doubly = direct + weights * (rewards - predictions[every, rows.taken])
        columns = np.column_stack([np.ones_like(rewards), weights, weights * rewards, doubly])
        self._sums.add(columns, rows.clusters)
        # The weights drawn and their expectation: a rare action that was never drawn leaves no large weight.
        with np.errstate(divide="ignore", invalid="ignore"):
            self._squares += weights @ weights, np.where(wanted, target**2 / rows.law, 0.0).sum()

    def result(self) -> OffPolicy:
        decisions, weight = int(self._sums.totals[0]), float(self._sums.totals[1])
        drawn, expected = self._squares
        size = min(weight**2 / drawn, decisions**2 / expected) if drawn else 0.0
        if refusal := self._refusal(decisions, size):
            return OffPolicy(decisions, size, refusal=refusal)
        level, quantile = self._level, _student(self._sums.clusters - 1)

        def estimate(start: float, over: list[float], under: list[float]) -> Estimate:
            value, variance = self._sums.ratio(over, under)
            return _estimate(start + value, variance, quantile)

        ips = estimate(0.0, [0, level, 1, 0], [1, 0, 0, 0])
        snips, dr = estimate(level, [0, 0, 1, 0], [0, 1, 0, 0]), estimate(level, [0, 0, 0, 1], [1, 0, 0, 0])
        return OffPolicy(decisions, size, ips, snips, dr)

    def _refusal(self, decisions: int, size: float) -> Refusal | None:
        if not decisions:
            return Refusal(
                "no_rewards",
                "No decision here has both a known propensity and a reward.",
                "Wait for rewards, or choose a longer range.",
            )
        if self.ineligible:
            return Refusal(
                "not_eligible",
                f"In {self.ineligible} of {decisions} decisions the policy takes an action that was not eligible:"
                " excluded by the request, retired, or not added yet.",
                "Choose a range in which it was always eligible.",
            )
        if self.unsupported:
            return Refusal(
                "no_overlap",
                f"In {self.unsupported} of {decisions} decisions the policy takes an action that had no chance of being"
                " chosen, so the log does not show what it would have earned.",
                "Set `propensity_floor`, or a `control` of kind uniform, and evaluate the time since then.",
            )
        if self._sums.clusters < LEAST:
            return Refusal(
                "too_few",
                f"The {decisions} decisions come from {self._sums.clusters} subjects (a decision without a subject"
                f" counts as one); at least {LEAST} are needed.",
                "Wait for more subjects, and check that `subject` identifies the customer.",
            )
        if not size >= LEAST:
            return Refusal(
                "too_few",
                f"The policy's actions were taken too rarely: the effective sample size is {size:.1f} decisions, and at"
                f" least {LEAST} are needed.",
                "Wait for more decisions; a higher `propensity_floor` or a uniform `control` speeds this up.",
            )
        return None


# --- lift over control ----------------------------------------------------------------------------------------------


class Mean(NamedTuple):
    """The mean reward of a group; its value is None without any reward."""

    rewards: int
    value: float | None


class Lift(NamedTuple):
    """How much more the model's decisions earn than the control's: as a difference, and relative to the control."""

    decided: Mean
    control: Mean
    difference: Estimate | None = None
    relative: Estimate | None = None
    refusal: Refusal | None = None
    relative_refusal: Refusal | None = None


class LiftSums:
    """Collects the rewards of rounds after the warm start while control was on, a page at a time (policy/lift.py)."""

    def __init__(self) -> None:
        self._parts = [NOTHING]
        self.awaited = 0  # such rounds without a reward

    def add(self, rows: Compared) -> None:
        self._parts.append(rows)

    def result(self) -> Lift:
        """Welch's interval of the difference, with clusters for observations; Fieller's of the relative lift."""
        rows = Compared(*map(np.concatenate, zip(*self._parts, strict=True)))
        rewards, exponent = in_units(rows.rewards)
        groups = cumulative_lift(rows._replace(rewards=rewards), np.array([rewards.size]))[:2]
        counts, clusters = ([int(group[field][0]) for group in groups] for field in (0, 3))
        means = [
            Mean(count, math.ldexp(float(group.mean[0]), exponent) if count else None)
            for group, count in zip(groups, counts, strict=True)
        ]
        if refusal := _lift_refusal(counts, clusters, self.awaited):
            return Lift(means[0], means[1], refusal=refusal)
        (decided, decided_variance), (control, control_variance) = (
            (float(group.mean[0]), float(group.variance[0])) for group in groups
        )
        variance = decided_variance + control_variance
        spread = decided_variance**2 / (clusters[0] - 1) + control_variance**2 / (clusters[1] - 1)
        quantile = _student(variance**2 / spread) if spread > 0.0 else NORMAL  # Satterthwaite's degrees of freedom
        relative = _fieller(decided, decided_variance, control, control_variance, quantile)
        difference = (math.ldexp(number, exponent) for number in _estimate(decided - control, variance, quantile))
        lift = Lift(means[0], means[1], Estimate(*difference))
        if isinstance(relative, Refusal):
            return lift._replace(relative_refusal=relative)
        return lift._replace(relative=relative)


def _lift_refusal(counts: list[int], clusters: list[int], awaited: int) -> Refusal | None:
    if not any(counts) and awaited:
        return Refusal(
            "no_rewards",
            f"None of the {awaited} decisions after the warm start while control was on has a reward yet.",
            "Wait for rewards, or choose a longer range.",
        )
    if not any(counts):
        return Refusal(
            "no_control",
            "No decision after the warm start was made while control was on.",
            "Set `control`, and evaluate the time since then.",
        )
    for name, count, independent in zip(("model's", "control's"), counts, clusters, strict=True):
        if independent < LEAST:
            return Refusal(
                "too_few",
                f"Of the {name} decisions {count} have a reward, from {independent} subjects (a decision without a"
                f" subject counts as one); at least {LEAST} are needed.",
                "Wait for more rewards, or give the smaller group a larger share.",
            )
    return None


def _fieller(
    over: float, over_variance: float, under: float, under_variance: float, quantile: float
) -> Estimate | Refusal:
    """over / under - 1 of two independent means, with Fieller's interval; `standard_error` is the delta method's."""
    near_zero = Refusal(
        "control_near_zero",
        "The control's mean reward is not clearly above 0, so a relative lift has no meaning.",
        "Read the difference instead.",
    )
    if under <= 0.0:
        return near_zero
    doubt, ratio = quantile * math.sqrt(under_variance) / under, over / under
    doubt *= doubt  # products: powers raise an error where these are infinite
    if not doubt < 1.0:
        return near_zero
    half = quantile / under * math.sqrt(over_variance * (1.0 - doubt) + ratio * ratio * under_variance)
    error = math.sqrt(over_variance + ratio * ratio * under_variance) / under
    low, high = (ratio - half) / (1.0 - doubt), (ratio + half) / (1.0 - doubt)
    estimate = Estimate(ratio - 1.0, error, low - 1.0, high - 1.0)
    return estimate if all(map(math.isfinite, estimate)) else near_zero


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's law."""
    from scipy.special import stdtrit  # takes a third of a second to import: not at every start

    return float(stdtrit(freedom, 0.975))
