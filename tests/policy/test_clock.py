"""The clock: filter, smoother, EM and joint EM with any number of steps between rounds; times of requests (R27)."""

import math

import numpy as np
import pytest

from policy import CampaignConfig, ContextError, Request, StagedPolicy, decode, em, encode, hmm, selection
from policy.clock import LONGEST_GAP
from policy.encoding import Contexts
from policy.hmm import HmmParameters
from tests.policy.test_hmm import random_parameters

MISSING = -1


def problem(regimes, count, seed, longest=3):
    """Symbols, some missing, and steps between them: none, one or more."""
    generator = np.random.default_rng([regimes, count, seed])
    parameters = random_parameters(regimes, 4, generator)
    steps = generator.integers(0, longest + 1, count)
    steps[0] = 0
    return parameters, generator.integers(-1, 4, count), steps


def spread_out(symbols, steps):
    """By hand: a gap of k steps is k-1 rows that saw nothing; only rows of one period stay at step 0."""
    rows, moves = [], []
    for symbol, step in zip(symbols, steps, strict=True):
        rows += [MISSING] * (step - 1) + [symbol]
        moves += [1] * (step - 1) + [min(step, 1)]
    return np.array(rows), np.array(moves)


def test_written_out_and_em_on_it():
    """EM with gaps is EM on the sequence with its missing observations in it."""
    _, symbols, steps = problem(3, 300, 1, 4)
    rows, moves = spread_out(symbols, steps)
    full = hmm.spell_out_gaps(symbols.astype(np.int16), steps.astype(np.int16))
    assert full.symbols.tolist() == rows.tolist()
    assert full.steps.tolist() == moves.tolist()
    assert full.symbols[full.rows].tolist() == symbols.tolist()
    assert full.rows.tolist() == (np.cumsum(np.maximum(steps, 1)) - 1).tolist()
    start, _, _ = problem(3, 1, 2)
    one, two = em.fit(symbols, start, 8, smoothing=0.1, steps=steps), em.fit(rows, start, 8, smoothing=0.1, steps=moves)
    assert one.objective == two.objective
    assert (np.diff(one.objective) > 0).all()
    assert all((a == b).all() for a, b in zip(one.parameters, two.parameters, strict=True))
    # Without a clock nothing changes: every round a step.
    plain = np.minimum(np.arange(300), 1)
    assert em.fit(symbols, start, 4).objective == em.fit(symbols, start, 4, steps=plain).objective


def test_rounds_of_one_period_share_a_regime():
    """Twenty looks at one regime: two chains of 400 periods are learnt that one look each would not show."""
    truth = HmmParameters.check([[0.9, 0.1], [0.2, 0.8]], [[0.55, 0.45], [0.45, 0.55]], [0.5, 0.5])
    generator = np.random.default_rng(5)
    regimes, _ = hmm.sample(truth, 400, generator)
    symbols = (generator.random((400, 20)) < truth.emission[regimes, 1][:, None]).astype(np.int16).ravel()
    steps = np.zeros(8000, np.int16)
    steps[20::20] = 1
    beliefs = hmm.compute_expectations(truth, symbols, steps).beliefs
    assert (beliefs.reshape(400, 20, 2) == beliefs.reshape(400, 20, 2)[:, :1]).all()
    found = em.estimate(symbols, 2, 2, 4001, steps=steps)
    order = np.argsort(found.emission[:, 1])
    assert np.abs(found.permute(order).emission - truth.emission).max() < 0.03
    assert np.abs(found.permute(order).transition - truth.transition).max() < 0.12


# --- requests ------------------------------------------------------------------------------------------------

PERIOD = 60.0


@pytest.fixture(scope="module")
def clocked(small):
    """The small campaign on a clock of one minute, known parameters."""

    def build(**changes):
        return StagedPolicy(small(clock={"period_seconds": PERIOD}, **changes))

    return build


def test_steps_are_the_periods_that_passed(clocked, small_contexts, given):
    """R27: going back counts as the last; gaps are capped; rounds of one period take no step."""
    times = [-61.0, -60.0, 0, 59.9, 60, 61, 3 * 60, 2 * 60, 170.0, 4 * 60, 1e6, 1e6 + 60, np.float32(1e6 + 120), 5]
    steps = [0, 1, 1, 0, 1, 0, 2, 0, 0, 1, LONGEST_GAP, 1, 1, 0]
    policy = clocked(beliefs=given)
    contexts = small_contexts(len(times))
    state = policy.initial_state()
    law, beliefs = np.array(given["parameters"]["initial"]), []
    m, e = (np.array(given["parameters"][name]) for name in ("transition", "emission"))
    symbols = policy.features.encode(contexts).symbols
    for context, at, step, symbol in zip(contexts, times, steps, symbols, strict=True):
        preview = policy.preview(state, context, at=at)
        state, decision = policy.decide(state, context, at=at)
        assert preview == decision
        law = law @ np.linalg.matrix_power(m, step) * e[:, symbol]
        law /= law.sum()
        np.testing.assert_allclose(decision.belief, law, rtol=1e-10)
        beliefs.append(decision.belief)
    assert state.history.steps[: len(times)].tolist() == steps
    assert state.period == (1e6 + 120) // 60
    batch, decisions = policy.decide_batch(
        policy.initial_state(), [Request(c, at=at) for c, at in zip(contexts, times, strict=True)]
    )
    assert [d.belief for d in decisions] == beliefs
    assert encode(batch) == encode(state)


@pytest.mark.parametrize(
    "at", [None, math.nan, math.inf, "12", b"12", True, np.True_, [5.0], 1e300, 10**400, 1j, 1.001e12, -1.001e12]
)
def test_a_time_that_is_none_is_refused_by_name(clocked, small_contexts, given, at):
    policy = clocked(beliefs=given)
    contexts = small_contexts(3)
    state, _ = policy.decide(policy.initial_state(), contexts[0], at=5.0)
    before, full = encode(state), policy.reward(state, 1, 0.5)
    rows = policy.features.encode(contexts[1:])
    for field, call in (
        ("at", lambda: policy.decide(state, contexts[1], at=at)),
        ("at", lambda: policy.preview(state, contexts[1], at=at)),
        (
            "items[1].at",
            lambda: policy.decide_batch(state, [Request(contexts[1], at=70.0), Request(contexts[2], at=at)]),
        ),
        ("at[1]", lambda: policy.play(full, rows, np.ones((2, 3)), at=[70.0, at])),
        ("at[0]", lambda: policy.play(full, rows, np.ones((2, 3)))),
    ):
        with pytest.raises(ContextError) as caught:
            call()
        problem = caught.value.problems[0]
        assert (problem.field, "clock" in problem.allowed) == (field, True)
    assert encode(state) == before


def test_without_a_clock_times_are_ignored(small, small_contexts, given):
    policy = StagedPolicy(small(beliefs=given))
    contexts = small_contexts(5)
    plain = timed = policy.initial_state()
    for t, context in enumerate(contexts):
        plain, one = policy.decide(plain, context)
        timed, two = policy.decide(timed, context, at=1000.0 * t)
        assert one == two
    assert encode(plain) == encode(timed)


def irregular_times(count, seed):
    """Bursts inside a period, single periods, gaps beyond the cap, and clocks that go back."""
    generator = np.random.default_rng(seed)
    jumps = generator.choice([0.0, 20.0, 60.0, 200.0, 60.0 * 50, -90.0], count, p=[0.3, 0.3, 0.25, 0.1, 0.02, 0.03])
    return np.cumsum(jumps).tolist()


@pytest.mark.parametrize("statistics", ["joint", "smoothed", "refiltered", "as_decided"])
def test_one_by_one_batch_play_and_restart_are_the_same(clocked, small_contexts, play, statistics):
    """R15 with a clock, to the last byte, through re-estimations."""
    schedule = (
        {"start_round": 21, "every": {"factor": 1.3}} if statistics == "joint" else {"start_round": 40, "every": 45}
    )
    policy, count = clocked(beliefs={"estimator": "em", "statistics": statistics, **schedule}), 330
    contexts, times = small_contexts(count), irregular_times(count, 1)
    table = np.random.default_rng(2).normal(size=(count, 3))
    one = again = policy.initial_state()
    singles = []
    for t, context in enumerate(contexts):
        again = decode(encode(again)) if t % 20 == 0 else again
        one, decision = policy.decide(one, context, at=times[t])
        again, twin = policy.decide(again, context, at=times[t])
        assert decision == twin
        singles.append(decision)
        place = policy.config.actions.index(decision.action)
        one, again = (policy.reward(s, t + 1, table[t, place]) for s in (one, again))
    assert encode(one) == encode(again)
    encoded, state = policy.features.encode(contexts), policy.initial_state()
    for start, stop in ((0, 7), (7, 150), (150, count)):
        state = policy.play(state, encoded.rows(start, stop), table[start:stop], at=times[start:stop])
    assert encode(state) == encode(one)
    # Batches of one stage: rewards count from the next update on, so they may be handed over after it.
    batched, done = policy.initial_state(), 0
    length = policy.config.stage_length
    while done < count:
        part = [Request(contexts[t], at=times[t]) for t in range(done, min(done + length, count))]
        batched, decisions = policy.decide_batch(batched, part)
        assert decisions == singles[done : done + length]
        for decision in decisions:
            place = policy.config.actions.index(decision.action)
            batched = policy.reward(batched, decision.round, table[decision.round - 1, place])
        done += length
    assert encode(batched) == encode(one)
    assert (one.hmm is not None) or one.selection is not None


# --- learning on a clock -------------------------------------------------------------------------------------


def campaign_by_period(periods, size, seed, apart=0.5):
    """A regime a period shows weakly in each context and decides which of two actions pays."""
    generator = np.random.default_rng(seed)
    truth = HmmParameters.check([[0.9, 0.1], [0.1, 0.9]], [[0.55, 0.3, 0.15], [0.15, 0.3, 0.55]], [0.5, 0.5])
    regimes = np.repeat(hmm.sample(truth, periods, generator)[0], size)
    symbols = np.array([generator.choice(3, p=truth.emission[h]) for h in regimes], np.int16)
    contexts = Contexts(symbols[:, None].copy(), np.empty((symbols.size, 0)), symbols)
    means = np.stack([np.zeros(symbols.size), np.where(regimes == 0, apart, -apart)], axis=1)
    rewards = means + 0.5 * generator.normal(size=means.shape)
    times = (np.repeat(np.arange(periods), size) * PERIOD + np.tile(np.linspace(0, 59, size), periods)).tolist()
    return truth, regimes, contexts, rewards, times


def by_period(seed, **changes):
    return StagedPolicy(
        CampaignConfig(
            name="weeks", actions=["none", "call"], variables=[{"name": "mood", "levels": ["low", "mid", "high"]}],
            clock={"period_seconds": PERIOD}, seed=seed, **changes,
        )
    )  # fmt: skip


def test_regimes_that_change_with_time_are_learnt():
    truth, regimes, contexts, rewards, times = campaign_by_period(150, 20, 4001)
    policy, count = by_period(4001), 3000
    state = policy.play(policy.initial_state(), contexts, rewards, at=times)
    chosen = state.selection
    assert chosen.in_use.regimes == 2
    assert chosen.round % 20 == 0  # fits and hold-outs are whole periods
    order = np.argsort(-chosen.in_use.hmm.emission[:, 0])
    found = chosen.in_use.hmm.permute(order)
    assert np.abs(found.emission - truth.emission).max() < 0.05
    assert np.abs(found.transition - truth.transition).max() < 0.12
    late = slice(2000, count)
    right = np.where(regimes[late] == 0, 1, 0) == state.history.actions[late]
    assert right.mean() > 0.85
    # The rounds of a period are one look at the chain: its belief of record is one and the same where it was fitted.
    record = state.history.beliefs[: chosen.round].reshape(-1, 20, policy.features.regimes)
    assert (record == record[:, :1]).all()


def test_hold_outs_are_whole_periods_and_enough_of_them():
    """Every fit with regimes ends at a period's start, LEAST_PERIODS after the one before; else nothing is judged.

    Before there are periods enough for regimes, one regime is fitted to all rounds whenever a re-estimation is due.
    """
    _, _, contexts, rewards, times = campaign_by_period(60, 20, 4003)
    policy = by_period(4003, warm_start_rounds=30, beliefs={"every": 10})
    state, alone, together = policy.initial_state(), [], []
    for start in range(0, 1200, 10):
        rows = slice(start, start + 10)
        state = policy.play(state, contexts.rows(start, start + 10), rewards[rows], at=times[rows])
        if state.selection is None:
            continue
        rounds = together if len(state.selection.candidates) > 1 else alone
        if [state.selection.round] != rounds[-1:]:
            rounds.append(state.selection.round)
    first = max(20 * (2 * selection.LEAST_PERIODS + 1), math.ceil(selection.FIRST_ROUNDS / 20) * 20)
    assert alone == list(range(30, first + 1, 10))  # the period that ends at `first` is known to have ended later
    assert together[0] == first
    assert len(together) > 3
    assert all(r % 20 == 0 for r in together)
    assert min(np.diff(together)) >= 20 * selection.LEAST_PERIODS


def test_one_long_period_says_nothing_about_regimes():
    """All rounds in one period: one regime, but noise and θ̂ are learnt; the first new periods do not break it."""
    _, _, contexts, rewards, _ = campaign_by_period(30, 20, 4004)
    policy = by_period(4004)
    state = policy.play(policy.initial_state(), contexts, rewards, at=[5.0] * 600)
    assert [c.regimes for c in state.selection.candidates] == [1]
    assert state.statistics.units[1] == pytest.approx(0.6, abs=0.2)
    for t, context in enumerate(({"mood": "low"},) * 40):
        state, decision = policy.decide(state, context, at=100.0 + 60 * t)
        state = policy.reward(state, decision.round, 0.1)
        assert all(map(math.isfinite, decision.bonuses))
