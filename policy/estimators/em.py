"""Maximum likelihood from the symbols: EM from several starts."""

from policy import em
from policy.estimators.base import Estimate, ScheduledEstimator
from policy.spectral import NotEstimable
from policy.state import State


class EmEstimator(ScheduledEstimator):
    """Baum–Welch on all symbols so far, started among others from the previous estimate."""

    def get_size(self, state: State) -> int:
        return em.count_operations(state.round, self.features.regimes, self.features.symbols)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        history, features = state.history, self.features
        steps = history.steps[: state.round] if self.config.clock else None
        symbols = history.contexts.symbols[: state.round]
        return em.estimate(symbols, features.regimes, features.symbols, self.config.seed, state.hmm, steps)
