"""Rewards that come late, never, or in another order: drawn apart from the episode, handed over when they are due."""

import numpy as np
import pytest

from simulator import cli
from simulator.delivery import AT_ONCE, Delivery, Schedule
from simulator.environment import load_environment
from simulator.replay import replay_seed

NONE = np.empty(0, np.int64)


def delays(delivery: Delivery, rounds: int, own: np.ndarray = NONE, seed: int = 5) -> np.ndarray:
    """The delays of a schedule, read off what is due when; -1 for never."""
    schedule, found = delivery.schedule(own, rounds, seed), np.full(rounds, -1)
    for decided in range(1, rounds + 1):
        for row in schedule.take_due(decided):
            found[row] = decided - 1 - row
    return found


@pytest.mark.parametrize(
    ("text", "law", "mean"),
    [
        ("50", "geometric", 50),
        ("geometric:2.5", "geometric", 2.5),
        ("exponential:7", "exponential", 7),
        ("0", "geometric", 0),
    ],
)
def test_delays_are_a_law_and_a_mean(text, law, mean):
    assert Delivery.parse_delay(text) == (law, mean)


@pytest.mark.parametrize("text", ["", "soon", "-1", "uniform:5", "geometric:", "geometric:x", "nan", "inf", ":5"])
def test_other_delays_are_refused(text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["replay", f"--reward-delay={text}"])
    assert stop.value.code == 2
    assert "like 50, geometric:50 or exponential:50" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1.1", "-0.1", "x", "nan"])
def test_a_loss_is_a_share(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["replay", f"--reward-loss={text}"])
    assert "a share from 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("law", ["geometric", "exponential"])
def test_delays_have_their_mean(law):
    rounds, mean = 20_000, 6.0
    found = delays(Delivery(law, mean), rounds)
    seen = found[: rounds - 500]  # the last ones may come too late
    assert (seen >= 0).all()
    assert abs(seen.mean() - mean) <= 5 * 6.5 / rounds**0.5
    assert seen.min() == 0  # known before the next decision


def test_losses_have_their_share_and_come_on_top_of_the_environments():
    rounds = 20_000
    lost = delays(Delivery(loss=0.1), rounds) == -1
    assert abs(lost.mean() - 0.1) <= 5 * 0.3 / rounds**0.5
    own = np.where(np.arange(rounds) % 2, 3, -1)
    both = delays(Delivery(loss=0.1), rounds, own)[: rounds - 10]
    assert set(both[1::2]) == {3, -1}
    assert set(both[::2]) == {-1}
    assert set(delays(Delivery("geometric", 0.0), rounds, own)) == {0, -1}  # the delay is replaced, a loss stays


def test_rewards_are_due_in_order_and_once():
    schedule = Schedule(np.array([2, 0, -1, 0, 5, 0]))
    assert [schedule.count_due(decided) for decided in range(7)] == [0, 0, 1, 2, 3, 3, 4]
    assert [schedule.take_due(decided) for decided in (1, 2, 3, 4, 6)] == [[], [1], [0], [3], [5]]
    assert schedule.take_due(6) == []
    assert not schedule.is_immediate
    assert Schedule(np.zeros(3, np.int64)).is_immediate


def test_shuffled_rewards_are_the_same_ones_when_they_are_due():
    plain, shuffled = (Delivery("geometric", 9.0, 0.1, shuffle).schedule(NONE, 400, 5) for shuffle in (False, True))
    assert not shuffled.is_immediate
    moved = 0
    for decided in range(20, 401, 20):
        rows, other = plain.take_due(decided), shuffled.take_due(decided)
        assert sorted(rows) == sorted(other)
        moved += rows != other
    assert moved > 10


def test_the_episode_stays_the_same():
    """Delivery has a generator of its own: only what the learner knows changes, and when."""
    environment = load_environment("nelson")
    runs = [
        replay_seed(environment, "plain-linucb", 3, 300, {"warm_start_rounds": 300}, None, delivery)
        for delivery in (AT_ONCE, Delivery("exponential", 30.0, 0.5), Delivery(shuffle=True))
    ]
    for run in runs[1:]:
        assert run.actions_sha256 == runs[0].actions_sha256  # an endless warm start learns nothing
        np.testing.assert_array_equal(run.actual_regret, runs[0].actual_regret)


@pytest.mark.parametrize("preset", ["paper-complex", "plain-linucb"])
def test_the_order_of_arrival_inside_a_stage_changes_nothing(preset):
    """R1: a stage update folds what has come in round order."""
    environment, late = load_environment("credit-card"), Delivery("geometric", 30.0, 0.2)
    in_order, shuffled = (
        replay_seed(environment, preset, 3, 1200, {"stage_length": 40}, None, late._replace(shuffle=shuffle))
        for shuffle in (False, True)
    )
    for mine, other in zip(in_order, shuffled, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_without_rewards_nothing_is_learned():
    environment = load_environment("nelson")
    blind = replay_seed(environment, "paper-complex", 3, 600, None, None, Delivery(loss=1.0))
    seeing = replay_seed(environment, "paper-complex", 3, 600)
    assert seeing.gain > blind.gain + 0.2
