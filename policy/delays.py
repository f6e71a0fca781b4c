"""The law of delays: how long rewards take, estimated from those that have come so far.

A delay is only seen if it is shorter than its round is old: the sample is truncated on the right. The product-limit
estimate for such samples (Lynden-Bell's, that of Kaplan and Meier with time reversed) is, with N(v) the delays of at
most v that belong to rounds at least v old, and n(v) those of exactly v,

    F(u) = Π_{v > u} (1 - n(v) / N(v)).

It cannot know what share of the rewards takes longer than the oldest round is old. There a prior speaks, which spreads
a few delays over the whole wait; they are not truncated.
"""

from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray, IntArray
from policy.defaults import PRIOR_DELAYS, PRIOR_POINTS

SLICES = 8  # in which a round enters the model


class DelayLaw(NamedTuple):
    """F, the share of the rewards that have come by an age, at the ages where it rises; 0 before the first."""

    points: FloatArray  # ascending
    reached: FloatArray  # F there; 1 at the last


def estimate_law(delays: FloatArray, limits: FloatArray, wait: float) -> DelayLaw:
    """The law of delays from n of them; `limits`: how old each of their rounds is, which no delay exceeds."""
    grid = wait * (np.arange(PRIOR_POINTS) + 1.0) / PRIOR_POINTS
    points = np.unique(np.concatenate((delays, grid)))
    place = np.searchsorted(points, delays)
    each = PRIOR_DELAYS / PRIOR_POINTS
    here = np.bincount(place, minlength=points.size) + each * np.isin(points, grid)
    seen = np.cumsum(here)
    seen -= np.searchsorted(np.sort(limits), points)  # rounds that are not old enough to show such a delay
    stays = 1.0 - here / seen
    stays[0] = 0.0  # nothing comes sooner
    after = np.cumprod(np.append(stays, 1.0)[:0:-1])[::-1]
    return DelayLaw(points, after)


def find_ages(law: DelayLaw, wait: float) -> IntArray:
    """The age at which each slice of a round enters, so that its weight is F rounded to slices.

    The first enters at once, so that the weight is never 0, and the last no later than the wait.
    """
    shares = (np.arange(SLICES) + 0.5) / SLICES
    ages = law.points[np.minimum(np.searchsorted(law.reached, shares), law.points.size - 1)]
    ages[0] = 0.0
    rounded: IntArray = np.minimum(np.ceil(ages), wait).astype(np.int64)
    return rounded
