"""Decide and take rewards for one campaign inside one transaction: in memory first, written once (R18)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from uuid import uuid4

from msgspec.structs import replace

from policy import PolicyError, Request
from policy.arrays import BoolArray
from policy.state import MODES, Decided
from service.base.errors import ApiError, ConflictError, FieldProblem, GoneError, InvalidError
from service.base.times import SECOND, format_timestamp
from service.engine.alerts import Announced, find_regime_changes
from service.engine.encoding import check_numbers, encode_explanation, encode_text
from service.engine.refusals import Refused
from service.engine.requests import MAX_BATCH, Customer, DecideItem
from service.engine.rewarding import Rewards
from service.storage.rows import REGIME_CHANGE, DecisionRow, KnownDecision, MessageRow

AHEAD_SECONDS = 60  # how far a client's clock may be ahead of ours (R27)
PREFIXES = [f"items[{i}]." for i in range(MAX_BATCH)]


class Unit(Rewards):
    """One campaign's unit of work, with the requests that clients make."""

    # --- decisions ---------------------------------------------------------------------------------------------

    def decide(self, items: Sequence[tuple[DecideItem, bytes]], batch: bool = False) -> list[KnownDecision]:
        """Return a decision for each item (with its hash): the stored one, that of an equal item, or a new one."""
        names = [item.decision_id or self._make_id() for item, _ in items]
        decisions: list[KnownDecision | str] = [*names]
        fresh = dict(zip(names, items, strict=True))
        prefixes = PREFIXES[: len(items)] if batch else [""] * len(items)  # of the fields that an error names
        if len(fresh) < len(names) or not self.known.keys().isdisjoint(fresh):
            fresh, prefixes = {}, []
            for i, (name, (item, digest)) in enumerate(zip(names, items, strict=True)):
                known, twin = self.known.get(name), fresh.get(name)
                if known is not None:
                    _require_same_request(known, digest)
                    decisions[i] = known
                elif twin is None:
                    fresh[name] = item, digest
                    prefixes.append(PREFIXES[i] if batch else "")
                elif twin[1] != digest:
                    raise ConflictError(f"decision_id {name!r} is used twice with different requests")
        if fresh:
            self.require_open("decides nothing")
            if self.policy.config.paused:
                raise ConflictError(f"Campaign {self.row.name} is paused; it decides again once `paused` is false")
            self._decide_fresh(fresh, prefixes)
        return [self.known[decision] if isinstance(decision, str) else decision for decision in decisions]

    def _make_id(self) -> str:
        """Make an id for a client that sent none; in the order of time, so that the index only grows at its end."""
        return f"{self.now:014x}{uuid4().hex[14:]}"

    def find_bad_items(self, items: Sequence[tuple[DecideItem, bytes]]) -> dict[int, ApiError]:
        """Find the items of a batch, with their hashes, that cannot be decided for reasons of their own."""
        bad: dict[int, ApiError] = {}
        fresh: dict[str | None, bytes] = {}
        for i, (item, digest) in enumerate(items):
            known = self.known.get(item.decision_id or "")
            try:
                if known is not None:
                    _require_same_request(known, digest)
                elif fresh.setdefault(item.decision_id, digest) != digest:
                    raise ConflictError(f"decision_id {item.decision_id!r} is used twice with different requests")
                else:
                    self.policy.prepare(self.build_requests([item], PREFIXES[i : i + 1])[0], PREFIXES[i : i + 1])
            except PolicyError as error:
                self.count_refusal(error)
                bad[i] = InvalidError.from_policy(error)
            except ApiError as error:
                bad[i] = error
        return bad

    def count_refusal(self, error: PolicyError) -> None:
        """Count a decide that was refused for its context."""
        refused = [Refused(*problem.refused) for problem in error.problems if problem.refused is not None]
        if refused:
            self.refused_decides.append(refused)

    def _decide_fresh(self, fresh: Mapping[str, tuple[DecideItem, bytes]], prefixes: Sequence[str]) -> None:
        requests, times, last_at = self.build_requests([item for item, _ in fresh.values()], prefixes)
        prepared = self.policy.prepare(requests, prefixes)
        decided: list[Decided] = []
        done, count = 0, len(requests)
        while done < count:
            self.cross(self.now)
            ahead = self.state.rounds_ahead
            if ahead < count - done and self._is_nothing_due:
                ahead = self.policy.count_rounds_alike(self.state)
            stop = min(count, done + ahead)
            part, before = prepared.part(done, stop) if stop - done < count else prepared, self.state
            self.state, decisions = self.policy.decide_prepared(self.state, part, self.now)
            decided += decisions
            self._record_empty_updates(before)
            self._announce_regimes(stop - done)
            done = stop
        self._record_decisions(fresh, times, prepared.eligible, decided)
        if last_at != self.progress.last_at:
            self.progress = replace(self.progress, last_at=last_at)

    def build_requests(
        self, items: Sequence[Customer], prefixes: Sequence[str]
    ) -> tuple[list[Request], list[int | None], int]:
        """Build the policy's requests, their times, which never go backwards, and the latest time after them (R27)."""
        check_numbers([item.context for item in items], prefixes)
        times, last_at = list[int | None](repeat(None, len(items))), self.progress.last_at
        has_clock = self.policy.config.clock is not None
        if has_clock or any(item.at is not None for item in items):
            for i, (item, prefix) in enumerate(zip(items, prefixes, strict=True)):
                at = None if item.at is None else self.check_time(item.at, f"{prefix}at")
                if at is None and has_clock:
                    at = self.now
                if at is not None:
                    times[i] = last_at = max(at, last_at)
        requests = [
            Request(item.context, item.excluded_actions, item.subject, None if at is None else at / SECOND)
            for item, at in zip(items, times, strict=True)
        ]
        return requests, times, last_at

    def check_time(self, time: datetime, field: str) -> int:
        """Return a client's time in microseconds since 1970; refuse one in the future."""
        at = round(time.timestamp() * SECOND)
        if at > self.now + AHEAD_SECONDS * SECOND:
            allowed = f"at most {AHEAD_SECONDS} seconds after the server's time, {format_timestamp(self.now)}"
            raise InvalidError([FieldProblem(field=field, message="lies in the future", allowed=allowed)])
        return at

    def _record_decisions(
        self,
        fresh: Mapping[str, tuple[DecideItem, bytes]],
        times: Sequence[int | None],
        eligible: BoolArray,
        decided: Sequence[Decided],
    ) -> None:
        """Build the rows, and what answers are made from."""
        actions, features, campaign = self.policy.config.actions, self.policy.features, self.row.campaign_id
        requests = zip(fresh.items(), times, eligible.tolist(), strict=True)
        for part in decided:
            answers = zip(part.versions, part.answers.tolist(), strict=True)
            for round, (version, (action, mode, propensity, *numbers)) in enumerate(answers, part.first):
                (name, (item, digest)), at, allowed = next(requests)
                excluded = encode_text(item.excluded_actions) if item.excluded_actions else None
                row = DecisionRow(
                    campaign_id=campaign,
                    round=round,
                    decision_id=name,
                    request_hash=digest,
                    subject=item.subject,
                    context=encode_text(features.drop_ignored(item.context)),
                    excluded_actions=excluded,
                    at=at,
                    model_version=version,
                    mode=MODES[int(mode)],
                    action=actions[int(action)],
                    propensity=propensity,
                    explanation=encode_explanation(actions, numbers, allowed),
                    decided_at=self.now,
                )
                self.rows.decisions.append(row)
                self.known[name] = KnownDecision.from_row(row)

    def _announce_regimes(self, count: int) -> None:
        """Record an event for each change of regime in the last rounds, and a message if a webhook is configured."""
        (regimes, announced), state = self.progress.announced, self.state
        if regimes < 2:
            return
        alerts, beliefs = self.policy.config.alerts, state.history.beliefs[: state.rows, :regimes]
        if count == 1:  # see at once that nearly all of them change nothing
            regime, run = beliefs[-1].argmax(), beliefs[-alerts.rounds :]
            if regime == announced or len(run) < alerts.rounds or (run.argmax(axis=1) != regime).any():
                return
        changes, announced = find_regime_changes(
            beliefs, state.rows - count, alerts.rounds, announced, state.history.first
        )
        self.progress = replace(self.progress, announced=Announced(regimes, announced))
        for change in changes:
            before, after = change.before + 1, change.after + 1  # people count regimes from 1
            body = {"from": before, "to": after, "belief": change.belief, "since_round": change.since_round}
            number = self.record_event(REGIME_CHANGE, body, change.round)
            if alerts.webhook is not None:
                self.rows.messages.append(
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


def _require_same_request(known: KnownDecision, digest: bytes) -> None:
    if known.erased:
        raise GoneError(f"Decision {known.decision_id!r} was erased")
    if known.request_hash is None:
        problem = f"decision_id {known.decision_id!r} was used before, and its request is no longer stored"
        raise ConflictError(f"{problem}: it was imported, or is older than retention_days; use a new id")
    if known.request_hash != digest:
        problem = f"decision_id {known.decision_id!r} was used before with a different request"
        raise ConflictError(f"{problem}; use a new id for a new decision")
