"""CampaignConfig: all parts together, the checks across parts, and the defaults that depend on other parts."""

import math
import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Strict, Tag, model_validator

from policy.config.beliefs import Beliefs, Clock, GivenParameters, GrowthFactor
from policy.config.bonus import Bonus
from policy.config.errors import config_errors
from policy.config.features import Features, Term, Variable
from policy.config.rules import Alerts, Control, Rewards
from policy.config.types import (
    ACTIONS,
    INTERCEPT,
    MAX_DEFAULT_SYMBOLS,
    MAX_SEED,
    MAX_SYMBOLS,
    MOST_ACTIONS,
    MOST_REGIMES,
    MOST_VARIABLES,
    Name,
    Part,
    Probability,
    Real,
    Slug,
    Whole,
    find_duplicates,
)
from policy.defaults import RIDGE, STAGE_LENGTH, WARM_START_ROUNDS
from policy.errors import MOST_PROBLEMS, ConfigError, FieldProblem

Regimes = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[Whole, Field(ge=1, le=MOST_REGIMES), Tag("<number>")],
    Discriminator(lambda value: "<auto>" if isinstance(value, str) else "<number>"),
]
MOST_AUTO_REGIMES = 4


class CampaignConfig(Part):
    """A campaign: its actions and variables, and how it decides and learns."""

    name: Slug
    actions: Annotated[tuple[Name, ...], Field(min_length=2, max_length=MOST_ACTIONS)]
    variables: Annotated[tuple[Variable, ...], Field(max_length=MOST_VARIABLES)]
    extra_variables: Literal["reject", "ignore"] = "reject"  # what a context has besides the variables
    signals: Annotated[tuple[str, ...], Field(max_length=MOST_VARIABLES)] | None = None
    regimes: Regimes | None = None
    features: Features | None = None
    stage_length: Annotated[Whole, Field(ge=1, le=1_000_000)] = STAGE_LENGTH
    # Beyond these limits the arithmetic of G⁻¹ overflows.
    ridge: Annotated[Real, Field(ge=1e-12, le=1e12)] = RIDGE
    bonus: Bonus = Field(default_factory=Bonus)
    warm_start_rounds: Annotated[Whole, Field(ge=0, le=1_000_000)] = WARM_START_ROUNDS
    beliefs: Beliefs = Beliefs()
    clock: Clock | None = None
    rewards: Rewards = Rewards()
    control: Control = Control()
    propensity_floor: Probability = 0.0
    # What people call the regimes, in their order.
    regime_labels: Annotated[tuple[Name, ...], Field(max_length=MOST_REGIMES)] = ()
    alerts: Alerts = Alerts()
    retention_days: Annotated[Real, Field(gt=0.0, le=36_500.0)] | None = None  # then requests are reduced
    # Chosen no more; what was learned about them stays.
    retired_actions: Annotated[tuple[str, ...], Field(max_length=MOST_ACTIONS)] = ()
    paused: Annotated[bool, Strict()] = False  # decides nothing new, takes rewards
    bulk_evaluation: Annotated[bool, Strict()] = False  # decides also when OpenFeature fetches all flags at once
    seed: Annotated[Whole, Field(ge=0, le=MAX_SEED)] = Field(default_factory=lambda: secrets.randbits(53))

    # All three ways to make one raise ConfigError, never pydantic's error.

    def __init__(self, /, **data: Any) -> None:
        with config_errors(_SECTIONS):
            super().__init__(**data)

    @classmethod
    def model_validate(cls, *args: Any, **kwargs: Any) -> Self:
        with config_errors(_SECTIONS):
            return super().model_validate(*args, **kwargs)

    @classmethod
    def model_validate_json(cls, *args: Any, **kwargs: Any) -> Self:
        with config_errors(_SECTIONS):
            return super().model_validate_json(*args, **kwargs)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Checks across parts, then the defaults that depend on other parts."""
        if repeated := find_duplicates(self.actions):
            raise ConfigError.of("actions", f"repeated: {', '.join(repeated)}", "distinct names")
        if repeated := find_duplicates(tuple(v.name for v in self.variables)):
            raise ConfigError.of("variables", f"repeated: {', '.join(repeated)}", "distinct names")
        if self.bonus.form == "theory_simplified" and self.stage_length != 1:
            problem = FieldProblem("stage_length", f"{self.stage_length}", "1 for bonus form theory_simplified (Box B)")
            raise ConfigError([problem])
        if self.propensity_floor * len(self.actions) > 1.0:
            message = f"{self.propensity_floor} is more than each of {len(self.actions)} actions can have"
            raise ConfigError.of("propensity_floor", message, f"0 to 1/{len(self.actions)}")
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
            raise ConfigError.of("retired_actions", f"{', '.join(unknown)}: no action, or the baseline", allowed)
        if repeated := find_duplicates(self.retired_actions):
            raise ConfigError.of("retired_actions", f"repeated: {', '.join(repeated)}", "distinct names")
        if len(self.retired_actions) == len(allowed):
            message = "only the baseline would be left"
            raise ConfigError.of("retired_actions", message, "two actions that can be chosen, or more")

    def _checked_signals(self) -> tuple[str, ...]:
        levelled = tuple(v.name for v in self.variables if v.range is None)
        if self.signals is None:
            if self.regimes == 1:
                return ()
            if self._symbols_of(levelled) > MAX_DEFAULT_SYMBOLS:
                raise ConfigError.of(
                    "signals",
                    f"choose the variables that the regime influences: all of them together have"
                    f" {self._symbols_of(levelled)} level combinations, the default takes at most"
                    f" {MAX_DEFAULT_SYMBOLS}",
                    list(levelled),
                )
            return levelled
        problems = [
            FieldProblem(f"signals[{i}]", f"{name!r} is not a variable with levels or cuts", list(levelled))
            for i, name in enumerate(self.signals)
            if name not in levelled
        ]
        if repeated := find_duplicates(self.signals):
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
            raise ConfigError.of("regimes", message, "1 to 8")
        if self.bonus.form == "noise" and not joint:
            message = f"'noise' needs statistics 'joint', not {self.beliefs.statistics!r}"
            raise ConfigError.of("bonus.form", message, "another form")
        if self.clock is not None and self.beliefs.estimator == "spectral":
            message = "spectral estimation needs the per-decision clock: its moments are of three consecutive rounds"
            raise ConfigError.of("clock", message, "no clock, or estimator em")
        window = self.beliefs.window_rounds
        if window is not None and self.alerts.rounds > window:
            raise ConfigError.of(
                "alerts.rounds", f"{self.alerts.rounds} is more than beliefs.window_rounds", f"1 to {window}"
            )
        regimes, symbols, given = self.regime_counts[-1], self.symbols, self.beliefs.parameters
        if len(self.regime_labels) > regimes or find_duplicates(self.regime_labels):
            equal = ", some of them equal" if find_duplicates(self.regime_labels) else ""
            message = f"{len(self.regime_labels)} labels{equal}, for {regimes} regime{'s' if regimes > 1 else ''}"
            raise ConfigError.of("regime_labels", message, f"at most {regimes}, all different")
        if regimes > 1 and self.beliefs.estimator != "none" and regimes > symbols:
            message = f"{regimes} regimes need at least as many symbols; the signals have {symbols}"
            raise ConfigError.of("regimes", message, f"1 to {symbols}, or more signals")
        if given is None:
            return
        where = "beliefs.parameters"
        rows: list[tuple[str, tuple[float, ...], int]] = [(f"{where}.initial", given.initial, regimes)]
        for field, matrix, width in (("transition", given.transition, regimes), ("emission", given.emission, symbols)):
            if len(matrix) != regimes:
                raise ConfigError.of(f"{where}.{field}", f"{len(matrix)} rows", f"{regimes} rows, one per regime")
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
                if len(problems) >= MOST_PROBLEMS:
                    break
                if term.term not in allowed:
                    problems.append(FieldProblem(field, f"unknown term {term.term!r}", allowed))
                    continue
                names = levels_of.get(term.variable or "", ())
                if term.levels is not None and (
                    not term.levels or set(term.levels) - set(names) or find_duplicates(term.levels)
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

    def count_columns(self, regimes: int) -> int:
        """D, the number of columns of the feature map with so many regimes."""
        features, levels_of = self.features, {v.name: len(v.effects) for v in self.variables}
        assert features is not None
        return sum(
            weight * (len(term.levels or ()) or levels_of.get(term.variable or "", 0) or 1)
            * (len(self.actions) - 1 if term.with_actions else 1)
            for weight, terms in ((1, features.shared), (regimes, features.per_regime))
            for term in terms
        )  # fmt: skip

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
