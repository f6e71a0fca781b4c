"""Costs that must not grow: the latency of a decide with the history, a worker's memory, the time to start."""

import itertools
import random
import statistics
import time
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

import httpx
import numpy as np
from tqdm import tqdm

from benchmarks import Verdict
from benchmarks.load import Client, Connection, describe_campaign, draw_rounds
from benchmarks.measure import format_spread, open_client, post
from benchmarks.servers import RunError, Server, build_serve_command, measure_tree_seconds, run_server

LARGEST_BATCH = 1_000
EARLY = 1_000  # rounds of the new campaign
QUIET_SECONDS = 180.0  # longest wait for workers to start and for background work


def fill(client: httpx.Client, campaign: str, rounds: int, rewarded: float) -> None:
    """Decide rounds in batches and reward a share of each, which is the fastest way."""
    drawn = draw_rounds(rounds, random.Random(campaign))
    for _ in tqdm(range(0, rounds, LARGEST_BATCH), desc=f"filling {campaign}", leave=False, disable=rounds < 10_000):
        part = list(itertools.islice(drawn, LARGEST_BATCH))
        ids = [uuid4().hex for _ in part]
        items = [{"decision_id": name, "context": context} for name, (context, _) in zip(ids, part, strict=True)]
        post(client, "/decide/batch", {"campaign": campaign, "items": items})
        rewards = [{"decision_id": name, "reward": reward} for name, (_, reward) in zip(ids, part, strict=True)]
        post(client, "/reward/batch", {"campaign": campaign, "items": rewards[: max(1, round(rewarded * len(part)))]})


def wait_until_quiet(at: Server) -> None:
    """Wait until all workers have started and no re-estimation or snapshot is running."""
    patience = perf_counter() + QUIET_SECONDS
    while perf_counter() < patience:
        before = measure_tree_seconds(*at.pids)
        time.sleep(0.5)
        if measure_tree_seconds(*at.pids) - before < 0.05:
            return
    raise RunError(f"the server was still busy after {QUIET_SECONDS:.0f} s without a request")


class History(NamedTuple):
    """Latency of single decides, for a new and an old campaign in turns. Lists have one entry per repetition."""

    early: int  # rounds
    late: int
    fill_rate: float  # decisions/s while filling the old one, including rewards
    p50: list[tuple[float, float]]  # ms, early and late
    p99: list[tuple[float, float]]


def measure_long_history(folder: Path, late: int, repetitions: int, pairs: int) -> History:
    """Fill a campaign over HTTP and compare it with a new one in the same service."""
    with (
        run_server("history", build_serve_command(f"sqlite:///{folder / 'history.db'}"), folder) as at,
        open_client(at) as client,
    ):
        post(client, "/campaigns", describe_campaign("late"))
        begun = perf_counter()
        fill(client, "late", late, rewarded=0.1)
        rate = late / (perf_counter() - begun)
        p50, p99 = [], []
        for repetition in range(repetitions):
            early = f"early-{repetition}"
            post(client, "/campaigns", describe_campaign(early))
            fill(client, early, EARLY, rewarded=0.1)
            wait_until_quiet(at)
            seconds = _decide_in_turns(at, (early, "late"), pairs)
            p50.append((1e3 * float(np.percentile(seconds[0], 50)), 1e3 * float(np.percentile(seconds[1], 50))))
            p99.append((1e3 * float(np.percentile(seconds[0], 99)), 1e3 * float(np.percentile(seconds[1], 99))))
    return History(EARLY, late, rate, p50, p99)


def judge_history(history: History) -> list[Verdict]:
    verdicts = []
    for name, pairs in (("p50", history.p50), ("p99", history.p99)):
        ratios = [late / early for early, late in pairs]
        times = " / ".join(f"{statistics.median(pair[which] for pair in pairs):.2f}" for which in (1, 0))
        verdicts.append(
            Verdict(
                f"decide {name}, round {history.late:,} / round {history.early:,} ≤ 1.2",
                f"{format_spread(ratios)} ×; {times} ms",
                statistics.median(ratios) <= 1.2,
            )
        )
    return [*verdicts, Verdict(f"filled to round {history.late:,}", f"{history.fill_rate:,.0f} decisions/s", None)]


def _decide_in_turns(at: Server, campaigns: tuple[str, str], pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each decide of two campaigns; every decision is rewarded before the next pair."""
    traffics = [Client([campaign]).mixed() for campaign in campaigns]
    seconds: tuple[list[float], list[float]] = ([], [])
    with closing(Connection(at.port)) as connection:
        for pair in tqdm(range(pairs), desc="decide, early and late in turns", leave=False):
            for which in (0, 1) if pair % 2 else (1, 0):
                seconds[which].append(connection.ask(next(traffics[which])))
            for traffic in traffics:
                connection.ask(next(traffic))
    return seconds


class Idle(NamedTuple):
    """Memory of a worker that has served many campaigns, and the time to start again."""

    campaigns: int
    rounds: int  # of each
    mib_before: float
    mib_after: float
    start_seconds: list[float]  # from the start of the process to the answer of the first decide
    start_cpu: list[float]  # CPU seconds, which depend less on other load


def measure_idle_campaigns(
    folder: Path, campaigns: int, rounds: int, starts: int, checkout: Path | None = None
) -> Idle:
    """Create campaigns, play each a little and measure memory; then restart on the same database."""
    file = folder / ("idle.db" if checkout is None else "idle-baseline.db")
    command = build_serve_command(f"sqlite:///{file}", checkout)
    names = [f"idle-{number:04}" for number in range(campaigns)]
    with run_server("idle", command, folder) as at, open_client(at) as client:
        wait_until_quiet(at)
        before = at.resident_mib()
        for name in tqdm(names, desc="campaigns", leave=False):
            post(client, "/campaigns", describe_campaign(name))
            fill(client, name, rounds, rewarded=1.0)
        wait_until_quiet(at)
        after = at.resident_mib()
    times = [_time_start(folder, command, name) for name in tqdm(names[:starts], desc="starts", leave=False)]
    return Idle(campaigns, rounds, before, after, [wall for wall, _ in times], [cpu for _, cpu in times])


def _time_start(folder: Path, command: list[str], campaign: str) -> tuple[float, float]:
    """Return the seconds and CPU seconds until the first answer."""
    begun = perf_counter()
    with run_server("start", command, folder) as at, closing(Connection(at.port)) as connection:
        connection.ask(next(Client([campaign], rounds=1).decide()))
        return perf_counter() - begun, measure_tree_seconds(*at.pids)


def judge_idle(idle: Idle, baseline: Idle | None) -> list[Verdict]:
    """Judge the memory against 400 MiB, or against another version of the service and 5 % of noise."""
    before, after = f"{idle.mib_before:.0f} MiB", f"{idle.mib_after:.0f} MiB"
    is_small = [True, idle.mib_after < 400]
    if baseline is not None:
        before += f"; baseline {baseline.mib_before:.0f}"
        after += f"; baseline {baseline.mib_after:.0f}"
        is_small[0] = idle.mib_before <= 1.05 * baseline.mib_before
        is_small[1] &= idle.mib_after <= 1.05 * baseline.mib_after
    return [
        Verdict("idle worker ≤ 1.05 × the baseline", before, is_small[0] if baseline else None),
        Verdict(f"worker with {idle.campaigns:,} idle campaigns < 400 MiB, ≤ 1.05 × the baseline", after, is_small[1]),
        Verdict(
            "start to first decision < 3 s",
            f"{format_spread(idle.start_seconds)} s, of which {format_spread(idle.start_cpu)} s CPU",
            statistics.median(idle.start_seconds) < 3.0,
        ),
    ]
