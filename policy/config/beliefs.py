"""The settings of the belief estimation: the estimator, its schedule, and the clock of the hidden chain."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from policy.config.types import MAX_SYMBOLS, MOST_REGIMES, MOST_ROUNDS, Part, Probability, Real, Whole, problem
from policy.defaults import GROWTH

LEAST_WINDOW = 1_000  # rounds


class GrowthFactor(Part):
    """Re-estimate when the round count has grown by `factor`."""

    factor: Annotated[Real, Field(gt=1.0, le=10.0)]


Every = Annotated[
    Annotated[Whole, Field(ge=1, le=MOST_ROUNDS), Tag("<rounds>")] | Annotated[GrowthFactor, Tag("<growth>")],
    Discriminator(lambda value: "<growth>" if isinstance(value, dict | GrowthFactor) else "<rounds>"),
]


Law = Annotated[tuple[Probability, ...], Field(max_length=MOST_REGIMES)]
SymbolLaw = Annotated[tuple[Probability, ...], Field(max_length=MAX_SYMBOLS)]


class GivenParameters(Part):
    """HMM parameters known beforehand: transition H×H, emission H×X (R9), initial H."""

    transition: Annotated[tuple[Law, ...], Field(max_length=MOST_REGIMES)]
    emission: Annotated[tuple[SymbolLaw, ...], Field(max_length=MOST_REGIMES)]
    initial: Law


# The estimators that a campaign can name (policy/estimators), with the default `start_round` and `every` of those that
# re-estimate.
SCHEDULES: dict[str, tuple[int, int | GrowthFactor] | None] = {
    "spectral": (1000, 37),
    "em": (250, GrowthFactor(factor=GROWTH)),
    "online_em": (250, 37),
    "given": None,
    "none": None,
}
if TYPE_CHECKING:  # mypy wants literals spelled out, pydantic takes them from the table
    EstimatorName = str
else:
    EstimatorName = Literal[tuple(SCHEDULES)]


class Beliefs(Part):
    """How beliefs are estimated (R3–R5). `start_round`, `every` and `statistics` default by estimator."""

    estimator: EstimatorName = "em"
    parameters: GivenParameters | None = None
    start_round: Annotated[Whole, Field(ge=4, le=MOST_ROUNDS)] | None = None
    every: Every | None = None
    statistics: Literal["as_decided", "refiltered", "smoothed", "joint"] | None = None
    # How many rounds an estimate reads, and the campaign keeps in memory; sums stand for older ones (policy/window.py).
    # None: all rounds. Only with joint statistics.
    window_rounds: Annotated[Whole, Field(ge=LEAST_WINDOW, le=MOST_ROUNDS)] | None = None
    # Where the service re-estimates: `auto` leaves large jobs to the background, `inline` is deterministic (R16).
    estimation: Literal["auto", "inline"] = "auto"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.estimator == "given") != (self.parameters is not None):
            raise problem(
                "parameters",
                "needed by estimator 'given'" if self.parameters is None else "used only by estimator 'given'",
                '{"estimator": "given", "parameters": {"transition", "emission", "initial"}}',
            )
        schedule = SCHEDULES[self.estimator]
        if schedule is None and self.statistics not in (None, "as_decided"):
            raise problem("statistics", f"{self.statistics!r} needs an estimator that re-estimates", "as_decided")
        for field in ("start_round", "every"):
            if schedule is None and getattr(self, field) is not None:
                scheduled = " or ".join(name for name, defaults in SCHEDULES.items() if defaults)
                raise problem(field, f"not used by estimator {self.estimator!r}", f"only with {scheduled}")
        if self.estimator == "online_em" and isinstance(self.every, GrowthFactor):
            raise problem("every", "online EM cannot wait ever longer: it keeps no old rounds", "a number of rounds")
        if self.statistics == "joint" and self.estimator != "em":
            raise problem("statistics", "'joint' needs estimator 'em'", "as_decided, refiltered or smoothed")
        if self.window_rounds is not None and (self.statistics or "joint") != "joint":
            raise problem("window_rounds", f"not with statistics {self.statistics!r}, which need all rounds", "null")
        if self.window_rounds is not None and self.estimator != "em":
            raise problem("window_rounds", f"not with estimator {self.estimator!r}, which needs all rounds", "null")
        # object.__setattr__: a frozen part may still complete itself while it is being made.
        defaults: dict[str, Any] = {"statistics": "joint" if self.estimator == "em" else "as_decided"}
        if schedule is not None:
            defaults["start_round"], defaults["every"] = schedule
            if (self.statistics or defaults["statistics"]) == "joint":
                # Joint statistics begin when the warm start ends: the campaign fills that in.
                defaults["start_round"] = None
        for field, value in defaults.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        return self


class Clock(Part):
    """The hidden chain moves once per period of time, not once per decision: contexts in one period share a regime."""

    period_seconds: Annotated[Real, Field(ge=1e-3, le=1e9)]
