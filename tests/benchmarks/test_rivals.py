"""The rivals against slow versions of themselves, and the command that compares them with ours."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import against
from benchmarks.rivals import RIVALS, linear, vowpal
from benchmarks.worlds import load_worlds

WORLD = load_worlds()["sticky-informative"]


def score_slowly(episode, setting, actions, draws):
    """Each round's scores from the definitions: weighted sums over the rounds before, inverted anew."""
    discount, window, scale = setting.get("discount", 1.0), int(setting.get("window", 0)), setting["scale"]
    x, size = episode.columns, episode.columns.shape[1]
    scores = np.empty_like(draws)
    for t in range(len(actions)):
        first = max(0, t - window) if window else 0
        for a in range(draws.shape[1]):
            rows = first + np.flatnonzero(actions[first:t] == a)
            weights = discount ** (t - 1.0 - rows)
            gram = (x[rows].T * weights) @ x[rows] + np.eye(size)
            squared = (x[rows].T * weights**2) @ x[rows] + np.eye(size)
            inverse = np.linalg.inv(gram)
            theta = inverse @ (x[rows].T * weights) @ episode.rewards[rows, a]
            middle = squared if discount < 1.0 else gram
            width = np.sqrt(x[t] @ inverse @ middle @ inverse @ x[t])
            scores[t, a] = theta @ x[t] + scale * draws[t, a] * width
    return scores


@pytest.mark.parametrize(
    "setting",
    [{"scale": 0.5}, {"scale": 0.5, "discount": 0.97}, {"scale": 0.3, "window": 40}, {"scale": 0.5, "drawn": 1}],
)
def test_linear_rivals_play_what_their_definitions_say(setting):
    episode = WORLD.draw(250, 5)
    is_drawn = "drawn" in setting
    draws = np.random.default_rng([9, 2]).normal(size=episode.rewards.shape) if is_drawn else np.ones((250, 3))
    play = linear.play_by_sampling if is_drawn else linear.play_optimistically
    actions = play(WORLD, episode, setting, 9)
    scores = score_slowly(episode, setting, actions, draws)
    taken = scores[np.arange(250), actions]
    assert taken == pytest.approx(scores.max(axis=1), abs=1e-8)
    assert len(np.unique(actions)) == 3


@pytest.mark.parametrize("name", [name for name in RIVALS if not name.startswith("VW")])
def test_every_policy_plays_alike_for_a_seed_and_learns(name):
    episode = WORLD.draw(1_500, 4)
    rival = RIVALS[name]
    actions = rival.play(WORLD, episode, rival.settings[len(rival.settings) // 4], 3)
    assert (actions == rival.play(WORLD, episode, rival.settings[len(rival.settings) // 4], 3)).all()
    assert actions.shape == (1_500,)
    uniform = float((episode.values.max(axis=1) - episode.values.mean(axis=1)).sum())
    if name == "random":
        assert episode.compute_regret(actions) == pytest.approx(uniform, rel=0.1)
    else:
        assert episode.compute_regret(actions) < 0.75 * uniform


@pytest.mark.parametrize("setting", [{"epsilon": 0.05, "learning_rate": 0.5}, {"gamma_scale": 100.0}])
def test_vowpalwabbit_learns(setting):
    episode = WORLD.draw(1_500, 4)
    actions = vowpal.play(WORLD, episode, setting, 3)
    assert (actions == vowpal.play(WORLD, episode, setting, 3)).all()
    assert episode.compute_regret(actions) < episode.compute_regret(np.zeros(1_500, np.int64)) * 1.5
    assert len(np.unique(actions)) == 3


def test_vowpalwabbits_lines_have_every_variable():
    world = load_worlds()["curved"]
    episode = world.draw(3, 1)
    for line, level, number in zip(
        vowpal.describe_contexts(world, episode),
        episode.contexts.levels[:, 0],
        episode.contexts.values[:, 0],
        strict=True,
    ):
        assert line == f"shared |s segment{'abcd'[level]} spend:{number:.4f}"


def test_the_setting_with_the_least_mean_regret_counts():
    count = len(RIVALS["LinUCB"].settings)
    runs = [{("LinUCB", place): abs(place - 2) + seed for place in range(count)} for seed in (1.0, 3.0)]
    runs = [run | {("default", 0): 5.0} for run in runs]
    ours, rival = sorted(against.pick_settings("break", "1-2", 100, runs), key=lambda row: row.policy != "default")
    assert (rival.mean, rival.standard_error, rival.worst, rival.setting) == (2.0, 1.0, 3.0, "scale 1")
    assert (ours.mean, ours.setting) == (5.0, "")
    header, (line,) = against.format_rows([ours, rival])
    assert dict(zip(header, line, strict=True)) == {
        "world": "break", "default": "5 ± 0", "LinUCB": "2 ± 1",
        "best rival": "LinUCB (scale 1)", "default / best rival": "2.50",
    }  # fmt: skip


def test_rows_of_a_run_replace_those_of_an_earlier_one(tmp_path: Path, capsys, monkeypatch):
    file = tmp_path / "results.csv"
    call = ["against", "--quick", "--jobs", "1", "--worlds", "mining-slow", "--results", str(file), "--policies"]
    for policies in (["random", "LinTS"], ["random"]):
        monkeypatch.setattr("sys.argv", [*call, *policies])
        assert against.main() == 0
    assert "mining-slow" in capsys.readouterr().out
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["world"], row["policy"], row["rounds"]) for row in rows] == [
        ("mining-slow", "random", "2500"),
        ("mining-slow", "LinTS", "2500"),
    ]
    assert against.read_rows(file) == against.merge_rows(against.read_rows(file), [])
