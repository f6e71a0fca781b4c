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

from policy import em, hmm, joint, kernels, noise
from policy.arrays import FloatArray, IntArray
from policy.candidates import Candidate, fit_candidates
from policy.defaults import (
    CREDIT,
    ENOUGH_DEVIATIONS,
    ENTER,
    FIRST_ITERATIONS,
    FIRST_ROUNDS,
    FORGETTING,
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
from policy.window import count_leaving, keep_leaving

NO_ROUNDS = np.zeros(SLICES, np.int64)


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
    first: int = 0  # how many rounds have left the window (window.py)

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
    """The result of a re-estimation, not yet in force: the selection, and the posterior of the model to use (T × H).

    The posterior is of the rows that were there, with those that are to leave.
    """

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
    window: int | None = None,
) -> Estimate | None:
    """Judge the previous candidates on new data, fit all again and choose one; None if there is too little new data.

    `maps` has a feature map for each number of regimes allowed; `named` means that the campaign sets the number itself.
    `waiting`: what counts, in a campaign with a default reward; the history then ends with the last reward.
    `window`: the number of rounds that stay; None for all.
    """
    first = history.first
    steps = history.steps[: rounds - first]
    moves = np.flatnonzero(steps)
    clocked = moves.size < steps.size - 1 or (steps > 1).any()
    # Hold-outs and fits use whole periods of the clock: the last period may still be going on.
    whole = first + int(moves[-1]) if clocked and moves.size else rounds
    kept = previous.candidates[0].kept if previous else None  # the candidate that there has always been
    moved = np.count_nonzero(steps[: whole - first]) + (0.0 if kept is None else kept.transitions.sum())
    enough = whole >= FIRST_ROUNDS and moved >= 2 * LEAST_PERIODS
    judged = previous
    if previous is not None and len(previous.candidates) > 1:
        unseen = max(previous.round - first, 0)
        if np.count_nonzero(steps[unseen : whole - first]) < LEAST_PERIODS:
            return None
        judged = _judge(maps, history, whole, arrived, previous, waiting)
    if not enough:
        whole = rounds
    data = joint.gather(maps[1], history, whole, arrived, waiting, kept)
    counts = _list_regime_counts(sorted(maps), judged) if enough else []
    before, used = (judged.candidates, judged.in_use) if judged else ((), None)
    fitted, candidates = fit_candidates(maps, ridge, seed, data, bool(clocked), before, used, counts)
    chosen, trial, trial_from = _choose(candidates, judged, whole, CREDIT if named else 0.0)
    deviations = ENOUGH_DEVIATIONS
    if previous is None or not previous.is_varied:
        counted = noise.count_deviations(data.add_kept(kept), len(maps[1].actions))
        deviations = min(int(counted.sum()), ENOUGH_DEVIATIONS)
    reached = NO_ROUNDS if waiting is None else np.minimum(waiting.reached, whole)
    leaving = count_leaving(window, history, whole, waiting)
    if leaving:
        candidates = keep_leaving(candidates, fitted, leaving)
    selection = Selection(whole, arrived, candidates, chosen, trial, trial_from, deviations, reached, first + leaving)
    posterior = fitted[chosen].fit.posterior
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
        rows = rows[((rows >= previous.round - history.first) | late) & (rows < rounds - history.first)]
        return _Fresh(rows, history.copy_rewards(arrived)[rows], 0.0, None)
    due = list_due(history, previous.reached, previous.arrived, waiting)
    inside = due.rows < rounds - history.first
    return _Fresh(due.rows[inside], due.changes[inside], waiting.default, due.slices[inside] / SLICES)


def _score(
    features: FeatureMap, history: History, rounds: int, start: int, fresh: _Fresh, model: Candidate
) -> tuple[float, float]:
    """Log-likelihood of the symbols from `start` on; minus the squared errors on the fresh rewards."""
    # After a rollback beyond the window, rounds that the candidates have not seen may have left.
    count, start = rounds - history.first, max(start - history.first, 1)
    symbols, steps = history.contexts.symbols[:count], history.steps[:count]
    beliefs = hmm.filter_history(model.start, symbols, steps).beliefs
    after = np.empty((count - start, model.regimes))
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
