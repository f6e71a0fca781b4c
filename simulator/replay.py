"""Play one policy on one environment, and measure regrets, belief error and action shares.

Seed s draws the episode from `numpy.random.default_rng(s)` and is also the campaign's seed, so a run is a pure
function of (environment, configuration, s).
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from policy import CampaignConfig, StagedPolicy
from policy.arrays import FloatArray
from simulator.agents import Agent, LocalAgent
from simulator.delivery import AT_ONCE, Delivery
from simulator.environment import Environment, Episode, RewardModel
from simulator.presets import Preset, build_config, require_fit

LARGEST_STEP = 1_000  # most rounds in one request
ORACLE = "oracle"  # knows every parameter; its pseudo-regret is 0 by definition


class Run(NamedTuple):
    """The result of one seed; curves have a value at each of `pick_checkpoints(rounds)`."""

    seed: int
    pseudo_regret: FloatArray
    actual_regret: FloatArray
    belief_error: float  # mean L1 distance from start_round on, under the best permutation; NaN without beliefs
    action_shares: FloatArray  # regimes × actions
    actions_sha256: str
    reward: float  # mean per decision
    gain: float  # share of what the oracle earns beyond random choice: 1 is the oracle, 0 random choice


class Summary(NamedTuple):
    """A mean over seeds with two standard errors, as in the paper."""

    mean: float
    two_se: float
    per_seed: list[float]


def pick_checkpoints(rounds: int, count: int = 200) -> npt.NDArray[np.int64]:
    """Return up to `count` evenly spaced rounds, including the last."""
    return np.unique(np.linspace(0, rounds, min(count, rounds) + 1).round().astype(np.int64)[1:])


def average(values: Iterable[float]) -> Summary:
    """Return the mean and two standard errors; NaN for the errors of a single value."""
    sample = np.fromiter(values, float)
    two_se = 2.0 * float(sample.std(ddof=1)) / sample.size**0.5 if sample.size > 1 else float("nan")
    return Summary(float(sample.mean()), two_se, sample.tolist())


class Task(NamedTuple):
    """One campaign to play: everything that determines its run."""

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

    def build_config(self, name: str | None = None) -> CampaignConfig:
        """Build the campaign's configuration, optionally under another name."""
        overrides = {**(self.overrides or {}), **({} if name is None else {"name": name})}
        config = build_config(self.preset, self.environment, self.seed, overrides, self.rounds)
        require_fit(config, self.environment)
        return config

    def draw_episode(self) -> Episode:
        return self.environment.draw(self.rounds, np.random.default_rng(self.seed), self.reward_model)


def replay_seed(task: Task) -> Run:
    """Draw the seed's episode and play the preset on it, in process."""
    if task.preset == ORACLE:
        episode = task.draw_episode()
        return measure_run(task.environment, episode, task.seed, episode.oracle.astype(np.int16), None, 1)
    config = task.build_config()
    untimed = config.rewards.model_copy(update={"default": None, "wait_seconds": None, "while_waiting": None})
    game = Game(task, config.model_copy(update={"rewards": untimed}))  # in process no time passes, so no wait ends
    if game.schedule.is_immediate and _has_same_tables(game.config, task.environment):
        game.play_compiled()
    else:
        game.play(LocalAgent(game.config), game.config.stage_length)
    return game.measure()


def _has_same_tables(config: CampaignConfig, environment: Environment) -> bool:
    """Whether actions, variables and levels have the same order in both, as with every preset."""
    ours = [(variable.name, variable.levels, variable.cuts) for variable in config.variables]
    theirs = [(variable["name"], tuple(variable["levels"]), None) for variable in environment.variables]
    return (ours, config.actions, config.signals) == (theirs, environment.actions, environment.signals)


class Game:
    """An episode that an agent is playing; the rounds played so far can be measured at any time."""

    def __init__(self, task: Task, config: CampaignConfig) -> None:
        self.task, self.config, self.episode = task, config, task.draw_episode()
        self.schedule = task.delivery.schedule(self.episode.delays, task.seed)
        self.done = 0  # rounds
        self.regret = 0.0  # pseudo-regret so far
        self._actions = np.zeros(task.rounds, np.int16)
        self._beliefs = np.zeros((task.rounds, config.regime_counts[-1]))  # as decided (R4)

    def play_compiled(self) -> None:
        """Play to the end in compiled code, which needs rewards at once and the environment's own tables."""
        policy, rounds = StagedPolicy(self.config), self.task.rounds
        contexts, rewards = self.episode.contexts, self.episode.rewards
        policy.play(policy.initial_state(), contexts, rewards, decided=self._beliefs, chosen=self._actions)
        self.done = rounds

    def play(self, agent: Agent, step: int = 1, on_step: Callable[["Game"], object] = lambda game: None) -> None:
        """Play to the end, delivering each reward when it is due.

        `step` is 1 or the stage length. Rewards count from the next stage on, so both give the same run.
        `on_step` is called after each step and may raise to stop the game there.
        """
        environment, episode, rounds = self.task.environment, self.episode, self.task.rounds
        actions = {name: index for index, name in enumerate(environment.actions)}
        variables = [variable.name for variable in self.config.variables]
        while self.done < rounds:
            start, decided = self.done, agent.rounds_decided
            target = decided if start < decided else (start // step + 1) * step  # rounds decided before are repeated
            stop = min(target, start + LARGEST_STEP, rounds)
            contexts = [environment.describe_context(episode, row) for row in range(start, stop)]
            choices = agent.decide([{name: context[name] for name in variables} for context in contexts])
            for row, choice in enumerate(choices, start):
                self._actions[row] = index = actions[choice.action]
                self._beliefs[row, : len(choice.belief)] = choice.belief
                self.regret += float(episode.values[row, episode.oracle[row]] - episode.values[row, index])
            due = self.schedule.take_due(stop)
            if due:
                agent.reward([(row + 1, float(episode.rewards[row, self._actions[row]])) for row in due])
            self.done = stop
            on_step(self)

    def measure(self, rounds: int | None = None) -> Run:
        """Measure the run up to a round, or as far as it was played."""
        stop, task, start_round = self.done if rounds is None else rounds, self.task, self.config.beliefs.start_round
        actions, beliefs = self._actions[:stop], self._beliefs[:stop]
        return measure_run(task.environment, self.episode, task.seed, actions, beliefs, start_round)


def measure_run(
    environment: Environment,
    episode: Episode,
    seed: int,
    actions: npt.NDArray[np.int16],
    beliefs: FloatArray | None,
    start_round: int | None,
) -> Run:
    """Measure a run, which may be shorter than its episode. `start_round` is the first with an estimated belief."""
    rounds = actions.size
    marks = pick_checkpoints(rounds) - 1
    shares = np.zeros((len(environment.regimes), len(environment.actions)))
    np.add.at(shares, (episode.regimes[:rounds], actions), 1.0)
    pseudo_regret, actual_regret = episode.compute_regrets(actions)
    values = episode.values[:rounds]
    at_stake = float((values.max(axis=1) - values.mean(axis=1)).sum())
    return Run(
        seed=seed,
        pseudo_regret=pseudo_regret[marks],
        actual_regret=actual_regret[marks],
        belief_error=_measure_beliefs(beliefs, episode.beliefs[:rounds], start_round or 1),
        action_shares=shares / shares.sum(axis=1, keepdims=True).clip(min=1.0),
        actions_sha256=hashlib.sha256(np.ascontiguousarray(actions, "<i2").tobytes()).hexdigest(),
        reward=float(episode.rewards[np.arange(rounds), actions].mean()),
        gain=1.0 - float(pseudo_regret[-1]) / at_stake if at_stake > 0.0 else float("nan"),
    )


def _measure_beliefs(estimated: FloatArray | None, true: FloatArray, start_round: int) -> float:
    """Compute the belief error from start_round on.

    A campaign that chooses its number of regimes is measured on the rounds in which it had the true number.
    """
    rounds, regimes = true.shape
    if estimated is None or estimated.shape[1] < regimes:
        return float("nan")
    is_measured = np.arange(rounds) >= start_round - 1
    if estimated.shape[1] > regimes:
        is_measured &= (estimated[:, regimes - 1] > 0.0) & (estimated[:, regimes:] == 0.0).all(axis=1)
    if not is_measured.any():
        return float("nan")
    return compute_belief_error(estimated[is_measured, :regimes], true[is_measured])


def compute_belief_error(estimated: FloatArray, true: FloatArray) -> float:
    """Compute the mean L1 distance under the one permutation of the regimes that fits the whole run best."""
    costs = np.abs(estimated[:, :, None] - true[:, None, :]).mean(axis=0)  # the L1 distance is a sum over regimes
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum())


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Average runs over seeds into JSON values; None replaces NaN, which JSON lacks."""

    def summarise_values(values: Iterable[float]) -> dict[str, Any]:
        summary = average(values)
        known = (None if np.isnan(x) else x for x in (summary.mean, summary.two_se, *summary.per_seed))
        mean, two_se, *per_seed = known
        return {"mean": mean, "two_se": two_se, "per_seed": per_seed}

    return {
        "pseudo_regret": summarise_values(run.pseudo_regret[-1] for run in runs),
        "actual_regret": summarise_values(run.actual_regret[-1] for run in runs),
        "reward": summarise_values(run.reward for run in runs),
        "gain": summarise_values(run.gain for run in runs),
        "belief_error": summarise_values(run.belief_error for run in runs),
        "action_shares": np.mean([run.action_shares for run in runs], axis=0).tolist(),
        "actions_sha256": {str(run.seed): run.actions_sha256 for run in runs},
    }


def format_mean(value: Mapping[str, Any], form: str) -> str:
    """Format a mean of `summarise` with its two standard errors, as far as they are known."""
    known = [form.format(value[part]) for part in ("mean", "two_se") if value[part] is not None]
    return " ± ".join(known) or "–"
