"""Campaigns that come and go leave nothing behind in a worker's memory."""

import gc
import time
import weakref

import pytest

import service.analysis.columns
from tests.service.answers import good
from tests.service.playing import CONFIGS, SEASONS

FIRST, MORE = 15, 15  # campaigns; the first ones fill caches and pools
ALLOWED = 4 * MORE  # objects: the counters of a campaign alone would be 12


def live_through(client, name):
    """A campaign's whole life: decided for, rewarded, looked at, archived, deleted."""
    good(client.post("/campaigns", json=CONFIGS["given"] | {"name": name}), 201)
    ids = [f"d{number}" for number in range(12)]
    contexts = [{"season": SEASONS[number % 4], "spend": 20, "tenure": 1} for number in range(12)]
    items = [{"decision_id": each, "context": context} for each, context in zip(ids, contexts, strict=True)]
    good(client.post("/decide/batch", json={"campaign": name, "items": items}))
    rewards = [{"decision_id": each, "reward": 1.0} for each in ids[:8]]
    good(client.post("/reward/batch", json={"campaign": name, "items": rewards}))
    for what in ("", "/model", "/series", "/series?beliefs=now", "/report", "/regimes", "/diagnostics"):
        good(client.get(f"/campaigns/{name}{what}"))
    assert client.get(f"/campaigns/{name}/decisions").status_code == 200
    good(client.post(f"/campaigns/{name}/archive"))
    assert client.delete(f"/campaigns/{name}", params={"confirm": name}).status_code == 204


def objects(worker):
    """How many there are, but for pooled connections and weak references, of which some hundred come and go.

    The fewest of several counts: something may just be under way in the background.
    """
    counts = []
    for _ in range(8):
        gc.collect()
        counts.append(sum(not isinstance(each, weakref.ref) for each in gc.get_objects()))
        time.sleep(0.05)
    return min(counts)


@pytest.mark.slow
def test_a_deleted_campaign_leaves_no_object(start, monkeypatch):
    """Without a scrape of the metrics, too. The columns of a few are kept, whether they are still there or not."""
    monkeypatch.setattr(service.analysis.columns, "MAX_ROUNDS", 3 * service.analysis.columns.MIN_ROUNDS)
    worker = start()
    client = worker.client
    for number in range(FIRST):
        live_through(client, f"first-{number}")
    growth = []
    while len(growth) < 3 and min(growth, default=ALLOWED) >= ALLOWED:  # a pool of threads may grow, a leak always does
        before = objects(worker)
        for number in range(MORE):
            live_through(client, f"then-{len(growth)}-{number}")
        growth.append(objects(worker) - before)
    assert min(growth) < ALLOWED, growth
