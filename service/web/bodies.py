"""Bodies of requests: read within limits of size and time, and validated without holding up other requests.

Validating JSON does not release the interpreter, in a thread either. So a large body is refused if it has too many
values, and a long list is validated item by item, in a thread that gives way to others in between.
"""

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.types import Message, Receive

from policy import PolicyError
from service.base.errors import ApiError, FieldProblem, InvalidError, RequestTimeoutError, TooLargeError

LARGEST_BODY = 4 * 2**20
SMALL_BODY = 2**16  # bytes, which take a few milliseconds at most to validate
BODY_SECONDS = 30.0  # in which a body must arrive
VALUES_PER_ITEM = 100  # of a long list, on average
ITEM_VALUES = 1_000  # in one item
MOST_VALUES = 50_000  # in a body without a long list: a configuration can have 40,000
MOST_MISTAKES = 1_000  # that an error lists
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})  # their bodies are ignored
LONG_LISTS = ("items", "rows")  # the fields of our requests that may be long


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, largest: int) -> bytes:
    """Read the whole body. If Content-Length is too large, refuse it before reading."""
    for name, value in headers:
        if name == b"content-length" and int(value) > largest:
            raise _make_too_large(largest)
    first = _Started(receive())
    message = first.message
    if message is not None and message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message["body"]  # nearly always: it came with the headers, and needs no timer
    else:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_parts(first, receive, largest)
        except TimeoutError:
            raise RequestTimeoutError(f"The body did not arrive within {BODY_SECONDS:g} s") from None
    if len(body) > largest:
        raise _make_too_large(largest)
    return body


class _Started:
    """A call of `receive` that has run until it waits for something, or to its end. Awaiting it gives the message."""

    def __init__(self, receiving: Awaitable[Message]) -> None:
        self.message: Message | None = None
        self._steps, self._waiting = receiving.__await__(), None
        try:
            self._waiting = next(self._steps)
        except StopIteration as end:
            self.message = end.value

    def __await__(self) -> Generator[Any, Any, Message]:
        if self.message is None:
            yield self._waiting
            self.message = yield from self._steps
        return self.message


async def _read_parts(first: Awaitable[Message], receive: Receive, largest: int) -> bytes:
    """Read a body that comes in parts, until it is complete or too large."""
    message, body = await first, bytearray()
    while message["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body") or len(body) > largest:
            return bytes(body)
        message = await receive()
    raise TimeoutError  # the caller has gone


def _make_too_large(largest: int) -> TooLargeError:
    hint = "; send several smaller batches" if largest == LARGEST_BODY else ""
    return TooLargeError(f"The body is larger than {largest} bytes{hint}")


async def read_ahead(headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> Receive:
    """Read a small body, and return a `receive` that gives it to the framework, which has no limits."""
    unread: list[Message] = [{"type": "http.request", "body": await read_body(headers, receive, SMALL_BODY)}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


# --- validating -------------------------------------------------------------------------------------------------------


class Validator:
    """Validates bodies of one kind; errors name every invalid field."""

    def __init__(self, kind: Any) -> None:
        self._validator = TypeAdapter(kind).validator
        self._list, self._item, self._longest = "", self._validator, 0
        self._most_values = MOST_VALUES
        fields = getattr(kind, "model_fields", {})
        for name in LONG_LISTS:
            if name in fields:
                self._list, self._item = name, TypeAdapter(get_args(fields[name].annotation)[0]).validator
                self._longest = next(
                    limit.max_length for limit in fields[name].metadata if hasattr(limit, "max_length")
                )
                self._most_values = VALUES_PER_ITEM * self._longest

    def validate(self, body: bytes) -> Any:
        """Validate a small body."""
        try:
            return self._validator.validate_json(body)
        except ValidationError as error:
            raise self._refuse(error.errors(include_url=False)) from None
        except PolicyError as error:
            raise InvalidError.from_policy(error) from None

    async def validate_large(self, body: bytes) -> Any:
        """Validate a body in a thread."""
        # Each value but the first of a list or an object follows a comma. Counting them takes less than a millisecond.
        if body.count(b",") > self._most_values:
            raise TooLargeError(f"The body has more than {self._most_values} values; send several smaller batches")
        return await asyncio.to_thread(self._validate_in_parts if self._list else self.validate, body)

    def _validate_in_parts(self, body: bytes) -> Any:
        """Validate the items of the long list one by one, with the same outcome as `validate`."""
        try:
            parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            texts = msgspec.json.decode(parts.pop(self._list), type=list[msgspec.Raw])
            whole: dict[str, Any] = {name: from_json(bytes(text)) for name, text in parts.items()}
        except (msgspec.MsgspecError, LookupError, RecursionError, ValueError):
            return self.validate(body)
        whole[self._list], problems = [], list[Any]()
        if len(texts) > self._longest:
            raise self._make_too_long()
        for number, text in enumerate(map(bytes, texts)):
            if text.count(b",") > ITEM_VALUES:
                raise TooLargeError(f"{self._list}[{number}] has more than {ITEM_VALUES} values")
            try:
                whole[self._list].append(self._item.validate_json(text))
            except ValidationError as error:
                found = error.errors(include_url=False)
                if found[0]["type"] == "json_invalid":  # it is not UTF-8: the position in the whole body counts
                    return self.validate(body)
                problems += [{**problem, "loc": (self._list, number, *problem["loc"])} for problem in found]
                if len(problems) > MOST_MISTAKES:
                    break
        try:
            validated = self._validator.validate_python(whole)
        except ValidationError as error:
            outside = [one for one in error.errors(include_url=False) if not problems or one["loc"][0] != self._list]
            raise self._refuse([*outside, *problems]) from None
        if problems:
            raise self._refuse(problems)
        return validated

    def _refuse(self, problems: Sequence[Any]) -> ApiError:
        first = problems[0]
        if (len(problems), first["type"], first["loc"]) == (1, "too_long", (self._list,)):
            return self._make_too_long()
        if len(problems) > MOST_MISTAKES:  # listing them all would take seconds
            message = f"more than {MOST_MISTAKES} mistakes"
            return InvalidError([FieldProblem(field="body", message=message, allowed="see /docs")])
        return InvalidError.from_pydantic([{**one, "loc": ("body", *one["loc"])} for one in problems])

    def _make_too_long(self) -> TooLargeError:
        return TooLargeError(f"The batch has more than {self._longest} items; send several smaller batches")
