"""One campaign's unit of work: what a transaction has done to it so far, how to undo it, and how to write it (R18)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from policy import StagedPolicy, State
from policy.history import LONG_AGO
from service.base.errors import ConflictError
from service.base.waits import Wait
from service.engine.alerts import Announced, count_regimes
from service.engine.course import FAILED_ESTIMATION, FAILED_PUBLICATION, FAILED_UPDATE, Course, Position
from service.engine.refusals import Refused
from service.engine.sales import Sale, Taken
from service.storage.jobs import close_job
from service.storage.rows import (
    DecisionRow,
    EventRow,
    JobRow,
    KnownDecision,
    KnownReward,
    LiveRow,
    MessageRow,
    ModelRow,
    Replacement,
    RevisionRow,
    RewardRow,
)
from service.storage.transaction import Transaction

FAILED_STEPS = (FAILED_UPDATE, FAILED_ESTIMATION, FAILED_PUBLICATION)
FAILURES_BY_MODEL_KIND = {"update": (FAILED_UPDATE,), "estimation": (FAILED_ESTIMATION, FAILED_PUBLICATION)}
_encode = msgspec.json.Encoder().encode


class Entry(NamedTuple):
    """What a worker keeps of a campaign between transactions; valid only for this version of its live row (R23)."""

    row: LiveRow  # as long as its `changes` stay the same, so do the job and the events
    position: Position
    job: int | None  # the input round of the job whose result is not in force yet
    events: int  # how many event rows there are

    @property
    def state(self) -> State:
        return self.position.state


class Job(NamedTuple):
    """A re-estimation to run in the background, from a fixed state (R16)."""

    campaign_id: int
    campaign: str
    policy: StagedPolicy
    state: State


class ClosedJob(NamedTuple):
    """A job that has ended, and the round of its publication if it has one."""

    input_round: int
    status: str
    published_round: int | None = None


class Timing(NamedTuple):
    """How long an update or a re-estimation took."""

    kind: str
    seconds: float


class NewRows:
    """The rows to append, one list for each table. The lists only grow, except that a failed attempt is cut off."""

    def __init__(self) -> None:
        self.replacements: list[Replacement] = []
        self.decisions: list[DecisionRow] = []
        self.rewards: list[RewardRow] = []
        self.models: list[ModelRow] = []
        self.jobs: list[JobRow] = []
        self.events: list[EventRow] = []
        self.messages: list[MessageRow] = []
        self.revisions: list[RevisionRow] = []
        # In the order that foreign keys need.
        self.tables: tuple[list[Any], ...] = (
            self.replacements, self.decisions, self.rewards, self.models, self.jobs, self.events, self.messages,
            self.revisions,
        )  # fmt: skip

    def count(self) -> tuple[int, ...]:
        """Count the rows of each table."""
        return tuple(map(len, self.tables))

    def cut(self, counts: tuple[int, ...]) -> None:
        """Drop the rows beyond these counts."""
        for rows, count in zip(self.tables, counts, strict=True):
            del rows[count:]

    def extend(self, other: "NewRows") -> None:
        """Append all rows of another unit of work."""
        for rows, new in zip(self.tables, other.tables, strict=True):
            rows += new


NO_ROWS = NewRows().count()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What the unit of work has done besides its state. A step replaces it as a whole."""

    last_at: int
    failure: str | None
    announced: Announced
    job: int | None  # the input round of the job whose result is not in force yet
    new_jobs: tuple[Job, ...] = ()
    closed_jobs: tuple[ClosedJob, ...] = ()
    timings: tuple[Timing, ...] = ()


class _Savepoint(NamedTuple):
    """All that a failed attempt must restore; of what only grows, the lengths."""

    row: LiveRow
    position: Position
    progress: Progress
    known: dict[str, KnownDecision]
    known_count: int
    row_counts: tuple[int, ...]


class Work(Course):
    """Everything that one transaction does to a campaign. Nothing is written before `write`, or `flush`."""

    def __init__(
        self,
        tx: Transaction,
        row: LiveRow,
        entry: Entry,
        owner: str,
        now: int,
        known: dict[str, KnownDecision] | None = None,
        rewards: Sequence[KnownReward] = (),
    ) -> None:
        self.entry = self.after = entry  # before the transaction, and once it is written
        self.rows = NewRows()
        self.now = max(now, row.clock)  # time never goes backwards
        self._clock = now  # leases and messages wait by the real clock
        self._tx, self._owner, self._locked_row = tx, owner, row
        self._flushed_rows, self._flushed_jobs = NO_ROWS, 0  # how much the database already has
        self._is_job_waiting = False  # True once it is known that the open job cannot be published yet
        self.repeated = self.refused = self.late = 0  # rewards that changed nothing
        # Rewards with an id: of this transaction, and those of the log that requests name. Whatever adds one succeeds.
        self._identified = {(each.round, each.reward_id): each for each in rewards}
        self._credited = dict[str, tuple[Sale, list[Taken]]]()  # what this transaction has credited, by its id
        self.refused_decides: list[list[Refused]] = []  # what was wrong with the context of each
        self.row = row  # as it was locked, but for `archived_at`
        self.revision, self.policy, self.state = entry.position
        self.known = {} if known is None else known  # the decisions that requests may name; new ones are added in place
        announced = Announced(count_regimes(self.state), row.regime)
        self.progress = Progress(last_at=row.last_at, failure=row.failure, announced=announced, job=entry.job)

    @property
    def position(self) -> Position:
        return Position(self.revision, self.policy, self.state)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo in memory whatever a failed request did, so that it fails alone (R18)."""
        before = _Savepoint(self.row, self.position, self.progress, self.known, len(self.known), self.rows.count())
        try:
            yield
        except Exception:
            self.row, self.progress, self.known = before.row, before.progress, before.known
            self.revision, self.policy, self.state = before.position
            while len(self.known) > before.known_count:
                self.known.popitem()  # the last one added
            self.rows.cut(before.row_counts)
            raise

    @property
    def has_changed(self) -> bool:
        """Is there anything to write?"""
        return self._has_moved or self.row is not self._locked_row

    @property
    def _has_moved(self) -> bool:
        """Is there a new state or a new revision, so that time has passed for the campaign?"""
        return self.state is not self.entry.state or self.revision != self.entry.position.revision

    @property
    def failures(self) -> list[EventRow]:
        """The steps that failed; the campaign goes on without them."""
        return [event for event in self.rows.events if event.kind in FAILED_STEPS]

    @property
    def wait(self) -> Wait:
        """Until when rewards are waited for."""
        rules = self.policy.config.rewards
        return Wait.build(rules.default, rules.wait_seconds, self.now)

    def close_book(self, known: KnownDecision) -> KnownDecision:
        """Return a decision of the log, with the default reward if its wait is over (R20)."""
        wait = self.wait
        if known.reward is not None or known.erased or not wait.is_over(known.decided_at):
            return known
        return known._replace(reward=wait.default, source="default", received_at=wait.get_end(known.decided_at))

    def require_open(self, consequence: str) -> None:
        """Refuse what an archived campaign does not do."""
        if self.row.archived_at is not None:
            raise ConflictError(f"Campaign {self.row.name} is archived and {consequence}; unarchive it first")

    def write(self, tx: Transaction) -> None:
        """Write everything; `after` is the entry to keep once it is committed. It may be another transaction by now."""
        self._tx = tx
        progress, state, row = self.progress, self.state, self.row
        has_moved = self._has_moved
        if not has_moved and row is self._locked_row:
            return
        self.flush()
        has_new_rows = progress.closed_jobs or self.rows.jobs or self.rows.events or self.rows.revisions
        is_eventful = bool(has_new_rows) or row is not self._locked_row
        after = row._replace(
            version=row.version + 1,
            changes=row.changes + is_eventful,
            round=state.round,
            arrived=state.arrived,
            folded=state.folded,
            model_version=state.model_version,
            belief=_encode(state.belief.tolist()).decode(),
            clock=self.now if has_moved else row.clock,
            last_at=progress.last_at,
            guarded=state.selection is not None and state.selection.guarded,
            regime=progress.announced.regime,
            failure=progress.failure,
        )
        self._tx.update_live_row(row, after)
        self.after = Entry(after, self.position, progress.job, self.entry.events + len(self.rows.events))

    def flush(self) -> None:
        """Write the rows so far, so that queries see them."""
        self._link_rewards()
        counts = self.rows.count()
        for rows, flushed, count in zip(self.rows.tables, self._flushed_rows, counts, strict=True):
            if count > flushed:
                self._tx.append(rows[flushed:] if flushed else rows)
        self._flushed_rows = counts
        for job in self.progress.closed_jobs[self._flushed_jobs :]:
            close_job(self._tx, self.row.campaign_id, job.input_round, job.status, job.published_round)
        self._flushed_jobs = len(self.progress.closed_jobs)

    def _link_rewards(self) -> None:
        """Link each reward of this transaction to the one that has replaced it, if that is of this transaction too."""
        replacements, rewards = self.rows.replacements, self.rows.rewards
        if not replacements:
            return
        start, first = self._flushed_rows[0], self._flushed_rows[self.rows.tables.index(rewards)]
        if len(replacements) == start:
            return
        places = dict[int, int]()  # of the newest reward of each round
        replacing = {replacement.arrival for replacement in replacements[start:]}
        own = set[int]()  # arrivals that have replaced one of these
        for place in range(first, len(rewards)):
            row = rewards[place]
            before = places.get(row.round)
            if row.arrival in replacing and before is not None:
                rewards[before] = rewards[before]._replace(replaced_by=row.arrival)
                own.add(row.arrival)
            places[row.round] = place
        replacements[start:] = [replacement for replacement in replacements[start:] if replacement.arrival not in own]

    def take_reward(
        self,
        round: int,
        value: float,
        source: str,
        after_round: int | None = None,
        *,
        amount: float | None = None,
        reward_id: str | None = None,
        is_revision: bool = False,
    ) -> None:
        """Take the reward of a round, or a revision of it. The next stage update folds it (R1).

        `value` is the reward of the round from now on, and `amount` what was sent, if that is something else.
        """
        campaign = self.row.campaign_id
        came = LONG_AGO if source == "import" else self.now
        self.state = state = self.policy.reward(self.state, round, value, came)
        if is_revision:
            self.rows.replacements.append(Replacement(campaign, round, state.arrived))
        self.rows.rewards.append(
            RewardRow(
                campaign_id=campaign,
                round=round,
                arrival=state.arrived,
                after_round=state.round if after_round is None else after_round,
                reward=value,
                source=source,
                received_at=self.now,
                amount=None if amount == value else amount,
                reward_id=reward_id,
            )
        )

    def record_model(self, kind: str, version_before: int, seconds: float) -> None:
        """Record the model in force, if it is a new one, and that this kind of step works again."""
        failure = self.progress.failure
        if failure is not None and failure.startswith(FAILURES_BY_MODEL_KIND.get(kind, ())):
            self.progress = replace(self.progress, failure=None)
        if self.state.model_version == version_before:
            return
        regimes = count_regimes(self.state)
        if regimes != self.progress.announced.regimes:
            self.progress = replace(self.progress, announced=Announced(regimes, None))
        self.rows.models.append(self.build_model_row(kind, seconds))

    def build_model_row(self, kind: str, seconds: float) -> ModelRow:
        """Build the row of the model in force."""
        state = self.state
        return ModelRow(
            campaign_id=self.row.campaign_id,
            version=state.model_version,
            kind=kind,
            round=state.round,
            arrived=state.arrived,
            folded=state.counted,
            regimes=state.belief.size,
            theta=state.statistics.theta.astype("<f8").tobytes(),
            seconds=seconds,
            published_at=self.now,
        )

    def record_failure(self, kind: str, error: Exception) -> None:
        """Record that a step failed; the campaign goes on with the model it has."""
        failure = f"{kind} before round {self.state.round + 1}: {type(error).__name__}: {error}"[:500]
        self.progress = replace(self.progress, failure=failure)
        self.record_event(kind, {"error": failure})

    def record_event(self, kind: str, body: Mapping[str, object], round: int | None = None) -> int:
        """Record an event of the last round, or of another one that this transaction decided; return its number."""
        number = self.entry.events + len(self.rows.events) + 1
        self.rows.events.append(
            EventRow(
                campaign_id=self.row.campaign_id,
                number=number,
                round=self.state.round if round is None else round,
                kind=kind,
                body=json.dumps(body),
                created_at=self.now,
            )
        )
        return number
