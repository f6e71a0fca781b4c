"""Shared by all benchmarks: timing in turns, tables and verdicts. Speed is always a ratio to a peer in the same run.

Contenders take turns and are timed in CPU seconds, so that a busy machine slows all of them equally.
"""

import gc
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from time import process_time
from typing import Any, NamedTuple

from tqdm import tqdm

for _library in (
    "OMP",
    "OPENBLAS",
    "MKL",
    "NUMBA",
):  # read when numpy and numba are imported, after this package
    os.environ[f"{_library}_NUM_THREADS"] = "1"


class Timing(NamedTuple):
    seconds: list[float]  # one per repetition
    result: Any  # of the last repetition

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Verdict(NamedTuple):
    target: str
    measured: str
    met: bool | None  # None: for information only


def time_in_turns(
    topic: str, repetitions: int, contenders: Mapping[str, Callable[[], Callable[[], Any]]]
) -> dict[str, Timing]:
    """Time the contenders in turns. Each contender returns the function to time; preparing it is not timed."""
    timings = {name: Timing([], None) for name in contenders}
    for name in tqdm([*contenders] * repetitions, desc=topic, leave=False):
        run = contenders[name]()
        gc.collect()
        begun = process_time()
        result = run()
        seconds = process_time() - begun
        timings[name] = Timing([*timings[name].seconds, seconds], result)
    return timings


def compute_ratio(slow: Timing, fast: Timing) -> float:
    """Return the median of the ratios within each repetition."""
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def describe_package(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} not installed"


def format_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [f"### {title}", "", *(f"| {' | '.join(row)} |" for row in (header, *rows))]
    lines.insert(3, f"|{'---|' * len(header)}")
    return "\n".join(lines) + "\n"


def format_verdicts(verdicts: Sequence[Verdict]) -> str:
    words = {True: "PASS", False: "FAIL", None: ""}
    rows = [(v.target, v.measured, words[v.met]) for v in verdicts]
    return format_table("Targets", ("target", "measured", "verdict"), rows)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{format_table(title, header, rows)}", flush=True)


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    print(f"\n{format_verdicts(verdicts)}", flush=True)
