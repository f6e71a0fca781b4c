"""The log as a file: pages of decisions as lines of JSON, CSV or Parquet, never more than four of them in memory."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import astuple

from policy import CampaignConfig
from policy.config import Variable
from service.storage.reading import LoggedDecision

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CONTEXT", "FORMATS", "Format", "Pages", "is_number"]

CONTEXT = "context."  # begins the name of a variable's column
GROUP = 4  # pages in a row group of Parquet
Format = Literal["ndjson", "csv", "parquet"]
Pages = Iterator[list[LoggedDecision]]


class Line(msgspec.Struct):
    """A decision as a line of JSON. Its fields are the columns of every format."""

    round: int
    decision_id: str
    decided_at: str
    at: str | None
    mode: str
    model_version: int
    action: str
    propensity: float | None  # None if it is not known
    context: Any  # elsewhere a column for each variable
    excluded_actions: msgspec.Raw
    belief: msgspec.Raw
    reward: float | None
    reward_source: str | None
    reward_received_at: str | None
    reward_after_round: int | None  # rounds decided when it came: what it takes to learn in the same order
    erased: bool


class _Explained(msgspec.Struct):
    belief: msgspec.Raw = msgspec.Raw(b"null")


CONTEXT_PLACE = Line.__struct_fields__.index("context")
_explanations = msgspec.json.Decoder(list[_Explained])
_contexts = msgspec.json.Decoder(list[Any])
_encode_lines = msgspec.json.Encoder().encode_lines


def is_number(variable: Variable) -> bool:
    return variable.cuts is not None or variable.range is not None


# --- from rows to lines ---------------------------------------------------------------------------------------------


def _lines(page: Sequence[LoggedDecision]) -> list[Line]:
    """A page, column by column; what the database has as JSON is not read but passed on."""
    (
        rounds, ids, decided_at, at, _, contexts, excluded, versions, modes, actions, propensities, explanations,
        erased, rewards, sources, after_rounds, received_at,
    ) = zip(*[_bare(row) if row.erased else row for row in page], strict=True)  # fmt: skip
    return [
        *map(
            Line, rounds, ids, _told(decided_at), _told(at), modes, versions, actions,
            [known or None for known in propensities],
            [msgspec.Raw(context or "null") for context in contexts],
            [msgspec.Raw("null" if gone else given or "[]") for given, gone in zip(excluded, erased, strict=True)],
            [explained.belief for explained in _explanations.decode(f"[{','.join(explanations)}]")],
            rewards, sources, _told(received_at), after_rounds, erased,
        )
    ]  # fmt: skip


def _bare(row: LoggedDecision) -> LoggedDecision:
    """What may still be told of an erased decision (R22): not what the person was like, nor what follows from that."""
    return row._replace(
        context=None, excluded_actions=None, propensity=0.0, explanation="{}",
        reward=None, source=None, after_round=None, received_at=None,
    )  # fmt: skip


def _told(micros: Sequence[int | None]) -> list[str | None]:
    """Times as the API writes them."""
    given = [value for value in micros if value is not None]
    texts = iter(np.datetime_as_string(np.array(given, "datetime64[us]"), timezone="UTC").tolist())
    return [None if value is None else next(texts) for value in micros]


def _levelled(config: CampaignConfig, lines: Sequence[Line]) -> Sequence[Line]:
    """The lines with their contexts read: level names are text, also where a client wrote 1 for "1"."""
    names = [variable.name for variable in config.variables if not is_number(variable)]
    contexts = _contexts.decode(b"[%b]" % b",".join([bytes(line.context) for line in lines]))
    for line, context in zip(lines, contexts, strict=True):
        line.context = context
        for name in names if context is not None else ():
            if context.get(name).__class__ is int:
                context[name] = str(context[name])
    return lines


# --- from lines to bytes --------------------------------------------------------------------------------------------


def _ndjson(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    for page in pages:
        yield _encode_lines(_lines(page))


def _csv(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    names = [variable.name for variable in config.variables]
    header: list[Any] = [*Line.__struct_fields__]
    header[CONTEXT_PLACE : CONTEXT_PLACE + 1] = [CONTEXT + name for name in names]
    written = io.StringIO()
    writer = csv.writer(written)  # lines end with CR LF, so that either of them is quoted inside a text
    writer.writerow(header)
    for page in pages:
        for line in _levelled(config, _lines(page)):
            *before, context, excluded, belief, reward, source, received_at, after_round, erased = astuple(line)
            values = [None if context is None else context.get(name) for name in names]
            lists = [None if json == b"null" else json.decode() for json in map(bytes, (excluded, belief))]
            last = "true" if erased else "false"
            writer.writerow([*before, *values, *lists, reward, source, received_at, after_round, last])
        yield written.getvalue().encode()
        written.seek(0)
        written.truncate()
    yield written.getvalue().encode()  # the header, if there is no decision


def _parquet(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own ones keep 30 MiB more, for good
    # Loaded here: 30 MiB that nobody else needs. Columns are made of lines by Arrow's own reader: `pyarrow.array` would
    # load pandas where it is installed, another 50 MiB.
    import pyarrow as pa
    from pyarrow.json import ParseOptions, ReadOptions, read_json
    from pyarrow.parquet import ParquetWriter

    schema, flat = _schemas(config)
    parsing = ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    sink, group = _Sink(), list[pa.Table]()
    with ParquetWriter(sink, flat, compression="zstd") as writer:
        for page in pages:
            text = _encode_lines(_levelled(config, _lines(page)))
            reading = ReadOptions(use_threads=False, block_size=len(text))
            group.append(read_json(pa.BufferReader(text), reading, parsing).flatten())
            if len(group) == GROUP:
                writer.write_table(pa.concat_tables(group))
                group.clear()
                yield sink.drained()
        if group:
            writer.write_table(pa.concat_tables(group))
    yield sink.drained()


def _schemas(config: CampaignConfig) -> tuple["pa.Schema", "pa.Schema"]:
    """The types of the lines' fields, and those of the columns, with one for each variable."""
    import pyarrow as pa

    kinds = {
        **dict.fromkeys(("round", "model_version", "reward_after_round"), pa.int64()),
        **dict.fromkeys(("propensity", "reward"), pa.float64()),
        **dict.fromkeys(("decided_at", "at", "reward_received_at"), pa.timestamp("us", tz="UTC")),
        "excluded_actions": pa.list_(pa.string()),
        "belief": pa.list_(pa.float64()),
        "erased": pa.bool_(),
    }
    variables = [pa.field(v.name, pa.float64() if is_number(v) else pa.string()) for v in config.variables]
    lines = [pa.field(name, kinds.get(name, pa.string())) for name in Line.__struct_fields__]
    before, after = lines[:CONTEXT_PLACE], lines[CONTEXT_PLACE + 1 :]
    context = [pa.field("context", pa.struct(variables))] if variables else []
    columns = [field.with_name(CONTEXT + field.name) for field in variables]
    return pa.schema([*before, *context, *after]), pa.schema([*before, *columns, *after])


class _Sink(io.RawIOBase):
    """A file that gives away what was written to it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def drained(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


FORMATS: dict[Format, tuple[str, Callable[[CampaignConfig, Pages], Iterator[bytes]]]] = {
    "ndjson": ("application/x-ndjson", _ndjson),
    "csv": ("text/csv; charset=utf-8", _csv),
    "parquet": ("application/vnd.apache.parquet", _parquet),
}
