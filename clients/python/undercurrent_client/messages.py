"""What is sent and what comes back, as typed values. Fields that a newer service adds are ignored."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

import msgspec

from undercurrent_client.errors import ErrorDetail, ServiceError

BATCH_LIMIT = 1_000  # most items that the service accepts in one request
Mode = Literal["warm_start", "optimistic", "control", "imported", "baseline"]
Format = Literal["ndjson", "csv", "parquet"]
OnError = Literal["fail", "skip"]
RewardMode = Literal["set", "add"]
Source = Literal["client", "correction", "subject", "default", "import"]


def make_id() -> str:
    """Make a new id; in the order of time, so that the service's index only grows at its end."""
    return f"{time.time_ns() // 1_000:014x}{uuid4().hex[14:]}"


class Item(msgspec.Struct, frozen=True):
    """One customer to decide for. The same `decision_id` always gets the same answer; by default it is a new one."""

    context: Mapping[str, Any]
    decision_id: str = msgspec.field(default_factory=make_id)
    excluded_actions: Sequence[str] = ()
    subject: str | None = None
    at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the item as the service expects it."""
        body: dict[str, Any] = {"decision_id": self.decision_id, "context": dict(self.context)}
        if self.excluded_actions:
            body["excluded_actions"] = list(self.excluded_actions)
        if self.subject is not None:
            body["subject"] = self.subject
        if self.at is not None:
            body["at"] = self.at.isoformat()
        return body


class RewardItem(msgspec.Struct, frozen=True):
    """What one decision earned: its only reward, or with `mode="add"` one of several amounts, which add up.

    An amount counts once under its `reward_id`, however often the item is sent; by default it is a new one.
    """

    decision_id: str
    reward: float
    mode: RewardMode = "set"
    reward_id: str | None = None

    def __post_init__(self) -> None:
        """Give an amount without an id a new one."""
        if self.mode == "add" and self.reward_id is None:
            msgspec.structs.force_setattr(self, "reward_id", make_id())

    def to_json(self) -> dict[str, Any]:
        """Return the item as the service expects it."""
        body: dict[str, Any] = {"decision_id": self.decision_id, "reward": self.reward}
        if self.mode != "set":
            body["mode"] = self.mode
        if self.reward_id is not None:
            body["reward_id"] = self.reward_id
        return body


class Score(msgspec.Struct, frozen=True):
    """The reward expected of an action, and a bonus for what choosing it would teach."""

    action: str
    estimate: float
    bonus: float
    score: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The action to take, its probability, and the scores behind it.

    If the service did not answer in time, `is_baseline` is true: the action is the caller's baseline, `problem` says
    why, and no reward must be reported, because the service may have decided something else.
    """

    decision_id: str
    campaign: str
    action: str
    mode: Mode
    round: int = 0
    stage: int = 0
    model_version: int = 0
    propensity: float | None = None
    belief: tuple[float, ...] = ()
    scores: tuple[Score, ...] = ()
    decided_at: str = ""
    problem: str = ""

    @property
    def is_baseline(self) -> bool:
        """Whether the client chose the baseline because the service did not answer in time."""
        return self.mode == "baseline"


class SkippedItem(msgspec.Struct, frozen=True):
    """An item of a batch that was not decided; `item` is its place, counted from 0."""

    item: int
    decision_id: str
    error: ErrorDetail


class DecisionBatch(msgspec.Struct, frozen=True):
    """The decisions of a batch, in the order of the items; with `on_error="skip"` also the items left out."""

    decisions: tuple[Decision, ...]
    skipped: tuple[SkippedItem, ...] = ()


class RewardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A committed reward: what the decision has earned altogether, and what was sent if it was sent with an id."""

    decision_id: str
    round: int
    reward: float
    source: Source = "client"
    received_at: str = ""
    amount: float | None = None
    reward_id: str | None = None


class CreditAnswer(msgspec.Struct, frozen=True):
    """The answer to a reward of a subject."""

    credited: tuple[RewardAnswer, ...]


class RewardResult(msgspec.Struct, frozen=True):
    """The outcome of one reward of a batch: the committed reward, or the error that refused it."""

    decision_id: str
    committed: RewardAnswer | None
    error: ServiceError | None
    reward_id: str | None = None


class ItemResult(msgspec.Struct, frozen=True):
    """The outcome of one reward as the service writes it."""

    decision_id: str
    committed: RewardAnswer | None = None
    error: ErrorDetail | None = None


class RewardResults(msgspec.Struct, frozen=True):
    """The answer to a batch of rewards."""

    results: tuple[ItemResult, ...]


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a campaign; `config` is only known for a campaign that was asked for by name."""

    name: str
    round: int
    model_version: int
    rewards_received: int
    rewards_waiting: int
    failure: str | None = None
    paused: bool = False
    archived_at: str | None = None
    stage: int = 0
    regimes: int = 1
    belief: tuple[float, ...] = ()
    updated_at: str = ""
    config: dict[str, Any] = {}


class CampaignPage(msgspec.Struct, frozen=True):
    """One page of the list of campaigns."""

    campaigns: tuple[Campaign, ...]
    next_cursor: str | None = None


class Health(msgspec.Struct, frozen=True):
    """What the service says about itself."""

    version: str
