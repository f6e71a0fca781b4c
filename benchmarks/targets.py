"""What the HTTP benchmark measures, in which order, and the target for each figure."""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks import Verdict
from benchmarks.limits import History, Idle
from benchmarks.load import BATCH
from benchmarks.measure import Measured, Slice, Target, compute_ratios, format_spread

__all__ = [
    "BULK",
    "FULL",
    "HOT",
    "MANY",
    "NAIVE",
    "OURS",
    "QUICK",
    "Size",
    "add_rewards",
    "build_postgresql_target",
    "judge",
    "list_targets",
]

HOT = ("bench-00",)
BULK = ("bench-99",)  # for batches, so that the hot campaign only sees single requests
MANY = tuple(f"bench-{number:02}" for number in range(1, 17))
CONNECTIONS = 16
BUSY_GENERATOR = 0.8  # of one core; above that, the generator may limit the result
SATURATED = 0.9  # of all cores
NOISE = 0.9  # a higher ratio does not count as slower


class Size(NamedTuple):
    """How much one run measures."""

    repetitions: int
    warm_up: float  # seconds before each slice
    seconds: float  # of a slice
    workers: tuple[int, ...]  # on PostgreSQL
    late: int  # rounds of the old campaign
    pairs: int  # of decides, early and late
    idle_rounds: int  # of each idle campaign


QUICK = Size(3, warm_up=0.2, seconds=1.0, workers=(1, 2), late=100_000, pairs=500, idle_rounds=10)
FULL = Size(3, warm_up=0.5, seconds=4.0, workers=(1, 2, 4), late=1_000_000, pairs=2_000, idle_rounds=100)


# --- what is measured ---------------------------------------------------------------------------------------


EMPTY_ENDPOINT = Target("(a) empty FastAPI + pydantic", "empty", "decide", CONNECTIONS, HOT)
NAIVE = Target("(b) commit per request, SQLite", "naive", "decide", CONNECTIONS, HOT)
OURS = Target("(c) ours, SQLite", "sqlite", "decide", CONNECTIONS, HOT)
BARE = Target("bare ASGI hello", "hello", "hello", CONNECTIONS, HOT)
BATCHES = Target(f"(e) ours, SQLite, batches of {BATCH}", "sqlite", "batch", CONNECTIONS, BULK)


def build_postgresql_target(workers: int, campaigns: Sequence[str], traffic: str = "decide") -> Target:
    count = "1 campaign" if len(campaigns) == 1 else f"{len(campaigns)} campaigns"
    title = f"(d) ours, PostgreSQL, {workers} worker{'s' if workers > 1 else ''}, {count}"
    return Target(title, f"postgresql-{workers}", traffic, CONNECTIONS, tuple(campaigns))


def add_rewards(target: Target) -> Target:
    return target._replace(traffic="mixed")


def use_one_connection(target: Target) -> Target:
    return target._replace(connections=1)


def list_targets(workers: Sequence[int]) -> list[Target]:
    """List the targets in the order of a repetition; targets that are compared are neighbours."""
    chosen = [EMPTY_ENDPOINT, NAIVE, OURS, BATCHES, *map(add_rewards, (EMPTY_ENDPOINT, NAIVE, OURS))]
    chosen += map(use_one_connection, (EMPTY_ENDPOINT, NAIVE, OURS, BATCHES))
    for campaigns in (MANY, HOT):
        ours = [build_postgresql_target(count, campaigns) for count in workers]
        chosen += [*ours, *map(add_rewards, ours)]
    return [*chosen, *([build_postgresql_target(1, BULK, "batch")] if workers else []), BARE]


# --- verdicts -----------------------------------------------------------------------------------------------


def require_at_least(target: str, ratios: Sequence[float], least: float) -> Verdict:
    return Verdict(target, f"{format_spread(ratios)} ×", bool(ratios) and statistics.median(ratios) >= least)


def require_at_most(target: str, ratios: Sequence[float], most: float) -> Verdict:
    return Verdict(target, f"{format_spread(ratios)} ×", bool(ratios) and statistics.median(ratios) <= most)


def compare(title: str, ratios: Sequence[float]) -> Verdict:
    return Verdict(f"for comparison: {title}", f"{format_spread(ratios)} ×", None)


def judge_sqlite(measured: Measured) -> list[Verdict]:
    ours, empty, plain = measured[OURS], measured[EMPTY_ENDPOINT], measured[NAIVE]
    faster = compute_ratios(ours, empty, lambda s: s.requests)
    goal = "reached" if faster and statistics.median(faster) >= 1.5 else "not reached"
    mixes = [measured[add_rewards(target)] for target in (OURS, EMPTY_ENDPOINT, NAIVE)]
    singly = [measured[use_one_connection(target)] for target in (OURS, EMPTY_ENDPOINT, NAIVE)]
    return [
        require_at_least("(c) requests/s ≥ 1.0 × (a)", faster, 1.0),
        Verdict("goal: (c) requests/s ≥ 1.5 × (a)", goal, None),
        require_at_most("(c) p99 ≤ 2 × (a)", compute_ratios(ours, empty, lambda s: s.p99), 2.0),
        require_at_least("(c) requests/s ≥ 5 × (b)", compute_ratios(ours, plain, lambda s: s.requests), 5.0),
        compare("(c) / (a), CPU of the server per request", compute_ratios(ours, empty, lambda s: s.server_us)),
        compare("(c) / (a), mixed", compute_ratios(mixes[0], mixes[1], lambda s: s.requests)),
        compare("(c) / (b), mixed", compute_ratios(mixes[0], mixes[2], lambda s: s.requests)),
        compare("(c) / (a), one connection", compute_ratios(singly[0], singly[1], lambda s: s.requests)),
        compare("(c) / (b), one connection", compute_ratios(singly[0], singly[2], lambda s: s.requests)),
        require_at_least(
            f"(e) batches of {BATCH}: decisions/s ≥ 20 × single requests, one client",
            compute_ratios(
                measured[use_one_connection(BATCHES)], measured[use_one_connection(OURS)], lambda s: s.decisions
            ),
            20.0,
        ),
        require_at_least(
            f"(e) batches of {BATCH}: decisions/s ≥ 20 × single requests, {CONNECTIONS} connections",
            compute_ratios(measured[BATCHES], measured[OURS], lambda s: s.decisions),
            20.0,
        ),
    ]


def judge_workers(measured: Measured) -> Iterator[Verdict]:
    """Judge two workers against one: faster, or limited by the machine because all cores are busy; and not slower.

    All cores of the machine count, because the kernel works for the commits too and nothing else runs there.
    """
    cores = os.cpu_count() or 1

    def median(slices: Sequence[Slice], figure: Callable[[Slice], float]) -> float:
        return statistics.median(map(figure, slices)) if slices else 0.0

    for kind in ("decide", "mixed"):
        one, two = (measured[build_postgresql_target(workers, MANY, kind)] for workers in (1, 2))
        ratios = compute_ratios(two, one, lambda s: s.requests)
        reached, used = statistics.median(ratios or [0.0]), median(two, lambda s: s.machine)
        yield Verdict(
            f"(d) {kind}, 16 campaigns: 2 workers ≥ 1.2 × 1 worker, or the machine ≥ {SATURATED:.0%} busy",
            f"{format_spread(ratios)} ×; {median(one, lambda s: s.machine):.2f} of {cores} cores with 1 worker,"
            f" {used:.2f} with 2;"
            f" a process waits for a core {median(one, lambda s: s.waited):.0%} of the time, with 2"
            f" {median(two, lambda s: s.waited):.0%}; with 2:"
            f" workers {median(two, lambda s: s.server):.2f}, PostgreSQL {median(two, lambda s: s.postgres):.2f},"
            f" generator {median(two, lambda s: s.generator):.2f}; CPU of the workers per request"
            f" {format_spread(compute_ratios(two, one, lambda s: s.server_us))} ×",
            reached >= 1.2 or used >= SATURATED * cores,
        )
        yield Verdict(f"our own bar: not slower, ≥ {NOISE} ×", f"{format_spread(ratios)} ×", reached >= NOISE)


def judge_limits(history: History, idle: Idle) -> list[Verdict]:
    rounds = f"round {history.late:,} / round {history.early:,}"
    return [
        require_at_most(f"decide p50, {rounds} ≤ 1.2 ×", history.p50_ratios, 1.2),
        require_at_most(f"decide p99, {rounds} ≤ 1.2 ×", history.p99_ratios, 1.2),
        Verdict(
            f"worker with {idle.campaigns:,} idle campaigns < 400 MiB",
            f"{idle.mib_after:.0f} MiB ({idle.mib_before:.0f} with none)",
            idle.mib_after < 400,
        ),
        Verdict(
            "start to first decision < 3 s",
            f"{format_spread(idle.start_seconds)} s, of which {format_spread(idle.start_cpu)} s CPU",
            statistics.median(idle.start_seconds) < 3.0,
        ),
    ]


def judge_generator(measured: Measured) -> Verdict:
    loaded = [part.generator for target, slices in measured.items() if target != BARE for part in slices]
    bare = statistics.median(part.requests for part in measured[BARE])
    return Verdict(
        f"the load generator is busy for < {BUSY_GENERATOR:.0%} of one core",
        f"{statistics.median(loaded):.0%}, at most {max(loaded):.0%}; {bare:,.0f} requests/s against the bare hello",
        max(loaded) < BUSY_GENERATOR,
    )


def judge(measured: Measured, history: History, idle: Idle, with_postgresql: bool) -> list[Verdict]:
    """Judge everything; PostgreSQL only if it was measured."""
    return [
        *judge_sqlite(measured),
        *(judge_workers(measured) if with_postgresql else ()),
        *judge_limits(history, idle),
        judge_generator(measured),
    ]
