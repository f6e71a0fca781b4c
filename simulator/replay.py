"""One policy on one environment over seeds: regrets, belief error, action shares.

Seed s draws the episode from `numpy.random.default_rng(s)` and is the campaign's own seed, so a run is a pure
function of (environment, configuration, s).
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from policy import CampaignConfig, StagedPolicy
from simulator.agents import Agent, LocalAgent
from simulator.delivery import AT_ONCE, Delivery, Schedule
from simulator.environment import Environment, Episode, RewardModel
from simulator.presets import Preset, campaign, require_fit

__all__ = [
    "ORACLE",
    "Game",
    "Run",
    "Summary",
    "Task",
    "belief_error",
    "checkpoints",
    "mean_and_two_se",
    "replay_seed",
    "summarise",
]

FloatArray = npt.NDArray[np.float64]
LARGEST_STEP = 1_000  # rounds in one request
ORACLE = "oracle"  # knows every parameter; its pseudo-regret is 0 by definition


class Run(NamedTuple):
    """What one seed gave; curves are taken at `checkpoints(rounds)`."""

    seed: int
    pseudo_regret: FloatArray
    actual_regret: FloatArray
    belief_error: float  # mean L1 from start_round on, under the one best permutation; NaN without beliefs
    action_shares: FloatArray  # regimes × actions
    actions_sha256: str
    reward: float = float("nan")  # earned by a decision, on average
    gain: float = float("nan")  # of what knowing everything earns more than choosing blindly: 1 is all, 0 nothing


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


class Task(NamedTuple):
    """One campaign to play: all that its run is a function of."""

    environment: Environment
    preset: Preset
    seed: int
    rounds: int
    overrides: Mapping[str, Any] | None = None
    reward_model: RewardModel | None = None
    delivery: Delivery = AT_ONCE

    @property
    def title(self) -> str:
        return self.preset if isinstance(self.preset, str) else str(self.preset["name"])

    def config(self, name: str | None = None) -> CampaignConfig:
        """The campaign's configuration, under its own name or another one."""
        overrides = {**(self.overrides or {}), **({} if name is None else {"name": name})}
        config = campaign(self.preset, self.environment, self.seed, overrides, self.rounds)
        require_fit(config, self.environment)
        return config

    def episode(self) -> Episode:
        return self.environment.draw(self.rounds, np.random.default_rng(self.seed), self.reward_model)


def replay_seed(
    environment: Environment,
    preset: Preset,
    seed: int,
    rounds: int,
    overrides: Mapping[str, Any] | None = None,
    reward_model: RewardModel | None = None,
    delivery: Delivery = AT_ONCE,
) -> Run:
    """Draw the seed's episode and let the preset play it, in process."""
    task = Task(environment, preset, seed, rounds, overrides, reward_model, delivery)
    episode = task.episode()
    if preset == ORACLE:
        return measured(environment, episode, seed, episode.oracle.astype(np.int16), None, 1)
    config = task.config()
    schedule = delivery.schedule(episode.delays, rounds, seed)
    if schedule.at_once and _same_words(config, environment):
        policy = StagedPolicy(config)
        beliefs = np.empty((rounds, policy.features.regimes))  # as decided: the history's may be recomputed (R4)
        state = policy.play(policy.initial_state(), episode.contexts, episode.rewards, decided=beliefs)
        return measured(environment, episode, seed, state.history.actions[:rounds], beliefs, first_belief(config))
    game = Game(task, config, episode, schedule)
    game.play(LocalAgent(config), config.stage_length)
    return game.measured()


def _same_words(config: CampaignConfig, environment: Environment) -> bool:
    """Are the environment's tables the campaign's own, index by index? Presets' always are."""
    mine = [(variable.name, variable.levels, variable.cuts) for variable in config.variables]
    theirs = [(variable["name"], tuple(variable["levels"]), None) for variable in environment.variables]
    return (mine, config.actions, config.signals) == (theirs, environment.actions, environment.signals)


class Game:
    """An episode while an agent plays it; what was played so far can be measured at any time."""

    def __init__(self, task: Task, config: CampaignConfig, episode: Episode, schedule: Schedule) -> None:
        self.task, self.config, self.episode, self.schedule = task, config, episode, schedule
        self.done = 0  # rounds
        self.regret = 0.0  # pseudo-regret so far
        self._actions = np.zeros(task.rounds, np.int16)
        self._beliefs = np.zeros((task.rounds, StagedPolicy(config).features.regimes))

    def play(self, agent: Agent, step: int = 1, tick: Callable[["Game"], object] = lambda game: None) -> None:
        """Play on to the end, with each reward handed over when it is due.

        `step` is 1 or the stage length: rewards count from the next stage on, so whole stages at a time give the same.
        `tick` is called after each step and may raise to stop the game there.
        """
        environment, episode, rounds = self.task.environment, self.episode, self.task.rounds
        actions = {name: index for index, name in enumerate(environment.actions)}
        variables = [variable.name for variable in self.config.variables]
        while self.done < rounds:
            start = self.done
            stop = min(self._next_stop(agent.known, step), rounds)
            everything = [environment.context(episode, row) for row in range(start, stop)]
            choices = agent.decide([{name: context[name] for name in variables} for context in everything])
            for row, (action, belief) in enumerate(choices, start):
                self._actions[row] = index = actions[action]
                self._beliefs[row, : len(belief)] = belief
                self.regret += float(episode.values[row, episode.oracle[row]] - episode.values[row, index])
            earned = [(row + 1, float(episode.rewards[row, self._actions[row]])) for row in self.schedule.due(stop)]
            if earned:
                agent.reward(earned)
            self.done = stop
            tick(self)

    def _next_stop(self, known: int, step: int) -> int:
        """Where the next step ends: rounds that were decided before have all their answers already."""
        if self.done < known:
            return min(known, self.done + LARGEST_STEP)
        return min((self.done // step + 1) * step, self.done + LARGEST_STEP)

    def measured(self, rounds: int | None = None) -> Run:
        """The run up to a round, or as far as it was played."""
        stop, task = self.done if rounds is None else rounds, self.task
        actions, beliefs = self._actions[:stop], self._beliefs[:stop]
        return measured(task.environment, self.episode, task.seed, actions, beliefs, first_belief(self.config))


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
    """Everything a run is judged by; it may have ended before the episode does."""
    rounds = actions.size
    marks = checkpoints(rounds) - 1
    shares = np.zeros((len(environment.regimes), len(environment.actions)))
    np.add.at(shares, (episode.regimes[:rounds], actions), 1.0)
    error = float("nan")
    if beliefs is not None and beliefs.shape[1] >= episode.beliefs.shape[1] and rounds >= start_round:
        # A campaign that picks its number of regimes is judged on the rounds in which it had as many as there are.
        regimes = episode.beliefs.shape[1]
        alike = np.arange(rounds) >= start_round - 1
        if beliefs.shape[1] > regimes:
            alike &= (beliefs[:, regimes - 1] > 0.0) & (beliefs[:, regimes:] == 0.0).all(axis=1)
        if alike.any():
            error = belief_error(beliefs[alike, :regimes], episode.beliefs[:rounds][alike])
    pseudo_regret = episode.pseudo_regret(actions)
    values = episode.values[:rounds]
    at_stake = float((values.max(axis=1) - values.mean(axis=1)).sum())
    return Run(
        seed,
        pseudo_regret[marks],
        episode.actual_regret(actions)[marks],
        error,
        shares / shares.sum(axis=1, keepdims=True).clip(min=1.0),
        hashlib.sha256(np.ascontiguousarray(actions, "<i2").tobytes()).hexdigest(),
        float(episode.rewards[np.arange(rounds), actions].mean()),
        1.0 - float(pseudo_regret[-1]) / at_stake if at_stake > 0.0 else float("nan"),
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
        "reward": _plain(mean_and_two_se(run.reward for run in runs)),
        "gain": _plain(mean_and_two_se(run.gain for run in runs)),
        "belief_error": _plain(mean_and_two_se(run.belief_error for run in runs)),
        "action_shares": np.mean([run.action_shares for run in runs], axis=0).tolist(),
        "actions_sha256": {str(run.seed): run.actions_sha256 for run in runs},
    }
