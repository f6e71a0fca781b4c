"""How a campaign learns its regimes: the estimators, all behind `Estimator`.

To add one, write its class and add a line to `ESTIMATORS`. If users may name it, its name and default schedule are a
line in `SCHEDULES` (policy/config/beliefs.py). `joint` has no name of its own: it is `em` with `statistics: joint`.
"""

from collections.abc import Mapping

from policy.config import CampaignConfig
from policy.estimators.base import Estimate, Estimator
from policy.estimators.joint import JointEstimator
from policy.estimators.online import OnlineEmEstimator
from policy.estimators.symbols import EmEstimator, GivenEstimator, SpectralEstimator
from policy.features import FeatureMap

__all__ = ["ESTIMATORS", "Estimate", "Estimator", "make_estimator"]

ESTIMATORS: dict[str, type[Estimator]] = {
    "spectral": SpectralEstimator,
    "em": EmEstimator,
    "online_em": OnlineEmEstimator,
    "joint": JointEstimator,
    "given": GivenEstimator,
    "none": Estimator,  # the belief stays uniform
}


def make_estimator(config: CampaignConfig, maps: Mapping[int, FeatureMap], ridge: float) -> Estimator:
    """The estimator that a configuration names; `maps` has a feature map for each number of regimes."""
    beliefs = config.beliefs
    name = "joint" if beliefs.statistics == "joint" else beliefs.estimator
    return ESTIMATORS[name](config, maps, ridge)
