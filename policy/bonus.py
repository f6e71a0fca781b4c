"""The confidence bonuses ε_{t,a} in the form that the kernels take.

complex            C s_t √ℓ ‖G⁻¹z‖₂    (eq. simplified-boxa)
simplified         C √(s_t ℓ) ‖G⁻¹z‖₂
plain              C ln(t) ‖z‖_{G⁻¹}   (Box D)
elliptical         C ‖z‖_{G⁻¹}
noise              C σ̂_a ‖z‖_{G⁻¹}, with the estimated noise of the action: the same in any unit of reward
theory_general     the bonus of theorem total-regret-bound, all constants
theory_simplified  the bonus of theorem total-regret-bound-simplified, all constants (ℓ = 1)
"""

from typing import Any

import numpy as np

from policy import bounds, kernels
from policy.arrays import FloatArray
from policy.config import THEORY_CONSTANTS, CampaignConfig
from policy.features import FeatureMap
from policy.noise import get_action_noises

_FORMS = {
    "complex": kernels.COMPLEX,
    "simplified": kernels.SIMPLIFIED,
    "plain": kernels.PLAIN,
    "elliptical": kernels.ELLIPTICAL,
    "noise": kernels.NOISE,  # its table is made from the estimated noises, see `scale_by_noise`
    "theory_general": kernels.TABLED,
    "theory_simplified": kernels.TABLED_ELLIPTICAL,
}
_NONE = np.empty((0, 2))


def make_exploration(config: CampaignConfig) -> kernels.Exploration:
    """The campaign's bonus rule; the theorems' forms get their table later, see `tabulate_bonus`."""
    assert config.bonus.scale is not None
    return kernels.Exploration(_FORMS[config.bonus.form or ""], config.bonus.scale, config.stage_length, _NONE)


def scale_by_noise(exploration: kernels.Exploration, units: FloatArray, actions: int) -> kernels.Exploration:
    """The bonus with the noise of each action; `units` are those of the statistics."""
    form, scale, stage_length, _ = exploration
    return kernels.Exploration(form, scale, stage_length, get_action_noises(units, actions)[None])


def get_effective_ridge(config: CampaignConfig, features: FeatureMap) -> float:
    """λ for features that are not scaled.

    The theorems assume ‖φ‖₂ ≤ 1. Dividing every φ by its bound c and keeping λ is the same as keeping φ with λc²:
    estimates and ‖z‖_{G⁻¹} are equal, ‖G⁻¹z‖₂ is c times larger (see `tabulate_bonus`).
    """
    theory = config.bonus.form in THEORY_CONSTANTS
    return config.ridge * features.norm_bound**2 if theory else config.ridge


def tabulate_bonus(config: CampaignConfig, features: FeatureMap, first_round: int, count: int) -> kernels.Exploration:
    """A theorem's bonus for `count` rounds from `first_round` on, an (additive, factor) pair each."""
    rule = config.bonus
    rounds = np.arange(first_round, first_round + count)
    constants: dict[str, Any] = {
        "ridge": config.ridge,
        "regimes": features.regimes,
        "symbols": max(features.symbols, 1),
        "dimension": features.context_dimension,
        **rule.model_dump(exclude={"form", "scale"}, exclude_none=True),
    }
    if rule.form == "theory_general":
        additive, factor = bounds.General(stage_length=config.stage_length, **constants).compute_bonus(rounds)
        factor = factor * features.norm_bound
    else:
        additive, factor = bounds.Simplified(**constants).compute_bonus(rounds)
    scale = rule.scale or 0.0
    table = scale * np.stack([additive, factor], axis=1)
    return kernels.Exploration(_FORMS[rule.form or ""], scale, config.stage_length, table)
