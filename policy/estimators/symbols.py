"""Estimators without rewards: the paper's (Box C), maximum likelihood (EM), and parameters that are given."""

from policy import em, spectral
from policy.arrays import FloatArray
from policy.estimators.base import Estimate, Estimator, ScheduledEstimator
from policy.history import History
from policy.hmm import HmmParameters
from policy.spectral import NotEstimable
from policy.state import State


class SpectralEstimator(ScheduledEstimator):
    """Spectral estimation of the HMM (Box C) on all symbols so far."""

    def get_size(self, state: State) -> int:
        return spectral.count_operations(state.round, self.features.symbols)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        symbols = state.history.contexts.symbols[: state.round]
        return spectral.estimate(symbols, self.features.regimes, self.features.symbols, self.config.seed)

    def explain_missing(self, state: State) -> str | None:
        estimate = self.estimate(state)
        return estimate.reason if isinstance(estimate, NotEstimable) else None


class EmEstimator(ScheduledEstimator):
    """Baum–Welch on all symbols so far, started among others from the previous estimate."""

    def get_size(self, state: State) -> int:
        return em.count_operations(state.round, self.features.regimes, self.features.symbols)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        history, features = state.history, self.features
        steps = history.steps[: state.round] if self.config.clock else None
        symbols = history.contexts.symbols[: state.round]
        return em.estimate(symbols, features.regimes, features.symbols, self.config.seed, state.hmm, steps)


class GivenEstimator(Estimator):
    """The configuration gives the HMM: the belief is filtered from round 1 (R5), and nothing is estimated."""

    def get_initial_hmm(self) -> HmmParameters | None:
        given = self.config.beliefs.parameters
        assert given is not None  # the configuration requires them with this estimator
        return HmmParameters.check(given.transition, given.emission, given.initial)

    def restore_belief(self, state: State, past: State, history: History) -> FloatArray:
        """The parameters are the same in every model, so the belief stays as it is."""
        return state.belief
