"""Crossing a campaign's boundaries, and the fold: the log replayed into state (R14).

What is due between two rounds always runs in one order, `Course.cross`, whether it happens now (unit.py) or is
read from the log (`Replay`). Rows say what a pure function of the log cannot: which re-estimations were left to a job,
when its result was published, and what failed.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from policy import CampaignConfig, CodecError, Decision, HmmParameters, PastRound, Request, StagedPolicy, State
from policy.changes import append_actions, resume_after_erasure, roll_back
from policy.codec import decode_estimate
from policy.selection import Estimate
from policy.stages import count_rounds_ahead, is_estimation_due, is_update_due
from policy.state import Decided
from service.storage.rows import DecisionRow, JobRow, RevisionRow, RewardRow
from service.storage.statements import PAGE
from service.storage.transaction import Transaction

__all__ = [
    "FAILED_ESTIMATION",
    "FAILED_PUBLICATION",
    "FAILED_UPDATE",
    "SECOND",
    "SKIPPED_ESTIMATION",
    "Course",
    "Erased",
    "Heard",
    "Log",
    "MissingInput",
    "Part",
    "Position",
    "Replay",
]

# Kinds of events that the fold heeds.
FAILED_UPDATE = "failed_update"
FAILED_ESTIMATION = "failed_estimation"
FAILED_PUBLICATION = "failed_publication"  # then the job has no round of publication
SKIPPED_ESTIMATION = "skipped_estimation"  # the last job was still at work
SECOND = 1_000_000  # in the microseconds of the log


class MissingInput(Exception):  # noqa: N818 - not an error: the fold must start earlier
    """A job's input or an earlier model is needed, and the fold began after it."""


class Position(NamedTuple):
    """A campaign at some moment: its configuration's revision, the policy made from it, and the state."""

    revision: int
    policy: StagedPolicy
    state: State


class Course(ABC):
    """A campaign on its way: the policy, the state, and what happens between two rounds."""

    def __init__(self, policy: StagedPolicy, state: State) -> None:
        self.policy, self.state = policy, state

    def cross(self) -> None:
        """Do what is due before the next round, if anything is."""
        if count_rounds_ahead(self.state):
            return
        if is_update_due(self.state):
            self.settle()
            self.publish()
        if is_estimation_due(self.state):
            self.estimate()
        if is_update_due(self.state):
            self.update()

    @abstractmethod
    def settle(self) -> None:
        """Rewards that did not come in time get their default (R20)."""

    @abstractmethod
    def publish(self) -> None:
        """Put a finished job's result in force (R16)."""

    @abstractmethod
    def estimate(self) -> None:
        """Re-estimate, or leave it to a job (R3, R16)."""

    @abstractmethod
    def update(self) -> None:
        """The update that ends a stage (R1)."""


class Log(Protocol):
    """What the fold reads of a campaign."""

    def read_decisions(self, campaign: int, round: int) -> Iterator[DecisionRow]: ...
    def read_rewards(self, campaign: int, arrival: int) -> Iterator[RewardRow]: ...
    def read_revisions(self, campaign: int, revision: int) -> list[RevisionRow]: ...
    def read_jobs(self, campaign: int, round: int) -> list[JobRow]: ...
    def read_events(self, campaign: int, round: int) -> list[tuple[int, str]]: ...
    def read_estimation_rounds(self, campaign: int) -> list[int]: ...


class Erased:
    """A log as it will be once some rounds are erased (R22)."""

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


class Heard:
    """A log that remembers the ids of the decisions read from it."""

    def __init__(self, log: Transaction) -> None:
        self._log, self.ids = log, list[str]()
        self.read_rewards, self.read_revisions, self.read_jobs = (
            log.read_rewards,
            log.read_revisions,
            log.read_jobs,
        )
        self.read_events, self.read_estimation_rounds = log.read_events, log.read_estimation_rounds

    def read_decisions(self, campaign: int, round: int) -> Iterator[DecisionRow]:
        for row in self._log.read_decisions(campaign, round):
            self.ids.append(row.decision_id)
            yield row


class Part(NamedTuple):
    """Rounds that share one model: the rows, and what the fold decides for them.

    Of rounds that are followed there are only the beliefs; of those before an erasure, which cannot be what they were,
    not even these.
    """

    rows: list[DecisionRow]
    decided: Sequence[Decided] = ()
    beliefs: npt.NDArray[np.float64] | None = None

    @property
    def decisions(self) -> list[Decision]:
        """Made when asked for: most folds only want the state after them."""
        return [decision for part in self.decided for decision in part.decisions()]


class Replay(Course):
    """The log from a moment on. `recompute` takes no stored result on trust: every job is run again.

    `pauses` are moments, (round, rewards, revision) in order, whose states are put aside on the way. A caller who knows
    that there are only decisions and rewards since the start says that it is not `eventful`.

    What was decided before an erasure cannot be decided again: some of what led to it is gone. Up to the last one the
    fold takes the actions as they were, and rebuilds everything else as if the erased rounds had been without context
    and reward (R22). So does a fold that is `given` as a whole, which prepares an erasure.
    """

    def __init__(
        self,
        start: Position,
        log: Log,
        campaign: int,
        *,
        recompute: bool = False,
        pauses: Sequence[tuple[int, int, int]] = (),
        eventful: bool = True,
        given: bool = False,
        inputs: Mapping[int, Position] | None = None,
    ) -> None:
        self.revision, policy, state = start
        super().__init__(policy, state)
        jobs = log.read_jobs(campaign, state.round) if eventful else []
        self.inputs: dict[int, Position] = dict(inputs or {})  # of the jobs met on the way, by input round
        self.models: list[tuple[str, Position]] = []  # published on the way, until someone takes them
        self.paused: list[State] = []  # at the moments asked for, until someone takes them
        self.missed: list[tuple[int, int, int]] = []  # moments that the log does not have
        self._pauses = deque(pauses)
        self._changes = deque(log.read_revisions(campaign, self.revision) if eventful else ())
        self._past: dict[int, Position | None] = {
            row.restored: None for row in self._changes if row.restored is not None
        }
        erasures = [row for row in self._changes if row.erased is not None]
        # The revision that ends what is only followed.
        self.rebuilt_by = math.inf if given else erasures[-1].revision if erasures else 0
        if erasures and not given and (state.round or state.arrived):
            raise MissingInput  # it knows what was erased
        self._jobs = {job.input_round for job in jobs}
        self._published = {job.published_round: job for job in jobs if job.published_round is not None}
        # What was estimated inline, and when any re-estimation was due, before an erasure.
        self.run_estimation, self._due = set[int](), deque[int]()
        if self.given:
            made = Counter(log.read_estimation_rounds(campaign))
            self.run_estimation = set(made - Counter(self._published.keys()))
            until = math.inf if given else erasures[-1].round
            self._due.extend(sorted(round for round in self.run_estimation | self._jobs if round < until))
        self._events = set(log.read_events(campaign, state.round) if eventful else ())
        self._decisions = log.read_decisions(campaign, state.round)
        self._rewards = log.read_rewards(campaign, state.arrived)
        self._reward = next(self._rewards, None)
        self._recompute = recompute

    def run(self) -> State:
        """Fold to the end of the log."""
        for _ in self.parts():
            self.models.clear()
        return self.state

    def parts(self) -> Iterator[Part]:
        """Fold to the end of the log, a part at a time."""
        self._take_rewards()
        while (first := next(self._decisions, None)) is not None:
            if self.given:
                self._keep_to_log(self.state.round)
            self.cross()
            count = min(count_rounds_ahead(self.state), PAGE)
            while self._pauses and self._pauses[0][0] <= self.state.round:
                self.missed.append(self._pauses.popleft())
            if self._pauses:
                count = min(count, self._pauses[0][0] - self.state.round)
            if self._changes:
                if self._changes[0].round <= self.state.round:
                    raise ValueError(f"revision {self._changes[0].revision} is of a moment that the log never had")
                count = min(count, self._changes[0].round - self.state.round)
            rows = [first, *islice(self._decisions, count - 1)]
            for known, run in groupby(rows, lambda row: row.request_hash is not None):
                advance = self._decided if known and not self.given else self._followed
                yield advance(list(run))
            self._take_rewards()

    @property
    def given(self) -> bool:
        """Is the fold before an erasure that it knows of?"""
        return self.revision < self.rebuilt_by

    def _keep_to_log(self, first: int) -> None:
        """Before an erasure re-estimations are due when they were: what is left may lead to another schedule."""
        while self._due and self._due[0] < first:
            self._due.popleft()
        if self._due:
            self.state = self.state._replace(next_estimation=self._due[0] + 1)

    def _decided(self, rows: list[DecisionRow]) -> Part:
        prepared = self.policy.prepare([request_of(row) for row in rows], _places(rows))
        self.state, decided = self.policy.decide_prepared(self.state, prepared)
        return Part(rows, decided)

    def _followed(self, rows: list[DecisionRow]) -> Part:
        prepared = self.policy.prepare_past([_past_of(row) for row in rows], _places(rows))
        self.state, beliefs = self.policy.follow(self.state, prepared)
        return Part(rows, beliefs=None if self.given else beliefs[:, : self.state.belief.size])

    def _take_rewards(self) -> None:
        """The rewards and changes before the next round; when exactly does not matter before something is due."""
        self._take_changes()
        while (row := self._reward) is not None and row.after_round <= self.state.round:
            if row.reward is None:
                self.state = self.policy.take_erased_reward(self.state, row.round)
            else:
                self.state = self.policy.reward(self.state, row.round, row.reward)
            self._reward = next(self._rewards, None)
            self._take_changes()

    def _take_changes(self) -> None:
        self._pause()
        while self._changes and (self._changes[0].round, self._changes[0].arrived) == (
            self.state.round,
            self.state.arrived,
        ):
            self._change(self._changes.popleft())
            self._pause()

    def _change(self, row: RevisionRow) -> None:
        before, version = self.policy, self.state.model_version
        if row.config != before.config.model_dump_json():
            self.policy = StagedPolicy(CampaignConfig.model_validate_json(row.config))
        self.revision, self.state = row.revision, append_actions(before, self.policy, self.state)
        if self.state.model_version > version:
            self._made("actions")
        if row.restored is not None:
            past = self._past[row.restored]
            if past is None:
                raise MissingInput
            self.state = roll_back(self.policy, self.state, past.policy, past.state)
            self._made("rollback")
        if row.erased is not None:
            self.state = resume_after_erasure(self.policy, self.state)
            self._renumbered("erasure", version + 1)

    def _made(self, kind: str) -> None:
        """A model was published."""
        self.models.append((kind, self.position))
        if self.state.model_version in self._past:
            self._past[self.state.model_version] = self.position

    def _renumbered(self, kind: str, version: int) -> None:
        """A publication that the log has, whatever is left of it: versions stay what clients were told."""
        self.state = self.state._replace(model_version=version)
        self._made(kind)

    @property
    def position(self) -> Position:
        """Where the fold is: another one could start here."""
        return Position(self.revision, self.policy, self.state)

    def _pause(self) -> None:
        if self._pauses and self._pauses[0] == (self.state.round, self.state.arrived, self.revision):
            self._pauses.popleft()
            self.paused.append(self.state)

    def settle(self) -> None:
        """Nothing to do: default rewards are rows like any other."""

    def publish(self) -> None:
        job = self._published.get(self.state.round)
        if job is not None:
            version, found = self.state.model_version, self._result(job)
            if found is not None:
                self.state = self.policy.publish(self.state, found)
            self._renumbered("estimation", version + 1)

    def _result(self, job: JobRow) -> HmmParameters | Estimate | None:
        start = self.inputs.pop(job.input_round, None)
        if job.result is not None and not self._recompute and not self.given:
            with suppress(CodecError):  # a damaged one is made again (R21)
                return decode_estimate(job.result)
        if start is None:
            raise MissingInput
        found = start.policy.estimate(start.state)
        if isinstance(found, HmmParameters | Estimate):
            return found
        assert self.given  # else it could not have been published
        return None

    def estimate(self) -> None:
        round, version = self.state.round, self.state.model_version
        if round in self._jobs:
            self.inputs[round] = self.position
            self.state = self.policy.skip_estimation(self.state)
        elif self._events & {(round, FAILED_ESTIMATION), (round, SKIPPED_ESTIMATION)}:
            self.state = self.policy.skip_estimation(self.state)
        elif self.given:
            if round in self.run_estimation:
                self.state = self.policy.reestimate(self.state)
                self._renumbered("estimation", version + 1)
            else:
                self.state = self.policy.skip_estimation(self.state)
        else:
            self.state = self.policy.reestimate(self.state)
            if self.state.model_version > version:
                self._made("estimation")
        if self.given:
            self._keep_to_log(round + 1)

    def update(self) -> None:
        if (self.state.round, FAILED_UPDATE) in self._events:
            self.state = self.policy.skip_update(self.state)
        else:
            self.state = self.policy.update(self.state)
            self._made("update")


def request_of(row: DecisionRow) -> Request:
    """The request that a row of the log records."""
    assert row.context is not None
    return Request(
        msgspec.json.decode(row.context),
        msgspec.json.decode(row.excluded_actions) if row.excluded_actions else (),
        row.subject,
        None if row.at is None else row.at / SECOND,
    )


def _past_of(row: DecisionRow) -> PastRound:
    """What is there of a row that need not carry its request."""
    context = None if row.context is None else msgspec.json.decode(row.context)
    return PastRound(context, row.action, None if row.at is None else row.at / SECOND)


def _places(rows: Iterable[DecisionRow]) -> list[str]:
    return [f"round {row.round} " for row in rows]
