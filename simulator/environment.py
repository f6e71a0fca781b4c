"""Simulated worlds: hidden regimes emit symbols, symbols come with full contexts, actions earn noisy rewards.

An environment is data (simulator/data/*.json): transition, emission, initial law, reward coefficients per regime.
An episode contains what the learner cannot see: regimes, true beliefs, the reward of every action, the oracle.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from policy.arrays import FloatArray
from policy.encoding import Contexts
from policy.hmm import HmmParameters, filter_history, sample
from simulator.delivery import AT_ONCE, Delays, Delivery
from simulator.prepare import load_profiles

RewardModel = Literal["regime", "belief"]
ENVIRONMENTS = ("credit-card", "nelson", "three-regimes")
# Variants of the credit-card environment, each of which breaks one assumption (data/hostile.json).
HOSTILE = ("binary", "sparse", "belief-rewards", "quiet-regimes", "iid", "delayed")
SPARSE_SHARE, SPARSE_LOG_STD = 0.05, 0.5  # reward law "sparse": share of nonzero rewards, std of their logarithm


class Episode(NamedTuple):
    """All randomness of one run, drawn before any action is taken: T rounds, K actions, H regimes."""

    contexts: Contexts
    regimes: npt.NDArray[np.int16]
    beliefs: FloatArray  # T×H, true beliefs b_t
    values: FloatArray  # T×K, expected reward of each action given the true belief
    rewards: FloatArray  # T×K, the reward each action would earn
    oracle: npt.NDArray[np.intp]  # a*_t: the best action given every parameter and the contexts so far
    delays: Delays

    def compute_regrets(self, actions: npt.NDArray[np.integer[Any]]) -> FloatArray:
        """Cumulative regrets after each of the actions' rounds (2 × rounds).

        First the pseudo-regret (eq. def-regret), then Σ r_t(a*_t) − r_t(a_t) on the rewards drawn (section "Two Notions
        of Regret").
        """
        rows = np.arange(actions.size)
        gaps = [table[rows, self.oracle[rows]] - table[rows, actions] for table in (self.values, self.rewards)]
        return np.cumsum(gaps, axis=1)


@dataclass(frozen=True, eq=False)
class Environment:
    """The fixed parameters of a simulated world. A cell is one combination of all variables' levels."""

    name: str
    regimes: tuple[str, ...]
    actions: tuple[str, ...]
    variables: tuple[dict[str, Any], ...]
    signals: tuple[str, ...]
    action_terms: tuple[Any, ...]  # interactions for a campaign's features, besides `actions`
    hmm: HmmParameters
    noise_std: float  # for the law "gaussian"
    reward_law: str  # gaussian, binary (0 or 1) or sparse (mostly 0, otherwise lognormal), all with mean `means`
    reward_model: RewardModel
    delivery: Delivery
    levels: npt.NDArray[np.int16]  # cells × variables
    cell_laws: tuple[tuple[npt.NDArray[np.intp], FloatArray], ...]  # per symbol: cells, cumulative probabilities
    means: FloatArray  # H × K × cells: φ(a, x)ᵀθ*_h

    def draw(self, rounds: int, generator: np.random.Generator, reward_model: RewardModel | None = None) -> Episode:
        """Draw one episode. The same generator state gives the same episode; actions never influence it.

        `reward_model`: "regime" is eq. reward-our, "belief" the simplified eq. nelson-model-gener, None the
        environment's own.
        """
        regimes, symbols = sample(self.hmm, rounds, generator)
        cells = self._draw_cells(symbols, generator.random(rounds))
        noise = generator.normal(0.0, 1.0, (rounds, len(self.actions)))
        beliefs = filter_history(self.hmm, symbols).beliefs
        by_regime = self.means[:, :, cells].transpose(0, 2, 1)  # H×T×K
        values = np.einsum("th,htk->tk", beliefs, by_regime)
        uses_belief = (reward_model or self.reward_model) == "belief"
        expected = values if uses_belief else by_regime[regimes, np.arange(rounds)]
        contexts = Contexts(self.levels[cells], np.empty((rounds, 0)), symbols)
        rewards = self._draw_rewards(expected, noise, generator)
        delays = self.delivery.delay(np.zeros(rounds, np.int64), generator)
        return Episode(contexts, regimes, beliefs, values, rewards, values.argmax(axis=1), delays)

    def _draw_rewards(self, expected: FloatArray, noise: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Draw rewards with the given means from the environment's law; `noise` is standard normal."""
        if self.reward_law == "gaussian":
            return expected + self.noise_std * noise
        if self.reward_law == "binary":
            return (generator.random(expected.shape) < expected).astype(np.float64)
        amounts: FloatArray = np.exp(SPARSE_LOG_STD * noise - SPARSE_LOG_STD**2 / 2) * expected / SPARSE_SHARE
        return np.where(generator.random(expected.shape) < SPARSE_SHARE, amounts, 0.0)

    def _draw_cells(self, symbols: npt.NDArray[np.int16], uniforms: FloatArray) -> npt.NDArray[np.intp]:
        """Draw a full context for each symbol; given the symbol, it does not depend on the regime."""
        cells = np.empty(symbols.size, np.intp)
        for symbol, (members, cumulative) in enumerate(self.cell_laws):
            rows = np.flatnonzero(symbols == symbol)
            cells[rows] = members[np.searchsorted(cumulative, uniforms[rows], side="right")]
        return cells

    def describe_context(self, episode: Episode, row: int) -> dict[str, str]:
        """Return the context of one row as level names, the way a marketing system sends it."""
        return {
            variable["name"]: variable["levels"][level]
            for variable, level in zip(self.variables, episode.contexts.levels[row], strict=True)
        }


@cache
def load_environment(name: str) -> Environment:
    """Load a shipped environment by name, or your own from a .json file."""
    if name.endswith(".json"):
        try:
            return build_environment(json.loads(Path(name).read_text(encoding="utf-8")))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            message = f"{name} does not describe an environment ({error!r}); see simulator/data/nelson.json"
            raise ValueError(message) from None
    if name not in ENVIRONMENTS + HOSTILE:
        choices = ", ".join(ENVIRONMENTS + HOSTILE)
        raise ValueError(f"unknown environment {name!r}; choose one of {choices}, or a .json file")
    if name in HOSTILE:
        variant = _read_shipped("hostile")[name]
        return build_environment({**_read_shipped(variant["base"]), **variant, "name": name})
    return build_environment(_read_shipped(name))


def _read_shipped(name: str) -> dict[str, Any]:
    file = resources.files("simulator") / "data" / f"{name.replace('-', '_')}.json"
    description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return description


def build_environment(data: dict[str, Any]) -> Environment:
    """Build an environment from its description; data/credit_card.json is an example."""
    names = [variable["name"] for variable in data["variables"]]
    sizes = [len(variable["levels"]) for variable in data["variables"]]
    levels = np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int16)
    symbols = np.zeros(levels.shape[0], np.intp)
    for signal in data["signals"]:  # R9: row-major, the last signal fastest
        place = names.index(signal)
        symbols = symbols * sizes[place] + levels[:, place]
    weights = _compute_cell_weights(data, levels)
    laws = []
    for symbol in range(int(symbols.max()) + 1):
        members = np.flatnonzero((symbols == symbol) & (weights > 0.0))
        cumulative = weights[members].cumsum()
        laws.append((members, cumulative / cumulative[-1]))
    if len(data["emission"][0]) != len(laws):
        raise ValueError(f"emission has {len(data['emission'][0])} symbols, the signals have {len(laws)}")
    means = np.array([_compute_means(data, data["rewards"][regime], names, levels) for regime in data["regimes"]])
    means = data.get("reward_shift", 0.0) + data.get("reward_scale", 1.0) * means
    late = data.get("delivery")
    return Environment(
        name=data["name"],
        regimes=tuple(data["regimes"]),
        actions=tuple(data["actions"]),
        variables=tuple(data["variables"]),
        signals=tuple(data["signals"]),
        action_terms=tuple(data.get("action_terms", [f"actions:{name}" for name in data["signals"]])),
        hmm=HmmParameters.check(data["transition"], data["emission"], data["initial"]),
        noise_std=float(data["noise_std"]),
        reward_law=data.get("reward_law", "gaussian"),
        reward_model=data.get("reward_model", "regime"),
        delivery=Delivery("geometric", late.get("mean_delay", 0.0), late.get("loss", 0.0)) if late else AT_ONCE,
        levels=levels,
        cell_laws=tuple(laws),
        means=means,
    )


def _compute_cell_weights(data: dict[str, Any], levels: npt.NDArray[np.int16]) -> FloatArray:
    """Weight each cell among the cells of its symbol, by the UCI profiles or by independent variables."""
    if data.get("profiles") == "credit-card":
        return load_profiles().astype(np.float64).ravel()
    weights = np.ones(levels.shape[0])
    for place, variable in enumerate(data["variables"]):
        weights *= np.asarray(variable.get("probabilities", np.ones(len(variable["levels"]))))[levels[:, place]]
    return weights


def _compute_means(
    data: dict[str, Any], coefficients: dict[str, Any], names: list[str], levels: npt.NDArray[np.int16]
) -> FloatArray:
    """Return φ(a, x)ᵀθ_h of one regime for every action and cell (K × cells), from its coefficients by term."""
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
