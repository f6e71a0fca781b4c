"""How requests are hashed, and how decisions and rewards are written as JSON, in the log and in answers."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from service.base.errors import FieldProblem, InvalidError
from service.base.times import format_timestamp
from service.engine.requests import DecideItem
from service.engine.sales import Taken
from service.storage.reading import LoggedDecision
from service.storage.rows import KnownDecision

_encoder = msgspec.json.Encoder()
_canonical_encoder = msgspec.json.Encoder(order="sorted")


def hash_request(item: DecideItem) -> bytes:
    """Hash what makes two requests equal (R17): 36 and 36.0 are one number, 1 and "1" one level, exclusions a set."""
    return hash_requests([item])[0]


def hash_requests(items: Sequence[DecideItem]) -> list[bytes]:
    """Hash many requests, encoded together for speed."""
    requests = [
        [
            {name: value if value.__class__ is str else _normalize(value) for name, value in item.context.items()},
            sorted(set(item.excluded_actions)) if item.excluded_actions else [],
            item.subject,
            None if item.at is None else item.at.timestamp(),
        ]
        for item in items
    ]
    try:
        # All in one call; the lines can be split at line feeds, which JSON escapes.
        texts = _canonical_encoder.encode_lines(requests)[:-1].split(b"\n")
    except (OverflowError, TypeError, ValueError):  # a number beyond 64 bits
        texts = [_encode_canonically(request) for request in requests]
    return [hashlib.blake2b(text, digest_size=16).digest() for text in texts]


def _encode_canonically(request: list[Any]) -> bytes:
    try:
        return _canonical_encoder.encode(request)
    except (OverflowError, TypeError, ValueError):
        return repr(request).encode()


def _normalize(value: Any) -> Any:
    """Give equal numbers one form."""
    if value.__class__ is float and value.is_integer():
        return str(int(value))
    return str(value) if value.__class__ is int and -(2**63) <= value < 2**63 else value


def check_numbers(contexts: Sequence[Mapping[str, Any]], prefixes: Sequence[str]) -> None:
    """Refuse integers beyond 64 bits: Python accepts them, but the log and most readers of JSON do not."""
    if int not in {value.__class__ for context in contexts for value in context.values()}:
        return
    for context, prefix in zip(contexts, prefixes, strict=True):
        for name, value in context.items():
            if value.__class__ is int and not -(2**63) <= value < 2**63:
                problem = FieldProblem(field=f"{prefix}context.{name}", message="too large a number", allowed="64 bits")
                raise InvalidError([problem])


class _Score(msgspec.Struct, gc=False):
    action: str
    estimate: float
    bonus: float
    score: float


class Explanation(msgspec.Struct):
    """Why an action was chosen, as the log stores it."""

    belief: Sequence[float]
    scores: Sequence[_Score]


class _Answer(msgspec.Struct):
    """A decision as the API answers it, without its explanation."""

    decision_id: str
    campaign: str
    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float | None
    decided_at: str


def encode_text(value: Any) -> str:
    """Encode a value as JSON, as the log stores it."""
    return _encoder.encode(value).decode()


def encode_explanation(actions: Sequence[str], numbers: Sequence[float], eligible: Sequence[bool]) -> str:
    """Encode the end of a row of `Decided.answers`: an estimate and a bonus of each action, then the beliefs."""
    count = len(actions)
    each = zip(actions, numbers, numbers[count:], eligible, strict=False)
    scores = [_Score(action, estimate, bonus, estimate + bonus) for action, estimate, bonus, allowed in each if allowed]
    return encode_text(Explanation(numbers[2 * count :], scores))


def encode_decisions(
    campaign: str, stage_length: int, decisions: Sequence[KnownDecision | LoggedDecision]
) -> list[str]:
    """Encode decisions as the API answers them, identically every time (R17)."""
    answers = [
        _Answer(
            decision_id=decision.decision_id,
            campaign=campaign,
            round=decision.round,
            stage=(decision.round - 1) // stage_length + 1,
            model_version=decision.model_version,
            mode=decision.mode,
            action=decision.action,
            propensity=decision.propensity or None,
            decided_at=format_timestamp(decision.decided_at),
        )
        for decision in decisions
    ]
    each = zip(map(encode_text, answers), decisions, strict=True)
    return [f"{head[:-1]},{decision.explanation[1:]}" for head, decision in each]


def describe_reward(campaign: str, taken: Taken) -> dict[str, Any]:
    """Describe a committed reward as the API answers it."""
    identified = {} if taken.reward_id is None else {"amount": taken.amount, "reward_id": taken.reward_id}
    return {
        "decision_id": taken.decision_id,
        "campaign": campaign,
        "round": taken.round,
        "reward": taken.reward,
        "source": taken.source,
        "received_at": format_timestamp(taken.received_at),
        **identified,
    }
