"""The limits, field types and base class that the parts of a configuration share."""

from collections import Counter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

MOST_ACTIONS = MOST_VARIABLES = 64
MOST_REGIMES = 8
MAX_SYMBOLS = 512
MAX_COLUMNS = 1024  # of a feature map; docs/deployment.md has what wide maps cost
MAX_DEFAULT_SYMBOLS = 64
MAX_SEED = MOST_ROUNDS = 2**53 - 1  # exact in every JSON reader
MOST_MISTAKES = 1_000  # reported one by one
LARGEST_REWARD = 1e100  # sums of larger ones could overflow, and a NaN in θ̂ would stay for ever
INTERCEPT, ACTIONS = "intercept", "actions"
MISSING, OTHER = "missing", "other"  # the levels of values that are missing, and of levels that are not declared

# No control characters: names are shown to people and stored as text.
PLAIN_TEXT = r"^[^\x00-\x1f\x7f]+$"
# A URL without user, password or fragment.
WEBHOOK = r"^https?://[^\x00-\x20\x7f@/?#]+(/[^\x00-\x20\x7f#]*)?$"
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=PLAIN_TEXT)]
Slug = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9]+(?:[-_][a-z0-9]+)*$")]
# Strict: true and "5" are not numbers.
Whole = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Probability = Annotated[Real, Field(ge=0.0, le=1.0)]
Amount = Annotated[Real, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
Constant = Annotated[Real, Field(ge=1e-12, le=1e12)]  # of a theorem; beyond these limits its bonus overflows


class Part(BaseModel):
    """A frozen part of the configuration that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def problem(field: str, message: str, allowed: str | None = None) -> PydanticCustomError:
    """A mistake inside one part of the configuration; `field` is relative to that part."""
    # Braces are pydantic's template marks; user text must never be read as one.
    safe = message.replace("{", "(").replace("}", ")")
    return PydanticCustomError("config", safe, {"field": field, "allowed": allowed})


def find_duplicates(items: tuple[str, ...]) -> list[str]:
    """The items that occur more than once."""
    return sorted(item for item, count in Counter(items).items() if count > 1)
