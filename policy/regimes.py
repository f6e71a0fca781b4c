"""Each regime described for people: how often it occurs, who shows up in it, what it earns, which action is best.

The description is of the model in force and the recorded beliefs (R4). θ̂ᵀz is linear in z, so mean expected rewards
follow from the means of the columns, without a pass over single rounds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policy.arrays import FloatArray
from policy.config import ACTIONS, INTERCEPT
from policy.description import HmmDescription, ModelDescription, SymbolProbability, describe, get_warm_start
from policy.exposure import weigh_rounds
from policy.hmm import RECENT
from policy.staged import StagedPolicy
from policy.state import State

TYPICAL_SYMBOLS = 3
LEAST_DIFFERENCE = 0.05  # a level is mentioned if its probability is this much above the average
MOST_NAMED = 3  # levels mentioned in a sentence
_SPANS = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))


class LevelShare(NamedTuple):
    """A level of a signal that a regime shows more often than the average."""

    signal: str
    level: str
    probability: float
    average: float  # over all regimes, by their shares of time


class ExpectedReward(NamedTuple):
    """What an action would earn in a regime, by θ̂, for the customers seen in it."""

    action: str
    expected_reward: float
    retired: bool


class RegimeDescription(NamedTuple):
    """One regime. Shares and means are weighted by the belief in it; None where there is nothing to average."""

    regime: int  # counted from 1
    label: str | None
    words: str
    belief: float  # now
    share: float | None  # of all rounds in the window
    recent_share: float | None  # of the last RECENT rounds
    long_run_share: float  # of the model
    expected_duration: float | None  # decisions, or periods of the clock; None: it never ends
    expected_seconds: float | None  # the same on the clock
    typical: tuple[SymbolProbability, ...]  # the most likely symbols
    more_often: tuple[LevelShare, ...]  # the largest difference first
    best_action: str | None  # None while unknown
    expected_rewards: tuple[ExpectedReward, ...]  # empty while unknown
    mean_reward: float | None  # observed
    reward_weight: float  # rewards behind it


class Likeliest(NamedTuple):
    """The most likely regime, and the round since which it has been."""

    regime: int
    belief: float
    since_round: int | None  # None before the first round


def describe_regimes(policy: StagedPolicy, state: State) -> tuple[RegimeDescription, ...]:
    """The regimes of the model in force; none with one regime, or before the first estimate."""
    model, config, history = describe(policy, state), policy.config, state.history
    if model.hmm is None:
        return ()
    beliefs = history.beliefs[: state.rows, : model.regimes]
    shares, recent = _compute_shares(beliefs), _compute_shares(beliefs[-RECENT:])
    average = _average_laws(model.hmm, model.hmm.stationary if shares[0] is None else [s or 0.0 for s in shares])
    waiting = state.find_waiting(config.rewards.default)
    if waiting is None:
        rewarded = history.get_arrivals(0, state.arrived)  # without what a rollback has excluded
        weights, earned = beliefs[rewarded], history.copy_rewards(state.arrived)[rewarded]
    else:
        weighed = weigh_rounds(state.get_exact_history(), state.round, waiting)
        weights = beliefs[weighed.rows] * weighed.shares[:, None]
        earned = weighed.targets + waiting.default
    totals, sums = weights.sum(axis=0), earned @ weights
    warming_up = get_warm_start(policy, state) is not None
    expected = None if warming_up else _compute_expected_rewards(policy, state, model, beliefs)
    labels = dict(enumerate(config.regime_labels))
    retired = [action in config.retired_actions for action in config.actions]
    described = []
    for h in range(model.regimes):
        duration = model.hmm.expected_duration[h]
        values = [] if expected is None else expected[:, h].tolist()
        rewards = tuple(map(ExpectedReward, config.actions, values, retired))
        active = [reward for reward in rewards if not reward.retired]
        one = RegimeDescription(
            regime=h + 1,
            label=labels.get(h),
            words="",
            belief=float(state.belief[h]),
            share=shares[h],
            recent_share=recent[h],
            long_run_share=model.hmm.stationary[h],
            expected_duration=duration,
            expected_seconds=duration * config.clock.period_seconds if config.clock and duration is not None else None,
            typical=tuple(sorted(model.hmm.emission[h], key=lambda s: -s.probability)[:TYPICAL_SYMBOLS]),
            more_often=_find_more_often(model.hmm.signal_laws[h], average),
            best_action=max(active, key=lambda reward: reward.expected_reward).action if active else None,
            expected_rewards=rewards,
            mean_reward=float(sums[h] / totals[h]) if totals[h] > 0.0 else None,
            reward_weight=float(totals[h]),
        )
        described.append(one._replace(words=_write_sentence(one)))
    return tuple(described)


def get_likeliest_regime(state: State) -> Likeliest:
    """The most likely regime now, and the first round of the current run in which it was."""
    regime = int(state.belief.argmax())
    first = state.history.first
    beliefs = state.history.beliefs[: state.rows, : state.belief.size]
    others = np.flatnonzero(beliefs.argmax(axis=1) != regime)
    since = min(first + int(others[-1]) + 2, state.round) if others.size else first + 1
    return Likeliest(regime + 1, float(state.belief[regime]), since if state.round else None)


def explain_no_regimes(policy: StagedPolicy, state: State) -> str | None:
    """Why there is no description of regimes, in plain words; None if there is one."""
    config, selection = policy.config, state.selection
    if config.regime_counts[-1] == 1:
        return "The campaign has one regime."
    if state.belief.size > 1 and state.hmm is not None:
        return None
    if not policy.estimator.get_first_round():
        return f'The regimes are never estimated: beliefs.estimator is "{config.beliefs.estimator}".'
    due = f"before round {max(state.next_estimation, state.round + 1)}"
    if selection is not None and selection.guarded:
        return f"One regime is in use: more were tried and did not improve predictions. They are judged again {due}."
    if selection is not None:
        return f"One regime is in use: more cannot be told apart yet. The next attempt is {due}."
    return f"The regimes have not been estimated yet. The next attempt is {due}."


def _compute_shares(beliefs: FloatArray) -> Sequence[float | None]:
    """Mean beliefs; None for every regime where there is no round."""
    return beliefs.mean(axis=0).tolist() if len(beliefs) else [None] * beliefs.shape[1]


def _average_laws(chain: HmmDescription, shares: Sequence[float]) -> dict[str, dict[str, float]]:
    """How often each level of each signal occurs on average over the regimes."""
    laws = chain.signal_laws
    return {
        signal: {level: sum(s * law[signal][level] for s, law in zip(shares, laws, strict=True)) for level in levels}
        for signal, levels in laws[0].items()
    }


def _find_more_often(law: dict[str, dict[str, float]], average: dict[str, dict[str, float]]) -> tuple[LevelShare, ...]:
    levels = [
        LevelShare(signal, level, probability, average[signal][level])
        for signal, probabilities in law.items()
        for level, probability in probabilities.items()
    ]
    kept = [level for level in levels if level.probability - level.average >= LEAST_DIFFERENCE]
    return tuple(sorted(kept, key=lambda level: level.average - level.probability))


def _compute_expected_rewards(
    policy: StagedPolicy, state: State, model: ModelDescription, beliefs: FloatArray
) -> FloatArray:
    """Actions × regimes: θ̂ᵀz(e_h, a, x) over the contexts seen, each weighted by its belief in h."""
    config, contexts = policy.config, state.history.contexts
    weights = np.where(contexts.symbols[: state.rows, None] >= 0, beliefs, 0.0)  # erased contexts are unknown
    totals = weights.sum(axis=0)
    weights = weights / np.where(totals > 0.0, totals, 1.0)
    means: dict[tuple[str, str | None], FloatArray] = {}
    numbers = iter(range(contexts.values.shape[1]))
    for place, variable in enumerate(config.variables):
        levels, weighted = contexts.levels[: state.rows, place], weights
        if variable.range is not None:  # a number that is missing has the value 1
            weighted = weights * contexts.values[: state.rows, next(numbers), None]
        table = np.array([np.bincount(levels, weight, len(variable.effects)) for weight in weighted.T])
        means |= {(variable.name, level): column for level, column in zip(variable.effects, table.T, strict=True)}
    expected = np.full((len(config.actions), model.regimes), model.centre)
    places = {action: place for place, action in enumerate(config.actions)}
    for term, action, level, regime, estimate, _ in model.coefficients:
        variable_name = term.removeprefix(f"{ACTIONS}:")
        mean = np.ones(model.regimes) if variable_name in (INTERCEPT, ACTIONS) else means[variable_name, level]
        rows = slice(None) if action is None else places[action]
        columns = slice(None) if regime is None else regime - 1
        expected[rows, columns] += estimate * mean[columns]
    return expected


def _write_sentence(regime: RegimeDescription) -> str:
    """The regime in one sentence."""
    name = f"Regime {regime.regime}" + (f" ('{regime.label}')" if regime.label else "")
    share = regime.long_run_share if regime.share is None else regime.share
    if regime.expected_duration is None:
        stretch = "without an end"
    elif regime.expected_seconds is None:
        stretch = f"for some {_format_number(regime.expected_duration)} decisions at a stretch"
    else:
        stretch = f"for some {_format_span(regime.expected_seconds)} at a stretch"
    levels = [f"{level.signal}={level.level}" for level in regime.more_often[:MOST_NAMED]]
    who = f"customers are more often {', '.join(levels)}" if levels else "customers are as in the others"
    rewards = {each.action: each.expected_reward for each in regime.expected_rewards}
    best = regime.best_action and f"{regime.best_action} (expected {rewards[regime.best_action]:.3g})"
    return f"{name}: about {100 * share:.0f} % of the time, {stretch}; {who}; best action: {best or 'not known yet'}."


def _format_number(number: float) -> str:
    """A number with two significant digits, without an exponent."""
    return f"{number:.1f}" if number < 9.5 else f"{float(f'{number:.2g}'):,.0f}"


def _format_span(seconds: float) -> str:
    unit, size = next((each for each in _SPANS if seconds >= 2 * each[1]), _SPANS[-1])
    return f"{_format_number(seconds / size)} {unit}"
