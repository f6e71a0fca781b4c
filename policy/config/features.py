"""Variables, and the terms of the feature map."""

from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from policy.config.types import (
    ACTIONS,
    INTERCEPT,
    MAX_COLUMNS,
    MAX_SYMBOLS,
    Amount,
    Name,
    Part,
    find_duplicates,
    problem,
)


def _as_names(levels: Any) -> Any:
    """Whole numbers are accepted as level names."""
    if isinstance(levels, list | tuple):
        return tuple(str(x) if isinstance(x, int) and not isinstance(x, bool) else x for x in levels)
    return levels


# As they are written.
Levels = Annotated[tuple[Name | int, ...], Field(min_length=2, max_length=MAX_SYMBOLS)] | None
TermLevels = Annotated[tuple[Name | int, ...], Field(max_length=MAX_SYMBOLS)] | None


class Variable(Part):
    """One named context input: `levels`, or a number with `cuts` (and optional `levels` as labels), or `range`."""

    name: Name
    levels: Annotated[tuple[Name, ...], Field(min_length=2, max_length=MAX_SYMBOLS)] | None = None
    cuts: Annotated[tuple[Amount, ...], Field(min_length=1, max_length=MAX_SYMBOLS - 1)] | None = None
    range: tuple[Amount, Amount] | None = None

    @field_validator("levels", mode="before", json_schema_input_type=Levels)
    @classmethod
    def _levels_are_text(cls, levels: Any) -> Any:
        """Whole numbers are accepted as level names: 1 and "1" are the same level."""
        return _as_names(levels)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if ":" in self.name or self.name in (INTERCEPT, ACTIONS):
            raise problem("name", f"{self.name!r} is reserved", 'no ":", not "intercept" or "actions"')
        levelled = self.levels is not None or self.cuts is not None
        if levelled == (self.range is not None):
            raise problem("", "needs exactly one kind", "levels | cuts (levels as labels) | range")
        if self.levels is not None and (repeated := find_duplicates(self.levels)):
            raise problem("levels", f"repeated: {', '.join(repeated)}", "distinct names")
        if self.cuts is not None:
            if any(low >= high for low, high in pairwise(self.cuts)):
                raise problem("cuts", "not increasing", "strictly increasing numbers")
            if self.levels is not None and len(self.levels) != len(self.cuts) + 1:
                raise problem("levels", f"{len(self.levels)} labels", f"{len(self.cuts) + 1}, one more than cuts")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise problem("range", f"{list(self.range)} is empty", "[low, high] with low < high")
        return self

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels; empty for a `range` variable. Cut levels are "1", "2", … unless labelled."""
        if self.levels is not None:
            return self.levels
        return tuple(str(i + 1) for i in range(len(self.cuts) + 1)) if self.cuts is not None else ()


class Term(Part):
    """One block of the feature map (R10), written "age" or {"term": "actions:risk", "levels": [...]}."""

    term: Name
    levels: Annotated[tuple[Name, ...], Field(max_length=MAX_SYMBOLS)] | None = None

    @field_validator("levels", mode="before", json_schema_input_type=TermLevels)
    @classmethod
    def _levels_are_text(cls, levels: Any) -> Any:
        return _as_names(levels)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        if handler.mode == "serialization":
            return whole
        text = handler.resolve_ref_schema(whole)["properties"]["term"]
        return {"anyOf": [text, whole]}

    @model_validator(mode="wrap")
    @classmethod
    def _from_text(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "Term":
        term: Term = handler({"term": value} if isinstance(value, str) else value)
        return term

    @model_serializer
    def _to_text(self) -> str | dict[str, Any]:
        return self.term if self.levels is None else {"term": self.term, "levels": list(self.levels)}

    @property
    def with_actions(self) -> bool:
        return self.term == ACTIONS or self.term.startswith(ACTIONS + ":")

    @property
    def variable(self) -> str | None:
        """The variable of a main effect or an interaction; None for `intercept` and `actions`."""
        name = self.term.removeprefix(ACTIONS + ":")
        return None if name in (INTERCEPT, ACTIONS) else name


Terms = Annotated[tuple[Term, ...], Field(max_length=MAX_COLUMNS)]


class Features(Part):
    shared: Terms = ()
    per_regime: Terms = ()
