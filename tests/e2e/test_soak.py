"""`make soak` for a few seconds: it runs through a restart, all that was acknowledged is there, and nothing grows.

Seconds tell nothing of slow leaks; the long run does. What must not take minutes to show is a handle or a thread for
each request, or something that stays of every campaign that is deleted.
"""

import asyncio
import json

import pytest

from tests.databases import KINDS
from tests.e2e.soak import Plan, soak
from tests.e2e.soak_report import findings, report

PLAN = Plan(minutes=0.1, campaigns=8, rate=25, lives=2, rounds=40, sample_seconds=0.5, workers=1)
# A life has 75 requests. However slow the machine is: five pooled connections with their files; 40 threads for requests
# and those of the lanes, the background and the outbox.
MOST_HANDLES, MOST_THREADS = 30, 65


@pytest.fixture(scope="module")
def all_soaked(new_database, tmp_path_factory):
    """Both databases at the same time."""

    async def run():
        folder = tmp_path_factory.mktemp("soak")
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(soak(kind, new_database(kind), PLAN, folder)) for kind in KINDS]
        return {kind: task.result() for kind, task in zip(KINDS, running, strict=True)}

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_through_a_restart_and_everything_is_there(all_soaked, kind):
    """R17, R18: `verify` is clean, and acknowledged counts are the rows."""
    soaked = all_soaked[kind]
    assert soaked.wrong == []
    assert soaked.exits == ["ended with 0", "ended with 0"]
    assert {sample.life for sample in soaked.samples} == {0, 1}
    assert soaked.steady.decided.total() > 8 * 40 + 50
    assert soaked.steady.rewarded.total() > 8 * 20
    assert {latency.kind for latency in soaked.steady.latencies} >= {"decide", "reward", "state"}


@pytest.mark.parametrize("kind", KINDS)
def test_handles_and_threads_do_not_grow(all_soaked, kind):
    """From the start of the last life to its end, when all is answered: pools are full, nothing stays of a request."""
    soaked = all_soaked[kind]
    first, last = next(sample for sample in soaked.samples if sample.life == 1), soaked.samples[-1]
    assert last.handles - first.handles < MOST_HANDLES
    assert last.threads - first.threads < MOST_THREADS


@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_size_stay_in_bounds(all_soaked, kind):
    """Generous: a decision with its share of everything takes about a kilobyte, and a process some 250 MB."""
    soaked = all_soaked[kind]
    first, last = soaked.samples[0], soaked.samples[-1]
    assert last.stored - first.stored < 20_000 * (last.decisions - first.decisions)
    assert last.unique < 3 * first.unique
    assert all(sample.explained < sample.unique for sample in soaked.samples)


def test_the_report_is_written(all_soaked, tmp_path, capsys):
    """A table for people, all figures as JSON, a picture."""
    found, out = list(all_soaked.values()), tmp_path / "soak.json"
    report(found, out)
    told = capsys.readouterr().out
    for soaked in found:
        assert f"{soaked.database}: 0.1 minutes, 8 campaigns" in told
        for finding in findings(soaked):
            assert finding.name in told
    written = json.loads(out.read_text())
    assert [each["database"] for each in written] == KINDS
    assert len(written[0]["samples"]) == len(found[0].samples)
    assert out.with_suffix(".png").stat().st_size > 10_000
