"""Requests and decisions as they are written: the hash that tells them apart, the JSON of the log and of answers."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import add
from typing import Any

import msgspec

from service.base.errors import FieldProblem, InvalidError
from service.base.times import format_timestamp
from service.engine.requests import DecideItem
from service.storage.reading import LoggedDecision
from service.storage.rows import KnownDecision

__all__ = [
    "Explanation",
    "check_numbers",
    "describe_reward",
    "encode_decisions",
    "explained",
    "hash_request",
    "hash_requests",
    "json_lines",
]

_encoder = msgspec.json.Encoder()


def hash_request(item: DecideItem) -> bytes:
    """What makes two requests the same (R17): 36 and 36.0 are one number, 1 and "1" one level, exclusions a set."""
    return hash_requests([item])[0]


def hash_requests(items: Sequence[DecideItem]) -> list[bytes]:
    """`request_hash` of each, all written at once."""
    requests = [
        [
            {name: value if value.__class__ is str else _same_written(value) for name, value in item.context.items()},
            sorted(set(item.excluded_actions)) if item.excluded_actions else [],
            item.subject,
            None if item.at is None else item.at.timestamp(),
        ]
        for item in items
    ]
    try:
        texts = _canonical.encode_lines(requests)[:-1].split(b"\n")  # as in `json_lines`
    except (OverflowError, TypeError, ValueError):  # a number beyond 64 bits
        texts = [_canonical_text(request) for request in requests]
    return [hashlib.blake2b(text, digest_size=16).digest() for text in texts]


def _canonical_text(request: list[Any]) -> bytes:
    try:
        return _canonical.encode(request)
    except (OverflowError, TypeError, ValueError):
        return repr(request).encode()


def _same_written(value: Any) -> Any:
    if value.__class__ is float and value.is_integer():
        return str(int(value))
    return str(value) if value.__class__ is int and -(2**63) <= value < 2**63 else value


_canonical = msgspec.json.Encoder(order="sorted")


def check_numbers(contexts: Sequence[Mapping[str, Any]], prefixes: Sequence[str]) -> None:
    """Python takes whole numbers of any length; the log, like most readers of JSON, takes those of 64 bits."""
    if int not in {value.__class__ for context in contexts for value in context.values()}:
        return
    for context, prefix in zip(contexts, prefixes, strict=True):
        for name, value in context.items():
            if value.__class__ is int and not -(2**63) <= value < 2**63:
                raise InvalidError(
                    [FieldProblem(field=f"{prefix}context.{name}", message="too large a number", allowed="64 bits")]
                )


class _Score(msgspec.Struct, gc=False):
    action: str
    estimate: float
    bonus: float
    score: float


class Explanation(msgspec.Struct):
    belief: Sequence[float]
    scores: Sequence[_Score]


class _Answer(msgspec.Struct):
    """A decision as the API answers it, but for its explanation."""

    decision_id: str
    campaign: str
    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float | None
    decided_at: str


def explained(actions: Sequence[str], numbers: Sequence[Sequence[float]]) -> Iterable[Explanation]:
    """Why, from the columns of Decided.answers: estimates, bonuses, beliefs."""
    arms = len(actions)
    scores = [
        map(_Score, repeat(action), estimates, bonuses, map(add, estimates, bonuses))
        for action, estimates, bonuses in zip(actions, numbers, numbers[arms:], strict=False)
    ]
    return map(Explanation, zip(*numbers[2 * arms :], strict=True), zip(*scores, strict=True))


def json_lines(values: Sequence[Any]) -> list[str]:
    """Each value as JSON, all written at once: inside JSON a line feed is always escaped."""
    return _encoder.encode_lines(values).decode()[:-1].split("\n")


def encode_decisions(
    campaign: str, stage_length: int, decisions: Sequence[KnownDecision | LoggedDecision]
) -> list[str]:
    """Decisions as the API answers them, the first time and every time (R17)."""
    answers = [
        _Answer(
            decision.decision_id,
            campaign,
            decision.round,
            (decision.round - 1) // stage_length + 1,
            decision.model_version,
            decision.mode,
            decision.action,
            decision.propensity or None,
            format_timestamp(decision.decided_at),
        )
        for decision in decisions
    ]
    heads = json_lines(answers)
    return [f"{head[:-1]},{decision.explanation[1:]}" for head, decision in zip(heads, decisions, strict=True)]


def describe_reward(campaign: str, known: KnownDecision) -> dict[str, Any]:
    """A committed reward as the API answers it."""
    assert known.received_at is not None
    return {
        "decision_id": known.decision_id,
        "campaign": campaign,
        "round": known.round,
        "reward": known.reward,
        "source": known.source,
        "received_at": format_timestamp(known.received_at),
    }
