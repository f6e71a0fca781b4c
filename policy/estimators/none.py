"""No estimation: the belief stays uniform."""

from policy.estimators.base import Estimate, Estimator
from policy.spectral import NotEstimable
from policy.state import State


class NoEstimator(Estimator):
    """The regimes are never estimated (R5)."""

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        return NotEstimable('beliefs.estimator is "none"')
