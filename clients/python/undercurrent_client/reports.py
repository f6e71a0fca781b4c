"""The report of a campaign, as typed values. Fields that a newer service adds are ignored."""

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """Why there is no number, and what to do about it."""

    code: str
    reason: str
    remedy: str


class Estimate(msgspec.Struct, frozen=True):
    """A number with its 95 % interval."""

    value: float
    standard_error: float
    low: float
    high: float


class RoundRange(msgspec.Struct, frozen=True):
    """The first and the last round that a report covers."""

    first: int
    last: int


class DecisionCounts(msgspec.Struct, frozen=True):
    """How many decisions were made, and how their actions were chosen. The erased ones are part of the total only."""

    total: int
    by_mode: dict[str, int]
    erased: int


class RewardCounts(msgspec.Struct, frozen=True):
    """How many rewards came, how many count, and how many decisions still wait for one.

    `received` counts decisions whose reward has come, whether it counts yet or not; `counted` those with a reward that
    counts, defaults included, and `by_source` says where it came from. Of the `awaited`, the `open` ones are those
    whose wait is not over; a reward that came `early` for one of them counts once it is. `rate` is counted / decisions
    that are neither erased nor open.
    """

    received: int
    counted: int
    awaited: int
    open: int
    early: int
    early_count_from: str | None
    complete_at: str | None
    by_source: dict[str, int]
    rate: float | None
    mean: float | None


class ActionRow(msgspec.Struct, frozen=True):
    """What an action earned."""

    action: str
    retired: bool
    decisions: int
    rewards: int
    mean_reward: float | None


class RegimeCell(msgspec.Struct, frozen=True):
    """An action in a regime. Each decision is weighted by its belief in that regime."""

    action: str
    decisions: float
    rewards: float
    mean_reward: float | None


class RegimeRow(msgspec.Struct, frozen=True):
    """A regime. Each decision is weighted by its belief in it."""

    regime: int
    label: str | None
    decisions: float
    rewards: float
    mean_reward: float | None
    actions: tuple[RegimeCell, ...]


class Regimes(msgspec.Struct, frozen=True):
    """The regimes in use. Decisions that were made with a different number of regimes are left out."""

    regimes: tuple[RegimeRow, ...]
    left_out: int


class Group(msgspec.Struct, frozen=True):
    """The rewards of one side of a comparison, and their mean."""

    rewards: int
    mean_reward: float | None


class Lift(msgspec.Struct, frozen=True):
    """How much more the model's decisions earn than control's: per decision, and relative (0.1 is 10 % more)."""

    control_kind: str | None
    decided: Group
    control: Group
    difference: Estimate | None
    relative: Estimate | None
    refusal: Refusal | None
    relative_refusal: Refusal | None


class PolicyValue(msgspec.Struct, frozen=True):
    """What a policy would have earned per decision, by three estimators; or why the log cannot tell."""

    policy: str
    action: str | None
    model_version: int | None
    after_round: int
    note: str | None
    decisions: int
    effective_sample_size: float
    ips: Estimate | None
    snips: Estimate | None
    dr: Estimate | None
    refusal: Refusal | None


class LeftOut(msgspec.Struct, frozen=True):
    """Decisions that say nothing about other policies."""

    erased: int
    imported: int
    awaited: int
    unexplained: int


class OffPolicy(msgspec.Struct, frozen=True):
    """What other policies would have earned."""

    left_out: LeftOut
    policies: tuple[PolicyValue, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True, rename={"start": "from"}):
    """A summary of a campaign's decisions in a range of time."""

    campaign: str
    start: str | None
    to: str | None
    rounds: RoundRange | None
    decisions: DecisionCounts
    rewards: RewardCounts
    actions: tuple[ActionRow, ...]
    regimes: Regimes
    lift: Lift
    off_policy: OffPolicy
