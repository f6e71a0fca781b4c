"""The facts about a campaign that the checks look at: its state, and a bounded number of recent rows of the log."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import msgspec
import numpy as np

from policy import CampaignConfig, StagedPolicy, State, describe
from policy.arrays import FloatArray
from policy.description import ModelDescription
from policy.noise import get_action_noises
from policy.state import MODES
from service.base.times import SECOND
from service.storage.jobs import find_waiting_job
from service.storage.reading import LoggedDecision, read_decision_pages
from service.storage.rows import LiveRow, RevisionRow, RewardRow
from service.storage.transaction import Transaction

RECENT_ROUNDS = 2_000  # decisions, and rewards, read from the log
SCORED_ROUNDS = 300  # the last of these decisions, whose scores are read
MAX_SCORES = 600  # whose standard errors are computed: about 10 ms


class _Score(msgspec.Struct):
    action: str
    estimate: float
    bonus: float


class _Explanation(msgspec.Struct):
    scores: Sequence[_Score] = ()


class Scored(NamedTuple):
    """A decision made by score: its round, and the estimate and bonus of each eligible action."""

    round: int
    propensity: float
    actions: tuple[str, ...]
    estimates: FloatArray
    bonuses: FloatArray


class WaitingJob(NamedTuple):
    """A re-estimation in the background that has not finished."""

    input_round: int
    attempts: int
    seconds: float  # since it was created


class OverdueRewards(NamedTuple):
    """Decisions whose reward is late and has not been set to the default yet."""

    decisions: int
    oldest_round: int
    oldest_seconds: float


@dataclass(frozen=True, eq=False)
class Facts:
    """One campaign at one moment. What only some checks need is computed when the first of them uses it."""

    policy: StagedPolicy
    state: State
    row: LiveRow
    now: int  # microseconds
    log: Sequence[LoggedDecision]  # the newest
    rewards: Sequence[RewardRow]  # the newest
    revisions: Sequence[RevisionRow]
    first_decided_at: int | None
    job: WaitingJob | None
    overdue: OverdueRewards | None

    @property
    def config(self) -> CampaignConfig:
        return self.policy.config

    @cached_property
    def model(self) -> ModelDescription:
        return describe(self.policy, self.state)

    @cached_property
    def earned(self) -> FloatArray:
        """Every reward that counts, in round order."""
        return self.state.history.rewards[self.state.history.get_arrivals(0, self.state.arrived)]

    @cached_property
    def plays(self) -> dict[str, int]:
        """How often each action has been chosen since the campaign began."""
        chosen = np.bincount(self.state.history.actions[: self.state.round], minlength=len(self.config.actions))
        return dict(zip(self.config.actions, chosen.tolist(), strict=True))

    @cached_property
    def available_since(self) -> dict[str, int]:
        """The round after which each action became available. Retired actions have none."""
        since: dict[str, int] = {}
        for revision in self.revisions:
            config = msgspec.json.decode(revision.config)
            active = [name for name in config["actions"] if name not in config.get("retired_actions", ())]
            since = {name: since.get(name, revision.round) for name in active}
        return since

    @cached_property
    def decided(self) -> list[tuple[LoggedDecision, _Explanation]]:
        """The recent decisions that were made here and not imported, with their explanations."""
        rows = [row for row in self.log if row.mode in MODES and row.explanation]
        return [(row, msgspec.json.decode(row.explanation, type=_Explanation)) for row in rows]

    @cached_property
    def scored(self) -> list[Scored]:
        """The last decisions made by score between several actions."""
        return [
            Scored(
                row.round,
                row.propensity,
                tuple(score.action for score in explained.scores),
                np.array([score.estimate for score in explained.scores]),
                np.array([score.bonus for score in explained.scores]),
            )
            for row, explained in self.decided[-SCORED_ROUNDS:]
            if row.mode == "optimistic" and len(explained.scores) > 1
        ]

    @cached_property
    def uncertainty(self) -> tuple[float, float] | None:
        """The median ratio of bonus to standard error, and the share of decisions in which the second-best estimate is
        within two standard errors of the best. None if the noise is unknown."""
        noise, state = self.model.noise_std, self.state
        features, inverse = self.policy.maps[state.belief.size], state.statistics.inverse
        width = sum(len(decision.actions) for decision in self.scored)
        if not noise or not width:
            return None
        noises = np.full(len(self.config.actions), noise)
        if state.selection is not None:
            noises = get_action_noises(state.statistics.units, len(self.config.actions))
        ratios: list[float] = []
        close = []
        step = -(-width // MAX_SCORES)
        places = {name: place for place, name in enumerate(self.config.actions)}
        for decision in self.scored[::step]:
            row = decision.round - 1
            belief = state.history.beliefs[row, : state.belief.size]
            z = [features.dense(belief, places[name], state.history.contexts, row) for name in decision.actions]
            own = noises[[places[name] for name in decision.actions]]
            errors = own * np.sqrt(np.maximum([one @ inverse @ one for one in z], 0.0))
            ratios += (decision.bonuses[errors > 0.0] / errors[errors > 0.0]).tolist()
            second, best = np.argsort(decision.estimates)[-2:]
            apart = z[best] - z[second]
            error = max(own[best], own[second]) * np.sqrt(max(float(apart @ inverse @ apart), 0.0))
            close.append(decision.estimates[best] - decision.estimates[second] < 2.0 * error)
        return (float(np.median(ratios)) if ratios else 0.0), float(np.mean(close))


def load_facts(tx: Transaction, row: LiveRow, now: int, policy: StagedPolicy, state: State) -> Facts:
    """Read the facts about a campaign; `now` is the service's time in microseconds."""
    campaign, now = row.campaign_id, max(now, row.clock)
    log = list(chain.from_iterable(read_decision_pages(tx, campaign, max(state.round - RECENT_ROUNDS, 0), state.round)))
    first = list(chain.from_iterable(read_decision_pages(tx, campaign, 0, min(state.round, 1))))
    job = find_waiting_job(tx, campaign)
    return Facts(
        policy=policy,
        state=state,
        row=row,
        now=now,
        log=log,
        rewards=list(islice(tx.read_rewards(campaign, max(state.arrived - RECENT_ROUNDS, 0)), RECENT_ROUNDS)),
        revisions=tx.read_revisions(campaign, 0),
        first_decided_at=first[0].decided_at if first else None,
        job=job and WaitingJob(job.input_round, job.attempts, (now - job.created_at) / SECOND),
        overdue=_find_overdue(tx, row, now, policy.config, state),
    )


def _find_overdue(
    tx: Transaction, row: LiveRow, now: int, config: CampaignConfig, state: State
) -> OverdueRewards | None:
    if config.rewards.wait_seconds is None:
        return None
    last = min(tx.get_last_round(row.campaign_id, now - int(config.rewards.wait_seconds * SECOND)), state.round)
    part, history = slice(row.settled, last), state.history
    erased = history.contexts.symbols[part] < 0
    missing = np.flatnonzero(np.isnan(history.rewards[part]) & ~erased) + row.settled + 1
    if not missing.size:
        return None
    oldest = int(missing[0])
    ((decision,),) = read_decision_pages(tx, row.campaign_id, oldest - 1, oldest)
    return OverdueRewards(int(missing.size), oldest, (now - decision.decided_at) / SECOND)
