"""Candidates judged by what they predicted: gains by hand, the rule that chooses, and what whole campaigns choose."""

import math

import numpy as np
import pytest

from policy import (
    ArgumentError,
    CampaignConfig,
    Request,
    StagedPolicy,
    candidates,
    decode,
    encode,
    hmm,
    joint,
    selection,
    spectral,
)
from policy.hmm import HmmParameters
from policy.selection import CREDIT, ENTER, KINDS, STAY, TRIAL_AGAIN, TRIAL_GAIN, TRIAL_LENGTH, Candidate, Selection
from simulator.environment import load_environment

NEVER = 10**9  # no trial may start before


def default(environment, seed, **changes):
    """A campaign that names only actions, variables and signals."""
    variables = [{"name": v["name"], "levels": v["levels"]} for v in environment.variables]
    fields = {"name": "d", "actions": environment.actions, "variables": variables, "signals": environment.signals}
    return StagedPolicy(CampaignConfig(**{**fields, "seed": seed, **changes}))


def played(name, seed, rounds, **changes):
    environment = load_environment(name)
    episode = environment.draw(rounds, np.random.default_rng(seed))
    policy = default(environment, seed, **changes)
    return policy, policy.play(policy.initial_state(), episode.contexts, episode.rewards), episode


# --- gains ---------------------------------------------------------------------------------------------------


def filtered_slowly(parameters, symbols, steps):
    """Beliefs and log-probabilities of each symbol given those before, one matrix power at a time."""
    belief, beliefs, logs = parameters.initial, [], []
    for symbol, step in zip(symbols, steps, strict=True):
        belief = belief @ np.linalg.matrix_power(parameters.transition, int(step))
        if symbol >= 0:
            weights = belief * parameters.emission[:, symbol]
            logs.append(math.log(weights.sum()))
            belief = weights / weights.sum()
        else:
            logs.append(0.0)
        beliefs.append(belief)
    return np.array(beliefs), np.array(logs)


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("clock", [None, {"period_seconds": 60.0}])
def test_gains_by_hand(small, small_contexts, clock, share):
    """Symbols since the last selection by likelihood; rewards new since then by squared error, late ones too.

    In units of 2σ̂², or of half the one-regime model's mean square error where that is far more than σ̂² (σ̂ by `share`).
    """
    policy = StagedPolicy(small(clock=clock, regimes="auto", beliefs={"start_round": 21, "every": 40}))
    contexts, generator = small_contexts(260, 3), np.random.default_rng(4)
    state, late = policy.initial_state(), []
    for t, context in enumerate(contexts, start=1):
        state, _ = policy.decide(state, context, at=15.0 * t if clock else None)
        if t % 3:
            state = policy.reward(state, t, generator.normal(2.0, 0.5))
        elif t % 9:
            late.append(t)
        if len(late) > 30:  # out of order, some 90 rounds late
            state = policy.reward(state, late.pop(int(generator.integers(0, 10))), generator.normal(2.0, 0.5))
    previous, history = state.selection, state.history
    assert len(previous.candidates) >= 3
    rounds = 259
    assert previous.round == (219 if clock else 220)  # whole periods of four rounds; the first is one short
    alone = previous.candidates[0]
    alone = alone._replace(units=alone.units * [1.0, share])
    previous = previous._replace(candidates=(alone, *previous.candidates[1:]))
    judged = selection._judge(policy.maps, history, rounds, state.arrived, previous, None)
    order = history.get_arrival_order(state.arrived).tolist()
    late = [row for row in order[previous.arrived :] if row < rounds]
    early = [row for row in order[: previous.arrived] if previous.round <= row < rounds]  # its period still went on
    assert any(row < previous.round for row in late)
    assert len(early) == (1 if clock else 0)
    rows = late + early
    symbols, steps = history.contexts.symbols[:rounds], history.steps[:rounds]
    scores = []
    for candidate in previous.candidates:
        beliefs, logs = filtered_slowly(candidate.hmm, symbols, steps)
        features, errors = policy.maps[candidate.regimes], 0.0
        for row in rows:
            z = features.dense(beliefs[row], int(history.actions[row]), history.contexts, row)
            errors += (history.rewards[row] - candidate.units[0] - candidate.theta @ z) ** 2
        scores.append((logs[previous.round :].sum(), errors))
    memory = (previous.round / rounds) ** selection.FORGETTING
    unit = max(alone.units[1] ** 2, scores[0][1] / len(rows) / 4)
    assert (unit > alone.units[1] ** 2) == (share < 1.0)
    for before, after, (log, errors) in zip(previous.candidates, judged.candidates, scores, strict=True):
        new = [log - scores[0][0], (scores[0][1] - errors) / (2 * unit)]
        np.testing.assert_allclose(after.gains, memory * before.gains + new, rtol=1e-8, atol=1e-8)
        assert after.hmm is before.hmm
        assert after.theta is before.theta
    assert judged.candidates[0].gains.tolist() == [0.0, 0.0]
    assert judged._replace(candidates=()) == previous._replace(candidates=())


def test_gains_are_bounded_by_what_the_new_rewards_can_say():
    """A reward is worth at most a nat or so, also where the first ones were all the same and σ̂ at its floor."""
    environment = load_environment("quiet-regimes")
    episode = environment.draw(1000, np.random.default_rng(4004))
    policy = default(environment, 4004)
    for base in (0.1, 5.1):
        table = np.full((1000, 3), base)
        table[150:] += 1e-6 * np.random.default_rng(2).normal(size=(850, 3))
        state = policy.play(policy.initial_state(), episode.contexts, table)
        assert all(abs(c.gains[1]) <= 1000 for c in state.selection.candidates)


# --- the rule ------------------------------------------------------------------------------------------------


def candidate(regimes, symbols, rewards, is_joint=False):
    law = np.full((regimes, 4), 0.25)
    parameters = HmmParameters(np.eye(regimes), law, np.full(regimes, 1 / regimes))
    return Candidate(parameters, np.zeros(3), np.array([0.0, 1.0]), np.array([symbols, rewards], float), is_joint)


def field(*gains, ahead=0.0):
    """One regime, then smoothed and joint candidates of 2, 3, … with these gains; joint's reward gain is ahead."""
    made = [candidate(1, 0.0, 0.0)]
    for regimes, (symbols, rewards) in enumerate(gains, start=2):
        made += [candidate(regimes, symbols, rewards), candidate(regimes, symbols, rewards + ahead, True)]
    return tuple(made)


def choose(candidates, chosen=0, rounds=1000, trial=0, trial_from=NEVER, credit=0.0):
    return selection._choose(candidates, Selection(900, 900, candidates, chosen, trial, trial_from), rounds, credit)


BETWEEN = [(low + high) / 2 for low, high in zip(STAY, ENTER, strict=True)]
ABOVE = [value + 1e-6 for value in ENTER]
BELOW = [value - 1e-6 for value in STAY]


ENOUGH_TO_STAY = [value + 1e-6 for value in STAY]
LOUD = (TRIAL_GAIN + 1.0, BELOW[1])  # symbols speak, rewards do not


@pytest.mark.parametrize(
    ("used", "gains", "trial_from", "expected"),
    [
        (0, ABOVE, NEVER, (2, 0, NEVER)),  # more regimes enter only if both gains are enough
        *((0, gains, NEVER, (0, 0, NEVER)) for gains in ((ABOVE[0], ENTER[1]), (ENTER[0], ABOVE[1]), BETWEEN)),
        *((0, gains, NEVER, (0, 0, NEVER)) for gains in ((1e6, STAY[1]), (STAY[0], 1e6))),
        *((2, gains, NEVER, (2, 0, NEVER)) for gains in (BETWEEN, ENOUGH_TO_STAY)),  # and stay until one gain is gone
        *((2, gains, NEVER, (0, 0, NEVER)) for gains in (BELOW, (1e6, BELOW[1]), (BELOW[0], 1e6))),
        (0, LOUD, 0, (2, TRIAL_LENGTH, 1000 * TRIAL_AGAIN)),  # a trial starts only from one regime
        *((used, LOUD, 0, (0, 0, 0)) for used in (1, 2)),
    ],
)
def test_regimes_enter_stay_and_go_by_both_gains(used, gains, trial_from, expected):
    assert choose(field(gains), used, trial_from=trial_from) == expected


def test_the_first_selection_of_all():
    """One regime is in use so far."""
    for gains, credit, expected in ((ABOVE, 0.0, 2), (BETWEEN, 0.0, 0), ((0.0, 0.0), CREDIT, 2), ((0.0, 0.0), 0.0, 0)):
        assert selection._choose(field(gains), None, 100, credit)[0] == expected


def test_a_number_that_the_campaign_names_has_credit():
    """It is dropped only below STAY - CREDIT and returns above ENTER - CREDIT, in both gains; without trials."""
    stay, enter = np.array(STAY) - CREDIT, np.array(ENTER) - CREDIT
    named = lambda gains, used: choose(field(gains), used, trial_from=0, credit=CREDIT)[0]  # noqa: E731
    assert max(ENTER) < CREDIT  # so that without any evidence it is in use
    for place in (0, 1):
        for limit, used in ((stay, 2), (enter, 0)):
            gains = np.full(2, 1e6)
            gains[place] = limit[place] - 1e-6
            assert named(gains, used) == 0
            gains[place] = limit[place] + 1e-6
            assert named(gains, used) == 2
    between = (stay + enter) / 2
    assert [named(between, used) for used in (0, 2)] == [0, 2]
    # Symbols that would start a trial under "auto" start none: the campaign has had its own.
    loud = (TRIAL_GAIN + 100.0, enter[1] - 1e-6)
    assert choose(field(loud), 0, trial_from=0) == (2, TRIAL_LENGTH, 1000 * TRIAL_AGAIN)
    assert choose(field(loud), 0, trial_from=0, credit=CREDIT) == (0, 0, 0)


def test_what_people_see_of_a_selection():
    candidates = field((7.0, -1.0), (9.0, -2.0), ahead=0.5)
    for chosen in range(5):
        found = Selection(900, 900, candidates, chosen)
        assert found.in_use is candidates[chosen]
        assert found.guarded == (chosen == 0)
        assert [v.in_use for v in found.verdicts] == [place == chosen for place in range(5)]
    assert [verdict[:4] for verdict in found.verdicts] == [
        (1, "smoothed", 0.0, 0.0), (2, "smoothed", 7.0, -1.0), (2, "joint", 7.0, -0.5),
        (3, "smoothed", 9.0, -2.0), (3, "joint", 9.0, -1.5),
    ]  # fmt: skip
    assert not Selection(900, 900, candidates[:1], 0).guarded  # nothing was let go


def test_a_ladder_of_regimes():
    """Each step is judged against the best of the steps below; more than enough are left one step at a time."""
    low, high = np.array(ABOVE), 2 * np.array(ABOVE)
    assert choose(field(low, high))[0] == 4
    assert choose(field(low, low + BETWEEN))[0] == 2
    assert choose(field(low, low + BETWEEN), 4)[0] == 4
    assert choose(field(low, low + BELOW), 4)[0] == 2
    assert choose(field(BETWEEN, np.array(BETWEEN) + BELOW), 4)[0] == 2  # enough for staying: 2 were proven with 3
    assert choose(field(BELOW, high), 0)[0] == 4  # 3 may pay where 2 do not
    assert choose(field(BELOW, BELOW), 4)[0] == 0


def test_joint_statistics_fall_back_to_smoothed_ones_and_return():
    paying = [value + 100.0 for value in ENTER]
    for ahead, used, expected in [
        (0.0, 0, 2),  # without a record joint is preferred
        (-KINDS - 1e-6, 0, 1),
        *((share * KINDS, used, used) for used in (1, 2) for share in (-0.999, -0.5, 0.0, 0.5, 0.999)),
        (-KINDS - 1e-6, 2, 1),
        (KINDS + 1e-6, 1, 2),
    ]:
        assert choose(field(paying, ahead=ahead), used)[0] == expected
    # The record of smoothed statistics for 2 regimes says nothing about those for 3.
    assert choose(field(paying, 2 * np.array(paying), ahead=0.0), 1)[0] == 4


def course(gains_at, rounds, credit=0.0):
    """Regimes in use after each re-estimation, and the rest of the state."""
    judged, trail = None, []
    for t in rounds:
        candidates = field(*gains_at(t))
        if judged is not None:
            judged = judged._replace(candidates=candidates)
        chosen, trial, trial_from = selection._choose(candidates, judged, t, credit)
        judged = Selection(t, t, candidates, chosen, trial, trial_from)
        trail.append((judged.in_use.regimes, trial, trial_from))
    return trail


def test_a_trial_starts_lasts_ends_and_starts_again_much_later():
    """Symbols speak clearly, rewards do not: a few re-estimations of trial, then one regime for long."""
    quiet = lambda t: [(TRIAL_GAIN + 1.0, STAY[1] - 5.0)]  # noqa: E731
    rounds = [100 + 10 * i for i in range(TRIAL_LENGTH + 5)]
    trail = course(quiet, rounds)
    assert [regimes for regimes, _, _ in trail] == [2] * TRIAL_LENGTH + [1] * 5
    assert [trial for _, trial, _ in trail] == [*range(TRIAL_LENGTH, 0, -1), *[0] * 5]
    assert {again for _, _, again in trail} == {100 * TRIAL_AGAIN}
    later = [*rounds, 100 * TRIAL_AGAIN - 1, 100 * TRIAL_AGAIN, 100 * TRIAL_AGAIN + 10]
    trail = course(quiet, later)[-3:]
    assert [regimes for regimes, _, _ in trail] == [1, 2, 2 if TRIAL_LENGTH > 1 else 1]
    assert trail[1][2] == 100 * TRIAL_AGAIN * TRIAL_AGAIN
    faint = course(lambda t: [(TRIAL_GAIN, STAY[1] - 5.0)], rounds)
    assert {regimes for regimes, _, _ in faint} == {1}


def test_a_trial_that_pays_becomes_use_and_what_only_suffices_to_stay_does_not():
    rounds = [100 + 10 * i for i in range(TRIAL_LENGTH + 5)]
    paid = [max(TRIAL_GAIN, ENTER[0]) + 1.0, ABOVE[1]]
    trail = course(lambda t: [(TRIAL_GAIN + 1.0, -9.0) if t == 100 else paid], rounds)
    assert [regimes for regimes, _, _ in trail] == [2] * len(rounds)
    assert [trial for _, trial, _ in trail] == [TRIAL_LENGTH] + [0] * (len(rounds) - 1)
    middling = course(lambda t: [(TRIAL_GAIN + 1.0, BETWEEN[1])], rounds)
    assert [regimes for regimes, _, _ in middling] == [2] * TRIAL_LENGTH + [1] * 5
    # Once proven, what suffices to stay is enough.
    proven = course(lambda t: [paid if t == 100 else (paid[0], BETWEEN[1])], rounds)
    assert {regimes for regimes, _, _ in proven} == {2}


def test_which_numbers_of_regimes_are_tracked():
    """One more than the last that the symbols speak for; what is tracked stays so."""

    def tracked(*symbols, counts=(1, 2, 3, 4)):
        judged = Selection(100, 100, field(*((gain, -50.0) for gain in symbols)), 0) if symbols else None
        return selection._list_regime_counts(counts, judged)

    more = ENTER[0] + 1e-6
    assert tracked() == [2]
    assert tracked(ENTER[0]) == [2]
    assert tracked(more) == [2, 3]
    assert tracked(more, ENTER[0]) == [2, 3]
    assert tracked(-5.0, -5.0) == [2, 3]
    assert tracked(more, 2 * more) == [2, 3, 4]
    assert tracked(more, 2 * more, -9.0) == [2, 3, 4]
    assert tracked(more, counts=(1, 2)) == [2]
    assert tracked(counts=(1, 3)) == tracked(more, counts=(1, 3)) == [3]
    assert tracked(counts=(1,)) == []


# --- what whole campaigns choose -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("credit-card", 2), ("iid", 1)])
@pytest.mark.slow
def test_auto_finds_the_number_of_regimes(name, expected):
    policy, state, _ = played(name, 4001, 4000)
    used = state.selection.in_use
    assert used.regimes == expected
    assert state.belief.size == expected
    assert state.statistics.theta.size == policy.maps[expected].dimension
    assert (state.hmm is None) == (expected == 1)
    assert state.selection.candidates[0].regimes == 1  # always kept warm
    assert [c.joint for c in state.selection.candidates[1:3]] == [False, True]


@pytest.mark.parametrize(("name", "regimes"), [("quiet-regimes", "auto"), ("iid", 2)])
@pytest.mark.slow
def test_the_guard_lets_regimes_go_that_do_not_pay_and_takes_them_back_when_they_do(name, regimes):
    """Rewards that no regime changes, or contexts either; then those of the paper, where it changes both."""
    quiet, loud = (load_environment(n).draw(9000, np.random.default_rng(4001)) for n in (name, "credit-card"))
    policy = default(load_environment("credit-card"), 4001, regimes=regimes)
    state = policy.play(policy.initial_state(), quiet.contexts.rows(0, 4000), quiet.rewards[:4000])
    assert state.selection.in_use.regimes == 1
    assert state.selection.guarded
    assert state.belief.tolist() == [1.0]
    assert state.hmm is None
    assert len(state.selection.candidates) >= 3  # two regimes are still fitted and judged
    if name == "quiet-regimes":
        assert (quiet.contexts.levels == loud.contexts.levels).all()
        assert state.selection.candidates[1].gains[0] > ENTER[0]  # the symbols show them
        assert state.selection.candidates[1].gains[1] < ENTER[1]  # the rewards do not
    else:
        assert state.selection.candidates[1].gains[0] < STAY[0]  # nothing shows them
    forgetful = policy.play(policy.initial_state(), quiet.contexts.rows(0, 1500), quiet.rewards[:1500])
    back = policy.play(forgetful, loud.contexts.rows(1500, 9000), loud.rewards[1500:])
    assert back.selection.in_use.regimes == 2


def test_a_named_number_of_regimes_comes_and_goes_by_its_gains_and_its_credit():
    """Every re-estimation of a campaign whose named regimes are dropped and come back, by the rule in plain words."""
    environment = load_environment("quiet-regimes")
    episode = environment.draw(4000, np.random.default_rng(4003))
    policy = default(environment, 4003, regimes=2)
    state, used, last, changes = policy.initial_state(), (1, False), 0, []
    while state.round < 4000:
        stop = min(max(state.next_estimation, state.round + 1), 4000)
        state = policy.play(state, episode.contexts.rows(state.round, stop), episode.rewards[state.round : stop])
        if state.selection is None or state.selection.round == last:
            continue
        last, found = state.selection.round, state.selection.verdicts
        expected = (1, False)
        if len(found) > 1:
            _, smoothed, together = found
            ahead = together.reward_gain - smoothed.reward_gain
            best = together if ahead > (KINDS if used == (2, False) else -KINDS) else smoothed
            needed = STAY if used[0] == 2 else ENTER
            if best.symbol_gain > needed[0] - CREDIT and best.reward_gain > needed[1] - CREDIT:
                expected = (2, best.statistics == "joint")
        now = state.selection.in_use
        assert (now.regimes, now.joint) == expected
        if expected[0] != used[0]:
            changes.append(expected[0])
        used = expected
    assert changes[:3] == [2, 1, 2]  # at once, dropped, back


def test_regimes_keep_their_names_when_others_come_and_go():
    """Whatever people call regime 1 and 2 stays with them: a third comes after them, and a return finds them again."""
    environment = load_environment("three-regimes")
    episode = environment.draw(6000, np.random.default_rng(8))
    policy = default(environment, 8)
    state, last, own, changes = policy.initial_state(), None, {}, []
    while state.round < 3800:
        stop = max(state.next_estimation, state.round + 1)
        state = policy.play(state, episode.contexts.rows(state.round, stop), episode.rewards[state.round : stop])
        if state.hmm is None:  # one regime has no name
            last = None
            continue
        now = state.belief.size
        if last is not None:
            before = last if now >= last.initial.size else own[now]
            assert spectral.align(state.hmm, before)[1].tolist() == list(range(now))
            changes += [now] if now != last.initial.size else []
        last = state.hmm
        own = {c.regimes: c.hmm for c in state.selection.candidates if c.joint}
    assert changes == [3, 2, 3, 2, 3]


def test_a_fresh_start_that_wins_takes_the_names_of_the_old_joint_fit(monkeypatch):
    """R6: its regimes are named as they happen to come, then as those of the old joint fit; smoothed ones too."""
    policy, state, _ = played("credit-card", 4002, 900)
    features, order = policy.maps[2], np.array([1, 0])
    data = joint.gather(policy.maps[1], state.history, 900, state.arrived)
    arguments, used = (policy.maps, policy.ridge, policy.config.seed, data, False), state.selection.in_use
    _, plain = candidates.fit_candidates(*arguments, state.selection.candidates[:2], used, [2])
    # The old joint fit: regimes named the other way round, and a θ̂ so poor that going on from it loses.
    monkeypatch.setattr(candidates, "ITERATIONS", 0)
    poor = plain[2]._replace(hmm=plain[2].hmm.permute(order), theta=np.full(features.dimension, 1e3))
    fitted, renamed = candidates.fit_candidates(*arguments, (*state.selection.candidates[:2], poor), used, [2])
    fits = [each.fit for each in fitted]
    for one, two in zip(plain[1:], renamed[1:], strict=True):
        np.testing.assert_allclose(two.hmm.emission, one.hmm.emission[order], atol=1e-6)
    # θ̂ and the posterior go with the names.
    columns = joint.make_design(features, data.contexts, data.actions)
    statistics = joint.compute_statistics(data, columns, policy.ridge, fits[2].posterior, data.symbols.size)
    np.testing.assert_allclose(renamed[2].theta, statistics.theta, rtol=1e-9, atol=1e-9)
    assert not np.allclose(renamed[2].theta, plain[2].theta)
    kept = hmm.compute_expectations(renamed[2].hmm, data.symbols).beliefs
    assert np.abs(fits[2].posterior - kept).mean() < np.abs(fits[2].posterior[:, order] - kept).mean()


def test_too_few_rounds_to_judge_by_leave_everything_as_it_is():
    policy, state, _ = played("credit-card", 4001, 300)
    assert policy.estimate(state._replace(selection=state.selection._replace(round=299))) is None
    due = state._replace(selection=state.selection._replace(round=299), next_estimation=301)
    after = policy.reestimate(due)
    assert after.next_estimation > 301
    assert after._replace(next_estimation=301) == due


# --- the whole default policy: the same bits in every way ----------------------------------------------------

COUNT = 700


@pytest.fixture(scope="module")
def run():
    environment = load_environment("credit-card")
    return default(environment, 4004), environment, environment.draw(COUNT, np.random.default_rng(4004))


@pytest.fixture
def _rule_in_turn(monkeypatch):
    """Choose every candidate in turn, whatever the constants are tuned to."""
    monkeypatch.setattr(selection, "_choose", lambda c, judged, rounds, credit: (rounds // 30 % len(c), 0, 0))


@pytest.mark.slow
@pytest.mark.usefixtures("_rule_in_turn")
def test_play_equals_one_by_one(run):
    """R15, to the last byte, through many re-estimations and changes of the number of regimes."""
    policy, environment, episode = run
    state, versions, regimes = policy.initial_state(), set(), set()
    for t in range(COUNT):
        state, decision = policy.decide(state, environment.describe_context(episode, t))
        state = policy.reward(state, t + 1, episode.rewards[t, policy.config.actions.index(decision.action)])
        versions.add(decision.model_version)
        regimes.add(len(decision.belief))
    assert len(regimes) > 1
    assert max(versions) > COUNT // policy.config.stage_length + 5
    whole = policy.play(policy.initial_state(), episode.contexts, episode.rewards)
    assert encode(whole) == encode(state)


@pytest.mark.usefixtures("_rule_in_turn")
@pytest.mark.slow
def test_batch_and_restart_equal_one_by_one_with_late_and_missing_rewards(run):
    policy, environment, episode = run
    generator = np.random.default_rng(5)
    due = {}  # a tenth never come, the others 25 rounds late on average
    for t in range(1, COUNT + 1):
        if generator.random() > 0.1:
            due.setdefault(t + int(generator.geometric(0.04)), []).append(t)
    one = many = again = policy.initial_state()
    done, actions = 0, []
    while done < COUNT:
        stop = min(done + int(generator.integers(1, 40)), COUNT)
        contexts = [environment.describe_context(episode, t) for t in range(done, stop)]
        singles = []
        for context in contexts:
            one, decision = policy.decide(one, context)
            singles.append(decision)
        many, batch = policy.decide_batch(many, [Request(context) for context in contexts])
        again, restarted = policy.decide_batch(decode(encode(again)), [Request(context) for context in contexts])
        assert batch == singles == restarted
        actions += [policy.config.actions.index(d.action) for d in singles]
        for t in [t for when in range(done + 1, stop + 1) for t in due.pop(when, ())]:
            reward = episode.rewards[t - 1, actions[t - 1]]
            one, many, again = (policy.reward(s, t, reward) for s in (one, many, again))
        done = stop
    assert encode(one) == encode(many) == encode(again)
    assert one.arrived < 0.92 * COUNT
    assert len(one.selection.candidates) >= 3
    assert one.selection.round > 500


# --- estimates published later (R16) -------------------------------------------------------------------------


@pytest.fixture(params=[0, 1, 2])
def interrupted(run, request, monkeypatch):
    """A state, the estimate made from it, and a later state with more rounds and rewards of old and new rounds.

    In use is the candidate with one regime, smoothed or joint statistics with two, whatever the rule would say.
    """
    monkeypatch.setattr(selection, "_choose", lambda c, *_: (min(request.param, len(c) - 1), 0, 0))
    policy, environment, episode = run
    state = policy.play(policy.initial_state(), episode.contexts.rows(0, 500), episode.rewards[:500])
    state = state._replace(next_estimation=NEVER)
    waiting = []
    for t in range(500, 560):
        state, decision = policy.decide(state, environment.describe_context(episode, t))
        waiting.append((t + 1, episode.rewards[t, policy.config.actions.index(decision.action)]))
    early = state
    for t, reward in waiting[:40:2]:
        state = policy.reward(state, t, reward)
    for t in range(560, 600):
        state, decision = policy.decide(state, environment.describe_context(episode, t))
        if t % 3:
            state = policy.reward(state, t + 1, episode.rewards[t, policy.config.actions.index(decision.action)])
    return early, policy.estimate(early), state


def test_an_estimate_of_an_earlier_state_is_published_with_all_rewards(run, interrupted):
    policy, _, _ = run
    early, found, late = interrupted
    assert found.posterior.shape[0] == early.round == 560
    published = policy.publish(late, found)
    model = found.selection.in_use
    assert published.selection == found.selection
    assert (published.round, published.arrived, published.folded) == (600, late.arrived, late.arrived)
    assert published.model_version == late.model_version + 1
    features, history = policy.maps[model.regimes], late.history
    symbols = history.contexts.symbols[:600]
    filtered = hmm.filter_history(model.hmm, symbols).beliefs
    np.testing.assert_allclose(published.belief, filtered[-1], rtol=1e-12)
    record = published.history.beliefs[:600, : model.regimes]
    np.testing.assert_allclose(record[:560], found.posterior, rtol=1e-14)
    np.testing.assert_allclose(record[560:], filtered[560:], rtol=1e-14)
    rows = history.get_arrivals(0, late.arrived)
    rewards = history.rewards[rows]
    assert published.statistics.units[:2] == pytest.approx([rewards.mean(), model.units[1]], rel=1e-12)
    # All rewards, those of the fit by regime if it is joint; test_joint.py has the sums written out.
    data = joint.gather(features, history, 600, late.arrived)
    design = joint.make_design(features, data.contexts, data.actions)
    expected = joint.compute_statistics(data, design, policy.ridge, record, 560 if model.joint else 0)
    np.testing.assert_allclose(published.statistics.gram, expected.gram, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(published.statistics.moment, expected.moment, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(published.statistics.theta, expected.theta, rtol=1e-7, atol=1e-9)


def test_an_estimate_of_a_later_state_or_of_other_regimes_is_refused(run, interrupted):
    policy, environment, episode = run
    _, found, _ = interrupted
    start = policy.play(policy.initial_state(), episode.contexts.rows(0, 100), episode.rewards[:100])
    for wrong in (found, environment.hmm):  # plain parameters are no joint statistics
        with pytest.raises(ArgumentError, match="estimate"):
            policy.publish(start, wrong)
    if found.selection.in_use.regimes > 1:
        alone = default(environment, 4004, regimes=1)
        state = alone.play(alone.initial_state(), episode.contexts, episode.rewards)
        with pytest.raises(ArgumentError, match="estimate"):
            alone.publish(state, found)


@pytest.mark.parametrize("size", [None, 7, 10])
def test_every_reward_is_judged_once_or_was_in_the_first_fit(run, monkeypatch, size):
    """Late rewards, and those of a period that still went on: judged in the first re-estimation that can know better.

    `size` rounds a period: a multiple of the stage's length or not.
    """
    _, environment, episode = run
    policy = default(environment, 4004, clock=size and {"period_seconds": float(size)})
    score, judged = selection._score, []

    def watched(features, history, rounds, start, fresh, model):
        if model.regimes == 1:
            judged.append((rounds, start, fresh.rows.tolist()))
        return score(features, history, rounds, start, fresh, model)

    monkeypatch.setattr(selection, "_score", watched)
    generator, state, due, first, last = np.random.default_rng(6), policy.initial_state(), {}, None, None
    fitted, arrived, waited = set(), 0, 0
    for t in range(1, COUNT + 1):
        context = environment.describe_context(episode, t - 1)
        state, decision = policy.decide(state, context, at=float(t - 1) if size else None)
        if state.selection is not last:
            last = state.selection
            order = state.history.get_arrival_order(last.arrived).tolist()
            if len(last.candidates) > 1:
                first = first or (last.round, last.arrived)
                known = {row for row in order if row < last.round}
                if judged:
                    # What was judged is what this fit knows and the last did not.
                    assert sorted(known - fitted) == judged[-1][2]
                    waited += sum(row >= judged[-1][1] for row in order[:arrived])
                fitted, arrived = known, last.arrived
            else:
                assert not judged
        if generator.random() > 0.2:
            reward = episode.rewards[t - 1, policy.config.actions.index(decision.action)]
            delay = 0 if generator.random() < 0.6 else int(generator.geometric(0.03))
            due.setdefault(t + delay, []).append((t, reward))
        for old, reward in due.pop(t, ()):
            state = policy.reward(state, old, reward)
    rows = [row for _, _, each in judged for row in each]
    assert len(judged) >= 3
    assert len(rows) == len(set(rows))
    order = state.history.get_arrival_order(last.arrived).tolist()
    in_first_fit = {row for row in order[: first[1]] if row < first[0]}
    assert in_first_fit | set(rows) == {row for row in order if row < last.round}
    assert not in_first_fit & set(rows)
    assert all(start < rounds for rounds, start, _ in judged)
    assert (waited > 0) == (size is not None)  # rewards that were there before but had to wait for their period's end


def test_candidates_of_another_campaign_are_refused(run):
    """The kernels check no bounds: a state from a file may hold candidates that do not fit the campaign."""
    policy, environment, episode = run
    state = policy.play(policy.initial_state(), episode.contexts.rows(0, 300), episode.rewards[:300])
    first, two, *others = state.selection.candidates
    assert policy.estimate(state) is not None

    def law(regimes, symbols):
        return HmmParameters(np.eye(regimes), np.full((regimes, symbols), 1 / symbols), np.full(regimes, 1 / regimes))

    symbols = two.hmm.emission.shape[1]
    thetas = two.theta[:-1], np.append(two.theta, 0.0), two.theta[:, None]
    for wrong in (*({"theta": theta} for theta in thetas), {"hmm": law(2, symbols + 1)}, {"hmm": law(7, symbols)}):
        damaged = state.selection._replace(candidates=(first, two._replace(**wrong), *others))
        with pytest.raises(ArgumentError) as caught:
            policy.estimate(state._replace(selection=damaged))
        assert caught.value.problems[0].field == "state"
    alone = default(environment, 4004, regimes=1)
    fewer = alone.play(alone.initial_state(), episode.contexts.rows(0, 300), episode.rewards[:300])
    with pytest.raises(ArgumentError):
        alone.estimate(fewer._replace(selection=state.selection))
