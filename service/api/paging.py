"""The query parameters of lists that come a page at a time."""

from typing import Annotated

from fastapi import Query

from policy.config import MOST_ROUNDS

MAX_PAGE = 200
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
NameCursor = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
NumberCursor = Annotated[int | None, Query(ge=1, le=MOST_ROUNDS)]
