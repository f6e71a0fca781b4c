"""Reading files of past decisions for an import: NDJSON, CSV or Parquet, a row at a time.

Columns have the names that exports write. A row has `context` (None if unknown) and `action` and, where the file has
them, `reward`, `propensity`, `at` and `decided_at` (text or a time), `decision_id`, `subject`, `round` and
`reward_after_round`. An erased decision has no context and no reward. This module refuses only what it cannot read;
whether the rows fit the campaign is checked later.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from policy import CampaignConfig
from service.analysis.export_files import CONTEXT_PREFIX
from service.base.errors import FieldProblem, InvalidError

BATCH = 1_000  # rows of Parquet at a time
BLOCK = 2**20  # bytes


def read_rows(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    """The rows of a file, in order. The error about a bad row says where it is."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise _problem(path.name, "has an unknown file type", ", ".join(READERS))
    return _read(read, path, config)


def count_rows(path: Path) -> int:
    """Roughly how many rows a file has, for a progress bar: line feeds inside CSV cells count too."""
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        from pyarrow.parquet import read_metadata

        try:
            return int(read_metadata(path).num_rows)
        except pa.ArrowException as error:
            raise _problem(path.name, f"cannot be read: {error}") from None
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
    return lines - (path.suffix.lower() == ".csv")


Reader = Callable[[Path, CampaignConfig], Iterator[dict[str, Any]]]


def _read(read: Reader, path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    try:
        yield from read(path, config)
    except OSError as error:  # pyarrow raises it for broken files too
        raise _problem(path.name, f"cannot be read: {error.strerror or error}") from None


def _problem(where: str, message: str, allowed: Any = None) -> InvalidError:
    return InvalidError([FieldProblem(field=where, message=message, allowed=allowed)])


def _read_ndjson(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            try:
                given = decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _problem(where, str(error), "a JSON object") from None
            context = given.get("context")
            if context is not None and not isinstance(context, dict):
                raise _problem(f"{where}, context", f"{context!r:.60} is not an object", "an object")
            yield _build_row(where, given, context)


def _read_csv(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = csv.reader(file, strict=True)
        try:
            header = next(cells, [])
            columns = _find_columns(f"{path.name}, header", header, config)
            for row in cells:
                where = f"{path.name}, line {cells.line_num}"
                if len(row) not in (0, len(header)):
                    raise _problem(where, f"{len(row)} cells", f"{len(header)}, as in the header")
                if row:  # skip empty lines
                    given = {name: cell for name, cell in zip(header, row, strict=True) if cell}
                    yield _build_row(where, given, _build_context(where, given, columns, config))
        except csv.Error as error:
            raise _problem(f"{path.name}, line {cells.line_num}", str(error)) from None
        except UnicodeDecodeError:
            raise _problem(f"{path.name}, after line {cells.line_num}", "is not UTF-8 text") from None


def _read_parquet(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = _find_columns(f"{path.name}, schema", names, config)
            wanted = {*columns.values(), *FIELDS}
            number = 0
            for batch in file.iter_batches(BATCH, columns=[name for name in names if name in wanted]):
                values = {name: _to_python(batch.column(name)) for name in batch.schema.names if name in wanted}
                for row in zip(*values.values(), strict=True):
                    number += 1
                    where = f"{path.name}, row {number}"
                    given = {name: value for name, value in zip(values, row, strict=True) if value is not None}
                    yield _build_row(where, given, _build_context(where, given, columns, config))
    except pa.ArrowException as error:
        raise _problem(path.name, f"cannot be read: {error}") from None


def _to_python(column: Any) -> list[Any]:
    """The values as Python objects; times lose their nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _find_columns(where: str, names: Sequence[str], config: CampaignConfig) -> dict[tuple[str, bool], str]:
    """The column of each variable (its name, and whether it is a number): context.NAME, or NAME if there is none."""
    if "action" not in names:
        raise _problem(where, "has no column action", "action, and one for each variable")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise _problem(where, f"has the column {repeated[0]!r} more than once", "each column once")
    known = [CONTEXT_PREFIX + variable.name for variable in config.variables]
    prefix = CONTEXT_PREFIX if any(name.startswith(CONTEXT_PREFIX) for name in names) else ""
    columns = {(variable.name, variable.is_number): prefix + variable.name for variable in config.variables}
    for name in names if config.extra_variables == "reject" else ():
        if name.startswith(CONTEXT_PREFIX) and name not in known:
            raise _problem(where, f"{name!r} is not a variable of campaign {config.name}", known)
    optional = {variable.name for variable in config.variables if variable.missing == "level"}
    for (variable, _), name in columns.items():
        if (name not in names and variable not in optional) or name in FIELDS:  # `reward` is not the column `reward`
            raise _problem(where, f"has no column for the variable {name.removeprefix(CONTEXT_PREFIX)!r}", known)
    return columns


def _build_context(
    where: str, given: Mapping[str, Any], columns: Mapping[tuple[str, bool], str], config: CampaignConfig
) -> dict[str, Any] | None:
    """The values of the variables, or None if the row has none and may not lack them all. A level stays text even if
    it looks like a number."""
    context = {}
    for (name, number), column in columns.items():
        if column in given:
            value = given[column]
            context[name] = _convert(where, column, value, _parse_number, "a number") if number else value
    may_lack_all = all(variable.missing == "level" for variable in config.variables)
    return context if context or may_lack_all else None


def _build_row(where: str, given: Mapping[str, Any], context: dict[str, Any] | None) -> dict[str, Any]:
    """The row, with only the fields that the file has."""
    row = {
        name: _convert(where, name, given[name], convert, allowed)
        for name, (convert, allowed) in FIELDS.items()
        if given.get(name) is not None
    }
    if "action" not in row:
        raise _problem(where, "has no action", "the action that was taken")
    if row.pop("erased", False):
        context = None
        for name in ("reward", "reward_after_round", "propensity", "subject"):
            row.pop(name, None)
    return {"context": context, **row}


def _convert(where: str, name: str, value: Any, convert: Callable[[Any], Any], allowed: str) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError, KeyError):
        raise _problem(f"{where}, {name}", f"{value!r:.60} is not {allowed}", allowed) from None


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _parse_number(value: Any) -> int | float:
    if isinstance(value, str):
        if "_" in value:  # Python would accept 1_000
            raise ValueError
        value = int(value) if value.removeprefix("-").isdecimal() else float(value)
    elif isinstance(value, bool):
        raise TypeError
    if not math.isfinite(value):
        raise ValueError
    return value if isinstance(value, int) else float(value)


def _parse_whole(value: Any) -> int:
    number = _parse_number(value)
    if number != int(number):
        raise ValueError
    return int(number)


def _parse_time(value: Any) -> str | datetime:
    return value if isinstance(value, datetime) else _parse_text(value)


def _parse_flag(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "action": (_parse_text, "text"),
    "reward": (_parse_number, "a number"),
    "propensity": (_parse_number, "a number"),
    "at": (_parse_time, "a time"),
    "decided_at": (_parse_time, "a time"),
    "decision_id": (_parse_text, "text"),
    "subject": (_parse_text, "text"),
    "round": (_parse_whole, "a whole number"),
    "reward_after_round": (_parse_whole, "a whole number"),
    "erased": (_parse_flag, "true or false"),
}
READERS: dict[str, Reader] = {
    ".ndjson": _read_ndjson,
    ".jsonl": _read_ndjson,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
