"""`undercurrent export | import | config-check`: files of decisions, and of a campaign's configuration."""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from policy import CampaignConfig, PolicyError, encode
from service.analysis.export_files import FORMATS, Pages, open_log
from service.analysis.import_files import count_rows, read_rows
from service.base.errors import InvalidError
from service.cli.flags import Flags, add_settings, open_database
from service.engine import operations, preparation, recovery, requests
from service.engine.campaigns import Campaigns
from service.storage.audit import record_command
from service.web.times import parse_interval


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="name of the campaign")
    parser.add_argument("--format", choices=FORMATS, default="ndjson", help="default ndjson: one JSON object per line")
    parser.add_argument("--from", metavar="TIME", help="decided at or after this time: 2026-10-01T00:00:00Z")
    parser.add_argument("--to", metavar="TIME", help="decided before this time")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    add_settings(parser)


def run_export(flags: Flags) -> int:
    """The file is the one of GET /campaigns/NAME/decisions, but read from the database directly."""
    times, file = parse_interval(flags["from"], flags["to"]), flags["output"]
    _, write = FORMATS[flags["format"]]
    with open_database(flags) as store, store.scanning() as tx:
        log = open_log(tx, flags["campaign"], times, time.time_ns() // 1_000)
        with tqdm(total=log.decisions, unit=" rounds", disable=None if file else True) as bar:
            chunks = write(log.config, _count_rounds(log.pages, bar))
            return _write_to_stdout(chunks) if file is None else _write_to_file(chunks, Path(file))


def _count_rounds(pages: Pages, bar: "tqdm[Any]") -> Pages:
    for page in pages:
        yield page
        bar.update(len(page))


def _write_to_file(chunks: Iterator[bytes], file: Path) -> int:
    """The file gets its name only once it is complete."""
    partial = file.with_name(f"{file.name}.part")
    try:
        with partial.open("wb") as output:
            output.writelines(chunks)
        partial.replace(file)
    except OSError as error:
        print(f"undercurrent: cannot write {file}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _write_to_stdout(chunks: Iterator[bytes]) -> int:
    try:
        sys.stdout.buffer.writelines(chunks)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`head`, say) has seen enough; keep Python from flushing again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="name of the campaign, which must not have decided yet")
    parser.add_argument("file", help=".ndjson, .csv or .parquet")
    parser.add_argument(
        "--import-id", metavar="ID", help="an id is imported only once; default: derived from the file's content"
    )
    add_settings(parser)


def run_import(flags: Flags) -> int:
    """Rows are taken in their order: all or none. Columns have the names that `undercurrent export` writes; only the
    action and the variables are required. Importing the same file again changes nothing."""
    name, path = flags["campaign"], Path(flags["file"])
    with open_database(flags) as store:
        campaigns = Campaigns(store, lambda: time.time_ns() // 1_000)
        with store.reading() as tx:
            config = recovery.load_config(tx, recovery.get_campaign(tx, name).campaign_id)
        rows = read_rows(path, config)
        try:
            import_id, size = _choose_id(flags["import_id"], path), count_rows(path)
        except OSError as error:
            print(f"undercurrent: cannot read {path}: {error.strerror or error}", file=sys.stderr)
            return 1
        with tqdm(_check_rows(rows), path.name, total=size, unit=" rows", disable=None) as bar:
            operation = preparation.prepare_import(campaigns, name, import_id, bar)
        summary = operation.summary
        if not operation.unit.has_changed:
            print(f"{name}: {summary['import_id']!r} has already been imported; nothing to do")
            return 0
        record = record_command("import", name, rows=summary["rows"])
        (outcome,), work = campaigns.process([replace(operation, record=record)])
        if isinstance(outcome, Exception):
            raise outcome
        for snapshot in work:  # saves the service from replaying all this when it starts
            if isinstance(snapshot, operations.Snapshot):
                campaigns.process([operations.KeepSnapshot(name, snapshot, encode(snapshot.state))])
    print(f"{name}: imported {summary['rows']} decisions and {summary['rewards']} rewards as {summary['import_id']!r}")
    return 0


def _check_rows(rows: Iterator[dict[str, object]]) -> Iterator[requests.ImportRow]:
    for number, row in enumerate(rows):
        try:
            yield requests.ImportRow.model_validate(row)
        except ValidationError as error:
            problems = [{**problem, "loc": ("body", "rows", number, *problem["loc"])} for problem in error.errors()]
            raise InvalidError.from_pydantic(problems) from None


def _choose_id(given: str | None, path: Path) -> str:
    """Check the id that was given, or derive one from the file's content alone."""
    if not given:
        with path.open("rb") as file:
            return f"file-{hashlib.file_digest(file, 'blake2b').hexdigest()[:16]}"
    try:
        return str(TypeAdapter(requests.ImportId).validate_python(given))
    except ValidationError as error:
        raise InvalidError.from_pydantic([{**p, "loc": ("body", "import_id")} for p in error.errors()]) from None


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a JSON file, or - for standard input")


def run_check(flags: Flags) -> int:
    file = flags["file"]
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        config = CampaignConfig.model_validate_json(text)
    except PolicyError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
    except OSError as error:
        print(f"undercurrent: cannot read {file}: {error.strerror}", file=sys.stderr)
    except UnicodeDecodeError:
        print(f"undercurrent: {file} is not UTF-8 text", file=sys.stderr)
    else:
        print(config.model_dump_json(indent=2))
        return 0
    return 1
