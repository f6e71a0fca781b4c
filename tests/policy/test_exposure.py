"""Rounds that enter the model while they wait: G and Σ z r equal the direct sums, whatever happens on the way."""

from typing import NamedTuple

import numpy as np
import pytest

from policy import CampaignConfig, PastRound, Request, StagedPolicy, decode, encode
from policy.changes import adapt_state, add_config_action, patch_config, roll_back
from policy.delays import SLICES
from policy.errors import ArgumentError
from policy.exposure import weigh_rounds

SECOND = 1_000_000
WAIT = 60
LEVELS = ("p", "q"), ("x", "y", "z")
STATISTICS = ("as_decided", "refiltered", "smoothed", "joint")
MODES = ("provisional", "hold")


def make_config(statistics="as_decided", mode="provisional", **changes):
    fields = {
        "name": "waiting",
        "actions": ["a", "b", "c"],
        "variables": [{"name": "v", "levels": LEVELS[0]}, {"name": "s", "levels": LEVELS[1]}],
        "signals": ["s"],
        "stage_length": 5,
        "warm_start_rounds": 20,
        "beliefs": {"estimator": "em", "statistics": statistics, "start_round": 31, "every": 25},
        "rewards": {"wait_seconds": WAIT, "default": 0.5, "while_waiting": mode},
        "seed": 7,
    }
    return CampaignConfig(**(fields | changes))


class Player:
    """Plays a campaign whose rewards come late, some of them never."""

    def __init__(self, config, seed=0):
        self.policy = StagedPolicy(config)
        self.state = self.policy.initial_state()
        self.generator = np.random.default_rng(seed)
        self.now, self.coming, self.seen = 1_000 * SECOND, [], set()

    def draw(self):
        v, s = (levels[self.generator.integers(len(levels))] for levels in LEVELS)
        return {"v": v, "s": s}

    def play(self, rounds, check=None):
        for _ in range(rounds):
            self.now += int(self.generator.exponential(SECOND))
            self.receive()
            self.state, decision = self.policy.decide(self.state, self.draw(), now=self.now)
            self.order(decision.round)
            if check is not None and self.state.model_version not in self.seen:
                self.seen.add(self.state.model_version)
                check(self.policy, self.state)

    def order(self, round):
        if self.generator.random() < 0.5:
            delay = min(self.generator.exponential(8.0), WAIT - 1.0)
            self.coming.append((self.now + int(delay * SECOND), round, float(self.generator.normal(2.0))))
            if self.generator.random() < 0.2:  # a revision
                self.coming.append((self.now + int((delay + 5.0) * SECOND), round, float(self.generator.normal(3.0))))

    def receive(self):
        self.coming.sort()
        while self.coming and self.coming[0][0] <= self.now:
            came, round, value = self.coming.pop(0)
            self.state = self.policy.reward(self.state, round, value, came)


class Known(NamedTuple):
    """What a model knows of a round."""

    row: int
    weight: float
    total: float  # what the round adds to Σ z r, before the centre


def list_known(policy, state):
    """Row by row, from the definition: default by slices, and the rest of the reward in full once the round is in."""
    history, exposure = state.history.copy(state.round, state.folded), state.exposure
    default = policy.config.rewards.default
    for row in range(state.round):
        slices = sum(row < reached for reached in exposure.reached)
        if not slices or history.contexts.symbols[row] < 0 or row in history.excluded:
            continue
        reward, weight = history.rewards[row], slices / SLICES
        yield Known(row, weight, weight * default + (0.0 if np.isnan(reward) else reward - default))


def check_sums(policy, state):
    """The statistics in force are the direct sums over z(b, a, x) with the beliefs of record."""
    if not state.exposure.reached.any() or state.rebuild:
        return
    features, statistics = policy.maps[state.belief.size], state.statistics
    gram, moment = np.eye(features.dimension) * policy.ridge, np.zeros(features.dimension)
    slices = 0
    for row, weight, total in list_known(policy, state):
        beliefs = state.history.beliefs[row, : state.belief.size]
        z = features.dense(beliefs, state.history.actions[row], state.history.contexts, row)
        gram += weight * np.outer(z, z)
        moment += (total - weight * statistics.units[0]) * z
        slices += round(weight * SLICES)
    np.testing.assert_allclose(statistics.gram, gram, atol=1e-8)
    np.testing.assert_allclose(statistics.moment, moment, atol=1e-8)
    np.testing.assert_allclose(statistics.gram @ statistics.theta, moment, atol=1e-7)
    assert state.counted == slices // SLICES


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_sums_are_the_direct_sums_after_every_update(statistics, mode):
    config = make_config(statistics, mode, **({"regimes": 1} if statistics == "joint" else {}))
    player = Player(config)
    player.play(160, check_sums)
    assert len(player.seen) > 30
    reached = player.state.exposure.reached
    assert 0 < reached[-1] < player.state.round
    assert (np.diff(reached) <= 0).all()
    if mode == "provisional":
        assert reached[-1] < reached[0]
        assert reached[0] > player.state.round - 10
    else:
        assert (reached == reached[0]).all()


@pytest.mark.parametrize("statistics", STATISTICS)
def test_hold_counts_a_round_once_its_wait_is_over(statistics):
    player = Player(make_config(statistics, "hold"))
    player.play(150)
    state = player.state
    over = np.searchsorted(state.history.times[: state.round], state.exposure.now - WAIT * SECOND, side="right")
    assert over > 50
    assert (state.exposure.reached == over).all()
    assert state.counted == over


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_batches_snapshots_and_single_rounds_agree_to_the_bit(statistics, mode):
    def play(size, with_snapshots):
        player = Player(make_config(statistics, mode), seed=3)
        while player.state.round < 140:
            player.now += 4 * SECOND
            player.receive()
            requests = [Request(player.draw()) for _ in range(20)]
            for start in range(0, 20, size):
                part = player.policy.prepare(requests[start : start + size])
                player.state, _ = player.policy.decide_prepared(player.state, part, player.now)
            for round in range(player.state.round - 19, player.state.round + 1):
                player.order(round)
            if with_snapshots:
                player.state = decode(encode(player.state))
        return encode(player.state)

    assert play(20, False) == play(1, False) == play(7, True)


def test_rounds_that_are_followed_leave_the_state_of_deciding_them():
    player = Player(make_config("smoothed"))
    decided = player.policy.initial_state()
    followed = decided
    for i in range(60):
        now, context = (10 + i) * SECOND, player.draw()
        decided, decision = player.policy.decide(decided, context, now=now)
        past = player.policy.prepare_past([PastRound(context, decision.action, decided_at=now)])
        followed, _ = player.policy.follow(followed, past)
        if i % 3 == 0:
            decided = player.policy.reward(decided, i + 1, 1.0, now + SECOND)
            followed = player.policy.reward(followed, i + 1, 1.0, now + SECOND)
    assert encode(followed) == encode(decided)


@pytest.mark.parametrize("mode", MODES)
def test_imported_rounds_count_in_full_at_once(mode):
    """With their reward, or the default; one without its context teaches nothing."""
    policy, generator = StagedPolicy(make_config(mode=mode)), np.random.default_rng(0)
    contexts = [{"v": "p", "s": LEVELS[1][generator.integers(3)]} for _ in range(30)]
    contexts[4] = None
    state, _ = policy.follow(policy.initial_state(), policy.prepare_past([PastRound(c, "b") for c in contexts]))
    for round in (1, 5, 8):
        state = policy.reward(state, round, 2.0)
    state = policy.cross(state, 5 * SECOND)
    assert state.counted == 29
    assert (state.exposure.reached == 30).all()
    check_sums(policy, state)
    state = policy.reward(state, 9, 4.0, 6 * SECOND)  # a late one replaces the default
    state, _ = policy.decide(state, contexts[0], now=6 * SECOND)
    for _ in range(5):
        state, _ = policy.decide(state, contexts[0], now=7 * SECOND)
    check_sums(policy, state)
    assert state.exposure.learned == state.arrived == 4 if mode == "provisional" else True


@pytest.mark.parametrize("mode", MODES)
def test_a_rollback_excludes_what_has_entered_since(mode):
    player = Player(make_config("as_decided", mode))
    player.play(120)
    past = player.state
    player.play(60)
    version = player.state.model_version
    state = roll_back(player.policy, player.state, player.policy, past)
    assert state.model_version == version + 1
    assert state.statistics is past.statistics
    entered = np.arange(past.exposure.reached[0], player.state.exposure.reached[0])
    assert set(entered) <= set(state.history.excluded)
    player.state, player.seen = state, set()
    player.play(60)
    weighed = weigh_rounds(player.state.get_exact_history(), player.state.round, player.state.find_waiting(0.5))
    assert not set(weighed.rows) & set(state.history.excluded)
    assert set(range(185, 195)) <= set(weighed.rows) or mode == "hold"


@pytest.mark.parametrize("mode", MODES)
def test_an_action_added_while_rounds_wait(mode):
    player = Player(make_config("joint", mode, regimes=1))
    player.play(90)
    before, player.policy = player.policy, StagedPolicy(add_config_action(player.policy.config, "d"))
    player.state = adapt_state(before, player.policy, player.state)
    player.play(90, check_sums)
    assert "d" in player.policy.config.actions


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize(
    "rules",
    [
        {"while_waiting": "hold"},
        {"while_waiting": "provisional"},
        {"default": -1.0},
        {"wait_seconds": 20},
        {"wait_seconds": 500},
    ],
    ids=str,
)
def test_a_change_of_the_rules_counts_all_rounds_anew(statistics, rules):
    mode = "provisional" if rules.get("while_waiting") == "hold" else "hold"
    player = Player(make_config(statistics, mode, **({"regimes": 1} if statistics == "joint" else {})))
    player.play(93)
    before, player.policy = player.policy, StagedPolicy(patch_config(player.policy.config, {"rewards": rules}))
    player.state = adapt_state(before, player.policy, player.state)
    player.play(60, check_sums)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_default_comes_goes_and_comes_back(statistics):
    player = Player(make_config(statistics, rewards={}, **({"regimes": 1} if statistics == "joint" else {})))

    def change(rules):
        before, player.policy = player.policy, StagedPolicy(patch_config(player.policy.config, {"rewards": rules}))
        player.state = adapt_state(before, player.policy, player.state)

    player.play(60)
    change({"default": 0.0, "wait_seconds": WAIT})
    player.play(7, check_sums)
    assert (player.state.exposure.reached[-1] >= 60).all()  # earlier rounds count in full
    player.play(40, check_sums)
    change({"default": None, "wait_seconds": None})
    assert player.state.exposure is None
    player.play(40)
    rewarded = player.state.history.get_arrivals(0, player.state.folded)
    assert player.state.counted == rewarded.size
    change({"default": 0.0, "wait_seconds": WAIT})
    player.play(40, check_sums)
    assert decode(encode(player.state)).exposure is not None


def test_the_time_of_a_decision_is_required():
    policy = StagedPolicy(make_config())
    with pytest.raises(ArgumentError, match="now: is missing"):
        policy.decide(policy.initial_state(), {"v": "p", "s": "x"})


def test_times_never_go_backwards():
    policy = StagedPolicy(make_config())
    state = policy.initial_state()
    for now in (50, 40, 60, 10):
        state, _ = policy.decide(state, {"v": "p", "s": "x"}, now=now * SECOND)
    assert (state.history.times[:4] == np.array([50, 50, 60, 60]) * SECOND).all()


def test_weights_make_the_estimate_unbiased():
    """Converters report late and the others never: on average over campaigns, θ̂ is right at any time."""
    estimates = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        config = make_config(
            rewards={"wait_seconds": 100, "default": 0.0}, regimes=1, warm_start_rounds=10_000, ridge=1e-3, seed=seed
        )
        policy, coming = StagedPolicy(config), []
        state, now = policy.initial_state(), SECOND
        for _ in range(400):
            now += SECOND
            coming.sort()
            while coming and coming[0][0] <= now:
                came, round, value = coming.pop(0)
                state = policy.reward(state, round, value, came)
            state, decision = policy.decide(state, {"v": "p", "s": "x"}, now=now)
            rate = {"a": 0.2, "b": 0.4, "c": 0.6}[decision.action]
            if generator.random() < rate:
                delay = min(generator.exponential(20.0), 99.0)
                coming.append((now + int(delay * SECOND), decision.round, 10.0))
        preview = policy.preview(state, {"v": "p", "s": "x"}, now=now)
        estimates.append(preview.estimates)
    means, errors = np.mean(estimates, axis=0), np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (np.abs(means - np.array([2.0, 4.0, 6.0])) < 4.0 * errors + 0.15).all()
