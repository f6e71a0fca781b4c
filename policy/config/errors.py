"""Pydantic's errors translated into ours: one problem per mistake, in the words of someone who sent JSON."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from policy.config.types import MOST_MISTAKES, PLAIN_TEXT, WEBHOOK
from policy.errors import ConfigError, FieldProblem

Sections = Mapping[str, type[BaseModel]]  # the part behind each dotted field name


@contextmanager
def config_errors(sections: Sections) -> Iterator[None]:
    """Turn pydantic's error into ConfigError, one problem per mistake."""
    try:
        yield
    except ValidationError as error:
        if error.error_count() > MOST_MISTAKES:  # formatting them all would take seconds
            raise ConfigError.of("config", f"{error.error_count()} mistakes", "at most a few") from None
        details = error.errors()
        # Pydantic also calls a list too short when its items are wrong: report only the items.
        lists = {detail["loc"][:-1] for detail in details}
        kept = [d for d in details if not (d["type"] == "too_short" and d["loc"] in lists)]
        raise ConfigError([_translate(detail, sections) for detail in kept]) from None


# Pydantic speaks of Python's types; a caller sent JSON.
_PLAIN_WORDS = {
    "tuple_type": ("is not a list", "a list"),
    "model_type": ("is not an object", "an object"),
    "model_attributes_type": ("is not an object", "an object"),
    "dict_type": ("is not an object", "an object"),
}
# The tags of unions, which pydantic adds to the location.
_TAGS = ("<rounds>", "<growth>", "<auto>", "<number>")


def _translate(detail: ErrorDetails, sections: Sections) -> FieldProblem:
    """One of pydantic's errors as a dotted field name, one sentence, and what is allowed."""
    context = detail.get("ctx", {})
    location = [*detail["loc"], *([context["field"]] if context.get("field") else [])]
    # Union tags and validators ("function-wrap[…]") are pydantic's names, not the user's.
    parts = [p for p in location if not (isinstance(p, str) and (p.startswith("function-") or p in _TAGS))]
    field = ""
    for part in parts:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    allowed: Any = context.get("allowed")
    if detail["type"] == "extra_forbidden":
        section = sections[".".join(part for part in parts[:-1] if isinstance(part, str))]
        return FieldProblem(field, "unknown field", list(section.model_fields))
    if detail["type"] == "missing":
        return FieldProblem(field, "is required", "a value")
    if context.get("pattern") == PLAIN_TEXT:
        return FieldProblem(
            field, f"{detail['input']!r:.60} has a control character", "text without control characters"
        )
    if context.get("pattern") == WEBHOOK:
        return FieldProblem(field, f"{detail['input']!r:.60} is not an address", "https://host/path, or http://")
    if detail["type"] == "string_pattern_mismatch":
        return FieldProblem(field, f"{detail['input']!r} is not a slug", "a-z, 0-9 and single - or _ between")
    if "<auto>" in detail["loc"]:
        return FieldProblem(field, f"{detail['input']!r:.60} is not a number of regimes", "'auto', or 1 to 8")
    if detail["type"] == "too_short":
        return FieldProblem(field, f"{context['actual_length']} items", f"at least {context['min_length']} items")
    if detail["type"] == "too_long":
        return FieldProblem(field, f"{context['actual_length']} items", f"at most {context['max_length']} items")
    if detail["type"] in _PLAIN_WORDS:
        return FieldProblem(field or "config", *_PLAIN_WORDS[detail["type"]])
    if allowed is None:
        bounds = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        allowed = " and ".join(f"{sign} {context[key]}" for key, sign in bounds.items() if key in context)
        lengths = [
            f"{word.replace('_', ' ')} {context[word]}" for word in ("min_length", "max_length") if word in context
        ]
        allowed = allowed or context.get("expected") or context.get("pattern") or ", ".join(lengths) or None
    given = detail["input"] if isinstance(detail["input"], str | int | float | bool | None) else None
    message = detail["msg"] if given is None else f"{detail['msg']}, not {given!r}"
    return FieldProblem(field or "config", message, allowed)
