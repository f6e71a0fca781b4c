"""Contexts, checked and encoded: level indices, scaled numbers, and the symbol that the HMM sees (R9)."""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf, isfinite, nextafter
from typing import Any, NamedTuple

import numpy as np

from policy.arrays import FloatArray, IndexArray, SmallInts
from policy.config import MISSING, OTHER, CampaignConfig, Variable
from policy.errors import MOST_PROBLEMS, ArgumentError, ContextError, FieldProblem, format_value, shorten_value

_NO_NUMBERS = np.empty((1, 0))
_WRONG = (KeyError, TypeError, ValueError, OverflowError)  # what encoders raise on a value that is not allowed


class Contexts(NamedTuple):
    """Encoded contexts, a row each."""

    levels: SmallInts  # T × V: level indices; of a number 0, or 1 if it is missing
    values: FloatArray  # T × numeric variables: scaled to [0, 1]; 1 if it is missing
    symbols: SmallInts  # T: HMM symbols, -1 if missing

    def rows(self, start: int, stop: int) -> "Contexts":
        return Contexts._make(column[start:stop] for column in self)

    def take(self, rows: IndexArray) -> "Contexts":
        return Contexts._make(column[rows] for column in self)

    def write(self, start: int, other: "Contexts") -> None:
        """Put the other's rows here, from `start` on."""
        stop = start + other.symbols.size
        self.levels[start:stop] = other.levels
        if self.values.shape[1]:
            self.values[start:stop] = other.values
        self.symbols[start:stop] = other.symbols


class ContextEncoder:
    """Encodes the contexts of one campaign."""

    def __init__(self, config: CampaignConfig) -> None:
        assert config.signals is not None
        self.variables, self.symbols = config.variables, config.symbols
        self.numbers = sum(v.range is not None for v in config.variables)
        # R9: symbols are row-major over the signals, the last one fastest.
        sizes = {v.name: len(v.level_names) for v in config.variables}
        strides = dict.fromkeys(sizes, 0)
        stride = 1
        for name in reversed(config.signals):
            strides[name] = stride
            stride *= sizes[name]
        self._encoders = [(v.name, v.range is not None, _make_encoder(v), strides[v.name]) for v in config.variables]
        self._column_encoders = [(v.name, v.range is not None, _make_column_encoder(v)) for v in config.variables]
        self._strides = np.array([strides[v.name] for v in config.variables], np.int16)
        self._names = {v.name for v in config.variables}
        self._ignores_others = config.extra_variables == "ignore"
        self._optional = {v.name: None for v in config.variables if v.missing == "level"}
        self._optional_numbers = [i for i, v in enumerate(config.variables) if v.range and v.name in self._optional]
        self._is_lenient = self._ignores_others or bool(self._optional)  # strict campaigns skip all of it

    def encode(self, contexts: Sequence[Mapping[str, Any]]) -> Contexts:
        """Check and encode a list of contexts; a ContextError names every variable that is wrong."""
        codes, numbers = self.encode_rows(contexts)
        return Contexts(np.ascontiguousarray(codes[:, :-1]), numbers, np.ascontiguousarray(codes[:, -1]))

    def encode_rows(
        self, contexts: Sequence[Mapping[str, Any]], prefixes: Sequence[str] | None = None
    ) -> tuple[SmallInts, FloatArray]:
        """The codes (n × (V + 1): level indices, then the symbol) and scaled numbers of contexts.

        `prefixes` begin the field names in errors, by default items[i].
        """
        if len(contexts) == 1:  # for one, columns cost more than they save
            return self.encode_one(contexts[0], prefixes[0] if prefixes else "items[0].")
        if self._is_lenient:
            contexts = [self._complete(context) for context in contexts]
        columns = self._encode_columns(contexts)
        if columns is None:
            raise ContextError(
                [
                    problem
                    for i, context in enumerate(contexts)
                    if self._encode_fast(context) is None
                    for problem in self._find_problems(context, f"{prefixes[i] if prefixes else f'items[{i}].'}context")
                ]
            )
        codes = np.zeros((len(contexts), len(self.variables) + 1), np.int16)
        numbers = np.empty((len(contexts), self.numbers))
        filled = 0
        for i, (column, (_, is_number, _)) in enumerate(zip(columns, self._column_encoders, strict=True)):
            if is_number:
                numbers[:, filled] = column
                filled += 1
            else:
                codes[:, i] = column
        codes[:, -1] = codes[:, :-1] @ self._strides
        if self._optional_numbers:
            self._mark_missing(codes, numbers)
        return codes, numbers

    def _complete(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """A context with null for what it lacks and may lack, and without what the campaign ignores."""
        if not isinstance(context, Mapping):
            return context
        known = self.drop_ignored(context)
        return known if self._optional.keys() <= known.keys() else {**self._optional, **known}

    def drop_ignored(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """The context without what the campaign ignores."""
        if not self._ignores_others or context.keys() <= self._names:
            return context
        return {name: value for name, value in context.items() if name in self._names}

    def _mark_missing(self, codes: SmallInts, numbers: FloatArray) -> None:
        """Give missing numbers, encoded as NaN, the level 1, whose column is then 1."""
        missing = np.isnan(numbers)
        place = -1
        for i, (_, is_number, _) in enumerate(self._column_encoders):
            place += is_number
            if i in self._optional_numbers:
                codes[:, i] = missing[:, place]
        numbers[missing] = 1.0

    def _encode_columns(self, contexts: Sequence[Mapping[str, Any]]) -> list[list[Any]] | None:
        """The encoded values of each variable, without a call per value; None if anything is wrong."""
        try:
            columns = [encoder([context[name] for context in contexts]) for name, _, encoder in self._column_encoders]
            return columns if set(map(len, contexts)) <= {len(columns)} else None
        except _WRONG:
            return None

    def encode_one(self, context: Mapping[str, Any], prefix: str = "") -> tuple[SmallInts, FloatArray]:
        """`encode_rows` of one context."""
        if self._is_lenient:
            context = self._complete(context)
        row = self._encode_fast(context)
        if row is None:
            raise ContextError(self._find_problems(context, f"{prefix}context"))
        codes, numbers = np.array((row[0],), np.int16), np.array((row[1],)) if row[1] else _NO_NUMBERS
        if self._optional_numbers:
            self._mark_missing(codes, numbers)
        return codes, numbers

    def reduce(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """A valid context reduced to what its encoding keeps: a number with cuts becomes one number of its level."""
        reduced = dict(context)
        for variable in self.variables:
            value = context.get(variable.name)
            if value is not None and value != "":
                reduced[variable.name] = _reduce_value(variable, value)
        return reduced

    def _encode_fast(self, context: Mapping[str, Any]) -> tuple[list[int], list[float]] | None:
        """Level indices followed by the symbol, and scaled numbers; None if anything is wrong."""
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

    def _find_problems(self, context: Any, field: str) -> list[FieldProblem]:
        """Everything that is wrong with a context; slow, because it is rare."""
        names = [v.name for v in self.variables]
        if not isinstance(context, Mapping):
            return [FieldProblem(field, f"not an object: {type(context).__name__}", names)]
        unknown = islice((name for name in context if name not in names), MOST_PROBLEMS)
        message = "unknown variable; leave it out, or set extra_variables: ignore for this campaign"
        problems = [
            FieldProblem(f"{field}.{name}", message, names, ("(unknown variable)", shorten_value(name)))
            for name in unknown
        ]
        for variable, (name, _, encoder, _) in zip(self.variables, self._encoders, strict=True):
            value = context.get(name)
            try:
                encoder(value)
            except _WRONG:
                message, refused = _explain_refusal(variable, value, name in context)
                allowed = _describe_allowed(variable)
                problems.append(FieldProblem(f"{field}.{name}", message, allowed, (name, refused)))
        return problems

    def find_symbols(self, contexts: Contexts) -> Contexts:
        """The contexts with the symbols of their levels; those that are missing stay so."""
        symbols = (contexts.levels @ self._strides).astype(np.int16)
        return contexts._replace(symbols=np.where(contexts.symbols < 0, contexts.symbols, symbols))

    def check(self, contexts: Contexts) -> None:
        """Refuse contexts that do not fit the campaign: the kernels check no bounds."""
        count = contexts.symbols.size
        levels = np.array([len(v.effects) for v in self.variables], np.int16)
        shapes = contexts.levels.shape, contexts.values.shape, contexts.symbols.shape
        if shapes != ((count, levels.size), (count, self.numbers), (count,)):
            raise ArgumentError("contexts", f"shapes {shapes}", f"{levels.size} variables, {self.numbers} numbers")
        within = (contexts.levels >= 0) & (contexts.levels < levels)
        if not (within.all() and np.isfinite(contexts.values).all()):
            raise ArgumentError("contexts", "hold a level or number that does not exist", "what `encode` returns")
        if count and not -1 <= contexts.symbols.min() <= contexts.symbols.max() < max(self.symbols, 1):
            raise ArgumentError("contexts", "hold a symbol that does not exist", f"-1 to {self.symbols - 1}")


def _make_encoder(variable: Variable) -> Callable[[Any], Any]:
    """A function from a raw value to a level index or a scaled number; raises on anything not allowed."""
    encode = _make_number_encoder(variable) if variable.is_number else _make_level_encoder(variable)
    if variable.missing == "reject":
        return encode
    missing = float("nan") if variable.range is not None else variable.level_names.index(MISSING)
    if variable.is_number:
        return lambda value: missing if value is None else encode(value)
    return lambda value: missing if value is None or value == "" else encode(value)


def _make_number_encoder(variable: Variable) -> Callable[[Any], Any]:
    if variable.cuts is not None:
        cuts = variable.cuts
        # A value equal to a cut belongs to the lower level.
        return lambda value: bisect_left(cuts, _to_number(value))
    low, high = variable.range or (-inf, inf)

    def scale(value: Any) -> float:
        number = _to_number(value)
        if not low <= number <= high:
            raise ValueError
        return (number - low) / (high - low)

    def clip(value: Any) -> float:
        return (min(max(_to_number(value), low), high) - low) / (high - low)

    return clip if variable.outside == "clip" else scale


def _make_level_encoder(variable: Variable) -> Callable[[Any], Any]:
    table = _make_table(variable)

    def look_up(value: Any) -> int:
        if value.__class__ is str or value.__class__ is int:  # True is not the level 1
            return table[value]
        if isinstance(value, str | np.integer):  # numpy's own text and numbers
            return table[value.item() if isinstance(value, np.generic) else str(value)]
        raise TypeError

    def look_up_or_other(value: Any) -> int:
        try:
            return look_up(value)
        except KeyError:
            if value == "":  # no text is no value: it is missing
                raise
            return table[OTHER]

    return look_up_or_other if variable.unseen == "other" else look_up


def _make_column_encoder(variable: Variable) -> Callable[[list[Any]], list[Any]]:
    """The same for many values: all at once if their types are those of JSON, else one by one."""
    one, cuts, table = _make_encoder(variable), variable.cuts, _make_table(variable)
    (low, high), clips = variable.range or (-inf, inf), variable.outside == "clip"
    is_strict = (variable.missing, variable.unseen) == ("reject", "reject")

    def look_up(values: list[Any]) -> list[Any]:
        if is_strict and {str, int}.issuperset(map(type, values)):
            return [table[value] for value in values]
        return [one(value) for value in values]

    def cut_or_scale(values: list[Any]) -> list[Any]:
        if clips or not {float, int}.issuperset(map(type, values)):
            return [one(value) for value in values]
        numbers = [float(value) for value in values]
        if not all(map(isfinite, numbers)):
            raise ValueError
        if cuts is not None:
            return [bisect_left(cuts, number) for number in numbers]
        if numbers and not low <= min(numbers) <= max(numbers) <= high:
            raise ValueError
        return [(number - low) / (high - low) for number in numbers]

    return cut_or_scale if variable.is_number else look_up


def _make_table(variable: Variable) -> dict[Any, int]:
    """The index of each level's name; 1 and "1" are the same level."""
    table: dict[Any, int] = {}
    for i, name in enumerate(variable.level_names):
        table[name] = i
        if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name):
            table[int(name)] = i
    return table


def _reduce_value(variable: Variable, value: Any) -> Any:
    """The simplest value with the same encoding."""
    if variable.cuts is not None:
        level = bisect_left(variable.cuts, float(value))
        return variable.cuts[level] if level < len(variable.cuts) else _number_above(variable.cuts[-1])
    if variable.outside == "clip" and variable.range is not None:
        low, high = variable.range
        return value if low <= value <= high else min(max(value, low), high)
    is_unseen = variable.unseen == "other" and str(value) not in variable.level_names
    return OTHER if is_unseen else value


def _number_above(cut: float) -> float:
    """A number in the level above a cut, a readable one if possible."""
    return cut + 1.0 if cut + 1.0 > cut else nextafter(cut, inf)


def _to_number(value: Any) -> float:
    """A finite float; raises on anything that is not a number."""
    if value.__class__ is float and isfinite(value):  # nearly always
        return value
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


# --- errors -----------------------------------------------------------------------------------------------------------


def _describe_allowed(variable: Variable) -> Any:
    """The values that a variable may have, for error messages."""
    if variable.range is not None:
        return f"a number from {variable.range[0]:g} to {variable.range[1]:g}"
    return "a finite number" if variable.cuts is not None else list(variable.level_names)


def _explain_refusal(variable: Variable, value: Any, is_there: bool) -> tuple[str, str]:
    """What is wrong with a value and which setting would allow it; and the value in a few words, to be counted."""
    if value is None or (value == "" and not variable.is_number):
        wrong = f"{'null' if value is None else 'empty text'} is not allowed" if is_there else "missing"
        return f"{wrong}; send a value, or set missing: level for this variable", "(missing)"
    message = f"{format_value(value)} is not allowed"
    if not variable.is_number:
        if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
            return message, "(not a level)"
        return f"{message}; send one of those, or set unseen: other for this variable", shorten_value(value)
    try:
        number = _to_number(value)
    except _WRONG:
        return message, "(not a number)"
    low, _ = variable.range or (-inf, inf)
    return (
        f"{message}; send such a number, or set outside: clip for this variable",
        "(too low)" if number < low else "(too high)",
    )
