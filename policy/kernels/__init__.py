"""The compiled code, by subject: one implementation for the service and the simulator.

It touches arrays only: no I/O, no clock, and no checks of shapes or bounds, which callers make. Sums run in the order
written, so one-by-one, batch, replay and restart agree to the last bit (R15).
Shapes: T rounds, V categorical variables, K actions, H regimes, X symbols, P profiles, D columns of z.
"""

from policy.kernels.chance import EM_DRAW, ROTATION_DRAW, Chance, hash_counter
from policy.kernels.features import Plan, row_columns, span_gram
from policy.kernels.hmm import belief_path, filter_path, forward_backward, pair_counts, sample_path, triple_moments
from policy.kernels.linucb import (
    FACTOR_EVERY,
    NARROW,
    SINCE_FACTORED,
    Statistics,
    count_most_steps,
    factor,
    fold_slices,
    revise_statistics,
    solve,
    update_statistics,
)
from policy.kernels.online import average_law, online_em
from policy.kernels.profiles import (
    fold_profiles,
    profile_columns,
    profile_moments,
    profile_predictions,
    profile_residuals,
    reward_evidence,
)
from policy.kernels.rounds import (
    COMPLEX,
    ELLIPTICAL,
    NOISE,
    PLAIN,
    SIMPLIFIED,
    TABLED,
    TABLED_ELLIPTICAL,
    Exploration,
    decide_rounds,
    play_rounds,
)

__all__ = [
    "COMPLEX",
    "ELLIPTICAL",
    "EM_DRAW",
    "FACTOR_EVERY",
    "NARROW",
    "NOISE",
    "PLAIN",
    "ROTATION_DRAW",
    "SIMPLIFIED",
    "SINCE_FACTORED",
    "TABLED",
    "TABLED_ELLIPTICAL",
    "Chance",
    "Exploration",
    "Plan",
    "Statistics",
    "average_law",
    "belief_path",
    "count_most_steps",
    "decide_rounds",
    "factor",
    "filter_path",
    "fold_profiles",
    "fold_slices",
    "forward_backward",
    "hash_counter",
    "online_em",
    "pair_counts",
    "play_rounds",
    "profile_columns",
    "profile_moments",
    "profile_predictions",
    "profile_residuals",
    "revise_statistics",
    "reward_evidence",
    "row_columns",
    "sample_path",
    "solve",
    "span_gram",
    "triple_moments",
    "update_statistics",
]
