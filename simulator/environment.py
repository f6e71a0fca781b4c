"""The HMM environment: hidden regimes emit symbols, symbols come with full contexts, actions earn noisy rewards.

An environment is data (simulator/data/*.json): transition, emission, initial law, reward coefficients per regime.
Drawn episodes know what the learner does not: the regimes, the true beliefs, every action's reward, the oracle.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from policy.features import Contexts
from policy.hmm import HmmParameters, filter_history, sample
from simulator.prepare import load_profiles

__all__ = ["ENVIRONMENTS", "HOSTILE", "Environment", "Episode", "load_environment"]

FloatArray = npt.NDArray[np.float64]
RewardModel = Literal["regime", "belief"]
ENVIRONMENTS = ("credit-card", "nelson", "three-regimes")
# Variants of the credit-card environment that break an assumption each (data/hostile.json).
HOSTILE = ("binary", "sparse", "belief-rewards", "quiet-regimes", "iid", "delayed")
SPARSE_SHARE, SPARSE_LOG_STD = 0.05, 0.5  # of the law "sparse": how often a reward is not 0, and how it scatters then


class Episode(NamedTuple):
    """One run's randomness, drawn before anyone acts: T rounds, K actions, H regimes."""

    contexts: Contexts
    regimes: npt.NDArray[np.int16]
    beliefs: FloatArray  # T×H, true beliefs b_t
    values: FloatArray  # T×K, expected reward of each action given the true belief
    rewards: FloatArray  # T×K, the reward each action would earn
    oracle: npt.NDArray[np.intp]  # a*_t: the best action for who knows every parameter and the contexts so far
    delays: npt.NDArray[np.int64]  # rounds until each reward is known, -1 for never; empty if all are at once

    def pseudo_regret(self, actions: npt.NDArray[np.integer[Any]]) -> FloatArray:
        """R_1 … R_T (eq. def-regret)."""
        return self._regret(self.values, actions)

    def actual_regret(self, actions: npt.NDArray[np.integer[Any]]) -> FloatArray:
        """Σ r_t(a*_t) − r_t(a_t): regret on the rewards as they fell (section "Two Notions of Regret")."""
        return self._regret(self.rewards, actions)

    def _regret(self, table: FloatArray, actions: npt.NDArray[np.integer[Any]]) -> FloatArray:
        rows = np.arange(actions.size)
        gaps: FloatArray = table[rows, self.oracle[rows]] - table[rows, actions]
        return gaps.cumsum()


@dataclass(frozen=True, eq=False)
class Environment:
    """Everything that is fixed about a simulated world. A cell is one combination of all variables' levels."""

    name: str
    regimes: tuple[str, ...]
    actions: tuple[str, ...]
    variables: tuple[dict[str, Any], ...]
    signals: tuple[str, ...]
    action_terms: tuple[Any, ...]  # the interactions a campaign should have besides `actions`
    hmm: HmmParameters
    noise_std: float  # of the law "gaussian"
    reward_law: str  # gaussian, binary (0 or 1) or sparse (mostly 0, else lognormal); its mean is `means`
    reward_model: RewardModel
    mean_delay: float  # rounds until a reward is known, geometric; 0: at once
    loss: float  # share of the rewards that never come
    levels: npt.NDArray[np.int16]  # cells × variables
    cell_laws: tuple[tuple[npt.NDArray[np.intp], FloatArray], ...]  # per symbol: its cells, cumulative law
    means: FloatArray  # H × K × cells: φ(a, x)ᵀθ*_h

    def draw(self, rounds: int, generator: np.random.Generator, reward_model: RewardModel | None = None) -> Episode:
        """One episode. The same generator state gives the same episode; actions never influence it.

        `reward_model`: "regime" is eq. reward-our, "belief" the simplified eq. nelson-model-gener; without one, the
        environment's own.
        """
        regimes, symbols = sample(self.hmm, rounds, generator)
        cells = self._draw_cells(symbols, generator.random(rounds))
        noise = generator.normal(0.0, 1.0, (rounds, len(self.actions)))
        beliefs = filter_history(self.hmm, symbols).beliefs
        # T×K for each regime; the belief mixes them.
        by_regime = self.means[:, :, cells].transpose(0, 2, 1)
        values = np.einsum("th,htk->tk", beliefs, by_regime)
        from_belief = (reward_model or self.reward_model) == "belief"
        expected = values if from_belief else by_regime[regimes, np.arange(rounds)]
        contexts = Contexts(self.levels[cells], np.empty((rounds, 0)), symbols)
        rewards = self._earned(expected, noise, generator)
        delays = self._delays(rounds, generator)
        return Episode(contexts, regimes, beliefs, values, rewards, values.argmax(axis=1), delays)

    def _earned(self, expected: FloatArray, noise: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Rewards with the given means, by the environment's law; `noise` is standard normal."""
        if self.reward_law == "gaussian":
            return expected + self.noise_std * noise
        if self.reward_law == "binary":
            return (generator.random(expected.shape) < expected).astype(np.float64)
        amounts: FloatArray = np.exp(SPARSE_LOG_STD * noise - SPARSE_LOG_STD**2 / 2) * expected / SPARSE_SHARE
        return np.where(generator.random(expected.shape) < SPARSE_SHARE, amounts, 0.0)

    def _delays(self, rounds: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        if not self.mean_delay and not self.loss:
            return np.empty(0, np.int64)
        delays = generator.geometric(1.0 / (1.0 + self.mean_delay), rounds) - 1
        return np.where(generator.random(rounds) < self.loss, -1, delays)

    def _draw_cells(self, symbols: npt.NDArray[np.int16], uniforms: FloatArray) -> npt.NDArray[np.intp]:
        """A full context for each symbol, independent of the regime given the symbol."""
        cells = np.empty(symbols.size, np.intp)
        for symbol, (members, cumulative) in enumerate(self.cell_laws):
            rows = np.flatnonzero(symbols == symbol)
            cells[rows] = members[np.searchsorted(cumulative, uniforms[rows], side="right")]
        return cells

    def context(self, episode: Episode, row: int) -> dict[str, str]:
        """One drawn context in words, as a marketing system would send it."""
        return {
            variable["name"]: variable["levels"][level]
            for variable, level in zip(self.variables, episode.contexts.levels[row], strict=True)
        }


@cache
def load_environment(name: str) -> Environment:
    """A shipped environment by name, or one's own by the path of its .json file."""
    if name.endswith(".json"):
        try:
            return build_environment(json.loads(Path(name).read_text(encoding="utf-8")))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            message = f"{name} does not describe an environment ({error!r}); see simulator/data/nelson.json"
            raise ValueError(message) from None
    if name not in ENVIRONMENTS + HOSTILE:
        there_are = ", ".join(ENVIRONMENTS + HOSTILE)
        raise ValueError(f"unknown environment {name!r}; there are {there_are}, or a .json file")
    if name in HOSTILE:
        variant = _shipped("hostile")[name]
        return build_environment({**_shipped(variant["base"]), **variant, "name": name})
    return build_environment(_shipped(name))


def _shipped(name: str) -> dict[str, Any]:
    file = resources.files("simulator") / "data" / f"{name.replace('-', '_')}.json"
    description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return description


def build_environment(data: dict[str, Any]) -> Environment:
    """An environment from its description: see data/credit_card.json."""
    names = [variable["name"] for variable in data["variables"]]
    sizes = [len(variable["levels"]) for variable in data["variables"]]
    levels = np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int16)
    symbols = np.zeros(levels.shape[0], np.intp)
    for signal in data["signals"]:  # R9: row-major, the last signal fastest
        place = names.index(signal)
        symbols = symbols * sizes[place] + levels[:, place]
    weights = _cell_weights(data, levels)
    laws = []
    for symbol in range(int(symbols.max()) + 1):
        members = np.flatnonzero((symbols == symbol) & (weights > 0.0))
        cumulative = weights[members].cumsum()
        laws.append((members, cumulative / cumulative[-1]))
    if len(data["emission"][0]) != len(laws):
        raise ValueError(f"emission has {len(data['emission'][0])} symbols, the signals have {len(laws)}")
    means = np.array([_means(data, data["rewards"][regime], names, levels) for regime in data["regimes"]])
    means = data.get("reward_shift", 0.0) + data.get("reward_scale", 1.0) * means
    delivery = data.get("delivery", {})
    return Environment(
        name=data["name"],
        regimes=tuple(data["regimes"]),
        actions=tuple(data["actions"]),
        variables=tuple(data["variables"]),
        signals=tuple(data["signals"]),
        action_terms=tuple(data.get("action_terms", [f"actions:{name}" for name in data["signals"]])),
        hmm=HmmParameters.checked(data["transition"], data["emission"], data["initial"]),
        noise_std=float(data["noise_std"]),
        reward_law=data.get("reward_law", "gaussian"),
        reward_model=data.get("reward_model", "regime"),
        mean_delay=float(delivery.get("mean_delay", 0.0)),
        loss=float(delivery.get("loss", 0.0)),
        levels=levels,
        cell_laws=tuple(laws),
        means=means,
    )


def _cell_weights(data: dict[str, Any], levels: npt.NDArray[np.int16]) -> FloatArray:
    """How common each cell is among those with its symbol: the UCI profiles, or independent variables."""
    if data.get("profiles") == "credit-card":
        return load_profiles().astype(np.float64).ravel()
    weights = np.ones(levels.shape[0])
    for place, variable in enumerate(data["variables"]):
        weights *= np.asarray(variable.get("probabilities", np.ones(len(variable["levels"]))))[levels[:, place]]
    return weights


def _means(
    data: dict[str, Any], coefficients: dict[str, Any], names: list[str], levels: npt.NDArray[np.int16]
) -> FloatArray:
    """φ(a, x)ᵀθ_h of one regime for every action and cell (K × cells), from its coefficients by term."""
    means = np.zeros((len(data["actions"]), levels.shape[0]))
    for term, value in coefficients.items():
        variable = term.removeprefix("actions").removeprefix(":")
        if term.startswith("actions"):
            for action, effect in value.items():
                row = means[data["actions"].index(action)]
                row += np.asarray(effect)[levels[:, names.index(variable)]] if variable else effect
        elif term == "intercept":
            means += value
        else:
            means += np.asarray(value)[levels[:, names.index(variable)]]
    return means
