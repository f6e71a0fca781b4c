"""Query parameters and fields that several subjects share."""

from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator

from policy.config import MOST_ROUNDS
from service.base.times import format_timestamp

MAX_PAGE = 200
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
NameCursor = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
NumberCursor = Annotated[int | None, Query(ge=1, le=MOST_ROUNDS)]
# A time as answers give it, made of the microseconds since 1970 that rows hold.
Timestamp = Annotated[str, BeforeValidator(lambda time: format_timestamp(time) if isinstance(time, int) else time)]
