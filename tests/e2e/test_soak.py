"""`make soak` for a few seconds: nothing acknowledged is lost in a restart, and nothing grows.

Only the long run finds slow leaks. This one finds a handle or a thread that is left for each request, and memory that
is left for each deleted campaign.
"""

import asyncio
import json

import pytest

from tests.databases import KINDS
from tests.e2e.soak import Plan, soak_all
from tests.e2e.soak_report import find_drifts, report

PLAN = Plan(minutes=0.1, campaigns=8, rate=25, lives=2, rounds=40, sample_seconds=0.5, workers=1)
# A life has 75 requests. On the slowest machine pools grow by five connections with their files, 40 threads for
# requests, and those of the lanes, the background and the outbox.
MOST_HANDLES, MOST_THREADS = 30, 65


@pytest.fixture(scope="module")
def results(new_database, tmp_path_factory):
    """The results by kind; both databases run at the same time."""
    urls, folder = [new_database(kind) for kind in KINDS], tmp_path_factory.mktemp("soak")
    return dict(zip(KINDS, asyncio.run(soak_all(urls, PLAN, folder)), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_in_a_restart(results, kind):
    """R17, R18: `verify` agrees, and the numbers of rows are those of acknowledged requests."""
    soaked = results[kind]
    assert soaked.wrong == []
    assert soaked.exits == ["ended with 0", "ended with 0"]
    assert {sample.life for sample in soaked.samples} == {0, 1}
    assert soaked.steady.decided.total() > 8 * 40 + 50
    assert soaked.steady.rewarded.total() > 8 * 20
    assert {latency.kind for latency in soaked.steady.latencies} >= {"decide", "reward", "state"}


@pytest.mark.parametrize("kind", KINDS)
def test_handles_and_threads_do_not_grow(results, kind):
    """At the end of a life, when all requests are answered, nothing of them is left."""
    soaked = results[kind]
    first, last = next(sample for sample in soaked.samples if sample.life == 1), soaked.samples[-1]
    assert last.handles - first.handles < MOST_HANDLES
    assert last.threads - first.threads < MOST_THREADS


@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_size_stay_in_bounds(results, kind):
    """Generous bounds: a decision needs about a kilobyte, and a process about 250 MB."""
    soaked = results[kind]
    first, last = soaked.samples[0], soaked.samples[-1]
    assert last.stored - first.stored < 20_000 * (last.decisions - first.decisions)
    assert last.unique < 3 * first.unique
    assert all(sample.explained < sample.unique for sample in soaked.samples)


def test_the_report_is_written(results, tmp_path, capsys):
    """A table, and all figures as JSON."""
    soaked_all, out = list(results.values()), tmp_path / "soak.json"
    report(soaked_all, out)
    printed = capsys.readouterr().out
    for soaked in soaked_all:
        assert f"{soaked.database}: 0.1 minutes, 8 campaigns" in printed
        for finding in find_drifts(soaked):
            assert finding.name in printed
    written = json.loads(out.read_text())
    assert [each["database"] for each in written] == KINDS
    assert len(written[0]["samples"]) == len(soaked_all[0].samples)
