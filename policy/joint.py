"""Reward models fitted to a whole history: with smoothed beliefs, or jointly with the hidden chain.

`smoothed` regresses rewards on z(b_t, a, x) with b_t = P(h_t | all symbols). `joint` is a Markov-switching regression:

    h_t Markov with transition M,  x_t ~ E[h_t],  r_t = θᵀz(e_{h_t}, a_t, x_t) + σ ε_t,

fitted by EM over (M, E, θ, σ) together, so that rewards tell regimes apart too. Its statistics are
Σ_t Σ_h γ_t(h) z_h z_hᵀ with γ_t = P(h_t | all symbols and rewards). A reward that is missing is left out of the
likelihood. One noise σ is shared by all regimes and kept above a floor: with one noise each, a regime could collapse
on a few rounds. Decisions never use γ: at decision time there is no reward yet, so they use the context-only filter.
"""

from typing import NamedTuple

import numpy as np

from policy import em, kernels, linucb
from policy.arrays import FloatArray, IndexArray, IntArray, SmallInts
from policy.defaults import LEAST_NOISE
from policy.delays import SLICES
from policy.encoding import Contexts
from policy.exposure import Waiting, weigh_rounds
from policy.features import FeatureMap
from policy.history import History
from policy.hmm import NO_EVIDENCE, HmmParameters, check_steps, compute_expectations, spell_out_gaps
from policy.kept import CENTRE, SQUARES, TOTAL, WEIGHT, Kept
from policy.kernels import Statistics

LARGEST_TABLE = 1 << 18  # most combinations of levels and actions for grouping rounds by a table


class Rounds(NamedTuple):
    """The data of a fit: one row per round, gaps as rows without symbol and reward; and the profiles."""

    symbols: SmallInts
    steps: SmallInts
    rows: IndexArray  # positions of the rounds among the rows
    rewards: FloatArray  # less their mean; NaN where unknown
    shares: FloatArray  # the weight of each row: 1, or less if the round still waits for its reward (exposure.py)
    profiles: IntArray  # the profile of each row: rounds with the same context and action share one
    contexts: Contexts  # of the profiles
    actions: SmallInts
    known: int  # rewards
    slices: int  # of rounds that wait or have waited, 0 without a default reward
    centre: float  # their mean
    squares: float  # the weighted sum of their squares after subtracting the mean
    least_noise: float
    kept: Kept | None = None  # of the rounds before these; `known`, `slices` and `squares` then count them too

    @property
    def has_gaps(self) -> bool:
        return self.rows.size < self.symbols.size

    def add_kept(self, kept: Kept | None) -> "Rounds":
        """The data for a candidate with what it has kept of earlier rounds; without any, the chain begins here."""
        if kept is None:
            if not self.steps.size or not self.steps[0]:
                return self
            steps = self.steps.copy()
            steps[0] = 0
            return self._replace(steps=steps)
        kept = kept.move_centre(self.centre)
        return self._replace(
            known=self.known + kept.known,
            slices=self.slices + round(kept.rewards[WEIGHT] * SLICES) if self.slices else 0,
            squares=self.squares + float(kept.rewards[SQUARES]),
            kept=kept,
        )

    def take_first(self, count: int) -> "Rounds":
        """The first rounds alone, with the same centre and profiles."""
        rows = int(self.rows[count - 1]) + 1
        rewards, shares = self.rewards[:rows], self.shares[:rows]
        known = ~np.isnan(rewards)
        return self._replace(
            symbols=self.symbols[:rows], steps=self.steps[:rows], rows=self.rows[:count], rewards=rewards,
            shares=shares, profiles=self.profiles[:rows], known=int(np.count_nonzero(known)),
            squares=float((shares[known] * rewards[known] ** 2).sum()), kept=None,
        )  # fmt: skip


class Design(NamedTuple):
    """The non-zero columns of z of every profile (kernels.profile_columns), and the feature map."""

    columns: IntArray
    weights: FloatArray
    owners: IntArray
    counts: IntArray
    features: FeatureMap


class Fit(NamedTuple):
    """An HMM, θ̂, σ̂ and the posterior of the regimes (rows × H); `objective` never falls (empty without EM).

    `evidence`: what the rewards said about the regime of each row, if the posterior has used it (rows × H).
    """

    hmm: HmmParameters
    theta: FloatArray
    noise: float
    posterior: FloatArray
    objective: tuple[float, ...] = ()
    evidence: FloatArray = NO_EVIDENCE


def gather(
    features: FeatureMap,
    history: History,
    rounds: int,
    arrived: int,
    waiting: Waiting | None = None,
    kept: Kept | None = None,
) -> Rounds:
    """The first rounds of a history with the rewards that have arrived; `waiting`: of a campaign with a default.

    The rewards are less their mean over all rounds; `kept` is of those that have left, and says nothing else here.
    """
    count = rounds - history.first
    rewards, shares, slices = np.full(count, np.nan), np.ones(count), 0
    if waiting is None:
        known = history.get_arrivals(0, arrived)  # in round order: sums do not depend on the order of arrival (R15)
        known = known[known < count]
        rewards[known] = history.copy_rewards(arrived)[known]
        centre = float(rewards[known].mean()) if known.size else 0.0
        centre = _find_centre(centre, known.size, kept)
        rewards -= centre
        deviation = float(rewards[known].std()) if known.size else 0.0
        squares = float(np.nansum(rewards**2))
    else:
        weighed = weigh_rounds(history, rounds, waiting)
        known, slices = weighed.rows, int(weighed.slices.sum())
        shares[known] = weighed.shares
        change = float(weighed.changes.sum()) * SLICES / max(slices, 1)
        centre = _find_centre(waiting.default + change, slices / SLICES, kept)
        change = change if kept is None else centre - waiting.default
        rewards[known] = weighed.targets - change
        squares = float((shares[known] * rewards[known] ** 2).sum())
        deviation = float(np.sqrt(squares / max(known.size, 1)))
    if kept is not None:
        everything = squares + float(kept.move_centre(centre).rewards[SQUARES])
        deviation = float(np.sqrt(everything / max(known.size + kept.known, 1)))
    contexts, actions = history.contexts.rows(0, count), history.actions[:count]
    first, profiles = _group_by_profile(features, contexts, actions)
    full = spell_out_gaps(contexts.symbols, check_steps(history.steps[:count], count))
    if full.rows.size < full.symbols.size:
        spread, index = np.full(full.symbols.size, np.nan), np.zeros(full.symbols.size, np.int64)
        spread_shares = np.ones(full.symbols.size)
        spread[full.rows], index[full.rows], spread_shares[full.rows] = rewards, profiles, shares
        rewards, profiles, shares = spread, index, spread_shares
    return Rounds(
        *full, rewards, shares, profiles, contexts.take(first), actions[first], known.size, slices, centre,
        squares, max(LEAST_NOISE * deviation, 1e-150),
    )  # fmt: skip


def _find_centre(mean: float, weight: float, kept: Kept | None) -> float:
    """The mean of all rewards: those here, of the weight given, and those of the rounds that have left."""
    if kept is None:
        return mean
    own, total = kept.rewards[WEIGHT], kept.rewards[TOTAL]
    centre = kept.rewards[CENTRE]
    return float(centre + (total + (mean - centre) * weight) / max(own + weight, 1.0))


def _group_by_profile(features: FeatureMap, contexts: Contexts, actions: SmallInts) -> tuple[IndexArray, IntArray]:
    """The first round of every profile, and every round's profile."""
    keys, every = actions.astype(np.int64), np.arange(actions.size)
    if features.combinations > 2.0**62:  # too many for a key; and numeric variables hardly ever repeat
        return every, every
    for place, variable in enumerate(features.variables):
        keys = keys * len(variable.level_names) + contexts.levels[:, place]
    if features.combinations > LARGEST_TABLE:
        _, first, profiles = np.unique(keys, return_index=True, return_inverse=True)
        return first, profiles.astype(np.int64)
    first_of = np.full(
        int(features.combinations), actions.size
    )  # the same without sorting, which would take most of the time
    first_of[keys[::-1]] = every[::-1]  # the last assignment wins: that of the first round
    there = first_of < actions.size
    return first_of[there], (there.cumsum() - 1)[keys]


def make_design(features: FeatureMap, contexts: Contexts, actions: SmallInts) -> Design:
    """The non-zero columns of z for given contexts and actions."""
    columns, weights, owners, counts = kernels.profile_columns(features.plan, contexts.levels, contexts.values, actions)
    return Design(columns, weights, owners, counts, features)


def predict(design: Design, theta: FloatArray) -> FloatArray:
    """θᵀz_h of every profile and regime (P × H); theta: D."""
    predictions = np.empty((design.counts.size, design.features.regimes))
    kernels.profile_predictions(*design[:4], theta, predictions)
    return predictions


def sum_rounds(
    rounds: Rounds, design: Design, ridge: float, posterior: FloatArray, vertices: int
) -> tuple[FloatArray, FloatArray]:
    """G and Σ z r from the posterior of every row (rows × H).

    The first `vertices` rows enter as Σ_h γ(h) z_h z_hᵀ, as if the regime had been seen, the others as z(γ) z(γ)ᵀ.
    What is kept of rounds that have left is added.
    """
    regimes, dimension, count = design.features.regimes, design.features.dimension, rounds.actions.size
    seconds, totals = np.zeros((count, regimes, regimes)), np.zeros((count, regimes))
    some_seconds, some_totals = np.empty_like(seconds), np.empty_like(totals)
    for start, stop, whole in ((0, vertices, True), (vertices, rounds.symbols.size, False)):
        if start < stop:
            part = slice(start, stop)
            kernels.profile_moments(
                rounds.profiles[part],
                rounds.rewards[part],
                rounds.shares[part],
                posterior[part],
                whole,
                some_seconds,
                some_totals,
            )
            seconds += some_seconds
            totals += some_totals
    gram, moment = np.zeros((dimension, dimension)), np.zeros(dimension)
    kernels.fold_profiles(*design[:4], seconds, totals, ridge, gram, moment)
    if rounds.kept is not None:
        gram += rounds.kept.gram
        moment += rounds.kept.moment
    return gram, moment


def compute_statistics(
    rounds: Rounds, design: Design, ridge: float, posterior: FloatArray, vertices: int
) -> Statistics:
    """G, Σ z r, the inverse and θ̂ (eq. estimate-theta); arguments as in `sum_rounds`."""
    gram, moment = sum_rounds(rounds, design, ridge, posterior, vertices)
    counters = np.array([rounds.slices or rounds.known, -1], np.int64)
    statistics = Statistics(
        gram, moment, np.empty_like(gram), np.empty_like(moment), counters, np.array([rounds.centre, 1.0])
    )
    linucb.factor(statistics, design.features, ridge)
    return statistics


def count_operations(features: FeatureMap, rounds: int) -> int:
    """What a posterior and its `sum_rounds` cost, in the unit of costs.py."""
    profiles = int(min(rounds, features.combinations))
    return rounds * (2 + 3 * features.regimes) // 8 + profiles * features.most_active**2 // 100 + 600


def estimate_noise(rounds: Rounds, statistics: Statistics, null: FloatArray, ridge: float) -> float:
    """σ̂ from the penalised residual Σr² - θ̂ᵀΣzr, which counts half of the effective parameters already."""
    # The inverse is that of G + P (kernels.linucb): λ / (1 + λ) instead of 1 for each direction that no z has.
    unused = float(np.trace(null)) / (1.0 + ridge)
    effective = statistics.theta.size - ridge * float(np.trace(statistics.inverse)) - unused
    freedom = max(rounds.known - effective / 2.0, rounds.known / 4.0, 1.0)
    return _noise(rounds, statistics.theta, statistics.moment, freedom)


def _noise(rounds: Rounds, theta: FloatArray, moment: FloatArray, freedom: float) -> float:
    """The root of the penalised residual per degree of freedom, but at least the floor."""
    penalised = rounds.squares - float(theta @ moment)
    return max(float(np.sqrt(max(penalised, 0.0) / freedom)), rounds.least_noise)


def fit_smoothed(
    rounds: Rounds, design: Design, ridge: float, hmm: HmmParameters, posterior: FloatArray | None = None
) -> Fit:
    """The regression on smoothed beliefs under given HMM parameters; `posterior` (rows × H) saves computing them."""
    if posterior is None:
        start = hmm if rounds.kept is None else hmm._replace(initial=rounds.kept.edge)
        posterior = compute_expectations(start, rounds.symbols, rounds.steps).beliefs
    statistics = compute_statistics(rounds, design, ridge, posterior, 0)
    return Fit(hmm, statistics.theta, estimate_noise(rounds, statistics, design.features.plan.null, ridge), posterior)


def fit_joint(
    rounds: Rounds, design: Design, ridge: float, hmm: HmmParameters, theta: FloatArray, noise: float, iterations: int
) -> Fit:
    """Run `iterations` of joint EM from the given start; θ̂ belongs to the posterior returned."""
    size, regimes = rounds.symbols.size, design.features.regimes
    posterior, evidence = np.empty((size, regimes)), np.empty((size, regimes))
    transitions, emissions = np.empty_like(hmm.transition), np.empty_like(hmm.emission)
    objective = []
    noise = max(noise, rounds.least_noise)
    for iteration in range(iterations + 1):
        value = kernels.reward_evidence(
            rounds.profiles, rounds.rewards, rounds.shares, predict(design, theta), noise, evidence
        )
        if rounds.kept is not None:
            value -= _sum_squared_errors(rounds.kept, theta) / (2.0 * noise**2)
        value += em.expect(
            (0,) * regimes, hmm, rounds.steps, rounds.symbols, evidence, posterior, transitions, emissions,
            rounds.kept,
        )  # fmt: skip
        value += em.SMOOTHING * em.log_prior(hmm) - rounds.known * np.log(noise)
        objective.append(float(value - ridge * (theta @ theta) / (2.0 * noise**2)))
        gram, moment = sum_rounds(rounds, design, ridge, posterior, size)
        theta = linucb.solve(gram, moment, design.features, ridge)
        if iteration < iterations:
            noise = _noise(rounds, theta, moment, max(rounds.known, 1))
            hmm = em.maximise(transitions, emissions, em.SMOOTHING, hmm)
    return Fit(hmm, theta, noise, posterior, tuple(objective), evidence)


def _sum_squared_errors(kept: Kept, theta: FloatArray) -> float:
    """Σ w (r - θᵀz)² over the rounds that have left."""
    return float(kept.rewards[SQUARES] - 2.0 * (theta @ kept.moment) + theta @ kept.gram @ theta)
