"""Measuring over HTTP: slices of load in turns, the CPU time of each process, and ratios within one repetition."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import httpx
import numpy as np
from tqdm import tqdm

from benchmarks.load import HOST, Job
from benchmarks.servers import (
    Generator,
    RunError,
    Server,
    measure_machine_seconds,
    measure_tree_seconds,
)

PATIENCE = 120.0  # seconds for one request outside the slices


class Target(NamedTuple):
    title: str
    server: str
    traffic: str
    connections: int
    campaigns: tuple[str, ...]


class Slice(NamedTuple):
    """One slice of one target. CPU time is in cores: CPU seconds per second."""

    requests: float  # per second
    decisions: float
    p50: float  # ms
    p99: float
    server_us: float  # CPU µs of all processes of the server, per request
    generator: float
    server: float
    postgres: float
    proxy: float
    machine: float  # all processes of the machine
    failure: str
    sample: str


Measured = dict[Target, list[Slice]]


class Bench(NamedTuple):
    """The running servers and the load generator."""

    servers: Mapping[str, Server]
    generator: Generator

    def load(self, target: Target, warm_up: float, seconds: float) -> Slice:
        at = self.servers[target.server]
        marks: list[tuple[float, ...]] = []

        def take_mark() -> None:
            trees = [measure_tree_seconds(*pids) for pids in (at.pids, at.postmasters, at.proxies)]
            marks.append((perf_counter(), *trees, measure_machine_seconds()))

        job = Job(at.port, target.traffic, target.campaigns, target.connections, warm_up, seconds)
        result = self.generator.play(job, take_mark)
        spans = [end - begin for begin, end in zip(*marks, strict=True)] if len(marks) == 2 else [float("nan")] * 5
        wall, server, postgres, proxy, machine = spans
        latencies = result["latencies"] or [float("nan")]
        rate = result["answered"] / seconds
        return Slice(
            requests=rate,
            decisions=result["decisions"] / seconds,
            p50=float(np.percentile(latencies, 50)),
            p99=float(np.percentile(latencies, 99)),
            server_us=1e6 * server / wall / rate if rate else float("nan"),
            generator=result["cpu"] / result["wall"],
            server=server / wall,
            postgres=postgres / wall,
            proxy=proxy / wall,
            machine=machine / wall,
            failure=result["failure"],
            sample=result["sample"],
        )

    def load_in_turns(self, targets: Sequence[Target], repetitions: int, warm_up: float, seconds: float) -> Measured:
        """Load every target once per repetition; a target that failed is skipped from then on."""
        slices: Measured = {target: [] for target in targets}
        with tqdm(total=repetitions * len(targets), desc="slices of load", leave=False) as bar:
            for _ in range(repetitions):
                for target in targets:
                    bar.set_postfix_str(f"{target.title}, {target.traffic}")
                    if not find_failure(slices[target]):
                        slices[target].append(self.load(target, warm_up, seconds))
                    bar.update()
        return slices


def find_failure(slices: Sequence[Slice]) -> str:
    """Return the first failure in these slices, or an empty string."""
    return next((part.failure for part in slices if part.failure), "")


def compute_ratios(upper: Sequence[Slice], lower: Sequence[Slice], figure: Callable[[Slice], float]) -> list[float]:
    """Return the ratio of two targets within each repetition; empty if one of them failed."""
    if find_failure(upper) or find_failure(lower):
        return []
    return [figure(a) / figure(b) for a, b in zip(upper, lower, strict=True)]


def format_spread(values: Sequence[float], digits: int = 2) -> str:
    """Format median and range."""
    if not values:
        return "failed"
    parts = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{parts[0]} ({parts[1]} – {parts[2]})"


def format_row(target: Target, slices: Sequence[Slice]) -> list[str]:
    """Format a row of the table: medians over the repetitions, and the range of requests per second."""
    row = [target.title, target.traffic, str(target.connections)]
    if find_failure(slices):
        return [*row, "FAILED", *[""] * 7]

    def median(figure: Callable[[Slice], float]) -> float:
        return statistics.median(map(figure, slices))

    decisions = median(lambda s: s.decisions)
    return [
        *row,
        format_spread([part.requests for part in slices], 0),
        f"{decisions:,.0f}" if decisions else "",
        f"{median(lambda s: s.p50):.2f}",
        f"{median(lambda s: s.p99):.2f}",
        f"{median(lambda s: s.server_us):,.0f}",
        f"{median(lambda s: s.server):.2f} / {median(lambda s: s.postgres):.2f} / {median(lambda s: s.proxy):.2f}",
        f"{median(lambda s: s.generator):.2f}",
        f"{median(lambda s: s.machine):.2f} of {os.cpu_count()}",
    ]


@contextmanager
def record_alongside(read: Callable[[], float], every: float) -> Iterator[list[float]]:
    """Record a figure every so many seconds while the block runs."""
    figures, over = [read()], Event()

    def record() -> None:
        while not over.wait(every):
            figures.append(read())

    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(record)
        try:
            yield figures
        finally:
            over.set()
    recording.result()  # raises its error


def post(client: httpx.Client, path: str, body: Any) -> None:
    """Send one POST outside the slices; anything but success ends the run."""
    try:
        answer = client.post(path, json=body)
    except httpx.HTTPError as error:
        raise RunError(f"POST {path}: {error!r}") from error
    if not answer.is_success:
        raise RunError(f"POST {path} answered {answer.status_code}: {answer.text[:500]}")


def open_client(at: Server) -> httpx.Client:
    """Open a client for requests outside the slices."""
    return httpx.Client(base_url=f"http://{HOST}:{at.port}", timeout=PATIENCE, trust_env=False)
