"""One campaign inside one transaction: decide, reward and cross boundaries in memory, then write once (R18)."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import compress, repeat
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt

from policy import CampaignConfig, Request, StagedPolicy, State, encode
from policy.changes import append_actions, resume_after_erasure, roll_back
from policy.codec import decode_estimate
from policy.hmm import MISSING
from policy.stages import count_rounds_ahead
from policy.state import MODES, Decided
from service.base.errors import ConflictError, FieldProblem, GoneError, InvalidError, NotFoundError
from service.base.times import format_timestamp
from service.engine.alerts import Told, count_regimes, find_regime_changes
from service.engine.encoding import Explanation, check_numbers, explained, json_lines
from service.engine.fold import (
    FAILED_ESTIMATION,
    FAILED_PUBLICATION,
    FAILED_UPDATE,
    SECOND,
    SKIPPED_ESTIMATION,
    Course,
    Erased,
    MissingInput,
    Position,
    Replay,
)
from service.engine.ids import Hashes, Ids, hash_ids
from service.engine.requests import MAX_BATCH, Customer, DecideItem
from service.storage.campaigns import set_archived
from service.storage.erasure import erase_rounds, read_subject_rounds
from service.storage.jobs import close_job
from service.storage.rows import (
    APPENDED,
    REGIME_CHANGE,
    AppendedRow,
    DecisionRow,
    EventRow,
    JobRow,
    KnownDecision,
    LiveRow,
    MessageRow,
    ModelRow,
    RevisionRow,
    RewardRow,
    SnapshotRow,
    build_rows,
)
from service.storage.snapshots import add_snapshot
from service.storage.transaction import Transaction

__all__ = [
    "FAILED_STEPS",
    "IMPORT",
    "Entry",
    "Job",
    "Unit",
    "snapshot_row",
]

INLINE_OPERATIONS = 150_000  # of a re-estimation, about 10 ms; a larger one is left to a job (R16)
LEASE_SECONDS = 300
AHEAD_SECONDS = 60  # that a client's clock may be ahead of ours (R27)
MOST_SETTLED = 1_000  # rewards set to their default at one boundary, some 20 ms; or two stages of them
FAILURES_OF = {"update": (FAILED_UPDATE,), "estimation": (FAILED_ESTIMATION, FAILED_PUBLICATION)}
IMPORT = "import"  # the kind of event that tells of one; the fold reads its rows
PREFIXES = [f"items[{i}]." for i in range(MAX_BATCH)]
FAILED_STEPS = (FAILED_UPDATE, FAILED_ESTIMATION, FAILED_PUBLICATION)
_encode = msgspec.json.Encoder().encode


class Entry(NamedTuple):
    """What a worker keeps of a campaign between transactions: only good for the live row of this version (R23)."""

    version: int
    position: Position
    changes: int  # of the live row: as long as it stays, so do the two that follow
    job: int | None  # the input round of the job whose result is not in force yet
    events: int  # rows so far

    @property
    def state(self) -> State:
        return self.position.state


class Job(NamedTuple):
    """A re-estimation to be made in the background, from a fixed state (R16)."""

    campaign_id: int
    campaign: str
    policy: StagedPolicy
    state: State


class Unit(Course):
    """Everything that one transaction does to a campaign. Nothing is written before `write`."""

    def __init__(self, tx: Transaction, row: LiveRow, entry: Entry, owner: str, now: int) -> None:
        self.revision, policy, state = entry.position
        super().__init__(policy, state)
        self.row, self.entry = row, entry
        self.now = max(now, row.clock)  # time never goes backwards
        self._clock = now  # but leases and messages wait by the clock as it is
        self.known: dict[str, KnownDecision] = {}
        self.new_jobs: list[Job] = []
        self.repeated = self.refused = 0  # rewards that changed nothing
        self.timings: tuple[tuple[str, float], ...] = ()  # of updates and re-estimations: kind, seconds
        self._tx, self._owner = tx, owner
        self._rows: dict[type[AppendedRow], list[AppendedRow]] = {kind: [] for kind in APPENDED}
        self._written = dict.fromkeys(APPENDED, 0)  # of them, already sent to the database
        self._last_at, self._settled, self._failure = row.last_at, row.settled, row.failure
        self._job, self._job_waits = entry.job, False
        self._told = Told(count_regimes(state), row.regime)
        self._closed: tuple[tuple[int, str, int | None], ...] = ()  # jobs that are over: input, status, publication
        self._closed_written = 0
        self._asked: tuple[list[str], Hashes] = ([], hash_ids([]))  # the last ids that were looked up
        self._decided_by: dict[int, int] = {}  # times, and the last round that the log had decided by then

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A request that fails here fails alone: whatever it did in memory is undone (R18)."""
        fields = (
            "row", "policy", "state", "revision", "known", "timings",
            "_last_at", "_settled", "_failure", "_job", "_closed", "_told",
        )  # fmt: skip
        before = [getattr(self, field) for field in fields]
        lengths, jobs = [len(rows) for rows in self._rows.values()], len(self.new_jobs)
        try:
            yield
        except Exception:
            for field, value in zip(fields, before, strict=True):
                setattr(self, field, value)
            for rows, length in zip(self._rows.values(), lengths, strict=True):
                del rows[length:]
            del self.new_jobs[jobs:]
            raise

    @property
    def new_rows(self) -> Mapping[type[AppendedRow], Sequence[AppendedRow]]:
        return self._rows

    @property
    def changed(self) -> bool:
        """Is there anything to write?"""
        return self.state is not self.entry.state or self.revision != self.entry.position.revision

    @property
    def failures(self) -> list[EventRow]:
        """Steps that failed; the campaign goes on without them."""
        events = self._rows[EventRow]
        return [row for row in events if isinstance(row, EventRow) and row.kind in FAILED_STEPS] if events else []

    def write(self) -> Entry:
        """Write what was done; what to keep once it is committed."""
        state, row = self.state, self.row
        if not self.changed:
            return self.entry
        self._flush()
        eventful = bool(self._closed) or any(self._rows[kind] for kind in (JobRow, EventRow, RevisionRow))
        after = row._replace(
            version=row.version + 1,
            changes=row.changes + eventful,
            round=state.round,
            arrived=state.arrived,
            folded=state.folded,
            settled=self._settled,
            model_version=state.model_version,
            belief=_encode(state.belief.tolist()).decode(),
            clock=self.now,
            last_at=self._last_at,
            guarded=state.selection is not None and state.selection.guarded,
            regime=self._told.regime,
            failure=self._failure,
        )
        self._tx.update_live_row(row, after)
        position = Position(self.revision, self.policy, state)
        return Entry(after.version, position, after.changes, self._job, self.entry.events + len(self._rows[EventRow]))

    def _flush(self) -> None:
        for kind, rows in self._rows.items():
            self._tx.append(rows[self._written[kind] :] if self._written[kind] else rows)
            self._written[kind] = len(rows)
        for job in self._closed[self._closed_written :]:
            close_job(self._tx, self.row.campaign_id, *job)
        self._closed_written = len(self._closed)

    # --- requests ----------------------------------------------------------------------------------------------

    def look_up(self, ids: Ids, names: Sequence[str]) -> None:
        """Learn which of the names are in the log, whose ids are those; must precede the requests that name them."""
        self._asked = list(names), hash_ids(names)
        rounds = ids.rounds_of(self._asked[1])
        if self._written[DecisionRow]:  # in this transaction, by an import
            asked = set(names)
            new = (row for row in self._rows[DecisionRow] if isinstance(row, DecisionRow))
            rounds += [row.round for row in new if row.decision_id in asked]
        if rounds:  # what this transaction has done to them is not in the database yet
            self.known = self._tx.get_known_decisions(self.row.campaign_id, rounds) | self.known

    @property
    def new_ids(self) -> Hashes:
        """Those of the rounds that this transaction has decided, in order, as `Ids` takes them."""
        new = [row.decision_id for row in self._rows[DecisionRow] if isinstance(row, DecisionRow)]
        names, hashes = self._asked
        return hashes if new == names else hash_ids(new)  # nearly always they are what was asked for

    def decide(self, items: Sequence[tuple[DecideItem, bytes]], batch: bool = False) -> list[KnownDecision]:
        """One decision for each item (with its hash): the stored one, its twin's, or a new one."""
        names = [item.decision_id or uuid4().hex for item, _ in items]
        places: list[KnownDecision | str] = [*names]
        fresh = dict(zip(names, items, strict=True))
        prefixes = PREFIXES[: len(items)] if batch else [""] * len(items)  # of the fields that an error names
        if len(fresh) < len(names) or not self.known.keys().isdisjoint(fresh):
            fresh, prefixes = {}, []
            for i, (name, (item, digest)) in enumerate(zip(names, items, strict=True)):
                known, twin = self.known.get(name), fresh.get(name)
                if known is not None:
                    places[i] = _same(known, digest)
                elif twin is None:
                    fresh[name] = item, digest
                    prefixes.append(PREFIXES[i] if batch else "")
                elif twin[1] != digest:
                    raise ConflictError(f"decision_id {name!r} is used twice with different requests")
        if fresh:
            self._require_open("decides nothing")
            if self.policy.config.paused:
                raise ConflictError(f"Campaign {self.row.name} is paused; it decides again once `paused` is false")
            self._decide(fresh, prefixes)
        return [self.known[place] if isinstance(place, str) else place for place in places]

    def _decide(self, fresh: Mapping[str, tuple[DecideItem, bytes]], prefixes: Sequence[str]) -> None:
        requests, times, last_at = self._requests([item for item, _ in fresh.values()], prefixes)
        prepared = self.policy.prepare(requests, prefixes)
        decided: list[Decided] = []
        done, count = 0, len(requests)
        self._job_waits = False  # not known; but it lasts for these requests: a job ends under the campaign's lock
        while done < count:
            self.cross()
            ahead = count_rounds_ahead(self.state)
            if ahead < count - done and self._nothing_due:
                ahead = self.policy.count_rounds_alike(self.state)
            stop = min(count, done + ahead)
            part, before = prepared.part(done, stop) if stop - done < count else prepared, self.state
            self.state, made = self.policy.decide_prepared(self.state, part)
            decided += made
            self._pass_updates(before)
            self._tell_of_regimes(stop - done)
            done = stop
        self._record(fresh, times, prepared.eligible, decided)
        self._last_at = last_at

    def _tell_of_regimes(self, count: int) -> None:
        """An event, and a message where a webhook is configured, for every change of regime in the last rounds."""
        (regimes, told), state = self._told, self.state
        if regimes < 2:
            return
        beliefs = state.history.beliefs[: state.round, :regimes]
        if (beliefs[-count:].argmax(axis=1) == told).all():  # nearly always
            return
        alerts = self.policy.config.alerts
        changes, told = find_regime_changes(beliefs, state.round - count, alerts.rounds, told)
        self._told = Told(regimes, told)
        for change in changes:
            before, after = change.before + 1, change.after + 1  # people count regimes from 1
            body = {"from": before, "to": after, "belief": change.belief, "since_round": change.since_round}
            number = self._event(REGIME_CHANGE, body, change.round)
            if alerts.webhook is not None:
                self._rows[MessageRow].append(
                    MessageRow(
                        campaign_id=self.row.campaign_id,
                        event=number,
                        status="waiting",
                        url=alerts.webhook,
                        attempts=0,
                        due_at=self._clock,
                        failure=None,
                        created_at=self.now,
                        sent_at=None,
                    )
                )

    def _requests(
        self, items: Sequence[Customer], prefixes: Sequence[str]
    ) -> tuple[list[Request], list[int | None], int]:
        """Items as the policy takes them, their times, and the last time after them (R27)."""
        check_numbers([item.context for item in items], prefixes)
        times, last_at = list[int | None](repeat(None, len(items))), self._last_at
        clocked = self.policy.config.clock is not None
        if clocked or any(item.at is not None for item in items):
            for place, (item, prefix) in enumerate(zip(items, prefixes, strict=True)):
                at = None if item.at is None else self._time(item.at, prefix)
                if at is None and clocked:
                    at = self.now
                if at is not None:
                    times[place] = last_at = max(at, last_at)
        requests = [
            Request(item.context, item.excluded_actions, item.subject, None if at is None else at / SECOND)
            for item, at in zip(items, times, strict=True)
        ]
        return requests, times, last_at

    def _time(self, given: datetime, where: str, name: str = "at") -> int:
        at = round(given.timestamp() * SECOND)
        if at > self.now + AHEAD_SECONDS * SECOND:
            allowed = f"at most {AHEAD_SECONDS} seconds after the server's time, {format_timestamp(self.now)}"
            raise InvalidError([FieldProblem(field=f"{where}{name}", message="lies in the future", allowed=allowed)])
        return at

    def _record(
        self,
        fresh: Mapping[str, tuple[DecideItem, bytes]],
        times: Sequence[int | None],
        eligible: npt.NDArray[np.bool_],
        decided: Sequence[Decided],
    ) -> None:
        """Decisions as their rows, and as their answers are made from, all column by column."""
        actions = self.policy.config.actions
        names, (items, digests) = list(fresh), zip(*fresh.values(), strict=True)
        versions, chosen, modes = list[int](), list[str](), list[str]()
        propensities, explanations = list[float](), list[Explanation]()
        for part in decided:
            which, how, likely, *numbers = part.answers.T.tolist()
            chosen += [actions[int(action)] for action in which]
            modes += [MODES[int(mode)] for mode in how]
            propensities += likely
            explanations += explained(actions, numbers)
            versions += part.versions
        if not eligible.all():
            for explanation, allowed in zip(explanations, eligible.tolist(), strict=True):
                explanation.scores = list(compress(explanation.scores, allowed))
        reasons = json_lines(explanations)
        rounds = range(decided[0].first, self.state.round + 1)
        answers = {
            "decision_id": names,
            "round": rounds,
            "request_hash": digests,
            "model_version": versions,
            "mode": modes,
            "action": chosen,
            "propensity": propensities,
            "explanation": reasons,
            "decided_at": [self.now] * len(names),
        }
        self._rows[DecisionRow] += build_rows(
            DecisionRow,
            campaign_id=repeat(self.row.campaign_id),
            subject=[item.subject for item in items],
            context=json_lines([item.context for item in items]),
            excluded_actions=[
                _encode(item.excluded_actions).decode() if item.excluded_actions else None for item in items
            ],
            at=times,
            **answers,
        )
        known = build_rows(KnownDecision, **answers)
        self.known.update(zip(names, known, strict=True))

    def reward(self, decision_id: str, value: float) -> KnownDecision:
        """Take the reward of a decision; it is folded by the next stage update (R1). One that fails changes nothing."""
        known = self.known.get(decision_id)
        if known is None:
            raise NotFoundError(f"Campaign {self.row.name} has no decision {decision_id!r}")
        if known.erased:
            raise GoneError(f"Decision {decision_id!r} was erased")
        if known.reward is not None:
            if known.reward == value:
                self.repeated += 1
                return known
            how = "by default, because none came in time" if known.source == "default" else "before"
            raise ConflictError(f"Decision {decision_id!r} got the reward {known.reward!r} {how}; it cannot change")
        self._take(known.round, value, "client")
        self.known[decision_id] = rewarded = known._replace(reward=value, source="client", received_at=self.now)
        return rewarded

    def _take(self, round: int, value: float, source: str, after: int | None = None) -> None:
        self.state = self.policy.reward(self.state, round, value)
        arrived, after = self.state.arrived, self.state.round if after is None else after
        self._rows[RewardRow].append(
            RewardRow(
                campaign_id=self.row.campaign_id,
                round=round,
                arrival=arrived,
                after_round=after,
                reward=value,
                source=source,
                received_at=self.now,
            )
        )

    # --- changes -----------------------------------------------------------------------------------------------

    def _require_open(self, what: str) -> None:
        if self.row.archived_at is not None:
            raise ConflictError(f"Campaign {self.row.name} is archived and {what}; unarchive it first")

    def change(self, config: CampaignConfig) -> None:
        """Another configuration from the next round on (R14)."""
        self._require_open("cannot change")
        if config == self.policy.config:
            return
        before, version, begun = self.policy, self.state.model_version, time.perf_counter()
        self.policy = StagedPolicy(config)
        self.state = append_actions(before, self.policy, self.state)
        self._published("actions", version, time.perf_counter() - begun)
        if self.state.model_version > version:
            self._drop_job()
        self._revised(None)

    def roll_back(self, past: Position, seen: int) -> None:
        """The model of an earlier moment in force again (R21), made when the newest revision was `seen`."""
        self._require_open("cannot change")
        if self._erased_since(seen):
            raise ConflictError(f"Decisions of campaign {self.row.name} were erased just now; try again")
        version, begun = self.state.model_version, time.perf_counter()
        restored = past.state.model_version
        self.state = roll_back(self.policy, self.state, past.policy, past.state)
        self._published("rollback", version, time.perf_counter() - begun)
        self._drop_job()
        self._revised(restored)

    def _erased_since(self, revision: int) -> bool:
        self._flush()
        later = self._tx.read_revisions(self.row.campaign_id, revision)
        return any(row.erased is not None for row in later)

    def erase(
        self, subject: str, known: Sequence[int], rebuilt: Position, inputs: Mapping[int, Position]
    ) -> int | None:
        """Forget what was decided for someone (R22), and all that was learned from it; how many decisions that were.

        `rebuilt` is the campaign at an earlier moment as if it had never had the `known` rounds. The rest is folded
        here. None if that cannot go on from there: others were erased since then, or it went back to an earlier model.
        """
        campaign, begun, version = self.row.campaign_id, time.perf_counter(), self.state.model_version
        if self._erased_since(rebuilt.revision):
            return None
        # Also those whose name retention has taken away meanwhile: they were asked for.
        rounds = sorted({*known, *read_subject_rounds(self._tx, campaign, subject)})
        try:
            replay = Replay(rebuilt, Erased(self._tx, rounds), campaign, given=True, inputs=inputs)
            replay.run()
        except MissingInput:
            return None
        moment = replay.revision, replay.state.round, replay.state.arrived
        if moment != (self.revision, self.state.round, self.state.arrived):
            raise RuntimeError(f"the log of campaign {self.row.name!r} cannot be folded; run verify")
        erase_rounds(self._tx, campaign, rounds)  # after all that can fail
        gone = set(rounds)
        self.known = {
            name: known._replace(erased=True, reward=None) if known.round in gone else known
            for name, known in self.known.items()
        }
        self.state = resume_after_erasure(self.policy, replay.state)._replace(model_version=version + 1)
        self._published("erasure", version, time.perf_counter() - begun)
        self._drop_job()
        self._revised(None, erased=len(rounds))
        # At once, not in the background: from here on nobody can begin with what they know.
        add_snapshot(self._tx, snapshot_row(campaign, self.revision, self.state, encode(self.state), self.now), keep=())
        return len(rounds)

    def adopt(self, made: "Unit") -> None:
        """What another unit did to the campaign, in memory only, since the same moment."""
        self._require_open("cannot change")
        if self.row.version != made.row.version or self.state is not self.entry.state:
            raise ConflictError(f"Campaign {self.row.name} was changed meanwhile; try again")
        self.state, self._rows, self.timings = made.state, made._rows, made.timings
        self.now = max(self.now, made.now)  # that of the rows
        self._last_at, self._failure, self._told = made._last_at, made._failure, made._told
        self._flush()

    def archive(self, archived: bool) -> None:
        """Close the campaign, or open it again."""
        if archived != (self.row.archived_at is not None):
            self.row = self.row._replace(archived_at=self.now if archived else None)
            set_archived(self._tx, self.row.campaign_id, self.row.archived_at)

    @property
    def went_back(self) -> bool:
        return any(row.restored is not None for row in self._rows[RevisionRow] if isinstance(row, RevisionRow))

    def _drop_job(self) -> None:
        """A re-estimation that is still at work knows another model: what it finds is not put in force."""
        if self._job is not None:
            self._closed += ((self._job, "nothing", None),)
            self._job = None

    def _revised(self, restored: int | None, erased: int | None = None) -> None:
        self.revision += 1
        state, config = self.state, self.policy.config.model_dump_json()
        self._rows[RevisionRow].append(
            RevisionRow(
                self.row.campaign_id, self.revision, state.round, state.arrived, config, restored, erased, self.now
            )
        )  # fmt: skip

    # --- boundaries --------------------------------------------------------------------------------------------

    @property
    def _nothing_due(self) -> bool:
        """Will the next boundaries neither settle rewards nor publish a job's result?"""
        return (self._job is None or self._job_waits) and self._last_overdue <= self._settled

    def _pass_updates(self, before: State) -> None:
        """The models of the updates that had nothing to fold (`StagedPolicy.count_rounds_alike`)."""
        passed, length = self.state.model_version - before.model_version, self.policy.config.stage_length
        if passed:
            row = self._model_row("update", self.state, 0.0)
            self.timings += (("update", 0.0),) * passed
            self._rows[ModelRow] += [
                row._replace(version=before.model_version + 1 + i, round=before.next_update - 1 + i * length)
                for i in range(passed)
            ]

    @property
    def _last_overdue(self) -> int:
        """The last round whose reward should have come; 0 if rewards may take as long as they like."""
        rules = self.policy.config.rewards
        if rules.wait_seconds is None or rules.default is None:
            return 0
        # Times never go backwards along the rounds, so the overdue ones are those up to the last decided by then.
        until = self.now - int(rules.wait_seconds * SECOND)
        if until not in self._decided_by:  # a batch may end many stages
            self._decided_by[until] = self._tx.get_last_round(self.row.campaign_id, until)
        return self._decided_by[until]

    def settle(self) -> None:
        rules, last = self.policy.config.rewards, self._last_overdue
        if rules.default is None or last <= self._settled:
            return
        history = self.state.history.cut(self.state.round, self.state.arrived)
        span = slice(self._settled, last)
        open_rounds = np.isnan(history.rewards[span]) & (history.contexts.symbols[span] != MISSING)  # not the erased
        overdue = np.flatnonzero(open_rounds) + self._settled + 1
        most = max(MOST_SETTLED, 2 * self.policy.config.stage_length)
        if overdue.size > most:  # the wait may just have been switched on: the others follow at the next boundaries
            overdue = overdue[:most]
            last = int(overdue[-1])
        for round in overdue.tolist():
            self._take(round, rules.default, "default")
        self._settled = last
        if overdue.size:  # requests of the same transaction must see them
            settled, default = set(overdue.tolist()), rules.default
            self.known = {
                name: known._replace(reward=default, source="default", received_at=self.now)
                if known.round in settled
                else known
                for name, known in self.known.items()
            }

    def publish(self) -> None:
        if self._job is None or self._job_waits:
            return
        job = self._tx.get_newest_job(self.row.campaign_id)
        # A job that this transaction began is not in the table yet: the newest one there is over already.
        if job is None or job.input_round != self._job or job.status == "waiting":
            self._job_waits = True
            return
        self._job = None
        if job.status == "failed":
            self._failed(FAILED_PUBLICATION, RuntimeError(f"the re-estimation of round {job.input_round} failed"))
        if job.status != "done" or job.result is None:
            return
        version, begun = self.state.model_version, time.perf_counter()
        try:
            self.state = _finite(self.policy.publish(self.state, decode_estimate(job.result)), self.state)
        except Exception as error:  # the campaign goes on with the model it has
            self._closed += ((job.input_round, "failed", None),)
            self._failed(FAILED_PUBLICATION, error)
        else:
            self._closed += ((job.input_round, "published", self.state.round),)
            self._published("estimation", version, (job.seconds or 0.0) + time.perf_counter() - begun)

    def estimate(self) -> None:
        policy, state = self.policy, self.state
        if policy.config.beliefs.estimation == "auto" and self._large_estimation:
            if self._job is not None:
                self._event(SKIPPED_ESTIMATION, {"job": self._job})
            else:
                self._leave_to_job()
            self.state = policy.skip_estimation(state)
            return
        self._estimate_now()

    @property
    def _large_estimation(self) -> bool:
        return self.policy.estimator.get_size(self.state) > INLINE_OPERATIONS

    def _estimate_now(self) -> None:
        policy, state, begun = self.policy, self.state, time.perf_counter()
        try:
            self.state = _finite(policy.reestimate(state), state)
        except Exception as error:
            self.state = policy.skip_estimation(state)
            self._failed(FAILED_ESTIMATION, error)
        else:
            self._timed("estimation", state.model_version, begun)

    def _leave_to_job(self) -> None:
        state = self.state
        self._job = state.round
        self.new_jobs.append(Job(self.row.campaign_id, self.row.name, self.policy, state))
        lease = self._clock + LEASE_SECONDS * SECOND
        self._rows[JobRow].append(
            JobRow(
                campaign_id=self.row.campaign_id,
                input_round=state.round,
                input_arrived=state.arrived,
                status="waiting",
                owner=self._owner,
                leased_until=lease,
                attempts=1,
                result=None,
                published_round=None,
                seconds=None,
                created_at=self.now,
            )
        )

    def update(self) -> None:
        version, begun = self.state.model_version, time.perf_counter()
        try:
            self.state = _finite(self.policy.update(self.state), self.state)
        except Exception as error:
            self.state = self.policy.skip_update(self.state)
            self._failed(FAILED_UPDATE, error)
        else:
            self._timed("update", version, begun)

    def _timed(self, kind: str, before: int, begun: float) -> None:
        seconds = time.perf_counter() - begun
        self.timings += ((kind, seconds),)
        self._published(kind, before, seconds)

    def _published(self, kind: str, before: int, seconds: float) -> None:
        state = self.state
        if self._failure is not None and self._failure.startswith(FAILURES_OF.get(kind, ())):
            self._failure = None  # the same step works again
        if state.model_version == before:
            return
        if count_regimes(state) != self._told.regimes:
            self._told = Told(count_regimes(state), None)
        self._rows[ModelRow].append(self._model_row(kind, state, seconds))

    def _model_row(self, kind: str, state: State, seconds: float) -> ModelRow:
        return ModelRow(
            self.row.campaign_id, state.model_version, kind, state.round, state.arrived, state.counted,
            state.belief.size, state.statistics.theta.astype("<f8").tobytes(), seconds, self.now,
        )  # fmt: skip

    def _failed(self, kind: str, error: Exception) -> None:
        self._failure = f"{kind} before round {self.state.round + 1}: {type(error).__name__}: {error}"[:500]
        self._event(kind, {"error": self._failure})

    def _event(self, kind: str, body: Mapping[str, Any], round: int | None = None) -> int:
        """A row about what happened now, or in a round that this transaction has decided; its number."""
        rows = self._rows[EventRow]
        number = self.entry.events + len(rows) + 1
        when = self.state.round if round is None else round
        rows.append(EventRow(self.row.campaign_id, number, when, kind, json.dumps(body), self.now))
        return number


def _finite(state: State, before: State) -> State:
    """A state whose model is not put in force if it holds a NaN or an infinity, which would stay for ever."""
    statistics, belief = state.statistics, state.belief
    if statistics is before.statistics and belief is before.belief:  # nothing was learned
        return state
    # A sum is finite only if every number in it is; none comes near the largest float otherwise.
    sums = (statistics.theta.sum(), statistics.inverse.sum(), statistics.moment.sum(), statistics.units.sum())
    if not (math.isfinite(sum(sums)) and math.isfinite(belief.sum())):
        raise ArithmeticError("the coefficients are not finite")
    return state


def _same(known: KnownDecision, digest: bytes) -> KnownDecision:
    if known.erased:
        raise GoneError(f"Decision {known.decision_id!r} was erased")
    if known.request_hash is None:
        message = f"decision_id {known.decision_id!r} was used before, and its request is not kept"
        raise ConflictError(f"{message}: it was imported, or is older than retention_days; use a new id")
    if known.request_hash != digest:
        message = f"decision_id {known.decision_id!r} was used before with a different request"
        raise ConflictError(f"{message}; use a new id for a new decision")
    return known


def snapshot_row(campaign: int, revision: int, state: State, encoded: bytes, now: int) -> SnapshotRow:
    """A state as `snapshots` keeps it."""
    return SnapshotRow(
        campaign_id=campaign,
        round=state.round,
        arrived=state.arrived,
        revision=revision,
        model_version=state.model_version,
        state=encoded,
        created_at=now,
    )
