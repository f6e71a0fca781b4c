"""Which decides are refused for their context, by variable and value, and how many rewards because they are late.

Values come from callers, so only a few of them are counted by name; the rest are counted together. Each worker counts
what it has seen since it started.
"""

import threading
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

MOST_VALUES = 10  # of one variable, by name
REST = "(others)"
RECENT = 1_000  # requests: when there are twice as many, every count is halved, so that old ones fade


class Refused(NamedTuple):
    """A value that was refused, in a few words (policy.FieldProblem)."""

    field: str
    value: str


LATE = Refused("reward", "late")


class RefusalShare(NamedTuple):
    """A campaign's recent requests, how many of them were refused, and how many for each value; most frequent first."""

    requests: float
    refused: float
    values: dict[Refused, float]


class _Tally:
    def __init__(self) -> None:
        self.accepted = self.refused = 0.0
        self.values: dict[Refused, float] = {}

    def halve(self) -> None:
        self.accepted, self.refused = self.accepted / 2.0, self.refused / 2.0
        self.values = {value: count / 2.0 for value, count in self.values.items() if count >= 1.0}


class Refusals:
    """The refused requests of all campaigns, as one worker has seen them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # long work is counted in threads
        self._tallies: dict[Hashable, _Tally] = {}
        self._named: dict[Hashable, dict[str, set[str]]] = {}  # the values of each field that are counted by name

    def count(self, campaign: str, accepted: int, items: Sequence[Sequence[Refused]]) -> list[Refused]:
        """Count accepted requests, and refused items by what was wrong with each; return that, as it was counted."""
        counted: list[Refused] = []
        with self._lock:
            tally = self._tallies.get(campaign) or self._tallies.setdefault(campaign, _Tally())
            tally.accepted += accepted
            tally.refused += len(items)
            for item in items:
                for value in {self._name(campaign, each) for each in item}:
                    tally.values[value] = tally.values.get(value, 0.0) + 1.0
                    counted.append(value)
            if tally.accepted + tally.refused >= 2 * RECENT:
                tally.halve()
        return counted

    def _name(self, campaign: str, refused: Refused) -> Refused:
        named = self._named.setdefault(campaign, {}).setdefault(refused.field, set())
        if refused.value not in named:
            if len(named) >= MOST_VALUES:
                return refused._replace(value=REST)
            named.add(refused.value)
        return refused

    def get_share(self, campaign: str) -> RefusalShare:
        with self._lock:
            tally = self._tallies.get(campaign, _Tally())
            values = sorted(tally.values.items(), key=lambda each: (-each[1], each[0]))
            return RefusalShare(tally.accepted + tally.refused, tally.refused, dict(values))

    def forget(self, campaigns: Collection[Hashable]) -> None:
        """Drop the counts of deleted campaigns."""
        with self._lock:
            for campaign in campaigns:
                self._tallies.pop(campaign, None)
                self._named.pop(campaign, None)
