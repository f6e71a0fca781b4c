"""Candidates: models with different numbers of regimes and kinds of statistics, fitted side by side (selection.py)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from policy import em, joint, linucb, spectral
from policy.arrays import FloatArray, IndexArray
from policy.defaults import FIRST_ITERATIONS, IDLE_ITERATIONS, ITERATIONS, RESTARTS_UNTIL
from policy.features import FeatureMap
from policy.hmm import HmmParameters
from policy.kept import Kept


class Candidate(NamedTuple):
    """A model as last fitted, and its gains over one regime (symbols, rewards)."""

    hmm: HmmParameters
    theta: FloatArray
    units: FloatArray  # centre and noise
    gains: FloatArray
    joint: bool
    kept: Kept | None = None  # of the rounds that have left the window since there is this candidate

    @property
    def start(self) -> HmmParameters:
        """The parameters, with the law that the first row of the window starts from."""
        return self.hmm if self.kept is None else self.hmm._replace(initial=self.kept.edge)

    @property
    def regimes(self) -> int:
        return int(self.hmm.initial.size)


class Fitted(NamedTuple):
    """A candidate's fit, and what it was fitted to."""

    data: joint.Rounds
    design: joint.Design
    fit: joint.Fit


def fit_candidates(
    maps: Mapping[int, FeatureMap],
    ridge: float,
    seed: int,
    data: joint.Rounds,
    clocked: bool,
    before: Sequence[Candidate],
    used: Candidate | None,
    counts: Sequence[int],
) -> tuple[list[Fitted], tuple[Candidate, ...]]:
    """Every candidate fitted to all rounds: one regime, then for each H in `counts` smoothed and joint statistics.

    `before`: the candidates as they were; `used`: the one in use.
    """
    known = {(c.regimes, c.joint): c for c in before}
    one = known.get((1, False))
    has_kept = one is not None and one.kept is not None
    busy = max(used.regimes, 2) if used else 2
    designs = {regimes: joint.make_design(maps[regimes], data.contexts, data.actions) for regimes in (1, *counts)}
    own = data.add_kept(one.kept if one else None)
    start = _one_regime(maps[1].symbols)
    alone = em.fit(own.symbols, start, 1, smoothing=em.SMOOTHING, steps=own.steps, kept=own.kept)
    fitted = [Fitted(own, designs[1], joint.fit_smoothed(own, designs[1], ridge, alone.parameters, alone.beliefs))]
    candidates = [_make_candidate(fitted[0], False, one)]
    fewer: HmmParameters | None = None
    for regimes in counts:
        old, old_joint = known.get((regimes, False)), known.get((regimes, True))
        # Candidates with more regimes than are in use keep those numbers and add new regimes at the end.
        names = old_joint or old
        reference = names.hmm if names else fewer
        if used and regimes > used.regimes > 1:
            reference = used.hmm
        fitting = _Fitting(
            data,
            designs[regimes],
            ridge,
            iterations=ITERATIONS if regimes <= busy else IDLE_ITERATIONS,
            restart=data.rows.size <= RESTARTS_UNTIL and not has_kept,
            reference=reference,
        )
        smoothed = fitting.fit_smoothed(old, seed, clocked)
        if smoothed is None:
            break
        together = fitting.fit_joint(old_joint, smoothed.fit)
        fewer = together.fit.hmm
        fitted += [smoothed, together]
        candidates += [_make_candidate(smoothed, False, old), _make_candidate(together, True, old_joint)]
    return fitted, tuple(candidates)


class _Fitting(NamedTuple):
    """The fits with one number of regimes."""

    data: joint.Rounds
    design: joint.Design
    ridge: float
    iterations: int
    restart: bool  # start also afresh
    reference: HmmParameters | None  # whose numbers the regimes take; both kinds take the same, so that switching
    # between them swaps nothing (R6)

    def fit_smoothed(self, old: Candidate | None, seed: int, clocked: bool) -> Fitted | None:
        """The fit to the symbols alone, and the regression on its smoothed beliefs; None if there is no such fit."""
        features, posterior = self.design.features, None
        data = self.data.add_kept(old.kept if old else None)
        if old is None or self.restart:
            steps = data.steps if clocked else None
            found = em.estimate(data.symbols, features.regimes, features.symbols, seed, old and old.hmm, steps)
            if isinstance(found, spectral.NotEstimable):
                return None
            parameters = found
        else:
            parameters, _, posterior = em.fit(
                data.symbols, old.hmm, self.iterations, smoothing=em.SMOOTHING, steps=data.steps, kept=data.kept
            )
        if self.reference is not None:
            parameters, order = spectral.align(parameters, self.reference)
            if not _is_unchanged(order):
                posterior, data = None, _permute(data, order, features)
        return Fitted(data, self.design, joint.fit_smoothed(data, self.design, self.ridge, parameters, posterior))

    def fit_joint(self, old: Candidate | None, smoothed: joint.Fit) -> Fitted:
        """The fit to symbols and rewards together."""
        data = self.data.add_kept(old.kept if old else None)
        starts = []
        if old is not None:
            starts.append((old.hmm, old.theta, old.units[1], self.iterations))
        if old is None or self.restart:
            starts.append((em.open_zeros(smoothed.hmm), smoothed.theta, smoothed.noise, FIRST_ITERATIONS))
        tried = [joint.fit_joint(data, self.design, self.ridge, *start) for start in starts]
        together = Fitted(data, self.design, max(tried, key=lambda fit: fit.objective[-1]))
        return together if self.reference is None else _align(together, self.reference, self.ridge)


def _make_candidate(fitted: Fitted, together: bool, before: Candidate | None) -> Candidate:
    data, _, fit = fitted
    gains = before.gains if before else np.zeros(2)
    return Candidate(fit.hmm, fit.theta, np.array([data.centre, fit.noise]), gains, together, data.kept)


def _align(fitted: Fitted, reference: HmmParameters, ridge: float) -> Fitted:
    """The fit with its regimes named as in the reference (R6)."""
    data, design, fit = fitted
    parameters, order = spectral.align(fit.hmm, reference)
    if _is_unchanged(order):
        return fitted
    data = _permute(data, order, design.features)
    posterior, evidence = (np.ascontiguousarray(part[:, order]) for part in (fit.posterior, fit.evidence))
    theta = linucb.solve(*joint.sum_rounds(data, design, ridge, posterior, data.symbols.size), design.features, ridge)
    return Fitted(data, design, joint.Fit(parameters, theta, fit.noise, posterior, fit.objective, evidence))


def _permute(data: joint.Rounds, order: IndexArray, features: FeatureMap) -> joint.Rounds:
    """The data with what is kept of earlier rounds under the regimes' new names."""
    return data if data.kept is None else data._replace(kept=data.kept.permute(order, features.plan.sizes[2]))


def _is_unchanged(order: IndexArray) -> bool:
    """Does every regime keep its number?"""
    return bool((order == np.arange(order.size)).all())


def _one_regime(symbols: int) -> HmmParameters:
    return HmmParameters(np.ones((1, 1)), np.full((1, symbols), 1.0 / symbols), np.ones(1))
