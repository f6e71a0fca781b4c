"""Times as queries and flags name them."""

from datetime import UTC, datetime, timedelta

from service.errors import FieldProblem, InvalidError

__all__ = ["TIME", "Interval", "between"]

Interval = tuple[int | None, int | None]  # from, to: microseconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME = "ISO 8601 with a time zone: 2026-10-01T00:00:00Z (in a URL a + is written %2B)"


def between(start: str | None, end: str | None) -> Interval:
    """From one time on, and before another."""
    begun, ended = _moment("from", start), _moment("to", end)
    if begun is not None and ended is not None and begun > ended:
        raise InvalidError([FieldProblem(field="to", message="is earlier than from", allowed=f"{start} or later")])
    return begun, ended


def _moment(field: str, text: str | None) -> int | None:
    """In microseconds since 1970."""
    if text is None:
        return None
    try:
        return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):  # not a time, or one without a time zone
        problem = FieldProblem(field=field, message=f"{text!r:.60} is not a time with a time zone", allowed=TIME)
        raise InvalidError([problem]) from None
