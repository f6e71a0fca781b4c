"""Online EM against enumeration and against smoothing by hand, and what its estimates promise."""

from itertools import pairwise, product

import numpy as np
import pytest

from policy import CampaignConfig, ConfigError, StagedPolicy, decode, em, encode, hmm, kernels, online
from policy.changes import adapt_state, add_config_level, roll_back
from policy.codec import decode_estimate, encode_estimate
from policy.errors import ArgumentError
from policy.hmm import HmmParameters
from policy.online import OnlineStatistics
from tests.policy.test_em import random_parameters

MISSING = -1
ONLINE = {"estimator": "online_em", "start_round": 30, "every": 7}


def follow(parameters, steps, symbols, exponent=1.0):
    """The statistics under frozen parameters."""
    regimes, count = parameters.emission.shape
    moved, emitted = np.zeros((regimes,) * 3), np.zeros((regimes, count, regimes))
    belief, counts = parameters.initial.copy(), np.zeros(3, np.int64)
    kernels.online_em(
        parameters.transition.copy(), parameters.emission.copy(), np.array(steps, np.int16),
        np.array(symbols, np.int16), exponent, 0.0, False, moved, emitted, belief, counts,
    )  # fmt: skip
    return OnlineStatistics(moved, emitted, belief, parameters.initial, counts)


def weigh(count, exponent):
    """What each of `count` events weighs in the end, if the n-th enters with n^-exponent and the others make room."""
    weights = np.zeros(count)
    for n in range(count):
        weights *= 1.0 - (n + 1.0) ** -exponent
        weights[n] = (n + 1.0) ** -exponent
    return weights


def enumerate_shares(parameters, steps, symbols, exponent):
    """The weighted moves and emissions in expectation over all regime paths, and the last regime's law."""
    regimes, count = parameters.emission.shape
    moved, emitted, last = np.zeros((regimes, regimes)), np.zeros((regimes, count)), np.zeros(regimes)
    move_weights = weigh(sum(steps), exponent)
    symbol_weights = weigh(sum(symbol >= 0 for symbol in symbols), exponent)
    total = 0.0
    for path in product(range(regimes), repeat=sum(steps) + 1):
        probability = parameters.initial[path[0]]
        for g, h in pairwise(path):
            probability *= parameters.transition[g, h]
        place, seen = 0, []
        for step, symbol in zip(steps, symbols, strict=True):
            place += step
            if symbol >= 0:
                probability *= parameters.emission[path[place], symbol]
                seen.append((path[place], symbol))
        total += probability
        last[path[-1]] += probability
        for weight, g, h in zip(move_weights, path, path[1:], strict=False):
            moved[g, h] += weight * probability
        for weight, event in zip(symbol_weights, seen, strict=True):
            emitted[event] += weight * probability
    return moved / total, emitted / total, last / total


@pytest.mark.parametrize("exponent", [1.0, 0.8, 0.6])
@pytest.mark.parametrize(
    ("regimes", "steps", "symbols"),
    [
        (2, [0, 1, 1, 1, 1, 1, 1, 1], [0, 2, 1, 1, 0, 2, 2, 0]),
        (3, [0, 1, 1, 1, 1, 1], [0, 2, MISSING, 1, 0, 2]),
        (2, [0, 0, 2, 1, 0, 3, 1], [1, 2, 0, MISSING, 2, 1, 1]),  # with a clock
        (2, [1, 1, 0], [MISSING, 0, 1]),
    ],
)
def test_with_frozen_parameters_it_is_the_smoother(regimes, steps, symbols, exponent):
    """Whatever later symbols say about earlier regimes is in the recursion, although it only goes forward."""
    parameters = random_parameters(regimes, 3, np.random.default_rng(regimes))
    found = follow(parameters, steps, symbols, exponent)
    moved, emitted, last = enumerate_shares(parameters, steps, symbols, exponent)
    assert found.belief == pytest.approx(last, abs=1e-13)
    assert found.moved @ found.belief == pytest.approx(moved, abs=1e-13)
    assert found.emitted @ found.belief == pytest.approx(emitted, abs=1e-13)
    assert found.counts.tolist() == [sum(steps), sum(symbol >= 0 for symbol in symbols), 0]


def test_the_first_batch_has_the_expectations_of_forward_backward():
    parameters = random_parameters(3, 8, np.random.default_rng(1))
    symbols = hmm.sample(parameters, 400, np.random.default_rng(2))[1]
    symbols[::11] = MISSING
    steps = hmm.check_steps(None, symbols.size)
    begun = online.start(parameters, steps, symbols)
    smoothed = hmm.compute_expectations(parameters, symbols)
    assert 399 * (begun.moved @ begun.belief) == pytest.approx(smoothed.transitions, rel=1e-9)
    assert begun.counts[1] * (begun.emitted @ begun.belief) == pytest.approx(smoothed.emissions, rel=1e-9)
    implied = em.maximise(smoothed.transitions, smoothed.emissions, em.SMOOTHING, parameters)
    for mine, theirs in zip(online.maximise(begun), implied, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)


def test_parts_give_the_bits_of_the_whole():
    """R15: however the rounds are cut, and whatever was written in between; no statistics change in place."""
    parameters = random_parameters(3, 6, np.random.default_rng(3))
    symbols = hmm.sample(parameters, 700, np.random.default_rng(4))[1]
    steps = hmm.check_steps(None, symbols.size)
    begun = online.start(parameters, steps[:100], symbols[:100])
    kept = encode_estimate(begun)
    whole = online.advance(begun, steps[100:], symbols[100:])
    part = begun
    for first, last in ((100, 101), (101, 350), (350, 350), (350, 700)):
        part = decode_estimate(encode_estimate(online.advance(part, steps[first:last], symbols[first:last])))
    assert encode_estimate(part) == encode_estimate(whole)
    assert encode_estimate(begun) == kept
    assert whole.rounds == 700


def test_it_converges_and_forgets_a_wrong_start():
    """The statistics of a bad first batch weigh ever less."""
    truth = HmmParameters.check([[0.95, 0.05], [0.1, 0.9]], [[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.2, 0.5]], [0.5, 0.5])
    symbols = hmm.sample(truth, 60_000, np.random.default_rng(5))[1]
    steps = hmm.check_steps(None, symbols.size)
    wrong = HmmParameters.check([[0.6, 0.4], [0.4, 0.6]], [[0.4, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.4]], [0.5, 0.5])
    part, errors = online.start(wrong, steps[:50], symbols[:50]), []
    for first, last in ((50, 2_000), (2_000, 60_000)):
        part = online.advance(part, steps[first:last], symbols[first:last])
        found = online.maximise(part)
        gaps = (np.abs(found.transition - truth.transition).max(), np.abs(found.emission - truth.emission).max())
        errors.append(max(gaps))
    assert errors[1] < 0.03 < errors[0]


def test_renaming_the_regimes_renames_everything():
    parameters = random_parameters(3, 5, np.random.default_rng(6))
    symbols = hmm.sample(parameters, 300, np.random.default_rng(7))[1]
    steps = hmm.check_steps(None, symbols.size)
    begun, order = online.start(parameters, steps[:200], symbols[:200]), np.array([2, 0, 1])
    renamed = online.advance(begun.permute(order), steps[200:], symbols[200:])
    straight = online.advance(begun, steps[200:], symbols[200:]).permute(order)
    for mine, theirs in zip(renamed, straight, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)


# --- in a campaign ----------------------------------------------------------------------------------------------------


@pytest.fixture
def policy(small):
    return StagedPolicy(small(beliefs=ONLINE, regimes=2))


def decide_all(policy, state, contexts):
    for context in contexts:
        state, _ = policy.decide(state, context)
    return state


def test_estimates_take_in_the_rounds_since_the_last_one(policy, small_contexts):
    """R3: the first from the batch before `start_round`; R5: the belief comes from the last contexts."""
    state = decide_all(policy, policy.initial_state(), small_contexts(29))
    assert (state.online, state.hmm) == (None, None)
    assert set(state.belief) == {0.5}
    state = decide_all(policy, state, small_contexts(30)[29:])
    assert state.online.rounds == 29
    state = decide_all(policy, state, small_contexts(52)[30:])
    assert state.online.rounds == 50  # before round 51, the fourth estimate
    symbols, steps = state.history.contexts.symbols, state.history.steps
    fitted = em.estimate(symbols[:29], 2, 9, policy.config.seed)
    expected = online.advance(online.start(fitted, steps[:29], symbols[:29]), steps[29:50], symbols[29:50])
    assert encode_estimate(state.online) == encode_estimate(expected)
    assert encode_estimate(state.hmm) == encode_estimate(online.maximise(expected))
    filtered = hmm.filter_recent(state.hmm, symbols[:50], steps[:50])[-1]
    after = np.empty((2, 2))
    kernels.belief_path(state.hmm.transition, state.hmm.emission, filtered, steps[50:52], symbols[50:52], after)
    assert state.belief.tolist() == after[-1].tolist()


def test_the_numbering_of_the_regimes_stays(policy, small_contexts):
    """R6: an estimate with its regimes in another order is put in force in the order of the one before."""
    state = decide_all(policy, policy.initial_state(), small_contexts(40))
    estimate = policy.estimate(state)
    straight = policy.publish(state, estimate)
    swapped = policy.publish(state, estimate.permute(np.array([1, 0])))
    for mine, theirs in zip((*swapped.online, *swapped.hmm), (*straight.online, *straight.hmm), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)


def test_a_rollback_takes_up_the_statistics_of_its_model(policy, small_contexts):
    """R21: the next estimate goes on from there, over all rounds since."""
    contexts = small_contexts(70)
    past = decide_all(policy, policy.initial_state(), contexts[:40])
    state = decide_all(policy, past, contexts[40:66])
    back = roll_back(policy, state, policy, past)
    assert encode_estimate(back.online) == encode_estimate(past.online)
    again = policy.reestimate(back)
    assert again.online.rounds == back.round
    for mine, theirs in zip(again.online, policy.reestimate(state).online, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)


def test_a_new_level_of_a_signal_widens_the_statistics(policy, small_contexts):
    """R9: old symbols keep their statistics, new ones have none yet."""
    state = decide_all(policy, policy.initial_state(), small_contexts(40))
    wider = StagedPolicy(add_config_level(policy.config, "risk", "extreme"))
    after = adapt_state(policy, wider, state)
    assert after.online.emitted.shape == (2, 12, 2)
    assert after.online.emitted[:, :9].tolist() == state.online.emitted.tolist()
    assert not after.online.emitted[:, 9:].any()
    contexts = [{**context, "risk": "extreme"} for context in small_contexts(60, seed=2)]
    after = decide_all(wider, after, contexts)
    assert after.hmm.emission[:, 9:].sum() > 0.5


def test_states_without_statistics_and_damaged_ones(policy, small_contexts):
    state = decide_all(policy, policy.initial_state(), small_contexts(40))
    assert encode_estimate(decode(encode(state)).online) == encode_estimate(state.online)
    assert decode(encode(policy.initial_state())).online is None
    late = state.online._replace(counts=state.online.counts + 100)
    small = state.online._replace(emitted=state.online.emitted[:, :4].copy())
    for wrong in (late, small):
        with pytest.raises(ArgumentError):
            policy.estimate(state._replace(online=wrong))
        with pytest.raises(ArgumentError):
            policy.publish(state, wrong)
    with pytest.raises(ArgumentError):
        policy.publish(state, state.hmm)


def test_an_estimate_costs_the_same_at_any_age(policy, small_contexts):
    """After the first batch, only the rounds since the last estimate count."""
    sizes = []
    for rounds in (36, 134):
        state = decide_all(policy, policy.initial_state(), small_contexts(rounds))
        sizes.append(policy.estimator.get_size(state))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize(
    ("beliefs", "field"),
    [({"every": {"factor": 1.1}}, "beliefs.every"), ({"statistics": "joint"}, "beliefs.statistics")],
)
def test_settings_that_make_no_sense_are_refused(small, beliefs, field):
    with pytest.raises(ConfigError) as caught:
        small(beliefs={"estimator": "online_em", **beliefs})
    assert [problem.field for problem in caught.value.problems] == [field]


def test_defaults(small):
    config = small(beliefs={"estimator": "online_em"})
    assert isinstance(config, CampaignConfig)
    assert (config.regimes, config.bonus.form) == (2, "elliptical")
    assert (config.beliefs.start_round, config.beliefs.every, config.beliefs.statistics) == (250, 37, "as_decided")
