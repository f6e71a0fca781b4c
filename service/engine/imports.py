"""Warm-start a campaign from historical decisions, followed in their order as if the campaign had made them.

The regimes are learned from the sequence of contexts. Stage updates and re-estimations happen where they would have
happened. Either all rows are imported or none: everything is done in memory first, and `changes.adopt` takes it over
under the lock.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NotRequired, TypedDict

import msgspec
from msgspec.structs import replace

from policy import PastRound, PolicyError
from policy.arrays import FloatArray
from policy.history import LONG_AGO
from service.base.errors import ConflictError, FieldProblem, InvalidError
from service.base.times import SECOND
from service.engine.encoding import check_numbers
from service.engine.requests import ImportRow
from service.engine.unit import Unit
from service.engine.work import Entry
from service.storage.events import read_event_bodies
from service.storage.reading import get_decided_at
from service.storage.rows import DecisionRow, LiveRow
from service.storage.transaction import Transaction

IMPORT = "import"  # the kind of event that records an import; the fold does not need it
CHUNK = 2_000  # rows that are read, checked and followed at a time
MOST_PROBLEMS = 100  # that an answer lists
FindKnownIds = Callable[[Sequence[str]], Collection[str]]  # those of the decision ids that the log already has
_encode = msgspec.json.Encoder().encode


class ImportSummary(TypedDict):
    """What an import has brought; the same for the same rows."""

    import_id: str
    rows: int
    rewards: int
    hash: NotRequired[str]  # of the rows; an erasure removes it


class Importing(Unit):
    """A unit of work that imports rows. It writes nothing: another unit adopts what it did.

    Imported rounds wait for nothing (R20), and every re-estimation is made at once, so that the outcome depends on the
    rows alone.
    """

    def __init__(self, tx: Transaction, row: LiveRow, entry: Entry, owner: str, now: int) -> None:
        super().__init__(tx, row, entry, owner, now)
        # Everything that is needed from the log: the transaction is over before the rows come.
        self._earlier_imports: list[ImportSummary] = [
            msgspec.json.decode(body) for body in read_event_bodies(tx, row.campaign_id, IMPORT)
        ]
        self._last_decided_at = get_decided_at(tx, row.campaign_id, row.round) if row.round else 0
        self._ids: set[str] = set()
        self._late_rewards: list[tuple[int, int, float]] = []  # a heap: after which round, of which round, the value

    def publish(self) -> None:
        """Do nothing: there are no jobs."""

    def estimate(self) -> None:
        self.estimate_inline()

    def take_all(self, import_id: str, rows: Iterable[ImportRow], find_known_ids: FindKnownIds) -> ImportSummary:
        """Follow all rows. An import that was made before is recognized by its id, and changes nothing."""
        earlier = next((summary for summary in self._earlier_imports if summary["import_id"] == import_id), None)
        if earlier is None:
            self.require_open("cannot change")
            if sum(summary["rows"] for summary in self._earlier_imports) != self.state.round:
                problem = f"Campaign {self.row.name} has already made decisions; only a new one can be warm-started"
                raise ConflictError(f"{problem}: create or clone one")
        digest, rewards_before = hashlib.blake2b(digest_size=16), self.state.arrived
        problems, count = list[FieldProblem](), 0
        remaining = iter(rows)
        while chunk := list(islice(remaining, CHUNK)):
            digest.update(_encode([row.model_dump(mode="json") for row in chunk]))
            if earlier is None and len(problems) < MOST_PROBLEMS:
                problems += self._take_chunk(import_id, chunk, count, find_known_ids, not problems)
            count += len(chunk)
        if earlier is not None:
            if earlier.get("hash", digest.hexdigest()) != digest.hexdigest():
                raise ConflictError(f"import_id {import_id!r} was used before with other rows")
            return earlier
        if problems:
            raise InvalidError(problems[:MOST_PROBLEMS])
        self._take_late_rewards(all_of_them=True)
        summary: ImportSummary = {
            "import_id": import_id,
            "rows": count,
            "rewards": self.state.arrived - rewards_before,
            "hash": digest.hexdigest(),
        }
        self.record_event(IMPORT, summary)
        return summary

    def _take_chunk(
        self, import_id: str, rows: Sequence[ImportRow], done: int, find_known_ids: FindKnownIds, follow: bool
    ) -> list[FieldProblem]:
        """Check a chunk, and follow it if it is good and so were those before it; return its problems."""
        names = [row.decision_id or f"{import_id}-{done + i + 1}" for i, row in enumerate(rows)]
        prefixes = [f"rows[{done + i}]." for i in range(len(rows))]
        problems, known = list[FieldProblem](), find_known_ids(names) if self.row.round else ()
        for name, prefix in zip(names, prefixes, strict=True):
            if name in self._ids or name in known:  # another row has it, here or in the log
                message = f"{name!r} is used twice"
                problems.append(FieldProblem(field=f"{prefix}decision_id", message=message, allowed="a new id"))
            self._ids.add(name)
        for row, prefix in zip(rows, prefixes, strict=True):
            problems += self._check_row(row, prefix)
        times = self._list_times(rows)
        pasts = [
            PastRound(row.context, row.action, None if at is None else at / SECOND)
            for row, at in zip(rows, times, strict=True)
        ]
        try:
            prepared = self.policy.prepare_past(pasts, prefixes)
        except PolicyError as error:
            problems += InvalidError.from_policy(error).fields
        if problems or not follow:
            return problems
        for round, row in enumerate(rows, self.state.round + 1):
            if row.reward is not None:
                delay = 0 if row.reward_after_round is None else row.reward_after_round - (row.round or 0)
                heappush(self._late_rewards, (round + delay, round, float(row.reward)))
        start = 0
        while start < len(rows):
            self.cross(LONG_AGO)
            stop = min(len(rows), start + self.state.rounds_ahead)
            self.state, beliefs = self.policy.follow(self.state, prepared.part(start, stop))
            self._record_past(rows[start:stop], names[start:stop], times[start:stop], beliefs)
            self._take_late_rewards()
            start = stop
        return []

    def _check_row(self, row: ImportRow, prefix: str) -> list[FieldProblem]:
        """Find what is wrong with a row, except for its context and action."""
        problems: list[FieldProblem] = []
        after = row.reward_after_round
        if after is not None and (row.round is None or after < row.round):
            message, allowed = f"{after} with round {row.round}", "at least `round`, which must be given with it"
            problems.append(FieldProblem(field=f"{prefix}reward_after_round", message=message, allowed=allowed))
        try:
            if row.reward is not None:
                self.policy.check_reward(row.reward)
        except PolicyError as error:
            fields = InvalidError.from_policy(error).fields
            problems += [problem.model_copy(update={"field": prefix + problem.field}) for problem in fields]
        try:
            if row.at is not None:
                self.check_time(row.at, f"{prefix}at")
            if row.decided_at is not None:
                self.check_time(row.decided_at, f"{prefix}decided_at")
            if row.context is not None:
                check_numbers([row.context], [prefix])
        except InvalidError as error:
            problems += error.fields
        return problems

    def _list_times(self, rows: Sequence[ImportRow]) -> list[int | None]:
        """List when each row was decided, never going backwards (R27); None if the row does not say."""
        times: list[int | None] = []
        last_at = self.progress.last_at
        for row in rows:
            if row.at is not None:
                last_at = max(last_at, round(row.at.timestamp() * SECOND))
            times.append(None if row.at is None else last_at)
        self.progress = replace(self.progress, last_at=last_at)
        return times

    def _take_late_rewards(self, all_of_them: bool = False) -> None:
        """Take the rewards that had arrived by now; at the end all, since no later rounds follow."""
        late = self._late_rewards
        while late and (all_of_them or late[0][0] <= self.state.round):
            after_round, round, value = heappop(late)
            self.take_reward(round, value, "import", min(after_round, self.state.round))

    def _record_past(
        self, rows: Sequence[ImportRow], names: Sequence[str], times: Sequence[int | None], beliefs: FloatArray
    ) -> None:
        state, regimes = self.state, self.state.belief.size
        drop_ignored = self.policy.features.drop_ignored
        first_round, decided_at = state.round - len(rows) + 1, self._last_decided_at
        for i, (row, belief) in enumerate(zip(rows, beliefs[:, :regimes].tolist(), strict=True)):
            at = times[i]
            then = at if row.decided_at is None else round(row.decided_at.timestamp() * SECOND)
            decided_at = decided_at or self.now if then is None else max(decided_at, min(self.now, then))
            self.rows.decisions.append(
                DecisionRow(
                    campaign_id=self.row.campaign_id,
                    round=first_round + i,
                    decision_id=names[i],
                    request_hash=None,
                    subject=row.subject,
                    context=None if row.context is None else _encode(drop_ignored(row.context)).decode(),
                    excluded_actions=None,
                    at=at,
                    model_version=state.model_version,
                    mode="imported",
                    action=row.action,
                    propensity=row.propensity or 0.0,
                    explanation=_encode({"belief": belief, "scores": []}).decode(),
                    decided_at=decided_at,
                )
            )
        self._last_decided_at = decided_at
