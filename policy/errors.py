"""The policy's own errors. Each says which field, what was wrong and what is allowed.

PolicyError
├── ConfigError      a campaign's configuration cannot be used
├── FixedError       a field that cannot change in a running campaign
├── ContextError     a context does not fit the campaign's variables
├── RewardError      a reward is not a number, out of range, for an unknown round, or the second for its round
├── ArgumentError    an array or number passed to the library has the wrong shape or value
└── CodecError       bytes are not a state of this version, or are damaged
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_PROBLEMS = 20  # of one kind that an error names
_LONGEST_COUNTED = 40  # characters of a refused value that is counted by name


class FieldProblem(NamedTuple):
    """One mistake: the field's dotted name, what was wrong, and what is allowed."""

    field: str
    message: str
    allowed: Any = None
    refused: tuple[str, str] | None = None  # of a context: the variable, and its value in a few words, to be counted

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return text if self.allowed is None else f"{text} (allowed: {self.allowed})"


class PolicyError(Exception):
    """Base of all errors that the policy raises on purpose."""

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, field: str, message: str, allowed: Any = None) -> "PolicyError":
        """An error with one problem."""
        return _rebuild(cls, [FieldProblem(field, message, allowed)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an error with its problems, so that it survives the way between processes (joblib, Dask)."""
        return _rebuild, (type(self), self.problems)


def _rebuild(kind: type[PolicyError], problems: Sequence[FieldProblem]) -> PolicyError:
    error = kind.__new__(kind)
    PolicyError.__init__(error, problems)
    return error


class ConfigError(PolicyError):
    """A campaign's configuration cannot be used; one problem per mistake."""


class FixedError(PolicyError):
    """A change that would reset the model; one problem per field that cannot change."""


class ContextError(PolicyError):
    """A context, an exclusion or a subject does not fit the campaign; one problem per variable."""


class _SingleProblemError(PolicyError):
    def __init__(self, field: str, message: str, allowed: Any = None) -> None:
        super().__init__([FieldProblem(field, message, allowed)])


class RewardError(_SingleProblemError):
    """A reward cannot be taken; nothing was changed."""


class ArgumentError(_SingleProblemError):
    """An array or a number passed to the library has the wrong shape or value."""


class CodecError(_SingleProblemError):
    """Bytes are not a state of this version, or are damaged."""


def shorten_value(value: object) -> str:
    """A refused value as it is counted: short ones by name, so that counters hold nothing long."""
    text = value if isinstance(value, str) else format_value(value)
    return text if 0 < len(text) <= _LONGEST_COUNTED and text.isprintable() else "(too long)"


def format_value(value: object) -> str:
    """A wrong value of any kind as short text for an error message."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return f"a {type(value).__name__} too long to print"
