"""What may be asked of a campaign: the operations that a lane gathers and `Campaigns.process` carries out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from policy import CampaignConfig, StagedPolicy, State
from service.engine.fold import Position
from service.engine.imports import Importing
from service.engine.requests import DecideItem, RewardItem
from service.storage.audit import Record

__all__ = [
    "MAINTENANCE",
    "Archive",
    "Change",
    "Changing",
    "Create",
    "Current",
    "Decide",
    "Delete",
    "Erase",
    "FinishJob",
    "Import",
    "KeepSnapshot",
    "Operation",
    "Outcome",
    "Reduce",
    "Reward",
    "RollBack",
    "Snapshot",
]


class Decide(NamedTuple):
    """`/decide`, or `/decide/batch` with all its items; each with its hash."""

    campaign: str
    items: Sequence[tuple[DecideItem, bytes]]
    batch: bool
    meant: tuple[int, int] | None = None  # the campaign's id and revision, if any other must not decide


class Reward(NamedTuple):
    """`/reward`, or `/reward/batch`."""

    campaign: str
    items: Sequence[RewardItem]
    batch: bool


class Create(NamedTuple):
    """`POST /campaigns`, with a policy that could be made from its configuration."""

    campaign: str
    policy: StagedPolicy
    request_hash: bytes
    record: Record | None = None


class Current(NamedTuple):
    """The policy and state of a campaign, as of now."""

    campaign: str


class Change(NamedTuple):
    """Another configuration for a living campaign, made from the one in force."""

    campaign: str
    change: Callable[[CampaignConfig], CampaignConfig]
    record: Record | None = None


class RollBack(NamedTuple):
    """Back to an earlier model (R21), as `Campaigns.past` found it."""

    campaign: str
    campaign_id: int
    past: Position
    seen: int  # the newest revision when that was made
    record: Record | None = None


class Erase(NamedTuple):
    """What was decided for someone (R22), with the campaign as if it had never been, as `Campaigns.erasing` made it."""

    campaign: str
    campaign_id: int
    subject: str
    rounds: Sequence[int]
    rebuilt: Position
    inputs: Mapping[int, Position]
    record: Record | None = None


class Import(NamedTuple):
    """Rows from elsewhere, as `Campaigns.importing` has followed them."""

    campaign: str
    campaign_id: int
    made: Importing
    told: Mapping[str, Any]
    record: Record | None = None


class Archive(NamedTuple):
    """Close a campaign, or open it again."""

    campaign: str
    archived: bool
    record: Record | None = None


class Delete(NamedTuple):
    """An archived campaign, with all its rows."""

    campaign: str
    record: Record | None = None


class FinishJob(NamedTuple):
    """A background job is over (R16)."""

    campaign: str
    campaign_id: int
    input_round: int
    status: str
    result: bytes | None
    seconds: float
    generation: int | None = None  # of the store that knew its input


class KeepSnapshot(NamedTuple):
    """A state, encoded in the background, to start from after a restart."""

    campaign: str
    campaign_id: int
    revision: int
    state: State
    generation: int
    encoded: bytes


class Reduce(NamedTuple):
    """The oldest requests, which the campaign keeps no longer (service/engine/retention.py)."""

    campaign: str


class Snapshot(NamedTuple):
    """A state that is worth a snapshot."""

    campaign: str
    campaign_id: int
    revision: int
    state: State
    generation: int  # of the store that knew it


Changing = Change | RollBack | Erase | Import | Archive | Delete
Operation = Decide | Reward | Create | Current | Changing | FinishJob | KeepSnapshot | Reduce
MAINTENANCE = (Create, FinishJob, KeepSnapshot, Reduce)  # need no state of the campaign
Outcome = Any  # the body of the answer, or the exception that says why there is none
