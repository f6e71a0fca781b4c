"""The operations on a campaign, which `Campaigns.process` carries out. Each names its result's type.

An operation that cannot be carried out fails with an exception instead.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from policy import CampaignConfig, StagedPolicy, State
from service.engine.course import Position
from service.engine.imports import Importing, ImportSummary
from service.engine.requests import Correction, DecideItem, RewardItem, SubjectRewardByPath
from service.storage.audit import Record

T_co = TypeVar("T_co", covariant=True)


class Operation(msgspec.Struct, Generic[T_co], frozen=True):
    """Something to do with one campaign, with a result of type `T_co`."""

    campaign: str


class Decide(Operation[bytes], frozen=True):
    """`/decide`, or `/decide/batch` with all its items, each with its hash. The result is the answer's body."""

    items: Sequence[tuple[DecideItem, bytes]]
    batch: bool
    expected: tuple[int, int] | None = None  # the campaign's id and revision, if only that one may decide
    skip: bool = False  # leave out the bad items of a batch, and decide the others


class Reward(Operation[bytes], frozen=True):
    """`/reward`, `/reward/correct`, or `/reward/batch`. The result is the answer's body."""

    items: Sequence[RewardItem | Correction]
    batch: bool


class Credit(Operation[bytes], frozen=True):
    """`/reward/subject`. The result is the answer's body."""

    item: SubjectRewardByPath


class Create(Operation[bytes], frozen=True):
    """`POST /campaigns`, with the policy of its configuration. The result is that configuration as JSON."""

    policy: StagedPolicy
    request_hash: bytes
    record: Record | None = None


class ReadState(Operation[tuple[StagedPolicy, State]], frozen=True):
    """Read the policy and the state of a campaign."""


class Change(Operation[None], frozen=True):
    """Change the configuration of a campaign; `change` maps the old one to the new one."""

    change: Callable[[CampaignConfig], CampaignConfig]
    record: Record | None = None


class RollBack(Operation[None], frozen=True):
    """Go back to an earlier model (R21), as `prepare_rollback` rebuilt it."""

    campaign_id: int
    past: Position
    newest_revision: int  # when the model was rebuilt
    record: Record | None = None


class Erase(Operation[int | None], frozen=True):
    """Erase all decisions for a subject (R22), with the campaign as `prepare_erasure` folded it without them.

    The result is the number of decisions, or None if the preparation is out of date and must be repeated.
    """

    campaign_id: int
    subject: str
    rounds: Sequence[int]
    prepared: Position
    inputs: Mapping[int, Position]
    record: Record | None = None


class Import(Operation[None], frozen=True):
    """Import past decisions, which `prepare_import` has already followed in memory."""

    campaign_id: int
    unit: Importing
    summary: ImportSummary
    record: Record | None = None


class Archive(Operation[None], frozen=True):
    """Archive a campaign, or reopen it."""

    archived: bool
    record: Record | None = None


class Delete(Operation[None], frozen=True):
    """Delete an archived campaign with all its rows."""

    record: Record | None = None


class JobResult(NamedTuple):
    """How a re-estimation ended: its status, the encoded estimate if there is one, and the time it took."""

    status: str
    estimate: bytes | None
    seconds: float


class FinishJob(Operation[None], frozen=True):
    """Store the result of a background job (R16)."""

    campaign_id: int
    input_round: int
    result: JobResult
    generation: int | None = None  # of the store that the job's input came from


class Snapshot(NamedTuple):
    """A state to encode in the background and keep."""

    campaign: str
    campaign_id: int
    revision: int
    state: State
    generation: int  # of the store that the state came from


class KeepSnapshot(Operation[None], frozen=True):
    """Store a snapshot, to start from after a restart."""

    snapshot: Snapshot
    encoded: bytes


class Reduce(Operation[bool], frozen=True):
    """Reduce the oldest requests that retention no longer allows (retention.py). The result: are there more?"""


def count_items(operation: Operation[object]) -> int:
    """Count the decisions and rewards of a request; 0 for every other operation."""
    return len(operation.items) if isinstance(operation, (Decide, Reward)) else 0
