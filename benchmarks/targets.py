"""What the HTTP benchmark measures, in which order, and the bar for each figure."""

import math
import statistics
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from benchmarks import Verdict
from benchmarks.load import BATCH
from benchmarks.measure import Measured, Slice, Target, compute_ratios, find_failure, format_spread

HOT = ("bench-00",)
BULK = ("bench-99",)  # for batches, so that the hot campaign only sees single requests
MANY = tuple(f"bench-{number:02}" for number in range(1, 17))
CONNECTIONS = 16
BUSY_GENERATOR = 0.8  # of one core; above that, the generator may limit the result


class Size(NamedTuple):
    """How much one run measures."""

    repetitions: int
    warm_up: float  # seconds before each slice
    seconds: float  # of a slice
    late: int  # rounds of the old campaign
    pairs: int  # of decides, early and late
    idle_rounds: int  # of each idle campaign


QUICK = Size(3, warm_up=0.2, seconds=1.0, late=100_000, pairs=500, idle_rounds=10)
FULL = Size(3, warm_up=0.5, seconds=4.0, late=1_000_000, pairs=2_000, idle_rounds=100)

EMPTY = Target("empty FastAPI + pydantic", "empty", "decide", CONNECTIONS, HOT)
NAIVE = Target("a commit per request, SQLite", "naive", "decide", CONNECTIONS, HOT)
SQLITE = Target("SQLite", "sqlite", "decide", CONNECTIONS, HOT)
POSTGRESQL = Target("PostgreSQL, 1 worker, 16 campaigns", "postgresql", "decide", CONNECTIONS, MANY)
POSTGRESQL_HOT = Target("PostgreSQL, 1 worker, 1 campaign", "postgresql", "decide", CONNECTIONS, HOT)
ROUTED_1 = Target("PostgreSQL, nginx, 1 worker, 16 campaigns", "routed-1", "decide_by_path", CONNECTIONS, MANY)
ROUTED_2 = Target("PostgreSQL, nginx, 2 workers, 16 campaigns", "routed-2", "decide_by_path", CONNECTIONS, MANY)
BATCHES = Target(f"SQLite, batches of {BATCH}", "sqlite", "batch", 1, BULK)
BASELINE = Target("the baseline, SQLite", "baseline", "decide", 1, HOT)


class Bar(NamedTuple):
    """A ratio of two targets within a repetition, and what its median must reach."""

    title: str
    upper: Target
    lower: Target
    figure: str = "requests"  # a field of Slice
    least: float = -math.inf
    most: float = math.inf


def add_rewards(target: Target) -> Target:
    return target._replace(traffic="mixed")


def use_one_connection(target: Target) -> Target:
    return target._replace(connections=1)


def list_bars(has_baseline: bool) -> list[Bar]:
    """List the bars. The targets are measured in this order, so that compared ones are close in time."""
    single = use_one_connection(SQLITE)
    bars = [
        Bar("PostgreSQL, 1 worker, 16 campaigns: decide / empty FastAPI", POSTGRESQL, EMPTY, least=0.8),
        Bar("PostgreSQL, 1 worker, one hot campaign: decide / empty FastAPI", POSTGRESQL_HOT, EMPTY, least=1.0),
        Bar("SQLite, 16 connections: decide / empty FastAPI (goal 1.5)", SQLITE, EMPTY, least=1.2),
        Bar("SQLite, 16 connections: p99 / empty FastAPI", SQLITE, EMPTY, "p99", most=2.0),
        Bar("SQLite, 16 connections: decide / a commit per request", SQLITE, NAIVE, least=5.0),
        Bar(
            "PostgreSQL, 1 worker, 16 campaigns: decide and reward / empty FastAPI",
            add_rewards(POSTGRESQL),
            add_rewards(EMPTY),
            least=0.8,
        ),
        Bar("SQLite, 16 connections: decide and reward / empty FastAPI", add_rewards(SQLITE), add_rewards(EMPTY)),
        Bar("PostgreSQL, nginx, 16 campaigns: 2 workers / 1 worker", ROUTED_2, ROUTED_1, least=1.0),
        Bar(
            "PostgreSQL, nginx, 16 campaigns: 2 workers / 1 worker, CPU a request",
            ROUTED_2,
            ROUTED_1,
            "server_us",
            most=1.1,
        ),
        Bar(f"SQLite, one client: decisions/s, batches of {BATCH} / single", BATCHES, single, "decisions", least=20.0),
        Bar("SQLite, one connection: p50 / empty FastAPI", single, use_one_connection(EMPTY), "p50"),
    ]
    if has_baseline:  # the bar allows for noise
        bars[-1] = Bar("SQLite, one connection: p50 / the baseline", single, BASELINE, "p50", most=1.1)
    return bars


def judge_bar(bar: Bar, measured: Measured) -> Verdict:
    upper, lower = measured[bar.upper], measured[bar.lower]
    ratios = compute_ratios(upper, lower, attrgetter(bar.figure))
    bound = f" ≥ {bar.least}" if bar.least > -math.inf else f" ≤ {bar.most}" if bar.most < math.inf else ""
    met = bool(ratios) and bar.least <= statistics.median(ratios) <= bar.most
    cpu = " / ".join(describe_cpu(slices) for slices in (upper, lower))
    details = f"; p50 {format_p50(upper)} / {format_p50(lower)} ms" if bar.figure == "p50" else ""
    return Verdict(bar.title + bound, f"{format_spread(ratios)} ×; CPU µs {cpu}{details}", met if bound else None)


def describe_cpu(slices: Sequence[Slice]) -> str:
    """Describe the CPU µs of a request: of the service, and of PostgreSQL and nginx if there are any."""
    if find_failure(slices):
        return "?"
    own = statistics.median(part.server_us for part in slices)
    others = {
        title: statistics.median(1e6 * getattr(part, field) / part.requests for part in slices)
        for title, field in (("PostgreSQL", "postgres"), ("nginx", "proxy"))
    }
    beside = ", ".join(f"{title} {used:,.0f}" for title, used in others.items() if used)
    return f"{own:,.0f} ({beside})" if beside else f"{own:,.0f}"


def format_p50(slices: Sequence[Slice]) -> str:
    return f"{statistics.median(part.p50 for part in slices):.3f}"


def judge_generator(measured: Measured) -> Verdict:
    loaded = [part.generator for slices in measured.values() for part in slices]
    return Verdict(
        f"the load generator is busy for < {BUSY_GENERATOR:.0%} of one core",
        f"{statistics.median(loaded):.0%}, at most {max(loaded):.0%}",
        max(loaded) < BUSY_GENERATOR,
    )
