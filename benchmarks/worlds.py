"""The worlds of docs/policy.md's table against other policies: customers, rewards and hidden regimes, by seed.

A world is an entry of worlds.json. Its keys:

- `regimes`: how the regime moves. `markov` by a transition matrix, from a random regime; `cycle` through `days` of
  `rounds_per_day`; `break` once, when a share `at` of the rounds is over; `drift` from the first to the last regime and
  back `turns` times, a mixture of the two in between.
- `variables`: each has `levels` with their `laws`, one a regime, or one for all; or a `range`, and is uniform; or
  `normal` with a mean for each regime and one `std`, seen through `cuts`.
- `effects`: by regime and action, an intercept and then a number for each level. `curves`: by action, peaks
  [height, centre, width] in the last variable.
- `noise`: `gaussian`, or `student` with degrees of `freedom`; its `std` is one number or one an action.
- `reference`: what regret is measured against. `regime`: the best action in the true regime; `belief`: the best action
  for who knows every parameter, and the contexts so far, but not the regime.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from policy import CampaignConfig
from policy.arrays import FloatArray, IntArray
from policy.encoding import Contexts

DESCRIPTIONS = Path(__file__).with_name("worlds.json")
SECONDS_PER_ROUND = 600.0  # between decisions, where a world has no days of its own
DAY = 86_400.0


class Episode(NamedTuple):
    """One seed of a world, drawn before any action is taken: T rounds, K actions, d columns."""

    contexts: Contexts  # their symbols depend on a campaign's signals: FeatureMap.find_symbols
    columns: FloatArray  # T × d: an intercept, a column for each level, and the numbers
    values: FloatArray  # T × K: the mean reward of each action, as `reference` sees it
    rewards: FloatArray  # T × K: what each action would earn
    regimes: IntArray  # T: the true regime, the nearer one where effects drift
    times: FloatArray  # T: seconds

    def compute_regret(self, actions: IntArray) -> float:
        """Add up what the actions' values fall short of the best ones'."""
        return float((self.values.max(axis=1) - self.values[np.arange(actions.size), actions]).sum())


class World(NamedTuple):
    """The fixed parameters of a world; see the top of this file."""

    name: str
    about: str
    rounds: int
    regimes: dict[str, Any]
    variables: tuple[dict[str, Any], ...]
    effects: FloatArray  # H × K × d, without the columns of numbers
    curves: tuple[tuple[tuple[float, float, float], ...], ...]
    noise: dict[str, Any]
    reference: str

    def draw(self, rounds: int, seed: int) -> Episode:
        """Draw an episode; actions never influence it."""
        generator = np.random.default_rng([*self.name.encode(), seed])
        shares = self._draw_regimes(rounds, generator)  # T × H: one regime, or two while effects drift
        regimes = shares.argmax(axis=1)
        levels, numbers, likelihoods = self._draw_variables(regimes, generator)
        one_hot = [np.ones((rounds, 1)), *(np.eye(len(v["levels"]))[levels[:, i]] for i, v in self._list_levelled())]
        columns = np.hstack(one_hot)
        by_regime = np.einsum("td,hkd->htk", columns, self.effects)
        if self.curves:
            by_regime += self._compute_curves(numbers[:, -1])
        means = np.einsum("th,htk->tk", shares, by_regime)
        values = means
        if self.reference == "belief":
            values = np.einsum("th,htk->tk", self._filter(likelihoods), by_regime)
        rewards = means + self._draw_noise(means.shape, generator)
        contexts = Contexts(levels, numbers, np.zeros(rounds, np.int16))
        return Episode(contexts, np.hstack([columns, numbers]), values, rewards, regimes, self._compute_times(rounds))

    def build_config(self, seed: int, **own: Any) -> CampaignConfig:
        """Build a campaign that leaves everything to its default but what `own` says."""
        variables = [{key: v[key] for key in ("name", "levels", "range") if key in v} for v in self.variables]
        actions = [f"action-{number}" for number in range(self.effects.shape[1])]
        beliefs = {"estimation": "inline"}
        return CampaignConfig(name=self.name, actions=actions, variables=variables, beliefs=beliefs, seed=seed, **own)

    def _list_levelled(self) -> list[tuple[int, dict[str, Any]]]:
        return [(i, variable) for i, variable in enumerate(self.variables) if "levels" in variable]

    def _draw_regimes(self, rounds: int, generator: np.random.Generator) -> FloatArray:
        count, rule = len(self.effects), self.regimes
        if rule["kind"] == "drift":
            late = 0.5 - 0.5 * np.cos(2.0 * np.pi * rule["turns"] * np.arange(rounds) / rounds)
            return np.column_stack([1.0 - late, late])
        path = np.zeros(rounds, np.int64)
        if rule["kind"] == "markov":
            cumulative = np.cumsum(rule["transition"], axis=1)
            path[0], uniforms = generator.integers(count), generator.random(rounds)
            for t in range(1, rounds):
                path[t] = min(int(np.searchsorted(cumulative[path[t - 1]], uniforms[t], side="right")), count - 1)
        elif rule["kind"] == "cycle":
            days = np.array(rule["days"])
            path = days[np.arange(rounds) // rule["rounds_per_day"] % days.size]
        else:
            path[int(rule["at"] * rounds) :] = 1
        return np.eye(count)[path]

    def _draw_variables(self, regimes: IntArray, generator: np.random.Generator) -> tuple[Any, FloatArray, FloatArray]:
        """Levels (T × V), numbers, and how likely each regime makes the signals, up to a factor (T × H)."""
        rounds, count = regimes.size, len(self.effects)
        levels, numbers = np.zeros((rounds, len(self.variables)), np.int16), list[FloatArray]()
        likelihoods = np.ones((rounds, count))
        for i, variable in enumerate(self.variables):
            if "range" in variable:
                numbers.append(generator.random(rounds))
            elif "normal" in variable:
                means, std = np.array(variable["normal"]["means"]), variable["normal"]["std"]
                seen = generator.normal(means[regimes], std)
                levels[:, i] = np.searchsorted(variable["normal"]["cuts"], seen)
                likelihoods *= np.exp(-0.5 * ((seen[:, None] - means) / std) ** 2)
            else:
                laws = np.broadcast_to(np.array(variable["laws"]), (count, len(variable["levels"])))
                draws = generator.random(rounds)[:, None]
                levels[:, i] = (draws > np.cumsum(laws, axis=1)[regimes, :-1]).sum(axis=1)
                likelihoods *= laws[:, levels[:, i]].T
        return levels, np.array(numbers).reshape(-1, rounds).T.copy(), likelihoods

    def _filter(self, likelihoods: FloatArray) -> FloatArray:
        """P(regime | contexts so far) by the true parameters, for a `markov` world (T × H)."""
        transition, beliefs = np.array(self.regimes["transition"]), np.empty_like(likelihoods)
        belief = np.full(likelihoods.shape[1], 1.0 / likelihoods.shape[1])
        for t, likelihood in enumerate(likelihoods):
            belief = (belief if t == 0 else belief @ transition) * likelihood
            belief /= belief.sum()
            beliefs[t] = belief
        return beliefs

    def _compute_curves(self, numbers: FloatArray) -> FloatArray:
        """What each action earns more for a number, T × K."""
        rows = [
            sum((h * np.exp(-0.5 * ((numbers - centre) / width) ** 2) for h, centre, width in peaks), np.zeros(1))
            for peaks in self.curves
        ]
        return np.array([np.broadcast_to(row, numbers.shape) for row in rows]).T

    def _draw_noise(self, shape: tuple[int, ...], generator: np.random.Generator) -> FloatArray:
        std: FloatArray = np.asarray(self.noise["std"], float)
        if self.noise["law"] == "gaussian":
            return generator.normal(0.0, 1.0, shape) * std
        freedom = self.noise["freedom"]
        return generator.standard_t(freedom, shape) * std / np.sqrt(freedom / (freedom - 2.0))

    def _compute_times(self, rounds: int) -> FloatArray:
        per_day = self.regimes.get("rounds_per_day")
        return np.arange(rounds) * (DAY / per_day if per_day else SECONDS_PER_ROUND)


@cache
def load_worlds() -> dict[str, World]:
    """Load all worlds by name."""
    return {data["name"]: _build_world(data) for data in json.loads(DESCRIPTIONS.read_text(encoding="utf-8"))}


def _build_world(data: dict[str, Any]) -> World:
    return World(
        name=data["name"],
        about=data["about"],
        rounds=data["rounds"],
        regimes=data["regimes"],
        variables=tuple(data["variables"]),
        effects=np.array(data["effects"], float),
        curves=tuple(tuple((h, centre, width) for h, centre, width in peaks) for peaks in data.get("curves", ())),
        noise=data["noise"],
        reference=data["reference"],
    )
