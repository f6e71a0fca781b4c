"""What `/metrics` says, read as Prometheus reads it."""

from collections import Counter

import httpx
from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]


class Scrape:
    """One answer of `/metrics`. A sample that is there twice is a mistake."""

    def __init__(self, client: httpx.Client, headers: dict[str, str] | None = None) -> None:
        answer = client.get("/metrics", headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.samples = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.samples) == len(samples)

    def labels(self, name: str) -> list[Labels]:
        """The labels of every sample of that name."""
        return [dict(labels) for found, labels in self.samples if found == f"undercurrent_{name}"]

    def by(self, name: str, *keys: str, **chosen: str) -> dict[tuple[str, ...] | str, float]:
        """The samples with the chosen labels, added up by the others; by one other, its value alone is the key."""
        found: Counter = Counter()
        for (sample, items), value in self.samples.items():
            labels = dict(items)
            if sample == f"undercurrent_{name}" and chosen.items() <= labels.items():
                key = tuple(labels[each] for each in keys)
                found[key[0] if len(key) == 1 else key] += value
        return dict(found)

    def counted(self, name: str, *keys: str) -> dict[tuple[str, ...] | str, float]:
        """`by`, but for what is 0."""
        return {labels: value for labels, value in self.by(name, *keys).items() if value}

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, None if it is not there."""
        return self.samples.get((f"undercurrent_{name}", frozenset(labels.items())))
