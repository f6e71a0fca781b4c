"""How long another campaign and /healthz wait while a wide campaign learns from large batches."""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import uuid4

from benchmarks import Verdict
from benchmarks.limits import fill, wait_until_quiet
from benchmarks.load import HOST, Client, Connection, describe_campaign
from benchmarks.measure import format_spread, open_client, post, record_alongside
from benchmarks.servers import Server

BATCHES, ITEMS = 5, 200
PAUSE = 0.002  # seconds between two questions of a client
AFTERMATH = 1.0  # seconds after the last batch in which the others still ask
LEVELS = tuple("12345678")
VARIABLES = tuple(f"v{number}" for number in range(6))
HEALTH = f"GET /healthz HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


class Waits(NamedTuple):
    """The longest waits of one run, in seconds."""

    decide: float  # of another campaign
    health: float
    batch: float  # of the wide campaign itself


def describe_wide_campaign() -> dict[str, Any]:
    """Describe a campaign of 784 columns with the default policy."""
    return {
        "name": "wide",
        "actions": [f"action-{number}" for number in range(16)],
        "variables": [{"name": name, "levels": LEVELS} for name in VARIABLES],
        "signals": ["v0"],
        "seed": 7,
    }


def draw_wide_rounds(draws: random.Random) -> Iterator[tuple[dict[str, str], float]]:
    """Draw contexts and rewards from two persistent regimes, so that the policy finds and uses them."""
    regime = 0
    while True:
        regime = regime if draws.random() < 0.98 else 1 - regime
        context = {name: draws.choice(LEVELS) for name in VARIABLES}
        context["v0"] = draws.choice(LEVELS[:4] if regime else LEVELS[4:])
        yield context, regime + draws.gauss(0.0, 0.2)


def measure_waits(at: Server) -> Waits:
    """Let the wide campaign of a new database learn while two clients ask for something else, one thing at a time."""
    rounds, slowest, decide = draw_wide_rounds(random.Random(7)), 0.0, Client(["other"]).decide()
    with (
        open_client(at) as client,
        closing(Connection(at.port)) as other,
        closing(Connection(at.port)) as monitor,
    ):
        for campaign in (describe_wide_campaign(), describe_campaign("other")):
            post(client, "/campaigns", campaign)
        fill(client, "other", 600, rewarded=1.0)
        wait_until_quiet(at)
        with (
            record_alongside(lambda: other.ask(next(decide)), PAUSE) as decides,
            record_alongside(lambda: monitor.ask(HEALTH), PAUSE) as healths,
        ):
            for _ in range(BATCHES):
                drawn = [(uuid4().hex, *next(rounds)) for _ in range(ITEMS)]
                items = [{"decision_id": name, "context": context} for name, context, _ in drawn]
                rewards = [{"decision_id": name, "reward": reward} for name, _, reward in drawn]
                for path, body in (("/decide/batch", items), ("/reward/batch", rewards)):
                    begun = time.perf_counter()
                    post(client, path, {"campaign": "wide", "items": body})
                    slowest = max(slowest, time.perf_counter() - begun)
            time.sleep(AFTERMATH)
    return Waits(max(decides), max(healths), slowest)


def judge_waits(database: str, runs: Sequence[Waits]) -> list[Verdict]:
    bars = (
        ("another campaign's longest wait", 0.1, [run.decide for run in runs]),
        ("the longest wait for /healthz", 0.1, [run.health for run in runs]),
        ("its own slowest batch", 3.0, [run.batch for run in runs]),
    )
    return [
        Verdict(
            f"{database}, a wide campaign learns: {title} ≤ {most} s",
            f"{format_spread(seconds, 3)} s",
            statistics.median(seconds) <= most,
        )
        for title, most, seconds in bars
    ]
