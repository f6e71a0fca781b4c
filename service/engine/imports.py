"""Warm-starting a campaign from historical logs: rows are followed in their order, as if it had decided them itself.

The regimes are learned from the sequence of contexts, and stage updates and re-estimations happen where they would have
happened. All rows or none: everything is made in memory first, and `Unit.adopt` takes it over under the lock.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from policy import PastRound, PolicyError
from policy.stages import count_rounds_ahead
from service.base.errors import ConflictError, FieldProblem, InvalidError
from service.engine.encoding import check_numbers
from service.engine.fold import SECOND
from service.engine.requests import ImportRow
from service.engine.unit import IMPORT, Entry, Unit
from service.storage.events import read_event_bodies
from service.storage.reading import get_decided_at
from service.storage.rows import DecisionRow, LiveRow
from service.storage.transaction import Transaction

__all__ = ["Importing"]

CHUNK = 2_000  # rows read, checked and followed at a time
MOST_PROBLEMS = 100  # mistakes that an answer names
KnownIds = Callable[[str, Sequence[str]], Collection[str]]  # of a campaign, those that are in the log already
_encode = msgspec.json.Encoder().encode


class Importing(Unit):
    """A campaign on which rows are imported. Nothing is written: another unit adopts it.

    No reward is set to its default on the way, and every re-estimation is made at once: what comes out depends on the
    rows alone.
    """

    def __init__(self, tx: Transaction, row: LiveRow, entry: Entry, owner: str, now: int) -> None:
        super().__init__(tx, row, entry, owner, now)
        # All that it needs to know of the log: the transaction is over when the rows come.
        self._before = [msgspec.json.decode(body) for body in read_event_bodies(tx, row.campaign_id, IMPORT)]
        self._decided_before = get_decided_at(tx, row.campaign_id, row.round) if row.round else 0

    def settle(self) -> None:
        """Nothing to do: a reward that history does not have may still come."""

    def publish(self) -> None:
        """Nothing to do: there are no jobs."""

    def estimate(self) -> None:
        self._estimate_now()

    def take_all(self, import_id: str, rows: Iterable[ImportRow], known_ids: KnownIds) -> dict[str, Any]:
        """Follow the rows; what is to be told of it, which is the same for the same rows."""
        known = next((body for body in self._before if body["import_id"] == import_id), None)
        if known is None:
            self._require_open("cannot change")
        if known is None and sum(body["rows"] for body in self._before) != self.state.round:
            message = f"Campaign {self.row.name} has decided already; only a new one can be warm-started"
            raise ConflictError(f"{message}: create or clone one")
        digest, first, problems = hashlib.blake2b(digest_size=16), self.state.arrived, list[FieldProblem]()
        ids, late, count = set[str](), list[tuple[int, int, float]](), 0
        for chunk in _chunks(rows):
            digest.update(_encode([row.model_dump(mode="json") for row in chunk]))
            if known is None and len(problems) < MOST_PROBLEMS:
                problems += self._follow(import_id, chunk, count, ids, late, problems, known_ids)
            count += len(chunk)
        if known is not None:
            if known.get("hash", digest.hexdigest()) != digest.hexdigest():  # it goes with an erasure
                raise ConflictError(f"import_id {import_id!r} was used before with other rows")
            return dict(known)
        if problems:
            raise InvalidError(problems[:MOST_PROBLEMS])
        self._take_rewards(late, everything=True)
        told = {
            "import_id": import_id,
            "rows": count,
            "rewards": self.state.arrived - first,
            "hash": digest.hexdigest(),
        }
        self._event(IMPORT, told)
        return told

    def _follow(
        self,
        import_id: str,
        rows: Sequence[ImportRow],
        done: int,
        ids: set[str],
        late: list[tuple[int, int, float]],
        problems: Sequence[FieldProblem],
        known_ids: KnownIds,
    ) -> list[FieldProblem]:
        """Follow a chunk, unless something is or was wrong: then tell what."""
        names = [row.decision_id or f"{import_id}-{done + i + 1}" for i, row in enumerate(rows)]
        prefixes = [f"rows[{done + i}]." for i in range(len(rows))]
        there = known_ids(self.row.name, names) if self.row.round else ()
        wrong = [*_repeated(names, prefixes, ids, there)]
        for row, prefix in zip(rows, prefixes, strict=True):
            wrong += self._wrong(row, prefix)
        times = self._times(rows)
        pasts = [
            PastRound(row.context, row.action, None if at is None else at / SECOND)
            for row, at in zip(rows, times, strict=True)
        ]
        try:
            prepared = self.policy.prepare_past(pasts, prefixes)
        except PolicyError as error:
            wrong += InvalidError.from_policy(error).fields
        if wrong or problems:
            return wrong
        for i, row in enumerate(rows):
            if row.reward is not None:
                round = self.state.round + i + 1
                delay = 0 if row.reward_after_round is None else row.reward_after_round - (row.round or 0)
                heappush(late, (round + delay, round, float(row.reward)))
        start = 0
        while start < len(rows):
            self.cross()
            stop = min(len(rows), start + count_rounds_ahead(self.state))
            self.state, beliefs = self.policy.follow(self.state, prepared.part(start, stop))
            self._record_past(rows[start:stop], names[start:stop], times[start:stop], beliefs)
            self._take_rewards(late)
            start = stop
        return []

    def _wrong(self, row: ImportRow, prefix: str) -> list[FieldProblem]:
        """What is wrong with a row, beside its context and action."""
        problems: list[FieldProblem] = []
        after = row.reward_after_round
        if after is not None and (row.round is None or after < row.round):
            message, allowed = f"{after} with round {row.round}", "at least `round`, which must be given with it"
            problems.append(FieldProblem(field=f"{prefix}reward_after_round", message=message, allowed=allowed))
        try:
            if row.reward is not None:
                self.policy.check_reward(row.reward)
        except PolicyError as error:
            problems += [
                FieldProblem(field=f"{prefix}{problem.field}", message=problem.message, allowed=problem.allowed)
                for problem in error.problems
            ]
        try:
            for name, time in (("at", row.at), ("decided_at", row.decided_at)):
                if time is not None:
                    self._time(time, prefix, name)
            if row.context is not None:
                check_numbers([row.context], [prefix])
        except InvalidError as error:
            problems += error.fields
        return problems

    def _times(self, rows: Sequence[ImportRow]) -> list[int | None]:
        """When each row was decided, never going backwards (R27); None if it is not said."""
        times: list[int | None] = []
        for row in rows:
            if row.at is None:
                times.append(None)
                continue
            self._last_at = max(self._last_at, round(row.at.timestamp() * SECOND))
            times.append(self._last_at)
        return times

    def _record_past(
        self,
        rows: Sequence[ImportRow],
        names: Sequence[str],
        times: Sequence[int | None],
        beliefs: npt.NDArray[np.float64],
    ) -> None:
        state, regimes, kept = self.state, self.state.belief.size, self._rows[DecisionRow]
        first = state.round - len(rows) + 1
        decided_at = kept[-1].decided_at if kept and isinstance(kept[-1], DecisionRow) else self._decided_before
        for i, (row, name, at, belief) in enumerate(
            zip(rows, names, times, beliefs[:, :regimes].tolist(), strict=True)
        ):
            then = at if row.decided_at is None else round(row.decided_at.timestamp() * SECOND)
            decided_at = decided_at or self.now if then is None else max(decided_at, min(self.now, then))
            context = None if row.context is None else _encode(row.context).decode()
            explanation = _encode({"belief": belief, "scores": []}).decode()
            kept.append(
                DecisionRow(
                    campaign_id=self.row.campaign_id,
                    round=first + i,
                    decision_id=name,
                    request_hash=None,
                    subject=row.subject,
                    context=context,
                    excluded_actions=None,
                    at=at,
                    model_version=state.model_version,
                    mode="imported",
                    action=row.action,
                    propensity=row.propensity or 0.0,
                    explanation=explanation,
                    decided_at=decided_at,
                )
            )

    def _take_rewards(self, late: list[tuple[int, int, float]], everything: bool = False) -> None:
        """The rewards that had come by now; in the end all, for those of later rounds are here already."""
        while late and (everything or late[0][0] <= self.state.round):
            after, round, value = heappop(late)
            self._take(round, value, "import", min(after, self.state.round))


def _repeated(
    names: Sequence[str], prefixes: Sequence[str], ids: set[str], there: Collection[str]
) -> Iterator[FieldProblem]:
    """Ids that other rows have, here or in the log."""
    for name, prefix in zip(names, prefixes, strict=True):
        if name in ids or name in there:
            yield FieldProblem(field=f"{prefix}decision_id", message=f"{name!r} is used twice", allowed="a new id")
        ids.add(name)


def _chunks(rows: Iterable[ImportRow]) -> Iterator[list[ImportRow]]:
    left = iter(rows)
    while chunk := list(islice(left, CHUNK)):
        yield chunk
