"""Export a million decisions as one file, in bounded memory: python -m benchmarks.export [--rows N].

A campaign is created and played over HTTP; copies of its rounds, written to the database while no service runs, fill
the log. Then a new service for each format streams the log. Meanwhile its resident memory is read every 20 ms, and
another client decides ten times a second. The rows of each file are counted. Writes results/export.md.
"""

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import sqlalchemy as sa

from benchmarks import Verdict, format_table, format_verdicts
from benchmarks.limits import fill, wait_until_quiet
from benchmarks.load import Client, Connection, describe_campaign
from benchmarks.measure import open_client, post, record_alongside
from benchmarks.servers import RunError, build_serve_command, run_server
from service.storage.store import Store
from service.storage.tables import campaigns, decisions, live, rewards

CAMPAIGN, OTHER = "exported", "deciding"
PLAYED = 10_000  # rounds
LARGEST_MIB = 300
FORMATS = ("ndjson", "csv", "parquet")


class Measured(NamedTuple):
    format: str
    rows: int
    mib: float  # of the file
    seconds: float
    resident: float  # MiB before the export
    largest: float  # MiB at most
    decide: list[float]  # ms, before the export
    meanwhile: list[float]  # ms, during the export


def prepare(folder: Path, rows: int) -> str:
    """Create a database with a campaign of this many rounds, nine in ten of them rewarded."""
    url = f"sqlite:///{folder / 'export.db'}"
    with run_server("prepare", build_serve_command(url), folder) as at, open_client(at) as client:
        for name in (CAMPAIGN, OTHER):
            post(client, "/campaigns", describe_campaign(name))
        fill(client, CAMPAIGN, min(PLAYED, rows), rewarded=0.9)
        wait_until_quiet(at)
    with closing(Store(url)) as store, store.writing() as tx:
        number = tx.connection.execute(sa.select(campaigns.c.id).where(campaigns.c.name == CAMPAIGN)).scalar_one()
        for first in range(PLAYED, rows, PLAYED):
            for kind in (decisions, rewards):
                tx.connection.execute(_copy_rounds(kind, number, first, rows))
        arrived = sa.select(sa.func.count()).where(rewards.c.campaign_id == number).scalar_subquery()
        tx.connection.execute(sa.update(live).where(live.c.campaign_id == number).values(round=rows, arrived=arrived))
    return url


def _copy_rounds(kind: sa.Table, campaign: int, first: int, last: int) -> sa.Insert:
    """Build the statement that copies the played rounds, shifted by `first`."""
    shifted = {
        "round": kind.c.round + first,
        "decision_id": decisions.c.decision_id + f"-{first}",
        "arrival": rewards.c.arrival + first,
        "after_round": rewards.c.after_round + first,
    }
    columns = [shifted.get(column.name, column) for column in kind.c]
    return sa.insert(kind).from_select(
        list(kind.c.keys()),
        sa.select(*columns).where(kind.c.campaign_id == campaign, kind.c.round <= min(PLAYED, last - first)),
    )


def measure_export(folder: Path, url: str, format: str) -> Measured:
    """Measure one export by a new service."""
    file = folder / f"log.{format}"
    with (
        run_server(format, build_serve_command(url), folder) as at,
        open_client(at) as client,
        closing(Connection(at.port)) as connection,
    ):
        requests = Client([OTHER]).decide()

        def time_decide() -> float:
            return 1e3 * connection.ask(next(requests))

        wait_until_quiet(at)
        before, resident = [time_decide() for _ in range(300)], at.resident_mib()
        with (
            record_alongside(at.resident_mib, 0.02) as largest,
            record_alongside(time_decide, 0.1) as meanwhile,
            file.open("wb") as output,
        ):
            begun = perf_counter()
            with client.stream("GET", f"/campaigns/{CAMPAIGN}/decisions", params={"format": format}) as answer:
                if answer.status_code != 200:
                    raise RunError(f"the export answered {answer.status_code}: {answer.read()[:500]!r}")
                output.writelines(answer.iter_raw())
            seconds = perf_counter() - begun
    mib, rows = file.stat().st_size / 2**20, count_rows(file, format)
    file.unlink()
    return Measured(format, rows, mib, seconds, resident, max(largest), before, meanwhile)


def count_rows(file: Path, format: str) -> int:
    if format == "parquet":
        return int(pq.ParquetFile(file).metadata.num_rows)
    with file.open("rb") as lines:
        return sum(1 for _ in lines) - (format == "csv")


def format_report(measured: list[Measured], rows: int) -> str:
    def percentiles(times: list[float]) -> str:
        return " / ".join(f"{np.percentile(times, percent):.1f}" for percent in (50, 99))

    lines = [
        [
            one.format, f"{one.rows:,}", f"{one.mib:.0f}", f"{one.seconds:.1f}", f"{one.rows / one.seconds:,.0f}",
            f"{one.resident:.0f}", f"{one.largest:.0f}", percentiles(one.decide), percentiles(one.meanwhile),
        ]
        for one in measured
    ]  # fmt: skip
    header = (
        "format", "rows", "MiB", "seconds", "rows/s", "resident MiB before", "at most",
        "decide before, p50 / p99 ms", "meanwhile",
    )  # fmt: skip
    verdicts = [
        Verdict(
            f"{one.format}: {rows:,} rows, < {LARGEST_MIB} MiB resident",
            f"{one.rows:,} rows, {one.largest:.0f} MiB",
            one.rows == rows and one.largest < LARGEST_MIB,
        )
        for one in measured
    ]
    return format_table("Exports from SQLite over HTTP", header, lines) + "\n" + format_verdicts(verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for export.md")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="undercurrent-export-") as folder:
            url = prepare(Path(folder), options.rows)
            text = format_report([measure_export(Path(folder), url, format) for format in FORMATS], options.rows)
    except RunError as error:
        print(f"benchmarks.export: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "export.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nWritten to {options.out}/export.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
