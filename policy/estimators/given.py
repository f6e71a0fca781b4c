"""Parameters that the configuration gives: in force from round 1, never estimated."""

from policy.arrays import FloatArray
from policy.estimators.base import Estimator
from policy.history import History
from policy.hmm import HmmParameters
from policy.state import State


class GivenEstimator(Estimator):
    """The HMM is known: the belief is filtered from round 1 (R5)."""

    def get_initial_hmm(self) -> HmmParameters | None:
        given = self.config.beliefs.parameters
        assert given is not None  # the configuration requires them with this estimator
        return HmmParameters.check(given.transition, given.emission, given.initial)

    def restore_belief(self, state: State, past: State, history: History) -> FloatArray:
        """The parameters are the same in every model, so the belief stays as it is."""
        return state.belief
