"""Rounds and stages: where stages begin, and what is due before the next round (R1, R3)."""

from policy.state import State


def find_stage_start(t: int, stage_length: int) -> int:
    """The first round ≥ t that begins a stage."""
    return (t + stage_length - 2) // stage_length * stage_length + 1


def is_estimation_due(state: State) -> bool:
    """Is a re-estimation due before the next round (R3)?"""
    return 0 < state.next_estimation <= state.round + 1


def is_update_due(state: State) -> bool:
    """Has a stage ended whose update has not run (R1)?"""
    return state.next_update <= state.round + 1


def count_rounds_ahead(state: State) -> int:
    """The number of rounds that can be decided before something is due; 0 when something is."""
    due = state.next_update
    if 0 < state.next_estimation < due:
        due = state.next_estimation
    return max(0, due - 1 - state.round)
