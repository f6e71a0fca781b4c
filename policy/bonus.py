"""The confidence bonuses ε_{t,a}: which form a configuration means, as the kernels take it.

complex     C s_t √ℓ ‖G⁻¹z‖₂    (eq. simplified-boxa)
simplified  C √(s_t ℓ) ‖G⁻¹z‖₂
plain       C ln(t) ‖z‖_{G⁻¹}   (Box D)
elliptical  C ‖z‖_{G⁻¹}
"""

import numpy as np

from policy import kernels
from policy.config import CampaignConfig

__all__ = ["exploration"]

_FORMS = {
    "complex": kernels.COMPLEX,
    "simplified": kernels.SIMPLIFIED,
    "plain": kernels.PLAIN,
    "elliptical": kernels.ELLIPTICAL,
}
_NONE = np.empty(0)


def exploration(config: CampaignConfig) -> kernels.Exploration:
    """The campaign's bonus rule."""
    return kernels.Exploration(_FORMS[config.bonus.form], config.bonus.scale, config.stage_length, _NONE, _NONE)
