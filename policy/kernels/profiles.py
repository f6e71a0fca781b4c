"""Sums over rounds by profile.

Rounds with the same context and action share a profile, so sums over rounds become sums over far fewer profiles:
z(b, a, x) = Σ_h b(h) z_h with z_h = z(e_h, a, x), hence z zᵀ = Σ_{h,g} b(h) b(g) z_h z_gᵀ.
"""

import numpy as np

from policy.kernels.compiling import jit
from policy.kernels.features import Inputs, all_columns, column_room


@jit
def reward_evidence(profiles, rewards, shares, predictions, noise, evidence):  # type: ignore[no-untyped-def]
    """exp(-w (r - θᵀz_h)² / 2σ²) of every row and regime, scaled to 1 at the best regime; returns Σ log of the scales.

    profiles, rewards: T; a row without a reward (NaN) has evidence 1. shares: T, the weights w of the rows, 1 but for
    rounds that wait. predictions: P × H, θᵀz_h of each profile. noise: σ. evidence: T × H, filled here.
    """
    total, precision, regimes = 0.0, 0.5 / (noise * noise), evidence.shape[1]
    for t in range(profiles.shape[0]):
        least = np.inf
        for h in range(regimes):
            error = rewards[t] - predictions[profiles[t], h]
            evidence[t, h] = error * error * (precision * shares[t])
            least = min(least, evidence[t, h])
        if np.isnan(rewards[t]):
            for h in range(regimes):
                evidence[t, h] = 1.0
            continue
        for h in range(regimes):
            evidence[t, h] = np.exp(least - evidence[t, h]) if evidence[t, h] > least else 1.0
        total -= least
    return total


@jit
def profile_moments(profiles, rewards, shares, beliefs, vertices, seconds, totals):  # type: ignore[no-untyped-def]
    """Σ w b bᵀ (or Σ w diag b, if `vertices`) and Σ w b r of every profile, over the rows that have a reward.

    profiles, rewards, shares (w): T. beliefs: T × H. Filled here: seconds P × H × H, totals P × H.
    """
    regimes = totals.shape[1]
    seconds[:, :, :] = 0.0
    totals[:, :] = 0.0
    for t in range(profiles.shape[0]):
        if np.isnan(rewards[t]):
            continue
        p = profiles[t]
        for h in range(regimes):
            weight = shares[t] * beliefs[t, h]
            totals[p, h] += weight * rewards[t]
            if vertices:
                seconds[p, h, h] += weight
            else:
                for g in range(regimes):
                    seconds[p, h, g] += weight * beliefs[t, g]


@jit
def profile_residuals(profiles, rewards, shares, beliefs, predictions, vertices, squares, counts):  # type: ignore[no-untyped-def]
    """Add up the squared residuals and count the rewards of every profile; returns the largest squared residual.

    profiles, rewards: T. shares: T, the weights w of the rows: w times the square is what a whole row would have, w²
    times it what there is of it. beliefs: T × H. predictions: P × H. The first `vertices` rows have a residual for each
    regime, weighted by the belief in it, the others one from the mean prediction. Added to here: squares P, counts P.
    """
    largest = 0.0
    for t in range(profiles.shape[0]):
        if np.isnan(rewards[t]):
            continue
        p, square, mean = profiles[t], 0.0, 0.0
        for h in range(predictions.shape[1]):
            if t < vertices:
                square += beliefs[t, h] * (rewards[t] - predictions[p, h]) ** 2
            else:
                mean += beliefs[t, h] * predictions[p, h]
        if t >= vertices:
            square = (rewards[t] - mean) ** 2
        square *= shares[t]
        squares[p] += square
        counts[p] += 1
        largest = max(largest, square * shares[t])
    return largest


@jit
def profile_columns(plan, levels, values, actions):  # type: ignore[no-untyped-def]
    """The non-zero columns of every profile: (columns, weights, owners), P × n each, and the number used (P).

    An owner is the regime that a column belongs to, H if it is shared; weights are those of z_h, before any belief.
    levels: P × V. values: P × numeric variables. actions: P.
    """
    profiles, regimes, shared, per_regime = levels.shape[0], plan.sizes[0], plan.sizes[2], plan.sizes[3]
    inputs = Inputs(levels, values, np.ones((profiles, regimes)))
    line, weight = column_room(plan)
    limit = line.shape[0]
    columns, owners = np.empty((profiles, limit), np.int64), np.empty((profiles, limit), np.int64)
    weights, counts = np.empty((profiles, limit)), np.empty(profiles, np.int64)
    for p in range(profiles):
        counts[p] = all_columns(plan, inputs, p, actions[p], line, weight)
        for i in range(counts[p]):
            columns[p, i] = line[i]
            weights[p, i] = weight[i]
            owners[p, i] = (line[i] - shared) // per_regime if line[i] >= shared else regimes
    return columns, weights, owners, counts


@jit
def fold_profiles(columns, weights, owners, counts, seconds, totals, ridge, gram, moment):  # type: ignore[no-untyped-def]
    """gram (D × D, zeros before) = Σ z zᵀ + λI and moment (D) += Σ z r.

    The first four arguments are what `profile_columns` returns, seconds and totals what `profile_moments` fills.
    """
    regimes = totals.shape[1]
    for i in range(gram.shape[0]):
        gram[i, i] = ridge
    # Row and column H of the margins belong to the shared columns: sums over the regimes.
    margins, sums = np.empty((regimes + 1, regimes + 1)), np.empty(regimes + 1)
    for p in range(counts.shape[0]):
        sums[regimes] = 0.0
        margins[regimes, :] = 0.0
        for h in range(regimes):
            sums[h] = totals[p, h]
            sums[regimes] += sums[h]
            margins[h, regimes] = 0.0
            for g in range(regimes):
                margins[h, g] = seconds[p, h, g]
                margins[h, regimes] += margins[h, g]
                margins[regimes, g] += margins[h, g]
            margins[regimes, regimes] += margins[h, regimes]
        if margins[regimes, regimes] == 0.0:
            continue
        for i in range(counts[p]):
            line, owner, weight = columns[p, i], owners[p, i], weights[p, i]
            moment[line] += weight * sums[owner]
            for j in range(i + 1):  # each pair once, in the lower triangle; mirrored below
                other = columns[p, j]
                term = weight * weights[p, j] * margins[owner, owners[p, j]]
                if other <= line:
                    gram[line, other] += term
                else:
                    gram[other, line] += term
    for i in range(gram.shape[0]):
        for j in range(i):
            gram[j, i] = gram[i, j]


@jit
def profile_predictions(columns, weights, owners, counts, theta, predictions):  # type: ignore[no-untyped-def]
    """Fill predictions (P × H) with θᵀz_h of every profile and regime; theta: D. The rest as in `fold_profiles`."""
    regimes = predictions.shape[1]
    for p in range(counts.shape[0]):
        common = 0.0
        for h in range(regimes):
            predictions[p, h] = 0.0
        for i in range(counts[p]):
            if owners[p, i] == regimes:
                common += weights[p, i] * theta[columns[p, i]]
            else:
                predictions[p, owners[p, i]] += weights[p, i] * theta[columns[p, i]]
        for h in range(regimes):
            predictions[p, h] += common
