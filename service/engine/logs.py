"""The log as a replay reads it, and two variants of it."""

from collections.abc import Collection, Iterator
from typing import Protocol

from service.storage.rows import DecisionRow, JobRow, RevisionRow, RewardRow
from service.storage.transaction import Transaction


class Log(Protocol):
    """The queries that a replay makes. A `Transaction` answers them."""

    def read_decisions(self, campaign: int, round: int) -> Iterator[DecisionRow]: ...
    def read_rewards(self, campaign: int, arrival: int) -> Iterator[RewardRow]: ...
    def read_revisions(self, campaign: int, revision: int) -> list[RevisionRow]: ...
    def read_jobs(self, campaign: int, round: int) -> list[JobRow]: ...
    def read_events(self, campaign: int, round: int) -> list[tuple[int, str]]: ...
    def read_estimation_rounds(self, campaign: int) -> list[int]: ...


class ErasedLog:
    """The log as it will be once some rounds are erased (R22)."""

    def __init__(self, log: Transaction, rounds: Collection[int]) -> None:
        self._log, self._rounds = log, frozenset(rounds)
        self.read_revisions, self.read_jobs = log.read_revisions, log.read_jobs
        self.read_events, self.read_estimation_rounds = log.read_events, log.read_estimation_rounds

    def read_decisions(self, campaign: int, round: int) -> Iterator[DecisionRow]:
        for row in self._log.read_decisions(campaign, round):
            yield row._replace(context=None, request_hash=None) if row.round in self._rounds else row

    def read_rewards(self, campaign: int, arrival: int) -> Iterator[RewardRow]:
        for row in self._log.read_rewards(campaign, arrival):
            yield row._replace(reward=None) if row.round in self._rounds else row


class RecordingLog:
    """The log, keeping the ids of the decisions that are read from it."""

    def __init__(self, log: Transaction) -> None:
        self._log, self.ids = log, list[str]()
        self.read_rewards, self.read_revisions = log.read_rewards, log.read_revisions
        self.read_jobs, self.read_events = log.read_jobs, log.read_events
        self.read_estimation_rounds = log.read_estimation_rounds

    def read_decisions(self, campaign: int, round: int) -> Iterator[DecisionRow]:
        for row in self._log.read_decisions(campaign, round):
            self.ids.append(row.decision_id)
            yield row
