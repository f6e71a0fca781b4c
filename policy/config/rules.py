"""The settings of rewards, control group and alerts."""

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from policy.config.types import WEBHOOK, Amount, Part, Real, Whole, problem


class Rewards(Part):
    """The allowed range of rewards, how long to wait for one, and the default if none comes (R20)."""

    range: tuple[Amount, Amount] | None = None
    wait_seconds: Annotated[Real, Field(gt=0.0, le=1e9)] | None = None
    default: Amount | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise problem("range", f"{list(self.range)} is empty", "[low, high] with low < high")
        if (self.wait_seconds is None) != (self.default is None):
            missing = "default" if self.default is None else "wait_seconds"
            raise problem(missing, "missing", "wait_seconds and default together, or neither")
        if self.range and self.default is not None and not self.range[0] <= self.default <= self.range[1]:
            raise problem("default", f"{self.default} is outside range", f"{list(self.range)}")
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
