"""How uncertain the rewards of each action are: a noise for every action that is never believed to be 0.

Most marketing rewards are rare: an offer converts in 1 to 5 % of the rounds, and until then every reward is the same.
Two things follow. An action that has shown no variation is not known to have none, so each action's variance gets a
prior. And before any reward has varied nothing is known about the size of a conversion, so the warm start goes on in
ever fewer rounds (R8) until enough rewards differ from what their action usually earns.
"""

import numpy as np

from policy import joint, kernels
from policy.arrays import FloatArray, IntArray
from policy.defaults import ENOUGH_DEVIATIONS, PRIOR_DEVIATIONS, PRIOR_ROUNDS
from policy.joint import Design, Rounds
from policy.kept import DEVIATIONS, LARGEST, PLAYED, RESIDUALS
from policy.kernels import Statistics


def count_deviations(rounds: Rounds, actions: int) -> IntArray:
    """The number of rewards of each action (K) that differ from their median: conversions, if most are the same.

    Those of rounds that have left were counted when they left. A count and not a variance, because it needs no unit
    and one large reward must not hide the others.
    """
    known = ~np.isnan(rounds.rewards)
    rewards, played = rounds.rewards[known], rounds.actions[rounds.profiles[known]]
    deviations = np.zeros(actions, np.int64)
    for action in range(actions):
        own = rewards[played == action]
        if own.size:
            middle = (own.size - 1) // 2  # the lower of two: their mean may be a reward that nobody had
            deviations[action] = np.count_nonzero(own != np.partition(own, middle)[middle])
    if rounds.kept is not None:
        deviations += rounds.kept.actions[DEVIATIONS].astype(np.int64)
    return deviations


def get_action_noises(units: FloatArray, actions: int) -> FloatArray:
    """σ̂ of every action (K) from the units of the statistics; states of earlier versions have one for all."""
    return units[2:] if units.size == 2 + actions else np.full(actions, units[1])


def estimate_action_noises(
    rounds: Rounds,
    design: Design,
    statistics: Statistics,
    posterior: FloatArray,
    vertices: int,
    noise: float,
    span: float | None,
) -> FloatArray:
    """σ̂ of every action (K), from the residuals of its own rounds and a prior.

    The prior is worth PRIOR_ROUNDS rounds with the noise of all actions together, and PRIOR_DEVIATIONS residuals as
    large as the largest seen; `span` replaces the largest, if it is given. So for an action that has shown nothing
    else yet, the bonus falls like 1/n, as for a conversion rate of 0 in n rounds. `noise` is σ̂ of all actions
    together, after subtracting what the parameters explain by chance. posterior, vertices: as in `joint.sum_rounds`.
    """
    actions = len(design.features.actions)
    sums, played, largest = sum_residuals(rounds, design, statistics.theta, posterior, vertices)
    if rounds.kept is not None:
        sums, played = sums + rounds.kept.actions[RESIDUALS], played + rounds.kept.actions[PLAYED]
        largest = max(largest, float(rounds.kept.rewards[LARGEST]))
    total = float(sums.sum())
    explained = rounds.known * noise**2 / total if total > 0.0 else 1.0  # corrects for the parameters, as `noise` is
    unsure = count_deviations(rounds, actions) < ENOUGH_DEVIATIONS
    prior = PRIOR_ROUNDS * noise**2 + unsure * PRIOR_DEVIATIONS * (largest if span is None else span**2)
    noises: FloatArray = np.sqrt((explained * sums + prior) / (played + PRIOR_ROUNDS))
    return noises


def sum_residuals(
    rounds: Rounds, design: Design, theta: FloatArray, posterior: FloatArray, vertices: int
) -> tuple[FloatArray, FloatArray, float]:
    """Of each action (K) the sum of the squared residuals and the number of rewards; the largest squared residual."""
    profiles, actions = rounds.actions.size, len(design.features.actions)
    squares, counts = np.zeros(profiles), np.zeros(profiles, np.int64)
    largest = kernels.profile_residuals(
        rounds.profiles, rounds.rewards, rounds.shares, posterior, joint.predict(design, theta), vertices,
        squares, counts,
    )  # fmt: skip
    by_action: IntArray = rounds.actions.astype(np.int64)
    sums, played = (np.bincount(by_action, each, actions).astype(np.float64) for each in (squares, counts))
    return sums, played, float(largest)
