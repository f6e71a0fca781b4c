"""A campaign's current model in readable form: regimes by their signals, coefficients by term, action and level.

The description is of the model in force; an update or re-estimation that is due does not run. Predicted rewards are
`centre` + Σ coefficient × column. The column of a `range` variable runs from 0 at the low end of its range to 1 at the
high end, so its coefficient is the effect of the whole range.

Standard errors are σ̂ √(G⁻¹)_ii, with G⁻¹ restricted to the directions that z can have. One-hot blocks are collinear
(a variable's levels sum to the intercept), so single coefficients are known only up to shifts between blocks that
change no prediction; θ̂ is the choice without any such shift, and the errors are those of this choice. In the other
directions `Statistics.inverse`, that of G + P (kernels.linucb), has 1/(1 + λ), and G⁻¹ itself 1/λ: constants that
say nothing about the data and would keep the errors from falling. They are left out. The errors take the beliefs as
given: they do not include the uncertainty about the regimes.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray
from policy.defaults import ENOUGH_DEVIATIONS
from policy.errors import ArgumentError
from policy.exposure import Waiting, weigh_rounds
from policy.features import FeatureMap
from policy.hmm import HmmParameters, stationary_law
from policy.selection import Verdict
from policy.staged import StagedPolicy
from policy.state import State

LEAST_FREEDOM = 4.0  # rewards beyond the effective parameters that an estimate of the noise needs


class SymbolProbability(NamedTuple):
    """How likely one combination of the signals' levels is."""

    symbol: dict[str, str]  # the level of each signal
    probability: float


class HmmDescription(NamedTuple):
    """The hidden chain. Regimes are in the order of `Coefficient.regime`: the first is regime 1."""

    transition: tuple[tuple[float, ...], ...]  # from regime (row) to regime
    initial: tuple[float, ...]
    expected_duration: tuple[float | None, ...]  # rounds, or periods of the campaign's clock; None: it never ends
    stationary: tuple[float, ...]  # the share of time in each regime in the long run
    emission: tuple[tuple[SymbolProbability, ...], ...]  # regime by regime, every symbol in the order of R9
    signal_laws: tuple[dict[str, dict[str, float]], ...]  # regime by regime, {signal: {level: probability}}


class Coefficient(NamedTuple):
    """One column of z (features.Column) and what it is worth."""

    term: str
    action: str | None
    level: str | None
    regime: int | None
    estimate: float
    standard_error: float | None  # None while there is no noise_std


class ModelDescription(NamedTuple):
    """A campaign's model in plain values, ready for JSON."""

    model_version: int
    round: int
    folded: int  # rewards in the model
    regimes: int  # in use
    guarded: bool  # more regimes were fitted but do not pay
    noise_std: float | None  # σ̂; None while too few rewards are folded
    ridge: float  # λ in G: under the theorems' bonuses not the configuration's (bonus.get_effective_ridge)
    centre: float  # what is subtracted from every reward before the fit
    hmm: HmmDescription | None  # None with one regime, and before the first estimate
    coefficients: tuple[Coefficient, ...]
    candidates: tuple[Verdict, ...]  # empty without joint statistics, and before their first estimate


class WarmStart(NamedTuple):
    """What the warm start still waits for (R8)."""

    rounds: int
    rewards: int  # in the model
    estimate: bool  # the first estimate: without it joint statistics have no noise, and so no bonus
    deviations: int  # rewards unlike the usual ones; for these it waits in ever fewer rounds


def get_warm_start(policy: StagedPolicy, state: State) -> WarmStart | None:
    """What the warm start still waits for; None if it is over."""
    config = policy.config
    rounds = max(config.warm_start_rounds, config.stage_length + 1) - state.round
    estimator = policy.estimator
    deviations = 0 if state.selection is None else max(ENOUGH_DEVIATIONS - state.selection.deviations, 0)
    missing = WarmStart(
        max(rounds, 0), estimator.count_missing_rewards(state), estimator.is_required(state), deviations
    )
    return missing if any(missing) else None


def get_search_share(state: State) -> float:
    """The share of the next rounds that belong to the warm start because rewards have not varied enough (R8)."""
    return min(1.0, math.sqrt(state.search_rounds / (state.round + 1)))


def describe(policy: StagedPolicy, state: State) -> ModelDescription:
    """Describe the model in force in a state."""
    regimes, statistics, selection = int(state.belief.size), state.statistics, state.selection
    features = policy.maps.get(regimes)
    if features is None or features.dimension != statistics.theta.size:
        raise ArgumentError("state", "belongs to another campaign", "a state of this campaign")
    # The diagonal of G⁻¹ on the span of all z: that of (G + P)⁻¹, less the 1 / (1 + λ) of the directions of P.
    unused = np.diagonal(features.plan.null) / (1.0 + policy.ridge)
    scaled = (np.diagonal(statistics.inverse) - unused).clip(min=0.0)
    # With joint statistics σ̂ is fitted together with θ̂; before the first fit its place holds a 1.
    if selection is None:
        noise = _residual_noise(features, policy.ridge, state, scaled, policy.config.rewards.default or 0.0)
    else:
        noise = float(statistics.units[1])
    errors = [None] * features.dimension if noise is None else (noise * np.sqrt(scaled)).tolist()
    columns = zip(features.column_parts, statistics.theta.tolist(), errors, strict=True)
    return ModelDescription(
        model_version=state.model_version,
        round=state.round,
        folded=state.counted,
        regimes=regimes,
        guarded=selection is not None and selection.guarded,
        noise_std=noise,
        ridge=float(policy.ridge),
        centre=float(statistics.units[0]),
        hmm=_describe_hmm(policy, state.hmm) if state.hmm is not None and regimes > 1 else None,
        coefficients=tuple(Coefficient(*column, estimate, error) for column, estimate, error in columns),
        candidates=selection.verdicts if selection is not None else (),
    )


def _residual_noise(
    features: FeatureMap, ridge: float, state: State, scaled: FloatArray, default: float
) -> float | None:
    """σ̂ from the residuals of the folded rounds, or None where they are too few.

    Σ(r - θ̂ᵀz)² comes from G, Σ z r and Σr², not from the recorded beliefs: those may have been recomputed while the
    statistics in force still wait to be (State.rebuild).
    """
    exposure = state.exposure
    if not state.folded and (
        exposure is None or not exposure.reached.any()
    ):  # nothing is factored yet: the inverse is I/λ in all directions
        return None
    gram, moment, _, theta, _, units = state.statistics
    rank = features.dimension - float(np.trace(features.plan.null))
    if exposure is None:
        folded = state.history.get_arrivals(0, state.folded)
        rewards = state.history.copy_rewards(state.folded)[folded] - units[0]
    else:
        weighed = weigh_rounds(
            state.history.copy(state.round, state.folded), state.round, Waiting(default, exposure.reached)
        )
        folded = weighed.rows
        rewards = (weighed.targets + default - units[0]) * np.sqrt(weighed.shares)
    freedom = folded.size - (rank - ridge * float(scaled.sum()))  # less tr G⁻¹(G - λI), the effective parameters
    if freedom < LEAST_FREEDOM:
        return None
    squares = rewards @ rewards - 2.0 * (theta @ moment) + theta @ gram @ theta - ridge * (theta @ theta)
    return float(np.sqrt(max(squares, 0.0) / freedom))


def _describe_hmm(policy: StagedPolicy, parameters: HmmParameters) -> HmmDescription:
    """The chain, and the levels of the signals that each regime shows."""
    signals = policy.config.signals or ()
    levels_of = {variable.name: variable.level_names for variable in policy.config.variables}
    levels = [levels_of[name] for name in signals]
    transition, emission, initial = parameters
    symbols = [dict(zip(signals, names, strict=True)) for names in product(*levels)]  # R9: the last signal is fastest
    laws = []
    for law in emission:
        table = law.reshape([len(names) for names in levels])
        axes = range(len(signals))
        margins = [table.sum(axis=tuple(other for other in axes if other != axis)).tolist() for axis in axes]
        named = (dict(zip(names, margin, strict=True)) for names, margin in zip(levels, margins, strict=True))
        laws.append(dict(zip(signals, named, strict=True)))
    return HmmDescription(
        transition=tuple(tuple(row) for row in transition.tolist()),
        initial=tuple(initial.tolist()),
        expected_duration=tuple(1.0 / (1.0 - stay) if stay < 1.0 else None for stay in transition.diagonal().tolist()),
        stationary=tuple(stationary_law(transition).tolist()),
        emission=tuple(tuple(map(SymbolProbability, symbols, law)) for law in emission.tolist()),
        signal_laws=tuple(laws),
    )
