"""`make torture`: kill a server under mixed load again and again; nothing acknowledged may be lost.

Counts every finding; the exit code is 1 if there is any. test_crash.py runs the first minutes of it.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from service import __version__
from tests.databases import KINDS, Databases
from tests.e2e.findings import FINDINGS
from tests.e2e.lives import Figures, Torture
from tests.e2e.server import launch_servers

ROWS = {
    "kills": "kills (SIGKILL)",
    "kills_during_start": "  of them during a start",
    "kills_with_open_job": "  of them during a re-estimation",
    "kills_of_one_worker": "  of them of one of two workers",
    "database_kills": "kills of PostgreSQL itself",
    "operations": "acknowledged operations",
    "decisions": "  decisions",
    "rewards": "  rewards",
    "changes": "  changes of a campaign, and rollbacks",
    "repeated": "repeated requests, first answer expected",
    "unanswered_whole": "unanswered, but done",
    "unanswered_absent": "unanswered and not done",
    "refused_503": "503 while PostgreSQL was down",
    "jobs_taken_over": "re-estimations taken over from killed servers",
    "longest_recovery_seconds": "longest start until ready, seconds",
    "longest_database_recovery_seconds": "longest recovery after PostgreSQL is back, seconds",
    "seconds": "duration, seconds",
}


def format_table(all_figures: Sequence[Figures]) -> str:
    """The summary for people."""
    rows = {text: [getattr(figures, name) for figures in all_figures] for name, text in ROWS.items()}
    for kind, text in FINDINGS.items():
        rows[f"{kind}: {text}"] = [figures.findings[kind] for figures in all_figures]
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{figures.database:>12}" for figures in all_figures)]
    for text, values in rows.items():
        cells = (f"{value:>12,.1f}" if isinstance(value, float) else f"{value:>12,}" for value in values)
        lines.append(f"{text:<{width}}" + "".join(cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="on each database (default 50)")
    parser.add_argument("--operations", type=int, default=110_000, help="acknowledged, in all (default 110000)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the random instants; it does not make a run fully repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    flags = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, so that no server is left behind
    seed = flags.seed if flags.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="undercurrent-torture-"))
    databases, all_figures = Databases(folder), []
    print(f"{flags.kills} kills on each of {', '.join(KINDS)}; seed {seed}; files are in {folder}", flush=True)
    clean = False
    try:
        for kind in KINDS:
            with launch_servers(folder / kind) as launch:
                torture = Torture(kind, databases, launch, seed)
                all_figures.append(torture.figures)
                _watch(torture, flags.kills, flags.operations // len(KINDS))
        clean = all(figures.clean for figures in all_figures)
    finally:
        databases.close(keep=not clean)
    print(format_table(all_figures))
    if flags.json is not None:
        run = {"version": __version__, "python": platform.python_version(), "cores": os.cpu_count(), "seed": seed}
        run["ended_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        databases_data = [asdict(figures) for figures in all_figures]
        flags.json.write_text(json.dumps({**run, "clean": clean, "databases": databases_data}, indent=2) + "\n")
    if clean:
        shutil.rmtree(folder)
        print("Nothing lost, nothing duplicated, no wrong answer.")
        return 0
    for figures in all_figures:
        for example in figures.examples:
            print(f"{figures.database}: {example}", file=sys.stderr)
    print(f"THERE ARE FINDINGS. The databases and the servers' logs are in {folder} and {databases.postgresql.folder}.")
    return 1


def _watch(torture: Torture, kills: int, operations: int) -> None:
    with tqdm(total=kills, desc=torture.figures.database, unit="kill", mininterval=1.0) as bar:
        for figures in torture.run(kills, operations):
            bar.update(min(figures.kills, kills) - bar.n)
            bar.set_postfix(operations=figures.operations, findings=sum(figures.findings.values()))


if __name__ == "__main__":
    sys.exit(main())
