"""What a report looks like: its response models."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ActionRow",
    "Cell",
    "Decisions",
    "Estimate",
    "Group",
    "LeftOut",
    "Lift",
    "OffPolicy",
    "PolicyValue",
    "Refusal",
    "RegimeRow",
    "Regimes",
    "Report",
    "Rewards",
    "Rounds",
]


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Refusal(_Answer):
    """Why there is no number, and what to do about it."""

    code: Literal[
        "no_rewards", "not_eligible", "no_overlap", "too_few",
        "no_control", "mixed_control", "control_near_zero", "erased",
    ]  # fmt: skip
    reason: str
    remedy: str


class Estimate(_Answer):
    """A number with its 95 % interval."""

    value: float
    standard_error: float
    low: float
    high: float


class Rounds(_Answer):
    first: int
    last: int


class Decisions(_Answer):
    total: int
    by_mode: dict[str, int]
    erased: Annotated[int, Field(description="of the total: they count as decisions, and nowhere else")]


class Rewards(_Answer):
    received: int
    awaited: Annotated[int, Field(description="decisions without a reward that counts")]
    open: Annotated[
        int,
        Field(
            description="of them, those whose rewards count later: with a default reward, once the wait is over,"
            " because until then only some have come"
        ),
    ]
    by_source: dict[str, int]
    rate: Annotated[
        float | None, Field(description="received, as a share of the decisions that are neither erased nor open")
    ]
    mean: float | None


class ActionRow(_Answer):
    action: str
    retired: bool
    decisions: int
    rewards: int
    mean_reward: float | None


class Cell(_Answer):
    """An action in a regime: each decision counts by its belief in that regime."""

    action: str
    decisions: float
    rewards: Annotated[float, Field(description="how much the mean rests on")]
    mean_reward: float | None


class RegimeRow(_Answer):
    """A regime: each decision counts by its belief in it."""

    regime: int
    label: str | None
    decisions: float
    rewards: Annotated[float, Field(description="how much the mean rests on")]
    mean_reward: float | None
    actions: list[Cell]


class Regimes(_Answer):
    """The regimes in use now; decisions made with another number of them are left out here."""

    regimes: list[RegimeRow]
    left_out: int


class Group(_Answer):
    rewards: int
    mean_reward: Annotated[float | None, Field(description="where the control's share changed, weighted: see docs")]


class Lift(_Answer):
    """What the model's decisions earn more than the control's, after the warm start and while control was on."""

    control_kind: Literal["uniform", "baseline"] | None
    decided: Group
    control: Group
    difference: Annotated[Estimate | None, Field(description="a decision; Welch's interval, by subject")]
    relative: Annotated[Estimate | None, Field(description="0.1 is 10 % more than the control; Fieller's interval")]
    refusal: Refusal | None
    relative_refusal: Refusal | None


class PolicyValue(_Answer):
    """What a policy would have earned a decision, by three estimators; or why the log cannot tell."""

    policy: Literal["action", "baseline", "model"]
    action: Annotated[str | None, Field(description="of `always this action`")]
    model_version: int | None
    after_round: Annotated[int, Field(description="only later decisions count")]
    note: str | None
    decisions: Annotated[int, Field(description="that it rests on")]
    effective_sample_size: Annotated[float, Field(description="what they are worth after weighting")]
    ips: Estimate | None
    snips: Estimate | None
    dr: Estimate | None
    refusal: Refusal | None


class LeftOut(_Answer):
    """Decisions that tell nothing about other policies."""

    erased: int
    imported: Annotated[int, Field(description="someone else decided: the law of their actions is not known")]
    awaited: Annotated[int, Field(description="ours, without a reward so far")]
    unexplained: Annotated[int, Field(description="whose propensity does not follow from the log; see `verify`")]


class OffPolicy(_Answer):
    left_out: LeftOut
    policies: list[PolicyValue]


class Report(_Answer):
    """A campaign's decisions in a range of time, added up."""

    campaign: str
    start: Annotated[str | None, Field(alias="from")]
    to: str | None
    rounds: Rounds | None
    decisions: Decisions
    rewards: Rewards
    actions: list[ActionRow]
    regimes: Regimes
    lift: Lift
    off_policy: OffPolicy
