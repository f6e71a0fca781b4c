"""Times as answers and messages write them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["EPOCH", "timestamp"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(64)  # all decisions of one transaction have the same
def timestamp(micros: int) -> str:
    """Microseconds since 1970 as the API writes them."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")
