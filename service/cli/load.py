"""`undercurrent import`: a file of past decisions warm-starts a campaign, in one transaction on the database itself."""

import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from policy import encode
from service.analysis.import_files import rows_of, size_of
from service.base.errors import InvalidError
from service.base.settings import Settings
from service.engine.campaigns import Campaigns
from service.engine.operations import KeepSnapshot, Snapshot
from service.engine.recovery import get_campaign, load_config
from service.engine.requests import ImportId, ImportRow
from service.storage.audit import by_command
from service.storage.schema import require_current
from service.storage.store import Store

__all__ = ["load"]


def load(settings: Settings, name: str, file: str, import_id: str | None) -> int:
    """Import all rows of a file, or none; the same file again changes nothing."""
    path = Path(file)
    with closing(Store(settings.database_url)) as store:
        require_current(store)
        campaigns = Campaigns(store, lambda: time.time_ns() // 1_000)
        with store.reading() as tx:
            config = load_config(tx, get_campaign(tx, name)[0].campaign_id)
        rows = rows_of(path, config)
        try:
            import_id, size = _checked_id(import_id or _id_of(path)), size_of(path)
        except OSError as error:
            print(f"undercurrent: cannot read {file}: {error.strerror or error}", file=sys.stderr)
            return 1
        with tqdm(_checked(rows), path.name, total=size, unit=" rows", disable=None) as bar:
            operation = campaigns.prepare_import(name, import_id, bar)
        told = operation.told
        if not operation.made.changed:
            print(f"{name}: import {told['import_id']!r} was made before; nothing to do")
            return 0
        record = by_command("import", name, rows=told["rows"])
        (outcome,), work = campaigns.process([operation._replace(record=record)])
        if outcome is not None:
            raise outcome
        for snapshot in work:  # so that the service need not fold all that again
            if isinstance(snapshot, Snapshot):
                campaigns.process([KeepSnapshot(*snapshot, encode(snapshot.state))])
    print(f"{name}: {told['rows']} decisions and {told['rewards']} rewards imported as {told['import_id']!r}")
    return 0


def _checked(rows: Iterator[dict[str, object]]) -> Iterator[ImportRow]:
    for number, row in enumerate(rows):
        try:
            yield ImportRow.model_validate(row)
        except ValidationError as error:
            problems = [{**problem, "loc": ("body", "rows", number, *problem["loc"])} for problem in error.errors()]
            raise InvalidError.of_pydantic(problems) from None


def _checked_id(import_id: str) -> str:
    try:
        return str(TypeAdapter(ImportId).validate_python(import_id))
    except ValidationError as error:
        raise InvalidError.of_pydantic([{**p, "loc": ("body", "import_id")} for p in error.errors()]) from None


def _id_of(path: Path) -> str:
    """The same for the same content."""
    with path.open("rb") as file:
        return f"file-{hashlib.file_digest(file, 'blake2b').hexdigest()[:16]}"
