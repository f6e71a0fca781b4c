"""The results of a soak test: a table, and the figures as JSON."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.e2e.drift import Finding, Quantity, examine

if TYPE_CHECKING:
    from tests.e2e.soak import Sample, Soaked

MEBI = 2**20
LATENCY_SECONDS = 10.0  # a window of latencies
LEAST_LATENCIES = 20  # in a window
# Slopes that do not matter, even if they are certain:
LEAK = 100.0  # bytes of memory for each decision, beyond those of its round
SETTLING = 4 * MEBI  # bytes for each worker in its life: pools and the allocator's gaps fill for a while
MORE = 3.0  # handles or threads in a life
SHARE = 0.25  # of the median: how much a latency or the bytes of a decision may change in the whole run
LEAST_SECONDS = 0.001  # or this much, if that is more
JOURNAL = 8 * MEBI  # bytes in the whole run
MOST_LATE = 0.05  # share of the requests that the load generator itself may send late


def format_progress(life: int, lives: int, age: float, sample: "Sample") -> str:
    """One line to show while it runs."""
    return (
        f"life {life + 1}/{lives} {age:4.0f} s  {sample.decisions:,} decisions  "
        f"{sample.resident / MEBI:.0f} MiB  {sample.handles} handles  {sample.threads} threads  "
        f"database {sample.stored / MEBI:.0f} MiB  healthz {1_000 * sample.lag:.0f} ms"
    )


class Window(NamedTuple):
    """The latencies of single decisions in a few seconds."""

    at: float
    life: int
    p50: float
    p99: float


def build_windows(soaked: "Soaked") -> list[Window]:
    """The windows of every life once it has settled."""
    windows: list[Window] = []
    due = np.array([latency.due for latency in soaked.steady.latencies if latency.kind == "decide"])
    took = np.array([latency.seconds for latency in soaked.steady.latencies if latency.kind == "decide"])
    length = min(LATENCY_SECONDS, soaked.plan.life_seconds / 10)
    for life in range(soaked.plan.lives):
        own = [sample.at for sample in soaked.settled if sample.life == life]
        for start in np.arange(min(own), max(own), length) if own else ():
            inside = took[(due >= start) & (due < start + length)]
            if inside.size >= LEAST_LATENCIES:
                windows.append(Window(start, life, *np.percentile(inside, [50, 99])))
    return windows


def build_quantities(soaked: "Soaked") -> Iterator[Quantity]:
    """Everything that should not drift."""
    samples = soaked.settled
    lives = [sample.life for sample in samples]
    hours = [sample.at / 3_600 for sample in samples]
    made = [sample.decisions for sample in samples]
    life, run = soaked.plan.life_seconds / 3_600, soaked.plan.minutes / 60
    once = [0] * len(samples)  # as if there had been no restart

    rest = [sample.unique - sample.explained for sample in samples]
    workers = soaked.plan.count_workers(soaked.database)
    each = (made[-1] - made[0]) / soaked.plan.lives  # decisions of a life
    leak = max(LEAK, SETTLING * workers / max(1.0, each))
    yield Quantity("memory beyond its rounds", "MiB", "decision", lives, made, rest, leak)
    yield Quantity("the same, from life to life", "MiB", "decision", once, made, rest, leak)
    yield Quantity("memory, all (resident)", "MiB", "hour", lives, hours, [s.resident for s in samples], float("inf"))
    yield Quantity("file handles", "", "hour", lives, hours, [s.handles for s in samples], MORE / life)
    yield Quantity("threads", "", "hour", lives, hours, [s.threads for s in samples], MORE / life)
    journal = "write-ahead log" if soaked.database == "sqlite" else "live rows, with dead ones"
    yield Quantity(journal, "MiB", "hour", once, hours, [s.journal for s in samples], JOURNAL / run)
    cost = measure_decisions(soaked)
    if len(cost) > 1:
        yield _steady("database, each decision", "bytes", [0] * len(cost), *zip(*cost, strict=True), run)
    seen = build_windows(soaked)
    if len(seen) > 1 and soaked.steady.late_share <= MOST_LATE:
        at, none = [window.at / 3_600 for window in seen], [0] * len(seen)
        yield _steady("decide, p50", "ms", none, at, [window.p50 for window in seen], run, LEAST_SECONDS)
        yield _steady("decide, p99", "ms", none, at, [window.p99 for window in seen], run, 10 * LEAST_SECONDS)
    yield _steady("healthz (event loop)", "ms", once, hours, [s.lag for s in samples], run, 10 * LEAST_SECONDS)


def _steady(
    name: str, unit: str, lives: Sequence[int], x: Sequence[float], y: Sequence[float], hours: float, least: float = 0.0
) -> Quantity:
    """A quantity that may change by a share of its median in the whole run."""
    allowed = max(SHARE * float(np.median(y)), least) / hours
    return Quantity(name, unit, "hour", lives, x, y, allowed)


def measure_decisions(soaked: "Soaked") -> list[tuple[float, float]]:
    """The time in hours and the stored bytes for each decision, for each tenth of a life."""
    measured = []
    for life in range(soaked.plan.lives):
        own = [sample for sample in soaked.samples if sample.life == life]
        for part in np.array_split(np.arange(len(own)), min(10, len(own) // 2)) if len(own) > 3 else ():
            first, last = own[part[0]], own[min(part[-1] + 1, len(own) - 1)]
            if decisions := last.decisions - first.decisions:
                measured.append(((first.at + last.at) / 7_200, (last.stored - first.stored) / decisions))
    return measured


def find_drifts(soaked: "Soaked") -> list[Finding]:
    return [examine(quantity) for quantity in build_quantities(soaked) if len(quantity.x) > 1]


# --- for people -------------------------------------------------------------------------------------------------------


def _format_number(value: float, unit: str) -> str:
    scale = {"MiB": MEBI, "ms": 0.001}.get(unit, 1.0)
    return f"{value / scale:,.1f}"


def _format_slope(finding: Finding) -> str:
    unit = "bytes" if finding.per == "decision" else finding.unit
    low, value, high = (
        _format_number(each, unit) for each in (finding.slope.low, finding.slope.value, finding.slope.high)
    )
    return f"{value} [{low}, {high}] {unit}/{finding.per}".replace("  ", " ").replace(" /", "/")


def format_table(findings: Sequence[Finding]) -> str:
    header = ("", "first third", "last third", "slope [interval]", "allowed", "verdict")
    rows = [header]
    for finding in findings:
        unit = "bytes" if finding.per == "decision" else finding.unit
        allowed = "" if finding.allowed == float("inf") else _format_number(finding.allowed, unit)
        ends = (
            f"{_format_number(value, finding.unit)} {finding.unit}".strip() for value in (finding.first, finding.last)
        )
        verdict = finding.verdict if allowed else "for information"
        rows.append((finding.name, *ends, _format_slope(finding), allowed, verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def describe(soaked: "Soaked") -> str:
    """The load and the lives, for people."""
    steady, plan = soaked.steady, soaked.plan
    others = ", ".join(f"{what}: {count:,}" for what, count in sorted(steady.tally.items()))
    return (
        f"{soaked.database}: {plan.minutes:g} minutes, {plan.campaigns} campaigns, {plan.rate:g} requests a second\n"
        f"{steady.decided.total():,} decisions and {steady.rewarded.total():,} rewards acknowledged; {others}\n"
        f"lives: {', '.join(soaked.exits)}"
    )


def report(results: "Sequence[Soaked]", out: Path) -> int:
    """Print and write the results; 1 if anything drifts or is wrong."""
    out.parent.mkdir(parents=True, exist_ok=True)
    is_bad, data = False, []
    for soaked in results:
        findings, late = find_drifts(soaked), soaked.steady.late_share
        drifting = [finding.name for finding in findings if finding.drifts]
        print(f"\n{describe(soaked)}\n\n{format_table(findings)}\n")
        for text in soaked.wrong:
            print(f"WRONG: {text}")
        if not soaked.wrong:
            print("Every campaign verifies, and every acknowledged request is stored exactly once.")
        unseen = not any(finding.name.startswith("decide") for finding in findings)
        print(f"DRIFTS: {', '.join(drifting)}" if drifting else "Nothing drifts.")
        if unseen:
            print("LATENCY WAS NOT MEASURED: too few decisions in each window, or the pace was not kept.")
        if late > MOST_LATE:
            print(f"THE PACE WAS NOT KEPT: {late:.1%} of the requests were sent late, so the latencies mean nothing.")
            print("The machine is too busy for this rate; choose a lower one (RATE=).")
        else:
            print(f"The pace was kept: {late:.1%} of the requests were sent more than 50 ms late.")
        is_bad = is_bad or bool(drifting or soaked.wrong or unseen or late > MOST_LATE)
        data.append(_build_json(soaked, findings))
    out.write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(f"\nWritten to {out}.")
    return int(is_bad)


def _build_json(soaked: "Soaked", findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "database": soaked.database,
        "plan": soaked.plan._asdict(),
        "tally": dict(soaked.steady.tally),
        "exits": soaked.exits,
        "wrong": soaked.wrong,
        "findings": [
            finding._asdict() | {"slope": finding.slope._asdict(), "verdict": finding.verdict} for finding in findings
        ],
        "samples": [sample._asdict() for sample in soaked.samples],
        "windows": [window._asdict() for window in build_windows(soaked)],
    }
