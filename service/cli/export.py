"""`undercurrent export`: write a campaign's decisions and rewards to a file."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from service.analysis.export_files import FORMATS, Pages, open_log
from service.cli.database import open_database
from service.cli.flags import Flags, add_settings
from service.web.times import parse_interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="name of the campaign")
    parser.add_argument("--format", choices=FORMATS, default="ndjson", help="default ndjson: one JSON object per line")
    parser.add_argument("--from", metavar="TIME", help="decided at or after this time: 2026-10-01T00:00:00Z")
    parser.add_argument("--to", metavar="TIME", help="decided before this time")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    add_settings(parser)


def run(flags: Flags) -> int:
    """Write the same file as `GET /campaigns/{name}/decisions`, read from the database directly."""
    times, file = parse_interval(flags["from"], flags["to"]), flags["output"]
    _, write = FORMATS[flags["format"]]
    with open_database(flags) as store, store.scanning() as tx:
        log = open_log(tx, flags["campaign"], times)
        with tqdm(total=log.decisions, unit=" rounds", disable=None if file else True) as bar:
            chunks = write(log.config, _count(log.pages, bar))
            return _write_to_stdout(chunks) if file is None else _write_to_file(chunks, Path(file))


def _count(pages: Pages, bar: "tqdm[Any]") -> Pages:
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
