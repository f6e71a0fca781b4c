"""Metrics for Prometheus: what the service did, counted after the commit, and the state of its campaigns.

Counters belong to one `Service`. With several worker processes they live in files, one set for each process, and the
worker that is scraped adds them up. The files of a dead worker stay, so that no counter goes back. Gauges are read
from the `live` rows at each scrape: they are true on any worker and cost nothing while deciding. The counters of a
deleted campaign are removed, because names come and go.
"""

import asyncio
import math
import os
import warnings
from collections import Counter as Tally
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from service.base.errors import UnavailableError
from service.engine.refusals import LATE, Refusals
from service.engine.unit import Unit
from service.engine.work import FAILED_STEPS
from service.storage.campaigns import read_campaigns
from service.storage.rows import REGIME_CHANGE, LiveRow
from service.storage.store import Store

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the client library reads this variable when it is imported
DATABASE_SECONDS = 2.0  # for how long a scrape waits for the database; scrapers themselves wait for ten
METHODS = {"GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"}  # callers must not invent labels
OUTCOMES = {
    "client": "accepted",
    "subject": "accepted",
    "correction": "corrected",
    "default": "default",
    "import": "imported",
}  # of a reward, by its source
QUICK = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
LONG = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000)
M = TypeVar("M", Counter, Histogram)

disable_created_metrics()  # type: ignore[no-untyped-call]  # the files have none either
# The files keep what was removed; `_Scrape` leaves it out.
warnings.filterwarnings("ignore", "Removal of labels has not been implemented", UserWarning)


class _Labelled(dict[tuple[Hashable, ...], M], Generic[M]):
    """The parts of a metric by their labels. The library's own lookup takes several times as long."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric: M = metric

    def __missing__(self, labels: tuple[Hashable, ...]) -> M:
        self[labels] = part = self._metric.labels(*labels)
        return part

    def count(self: "_Labelled[Counter]", labels: Sequence[tuple[Hashable, ...]]) -> None:
        """Count each of these; those that are alike together, which is quicker."""
        tally = Tally(labels) if len(labels) > 1 else dict.fromkeys(labels, 1)
        for each, count in tally.items():
            self[each].inc(count)

    def forget(self, names: Collection[Hashable]) -> None:
        """Drop the parts whose first label is one of these."""
        for labels in list(self):
            if labels[0] in names:
                self.pop(labels, None)
                self._metric.remove(*labels)


class _AllWorkers(Collector):
    """What all workers have counted, including dead ones."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        # The file of a worker that is just starting may still be empty.
        files = [str(file) for file in self._folder.glob("*.db") if file.stat().st_size]
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


class Metrics:
    """What one service counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        folder = os.environ.get(SHARED_FOLDER)
        if folder:
            self.registry.register(_AllWorkers(folder))
        own = None if folder else self.registry

        def counter(name: str, text: str, *labels: str) -> _Labelled[Counter]:
            return _Labelled(Counter(f"undercurrent_{name}", text, labels, registry=own))

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"undercurrent_{name}", text, labels, registry=own, buckets=buckets)

        self._requests = counter("requests_total", "Requests answered, by route template.", "route", "method", "status")
        text = "From a request's last byte to its answer."
        self._request_seconds = _Labelled(histogram("request_seconds", text, QUICK, "route"))
        text = "Decisions made; repeated requests do not count."
        self._decisions = counter("decisions_total", text, "campaign", "action", "mode")
        text = "Decides refused for their context, by variable and value; rare values are counted together."
        self._refused_decides = counter("refused_decides_total", text, "campaign", "field", "value")
        self.refusals, self.late_rewards = Refusals(), Refusals()
        text = "Rewards by outcome: accepted, corrected, repeated, refused, late, or default because none came in time."
        self._rewards = counter("rewards_total", text, "campaign", "outcome")
        text = "Stage updates, re-estimations and publications of one that failed; the model before stays in force."
        self._failed_updates = counter("failed_updates_total", text, "campaign", "kind")
        text = "Stage updates, re-estimations within a request, and those left to a background job."
        self._update_seconds = _Labelled(histogram("update_seconds", text, LONG, "kind"))
        self._alerts = counter("alerts_total", "Changes of regime that lasted long enough for an alert.", "campaign")
        text = "Messages to webhooks: sent, to be retried, or given up."
        self._deliveries = counter("webhook_attempts_total", text, "outcome")
        self._by_campaign = (
            self._decisions, self._refused_decides, self._rewards, self._failed_updates, self._alerts,
        )  # fmt: skip
        for outcome in ("sent", "retried", "given_up"):  # so that an alarm on the first failure has a 0 to start from
            self._deliveries[(outcome,)]
        self._gathered = histogram("gather_operations", "Operations that shared one transaction.", SIZES)
        self._transaction_seconds = histogram("transaction_seconds", "Transactions, until committed.", QUICK)
        text = "Times that the database failed or did not answer."
        self._database_failures = Counter("undercurrent_database_failures_total", text, registry=own)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests[route, method if method in METHODS else "other", status].inc()
        self._request_seconds[(route,)].observe(seconds)

    def count_transaction(self, operations: int, seconds: float) -> None:
        self._gathered.observe(operations)
        self._transaction_seconds.observe(seconds)

    def count_unit(self, unit: Unit) -> None:
        """Count what a committed unit of work did to its campaign."""
        campaign, rows = unit.row.name, unit.rows
        if (campaign,) not in self._alerts:  # so that an alarm on the first one has a 0 to start from
            self._alerts[(campaign,)]
            for kind in FAILED_STEPS:
                self._failed_updates[campaign, kind.removeprefix("failed_")]
        if rows.decisions or unit.refused_decides:
            self._decisions.count([(campaign, row.action, row.mode) for row in rows.decisions])
            refused = self.refusals.count(campaign, len(rows.decisions), unit.refused_decides)
            if refused:
                self._refused_decides.count([(campaign, *each) for each in refused])
        if rows.rewards:
            self._rewards.count([(campaign, OUTCOMES[row.source]) for row in rows.rewards])
        if unit.repeated:
            self._rewards[campaign, "repeated"].inc(unit.repeated)
        if unit.refused:
            self._rewards[campaign, "refused"].inc(unit.refused)
        if unit.late:
            self._rewards[campaign, "late"].inc(unit.late)
        if rows.rewards or unit.late:
            self.late_rewards.count(campaign, len(rows.rewards), [[LATE]] * unit.late)
        for row in rows.events:
            if row.kind == REGIME_CHANGE:
                self._alerts[(campaign,)].inc()
            elif row.kind in FAILED_STEPS:
                self._failed_updates[campaign, row.kind.removeprefix("failed_")].inc()
        for kind, seconds in unit.progress.timings:
            self.count_update(kind, seconds)

    def list_campaigns(self) -> set[Hashable]:
        return {labels[0] for parts in self._by_campaign for labels in list(parts)}

    def forget(self, campaigns: Collection[Hashable]) -> None:
        for parts in self._by_campaign:
            parts.forget(campaigns)
        self.refusals.forget(campaigns)
        self.late_rewards.forget(campaigns)

    def count_update(self, kind: str, seconds: float) -> None:
        self._update_seconds[(kind,)].observe(seconds)

    def count_delivery(self, outcome: str) -> None:
        self._deliveries[(outcome,)].inc()

    def count_database_failure(self) -> None:
        self._database_failures.inc()


class Exporter:
    """Answers scrapes in its own threads, so that decisions and a slow database do not delay them."""

    def __init__(self, metrics: Metrics, store: Store) -> None:
        self._metrics, self._store = metrics, store
        self._threads = ThreadPoolExecutor(2, "metrics")
        self._reading: asyncio.Future[list[LiveRow] | None] | None = None

    async def export(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in a format that the caller accepts, and the content type of that format."""
        run = asyncio.get_running_loop().run_in_executor
        if self._reading is None or self._reading.done():
            self._reading = run(self._threads, self._read)
        # A hanging database blocks one thread only, however many scrapes there are.
        await asyncio.wait([self._reading], timeout=DATABASE_SECONDS)
        rows = self._reading.result() if self._reading.done() else None
        write, content_type = choose_encoder(accept)
        return await run(self._threads, write, _Scrape(self._metrics, rows)), content_type

    def _read(self) -> list[LiveRow] | None:
        counted = self._metrics.list_campaigns()  # before reading the rows: what has no row then was deleted
        try:
            with self._store.reading() as tx:
                rows = read_campaigns(tx)
        except UnavailableError:
            return None
        if deleted := counted.difference(row.name for row in rows):  # by another worker
            self._metrics.forget(deleted)
        return rows

    def close(self) -> None:
        self._threads.shutdown(wait=False)


class _Scrape(Collector):
    """The counters, and gauges from the live rows; `rows` is None if the database did not answer."""

    def __init__(self, metrics: Metrics, rows: Sequence[LiveRow] | None) -> None:
        self._metrics, self._rows = metrics, rows

    def collect(self) -> Iterator[Metric]:
        # None: metrics without a campaign
        names = None if self._rows is None else {None, *(row.name for row in self._rows)}
        for metric in self._metrics.registry.collect():
            if names is not None:
                metric.samples = [one for one in metric.samples if one.labels.get("campaign") in names]
            yield metric
        up = GaugeMetricFamily("undercurrent_database_up", "1 if the database answered this scrape.")
        up.add_metric([], self._rows is not None)
        yield up
        for name, text, value in (
            ("rounds", "Decisions made so far.", lambda row: row.round),
            ("rewards", "Rewards received so far.", lambda row: row.arrived),
            ("rewards_waiting", "Rewards since the last stage update.", lambda row: row.arrived - row.folded),
            ("model_version", "The model in force.", lambda row: row.model_version),
            ("regimes", "Regimes in use.", lambda row: len(msgspec.json.decode(row.belief))),
            ("belief_entropy_nats", "How unsure the belief is: 0 certain, ln(regimes) uniform.", _entropy),
            ("guarded", "1 if more regimes were tried and do not pay.", lambda row: bool(row.guarded)),
            ("failing", "1 if the last update or re-estimation failed.", lambda row: row.failure is not None),
        ):
            gauge = GaugeMetricFamily(f"undercurrent_campaign_{name}", text, labels=["campaign"])
            for row in self._rows or ():
                gauge.add_metric([row.name], value(row))
            yield gauge


def _entropy(row: LiveRow) -> float:
    belief: list[float] = msgspec.json.decode(row.belief)
    return sum(-p * math.log(p) for p in belief if p > 0)
