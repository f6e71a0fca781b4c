"""The theory in numbers: belief error, thresholds, the theorems' bonuses, regret bounds, checks of the assumptions.

One name per thing: `risk` is δ, `regimes` H, `symbols` X, `dimension` d, `horizon` T, `ridge` λ, `stage_length` ℓ,
`threshold` T₀, `emission` H × X. Citations such as eq:Tdelta are the paper's labels.
"""

from policy.bounds.assumptions import check_assumptions
from policy.bounds.beliefs import belief_error, belief_error_sum
from policy.bounds.bonuses import general_bonus, general_settings, simplified_bonus, simplified_settings
from policy.bounds.regret import general_regret_bound, simplified_regret_bound
from policy.bounds.thresholds import (
    KNOWN_C0,
    alignment_threshold,
    estimation_threshold,
    forgetting_rate,
    log_belief_threshold,
)

__all__ = [
    "KNOWN_C0",
    "alignment_threshold",
    "belief_error",
    "belief_error_sum",
    "check_assumptions",
    "estimation_threshold",
    "forgetting_rate",
    "general_bonus",
    "general_regret_bound",
    "general_settings",
    "log_belief_threshold",
    "simplified_bonus",
    "simplified_regret_bound",
    "simplified_settings",
]
