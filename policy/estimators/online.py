"""Online EM as an estimator: what it has learned is in `State.online`, and no old round is read again."""

from policy import em, online, spectral
from policy.errors import ArgumentError
from policy.estimators.base import Estimate, ScheduledEstimator
from policy.online import OnlineStatistics
from policy.spectral import NotEstimable
from policy.state import State


class OnlineEmEstimator(ScheduledEstimator):
    """Batch EM on the rounds before `start_round`, online EM from then on.

    An estimate takes in the rounds since the last one, with the parameters following after each round. What is put in
    force, on the usual schedule (R3), are the parameters after the last of them.
    """

    def get_size(self, state: State) -> int:
        regimes, symbols = self.features.regimes, self.features.symbols
        if state.online is None:
            return em.count_operations(state.round, regimes, symbols)
        return online.count_operations(state.round - state.online.rounds, regimes, symbols)

    def estimate(self, state: State) -> Estimate | NotEstimable | None:
        regimes, symbols = self.features.regimes, self.features.symbols
        history, done = state.history, 0 if state.online is None else state.online.rounds
        new_symbols, new_steps = history.contexts.symbols[done : state.round], history.steps[done : state.round]
        if state.online is not None:
            online.check(state.online, regimes, symbols, state.round)
            return online.advance(state.online, new_steps, new_symbols)
        steps = new_steps if self.config.clock else None
        parameters = em.estimate(new_symbols, regimes, symbols, self.config.seed, None, steps)
        if isinstance(parameters, NotEstimable):
            return parameters
        return online.start(parameters, new_steps, new_symbols)

    def publish(self, state: State, estimate: Estimate) -> State:
        """Put the parameters in force as any others; the statistics number their regimes alike (R6)."""
        if not isinstance(estimate, OnlineStatistics):
            raise ArgumentError("estimate", f"{type(estimate).__name__}", "what `estimate` of this campaign returns")
        online.check(estimate, self.features.regimes, self.features.symbols, state.round)
        if state.hmm is not None:
            _, order = spectral.align(online.maximise(estimate), state.hmm)
            estimate = estimate.permute(order)
        return super().publish(state, online.maximise(estimate))._replace(online=estimate)
