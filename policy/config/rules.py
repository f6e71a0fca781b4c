"""The settings of rewards, control group and alerts."""

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, WithJsonSchema, model_validator

from policy.config.types import WEBHOOK, Amount, Part, Real, Whole, problem

# What the API offers: `leave_out` is only for the logs of earlier versions.
WhileWaiting = Annotated[
    Literal["provisional", "hold", "leave_out"],
    WithJsonSchema({"type": "string", "enum": ["provisional", "hold"]}),
]


class Rewards(Part):
    """The allowed range of rewards, how long to wait for one, the default if none comes, what counts until then (R20).

    `while_waiting`: how a round enters the model before its wait is over. "provisional": with the default, and a weight
    that grows with the probability that a reward would have come by now; a reward that comes counts at once. "hold":
    when its wait is over. "leave_out": when it has a reward. That misleads the model where only some outcomes are
    reported; it is how earlier versions worked, so their logs need it, and campaigns of today cannot choose it.
    """

    range: tuple[Amount, Amount] | None = None
    wait_seconds: Annotated[Real, Field(gt=0.0, le=1e9)] | None = None
    default: Amount | None = None
    while_waiting: WhileWaiting | None = None  # None only without a default
    # For how long after a decision its reward may be corrected; by default never.
    correct_seconds: Annotated[Real, Field(gt=0.0, le=1e9)] | None = None
    # Which of a subject's decisions get a reward that names no decision.
    credit: Literal["last", "first", "even"] = "last"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise problem("range", f"{list(self.range)} is empty", "[low, high] with low < high")
        if (self.wait_seconds is None) != (self.default is None):
            missing = "default" if self.default is None else "wait_seconds"
            raise problem(missing, "missing", "wait_seconds and default together, or neither")
        if self.range and self.default is not None and not self.range[0] <= self.default <= self.range[1]:
            raise problem("default", f"{self.default} is outside range", f"{list(self.range)}")
        waiting = None if self.default is None else self.while_waiting or "provisional"
        object.__setattr__(self, "while_waiting", waiting)
        if self.correct_seconds is not None and self.correct_seconds < (self.wait_seconds or 0.0):
            message = f"{self.correct_seconds:.15g} is less than wait_seconds"
            raise problem("correct_seconds", message, f"at least {self.wait_seconds:.15g}")
        return self


class Control(Part):
    """A share of decisions that ignores the model, to measure lift (R13)."""

    share: Annotated[Real, Field(ge=0.0, lt=1.0)] = 0.0
    kind: Literal["uniform", "baseline"] = "uniform"


class Alerts(Part):
    """When to alert that the regime has changed, and whom."""

    rounds: Annotated[Whole, Field(ge=1, le=1_000_000)] = (
        20  # alert when a different regime has been the most likely for this many decisions in a row
    )
    webhook: Annotated[str, Strict(), Field(max_length=2_000, pattern=WEBHOOK)] | None = None
