"""Times in the form that answers, messages and logs give them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND = 1_000_000  # microseconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(64)  # all decisions of a transaction have the same time
def format_timestamp(micros: int) -> str:
    """Format microseconds since 1970 (UTC) as the API does."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")
