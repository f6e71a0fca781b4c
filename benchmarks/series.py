"""Time what a campaign's page requests over HTTP: python -m benchmarks.series [--rounds N].

A campaign of this many rounds is played in batches on SQLite. Then a restarted service answers, first with nothing in
memory: the series at several resolutions, a preview, and explanations of a new and an old decision.
"""

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from benchmarks import Verdict, print_table, print_verdicts
from benchmarks.limits import fill, wait_until_quiet
from benchmarks.load import describe_campaign, draw_rounds
from benchmarks.measure import open_client, post
from benchmarks.servers import build_serve_command, run_server

CAMPAIGN = "page"
SERIES = f"/campaigns/{CAMPAIGN}/series"
REPETITIONS = 7
LONGEST_MS = 500.0


def play_campaign(folder: Path, rounds: int) -> str:
    """Create a database with a campaign of this many rounds, nine in ten of them rewarded."""
    url = f"sqlite:///{folder / 'series.db'}"
    with run_server("play", build_serve_command(url), folder) as at, open_client(at) as client:
        post(client, "/campaigns", describe_campaign(CAMPAIGN) | {"control": {"share": 0.1}})
        for name in ("old", "new"):  # the middle and the last decision have a known id
            fill(client, CAMPAIGN, rounds // 2, rewarded=0.9)
            ((context, _),) = draw_rounds(1, random.Random(name))
            post(client, "/decide", {"campaign": CAMPAIGN, "decision_id": name, "context": context})
        wait_until_quiet(at)
    return url


def time_request(ask: Callable[[], httpx.Response], repetitions: int = REPETITIONS) -> tuple[float, int]:
    """Return the median time in ms and the size of the answer in bytes."""
    times = []
    for _ in range(repetitions):
        begun = perf_counter()
        answer = ask()
        times.append(1_000 * (perf_counter() - begun))
        answer.raise_for_status()
    return statistics.median(times), len(answer.content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100_000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        url = play_campaign(folder, rounds)
        rows, verdicts = measure_requests(url, folder)
    title = f"{rounds:,} decisions, SQLite, {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f})"
    print_table(title, ("request", "ms", "KiB"), rows)
    print_verdicts(verdicts)


def measure_requests(url: str, folder: Path) -> tuple[list[tuple[str, str, str]], list[Verdict]]:
    ((context, _),) = draw_rounds(1, random.Random(1))
    preview, explain = (f"/campaigns/{CAMPAIGN}/{route}" for route in ("preview", "explain"))
    with run_server("ask", build_serve_command(url), folder) as at, open_client(at) as client:
        wait_until_quiet(at)
        before = at.resident_mib()

        def get(**query: Any) -> Callable[[], httpx.Response]:
            return lambda: client.get(SERIES, params=query)

        results = {
            "series, nothing in memory": time_request(get(), 1),
            "series": time_request(get()),
            "series, points=10": time_request(get(points=10)),
            "series, points=2000": time_request(get(points=2_000)),
            "series, beliefs=now, campaign not in memory": time_request(get(beliefs="now"), 1),
            "series, beliefs=now": time_request(get(beliefs="now")),
            "preview": time_request(lambda: client.post(preview, json={"context": context})),
            "explain, the newest": time_request(lambda: client.post(explain, json={"decision_id": "new"})),
            "explain, half way back": time_request(lambda: client.post(explain, json={"decision_id": "old"}), 3),
        }
        memory = f"{before:.0f} → {at.resident_mib():.0f} MiB resident"
    rows = [(name, f"{time:.1f}", f"{size / 1024:.0f}") for name, (time, size) in results.items()]
    first, later = results["series, nothing in memory"][0], results["series"][0]
    verdicts = [
        Verdict(f"the series takes under {LONGEST_MS:.0f} ms", f"{later:.0f} ms", later < LONGEST_MS),
        Verdict("also the first time", f"{first:.0f} ms, {memory}", first < LONGEST_MS),
    ]
    return rows, verdicts


if __name__ == "__main__":
    main()
