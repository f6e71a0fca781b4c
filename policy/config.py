"""CampaignConfig and its parts: the declarative, validated, frozen description of a campaign.

Only `name`, `actions` and `variables` are required; every default is filled in when the configuration is
made, so what is stored and shown is complete. A mistake raises `ConfigError` with one problem per mistake.
"""

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Strict,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from policy.defaults import GROWTH, KAPPA, RIDGE, STAGE_LENGTH, WARM_START_ROUNDS
from policy.errors import ConfigError, FieldProblem

__all__ = [
    "Beliefs",
    "Bonus",
    "CampaignConfig",
    "Clock",
    "Control",
    "Features",
    "GivenParameters",
    "GrowthFactor",
    "Rewards",
    "Term",
    "Variable",
]

MAX_SYMBOLS = 512
MAX_DEFAULT_SYMBOLS = 64
MAX_SEED = MOST_ROUNDS = 2**53 - 1  # exact in every JSON reader
MOST_MISTAKES = 1_000  # that are told one by one
LARGEST_REWARD = 1e100  # sums of more could leave the floats, and a NaN in θ̂ would stay for ever
INTERCEPT, ACTIONS = "intercept", "actions"

# No control characters: names are shown to people and stored as text.
PLAIN_TEXT = r"^[^\x00-\x1f\x7f]+$"
# An address without a user, a password or a fragment.
WEBHOOK = r"^https?://[^\x00-\x20\x7f@/?#]+(/[^\x00-\x20\x7f#]*)?$"
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=PLAIN_TEXT)]
Slug = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9]+(?:[-_][a-z0-9]+)*$")]
# Strict: true and "5" are not numbers.
Whole = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Probability = Annotated[Real, Field(ge=0.0, le=1.0)]
Amount = Annotated[Real, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
Constant = Annotated[Real, Field(ge=1e-12, le=1e12)]  # of a theorem; beyond these its bonus leaves the floats


def _problem(field: str, message: str, allowed: str | None = None) -> PydanticCustomError:
    """A mistake inside one part of the configuration; `field` is relative to that part."""
    # Braces are pydantic's template marks; user text must never be read as one.
    safe = message.replace("{", "(").replace("}", ")")
    return PydanticCustomError("config", safe, {"field": field, "allowed": allowed})


def _duplicates(items: tuple[str, ...]) -> list[str]:
    return sorted({item for item in items if items.count(item) > 1})


def _as_names(levels: Any) -> Any:
    """Whole numbers are accepted as level names."""
    if isinstance(levels, list | tuple):
        return tuple(str(x) if isinstance(x, int) and not isinstance(x, bool) else x for x in levels)
    return levels


Levels = Annotated[tuple[Name | int, ...], Field(min_length=2, max_length=MAX_SYMBOLS)] | None  # as they are written


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Variable(_Part):
    """One named context input: `levels`, or a number with `cuts` (and optional `levels` as labels), or `range`."""

    name: Name
    levels: tuple[Name, ...] | None = None
    cuts: Annotated[tuple[Amount, ...], Field(min_length=1, max_length=MAX_SYMBOLS - 1)] | None = None
    range: tuple[Amount, Amount] | None = None

    @field_validator("levels", mode="before", json_schema_input_type=Levels)
    @classmethod
    def _levels_are_text(cls, levels: Any) -> Any:
        """Whole numbers are accepted as level names: 1 and "1" are the same level."""
        return _as_names(levels)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if ":" in self.name or self.name in (INTERCEPT, ACTIONS):
            raise _problem("name", f"{self.name!r} is reserved", 'no ":", not "intercept" or "actions"')
        levelled = self.levels is not None or self.cuts is not None
        if levelled == (self.range is not None):
            raise _problem("", "needs exactly one kind", "levels | cuts (levels as labels) | range")
        if self.levels is not None:
            if len(self.levels) < 2 or len(self.levels) > MAX_SYMBOLS:
                raise _problem("levels", "not a usable list of levels", f"2 to {MAX_SYMBOLS} names")
            if repeated := _duplicates(self.levels):
                raise _problem("levels", f"repeated: {', '.join(repeated)}", "distinct names")
        if self.cuts is not None:
            if any(low >= high for low, high in pairwise(self.cuts)):
                raise _problem("cuts", "not increasing", "strictly increasing numbers")
            if self.levels is not None and len(self.levels) != len(self.cuts) + 1:
                raise _problem("levels", f"{len(self.levels)} labels", f"{len(self.cuts) + 1}, one more than cuts")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise _problem("range", f"{list(self.range)} is empty", "[low, high] with low < high")
        return self

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels; empty for a `range` variable. Cut levels are "1", "2", … unless labelled."""
        if self.levels is not None:
            return self.levels
        return tuple(str(i + 1) for i in range(len(self.cuts) + 1)) if self.cuts is not None else ()


class Term(_Part):
    """One block of the feature map (R10), written "age" or {"term": "actions:risk", "levels": [...]}."""

    term: Name
    levels: tuple[Name, ...] | None = None

    @field_validator("levels", mode="before", json_schema_input_type=tuple[Name | int, ...] | None)
    @classmethod
    def _levels_are_text(cls, levels: Any) -> Any:
        return _as_names(levels)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        if handler.mode == "serialization":
            return whole
        text = handler.resolve_ref_schema(whole)["properties"]["term"]
        return {"anyOf": [text, whole]}

    @model_validator(mode="wrap")
    @classmethod
    def _from_text(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "Term":
        term: Term = handler({"term": value} if isinstance(value, str) else value)
        return term

    @model_serializer
    def _to_text(self) -> str | dict[str, Any]:
        return self.term if self.levels is None else {"term": self.term, "levels": list(self.levels)}

    @property
    def with_actions(self) -> bool:
        return self.term == ACTIONS or self.term.startswith(ACTIONS + ":")

    @property
    def variable(self) -> str | None:
        """The variable of a main effect or an interaction; None for `intercept` and `actions`."""
        name = self.term.removeprefix(ACTIONS + ":")
        return None if name in (INTERCEPT, ACTIONS) else name


class Features(_Part):
    shared: tuple[Term, ...] = ()
    per_regime: tuple[Term, ...] = ()


class Bonus(_Part):
    """The confidence bonus: its form (bonus.py), its scale C, and the constants of the two theorems' forms.

    The theorems assume mean rewards within [-1, 1]; under their forms `scale` is the true bound on them.
    """

    form: (
        Literal["complex", "simplified", "plain", "elliptical", "noise", "theory_general", "theory_simplified"] | None
    ) = None  # noise where statistics are joint, else elliptical
    scale: Annotated[Real, Field(ge=0.0, le=1e12)] | None = None
    risk: Annotated[Real, Field(ge=1e-12, lt=1.0)] | None = None  # δ
    horizon: Annotated[Whole, Field(ge=2, le=MOST_ROUNDS)] | None = None  # T
    c_theta: Constant | None = None  # bound on ‖θ*_h‖₂, assumption bound-R-linear
    gamma: Annotated[Real, Field(ge=0.0, lt=1.0)] | None = None  # forgetting rate, assumption strong-mixing-hmm
    c_eta: Constant | None = None  # bound on the noise's variance, assumption idio-noise
    v_eta: Constant | None = None  # sub-Gaussian constant, assumption SGnoise

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = THEORY_CONSTANTS.get(self.form or "", ())
        for field in ("risk", "horizon", "c_theta", "gamma", "c_eta", "v_eta"):
            given = getattr(self, field) is not None
            if given != (field in needed):
                word = "used only by a theorem's form that needs it" if given else f"needed by form {self.form!r}"
                raise _problem(field, word, f"{self.form}: {', '.join(needed) or 'no constants'}")
        if self.scale is None and self.form is not None:
            object.__setattr__(self, "scale", _DEFAULT_SCALES[self.form])
        return self


# The paper's best cells at ℓ = 37 (Box D: ℓ = 1); the elliptical one is ours (PAPER-NOTES.md).
_DEFAULT_SCALES = {
    "complex": 5e-4,
    "simplified": 5e-3,
    "plain": 0.05,
    "elliptical": 0.6,
    "noise": KAPPA,
    "theory_general": 1.0,
    "theory_simplified": 1.0,
}
THEORY_CONSTANTS = {
    "theory_general": ("risk", "horizon", "c_theta", "gamma", "c_eta"),
    "theory_simplified": ("risk", "c_theta", "v_eta"),
}


class GrowthFactor(_Part):
    """Re-estimate when the round count has grown by `factor`."""

    factor: Annotated[Real, Field(gt=1.0, le=10.0)]


Every = Annotated[
    Annotated[Whole, Field(ge=1, le=MOST_ROUNDS), Tag("<rounds>")] | Annotated[GrowthFactor, Tag("<growth>")],
    Discriminator(lambda value: "<growth>" if isinstance(value, dict | GrowthFactor) else "<rounds>"),
]


class GivenParameters(_Part):
    """HMM parameters known beforehand: transition H×H, emission H×X (R9), initial H."""

    transition: tuple[tuple[Probability, ...], ...]
    emission: tuple[tuple[Probability, ...], ...]
    initial: tuple[Probability, ...]


class Beliefs(_Part):
    """How beliefs are estimated (R3–R5). `start_round`, `every` and `statistics` default by estimator."""

    estimator: Literal["spectral", "em", "given", "none"] = "em"
    parameters: GivenParameters | None = None
    start_round: Annotated[Whole, Field(ge=4, le=MOST_ROUNDS)] | None = None
    every: Every | None = None
    statistics: Literal["as_decided", "refiltered", "smoothed", "joint"] | None = None
    # Where a service re-estimates: `auto` leaves large ones to a background job, `inline` is deterministic (R16).
    estimation: Literal["auto", "inline"] = "auto"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.estimator == "given") != (self.parameters is not None):
            raise _problem(
                "parameters",
                "needed by estimator 'given'" if self.parameters is None else "used only by estimator 'given'",
                '{"estimator": "given", "parameters": {"transition", "emission", "initial"}}',
            )
        estimated = self.estimator in ("spectral", "em")
        if not estimated and self.statistics not in (None, "as_decided"):
            raise _problem("statistics", f"{self.statistics!r} needs an estimator that re-estimates", "as_decided")
        for field in ("start_round", "every"):
            if not estimated and getattr(self, field) is not None:
                raise _problem(field, f"not used by estimator {self.estimator!r}", "only with spectral or em")
        if self.statistics == "joint" and self.estimator != "em":
            raise _problem("statistics", "'joint' needs estimator 'em'", "as_decided, refiltered or smoothed")
        # object.__setattr__: a frozen part may still complete itself while it is being made.
        defaults: dict[str, Any] = {"statistics": "joint" if self.estimator == "em" else "as_decided"}
        if estimated:
            # Joint statistics begin when the warm start ends: the campaign fills that in.
            joint = self.estimator == "em" and self.statistics in (None, "joint")
            defaults["start_round"] = None if joint else 250 if self.estimator == "em" else 1000
            defaults["every"] = GrowthFactor(factor=GROWTH) if self.estimator == "em" else 37
        for field, value in defaults.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        return self


class Rewards(_Part):
    """What a reward may be, how long to wait for it, and what counts when none comes (R20)."""

    range: tuple[Amount, Amount] | None = None
    wait_seconds: Annotated[Real, Field(gt=0.0, le=1e9)] | None = None
    default: Amount | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise _problem("range", f"{list(self.range)} is empty", "[low, high] with low < high")
        if (self.wait_seconds is None) != (self.default is None):
            missing = "default" if self.default is None else "wait_seconds"
            raise _problem(missing, "missing", "wait_seconds and default together, or neither")
        if self.range and self.default is not None and not self.range[0] <= self.default <= self.range[1]:
            raise _problem("default", f"{self.default} is outside range", f"{list(self.range)}")
        return self


class Clock(_Part):
    """The hidden chain moves once a period of time, not once a decision: contexts of one period share a regime."""

    period_seconds: Annotated[Real, Field(ge=1e-3, le=1e9)]


class Control(_Part):
    """A share of decisions that ignores the model, to measure lift (R13)."""

    share: Annotated[Real, Field(ge=0.0, lt=1.0)] = 0.0
    kind: Literal["uniform", "baseline"] = "uniform"


class Alerts(_Part):
    """When to tell that the regime has changed, and whom."""

    rounds: Annotated[Whole, Field(ge=1, le=1_000_000)] = 20  # that another regime must be the likeliest in a row
    webhook: Annotated[str, Strict(), Field(max_length=2_000, pattern=WEBHOOK)] | None = None


Regimes = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[Whole, Field(ge=1, le=8), Tag("<number>")],
    Discriminator(lambda value: "<auto>" if isinstance(value, str) else "<number>"),
]
MOST_AUTO_REGIMES = 4


class CampaignConfig(_Part):
    """A campaign. `CampaignConfig(**fields)` and `model_validate` raise ConfigError, never pydantic's error."""

    name: Slug
    actions: Annotated[tuple[Name, ...], Field(min_length=2, max_length=64)]
    variables: Annotated[tuple[Variable, ...], Field(max_length=64)]
    signals: tuple[str, ...] | None = None
    regimes: Regimes | None = None
    features: Features | None = None
    stage_length: Annotated[Whole, Field(ge=1, le=1_000_000)] = STAGE_LENGTH
    # Beyond these the arithmetic of G⁻¹ leaves the floats.
    ridge: Annotated[Real, Field(ge=1e-12, le=1e12)] = RIDGE
    bonus: Bonus = Field(default_factory=Bonus)
    warm_start_rounds: Annotated[Whole, Field(ge=0, le=1_000_000)] = WARM_START_ROUNDS
    beliefs: Beliefs = Beliefs()
    clock: Clock | None = None
    rewards: Rewards = Rewards()
    control: Control = Control()
    propensity_floor: Probability = 0.0
    regime_labels: Annotated[tuple[Name, ...], Field(max_length=8)] = ()  # what people call the regimes, in their order
    alerts: Alerts = Alerts()
    retention_days: Annotated[Real, Field(gt=0.0, le=36_500.0)] | None = None  # then requests are reduced
    retired_actions: tuple[str, ...] = ()  # chosen no more; what was learned about them stays
    paused: Annotated[bool, Strict()] = False  # decides nothing new, takes rewards
    seed: Annotated[Whole, Field(ge=0, le=MAX_SEED)] = Field(default_factory=lambda: secrets.randbits(53))

    def __init__(self, /, **data: Any) -> None:
        with _own_errors():
            super().__init__(**data)

    @classmethod
    def model_validate(cls, *args: Any, **kwargs: Any) -> Self:
        with _own_errors():
            return super().model_validate(*args, **kwargs)

    @classmethod
    def model_validate_json(cls, *args: Any, **kwargs: Any) -> Self:
        with _own_errors():
            return super().model_validate_json(*args, **kwargs)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Checks across parts, then the defaults that depend on other parts."""
        if repeated := _duplicates(self.actions):
            raise ConfigError([FieldProblem("actions", f"repeated: {', '.join(repeated)}", "distinct names")])
        if repeated := _duplicates(tuple(v.name for v in self.variables)):
            raise ConfigError([FieldProblem("variables", f"repeated: {', '.join(repeated)}", "distinct names")])
        if self.bonus.form == "theory_simplified" and self.stage_length != 1:
            problem = FieldProblem("stage_length", f"{self.stage_length}", "1 for bonus form theory_simplified (Box B)")
            raise ConfigError([problem])
        if self.propensity_floor * len(self.actions) > 1.0:
            message = f"{self.propensity_floor} is more than each of {len(self.actions)} actions can have"
            raise ConfigError([FieldProblem("propensity_floor", message, f"0 to 1/{len(self.actions)}")])
        self._check_retired()
        signals = self._checked_signals()
        # The defaults come one after the other: regimes need signals, features need signals.
        object.__setattr__(self, "signals", signals)
        joint = self.beliefs.statistics == "joint"
        if joint and self.beliefs.start_round is None:
            start = max(4, self.warm_start_rounds + 1)
            object.__setattr__(self, "beliefs", self.beliefs.model_copy(update={"start_round": start}))
        if self.regimes is None or (self.regimes == "auto" and joint and not signals):
            object.__setattr__(self, "regimes", ("auto" if joint else 2) if signals else 1)
        if self.bonus.form is None:
            # The theorems' constants need their forms, so only a scale can have been given.
            bonus = Bonus(form="noise" if joint else "elliptical", scale=self.bonus.scale)
            object.__setattr__(self, "bonus", bonus)
        if self.features is None:
            object.__setattr__(self, "features", self._default_features())
        self._check_regimes()
        self._check_features()
        return self

    def _check_retired(self) -> None:
        allowed = list(self.actions[1:])
        if unknown := [name for name in self.retired_actions if name not in allowed]:
            message = f"{', '.join(unknown)}: no action, or the baseline"
            raise ConfigError([FieldProblem("retired_actions", message, allowed)])
        if repeated := _duplicates(self.retired_actions):
            raise ConfigError([FieldProblem("retired_actions", f"repeated: {', '.join(repeated)}", "distinct names")])
        if len(self.retired_actions) == len(allowed):
            message = "only the baseline would be left"
            raise ConfigError([FieldProblem("retired_actions", message, "two actions that can be chosen, or more")])

    def _checked_signals(self) -> tuple[str, ...]:
        levelled = tuple(v.name for v in self.variables if v.level_names)
        if self.signals is None:
            if self.regimes == 1:
                return ()
            if self._symbols_of(levelled) > MAX_DEFAULT_SYMBOLS:
                raise ConfigError(
                    [
                        FieldProblem(
                            "signals",
                            f"choose the variables that the regime influences: all of them together have"
                            f" {self._symbols_of(levelled)} level combinations, the default takes at most"
                            f" {MAX_DEFAULT_SYMBOLS}",
                            list(levelled),
                        )
                    ]
                )
            return levelled
        problems = [
            FieldProblem(f"signals[{i}]", f"{name!r} is not a variable with levels or cuts", list(levelled))
            for i, name in enumerate(self.signals)
            if name not in levelled
        ]
        if repeated := _duplicates(self.signals):
            problems.append(FieldProblem("signals", f"repeated: {', '.join(repeated)}", "distinct names"))
        if not problems and self._symbols_of(self.signals) > MAX_SYMBOLS:
            count = self._symbols_of(self.signals)
            problems.append(
                FieldProblem("signals", f"{count} level combinations", f"at most {MAX_SYMBOLS}: fewer signals")
            )
        if problems:
            raise ConfigError(problems)
        return self.signals

    def _symbols_of(self, names: tuple[str, ...]) -> int:
        return math.prod(len(v.level_names) for v in self.variables if v.name in names)

    def _default_features(self) -> Features:
        """R10: main effects and actions:<non-signal> shared; intercept, actions, actions:<signal> per regime."""
        names = [v.name for v in self.variables]
        signals = self.signals or ()
        shared = names + [f"{ACTIONS}:{n}" for n in names if n not in signals]
        per_regime = [INTERCEPT, ACTIONS] + [f"{ACTIONS}:{n}" for n in names if n in signals]
        return Features.model_validate({"shared": shared, "per_regime": per_regime})

    def _check_regimes(self) -> None:
        joint = self.beliefs.statistics == "joint"
        if self.regimes == "auto" and not joint:
            message = f"'auto' needs statistics 'joint', not {self.beliefs.statistics!r}"
            raise ConfigError([FieldProblem("regimes", message, "1 to 8")])
        if self.bonus.form == "noise" and not joint:
            message = f"'noise' needs statistics 'joint', not {self.beliefs.statistics!r}"
            raise ConfigError([FieldProblem("bonus.form", message, "another form")])
        if self.clock is not None and self.beliefs.estimator == "spectral":
            message = "spectral estimation needs the per-decision clock: its moments are of three consecutive rounds"
            raise ConfigError([FieldProblem("clock", message, "no clock, or estimator em")])
        regimes, symbols, given = self.regime_counts[-1], self.symbols, self.beliefs.parameters
        if len(self.regime_labels) > regimes or _duplicates(self.regime_labels):
            equal = ", some of them equal" if _duplicates(self.regime_labels) else ""
            message = f"{len(self.regime_labels)} labels{equal}, for {regimes} regime{'s' if regimes > 1 else ''}"
            raise ConfigError([FieldProblem("regime_labels", message, f"at most {regimes}, all different")])
        if regimes > 1 and self.beliefs.estimator != "none" and regimes > symbols:
            message = f"{regimes} regimes need at least as many symbols; the signals have {symbols}"
            raise ConfigError([FieldProblem("regimes", message, f"1 to {symbols}, or more signals")])
        if given is None:
            return
        where = "beliefs.parameters"
        rows: list[tuple[str, tuple[float, ...], int]] = [(f"{where}.initial", given.initial, regimes)]
        for field, matrix, width in (
            ("transition", given.transition, regimes),
            ("emission", given.emission, symbols),
        ):
            if len(matrix) != regimes:
                message = f"{len(matrix)} rows"
                raise ConfigError([FieldProblem(f"{where}.{field}", message, f"{regimes} rows, one per regime")])
            rows += [(f"{where}.{field}[{i}]", row, width) for i, row in enumerate(matrix)]
        problems = [
            FieldProblem(field, f"{len(row)} numbers summing to {sum(row):g}", f"{width} numbers summing to 1")
            for field, row, width in rows
            if len(row) != width or abs(sum(row) - 1.0) > 1e-6
        ]
        if problems:
            raise ConfigError(problems)

    def _check_features(self) -> None:
        features = self.features
        assert features is not None  # filled in just before
        levels_of = {v.name: v.level_names for v in self.variables}
        allowed = [INTERCEPT, ACTIONS, *levels_of, *(f"{ACTIONS}:{name}" for name in levels_of)]
        problems: list[FieldProblem] = []
        seen: set[tuple[str, str | None]] = set()
        for part, terms in (("shared", features.shared), ("per_regime", features.per_regime)):
            for i, term in enumerate(terms):
                field = f"features.{part}[{i}]"
                if term.term not in allowed:
                    problems.append(FieldProblem(field, f"unknown term {term.term!r}", allowed))
                    continue
                names = levels_of.get(term.variable or "", ())
                if term.levels is not None and (
                    not term.levels or set(term.levels) - set(names) or _duplicates(term.levels)
                ):
                    message = f"levels {list(term.levels)} of {term.term!r}"
                    problems.append(FieldProblem(field, message, list(names) or "no levels for this term"))
                kept = {(term.term, level) for level in (term.levels or names or (None,))}
                if kept & seen:
                    problems.append(FieldProblem(field, f"{term.term!r} is listed twice", "each column once"))
                seen |= kept
        if not problems and not any(t.with_actions for t in (*features.shared, *features.per_regime)):
            problems.append(FieldProblem("features", "no term depends on the action", allowed))
        if problems:
            raise ConfigError(problems)

    @property
    def regime_counts(self) -> tuple[int, ...]:
        """The numbers of regimes the campaign may use: the one it names, and 1 where the model may fall back to it."""
        if self.regimes == "auto":
            return tuple(range(1, min(MOST_AUTO_REGIMES, self.symbols) + 1))
        named = self.regimes or 1
        return (1, named) if self.beliefs.statistics == "joint" and named > 1 else (named,)

    @property
    def symbols(self) -> int:
        """X, the number of symbols the HMM can emit."""
        return self._symbols_of(self.signals or ())


_SECTIONS: dict[str, type[BaseModel]] = {
    "": CampaignConfig,
    "variables": Variable,
    "features": Features,
    "features.shared": Term,
    "features.per_regime": Term,
    "bonus": Bonus,
    "beliefs": Beliefs,
    "beliefs.every": GrowthFactor,
    "beliefs.parameters": GivenParameters,
    "rewards": Rewards,
    "clock": Clock,
    "control": Control,
    "alerts": Alerts,
}


@contextmanager
def _own_errors() -> Iterator[None]:
    """Pydantic's error as ours, one problem per mistake."""
    try:
        yield
    except ValidationError as error:
        if error.error_count() > MOST_MISTAKES:  # writing them all out would take seconds
            message = f"{error.error_count()} mistakes"
            raise ConfigError([FieldProblem("config", message, "at most a few")]) from None
        details = error.errors()
        # A list also counts as too short when its items are wrong: that mistake is told once, at the item.
        lists = {detail["loc"][:-1] for detail in details}
        told = [d for d in details if not (d["type"] == "too_short" and d["loc"] in lists)]
        raise ConfigError([_translated(detail) for detail in told]) from None


# Pydantic speaks of Python's types; a caller sent JSON.
_PLAIN_WORDS = {
    "tuple_type": ("is not a list", "a list"),
    "model_type": ("is not an object", "an object"),
    "model_attributes_type": ("is not an object", "an object"),
    "dict_type": ("is not an object", "an object"),
}


_TAGS = ("<rounds>", "<growth>", "<auto>", "<number>")


def _translated(detail: ErrorDetails) -> FieldProblem:
    """Pydantic's error as ours: a dotted field name, one sentence, what is allowed."""
    context = detail.get("ctx", {})
    location = [*detail["loc"], *([context["field"]] if context.get("field") else [])]
    # Union tags and validators ("function-wrap[…]") are pydantic's names, not the user's.
    parts = [p for p in location if not (isinstance(p, str) and (p.startswith("function-") or p in _TAGS))]
    field = ""
    for part in parts:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    allowed: Any = context.get("allowed")
    if detail["type"] == "extra_forbidden":
        section = _SECTIONS[".".join(part for part in parts[:-1] if isinstance(part, str))]
        return FieldProblem(field, "unknown field", list(section.model_fields))
    if detail["type"] == "missing":
        return FieldProblem(field, "is required", "a value")
    if context.get("pattern") == PLAIN_TEXT:
        return FieldProblem(
            field, f"{detail['input']!r:.60} has a control character", "text without control characters"
        )
    if context.get("pattern") == WEBHOOK:
        return FieldProblem(field, f"{detail['input']!r:.60} is not an address", "https://host/path, or http://")
    if detail["type"] == "string_pattern_mismatch":
        return FieldProblem(field, f"{detail['input']!r} is not a slug", "a-z, 0-9 and single - or _ between")
    if "<auto>" in detail["loc"]:
        return FieldProblem(field, f"{detail['input']!r:.60} is not a number of regimes", "'auto', or 1 to 8")
    if detail["type"] in _PLAIN_WORDS:
        return FieldProblem(field or "config", *_PLAIN_WORDS[detail["type"]])
    if allowed is None:
        bounds = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        allowed = " and ".join(f"{sign} {context[key]}" for key, sign in bounds.items() if key in context)
        lengths = [
            f"{word.replace('_', ' ')} {context[word]}" for word in ("min_length", "max_length") if word in context
        ]
        allowed = allowed or context.get("expected") or context.get("pattern") or ", ".join(lengths) or None
    given = detail["input"] if isinstance(detail["input"], str | int | float | bool | None) else None
    message = detail["msg"] if given is None else f"{detail['msg']}, not {given!r}"
    return FieldProblem(field or "config", message, allowed)
