"""How much of each round is in the model of a campaign with a default reward.

A reward that is worth reporting may take days, and the default is known only when the wait is over. If a round entered
the model with its reward while the rounds without one are still left out, the model would average over the rounds that
were rewarded. So every decided round enters, with the default, and with a weight: the probability F(age) that a reward
which will come has come by now (delays.py). A reward r that comes counts in full. With z the features of a round,

    G = λI + Σ F(age) z zᵀ,    m = Σ [F(age) · default + (r - default)] z,    E[m] = Σ F(age) E[r] z,

so that θ̂ = G⁻¹ m is as unbiased as if every round had been waited for. Seen as a regression, a round is a row of weight
w and target default + (r - default) / w, whose noise has the variance σ² / w.

Weights rise in slices of equal size, each at an age of its own. Times of decisions never fall from one round to the
next, so the rounds that have reached an age are always the first ones: it takes one number for each slice to know what
is in the statistics, and each slice of a round is folded once.
"""

from typing import NamedTuple

import numpy as np

from policy import hmm
from policy.arrays import FloatArray, IntArray
from policy.config.rules import Rewards
from policy.defaults import LAW_GROWTH, LAW_SAMPLE
from policy.delays import SLICES, estimate_law, find_ages
from policy.history import LONG_AGO, History

SECOND = 1_000_000  # in the unit of times


class Exposure(NamedTuple):
    """The clock of a campaign with a default reward, and what of its rounds is in the statistics."""

    now: int  # microseconds: when the round after the last boundary was decided
    ages: IntArray  # of a round, in microseconds, at which each of its slices enters
    reached: IntArray  # how many rounds have each slice in the statistics: always the first ones
    learned: int  # rewards that had arrived when the law of delays was estimated last


class Waiting(NamedTuple):
    """What is in a model of a campaign with a default reward."""

    default: float
    reached: IntArray  # the rounds that have each slice in it


class Due(NamedTuple):
    """What is to be folded: rows in round order, the slices of each, and by how much their rewards have changed."""

    rows: IntArray
    slices: IntArray
    changes: FloatArray  # from the default at first


def start_exposure(rewards: Rewards) -> Exposure | None:
    """The exposure before round 1, or before any round is in the model; None if rounds enter with their reward."""
    if rewards.while_waiting not in ("hold", "provisional"):
        return None
    wait = int((rewards.wait_seconds or 0.0) * SECOND)
    ages = np.full(SLICES, wait)
    if rewards.while_waiting == "provisional":
        ages = find_ages(estimate_law(np.empty(0), np.empty(0), float(wait)), float(wait))
    return Exposure(LONG_AGO, ages, np.zeros(SLICES, np.int64), 0)


def pass_time(exposure: Exposure, rewards: Rewards, history: History, arrived: int, now: int) -> Exposure:
    """The exposure at a later time, with the law of delays estimated anew if enough rewards have come."""
    exposure = exposure._replace(now=max(exposure.now, now))
    if rewards.while_waiting != "provisional" or arrived < LAW_GROWTH * exposure.learned or not arrived:
        return exposure
    wait = float((rewards.wait_seconds or 0.0) * SECOND)
    delays, limits = _sample_delays(history, arrived, rewards.default or 0.0, exposure.now, wait)
    return exposure._replace(ages=find_ages(estimate_law(delays, limits, wait), wait), learned=arrived)


def _sample_delays(
    history: History, arrived: int, default: float, now: int, wait: float
) -> tuple[FloatArray, FloatArray]:
    """Delays of rewards unlike the default among at most LAW_SAMPLE rewards, and the ages of their rounds."""
    order = history.get_arrival_order(arrived)
    rows = np.unique(order[:: 1 + order.size // LAW_SAMPLE])
    rows = rows[rows >= 0]
    rewards, came, times = history.rewards[rows], history.came[rows], history.times[rows]
    rows = rows[~np.isnan(rewards) & (rewards != default) & (came > LONG_AGO) & (times > LONG_AGO)]
    delays = (history.came[rows] - history.times[rows]).astype(np.float64)
    ages = np.maximum((now - history.times[rows]).astype(np.float64), delays)
    return delays[delays <= wait], ages[delays <= wait]


def find_reached(exposure: Exposure, history: History, rounds: int) -> IntArray:
    """How many of the first rounds have reached the age of each slice at the exposure's time."""
    limits = np.maximum(exposure.now - exposure.ages, LONG_AGO)
    times = history.times[: rounds - history.first]
    reached: IntArray = history.first + np.searchsorted(times, limits, side="right")
    return reached


def list_due(history: History, before: IntArray, arrived: int, after: Waiting) -> Due:
    """What is to be folded after the rounds that had reached their slices `before`, and the first `arrived` rewards.

    The history ends with the last reward that counts. Rounds without a context teach nothing, nor do excluded ones.
    """
    stops = after.reached - history.first
    starts = np.maximum(before - history.first, 0)  # a round that has left is in with all its slices
    entered = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])
    first = starts[0]
    came = history.get_arrivals(arrived, history.arrived)
    revised, differences = history.get_differences(arrived, history.arrived)
    came, differences, revised = came[came < first], differences[revised < first], revised[revised < first]
    new = np.arange(first, stops[0])
    rows = np.unique(np.concatenate((entered, came, revised, new)))
    rows = rows[(history.contexts.symbols[rows] != hmm.MISSING) & ~np.isin(rows, history.excluded)]
    slices = np.bincount(np.searchsorted(rows, entered[np.isin(entered, rows)]), minlength=rows.size)
    changes = np.where(np.isin(rows, came) | (rows >= first), history.rewards[rows] - after.default, 0.0)
    changes[np.isin(rows, revised)] = differences
    return Due(rows, slices, np.nan_to_num(changes, nan=0.0))


class Weighed(NamedTuple):
    """The rounds in a model as rows of a regression."""

    rows: IntArray  # in round order
    slices: IntArray  # of each that are in
    changes: FloatArray  # of its reward from the default

    @property
    def shares(self) -> FloatArray:
        """Their weights."""
        return self.slices / SLICES

    @property
    def targets(self) -> FloatArray:
        """Their rewards, less the default."""
        return self.changes / self.shares


def weigh_rounds(history: History, rounds: int, waiting: Waiting) -> Weighed:
    """The first rounds of a history that are in a model, with all rewards that the history has."""
    slices = _count_slices(history, rounds - history.first, waiting.reached - history.first)
    rows = np.flatnonzero(slices)
    return Weighed(rows, slices[rows], np.nan_to_num(history.rewards[rows] - waiting.default, nan=0.0))


def _count_slices(history: History, rows: int, reached: IntArray) -> IntArray:
    """How many slices of each of the first rows are in a model; 0 of those that teach nothing."""
    slices = np.zeros(rows, np.int64)
    for reach in reached:
        slices[: max(reach, 0)] += 1
    slices[history.contexts.symbols[:rows] == hmm.MISSING] = 0
    slices[history.excluded[history.excluded < rows]] = 0
    return slices
