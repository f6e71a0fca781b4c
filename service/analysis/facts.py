"""The facts about a campaign that the checks look at: its state, and a bounded number of recent rows of the log."""

from functools import cached_property
from itertools import chain, islice

import msgspec
import numpy as np

from policy import StagedPolicy, State, describe
from policy.arrays import FloatArray
from policy.description import ModelDescription
from policy.hmm import MISSING
from policy.noise import get_action_noises
from policy.state import MODES
from service.base.times import SECOND
from service.base.waits import Wait
from service.engine.encoding import Explanation
from service.engine.recovery import get_campaign
from service.engine.refusals import RefusalShare
from service.storage.jobs import find_waiting_job
from service.storage.reading import LoggedDecision, get_decided_at, read_decision_pages
from service.storage.rows import JobRow, RewardRow
from service.storage.transaction import Transaction

RECENT_ROUNDS = 2_000  # decisions, and rewards, read from the log
SCORED_ROUNDS = 300  # the last of these decisions, whose scores are used
MAX_SCORES = 600  # whose standard errors are computed: about 10 ms


class Facts:
    """One campaign at one moment. What only some checks need is read or computed when the first of them uses it."""

    def __init__(
        self,
        tx: Transaction,
        policy: StagedPolicy,
        state: State,
        now: int,
        refusals: RefusalShare | None = None,
        late_rewards: RefusalShare | None = None,
    ) -> None:
        self.tx, self.policy, self.config, self.state = tx, policy, policy.config, state
        self.row = get_campaign(tx, policy.config.name)
        self.campaign = self.row.campaign_id
        self.now = max(now, self.row.clock)  # microseconds
        self.refusals, self.late_rewards = refusals, late_rewards
        rules = self.config.rewards
        self.wait = Wait.build(rules.default, rules.wait_seconds, self.now)

    def measure_age(self, round: int) -> float:
        """The seconds since a round was decided."""
        return (self.now - get_decided_at(self.tx, self.campaign, round)) / SECOND

    @cached_property
    def log(self) -> list[LoggedDecision]:
        """The newest decisions."""
        last = self.state.round
        pages = read_decision_pages(self.tx, self.campaign, max(last - RECENT_ROUNDS, 0), last, wait=self.wait)
        return [*chain.from_iterable(pages)]

    @cached_property
    def rewards(self) -> list[RewardRow]:
        """The newest rewards."""
        first = max(self.state.arrived - RECENT_ROUNDS, 0)
        return list(islice(self.tx.read_rewards(self.campaign, first), RECENT_ROUNDS))

    @cached_property
    def job(self) -> JobRow | None:
        """The re-estimation in the background that has not finished."""
        return find_waiting_job(self.tx, self.campaign)

    @cached_property
    def model(self) -> ModelDescription:
        return describe(self.policy, self.state)

    @cached_property
    def earned(self) -> FloatArray:
        """Every reward of the window that counts, in round order; with a default reward, those of rounds whose wait is
        over (R20)."""
        history, arrived = self.state.history, self.state.arrived
        known = history.get_arrivals(0, arrived)
        if self.wait.default is None:
            return history.copy_rewards(arrived)[known]
        rounds = slice(self.state.rows)
        counts = self.wait.get_end(history.times[rounds]) <= self.now
        counts &= history.contexts.symbols[rounds] != MISSING
        counts[history.excluded[history.excluded < self.state.rows]] = False
        rewards = np.full(self.state.rows, self.wait.default)
        rewards[known] = history.copy_rewards(arrived)[known]
        earned: FloatArray = rewards[counts]
        return earned

    @cached_property
    def decided(self) -> list[tuple[LoggedDecision, Explanation]]:
        """The recent decisions that were made here and not imported, with their explanations."""
        rows = [row for row in self.log if row.mode in MODES]
        return [(row, msgspec.json.decode(row.explanation, type=Explanation)) for row in rows]

    @cached_property
    def scored(self) -> list[tuple[LoggedDecision, Explanation]]:
        """The last decisions made by score between several actions."""
        last = self.decided[-SCORED_ROUNDS:]
        first = self.state.history.first  # the state has the contexts of later rounds only
        return [
            (row, why) for row, why in last if row.mode == "optimistic" and len(why.scores) > 1 and row.round > first
        ]

    def measure_uncertainty(self) -> tuple[float, float] | None:
        """The median ratio of bonus to standard error, and the share of decisions in which the second-best estimate is
        within two standard errors of the best. None if the noise is unknown."""
        noise, state = self.model.noise_std, self.state
        features, inverse = self.policy.maps[state.belief.size], state.statistics.inverse
        width = sum(len(why.scores) for _, why in self.scored)
        if not noise or not width:
            return None
        noises = np.full(len(self.config.actions), noise)
        if state.selection is not None:
            noises = get_action_noises(state.statistics.units, len(self.config.actions))
        ratios: list[float] = []
        close = []
        places = {name: place for place, name in enumerate(self.config.actions)}
        for decision, why in self.scored[:: -(-width // MAX_SCORES)]:
            row = decision.round - 1 - state.history.first
            belief = state.history.beliefs[row, : state.belief.size]
            estimates, bonuses = np.array([(score.estimate, score.bonus) for score in why.scores]).T
            z = [features.dense(belief, places[score.action], state.history.contexts, row) for score in why.scores]
            own = noises[[places[score.action] for score in why.scores]]
            errors = own * np.sqrt(np.maximum([one @ inverse @ one for one in z], 0.0))
            ratios += (bonuses[errors > 0.0] / errors[errors > 0.0]).tolist()
            second, best = np.argsort(estimates)[-2:]
            apart = z[best] - z[second]
            error = max(own[best], own[second]) * np.sqrt(max(float(apart @ inverse @ apart), 0.0))
            close.append(estimates[best] - estimates[second] < 2.0 * error)
        return (float(np.median(ratios)) if ratios else 0.0), float(np.mean(close))
