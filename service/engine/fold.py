"""The fold: replay a campaign's log into its state (R14).

Most of the state is a pure function of the decisions and rewards. Other rows hold the rest: which re-estimations were
left to a job, when a result was published, which steps failed, and how the configuration changed.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import NamedTuple

import msgspec

from policy import CampaignConfig, CodecError, Decision, PastRound, Request, StagedPolicy, State
from policy.arrays import FloatArray
from policy.changes import adapt_state, resume_after_erasure, roll_back
from policy.codec import decode_estimate
from policy.estimators import Estimate
from policy.history import LONG_AGO
from policy.state import Decided
from service.base.times import SECOND
from service.engine.course import FAILED_ESTIMATION, FAILED_UPDATE, SKIPPED_ESTIMATION, Course, Position
from service.storage.rows import DecisionRow, JobRow, RevisionRow
from service.storage.snapshots import SnapshotPoint
from service.storage.statements import PAGE
from service.storage.transaction import Transaction


class MissingInput(Exception):  # noqa: N818 - not an error: the fold must start earlier
    """The fold needs the input of a job or an earlier model, and it started after that."""


class Part(NamedTuple):
    """Rounds that share one model: their rows, and what the fold computed for them.

    Rounds that the fold only follows have beliefs and no decisions. Rounds before an erasure have not even beliefs,
    because those cannot be computed as they were.
    """

    rows: list[DecisionRow]
    decided: Sequence[Decided] = ()
    beliefs: FloatArray | None = None

    @property
    def decisions(self) -> list[Decision]:
        """The decisions one by one, built on demand: most folds need only the final state."""
        return [decision for part in self.decided for decision in part.decisions()]


class Replay(Course):
    """A fold of the log from a position to its end.

    - `recompute`: trust no stored result, and run every job again.
    - `pauses`: points of the log, in order; the states there are collected in `paused`.
    - `eventful=False`: the caller knows that the log has only decisions and rewards after the start.
    - `erasing`: read the log as it will be once these rounds are erased, and take all actions from it (R22).
    - `inputs`: the inputs of jobs that were started before this fold's position, by round.

    What was decided before an erasure cannot be decided again, because some of its causes are gone. Up to the last
    erasure the fold therefore follows the logged actions and rebuilds everything else as if the erased rounds had had
    no context and no reward (R22).
    """

    def __init__(
        self,
        start: Position,
        log: Transaction,
        campaign: int,
        *,
        recompute: bool = False,
        pauses: Sequence[SnapshotPoint] = (),
        eventful: bool = True,
        erasing: Collection[int] = (),
        inputs: Mapping[int, Position] | None = None,
    ) -> None:
        self.revision, self.policy, self.state = start
        state = start.state
        self.inputs: dict[int, Position] = dict(inputs or {})
        self.models: list[tuple[str, Position]] = []  # (kind, position) of each publication; callers empty it
        self.paused: list[State] = []  # the states at the pauses; callers empty it
        self.missed: list[SnapshotPoint] = []  # pauses that the log does not contain
        self._recompute = recompute
        self._pauses = deque(pauses)
        self._changes = deque(log.read_revisions(campaign, self.revision) if eventful else ())
        restored = [row.restored for row in self._changes if row.restored is not None]
        self._past: dict[int, Position | None] = dict.fromkeys(restored)  # models that a rollback will need
        erasures = [row for row in self._changes if row.erased is not None]
        # Models of earlier revisions cannot be reproduced exactly, since something was erased later.
        self.exact_from = math.inf if erasing else erasures[-1].revision if erasures else 0
        if erasures and not erasing and (state.round or state.arrived):
            raise MissingInput  # this state still contains what was erased
        jobs = log.read_jobs(campaign, state.round) if eventful else []
        self._jobs = {job.input_round for job in jobs}
        self._published = {job.published_round: job for job in jobs if job.published_round is not None}
        self._estimated, self._due = set[int](), deque[int]()  # inline and all re-estimations before an erasure
        if self.is_following:
            counts = Counter(log.read_estimation_rounds(campaign))
            self._estimated = set(counts - Counter(self._published.keys()))
            until = math.inf if erasing else erasures[-1].round
            self._due.extend(sorted(round for round in self._estimated | self._jobs if round < until))
        self._events = set(log.read_events(campaign, state.round) if eventful else ())
        self._decisions = log.read_decisions(campaign, state.round)
        self._rewards = log.read_rewards(campaign, state.arrived)
        if erasing:
            gone, decisions, rewards = frozenset(erasing), self._decisions, self._rewards
            self._decisions = (r._replace(context=None, request_hash=None) if r.round in gone else r for r in decisions)
            self._rewards = (r._replace(reward=None) if r.round in gone else r for r in rewards)
        self._reward = next(self._rewards, None)

    @property
    def position(self) -> Position:
        """Where the fold is; another fold can start here."""
        return Position(self.revision, self.policy, self.state)

    @property
    def is_following(self) -> bool:
        """Is the fold before an erasure, so that it takes the actions from the log?"""
        return self.revision < self.exact_from

    def run(self) -> Position:
        """Fold to the end of the log, and return that position."""
        for _ in self.parts():
            self.models.clear()
        return self.position

    def parts(self) -> Iterator[Part]:
        """Fold to the end of the log, one part at a time."""
        self._take_rewards()
        while (first := next(self._decisions, None)) is not None:
            if self.is_following:
                self._schedule_estimation(self.state.round)
            self.cross(_get_time(first))
            rows = [first, *islice(self._decisions, self._count_rounds() - 1)]
            for has_request, run in groupby(rows, lambda row: row.request_hash is not None):
                advance = self._decide if has_request and not self.is_following else self._follow
                yield advance(list(run))
            self._take_rewards()

    def _count_rounds(self) -> int:
        """Count the rounds until something else happens."""
        count = min(self.state.rounds_ahead, PAGE)
        while self._pauses and self._pauses[0].round <= self.state.round:
            self.missed.append(self._pauses.popleft())
        if self._pauses:
            count = min(count, self._pauses[0].round - self.state.round)
        if self._changes:
            if self._changes[0].round <= self.state.round:
                raise ValueError(f"the log never reaches the position of revision {self._changes[0].revision}")
            count = min(count, self._changes[0].round - self.state.round)
        return count

    def _schedule_estimation(self, first: int) -> None:
        """Before an erasure, re-estimate when the log did: the remaining data may give another schedule."""
        while self._due and self._due[0] < first:
            self._due.popleft()
        if self._due:
            self.state = self.state._replace(next_estimation=self._due[0] + 1)

    def _decide(self, rows: list[DecisionRow]) -> Part:
        prepared = self.policy.prepare([_parse_request(row) for row in rows], _name_rounds(rows))
        self.state, decided = self.policy.decide_prepared(self.state, prepared, [row.decided_at for row in rows])
        return Part(rows, decided)

    def _follow(self, rows: list[DecisionRow]) -> Part:
        prepared = self.policy.prepare_past([_parse_past_round(row) for row in rows], _name_rounds(rows))
        self.state, beliefs = self.policy.follow(self.state, prepared)
        return Part(rows, beliefs=None if self.is_following else beliefs[:, : self.state.belief.size])

    def _take_rewards(self) -> None:
        """Take the rewards and changes before the next round; until a step is due, their exact time is irrelevant."""
        self._take_changes()
        while (row := self._reward) is not None and row.after_round <= self.state.round:
            if row.reward is None:
                self.state = self.policy.take_erased_reward(self.state, row.round)
            else:
                came = LONG_AGO if row.source == "import" else row.received_at
                self.state = self.policy.reward(self.state, row.round, row.reward, came)
            self._reward = next(self._rewards, None)
            self._take_changes()

    def _take_changes(self) -> None:
        self._pause()
        while self._changes:
            change = self._changes[0]
            if (change.round, change.arrived) != (self.state.round, self.state.arrived):
                return
            self._change(self._changes.popleft())
            self._pause()

    def _change(self, row: RevisionRow) -> None:
        before, version = self.policy, self.state.model_version
        if row.config != before.config.model_dump_json():
            self.policy = StagedPolicy(CampaignConfig.model_validate_json(row.config))
        self.revision, self.state = row.revision, adapt_state(before, self.policy, self.state)
        if self.state.model_version > version:
            self._record_model("actions")
        if row.restored is not None:
            past = self._past[row.restored]
            if past is None:
                raise MissingInput
            self.state = roll_back(self.policy, self.state, past.policy, past.state)
            self._record_model("rollback")
        if row.erased is not None:
            self.state = resume_after_erasure(self.policy, self.state)
            self._record_as_version("erasure", version + 1)

    def _record_model(self, kind: str) -> None:
        self.models.append((kind, self.position))
        if self.state.model_version in self._past:
            self._past[self.state.model_version] = self.position

    def _record_as_version(self, kind: str, version: int) -> None:
        """Record a publication of the log under its own version, even if erasures have left nothing to publish."""
        self.state = self.state._replace(model_version=version)
        self._record_model(kind)

    def _pause(self) -> None:
        if self._pauses and self._pauses[0] == SnapshotPoint(self.state.round, self.state.arrived, self.revision):
            self._pauses.popleft()
            self.paused.append(self.state)

    def publish(self) -> None:
        job = self._published.get(self.state.round)
        if job is not None:
            version, estimate = self.state.model_version, self._load_result(job)
            if estimate is not None:
                self.state = self.policy.publish(self.state, estimate)
            self._record_as_version("estimation", version + 1)

    def _load_result(self, job: JobRow) -> Estimate | None:
        start = self.inputs.pop(job.input_round, None)
        if job.result is not None and not self._recompute and not self.is_following:
            with suppress(CodecError):  # a damaged result is computed again (R21)
                return decode_estimate(job.result)
        if start is None:
            raise MissingInput
        estimate = start.policy.estimate(start.state)
        if isinstance(estimate, Estimate):
            return estimate
        assert self.is_following  # otherwise the job would not have been published
        return None

    def estimate(self) -> None:
        round, version = self.state.round, self.state.model_version
        if round in self._jobs:
            self.inputs[round] = self.position
            self.state = self.policy.skip_estimation(self.state)
        elif self._events & {(round, FAILED_ESTIMATION), (round, SKIPPED_ESTIMATION)}:
            self.state = self.policy.skip_estimation(self.state)
        elif not self.is_following:
            self.state = self.policy.reestimate(self.state)
            if self.state.model_version > version:
                self._record_model("estimation")
        elif round in self._estimated:
            self.state = self.policy.reestimate(self.state)
            self._record_as_version("estimation", version + 1)
        else:
            self.state = self.policy.skip_estimation(self.state)
        if self.is_following:
            self._schedule_estimation(round + 1)

    def update(self) -> None:
        if (self.state.round, FAILED_UPDATE) in self._events:
            self.state = self.policy.skip_update(self.state)
        else:
            self.state = self.policy.update(self.state)
            self._record_model("update")


def _parse_request(row: DecisionRow) -> Request:
    """Parse the request that a row of the log records."""
    assert row.context is not None
    return Request(
        msgspec.json.decode(row.context),
        msgspec.json.decode(row.excluded_actions) if row.excluded_actions else (),
        row.subject,
        None if row.at is None else row.at / SECOND,
    )


def _parse_past_round(row: DecisionRow) -> PastRound:
    """Parse what is left of a row that may have lost its request."""
    context = None if row.context is None else msgspec.json.decode(row.context)
    return PastRound(context, row.action, None if row.at is None else row.at / SECOND, _get_time(row))


def _get_time(row: DecisionRow) -> int:
    """When a round was decided, as far as it matters: imported rounds wait for nothing (R20)."""
    return LONG_AGO if row.mode == "imported" else row.decided_at


def _name_rounds(rows: Iterable[DecisionRow]) -> list[str]:
    return [f"round {row.round} " for row in rows]
