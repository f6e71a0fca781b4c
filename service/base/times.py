"""Times in the form that answers, messages and logs give them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND = 1_000_000  # microseconds
UNITS = {"days": 86_400, "hours": 3_600, "minutes": 60}  # seconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(64)  # all decisions of a transaction have the same time
def format_timestamp(micros: int) -> str:
    """Format microseconds since 1970 (UTC) as the API does."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def format_duration(seconds: float) -> str:
    """Describe a duration exactly, in the largest unit of which it is a multiple: 14 days, 90 s."""
    for unit, size in UNITS.items():
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.15g} s"


def format_minute(micros: int) -> str:
    """Format microseconds since 1970 (UTC) to the minute, for sentences."""
    return f"{EPOCH + timedelta(microseconds=micros):%Y-%m-%d %H:%M} UTC"
