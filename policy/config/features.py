"""Variables, and the terms of the feature map."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

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
    MISSING,
    OTHER,
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
    """One named context input: `levels`, or a number with `cuts` (and optional `levels` as labels), or `range`.

    What a context may lack or get wrong is refused, or counts as the level `missing` or `other`, or as the end of the
    range. Such a level may be among `levels`; otherwise it is added after them.
    """

    name: Name
    levels: Annotated[tuple[Name, ...], Field(min_length=2, max_length=MAX_SYMBOLS)] | None = None
    cuts: Annotated[tuple[Amount, ...], Field(min_length=1, max_length=MAX_SYMBOLS - 1)] | None = None
    range: tuple[Amount, Amount] | None = None
    missing: Literal["reject", "level"] = "reject"  # a value that is null, absent or no text
    unseen: Literal["reject", "other"] = "reject"  # a level that is not declared
    outside: Literal["reject", "clip"] = "reject"  # a number beyond `range`

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
        self._check_leniency()
        return self

    def _check_leniency(self) -> None:
        if self.unseen == "other" and (self.levels is None or self.cuts is not None):
            raise problem("unseen", "a number has no undeclared levels", "reject, or a variable with levels only")
        if self.outside == "clip" and self.range is None:
            raise problem("outside", "only a number with a range can be clipped", "reject, or a variable with range")
        if self.missing == "level" and self.cuts is not None and MISSING in (self.levels or ()):
            raise problem("levels", f"{MISSING!r} is the level of numbers that are missing", "another label")

    @property
    def is_number(self) -> bool:
        """Are its values numbers, with cuts or as they are?"""
        return self.cuts is not None or self.range is not None

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels; empty for a `range` variable. Cut levels are "1", "2", … unless labelled."""
        if self.range is not None:
            return ()
        names = self.levels or tuple(str(i + 1) for i in range(len(self.cuts or ()) + 1))
        added = [(MISSING, self.missing == "level"), (OTHER, self.unseen == "other")]
        return names + tuple(name for name, is_used in added if is_used and name not in names)

    @property
    def effects(self) -> tuple[str | None, ...]:
        """What each level index stands for: a level's name, or None for the number itself."""
        if self.range is None:
            return self.level_names
        return (None, MISSING) if self.missing == "level" else (None,)


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
