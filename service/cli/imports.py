"""`undercurrent import`: warm-start a campaign from a file of past decisions, in one transaction."""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from policy import encode
from service.analysis.import_files import count_rows, read_rows
from service.base.errors import InvalidError
from service.cli.database import open_database
from service.cli.flags import Flags, add_settings
from service.engine.campaigns import Campaigns
from service.engine.operations import KeepSnapshot, Snapshot
from service.engine.preparation import prepare_import
from service.engine.recovery import get_campaign, load_config
from service.engine.requests import ImportId, ImportRow
from service.storage.audit import record_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="name of the campaign, which must not have decided yet")
    parser.add_argument("file", help=".ndjson, .csv or .parquet")
    parser.add_argument(
        "--import-id", metavar="ID", help="an id is imported only once; default: derived from the file's content"
    )
    add_settings(parser)


def run(flags: Flags) -> int:
    """Import all rows of a file, or none. Importing the same file again changes nothing."""
    name, path = flags["campaign"], Path(flags["file"])
    with open_database(flags) as store:
        campaigns = Campaigns(store, lambda: time.time_ns() // 1_000)
        with store.reading() as tx:
            config = load_config(tx, get_campaign(tx, name).campaign_id)
        rows = read_rows(path, config)
        try:
            import_id, size = _check_id(flags["import_id"] or _derive_id(path)), count_rows(path)
        except OSError as error:
            print(f"undercurrent: cannot read {path}: {error.strerror or error}", file=sys.stderr)
            return 1
        with tqdm(_check_rows(rows), path.name, total=size, unit=" rows", disable=None) as bar:
            operation = prepare_import(campaigns, name, import_id, bar)
        summary = operation.summary
        if not operation.unit.has_changed:
            print(f"{name}: {summary['import_id']!r} has already been imported; nothing to do")
            return 0
        record = record_command("import", name, rows=summary["rows"])
        (outcome,), work = campaigns.process([replace(operation, record=record)])
        if isinstance(outcome, Exception):
            raise outcome
        for snapshot in work:  # saves the service from replaying all this when it starts
            if isinstance(snapshot, Snapshot):
                campaigns.process([KeepSnapshot(name, snapshot, encode(snapshot.state))])
    print(f"{name}: imported {summary['rows']} decisions and {summary['rewards']} rewards as {summary['import_id']!r}")
    return 0


def _check_rows(rows: Iterator[dict[str, object]]) -> Iterator[ImportRow]:
    for number, row in enumerate(rows):
        try:
            yield ImportRow.model_validate(row)
        except ValidationError as error:
            problems = [{**problem, "loc": ("body", "rows", number, *problem["loc"])} for problem in error.errors()]
            raise InvalidError.from_pydantic(problems) from None


def _check_id(import_id: str) -> str:
    try:
        return str(TypeAdapter(ImportId).validate_python(import_id))
    except ValidationError as error:
        raise InvalidError.from_pydantic([{**p, "loc": ("body", "import_id")} for p in error.errors()]) from None


def _derive_id(path: Path) -> str:
    """An id that depends on the content only."""
    with path.open("rb") as file:
        return f"file-{hashlib.file_digest(file, 'blake2b').hexdigest()[:16]}"
