"""The paper's estimator: Box C on all symbols so far."""

from policy import spectral
from policy.estimators.base import Estimate, ScheduledEstimator
from policy.spectral import NotEstimable
from policy.state import State


class SpectralEstimator(ScheduledEstimator):
    """Spectral estimation of the HMM (Box C)."""

    def get_size(self, state: State) -> int:
        return spectral.count_operations(state.round, self.features.symbols)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        symbols = state.history.contexts.symbols[: state.round]
        return spectral.estimate(symbols, self.features.regimes, self.features.symbols, self.config.seed)

    def explain_missing(self, state: State) -> str | None:
        estimate = self.estimate(state)
        return estimate.reason if isinstance(estimate, NotEstimable) else None
