"""The law of a logged decision, rebuilt from what the log holds, beside the kernel that drew it (R12)."""

import numpy as np
import pytest

from policy import Request, StagedPolicy
from policy.changes import adapt_state, add_config_action, patch_config, retire_config_action
from policy.defaults import TRIAL_SHARE
from policy.kernels.chance import WARM_START, Chance, choose_action
from policy.logging_law import Logged, compute_logging_law, mark_first_eligible

DRAWS = 60


def drawn(generator):
    """One random situation, decided many times: rows as the log holds them, and what the kernel says of each."""
    arms = int(generator.integers(2, 6))
    eligible = generator.random((1, arms)) < 0.7
    eligible[0, generator.integers(arms)] = True
    scores = generator.choice([-1.5, 0.0, 0.25, 2.0], arms) if generator.random() < 0.5 else generator.normal(size=arms)
    configured = float(generator.choice([0.0, 0.03, 1.0 / arms]))
    trial = max(configured, TRIAL_SHARE / arms)
    chance = Chance(
        int(generator.integers(2**53)),
        float(generator.choice([0.0, 0.2, 0.9])),
        bool(generator.random() < 0.5),
        trial if generator.random() < 0.3 else configured,
    )
    warm, subject = bool(generator.random() < 0.2), bool(generator.random() < 0.5)
    rows = []
    for t in range(1, DRAWS + 1):
        taken, propensity, mode = choose_action(
            chance, t, warm, scores, eligible, 0, np.uint64(generator.integers(2**63)), subject, np.empty(arms)
        )
        rows.append((taken, propensity, mode == WARM_START))
    taken, propensity, warmed = map(np.array, zip(*rows, strict=True))
    each = np.ones(DRAWS)
    logged = Logged(
        np.where(eligible, scores, np.nan).repeat(DRAWS, axis=0), warmed, taken, propensity,
        each * chance.control_share, each * chance.control_baseline > 0, np.tile([configured, trial], (DRAWS, 1)),
    )  # fmt: skip
    return logged, eligible[0]


def test_it_is_the_kernels_law_whatever_the_configuration():
    generator, chosen = np.random.default_rng(8), set()
    for _ in range(400):
        logged, eligible = drawn(generator)
        law, known = compute_logging_law(logged)
        assert known.all()
        np.testing.assert_allclose(np.nansum(law, axis=1), 1.0, atol=1e-12)
        assert (np.isnan(law) == ~eligible).all()
        # The propensity that any of the draws met is what every one of them is told.
        assert np.abs(law[:, logged.taken] - logged.propensity).max() <= 1e-12
        chosen.add((len(set(logged.taken.tolist())), bool(logged.warm[0])))
    assert len(chosen) > 6


def row(scores, taken, propensity, *, share=0.0, baseline=False, floors=(0.0, 0.25), warm=False):
    one = np.ones(1)
    return Logged(
        np.array([scores], float), np.array([warm]), np.array([taken]), one * propensity,
        one * share, np.array([baseline]), np.array([floors], float),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        (row([1, 3, 2], 1, 1.0), [0, 1, 0]),
        (row([1, 3, 3], 2, 0.5), [0, 0.5, 0.5]),
        (row([1, 3, np.nan], 0, 0.1, floors=(0.1, 0.25)), [0.1, 0.9, np.nan]),
        (row([1, 3, 2], 2, 0.25), [0.25, 0.5, 0.25]),  # on trial: the configured floor is 0
        (row([1, 3, 2], 0, 0.3 * 1 / 3, share=0.3), [0.1, 0.8, 0.1]),
        (row([np.nan, 3, 4], 1, 0.3, share=0.3, baseline=True), [np.nan, 0.3, 0.7]),  # the next one stands in
        (row([1, 3, np.nan], 0, 0.5, warm=True), [0.5, 0.5, np.nan]),
        (row([1, np.nan, np.nan], 0, 1.0, share=0.4), [1, np.nan, np.nan]),
        # The mean of the rewards was added to the scores: ties may have gone, or may seem to be there.
        (row([0, 3, 3 + 4e-16], 1, 0.5, floors=(0.0, 0.2)), [0, 0.5, 0.5]),
        (row([0, 3, 3], 1, 1.0), [0, 1, 0]),
        (row([0, 3, 3], 1, 0.05, floors=(0.05, 0.25)), [0.05, 0.05, 0.9]),
    ],
)
def test_by_hand(logged, expected):
    law, known = compute_logging_law(logged)
    assert known.all()
    np.testing.assert_allclose(law[0], expected, atol=1e-12)


@pytest.mark.parametrize(
    "logged",
    [
        row([1, 3, 2], 0, 0.9),  # no floor gives that
        row([1, 3, 2], 1, 0.95),
        row([1, 3, np.nan], 2, 0.25),  # it was not eligible
        row([np.nan, np.nan, np.nan], 0, 1.0, warm=True),
        row([1, 3, 2], 1, 0.0),
        row([1, 3, 2], 1, 0.5, warm=True),
    ],
)
def test_a_propensity_that_does_not_follow_is_not_explained(logged):
    _, known = compute_logging_law(logged)
    assert not known.any()


def test_real_decisions_with_control_exclusions_and_an_action_on_trial(small, small_contexts):
    """With joint statistics stored scores are not the kernel's: the mean of the rewards was added."""
    generator, floors = np.random.default_rng(3), []
    policy = StagedPolicy(
        small(control={"share": 0.2, "kind": "baseline"}, propensity_floor=0.03, warm_start_rounds=20)
    )
    state, rows = policy.initial_state(), []
    for start, batch in enumerate(np.array_split(np.array(small_contexts(400)), 40)):
        if start in (15, 16, 25, 30):
            change = {
                15: lambda config: add_config_action(config, "visit"),
                16: lambda config: add_config_action(config, "gift"),
                25: lambda config: retire_config_action(config, "call"),
                30: lambda config: patch_config(config, {"control": {"share": 0.1, "kind": "uniform"}}),
            }[start]
            after = StagedPolicy(change(policy.config))
            policy, state = after, adapt_state(policy, after, state)
        config = policy.config
        excluded = [[str(generator.choice(config.actions))] if generator.random() < 0.3 else [] for _ in batch]
        state, made = policy.decide_batch(
            state, [Request(context, out) for context, out in zip(batch, excluded, strict=True)]
        )
        active = len(config.actions) - len(config.retired_actions)
        floors += [(0.03, max(0.03, TRIAL_SHARE / active))] * len(made)
        rows += [(decision, config) for decision in made]
        for decision in made:
            state = policy.reward(state, decision.round, 40.0 + generator.normal())
    actions = policy.config.actions
    scores = np.full((len(rows), len(actions)), np.nan)
    for i, (decision, _) in enumerate(rows):
        for score in decision.scores:
            scores[i, actions.index(score.action)] = score.score
    decisions = [decision for decision, _ in rows]
    logged = Logged(
        scores,
        np.array([decision.mode == "warm_start" for decision in decisions]),
        np.array([actions.index(decision.action) for decision in decisions]),
        np.array([decision.propensity for decision in decisions]),
        np.array([config.control.share for _, config in rows]),
        np.array([config.control.kind == "baseline" for _, config in rows]),
        np.array(floors),
    )
    law, known = compute_logging_law(logged)
    assert known.all()
    np.testing.assert_allclose(np.nansum(law, axis=1), 1.0, atol=1e-12)
    lowest = np.nanmin(law[~logged.warm], axis=1)
    trial = lowest > 0.09  # 0.8 · 0.5/4 or more: the floor of a trial; else 0.8 · 0.03
    assert 20 < trial.sum() < 300
    assert {decision.mode for decision in decisions} == {"warm_start", "optimistic", "control"}


def test_the_first_eligible_action_stands_in_for_the_baseline():
    eligible = np.array([[True, True, False], [False, True, True], [False, False, False]])
    assert mark_first_eligible(eligible).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_nothing_logged():
    none = np.empty(0)
    law, known = compute_logging_law(
        Logged(np.empty((0, 3)), none > 0, none.astype(int), none, none, none > 0, np.empty((0, 2)))
    )
    assert law.shape == (0, 3)
    assert known.size == 0
