"""Times as queries and flags name them."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import AwareDatetime, BeforeValidator
from pydantic_core import PydanticCustomError

from service.base.errors import FieldProblem, InvalidError
from service.base.times import EPOCH

Interval = tuple[int | None, int | None]  # from, to: microseconds since 1970
TIME = "ISO 8601 with a time zone: 2026-10-01T00:00:00Z (in a URL a + is written %2B)"


def _moment(text: object) -> datetime:
    """A time as people write it; never a number of seconds."""
    try:
        found = datetime.fromisoformat(text.upper()) if isinstance(text, str) else text
    except ValueError:
        found = None
    if isinstance(found, datetime) and found.tzinfo is not None:
        return found
    raise PydanticCustomError(
        "moment", "{text} is not a time with a time zone", {"text": f"{text!r:.60}", "expected": TIME}
    )


Moment = Annotated[Annotated[AwareDatetime, BeforeValidator(_moment)] | None, Query(description=f"a time. {TIME}")]


def interval(start: datetime | None, to: datetime | None) -> Interval:
    """What a query names `from` and `to`: from one time on, and before another."""
    begin, end = (None if moment is None else _micros(moment, name) for name, moment in (("from", start), ("to", to)))
    if start is not None and begin is not None and end is not None and begin > end:
        allowed = f"{start.isoformat()} or later"
        raise InvalidError([FieldProblem(field="to", message="lies before `from`", allowed=allowed)])
    return begin, end


def between(start: str | None, to: str | None) -> Interval:
    """`interval` of a command's flags."""
    return interval(_given("from", start), _given("to", to))


def _given(flag: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else _moment(text)
    except PydanticCustomError as error:
        raise InvalidError([FieldProblem(field=flag, message=error.message(), allowed=TIME)]) from None


def _micros(moment: datetime, name: str) -> int:
    try:
        return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        problem = FieldProblem(field=name, message=f"{moment} is out of range", allowed="the years 1 to 9999, in UTC")
        raise InvalidError([problem]) from None
