"""Rewards that arrive late, never or in another order: drawn apart from the episode, delivered when they are due."""

import numpy as np
import pytest

from simulator.cli import parse_delay
from simulator.delivery import AT_ONCE, Delivery, Schedule
from simulator.environment import load_environment
from simulator.replay import Task, replay_seed


def read_delays(delivery: Delivery, rounds: int, own: np.ndarray | None = None) -> np.ndarray:
    """The delays of a schedule, inferred from what is due when; -1 for never."""
    schedule = delivery.schedule(np.zeros(rounds, np.int64) if own is None else own, 5)
    delays = np.full(rounds, -1)
    for decided in range(1, rounds + 1):
        for row in schedule.take_due(decided):
            delays[row] = decided - 1 - row
    return delays


@pytest.mark.parametrize("law", ["geometric", "exponential"])
def test_delays_have_the_given_mean(law):
    assert parse_delay(f"{law}:2.5") == (law, 2.5)
    assert parse_delay("50") == ("geometric", 50)
    rounds, mean = 20_000, 6.0
    delays = read_delays(Delivery(law, mean), rounds)[: rounds - 500]  # the last rewards may be due after the end
    assert (delays >= 0).all()
    assert abs(delays.mean() - mean) <= 5 * 6.5 / rounds**0.5
    assert delays.min() == 0  # before the next decision


def test_losses_have_the_given_share_and_add_to_the_environments():
    rounds = 20_000
    lost = read_delays(Delivery(loss=0.1), rounds) == -1
    assert abs(lost.mean() - 0.1) <= 5 * 0.3 / rounds**0.5
    own = np.where(np.arange(rounds) % 2, 3, -1)
    both = read_delays(Delivery(loss=0.1), rounds, own)[: rounds - 10]
    assert set(both[1::2]) == {3, -1}
    assert set(both[::2]) == {-1}
    assert set(read_delays(Delivery("geometric", 0.0), rounds, own)) == {0, -1}  # new delays, the same losses


def test_rewards_are_due_in_order_and_once():
    schedule = Schedule(np.array([2, 0, -1, 0, 5, 0]))
    assert [schedule.count_due(decided) for decided in range(7)] == [0, 0, 1, 2, 3, 3, 4]
    assert [schedule.take_due(decided) for decided in (1, 2, 3, 4, 6, 6)] == [[], [1], [0], [3], [5], []]
    assert not schedule.is_immediate
    assert Schedule(np.zeros(3, np.int64)).is_immediate


def test_shuffling_changes_the_order_of_rewards_due_together_and_nothing_else():
    plain, shuffled = (
        Delivery("geometric", 9.0, 0.1, shuffle).schedule(np.zeros(400, np.int64), 5) for shuffle in (0, 1)
    )
    assert not shuffled.is_immediate
    pairs = [(plain.take_due(decided), shuffled.take_due(decided)) for decided in range(20, 401, 20)]
    assert all(sorted(rows) == sorted(others) for rows, others in pairs)
    assert sum(rows != others for rows, others in pairs) > 10


def test_the_episode_stays_the_same():
    """Delays have their own random numbers: they change only what the learner sees, and when."""
    environment = load_environment("nelson")
    runs = [
        replay_seed(Task(environment, "plain-linucb", 3, 300, {"warm_start_rounds": 300}, None, delivery))
        for delivery in (AT_ONCE, Delivery("exponential", 30.0, 0.5), Delivery(shuffle=True))
    ]
    for run in runs[1:]:
        assert run.actions_sha256 == runs[0].actions_sha256  # an endless warm start learns nothing
        np.testing.assert_array_equal(run.actual_regret, runs[0].actual_regret)


def test_the_order_of_arrival_within_a_stage_changes_nothing():
    """R1: a stage update folds the rewards in the order of their rounds."""
    environment, late = load_environment("credit-card"), Delivery("geometric", 30.0, 0.2)
    in_order, shuffled = (
        replay_seed(
            Task(environment, "paper-complex", 3, 1200, {"stage_length": 40}, None, late._replace(shuffle=shuffle))
        )
        for shuffle in (False, True)
    )
    for mine, other in zip(in_order, shuffled, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_without_rewards_nothing_is_learned():
    environment = load_environment("nelson")
    blind = replay_seed(Task(environment, "paper-complex", 3, 600, None, None, Delivery(loss=1.0)))
    assert replay_seed(Task(environment, "paper-complex", 3, 600)).gain > blind.gain + 0.2
