"""Requests and past rounds, checked and encoded as the tables that the kernels take."""

import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policy import hmm
from policy.arrays import BoolArray, FloatArray, IntArray, SmallInts
from policy.clock import check_time
from policy.config import CampaignConfig
from policy.errors import ArgumentError, ContextError, FieldProblem, format_value, shorten_value
from policy.features import FeatureMap
from policy.state import PastRound, Request

_NO_SUBJECT = np.zeros((1, 2), np.uint64)


class Prepared(NamedTuple):
    """Requests that `StagedPolicy.prepare` has checked and encoded, a row each."""

    codes: SmallInts  # n × (V + 1): levels, then the symbol
    numbers: FloatArray  # n × numeric variables
    eligible: BoolArray  # n × K
    subjects: npt.NDArray[np.uint64]  # n × 2: hash, 1 if there is a subject
    times: Sequence[float | None]

    def part(self, start: int, stop: int) -> "Prepared":
        return Prepared._make(column[start:stop] for column in self)


class Rows(NamedTuple):
    """Requests as `kernels.decide_rounds` takes them: the tables of `Prepared`, with steps of the chain for times."""

    gaps: SmallInts  # n, or empty without a clock
    codes: SmallInts
    numbers: FloatArray
    eligible: BoolArray
    subjects: npt.NDArray[np.uint64]
    decided_at: IntArray  # n microseconds, or empty in campaigns without a default reward

    def part(self, start: int, stop: int) -> "Rows":
        cut = slice(start, stop)
        return Rows(
            self.gaps[cut], self.codes[cut], self.numbers[cut], self.eligible[cut], self.subjects[cut],
            self.decided_at[cut],
        )  # fmt: skip


class PreparedPast(NamedTuple):
    """Past rounds that `StagedPolicy.prepare_past` has checked and encoded, a row each."""

    codes: SmallInts
    numbers: FloatArray
    actions: SmallInts
    times: Sequence[float | None]
    decided_at: IntArray

    def part(self, start: int, stop: int) -> "PreparedPast":
        return PreparedPast._make(column[start:stop] for column in self)


class Encoder:
    """Checks and encodes what callers send to one campaign."""

    def __init__(self, config: CampaignConfig, features: FeatureMap) -> None:
        self._config, self._features = config, features
        self._action_index = {name: i for i, name in enumerate(config.actions)}
        self._active = np.array([[name not in config.retired_actions for name in config.actions]])

    def prepare(self, requests: Sequence[Request], prefixes: Sequence[str] | None = None) -> Prepared:
        """Requests ready to be decided; `prefixes` begin the field names in errors."""
        if not {Request}.issuperset(map(type, requests)):
            raise ArgumentError("requests", "not all are requests", "a list of policy.Request")
        if prefixes is None:
            prefixes = [f"items[{i}]." for i in range(len(requests))]
        eligible, subjects = self._encode_all_rules(requests, prefixes)
        codes, numbers = self._features.encode_rows([r.context for r in requests], prefixes)
        times = [request.at for request in requests]
        if self._config.clock:
            for at, prefix in zip(times, prefixes, strict=True):
                check_time(at, f"{prefix}at")
        return Prepared(codes, numbers, eligible, subjects, times)

    def _encode_all_rules(
        self, requests: Sequence[Request], prefixes: Sequence[str]
    ) -> tuple[BoolArray, npt.NDArray[np.uint64]]:
        """`encode_rules` of each request."""
        count = len(requests)
        if count == 1:  # the usual case
            return self.encode_rules(requests[0].excluded_actions, requests[0].subject, prefixes[0])
        eligible, subjects = np.repeat(self._active, count, axis=0), np.zeros((count, 2), np.uint64)
        for i, (request, prefix) in enumerate(zip(requests, prefixes, strict=True)):
            if request.excluded_actions or request.subject is not None:
                eligible[i], subjects[i] = self.encode_rules(request.excluded_actions, request.subject, prefix)
        return eligible, subjects

    def prepare_past(self, rounds: Sequence[PastRound], prefixes: Sequence[str] | None = None) -> PreparedPast:
        """Past rounds ready to be followed; `prefixes` begin the field names in errors."""
        if prefixes is None:
            prefixes = [f"rounds[{i}]." for i in range(len(rounds))]
        problems = [
            FieldProblem(f"{prefix}action", f"{format_value(past.action)} is not an action", list(self._config.actions))
            for past, prefix in zip(rounds, prefixes, strict=True)
            if past.action not in self._action_index
        ]
        present = [i for i, past in enumerate(rounds) if past.context is not None]
        codes = np.zeros((len(rounds), len(self._config.variables) + 1), np.int16)
        numbers = np.zeros((len(rounds), self._features.numbers))
        codes[:, -1] = hmm.MISSING
        try:
            contexts = [past.context for past in rounds if past.context is not None]
            codes[present], numbers[present] = self._features.encode_rows(contexts, [prefixes[i] for i in present])
        except ContextError as error:
            problems += error.problems
        times = [past.at for past in rounds]
        if self._config.clock:
            for at, prefix in zip(times, prefixes, strict=True):
                try:
                    check_time(at, f"{prefix}at")
                except ContextError as error:
                    problems += error.problems
        if problems:
            raise ContextError(problems)
        actions = np.array([self._action_index[past.action] for past in rounds], np.int16)
        decided_at = np.array([past.decided_at for past in rounds], np.int64)
        return PreparedPast(codes, numbers, actions, times, decided_at)

    def encode_rules(
        self, excluded: Collection[str], subject: str | None, prefix: str = ""
    ) -> tuple[BoolArray, npt.NDArray[np.uint64]]:
        """A request's exclusions and subject as tables of one row: eligible actions, and (hash, 1 if present)."""
        eligible, key = self._active, _NO_SUBJECT
        if excluded:
            field = f"{prefix}excluded_actions"
            if isinstance(excluded, str) or not isinstance(excluded, Collection):
                raise ContextError.of(field, f"{format_value(excluded)} is not a list", "a list of actions")
            if unknown := [x for x in excluded if not isinstance(x, str) or x not in self._action_index]:
                allowed, refused = list(self._config.actions), ("excluded_actions", shorten_value(unknown[0]))
                raise ContextError([FieldProblem(field, f"unknown: {unknown}", allowed, refused)])
            eligible = eligible.copy()
            eligible[0, [self._action_index[name] for name in excluded]] = False
            if not eligible.any():
                raise ContextError.of(field, "excludes every action", "at least one action left")
        if subject is not None:
            if not isinstance(subject, str):
                raise ContextError.of(f"{prefix}subject", f"{format_value(subject)} is not text", "text")
            # A subject keeps its control assignment (R13), so it is hashed without the round.
            digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).digest()
            key = np.array([[int.from_bytes(digest[:8], "big"), 1]], np.uint64)
        return eligible, key
