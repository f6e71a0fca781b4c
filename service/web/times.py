"""Times in query parameters and command line flags."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import AwareDatetime, BeforeValidator
from pydantic_core import PydanticCustomError

from service.base.errors import FieldProblem, InvalidError
from service.base.times import EPOCH

Interval = tuple[int | None, int | None]  # from, to: microseconds since 1970
TIME = "ISO 8601 with a time zone: 2026-10-01T00:00:00Z (in a URL a + is written %2B)"


def _parse_time(text: object) -> datetime:
    """Parse a time in ISO 8601 with a time zone; numbers of seconds are refused."""
    try:
        time = datetime.fromisoformat(text.upper()) if isinstance(text, str) else text
    except ValueError:
        time = None
    if isinstance(time, datetime) and time.tzinfo is not None:
        return time
    raise PydanticCustomError(
        "moment", "{text} is not a time with a time zone", {"text": f"{text!r:.60}", "expected": TIME}
    )


QueryTime = Annotated[
    Annotated[AwareDatetime, BeforeValidator(_parse_time)] | None, Query(description=f"a time. {TIME}")
]


def make_interval(start: datetime | None, to: datetime | None) -> Interval:
    """Make an interval of the parameters `from` (inclusive) and `to` (exclusive)."""
    begin, end = (None if time is None else _to_micros(time, name) for name, time in (("from", start), ("to", to)))
    if start is not None and begin is not None and end is not None and begin > end:
        allowed = f"{start.isoformat()} or later"
        raise InvalidError([FieldProblem(field="to", message="is before `from`", allowed=allowed)])
    return begin, end


def parse_interval(start: str | None, to: str | None) -> Interval:
    """Make an interval of a command's flags `--from` and `--to`."""
    return make_interval(_parse_flag("from", start), _parse_flag("to", to))


def _parse_flag(flag: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else _parse_time(text)
    except PydanticCustomError as error:
        raise InvalidError([FieldProblem(field=flag, message=error.message(), allowed=TIME)]) from None


def _to_micros(time: datetime, name: str) -> int:
    try:
        return (time.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        problem = FieldProblem(field=name, message=f"{time} is out of range", allowed="the years 1 to 9999, in UTC")
        raise InvalidError([problem]) from None
