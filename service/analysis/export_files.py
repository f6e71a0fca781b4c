"""Exports: the decisions of a campaign with their rewards as NDJSON, CSV or Parquet, a few pages in memory."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from policy import CampaignConfig
from service.engine.recovery import get_campaign, load_config, load_wait
from service.storage.reading import LoggedDecision, find_rounds_between, read_decision_pages
from service.storage.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

CONTEXT_PREFIX = "context."  # of the columns of variables
PAGE = 1_000  # decisions: a page blocks the interpreter for a few milliseconds
PAGES_PER_GROUP = 4  # in a Parquet row group
Format = Literal["ndjson", "csv", "parquet"]
Pages = Iterator[list[LoggedDecision]]


class Line(msgspec.Struct):
    """A decision as a line of NDJSON. Its fields are the columns of every format."""

    round: int
    decision_id: str
    decided_at: str | None
    at: str | None
    mode: str
    model_version: int
    action: str
    propensity: float | None  # None if unknown
    context: Any  # in CSV and Parquet, a column for each variable
    excluded_actions: msgspec.Raw
    belief: msgspec.Raw
    reward: float | None
    reward_source: str | None
    reward_received_at: str | None
    reward_after_round: int | None  # rounds decided when the reward came: an import learns in the same order
    erased: bool


class _Explanation(msgspec.Struct):
    belief: msgspec.Raw = msgspec.Raw(b"null")


CONTEXT_PLACE = Line.__struct_fields__.index("context")
_explanations = msgspec.json.Decoder(list[_Explanation])
_contexts = msgspec.json.Decoder(list[Any])
_encode_lines = msgspec.json.Encoder().encode_lines


class OpenLog(NamedTuple):
    """The part of a campaign's log that an export writes."""

    config: CampaignConfig
    pages: Pages
    decisions: int


def open_log(tx: Transaction, name: str, times: tuple[int | None, int | None], now: int) -> OpenLog:
    """The decisions of a campaign between two times (microseconds, half open), with the rewards that count `now`."""
    row = get_campaign(tx, name)
    after, last = find_rounds_between(tx, row.campaign_id, *times)
    config = load_config(tx, row.campaign_id)
    pages = read_decision_pages(tx, row.campaign_id, after, last, PAGE, load_wait(tx, row, now))
    return OpenLog(config, pages, max(0, last - after))


def _lines(page: Sequence[LoggedDecision]) -> list[Line]:
    """The lines of a page. JSON from the database is passed on without being parsed."""
    rows = [_redact(row) if row.erased else row for row in page]
    explanations = _explanations.decode(f"[{','.join([row.explanation for row in rows])}]")
    decided_at, at, received_at = (
        _format_times([getattr(row, field) for row in rows]) for field in ("decided_at", "at", "received_at")
    )
    return [
        Line(
            round=row.round,
            decision_id=row.decision_id,
            decided_at=decided,
            at=happened,
            mode=row.mode,
            model_version=row.model_version,
            action=row.action,
            propensity=row.propensity or None,
            context=msgspec.Raw(row.context or "null"),
            excluded_actions=msgspec.Raw("null" if row.erased else row.excluded_actions or "[]"),
            belief=explanation.belief,
            reward=row.reward,
            reward_source=row.source,
            reward_received_at=received,
            reward_after_round=row.after_round,
            erased=row.erased,
        )
        for row, explanation, decided, happened, received in zip(
            rows, explanations, decided_at, at, received_at, strict=True
        )
    ]


def _redact(row: LoggedDecision) -> LoggedDecision:
    """What may still be exported of an erased decision (R22): nothing about the person or derived from them."""
    return row._replace(
        context=None, excluded_actions=None, propensity=0.0, explanation="{}",
        reward=None, source=None, after_round=None, received_at=None,
    )  # fmt: skip


def _format_times(micros: Sequence[int | None]) -> list[str | None]:
    """Times as the API writes them; a column at once, because one by one is slow."""
    known = [value for value in micros if value is not None]
    texts = iter(np.datetime_as_string(np.array(known, "datetime64[us]"), timezone="UTC").tolist())
    return [None if value is None else next(texts) for value in micros]


def _parse_contexts(config: CampaignConfig, lines: Sequence[Line]) -> Sequence[Line]:
    """Parse the contexts. Level names become text, even where a client sent 1 for "1"."""
    names = [variable.name for variable in config.variables if not variable.is_number]
    contexts = _contexts.decode(b"[%b]" % b",".join([bytes(line.context) for line in lines]))
    for line, context in zip(lines, contexts, strict=True):
        line.context = context
        for name in names if context is not None else ():
            if context.get(name).__class__ is int:
                context[name] = str(context[name])
    return lines


def _write_ndjson(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    for page in pages:
        yield _encode_lines(_lines(page))


def _write_csv(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    names = [variable.name for variable in config.variables]
    buffer = io.BytesIO()
    text = io.TextIOWrapper(buffer, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)  # ends lines with CR LF, so it quotes texts that contain either of them
    header = [*Line.__struct_fields__]
    header[CONTEXT_PLACE : CONTEXT_PLACE + 1] = [CONTEXT_PREFIX + name for name in names]
    writer.writerow(header)
    for page in pages:
        writer.writerows(_csv_cells(line, names) for line in _parse_contexts(config, _lines(page)))
        yield _drain(buffer)
    yield _drain(buffer)  # without decisions, the header


def _csv_cells(line: Line, variables: Sequence[str]) -> Iterator[Any]:
    for field in Line.__struct_fields__:
        value = getattr(line, field)
        if field == "context":
            yield from (None if value is None else value.get(name) for name in variables)
        elif isinstance(value, msgspec.Raw):
            yield None if bytes(value) == b"null" else bytes(value).decode()
        elif isinstance(value, bool):
            yield "true" if value else "false"
        else:
            yield value


def _write_parquet(config: CampaignConfig, pages: Pages) -> Iterator[bytes]:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own pools keep 30 MiB for ever
    # Imported here because pyarrow takes 30 MiB that only Parquet needs. Arrow's JSON reader makes the columns:
    # `pyarrow.array` would import pandas where it is installed, another 50 MiB.
    import pyarrow as pa
    from pyarrow.json import ParseOptions, ReadOptions, read_json
    from pyarrow.parquet import ParquetWriter

    schema, flat = _schemas(config)
    parsing = ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    buffer, group = io.BytesIO(), list[pa.Table]()
    with ParquetWriter(buffer, flat, compression="zstd") as writer:
        for page in pages:
            text = _encode_lines(_parse_contexts(config, _lines(page)))
            reading = ReadOptions(use_threads=False, block_size=len(text))
            group.append(read_json(pa.BufferReader(text), reading, parsing).flatten())
            if len(group) == PAGES_PER_GROUP:
                writer.write_table(pa.concat_tables(group))
                group.clear()
                yield _drain(buffer)
        if group:
            writer.write_table(pa.concat_tables(group))
    yield _drain(buffer)


def _schemas(config: CampaignConfig) -> tuple["pa.Schema", "pa.Schema"]:
    """The schema of the lines, and that of the file, which has a column for each variable."""
    import pyarrow as pa

    kinds = {
        **dict.fromkeys(("round", "model_version", "reward_after_round"), pa.int64()),
        **dict.fromkeys(("propensity", "reward"), pa.float64()),
        **dict.fromkeys(("decided_at", "at", "reward_received_at"), pa.timestamp("us", tz="UTC")),
        "excluded_actions": pa.list_(pa.string()),
        "belief": pa.list_(pa.float64()),
        "erased": pa.bool_(),
    }
    variables = [pa.field(v.name, pa.float64() if v.is_number else pa.string()) for v in config.variables]
    lines = [pa.field(name, kinds.get(name, pa.string())) for name in Line.__struct_fields__]
    before, after = lines[:CONTEXT_PLACE], lines[CONTEXT_PLACE + 1 :]
    context = [pa.field("context", pa.struct(variables))] if variables else []
    columns = [field.with_name(CONTEXT_PREFIX + field.name) for field in variables]
    return pa.schema([*before, *context, *after]), pa.schema([*before, *columns, *after])


def _drain(buffer: io.BytesIO) -> bytes:
    """Take out what was written. Arrow does not mind: it counts the bytes that it has written itself."""
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content


FORMATS: dict[Format, tuple[str, Callable[[CampaignConfig, Pages], Iterator[bytes]]]] = {
    "ndjson": ("application/x-ndjson", _write_ndjson),
    "csv": ("text/csv; charset=utf-8", _write_csv),
    "parquet": ("application/vnd.apache.parquet", _write_parquet),
}
