"""FeatureMap: from an encoded context, a belief and an action to the non-zero columns of z(b, a, x).

Columns (R10): the shared terms in their order, then, regime by regime, the per-regime terms in theirs; inside a
term with actions, action by action, levels fastest. z = b ⊗ φ is the case where every term is per regime.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policy import kernels
from policy.arrays import FloatArray
from policy.blocks import Blocks
from policy.config import MAX_COLUMNS, CampaignConfig, Term
from policy.encoding import ContextEncoder, Contexts
from policy.errors import ArgumentError, ConfigError


class Column(NamedTuple):
    """One column of z: the term it belongs to, and which of the term's actions, levels and regimes it stands for."""

    term: str
    action: str | None = None
    level: str | None = None
    regime: int | None = None  # counted from 1; None for shared columns, and for all where there is one regime


class FeatureMap(ContextEncoder):
    """z(b, a, x) of one campaign: the encoding of contexts, tables for the kernels, names of the columns."""

    def __init__(self, config: CampaignConfig, regimes: int | None = None) -> None:
        super().__init__(config)
        features = config.features
        assert features is not None
        self.actions = config.actions
        self.regimes = regimes or config.regime_counts[-1]  # the most the campaign may use
        self.dimension = config.count_columns(self.regimes)
        if self.dimension > MAX_COLUMNS:
            message = f"the feature map has {self.dimension} columns"
            allowed = f"at most {MAX_COLUMNS}: fewer terms, levels, actions or per_regime terms"
            raise ConfigError.of("features", message, allowed)
        self._numbers = [v.name for v in config.variables if v.range is not None]
        rows: tuple[list[list[int]], list[list[int]]] = ([], [])  # the terms without actions, and those with
        positions: list[int] = []
        shared = self._tabulate(features.shared, False, rows, positions)
        per_regime = self._tabulate(features.per_regime, True, rows, positions)
        self.column_parts = shared + [
            column._replace(regime=h + 1) if self.regimes > 1 else column
            for h in range(self.regimes)
            for column in per_regime
        ]
        self.blocks = Blocks.of([column.action for column in self.column_parts], self.actions[1:])
        plan = kernels.Plan(
            np.array(rows[0] + rows[1], np.int64),
            np.array([*positions, 0], np.int64),
            np.array([self.regimes, len(self.actions), len(shared), len(per_regime), len(rows[0])], np.int64),
            np.zeros((self.dimension, self.dimension)),
        )
        self.plan = plan._replace(null=self._find_null_projector(plan))
        # Every term has at most one active column, of weight at most 1, and b is a law: ‖b ⊗ φ‖₂ ≤ ‖φ‖₂ ≤ this.
        self.norm_bound = len(rows[0] + rows[1]) ** 0.5
        # The number of different contexts and actions.
        sizes = [float(len(variable.level_names)) or math.inf for variable in config.variables]
        self.combinations = math.prod(sizes) * len(self.actions)
        # The most columns of a z that are not 0.
        self.most_active = sum(self.regimes if per_regime else 1 for *_, per_regime, _ in (*rows[0], *rows[1]))
        self.context_dimension = len(shared) + len(per_regime)  # d of φ(a, x), before the regimes

    def _tabulate(
        self,
        terms: Sequence[Term],
        per_regime: bool,
        rows: tuple[list[list[int]], list[list[int]]],
        positions: list[int],
    ) -> list[Column]:
        """Append the terms' rows of Plan.terms and their level maps; returns their columns, without a regime yet."""
        index = {v.name: i for i, v in enumerate(self.variables)}
        columns: list[Column] = []
        for term in terms:
            place = index.get(term.variable or "", -1)
            number = self._numbers.index(term.variable) if term.variable in self._numbers else -1
            effects = self.variables[place].effects if place >= 0 else (None,)
            kept = [x for x in effects if term.levels is None or x in term.levels]
            rows[term.with_actions].append([place, number, len(columns), len(kept), per_regime, len(positions)])
            positions += [kept.index(x) if x in kept else -1 for x in effects]
            actions = self.actions[1:] if term.with_actions else (None,)
            columns += [Column(term.term, action, level) for action in actions for level in kept]
        return columns

    def _find_null_projector(self, plan: kernels.Plan) -> FloatArray:
        """The projector on the directions orthogonal to every z(b, a, x); see kernels.linucb.

        z is additive over variables, affine in each number and in b, so all z are spanned by those that move one
        variable at a time from a reference context, at each action and each vertex of the simplex. The baseline has
        only the common columns, so these directions can be found block by block, and alike for all actions.
        """
        # From the first level, and from 0 to 1 for a number, which is also the value of one that is missing.
        moves = [
            (place, level, variable.range is not None)
            for place, variable in enumerate(self.variables)
            for level in range(variable.range is None, len(variable.effects))
        ]
        per_point = len(moves) + 1
        levels = np.zeros((per_point, len(self.variables)), np.int16)
        values = np.zeros((per_point, len(self._numbers)))
        for i, (place, level, is_number) in enumerate(moves, 1):
            levels[i, place] = level
            if is_number:
                values[i, self._numbers.index(self.variables[place].name)] = 1.0
        gram, projector = np.zeros((2, self.dimension, self.dimension))
        taken = np.ones(per_point, np.int16)
        for vertex in np.eye(self.regimes):
            kernels.span_gram(plan, levels, values, taken, np.tile(vertex, (per_point, 1)), gram)
        for block in (self.blocks.common[None], self.blocks.actions):
            if block.size:
                eigenvalues, vectors = np.linalg.eigh(gram[np.ix_(block[0], block[0])])
                null = vectors[:, eigenvalues < 1e-9 * eigenvalues[-1]]
                projector[block[:, :, None], block[:, None, :]] = null @ null.T
        return projector

    def dense(self, belief: FloatArray, action: int, contexts: Contexts, row: int = 0) -> FloatArray:
        """z(b, a, x) of one encoded context with its zeros (D); belief: H."""
        belief = np.ascontiguousarray(belief, np.float64)
        if belief.shape != (self.regimes,) or not np.isfinite(belief).all():
            raise ArgumentError("belief", f"{belief}", f"{self.regimes} finite numbers")
        if not 0 <= row < contexts.symbols.size:
            raise ArgumentError("row", f"{row}", f"0 to {contexts.symbols.size - 1}")
        if not 0 <= action < len(self.actions):
            raise ArgumentError("action", f"{action}", f"0 to {len(self.actions) - 1}")
        limit = self.plan.terms.shape[0] * self.regimes
        indices, weights = np.empty(limit, np.int64), np.empty(limit)
        one = contexts.rows(row, row + 1)
        n = kernels.row_columns(self.plan, one.levels, one.values, belief[None], 0, action, indices, weights)
        z = np.zeros(self.dimension)
        z[indices[:n]] = weights[:n]
        return z


def get_feature_map(config: CampaignConfig, regimes: int | None = None) -> FeatureMap:
    """The campaign's feature map for a number of regimes, by default the most that the campaign may use.

    Campaigns that differ only in other settings share one.
    """
    regimes = regimes or config.regime_counts[-1]
    key = f"{regimes} " + config.model_dump_json(
        include={"actions", "variables", "extra_variables", "signals", "features"}
    )
    features = _FEATURE_MAPS.get(key)
    if features is None:
        features = FeatureMap(config, regimes)
        if len(_FEATURE_MAPS) >= 256:  # start over; a map is a pure function of its key
            _FEATURE_MAPS.clear()
        _FEATURE_MAPS[key] = features
    return features


def get_feature_maps(config: CampaignConfig) -> dict[int, FeatureMap]:
    """The feature map for each number of regimes that the campaign may use; `auto` stops before a map is too wide."""
    maps: dict[int, FeatureMap] = {}
    for regimes in config.regime_counts:
        try:
            maps[regimes] = get_feature_map(config, regimes)
        except ConfigError:
            if config.regimes != "auto" or not maps:
                raise
            break
    return maps


_FEATURE_MAPS: dict[str, FeatureMap] = {}
_DEPENDENCIES = {"actions", "variables", "extra_variables", "signals", "features"}  # what a map is made of
