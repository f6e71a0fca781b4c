"""One policy on one environment over seeds: regrets, belief error, action shares.

Seed s draws the episode from `numpy.random.default_rng(s)` and is the campaign's own seed, so a run is a pure
function of (environment, configuration, s).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from policy import StagedPolicy, State
from policy.config import CampaignConfig
from simulator.environment import Environment, Episode, RewardModel
from simulator.presets import campaign

__all__ = [
    "ORACLE",
    "Run",
    "Summary",
    "belief_error",
    "checkpoints",
    "mean_and_two_se",
    "replay_seed",
    "summarise",
]

FloatArray = npt.NDArray[np.float64]
ORACLE = "oracle"  # knows every parameter; its pseudo-regret is 0 by definition


class Run(NamedTuple):
    """What one seed gave; curves are taken at `checkpoints(rounds)`."""

    seed: int
    pseudo_regret: FloatArray
    actual_regret: FloatArray
    belief_error: float  # mean L1 from start_round on, under the one best permutation; NaN without beliefs
    action_shares: FloatArray  # regimes × actions
    actions_sha256: str


class Summary(NamedTuple):
    """A mean over seeds with two standard errors, as the paper prints it."""

    mean: float
    two_se: float
    per_seed: list[float]


def checkpoints(rounds: int, count: int = 200) -> npt.NDArray[np.int64]:
    """Up to `count` rounds, evenly spaced, the last one included."""
    return np.unique(np.linspace(0, rounds, min(count, rounds) + 1).round().astype(np.int64)[1:])


def mean_and_two_se(values: Iterable[float]) -> Summary:
    sample = np.fromiter(values, float)
    two_se = 2.0 * float(sample.std(ddof=1)) / sample.size**0.5 if sample.size > 1 else float("nan")
    return Summary(float(sample.mean()), two_se, sample.tolist())


def replay_seed(
    environment: Environment,
    preset: str,
    seed: int,
    rounds: int,
    overrides: Mapping[str, Any] | None = None,
    reward_model: RewardModel | None = None,
) -> Run:
    """Draw the seed's episode and let the preset play it, in process."""
    episode = environment.draw(rounds, np.random.default_rng(seed), reward_model)
    if preset == ORACLE:
        return measured(environment, episode, seed, episode.oracle.astype(np.int16), None, 1)
    config = campaign(preset, environment, seed, overrides, rounds)
    policy = StagedPolicy(config)
    beliefs = np.empty((rounds, policy.features.regimes))  # as decided: the history's may be recomputed (R4)
    if episode.delays.size:
        state = _play_late(policy, environment, episode, beliefs)
    else:
        state = policy.play(policy.initial_state(), episode.contexts, episode.rewards, decided=beliefs)
    return measured(environment, episode, seed, state.history.actions[:rounds], beliefs, first_belief(config))


def _play_late(policy: StagedPolicy, environment: Environment, episode: Episode, decided: FloatArray) -> State:
    """Round by round, each reward when it is due, some never."""
    state = policy.initial_state()
    due: dict[int, list[tuple[int, float]]] = {}
    actions = {name: index for index, name in enumerate(environment.actions)}
    for row, delay in enumerate(episode.delays.tolist()):
        state, decision = policy.decide(state, environment.context(episode, row))
        decided[row] = 0.0
        decided[row, : len(decision.belief)] = decision.belief
        if delay >= 0:
            due.setdefault(row + delay, []).append((row + 1, episode.rewards[row, actions[decision.action]]))
        for number, reward in due.pop(row, ()):
            state = policy.reward(state, number, float(reward))
    return state


def first_belief(config: CampaignConfig) -> int:
    """The first round whose belief is an estimate."""
    return config.beliefs.start_round or 1


def measured(
    environment: Environment,
    episode: Episode,
    seed: int,
    actions: npt.NDArray[np.int16],
    beliefs: FloatArray | None,
    start_round: int,
) -> Run:
    """Everything a run is judged by."""
    rounds = actions.size
    marks = checkpoints(rounds) - 1
    shares = np.zeros((len(environment.regimes), len(environment.actions)))
    np.add.at(shares, (episode.regimes, actions), 1.0)
    error = float("nan")
    if beliefs is not None and beliefs.shape[1] >= episode.beliefs.shape[1] and rounds >= start_round:
        # A campaign that picks its number of regimes is judged on the rounds in which it had as many as there are.
        regimes = episode.beliefs.shape[1]
        alike = np.arange(rounds) >= start_round - 1
        if beliefs.shape[1] > regimes:
            alike &= (beliefs[:, regimes - 1] > 0.0) & (beliefs[:, regimes:] == 0.0).all(axis=1)
        if alike.any():
            error = belief_error(beliefs[alike, :regimes], episode.beliefs[alike])
    return Run(
        seed,
        episode.pseudo_regret(actions)[marks],
        episode.actual_regret(actions)[marks],
        error,
        shares / shares.sum(axis=1, keepdims=True).clip(min=1.0),
        hashlib.sha256(np.ascontiguousarray(actions, "<i2").tobytes()).hexdigest(),
    )


def belief_error(estimated: FloatArray, true: FloatArray) -> float:
    """Mean L1 distance under the one permutation of the regimes that suits the whole run best."""
    costs = np.abs(estimated[:, :, None] - true[:, None, :]).mean(axis=0)  # L1 is a sum over regimes
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum())


def _plain(summary: Summary) -> dict[str, Any]:
    mean, two_se, *per_seed = (None if np.isnan(x) else x for x in (summary.mean, summary.two_se, *summary.per_seed))
    return {"mean": mean, "two_se": two_se, "per_seed": per_seed}


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Means over seeds, as plain data; None where there is no number, as JSON has no NaN."""
    return {
        "pseudo_regret": _plain(mean_and_two_se(run.pseudo_regret[-1] for run in runs)),
        "actual_regret": _plain(mean_and_two_se(run.actual_regret[-1] for run in runs)),
        "belief_error": _plain(mean_and_two_se(run.belief_error for run in runs)),
        "action_shares": np.mean([run.action_shares for run in runs], axis=0).tolist(),
        "actions_sha256": {str(run.seed): run.actions_sha256 for run in runs},
    }
