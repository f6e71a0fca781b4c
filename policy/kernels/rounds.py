"""Rounds: the scores of the actions, the bonus, and whole rounds decided or played in compiled code."""

from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray
from policy.kernels.chance import Chance, choose_action
from policy.kernels.compiling import inline, jit
from policy.kernels.features import Inputs, Plan, active_columns
from policy.kernels.hmm import belief_path
from policy.kernels.linucb import FOLDED, combine_rows, make_scratch, norm_with, reset_statistics, update_rows

# Forms of the bonus. COMPLEX, SIMPLIFIED and TABLED scale ‖G⁻¹z‖₂, the others ‖z‖_{G⁻¹}.
COMPLEX, SIMPLIFIED, PLAIN, ELLIPTICAL, TABLED, TABLED_ELLIPTICAL, NOISE = range(7)


class Exploration(NamedTuple):
    """The confidence bonus ε_{t,a}."""

    form: int  # one of the constants above
    scale: float  # C
    stage_length: int  # ℓ
    table: FloatArray  # TABLED forms: rounds × (additive, factor); NOISE: 1 × K, σ̂_a of each action; else not read


@inline
def _is_warm(t, warm_rounds, search_rounds, stage_length, folded):  # type: ignore[no-untyped-def]
    """R8: at least `warm_rounds` rounds, until half as many rewards have been folded, and then the rounds of a search.

    Of t rounds about 2√(search_rounds · t) belong to the search. Which ones depends on t alone: no draw, and so no
    mixture of laws in the propensity.
    """
    if t <= max(warm_rounds, stage_length + 1) or 2 * folded < warm_rounds:
        return True
    return np.floor(2.0 * np.sqrt(search_rounds * t)) > np.floor(2.0 * np.sqrt(search_rounds * (t - 1.0)))


@inline
def _is_elliptical(form):  # type: ignore[no-untyped-def]
    """Does the bonus scale ‖z‖_{G⁻¹} rather than ‖G⁻¹z‖₂?"""
    return form in (PLAIN, ELLIPTICAL, TABLED_ELLIPTICAL, NOISE)


@inline
def _bonus(exploration, t, i, action, norm):  # type: ignore[no-untyped-def]
    """ε_{t,a}, with s_t = ⌈t/ℓ⌉ (R1); i is the round's row of a theorem's table."""
    form, scale, length = exploration.form, exploration.scale, exploration.stage_length
    stage = (t + length - 1) // length
    if form == COMPLEX:  # eq. simplified-boxa
        return scale * stage * np.sqrt(np.float64(length)) * norm
    if form == SIMPLIFIED:
        return scale * np.sqrt(np.float64(stage * length)) * norm
    if form == PLAIN:  # Box D
        return scale * np.log(np.float64(t)) * norm
    if form == ELLIPTICAL:
        return scale * norm
    if form == NOISE:
        return scale * exploration.table[0, action] * norm
    return exploration.table[i, 0] + exploration.table[i, 1] * norm


@inline
def _add_quadratic(total, inverse, columns, weights, n, start, stop):  # type: ignore[no-untyped-def]
    """zᵀ G⁻¹ z of the first n columns and of columns start … stop-1 together, given that of the first n alone."""
    for i in range(start, stop):
        line, cross, own = columns[i], 0.0, 0.0
        for j in range(n):
            cross += weights[j] * inverse[line, columns[j]]
        for j in range(start, stop):
            own += weights[j] * inverse[line, columns[j]]
        total += weights[i] * (2.0 * cross + own)
    return total


@inline
def _score_actions(plan, inverse, theta, elliptical, inputs, row, eligible, i, estimates, norms, scratch):  # type: ignore[no-untyped-def]
    """The estimate θ̂ᵀz and the norm (‖z‖_{G⁻¹} if elliptical, else ‖G⁻¹z‖₂) of every action in eligible[i].

    inverse: D × D. theta: D. eligible: rows × K. estimates, norms: K, NaN where an action is not eligible.
    """
    columns, weights, vectors = scratch.columns, scratch.weights, scratch.vectors
    n = active_columns(plan, inputs, row, -1, columns, weights, 0)
    common_estimate, common_quadratic = 0.0, 0.0
    for j in range(n):
        common_estimate += weights[j] * theta[columns[j]]
    if elliptical:
        common_quadratic = _add_quadratic(0.0, inverse, columns, weights, 0, 0, n)
    else:
        combine_rows(inverse, columns, weights, n, vectors, 0)
    for action in range(eligible.shape[1]):
        if not eligible[i, action]:
            estimates[action] = np.nan
            norms[action] = np.nan
            continue
        m = active_columns(plan, inputs, row, action, columns, weights, n)
        estimate = common_estimate
        for j in range(n, m):
            estimate += weights[j] * theta[columns[j]]
        estimates[action] = estimate
        if elliptical:
            quadratic = _add_quadratic(common_quadratic, inverse, columns, weights, n, n, m)
            norms[action] = np.sqrt(max(quadratic, 0.0))
        else:
            norms[action] = norm_with(inverse, columns, weights, n, m, vectors)


@inline
def _record(codes, numbers, gaps, start, levels, values, symbols, steps):  # type: ignore[no-untyped-def]
    """Copy encoded contexts into the history's columns from row `start` on; shapes as in `decide_rounds`."""
    variables = levels.shape[1]
    for i in range(codes.shape[0]):
        for v in range(variables):
            levels[start + i, v] = codes[i, v]
        for v in range(numbers.shape[1]):
            values[start + i, v] = numbers[i, v]
        symbols[start + i] = codes[i, variables]
        steps[start + i] = gaps[i] if gaps.shape[0] else (1 if start + i else 0)  # R5: round 1 takes no step


@jit
def decide_rounds(  # type: ignore[no-untyped-def]
    terms, positions, sizes, seed, control_share, control_baseline, floor, warm_rounds, search_rounds,
    form, scale, stage_length, table, inverse, theta, centre, folded, transition, emission, belief, gaps,
    codes, numbers, eligible, subjects, first_round,
    start, levels, values, symbols, steps, actions, beliefs, answers,
):  # fmt: skip
    """Decide n consecutive rounds that share one reward model and one HMM, and record them from row `start` on.

    The fields of Plan, Chance and Exploration come one by one, because numba unpacks named tuples of arrays four times
    slower and this is the hot path.

    Model: inverse D × D, theta D, centre of the rewards, `folded` rewards; transition H × H and emission H × X (0 × 0
    before the first estimate), belief H.
    Requests: gaps n (steps of the chain before each round; empty without a clock), codes n × (V + 1) (levels, then the
    symbol), numbers n × numeric variables, eligible n × K, subjects n × 2 (hash, 1 if present).
    Recorded, T rows each: levels T × V, values T × numeric variables, symbols T, steps T, actions T, beliefs T × H.
    Answers: n × (3 + 2K + H): action, mode, propensity, K estimates, K bonuses, H beliefs.
    """
    plan = Plan(terms, positions, sizes, inverse)  # only the size of `null` matters here
    chance = Chance(seed, control_share, control_baseline, floor)
    exploration = Exploration(form, scale, stage_length, table)
    stop, arms = start + codes.shape[0], eligible.shape[1]
    _record(codes, numbers, gaps, start, levels, values, symbols, steps)
    belief_path(transition, emission, belief, steps[start:stop], symbols[start:stop], beliefs[start:stop])
    inputs, scratch = Inputs(levels, values, beliefs), make_scratch(plan)
    estimates, bonuses, scores, law = np.empty(arms), np.empty(arms), np.empty(arms), np.empty(arms)
    elliptical = _is_elliptical(form)
    for row in range(start, stop):
        i = row - start
        t = first_round + i
        _score_actions(plan, inverse, theta, elliptical, inputs, row, eligible, i, estimates, bonuses, scratch)
        for a in range(arms):
            bonuses[a] = _bonus(exploration, t, i, a, bonuses[a])
            scores[a] = estimates[a] + bonuses[a]
            answers[i, 3 + a] = centre + estimates[a]
            answers[i, 3 + arms + a] = bonuses[a]
        for h in range(belief.shape[0]):
            answers[i, 3 + 2 * arms + h] = beliefs[row, h]
        actions[row], answers[i, 2], answers[i, 1] = choose_action(
            chance, t, _is_warm(t, warm_rounds, search_rounds, stage_length, folded), scores, eligible, i,
            subjects[i, 0], subjects[i, 1] == 1, law,
        )  # fmt: skip
        answers[i, 0] = actions[row]


@jit
def play_rounds(  # type: ignore[no-untyped-def]
    plan, chance, exploration, statistics, first, start, stop, folded, ridge, warm_rounds, search_rounds,
    levels, values, beliefs, reward_table, actions, rewards,
):  # fmt: skip
    """Play rows start … stop-1 with every reward known at once; returns the rows folded.

    Row 0 is that after round `first`.
    The same scores, draws and stage updates as one-by-one decisions, without leaving compiled code. `folded` rows
    are in the statistics already; folded = -1 rebuilds them from all rows at the next stage update (R4).

    levels: T × V. values: T × numeric variables. beliefs: T × H. reward_table: (stop - start) × K, what each action
    would earn. actions, rewards: T, filled here.
    """
    inputs, scratch, every_row = Inputs(levels, values, beliefs), make_scratch(plan), np.empty(0, np.int64)
    arms, stage_length = reward_table.shape[1], exploration.stage_length
    elliptical = _is_elliptical(exploration.form)
    estimates, scores, law = np.empty(arms), np.empty(arms), np.empty(arms)
    eligible = np.ones((1, arms), np.bool_)
    for row in range(start, stop):
        t = first + row + 1
        if row > 0 and (t - 1) % stage_length == 0:
            if folded < 0:
                reset_statistics(statistics, ridge)
                folded = 0
            update_rows(plan, statistics, ridge, inputs, actions, rewards, every_row, folded, row, scratch)
            folded = row
        _score_actions(
            plan, statistics.inverse, statistics.theta, elliptical, inputs, row, eligible, 0, estimates, scores, scratch
        )
        for a in range(arms):
            scores[a] = estimates[a] + _bonus(exploration, t, row - start, a, scores[a])
        warm = _is_warm(t, warm_rounds, search_rounds, stage_length, statistics.counters[FOLDED])
        action, _, _ = choose_action(chance, t, warm, scores, eligible, 0, np.uint64(0), False, law)
        actions[row] = action
        rewards[row] = reward_table[row - start, action]
    return folded
