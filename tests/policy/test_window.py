"""Rounds that leave the window: the sums kept of them stand for them, and everything else goes on as before."""

import numpy as np
import pytest

from policy import CampaignConfig, Request, StagedPolicy, candidates, decode, em, encode, joint, window
from policy.changes import adapt_state, add_config_action, add_config_level, patch_config, roll_back
from policy.errors import ConfigError
from policy.hmm import NO_EVIDENCE
from policy.kept import DEVIATIONS, KNOWN, LARGEST, PLAYED, RESIDUALS
from tests.policy.test_exposure import SECOND, Player, make_config
from tests.policy.test_joint import RIDGE, levelled, problem, random_model, recorded
from tests.policy.test_selection import played

WINDOW = 1_000


def make_candidate(features, centre, generator, together):
    parameters, theta, noise = random_model(features, generator)
    return candidates.Candidate(parameters, theta, np.array([centre, noise]), np.zeros(2), together)


def fit_to(data, candidate, features):
    """The E-step of fixed parameters."""
    design = joint.make_design(features, data.contexts, data.actions)
    return design, window._expect(data, design, candidate)


def count_expected(data, fit):
    """Expected moves and symbols, with those of rounds that have left."""
    transitions, emissions = np.empty_like(fit.hmm.transition), np.empty_like(fit.hmm.emission)
    size = (0,) * fit.hmm.initial.size
    em.expect(
        size, fit.hmm, data.steps, data.symbols, fit.evidence, np.empty_like(fit.posterior), transitions, emissions,
        data.kept,
    )  # fmt: skip
    return transitions, emissions


# --- sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regimes", [1, 2, 3])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_sums_of_what_left_and_of_the_window_are_the_sums_of_all(regimes, gaps, together):
    """With fixed parameters, in two portions."""
    features, contexts, actions, rewards, steps, data, _ = problem(levelled(), regimes, 400, 5, gaps)
    candidate = make_candidate(features, data.centre, np.random.default_rng(3), together)
    design, direct = fit_to(data, candidate, features)
    history, kept, left = recorded(features, contexts, actions, rewards, steps), None, 0
    for leaving in (130, 90):
        part = joint.gather(features, history, 400, history.arrived, None, kept).add_kept(kept)
        own, fit = fit_to(part, candidate, features)
        kept = window.keep_rounds(part, own, fit, leaving, together=together)
        history, left = history.let_leave(leaving, 400, history.arrived, history.arrived), left + leaving
    assert history.first == left
    rest = joint.gather(features, history, 400, history.arrived, None, kept).add_kept(kept)
    assert rest.centre == pytest.approx(data.centre, rel=1e-12)
    assert (rest.known, rest.squares) == (data.known, pytest.approx(data.squares, rel=1e-12))
    assert rest.least_noise == pytest.approx(data.least_noise, rel=1e-12)
    own, fit = fit_to(rest, candidate, features)
    np.testing.assert_allclose(fit.posterior[rest.rows], direct.posterior[data.rows][left:], atol=1e-9)
    for one, two in zip(count_expected(rest, fit), count_expected(data, direct), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)
    vertices = [each.symbols.size if together else 0 for each in (rest, data)]
    for one, two in zip(
        joint.sum_rounds(rest, own, RIDGE, fit.posterior, vertices[0]),
        joint.sum_rounds(data, design, RIDGE, direct.posterior, vertices[1]),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_what_is_kept_by_action_is_what_its_rounds_say():
    features, _, _, rewards, _, data, _ = problem(levelled(), 2, 300, 1)
    candidate = make_candidate(features, data.centre, np.random.default_rng(3), True)
    design, fit = fit_to(data, candidate, features)
    kept = window.keep_rounds(data, design, fit, 200, together=True)
    known = np.flatnonzero(~np.isnan(rewards[:200]))
    assert kept.rewards[KNOWN] == known.size
    errors = data.rewards[known, None] - joint.predict(design, fit.theta)[data.profiles[known]]
    squares = (fit.posterior[known] * errors**2).sum(axis=1)
    assert kept.rewards[LARGEST] == pytest.approx(squares.max())
    played_actions = data.actions[data.profiles[known]]
    np.testing.assert_allclose(kept.actions[RESIDUALS], np.bincount(played_actions, squares))
    np.testing.assert_array_equal(kept.actions[PLAYED], np.bincount(played_actions))
    assert (kept.actions[DEVIATIONS] <= kept.actions[PLAYED]).all()


@pytest.mark.parametrize("together", [False, True])
def test_renamed_regimes_rename_what_is_kept(together):
    features, *_, data, _ = problem(levelled(), 3, 200, 2)
    candidate = make_candidate(features, data.centre, np.random.default_rng(3), together)
    order = np.array([2, 0, 1])
    design, fit = fit_to(data, candidate, features)
    kept = window.keep_rounds(data, design, fit, 150, together=together)
    evidence = fit.evidence[:, order] if together else NO_EVIDENCE
    other = joint.Fit(fit.hmm.permute(order), fit.theta, fit.noise, fit.posterior[:, order], (), evidence)
    renamed = window.keep_rounds(data, design, other, 150, together=together)
    moved = kept.permute(order, features.plan.sizes[2])
    for name in ("transitions", "emissions", "edge", "gram", "moment", "columns"):
        np.testing.assert_allclose(getattr(moved, name), getattr(renamed, name), atol=1e-9, err_msg=name)


def test_em_with_what_is_kept_never_gets_worse():
    features, *_, data, _ = problem(levelled(), 2, 600, 4)
    candidate = make_candidate(features, data.centre, np.random.default_rng(3), True)
    design, fit = fit_to(data, candidate, features)
    kept = window.keep_rounds(data, design, fit, 300, together=True)
    rest = data._replace(
        symbols=data.symbols[300:], steps=data.steps[300:], rewards=data.rewards[300:], shares=data.shares[300:],
        profiles=data.profiles[300:], rows=np.arange(300), known=int((~np.isnan(data.rewards[300:])).sum()),
        squares=float(np.nansum(data.rewards[300:] ** 2)),
    ).add_kept(kept)  # fmt: skip
    steps = joint.fit_joint(rest, design, RIDGE, candidate.hmm, candidate.theta, 1.0, 15).objective
    assert (np.diff(steps) > -1e-9 * np.abs(steps[:-1])).all()
    trace = em.fit(rest.symbols, candidate.hmm, 15, smoothing=em.SMOOTHING, steps=rest.steps, kept=kept).objective
    assert len(trace) == 16  # it stops when the objective falls


# --- campaigns -------------------------------------------------------------------------------------------------


def test_a_window_longer_than_the_campaign_changes_no_bit():
    _, plain, _ = played("credit-card", 4001, 1_200)
    _, windowed, _ = played("credit-card", 4001, 1_200, beliefs={"window_rounds": 100_000})
    assert encode(plain) == encode(windowed)


@pytest.fixture(scope="module")
def run():
    return played("credit-card", 4002, 4_000, beliefs={"window_rounds": WINDOW})


def test_rows_leave_in_portions_and_most_is_kept(run):
    policy, state, _ = run
    assert WINDOW <= state.rows <= WINDOW + 2 * WINDOW // window.SPARE + policy.config.stage_length
    assert state.history.first + state.rows == state.round == 4_000
    assert state.counted == state.folded == state.statistics.counters[0]
    first = state.selection.candidates[0].kept
    assert first.known == state.selection.first == state.history.first
    assert first.transitions[0, 0] == pytest.approx(state.history.first - 1)


def test_one_by_one_by_batch_and_through_the_codec(run):
    """The same bits, with rewards that come late, again, or after their round has left."""
    policy, _, episode = run
    names = [v.name for v in policy.config.variables]
    levels = [v.level_names for v in policy.config.variables]
    rows = episode.contexts.levels[:2_600].tolist()
    contexts = [{n: each[i] for n, each, i in zip(names, levels, row, strict=True)} for row in rows]

    def play(batch, between):
        state, chance, decisions = policy.initial_state(), np.random.default_rng(1), []
        for start in range(0, len(contexts), batch):
            state, some = policy.decide_batch(state, [Request(each) for each in contexts[start : start + batch]])
            state = between(state)
            decisions += some
            for decision in some:
                if decision.round % 40 == 0:
                    for late in (decision.round, chance.integers(1, decision.round + 1)):
                        state = policy.reward(state, int(late), float(chance.normal()))
                elif decision.round % 10 < 8:
                    state = policy.reward(state, decision.round, float(chance.normal()))
        return state, decisions

    one, decided = play(1, lambda state: state)
    other, again = play(5, lambda state: state)
    assert one.history.first > 0
    assert decided == again
    assert encode(one) == encode(other)
    stored, too = play(5, lambda state: decode(encode(state)))
    assert (encode(stored), too) == (encode(one), decided)
    assert one.counted == one.statistics.counters[0]


def test_a_reward_for_a_round_that_has_left_is_counted_and_teaches_nothing(run):
    policy, state, _ = run
    before = policy.update(state)
    late = policy.reward(policy.reward(before, 3, 50.0), 3, 60.0)
    assert late.arrived == before.arrived + 2
    after = policy.update(late)
    assert after.folded == late.arrived
    assert after.counted == before.counted
    np.testing.assert_array_equal(after.statistics.theta, before.statistics.theta)
    assert encode(decode(encode(after))) == encode(after)


def test_the_window_may_change_while_the_campaign_runs():
    policy, state, _ = played("credit-card", 4002, 3_000)
    bounded = StagedPolicy(patch_config(policy.config, {"beliefs": {"window_rounds": WINDOW}}))
    state = adapt_state(policy, bounded, state)
    assert state.history.first == 0
    state = bounded.reestimate(state)
    assert state.history.first == state.round - WINDOW
    wider = StagedPolicy(patch_config(bounded.config, {"beliefs": {"window_rounds": None}}))
    state = wider.reestimate(adapt_state(bounded, wider, state))
    assert state.rows == WINDOW


@pytest.mark.parametrize("length", [1_300, 3_000])
def test_rolling_back_within_the_window_and_beyond_it(run, length):
    policy, state, episode = run
    past = policy.play(policy.initial_state(), episode.contexts.rows(0, length), episode.rewards[:length])
    past = policy.update(past) if past.is_update_due else past
    back = roll_back(policy, state, policy, past)
    np.testing.assert_array_equal(back.statistics.theta, past.statistics.theta)
    assert back.counted == past.counted
    assert back.history.first == state.history.first == back.selection.first
    kept = back.selection.candidates[0].kept
    assert kept.known == min(past.counted, state.history.first)
    assert encode(decode(encode(back))) == encode(back)
    # What counts at the next estimate is what counted then.
    again = policy.reestimate(back)
    assert again.statistics.counters[0] == past.counted + state.arrived - state.folded
    # The model in use is about as before: nothing new has been learned.
    assert np.abs(again.statistics.theta - past.statistics.theta).max() < 0.25


def test_more_levels_and_actions_widen_what_is_kept(run):
    policy, state, _ = run
    config = add_config_level(policy.config, policy.config.signals[0], "new")
    wide = StagedPolicy(add_config_action(config, "another"))
    state = policy.update(state)
    after = wide.reestimate(adapt_state(policy, wide, state))
    for before, now in zip(state.selection.candidates, after.selection.candidates, strict=True):
        assert now.kept.known >= before.kept.known
        assert now.kept.has_shapes(now.regimes, wide.features.symbols, now.theta.size, len(wide.config.actions))
        assert now.kept.emissions.sum() >= before.kept.emissions.sum()
    assert np.isfinite(after.statistics.theta).all()


@pytest.mark.parametrize("mode", ["provisional", "hold"])
def test_rounds_that_wait_do_not_leave(mode):
    """With a default reward a round is in the sums once its wait is over, and not before."""
    beliefs = {"estimator": "em", "statistics": "joint", "start_round": 31, "every": 400, "window_rounds": WINDOW}
    player = Player(make_config("joint", mode, beliefs=beliefs))
    player.play(2_000)
    state = player.state
    assert state.history.first > 0
    assert (state.exposure.reached >= state.history.first).all()
    kept = state.selection.candidates[0].kept
    assert kept.known == state.history.first
    assert encode(decode(encode(state))) == encode(state)
    assert state.counted == pytest.approx(state.exposure.reached.mean(), abs=1.0)
    # Much slower than the wait: nothing leaves as long as it waits.
    slow = Player(make_config("joint", mode, beliefs=beliefs, rewards={"wait_seconds": 1e6, "default": 0.5}))
    slow.play(1_700)
    assert slow.now < 1e6 * SECOND
    assert slow.state.history.first == 0


def test_a_default_reward_may_come_or_change_later(run):
    policy, state, _ = run
    waiting = StagedPolicy(patch_config(policy.config, {"rewards": {"default": 0.0, "wait_seconds": 60.0}}))
    changed = adapt_state(policy, waiting, state)
    changed = waiting.update(waiting.pass_time(changed, 10_000 * SECOND))
    assert changed.counted == 4_000
    assert np.abs(changed.statistics.theta - policy.update(state).statistics.theta).max() < 0.1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beliefs": {"window_rounds": 999}}, "beliefs.window_rounds"),
        ({"beliefs": {"window_rounds": WINDOW, "statistics": "smoothed"}}, "beliefs.window_rounds"),
        ({"beliefs": {"window_rounds": WINDOW, "estimator": "online_em"}}, "beliefs.window_rounds"),
        ({"beliefs": {"window_rounds": WINDOW}, "alerts": {"rounds": WINDOW + 1}}, "alerts.rounds"),
    ],
)
def test_what_a_window_does_not_go_with(fields, named):
    with pytest.raises(ConfigError) as error:
        CampaignConfig(**(levelled().model_dump(mode="json") | fields))
    assert error.value.problems[0].field == named


def test_regimes_are_found_in_a_campaign_that_is_longer_than_its_window():
    _, state, _ = played("credit-card", 4003, 6_000, beliefs={"window_rounds": WINDOW})
    assert state.belief.size == 2
