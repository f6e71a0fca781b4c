"""Which of the paper's assumptions given parameters satisfy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from policy.arrays import FloatArray
from policy.bounds.arguments import check_matrix, check_probabilities, check_transition, smallest_singular
from policy.bounds.thresholds import forgetting_rate

_ROUNDING = 1e-9  # slack on an assumption of the form "at most"


@dataclass(frozen=True)
class AssumptionCheck:
    """One assumption of the paper: the parameters' value, what is required of it, and whether that holds."""

    name: str
    holds: bool
    value: float
    requirement: str
    label: str


def check_assumptions(
    transition: ArrayLike,
    emission: ArrayLike,
    initial: ArrayLike,
    *,
    features: ArrayLike | None = None,
    theta: ArrayLike | None = None,
    c_theta: float | None = None,
) -> list[AssumptionCheck]:
    """Which of the paper's assumptions hold: of the HMM and, as far as given, of the reward model.

    `features` has a row per φ(a, x), `theta` a row per regime. Violations are reported, not refused.
    """
    M = check_transition(transition)
    E = check_probabilities("emission", emission, len(M))
    pi = check_probabilities("initial", np.asarray(initial)[None], 1, len(M))
    checks: list[AssumptionCheck] = []

    def at_most(name: str, values: FloatArray, limit: float, label: str) -> None:
        value = float(values.max())
        checks.append(AssumptionCheck(name, value <= limit + _ROUNDING, value, f"at most {limit:g}", label))

    def positive(name: str, value: float, zero: float = 0.0) -> None:
        checks.append(AssumptionCheck(name, value > zero, value, "above 0", "assumption:regularity-hmm"))

    phi = None if features is None else check_matrix("features", features)
    parameters = None if theta is None else check_matrix("theta", theta, len(M), None if phi is None else phi.shape[1])
    if phi is not None:
        at_most("feature norm", np.linalg.norm(phi, axis=1), 1, "assumption:bound-R-linear")
    if phi is not None and parameters is not None:
        at_most("mean reward", np.abs(phi @ parameters.T), 1, "assumption:bound-R-linear")
    if parameters is not None and c_theta is not None:
        at_most("parameter norm", np.linalg.norm(parameters, axis=1), c_theta, "assumption:bound-R-linear")
    positive("emission rank", *smallest_singular(E))
    positive("smallest emission", float(E.min()))
    positive("transition invertible", *smallest_singular(M))
    positive("smallest transition", float(M.min()))
    at_most("initial law stationary", np.abs(pi @ M - pi).sum(axis=1), 0, "assumption:regularity-hmm")
    gamma = forgetting_rate(M)
    checks.append(AssumptionCheck("forgetting rate", gamma < 1, gamma, "below 1", "assumption:strong-mixing-hmm"))
    return checks
