"""Random numbers from a counter-based hash (R11), and the draw of an action with its propensity (R12, R13)."""

from typing import NamedTuple

import numpy as np

from policy.kernels.compiling import jit

# Modes of a decision, as codes.
WARM_START, OPTIMISTIC, CONTROL = 0, 1, 2
# Purposes of the hash (R11): each random use has its own stream.
WARM_START_DRAW, CONTROL_ROUND, CONTROL_SUBJECT, CONTROL_DRAW, ACTION_DRAW, ROTATION_DRAW, EM_DRAW = range(1, 8)


class Chance(NamedTuple):
    """What the random part of a decision depends on besides the scores (R11–R13)."""

    seed: int
    control_share: float
    control_baseline: bool  # the control plays the baseline; otherwise it draws uniformly
    floor: float  # the least probability of an eligible action


@jit
def _mix(z):  # type: ignore[no-untyped-def]
    """The finaliser of the splitmix64 generator: a bijection of 64-bit words with full avalanche."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def hash_counter(seed, purpose, counter):  # type: ignore[no-untyped-def]
    """64 random bits, a pure function of (seed, purpose, counter) (R11)."""
    step = np.uint64(0x9E3779B97F4A7C15)
    z = _mix(np.uint64(seed) + step)
    z = _mix((z ^ np.uint64(purpose)) + step)
    return _mix((z ^ np.uint64(counter)) + step)


@jit
def uniform(seed, purpose, counter):  # type: ignore[no-untyped-def]
    """A number in [0, 1) from the top 53 bits of the hash."""
    return np.float64(hash_counter(seed, purpose, counter) >> np.uint64(11)) * 2.0**-53


@jit
def draw_index(law, number):  # type: ignore[no-untyped-def]
    """The index that a uniform number falls on, given the probabilities `law` (n).

    The last index with positive probability takes what rounding leaves over.
    """
    chosen, total = 0, 0.0
    for i in range(law.shape[0]):
        if law[i] > 0.0 and number >= total:
            chosen = i
        total += law[i]
    return chosen


@jit
def choose_action(chance, t, warm, scores, eligible, i, subject, has_subject, law):  # type: ignore[no-untyped-def]
    """Draw the action of round t; returns it with its marginal propensity (R12) and mode.

    scores: K. eligible: rows × K, of which row i applies. subject: hash of the customer, used if `has_subject`.
    law: K, room for the policy's own probabilities. warm: is this round part of the warm start (R8)?
    """
    arms = eligible.shape[1]
    count, baseline = 0, -1
    best, ties = -np.inf, 0
    for a in range(arms):
        if eligible[i, a]:
            count += 1
            if baseline < 0:
                baseline = a
            if scores[a] > best:
                best, ties = scores[a], 1
            elif scores[a] == best:
                ties += 1
    for a in range(arms):
        law[a] = 0.0
        if eligible[i, a]:
            greedy = 1.0 / ties if scores[a] == best else 0.0
            law[a] = 1.0 / count if warm else chance.floor + (1.0 - count * chance.floor) * greedy
    mode, purpose = (WARM_START, WARM_START_DRAW) if warm else (OPTIMISTIC, ACTION_DRAW)
    if not warm and chance.control_share > 0.0:
        if has_subject:
            assigned = uniform(chance.seed, CONTROL_SUBJECT, subject)
        else:
            assigned = uniform(chance.seed, CONTROL_ROUND, t)
        if assigned < chance.control_share:
            mode, purpose = CONTROL, CONTROL_DRAW
    draw = uniform(chance.seed, purpose, t)
    chosen, total = -1, 0.0
    for a in range(arms):
        if not eligible[i, a]:
            continue
        mine = _control_probability(chance, a, baseline, count) if mode == CONTROL else law[a]
        if mine > 0.0:
            # The last action with positive probability takes what rounding leaves over.
            if chosen < 0 or draw >= total:
                chosen = a
            total += mine
    propensity = law[chosen]
    if not warm and chance.control_share > 0.0:
        share = chance.control_share
        propensity = share * _control_probability(chance, chosen, baseline, count) + (1.0 - share) * propensity
    return chosen, propensity, mode


@jit
def _control_probability(chance, action, baseline, count):  # type: ignore[no-untyped-def]
    """The control's probability of an eligible action.

    `baseline` is the first of the `count` eligible actions: it stands in where the campaign's baseline is excluded.
    """
    if chance.control_baseline:
        return 1.0 if action == baseline else 0.0
    return 1.0 / count
