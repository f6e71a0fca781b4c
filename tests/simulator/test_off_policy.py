"""Off-policy estimates and lift in simulations, where the true values are known."""

import zlib

import numpy as np
import pytest

from policy import CampaignConfig, Request, StagedPolicy
from policy.evaluation import GROUPS, LiftSums, OffPolicySums, Rewarded
from policy.lift import ALONE, Compared
from policy.logging_law import Logged, compute_logging_law
from simulator.environment import load_environment
from simulator.presets import build_config


def to_arrays(config, decisions):
    """Return the decisions as columns of the log, and their estimates."""
    places = {action: place for place, action in enumerate(config.actions)}
    scores, estimates = (np.full((len(decisions), len(places)), np.nan) for _ in range(2))
    for i, decision in enumerate(decisions):
        for action, estimate, _, score in decision.scores:
            scores[i, places[action]], estimates[i, places[action]] = score, estimate
    one = np.ones(len(decisions))
    logged = Logged(
        scores,
        np.array([decision.mode == "warm_start" for decision in decisions]),
        np.array([places[decision.action] for decision in decisions]),
        np.array([decision.propensity for decision in decisions]),
        config.control.share * one,
        np.full(len(decisions), config.control.kind == "baseline"),
        config.propensity_floor * one[:, None],
    )
    return logged, estimates


def play(config, requests, rewards):
    """Decide a stage at a time; the rewards of a stage arrive at its end."""
    policy, length = StagedPolicy(config), config.stage_length
    state, decisions = policy.initial_state(), []
    for start in range(0, len(requests), length):
        state, stage = policy.decide_batch(state, requests[start : start + length])
        for decision in stage:
            reward = rewards[decision.round - 1, config.actions.index(decision.action)]
            state = policy.reward(state, decision.round, float(reward))
        decisions += stage
    return decisions


ROUNDS, RUNS = 500, 50


@pytest.fixture(scope="module")
def credit_card_runs():
    """For each run and action: (value, standard error) by SNIPS and by DR, and the true value of always playing it."""
    environment = load_environment("credit-card")
    own = {"control": {"share": 0.1}, "propensity_floor": 0.05, "warm_start_rounds": 50, "stage_length": 37}
    estimated = np.empty((RUNS, 3, 2, 2))
    truths = np.empty((RUNS, 3))
    for run in range(RUNS):
        config = build_config("known-hmm", environment, run, own)
        episode = environment.draw(ROUNDS, np.random.default_rng(run))
        requests = [Request(environment.describe_context(episode, row)) for row in range(ROUNDS)]
        decisions = play(config, requests, episode.rewards)
        logged, estimates = to_arrays(config, decisions)
        law, known = compute_logging_law(logged)
        assert known.all()
        taken = logged.taken
        predictions = np.where(np.arange(ROUNDS)[:, None] >= config.stage_length, estimates, 0.0)
        rewards = episode.rewards[np.arange(ROUNDS), taken]
        rows = Rewarded(rewards, taken, logged.propensity, law, predictions, np.full(ROUNDS, ALONE))
        for action in range(3):
            sums = OffPolicySums()
            sums.add(rows, np.eye(3)[np.full(ROUNDS, action)])
            value = sums.result()
            assert value.refusal is None
            estimated[run, action] = value.snips[:2], value.dr[:2]
            # The expected reward of that action in the same rounds.
            truths[run, action] = episode.values[:, action].mean()
    return estimated, truths


def test_snips_and_dr_estimate_the_value_of_always_playing_one_action(credit_card_runs):
    estimated, truths = credit_card_runs
    z = (estimated[..., 0] - truths[..., None]) / estimated[..., 1]
    assert (np.abs(z[0]) < 2.0).all()  # the first run, each action, each estimator
    assert (estimated[0, :, :, 1] < 0.4 * np.ptp(truths[0])).all()  # precise enough to distinguish the actions
    # Intervals of two standard errors cover the truth.
    assert ((np.abs(z) < 2.0).mean(axis=(0, 1)) >= 0.9).all()
    assert (np.abs(z.mean(axis=(0, 1))) < 0.35).all()  # hardly any bias
    assert (z.std(axis=(0, 1)) > 0.7).all()  # and the intervals are not much too wide


CAMPAIGNS, LENGTH, SUBJECTS = 200, 300, 100
LIFTED = {
    "actions": ["none", "mail"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}],
    "regimes": 1,
    "signals": [],
    "beliefs": {"estimator": "none"},
    "stage_length": 50,
    "warm_start_rounds": 50,
    "control": {"share": 0.4},
    "propensity_floor": 0.05,
}


@pytest.mark.parametrize("with_subjects", [False, True])
def test_lift_intervals_cover_the_truth(with_subjects):
    """200 campaigns. The truth is the expected reward of the policy minus that of the control, round by round."""
    covered, errors, values = [], [], []
    for run in range(CAMPAIGNS):
        config = CampaignConfig(name="lift", seed=run, **LIFTED)
        generator = np.random.default_rng(run)
        levels = generator.integers(2, size=LENGTH)
        effects = np.array([[0.2, 0.5], [0.4, 0.1]])[levels]  # rounds × actions
        who = generator.integers(SUBJECTS, size=LENGTH)
        habits = generator.normal(0.0, 0.6, SUBJECTS)[who][:, None] if with_subjects else 0.0
        earned = effects + habits + generator.normal(0.0, 0.5, (LENGTH, 1))
        requests = [
            Request({"risk": ["low", "high"][level]}, (), f"customer {customer}" if with_subjects else None)
            for level, customer in zip(levels, who, strict=True)
        ]
        decisions = play(config, requests, earned)
        logged, _ = to_arrays(config, decisions)
        law, known = compute_logging_law(logged)
        assert known.all()
        later = ~logged.warm
        controlled = np.array([decision.mode == "control" for decision in decisions])
        clusters = np.full(LENGTH, ALONE)
        if with_subjects:
            clusters = np.array([zlib.crc32(request.subject.encode()) % GROUPS for request in requests])
        sums = LiftSums()
        rewards = earned[np.arange(LENGTH), logged.taken]
        sums.add(Compared(rewards[later], controlled[later], np.full(later.sum(), 0.4), clusters[later]))
        lift = sums.result().difference
        # The law is c q + (1 - c) p; without the control's part, it is the policy's own.
        policy = (law - 0.4 * 0.5) / 0.6
        truth = ((policy - 0.5) * effects).sum(axis=1)[later].mean()
        covered.append(lift.low <= truth <= lift.high)
        errors.append(lift.standard_error)
        values.append(lift.value - truth)
    assert 0.90 <= np.mean(covered) <= 0.99
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
