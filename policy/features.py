"""FeatureMap: a context becomes level indices, and with a belief and an action the active columns of z(b, a, x).

Columns (R10): the shared terms in their order, then, regime by regime, the per-regime terms in theirs; inside a
term with actions, action by action, levels fastest. z = b ⊗ φ is the case where every term is per regime.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf, isfinite, nextafter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policy import kernels
from policy.config import ACTIONS, INTERCEPT, CampaignConfig, Term, Variable
from policy.errors import ArgumentError, ConfigError, ContextError, FieldProblem, shown

__all__ = ["Column", "Contexts", "FeatureMap", "feature_map"]

MAX_COLUMNS = 1024
MOST_PROBLEMS = 20  # unknown variables that an error names
FloatArray = npt.NDArray[np.float64]
SmallInts = npt.NDArray[np.int16]
Encoder = Callable[[Any], Any]


_NO_NUMBERS = np.empty((1, 0))
_WRONG = (KeyError, TypeError, ValueError, OverflowError)  # that encoders raise on anything not allowed


class Contexts(NamedTuple):
    """Encoded contexts, one row each: level indices, scaled numbers of the `range` variables, HMM symbols."""

    levels: SmallInts
    values: FloatArray
    symbols: SmallInts

    def rows(self, start: int, stop: int) -> "Contexts":
        return Contexts(self.levels[start:stop], self.values[start:stop], self.symbols[start:stop])

    def picked(self, rows: npt.NDArray[np.intp]) -> "Contexts":
        return Contexts(self.levels[rows], self.values[rows], self.symbols[rows])

    def write(self, start: int, other: "Contexts") -> None:
        """Put the other's rows here, from `start` on."""
        stop = start + other.symbols.size
        self.levels[start:stop] = other.levels
        if self.values.shape[1]:
            self.values[start:stop] = other.values
        self.symbols[start:stop] = other.symbols


class Column(NamedTuple):
    """One column of z: the term it belongs to, and which of the term's actions, levels and regimes it stands for."""

    term: str
    action: str | None = None
    level: str | None = None
    regime: int | None = None  # counted from 1; None for shared columns, and for all where there is one regime

    @property
    def name(self) -> str:
        """The column in one line, like "call × risk=low | regime 2"."""
        variable = self.term.removeprefix(f"{ACTIONS}:")
        effect = "" if variable in (INTERCEPT, ACTIONS) else variable
        if self.level is not None:
            effect += f"={self.level}"
        name = " × ".join(part for part in (self.action, effect) if part) or INTERCEPT
        return name if self.regime is None else f"{name} | regime {self.regime}"


class FeatureMap:
    """z(b, a, x) of one campaign, as tables for the kernels and in words for people."""

    def __init__(self, config: CampaignConfig, regimes: int | None = None) -> None:
        features = config.features
        assert features is not None
        assert config.signals is not None
        self.actions, self.symbols = config.actions, config.symbols
        self.regimes = regimes or config.regime_counts[-1]  # the most the campaign may use
        self.variables = config.variables
        self._numbers = [v.name for v in config.variables if v.range is not None]
        self.numbers = len(self._numbers)
        # R9: symbols are row-major over the signals, the last one fastest.
        sizes = {v.name: len(v.level_names) for v in config.variables}
        strides = dict.fromkeys(sizes, 0)
        stride = 1
        for name in reversed(config.signals):
            strides[name] = stride
            stride *= sizes[name]
        self._encoders = [(v.name, v.range is not None, _encoder(v), strides[v.name]) for v in config.variables]
        self._columns = [(v.name, v.range is not None, _column_encoder(v)) for v in config.variables]
        self._strides = np.array([strides[v.name] for v in config.variables], np.int16)

        rows: tuple[list[list[int]], list[list[int]]] = ([], [])  # the terms without actions, and those with
        positions: list[int] = []
        shared = self._tabulate(features.shared, False, rows, positions)
        per_regime = self._tabulate(features.per_regime, True, rows, positions)
        self.column_parts = shared + [
            column._replace(regime=h + 1) if self.regimes > 1 else column
            for h in range(self.regimes)
            for column in per_regime
        ]
        self.column_names = [column.name for column in self.column_parts]
        self.dimension = len(self.column_parts)
        if self.dimension > MAX_COLUMNS:
            message = f"the feature map has {self.dimension} columns"
            allowed = f"at most {MAX_COLUMNS}: fewer terms, levels, actions or per_regime terms"
            raise ConfigError([FieldProblem("features", message, allowed)])
        plan = kernels.Plan(
            np.array(rows[0] + rows[1], np.int64),
            np.array([*positions, 0], np.int64),
            np.array([self.regimes, len(self.actions), len(shared), len(per_regime), len(rows[0])], np.int64),
            np.zeros((self.dimension, self.dimension)),
        )
        self.plan = plan._replace(null=self._null_projector(plan))
        # Every term has at most one active column, of weight at most 1, and b is a law: ‖b ⊗ φ‖₂ ≤ ‖φ‖₂ ≤ this.
        self.norm_bound = len(rows[0] + rows[1]) ** 0.5
        self.context_dimension = len(shared) + len(per_regime)  # d of φ(a, x), before the regimes

    def _tabulate(
        self,
        terms: Sequence[Term],
        per_regime: bool,
        rows: tuple[list[list[int]], list[list[int]]],
        positions: list[int],
    ) -> list[Column]:
        """Append the terms' rows of Plan.terms and their level maps; return their columns, of no regime yet."""
        index = {v.name: i for i, v in enumerate(self.variables)}
        columns: list[Column] = []
        for term in terms:
            place = index.get(term.variable or "", -1)
            number = self._numbers.index(term.variable) if term.variable in self._numbers else -1
            levels = self.variables[place].level_names if place >= 0 else ()
            kept = [x for x in levels if term.levels is None or x in term.levels]
            effects: list[str | None] = [*kept] or [None]
            rows[term.with_actions].append([place, number, len(columns), len(effects), per_regime, len(positions)])
            positions += [kept.index(x) if x in kept else -1 for x in levels] or [0]
            actions = self.actions[1:] if term.with_actions else (None,)
            columns += [Column(term.term, action, level) for action in actions for level in effects]
        return columns

    def _null_projector(self, plan: kernels.Plan) -> FloatArray:
        """The projector on the directions orthogonal to every z(b, a, x); see kernels.linucb.

        z is additive over variables, affine in each number and in b, so all z are spanned by those that move one
        variable at a time from a reference context, at each action and each vertex of the simplex.
        """
        moves: list[tuple[int, int, float]] = [(-1, 0, 0.0)]
        for place, variable in enumerate(self.variables):
            if variable.range is not None:
                moves.append((self._numbers.index(variable.name), 0, 1.0))
            else:
                moves += [(place, level, 0.0) for level in range(1, len(variable.level_names))]
        per_point = len(moves)
        levels = np.zeros((per_point, len(self.variables)), np.int16)
        values = np.zeros((per_point, len(self._numbers)))
        for i, (place, level, value) in enumerate(moves):
            if value:
                values[i, place] = value
            elif place >= 0:
                levels[i, place] = level
        gram = np.zeros((self.dimension, self.dimension))
        for vertex in np.eye(self.regimes):
            beliefs = np.tile(vertex, (per_point, 1))
            for action in range(len(self.actions)):
                taken = np.full(per_point, action, np.int16)
                kernels.span_gram(plan, levels, values, taken, beliefs, gram)
        eigenvalues, vectors = np.linalg.eigh(gram)
        null = vectors[:, eigenvalues < 1e-9 * eigenvalues[-1]]
        projector: FloatArray = null @ null.T
        return projector

    def encode(self, contexts: Sequence[Mapping[str, Any]]) -> Contexts:
        """Check and encode a list of contexts; a ContextError names every variable that is wrong."""
        codes, numbers = self.encode_rows(contexts)
        return Contexts(np.ascontiguousarray(codes[:, :-1]), numbers, np.ascontiguousarray(codes[:, -1]))

    def encode_rows(
        self, contexts: Sequence[Mapping[str, Any]], prefixes: Sequence[str] | None = None
    ) -> tuple[SmallInts, FloatArray]:
        """`encode` as decisions take it: level indices with the symbol at their end, and scaled numbers.

        `prefixes` begin the fields that errors name, by default items[i].
        """
        if len(contexts) == 1:  # tables of columns would cost more than they save
            return self.encode_one(contexts[0], prefixes[0] if prefixes else "items[0].")
        columns = self._encoded_columns(contexts)
        if columns is None:
            raise ContextError(
                [
                    problem
                    for i, context in enumerate(contexts)
                    if self._encoded(context) is None
                    for problem in self._problems(context, f"{prefixes[i] if prefixes else f'items[{i}].'}context")
                ]
            )
        codes = np.zeros((len(contexts), len(self.variables) + 1), np.int16)
        numbers = np.empty((len(contexts), self.numbers))
        filled = 0
        for i, (column, (_, is_number, _)) in enumerate(zip(columns, self._columns, strict=True)):
            if is_number:
                numbers[:, filled] = column
                filled += 1
            else:
                codes[:, i] = column
        codes[:, -1] = codes[:, :-1] @ self._strides
        return codes, numbers

    def _encoded_columns(self, contexts: Sequence[Mapping[str, Any]]) -> list[list[Any]] | None:
        """Of each variable what `_encoded` makes of its values, without a call for each; None if anything is wrong."""
        try:
            columns = [encoder([context[name] for context in contexts]) for name, _, encoder in self._columns]
            return columns if set(map(len, contexts)) <= {len(columns)} else None
        except _WRONG:
            return None

    def encode_one(self, context: Mapping[str, Any], prefix: str = "") -> tuple[SmallInts, FloatArray]:
        """`encode_rows` of one context."""
        row = self._encoded(context)
        if row is None:
            raise ContextError(self._problems(context, f"{prefix}context"))
        return np.array((row[0],), np.int16), np.array((row[1],)) if row[1] else _NO_NUMBERS

    def reduced(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """A good context with no more than what is encoded of it: a cut number becomes one number of its level."""
        left = dict(context)
        for variable in self.variables:
            if variable.cuts:
                level = bisect_left(variable.cuts, float(context[variable.name]))
                left[variable.name] = variable.cuts[level] if level < len(variable.cuts) else _beyond(variable.cuts[-1])
        return left

    def _encoded(self, context: Mapping[str, Any]) -> tuple[list[int], list[float]] | None:
        """Level indices with the symbol at their end, and scaled numbers; None if anything is wrong."""
        codes: list[int] = []
        numbers: list[float] = []
        symbol = 0
        try:
            for name, is_number, encoder, stride in self._encoders:
                code = encoder(context[name])
                if is_number:
                    numbers.append(code)
                    code = 0
                codes.append(code)
                symbol += stride * code
            if len(context) != len(codes):
                return None
        except _WRONG:
            return None
        codes.append(symbol)
        return codes, numbers

    def _problems(self, context: Any, field: str) -> list[FieldProblem]:
        """What is wrong with a context, found slowly because it is rare."""
        names = [v.name for v in self.variables]
        if not isinstance(context, Mapping):
            return [FieldProblem(field, f"not an object: {type(context).__name__}", names)]
        unknown = islice((name for name in context if name not in names), MOST_PROBLEMS)
        problems = [FieldProblem(f"{field}.{name}", "unknown variable", names) for name in unknown]
        for variable, (name, _, encoder, _) in zip(self.variables, self._encoders, strict=True):
            if name not in context:
                problems.append(FieldProblem(f"{field}.{name}", "missing", _allowed(variable)))
                continue
            try:
                encoder(context[name])
            except _WRONG:
                message = f"{shown(context[name])} is not allowed"
                problems.append(FieldProblem(f"{field}.{name}", message, _allowed(variable)))
        return problems

    def check(self, contexts: Contexts) -> None:
        """Contexts that were not encoded here must still fit the tables: the kernels check no bounds."""
        count = contexts.symbols.size
        levels = np.array([max(len(v.level_names), 1) for v in self.variables], np.int16)
        shapes = contexts.levels.shape, contexts.values.shape, contexts.symbols.shape
        if shapes != ((count, levels.size), (count, self.numbers), (count,)):
            raise ArgumentError("contexts", f"shapes {shapes}", f"{levels.size} variables, {self.numbers} numbers")
        within = (contexts.levels >= 0) & (contexts.levels < levels)
        if not (within.all() and np.isfinite(contexts.values).all()):
            raise ArgumentError("contexts", "hold a level or number that does not exist", "what `encode` makes")
        if count and not -1 <= contexts.symbols.min() <= contexts.symbols.max() < max(self.symbols, 1):
            raise ArgumentError("contexts", "hold a symbol that does not exist", f"-1 to {self.symbols - 1}")

    def columns(self, belief: FloatArray, action: int, contexts: Contexts, row: int = 0) -> tuple[Any, FloatArray]:
        """The active (index, value) pairs of z(b, a, x) for one encoded context."""
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
        return indices[:n], weights[:n]

    def dense(self, belief: FloatArray, action: int, contexts: Contexts, row: int = 0) -> FloatArray:
        """z(b, a, x) written out in full."""
        indices, weights = self.columns(belief, action, contexts, row)
        z = np.zeros(self.dimension)
        z[indices] = weights
        return z


def feature_map(config: CampaignConfig, regimes: int | None = None) -> FeatureMap:
    """The campaign's feature map for so many regimes; campaigns that differ only in other settings share one.

    Without a number it is the map for the most regimes the campaign may use.
    """
    regimes = regimes or config.regime_counts[-1]
    key = f"{regimes} " + config.model_dump_json(include={"actions", "variables", "signals", "features"})
    found = _FEATURE_MAPS.get(key)
    if found is None:
        found = FeatureMap(config, regimes)
        if len(_FEATURE_MAPS) >= 256:  # start over; a map is a pure function of its key
            _FEATURE_MAPS.clear()
        _FEATURE_MAPS[key] = found
    return found


_FEATURE_MAPS: dict[str, FeatureMap] = {}


def _encoder(variable: Variable) -> Encoder:
    """A function from a raw value to a level index or a scaled number; raises on anything not allowed."""
    if variable.range is not None:
        low, high = variable.range

        def scale(value: Any) -> float:
            number = _number(value)
            if not low <= number <= high:
                raise ValueError
            return (number - low) / (high - low)

        return scale
    if variable.cuts is not None:
        cuts = variable.cuts
        # A value equal to a cut belongs to the lower level.
        return lambda value: bisect_left(cuts, _number(value))
    table = _table(variable)

    def look_up(value: Any) -> int:
        if value.__class__ is str or value.__class__ is int:  # True is not the level 1
            return table[value]
        if isinstance(value, str | np.integer):  # numpy's own text and numbers
            return table[value.item() if isinstance(value, np.generic) else str(value)]
        raise TypeError

    return look_up


def _column_encoder(variable: Variable) -> Callable[[list[Any]], list[Any]]:
    """`_encoder` of many values: all at once if they have the types that JSON gives, else one by one."""
    one, cuts, table = _encoder(variable), variable.cuts, _table(variable)
    low, high = variable.range or (-inf, inf)

    def look_up(values: list[Any]) -> list[Any]:
        if {str, int}.issuperset(map(type, values)):
            return [table[value] for value in values]
        return [one(value) for value in values]

    def cut_or_scale(values: list[Any]) -> list[Any]:
        if not {float, int}.issuperset(map(type, values)):
            return [one(value) for value in values]
        numbers = [float(value) for value in values]
        if not all(map(isfinite, numbers)):
            raise ValueError
        if cuts is not None:
            return [bisect_left(cuts, number) for number in numbers]
        if numbers and not low <= min(numbers) <= max(numbers) <= high:
            raise ValueError
        return [(number - low) / (high - low) for number in numbers]

    return look_up if cuts is None and variable.range is None else cut_or_scale


def _table(variable: Variable) -> dict[Any, int]:
    """The index of each level's name; 1 and "1" are the same level."""
    table: dict[Any, int] = {}
    for i, name in enumerate(variable.level_names):
        table[name] = i
        if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name):
            table[int(name)] = i
    return table


def _beyond(cut: float) -> float:
    """A number of the level above a cut; one that reads well, if there is one."""
    return cut + 1.0 if cut + 1.0 > cut else nextafter(cut, inf)


def _number(value: Any) -> float:
    if value.__class__ is float and isfinite(value):  # nearly always
        return value
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


def _allowed(variable: Variable) -> Any:
    if variable.range is not None:
        return f"a number from {variable.range[0]:g} to {variable.range[1]:g}"
    return "a finite number" if variable.cuts is not None else list(variable.level_names)
