"""How many regimes, and which reward model: candidates fitted side by side and judged by their predictions.

At every re-estimation each candidate is first judged on the rounds since the last one, which it has not seen:

- symbol gain: the log-likelihood of the new symbols, less that of the one-regime model;
- reward gain: the one-regime model's squared error on the new rewards less the candidate's, in units of 2σ̂² (nats
  too), both predicted from contexts alone, as for decisions.

Then all are fitted again. More regimes are used only while both gains justify them. The first candidate, with one
regime, is always fitted, so that falling back to it costs nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from policy import em, hmm, joint, kernels, linucb, noise, spectral
from policy.arrays import FloatArray, IndexArray, IntArray
from policy.defaults import (
    CREDIT,
    ENOUGH_DEVIATIONS,
    ENTER,
    FIRST_ITERATIONS,
    FIRST_ROUNDS,
    FORGETTING,
    IDLE_ITERATIONS,
    ITERATIONS,
    KINDS,
    LEAST_PERIODS,
    RESTARTS_UNTIL,
    STAY,
    TRIAL_AGAIN,
    TRIAL_GAIN,
    TRIAL_LENGTH,
)
from policy.delays import SLICES
from policy.exposure import Waiting, list_due
from policy.features import FeatureMap
from policy.history import History
from policy.hmm import HmmParameters

NO_ROUNDS = np.zeros(SLICES, np.int64)


class Candidate(NamedTuple):
    """A model as last fitted, and its gains over one regime (symbols, rewards)."""

    hmm: HmmParameters
    theta: FloatArray
    units: FloatArray  # centre and noise
    gains: FloatArray
    joint: bool

    @property
    def regimes(self) -> int:
        return int(self.hmm.initial.size)


class Selection(NamedTuple):
    """The candidates (the first has one regime), which one is in use, and the data they were fitted to."""

    round: int
    arrived: int
    candidates: tuple[Candidate, ...]
    chosen: int
    trial: int = 0  # re-estimations left in the current trial
    trial_from: int = 0  # the round from which another trial may start
    deviations: int = ENOUGH_DEVIATIONS  # rewards unlike the usual ones (noise.py); not counted beyond that number
    reached: IntArray = NO_ROUNDS  # how many rounds had each of their slices in the data (exposure.py)

    @property
    def in_use(self) -> Candidate:
        return self.candidates[self.chosen]

    @property
    def is_varied(self) -> bool:
        """Have rewards varied enough to know what a deviation is?"""
        return self.deviations >= ENOUGH_DEVIATIONS

    @property
    def guarded(self) -> bool:
        """More regimes were fitted but are not worth using now: the campaign behaves as with one regime."""
        return self.chosen == 0 and len(self.candidates) > 1

    @property
    def verdicts(self) -> tuple["Verdict", ...]:
        """The candidates in plain numbers, for reports."""
        return tuple(
            Verdict(
                c.regimes, "joint" if c.joint else "smoothed", float(c.gains[0]), float(c.gains[1]), i == self.chosen
            )
            for i, c in enumerate(self.candidates)
        )


class Verdict(NamedTuple):
    """A candidate's gains over one regime, in nats, and whether it is in use."""

    regimes: int
    statistics: str
    symbol_gain: float
    reward_gain: float
    in_use: bool


class Estimate(NamedTuple):
    """The result of a re-estimation, not yet in force: the selection, and the posterior of the model to use (T × H)."""

    selection: Selection
    posterior: FloatArray


def estimate(
    maps: Mapping[int, FeatureMap],
    ridge: float,
    seed: int,
    history: History,
    rounds: int,
    arrived: int,
    previous: Selection | None,
    *,
    named: bool,
    waiting: Waiting | None = None,
) -> Estimate | None:
    """Judge the previous candidates on new data, fit all again and choose one; None if there is too little new data.

    `maps` has a feature map for each number of regimes allowed; `named` means that the campaign sets the number itself.
    `waiting`: what counts, in a campaign with a default reward; the history then ends with the last reward.
    """
    steps = history.steps[:rounds]
    moves = np.flatnonzero(steps)
    clocked = moves.size < rounds - 1 or (steps > 1).any()
    # Hold-outs and fits use whole periods of the clock: the last period may still be going on.
    whole = int(moves[-1]) if clocked and moves.size else rounds
    enough = whole >= FIRST_ROUNDS and np.count_nonzero(steps[:whole]) >= 2 * LEAST_PERIODS
    judged = previous
    if previous is not None and len(previous.candidates) > 1:
        if np.count_nonzero(steps[previous.round : whole]) < LEAST_PERIODS:
            return None
        judged = _judge(maps, history, whole, arrived, previous, waiting)
    if not enough:
        whole = rounds
    data = joint.gather(maps[1], history, whole, arrived, waiting)
    counts = _list_regime_counts(sorted(maps), judged) if enough else []
    fits, candidates = _fit_candidates(maps, ridge, seed, data, bool(clocked), judged, counts)
    chosen, trial, trial_from = _choose(candidates, judged, whole, CREDIT if named else 0.0)
    deviations = ENOUGH_DEVIATIONS
    if previous is None or not previous.is_varied:
        deviations = min(int(noise.count_deviations(data, len(maps[1].actions)).sum()), ENOUGH_DEVIATIONS)
    reached = NO_ROUNDS if waiting is None else np.minimum(waiting.reached, whole)
    selection = Selection(whole, arrived, candidates, chosen, trial, trial_from, deviations, reached)
    posterior = fits[chosen].posterior
    return Estimate(selection, posterior[data.rows] if data.has_gaps else posterior)


def _judge(
    maps: Mapping[int, FeatureMap],
    history: History,
    rounds: int,
    arrived: int,
    previous: Selection,
    waiting: Waiting | None,
) -> Selection:
    """The candidates with gains updated by the rounds and rewards since they were fitted."""
    fresh = _find_fresh(history, rounds, arrived, previous, waiting)
    memory = (previous.round / rounds) ** FORGETTING
    scores = np.array([_score(maps[c.regimes], history, rounds, previous.round, fresh, c) for c in previous.candidates])
    gains = scores - scores[0]
    # Rewards that suddenly scatter far more than σ̂ must not outweigh all other evidence.
    mean_square = -scores[0, 1] / max(fresh.rows.size, 1)
    gains[:, 1] /= 2.0 * max(previous.candidates[0].units[1] ** 2, mean_square / 4.0)
    judged = (c._replace(gains=memory * c.gains + gain) for c, gain in zip(previous.candidates, gains, strict=True))
    return previous._replace(candidates=tuple(judged))


class _Fresh(NamedTuple):
    """Rewards that candidates were not fitted to; with a default reward, what was due of rounds since then."""

    rows: IntArray
    rewards: FloatArray  # less `level`
    level: float
    weights: FloatArray | None  # of the rounds; None if they are 1


def _find_fresh(history: History, rounds: int, arrived: int, previous: Selection, waiting: Waiting | None) -> _Fresh:
    if waiting is None:
        rows = history.get_arrivals(0, arrived)
        late = np.isin(rows, history.get_arrivals(previous.arrived, arrived), assume_unique=True)
        rows = rows[((rows >= previous.round) | late) & (rows < rounds)]
        return _Fresh(rows, history.copy_rewards(arrived)[rows], 0.0, None)
    due = list_due(history, previous.reached, previous.arrived, waiting)
    inside = due.rows < rounds
    return _Fresh(due.rows[inside], due.changes[inside], waiting.default, due.slices[inside] / SLICES)


def _score(
    features: FeatureMap, history: History, rounds: int, start: int, fresh: _Fresh, model: Candidate
) -> tuple[float, float]:
    """Log-likelihood of the symbols from `start` on; minus the squared errors on the fresh rewards."""
    symbols, steps = history.contexts.symbols[:rounds], history.steps[:rounds]
    beliefs = hmm.filter_history(model.hmm, symbols, steps).beliefs
    after = np.empty((rounds - start, model.regimes))
    gain = kernels.filter_path(
        model.hmm.transition, model.hmm.emission, beliefs[start - 1], steps[start:], symbols[start:],
        hmm.NO_EVIDENCE, after,
    )  # fmt: skip
    rows, rewards, level, weights = fresh
    columns = joint.make_design(features, history.contexts.take(rows), history.actions[rows])
    predictions = (joint.predict(columns, model.theta) * beliefs[rows]).sum(axis=1)
    if weights is None:
        errors = rewards - model.units[0] - predictions
        return float(gain), -float(errors @ errors)
    # A weight and a reward that are due separately add up: w p² - 2 r p, but for what no prediction changes.
    predictions += model.units[0] - level
    return float(gain), -float((weights * predictions - 2.0 * rewards) @ predictions + rewards @ rewards)


def _list_regime_counts(counts: Sequence[int], judged: Selection | None) -> list[int]:
    """The numbers of regimes to fit: up to one more than the largest that the symbols support."""
    gains = {c.regimes: c.gains[0] for c in judged.candidates} if judged else {}
    tracked = list(counts[1:2])
    for fewer, enough, more in zip(counts, counts[1:], counts[2:], strict=False):
        if more not in gains and not gains.get(enough, 0.0) - gains.get(fewer, 0.0) > ENTER[0]:
            break
        tracked.append(more)
    return tracked


def _fit_candidates(
    maps: Mapping[int, FeatureMap],
    ridge: float,
    seed: int,
    data: joint.Rounds,
    clocked: bool,
    judged: Selection | None,
    counts: Sequence[int],
) -> tuple[list[joint.Fit], tuple[Candidate, ...]]:
    """Every candidate fitted to all rounds: one regime, then for each H in `counts` smoothed and joint statistics."""
    before = {(c.regimes, c.joint): c for c in judged.candidates} if judged else {}
    restart = data.rows.size <= RESTARTS_UNTIL
    used = judged.in_use if judged else None
    busy = max(used.regimes, 2) if used else 2
    alone = em.fit(data.symbols, _one_regime(maps[1].symbols), 1, smoothing=em.SMOOTHING, steps=data.steps)
    designs = {regimes: joint.make_design(maps[regimes], data.contexts, data.actions) for regimes in (1, *counts)}
    fits = [joint.fit_smoothed(data, designs[1], ridge, alone.parameters, alone.beliefs)]
    candidates = [_make_candidate(fits[0], False, data, np.zeros(2))]
    fewer: HmmParameters | None = None
    for regimes in counts:
        iterations = ITERATIONS if regimes <= busy else IDLE_ITERATIONS
        columns, old, old_joint = designs[regimes], before.get((regimes, False)), before.get((regimes, True))
        posterior = None
        if old is None or restart:
            steps = data.steps if clocked else None
            parameters = em.estimate(data.symbols, regimes, maps[regimes].symbols, seed, old and old.hmm, steps)
            if isinstance(parameters, spectral.NotEstimable):
                break
        else:
            parameters, _, posterior = em.fit(
                data.symbols, old.hmm, iterations, smoothing=em.SMOOTHING, steps=data.steps
            )
        # Both kinds number their regimes alike (R6), so that switching between them swaps nothing. Candidates with more
        # regimes than are in use keep those numbers and add new regimes at the end.
        reference = old_joint or old
        names = reference.hmm if reference else fewer
        if used and regimes > used.regimes > 1:
            names = used.hmm
        if names is not None:
            parameters, order = spectral.align(parameters, names)
            if not _is_unchanged(order):
                posterior = None
        smoothed = joint.fit_smoothed(data, columns, ridge, parameters, posterior)
        starts = []
        if old_joint is not None:
            starts.append((old_joint.hmm, old_joint.theta, old_joint.units[1], iterations))
        if old_joint is None or restart:
            starts.append((em.open_zeros(parameters), smoothed.theta, smoothed.noise, FIRST_ITERATIONS))
        tried = [joint.fit_joint(data, columns, ridge, *start) for start in starts]
        together = max(tried, key=lambda fit: fit.objective[-1])
        if names is not None:
            together = _align(together, names, data, columns, ridge)
        fewer = together.hmm
        for fit, last, is_joint in ((smoothed, old, False), (together, old_joint, True)):
            fits.append(fit)
            candidates.append(_make_candidate(fit, is_joint, data, last.gains if last else np.zeros(2)))
    return fits, tuple(candidates)


def count_operations(maps: Mapping[int, FeatureMap], rounds: int, previous: Selection | None) -> int:
    """What `estimate` and putting its result in force cost, in the unit of costs.py."""
    counts = _list_regime_counts(sorted(maps), previous) if rounds >= FIRST_ROUNDS else []
    is_first = rounds <= RESTARTS_UNTIL
    # Of EM over symbols and rewards together.
    passes = FIRST_ITERATIONS + ITERATIONS + 2 if is_first else ITERATIONS + 1
    total = 0
    for regimes in (1, *counts):
        features = maps[regimes]
        sums = joint.count_operations(features, rounds)
        total += 2 * sums + features.blocks.count_operations(for_inverse=True)
        if regimes > 1:
            total += passes * (sums + features.blocks.count_operations(for_inverse=False))
            restarts = em.count_operations(rounds, regimes, features.symbols)
            total += restarts if is_first else passes * em.count_pass_operations(rounds, regimes)
    return total


def _choose(
    candidates: Sequence[Candidate], judged: Selection | None, rounds: int, credit: float
) -> tuple[int, int, int]:
    """Which candidate to use, what is left of a trial, and the round from which another may start."""
    used = judged.in_use if judged else candidates[0]
    trial, trial_from = (judged.trial, judged.trial_from) if judged else (0, 0)
    best, options = 0, []
    for smoothed in range(1, len(candidates), 2):
        ahead = candidates[smoothed + 1].gains[1] - candidates[smoothed].gains[1]
        falls_back = used.regimes == candidates[smoothed].regimes and not used.joint
        option = smoothed + 1 if ahead > (KINDS if falls_back else -KINDS) else smoothed
        options.append(option)
        proven = used.regimes > candidates[option].regimes or (used.regimes == candidates[option].regimes and not trial)
        needed = STAY if proven else ENTER
        if (candidates[option].gains - candidates[best].gains + credit > needed).all():
            best = option
    if best:
        return best, 0, trial_from
    if trial > 1:
        for option in options:
            if candidates[option].regimes == used.regimes:
                return option, trial - 1, trial_from
    if used.regimes == 1 and not credit and rounds >= trial_from:
        for option in options:
            if candidates[option].gains[0] > TRIAL_GAIN:
                return option, TRIAL_LENGTH, rounds * TRIAL_AGAIN
    return 0, 0, trial_from


def _make_candidate(fit: joint.Fit, together: bool, data: joint.Rounds, gains: FloatArray) -> Candidate:
    return Candidate(fit.hmm, fit.theta, np.array([data.centre, fit.noise]), gains, together)


def _align(
    fit: joint.Fit, reference: HmmParameters, data: joint.Rounds, columns: joint.Design, ridge: float
) -> joint.Fit:
    """The fit with its regimes named as in the reference (R6)."""
    parameters, order = spectral.align(fit.hmm, reference)
    if _is_unchanged(order):
        return fit
    posterior = np.ascontiguousarray(fit.posterior[:, order])
    sums = joint.sum_rounds(data, columns, ridge, posterior, data.symbols.size)
    return joint.Fit(parameters, linucb.solve(*sums, columns.features, ridge), fit.noise, posterior, fit.objective)


def _is_unchanged(order: IndexArray) -> bool:
    """Does every regime keep its number?"""
    return bool((order == np.arange(order.size)).all())


def _one_regime(symbols: int) -> HmmParameters:
    return HmmParameters(np.ones((1, 1)), np.full((1, symbols), 1.0 / symbols), np.ones(1))
