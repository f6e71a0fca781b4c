"""`undercurrent export`: a campaign's decisions and rewards as a file."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from service.analysis.export_files import FORMATS, Format, Pages, open_log
from service.base.settings import Settings
from service.storage.schema import require_current
from service.storage.store import Store
from service.web.times import parse_interval

# --- the command ----------------------------------------------------------------------------------------------------


def export(settings: Settings, name: str, format: Format, start: str | None, end: str | None, file: str | None) -> int:
    """`undercurrent export`: the same file, from the database itself."""
    asked = parse_interval(start, end)
    with closing(Store(settings.database_url)) as store:
        require_current(store)
        with store.scanning() as tx:
            config, pages, count = open_log(tx, name, asked)
            with tqdm(total=count, unit=" rounds", disable=None if file else True) as bar:
                chunks = FORMATS[format][1](config, _counted(pages, bar))
                return _piped(chunks) if file is None else _written(chunks, Path(file))


def _counted(pages: Pages, bar: "tqdm[Any]") -> Pages:
    for page in pages:
        yield page
        bar.update(len(page))


def _written(chunks: Iterator[bytes], file: Path) -> int:
    """Under its name only once it is complete."""
    partial = file.with_name(f"{file.name}.part")
    try:
        with partial.open("wb") as written:
            written.writelines(chunks)
        partial.replace(file)
    except OSError as error:
        print(f"undercurrent: cannot write {file}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _piped(chunks: Iterator[bytes]) -> int:
    try:
        sys.stdout.buffer.writelines(chunks)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough; Python must not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
