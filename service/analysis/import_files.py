"""Files of past decisions, as an import reads them: lines of JSON, CSV or Parquet, a row at a time.

Columns have the names that exports write. A row has `context` (None if it is not known) and `action` and, where the
file has them, `reward`, `propensity`, `at` and `decided_at` (text or a time), `decision_id`, `subject`, `round` and
`reward_after_round`; an erased decision has no context and no reward. Whether all that fits the campaign is the
importer's to say; here a mistake is what cannot be read.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from policy import CampaignConfig
from service.analysis.export_files import CONTEXT_PREFIX, is_number
from service.base.errors import FieldProblem, InvalidError

__all__ = ["count_rows", "read_rows"]

BATCH = 1_000  # rows of Parquet at a time
BLOCK = 2**20  # bytes


def read_rows(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    """The rows of a file, in its order; the error of a bad one says where it is."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise _mistake(path.name, "is not a kind of file that can be read", ", ".join(READERS))
    return _reading(read, path, config)


def count_rows(path: Path) -> int:
    """About how many rows a file has, for a progress bar: a line feed inside a CSV's text counts as well."""
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        from pyarrow.parquet import read_metadata

        try:
            return int(read_metadata(path).num_rows)
        except pa.ArrowException as error:
            raise _mistake(path.name, f"cannot be read: {error}") from None
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
    return lines - (path.suffix.lower() == ".csv")


Reader = Callable[[Path, CampaignConfig], Iterator[dict[str, Any]]]


def _reading(read: Reader, path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    try:
        yield from read(path, config)
    except OSError as error:  # pyarrow's errors of a broken file are among them
        raise _mistake(path.name, f"cannot be read: {error.strerror or error}") from None


def _mistake(where: str, message: str, allowed: Any = None) -> InvalidError:
    return InvalidError([FieldProblem(field=where, message=message, allowed=allowed)])


# --- lines of JSON --------------------------------------------------------------------------------------------------


def _json_rows(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            try:
                given = decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _mistake(where, str(error), "a JSON object") from None
            context = given.get("context")
            if context is not None and not isinstance(context, dict):
                raise _mistake(f"{where}, context", f"{context!r:.60} is not an object", "an object")
            yield _row(where, given, context)


# --- CSV ------------------------------------------------------------------------------------------------------------


def _csv_rows(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = csv.reader(file, strict=True)
        try:
            header = next(cells, [])
            columns = _variable_columns(f"{path.name}, header", header, config)
            for row in cells:
                where = f"{path.name}, line {cells.line_num}"
                if len(row) not in (0, len(header)):
                    raise _mistake(where, f"{len(row)} cells", f"{len(header)}, as in the header")
                if row:  # an empty line is none
                    given = {name: cell for name, cell in zip(header, row, strict=True) if cell}
                    yield _row(where, given, _context(where, given, columns))
        except csv.Error as error:
            raise _mistake(f"{path.name}, line {cells.line_num}", str(error)) from None
        except UnicodeDecodeError:
            raise _mistake(f"{path.name}, after line {cells.line_num}", "is not UTF-8 text") from None


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet_rows(path: Path, config: CampaignConfig) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = _variable_columns(f"{path.name}, schema", names, config)
            wanted = {*columns.values(), *FIELDS}
            number = 0
            for batch in file.iter_batches(BATCH, columns=[name for name in names if name in wanted]):
                values = {name: _plain(batch.column(name)) for name in batch.schema.names if name in wanted}
                for row in zip(*values.values(), strict=True):
                    number += 1
                    where = f"{path.name}, row {number}"
                    given = {name: value for name, value in zip(values, row, strict=True) if value is not None}
                    yield _row(where, given, _context(where, given, columns))
    except pa.ArrowException as error:
        raise _mistake(path.name, f"cannot be read: {error}") from None


def _plain(column: Any) -> list[Any]:
    """Python's values; its times have no nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


# --- from columns to rows -------------------------------------------------------------------------------------------


def _variable_columns(where: str, names: Sequence[str], config: CampaignConfig) -> dict[tuple[str, bool], str]:
    """The column of each variable, by its name and whether it is a number: context.NAME, or NAME if there are none."""
    if "action" not in names:
        raise _mistake(where, "has no column action", "action, and one for each variable")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise _mistake(where, f"has {repeated[0]!r} more than once", "each column once")
    known = [CONTEXT_PREFIX + variable.name for variable in config.variables]
    prefix = CONTEXT_PREFIX if any(name.startswith(CONTEXT_PREFIX) for name in names) else ""
    columns = {(variable.name, is_number(variable)): prefix + variable.name for variable in config.variables}
    for name in names:
        if name.startswith(CONTEXT_PREFIX) and name not in known:
            raise _mistake(where, f"{name!r} is not a variable of campaign {config.name}", known)
    for name in columns.values():
        if name not in names or name in FIELDS:  # a variable called `reward` is not the column of that name
            raise _mistake(where, f"has no column for the variable {name.removeprefix(CONTEXT_PREFIX)!r}", known)
    return columns


def _context(where: str, given: Mapping[str, Any], columns: Mapping[tuple[str, bool], str]) -> dict[str, Any] | None:
    """What a row says of the variables, None if nothing; a level's name may look like a number."""
    context = {}
    for (name, number), column in columns.items():
        if column in given:
            value = given[column]
            context[name] = _converted(where, column, value, _number, "a number") if number else value
    return context if context or not columns else None


def _row(where: str, given: Mapping[str, Any], context: dict[str, Any] | None) -> dict[str, Any]:
    """The row, without what is not known."""
    row = {
        name: _converted(where, name, given[name], convert, allowed)
        for name, (convert, allowed) in FIELDS.items()
        if given.get(name) is not None
    }
    if "action" not in row:
        raise _mistake(where, "has no action", "the action that was taken")
    if row.pop("erased", False):
        context = None
        for name in ("reward", "reward_after_round", "propensity", "subject"):
            row.pop(name, None)
    return {"context": context, **row}


def _converted(where: str, name: str, value: Any, convert: Callable[[Any], Any], allowed: str) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        raise _mistake(f"{where}, {name}", f"{value!r:.60} is not {allowed}", allowed) from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, str):
        if "_" in value:  # Python's own way of writing numbers
            raise ValueError
        value = int(value) if value.removeprefix("-").isdecimal() else float(value)
    elif isinstance(value, bool):
        raise TypeError
    if not math.isfinite(value):
        raise ValueError
    return value if isinstance(value, int) else float(value)


def _real(value: Any) -> float:
    return float(_number(value))


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError
    return int(number)


def _time(value: Any) -> str | datetime:
    return value if isinstance(value, datetime) else _text(value)


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError
    return str(value).lower() == "true"


FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "action": (_text, "text"),
    "reward": (_real, "a number"),
    "propensity": (_real, "a number"),
    "at": (_time, "a time"),
    "decided_at": (_time, "a time"),
    "decision_id": (_text, "text"),
    "subject": (_text, "text"),
    "round": (_whole, "a whole number"),
    "reward_after_round": (_whole, "a whole number"),
    "erased": (_flag, "true or false"),
}
READERS: dict[str, Reader] = {
    ".ndjson": _json_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
