"""The settings of the confidence bonus."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policy.config.types import MOST_ROUNDS, Constant, Part, Real, Whole, problem
from policy.defaults import KAPPA


class Bonus(Part):
    """The confidence bonus: its form, its scale C, and the constants of the two theorems' forms.

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
                raise problem(field, word, f"{self.form}: {', '.join(needed) or 'no constants'}")
        if self.scale is None and self.form is not None:
            object.__setattr__(self, "scale", DEFAULT_SCALES[self.form])
        return self


# The paper's best cells at ℓ = 37 (Box D: ℓ = 1); the elliptical one is ours (docs/paper-notes.md).
DEFAULT_SCALES = {
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
