"""Replays: compiled play against one decision at a time, seeds, summaries, the `replay` command, published cells."""

import argparse
import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy import CampaignConfig, StagedPolicy
from policy.config import Beliefs, Bonus, Control
from simulator import cli
from simulator.commands import add_replay
from simulator.environment import load_environment
from simulator.flags import FIELDS, read_overrides
from simulator.presets import build_config
from simulator.replay import Run, average, compute_belief_error, measure_run, pick_checkpoints, replay_seed, summarise

EARLY = {"beliefs": {"start_round": 300, "every": {"factor": 1.2}}}


def sha256(actions: list[int]) -> str:
    return hashlib.sha256(np.array(actions, "<i2").tobytes()).hexdigest()


# --- one run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "environment_name", "overrides"),
    [
        ("paper-complex", "credit-card", EARLY),
        ("paper-simplified", "credit-card", {}),
        ("paper-simplified", "three-regimes", EARLY),
        ("plain-linucb", "credit-card", {}),
        ("known-hmm", "credit-card", {}),
        ("known-hmm", "nelson", {"stage_length": 5}),
    ],
)
def test_compiled_play_equals_one_by_one(preset: str, environment_name: str, overrides: dict) -> None:
    rounds, seed = 1200, 1951
    environment = load_environment(environment_name)
    run = replay_seed(environment, preset, seed, rounds, overrides)
    episode = environment.draw(rounds, np.random.default_rng(seed))
    policy = StagedPolicy(build_config(preset, environment, seed, overrides))
    state, actions, beliefs = policy.initial_state(), [], []
    for t in range(rounds):
        state, decision = policy.decide(state, environment.describe_context(episode, t))
        action = environment.actions.index(decision.action)
        state = policy.reward(state, decision.round, episode.rewards[t, action])
        actions.append(action)
        beliefs.append(decision.belief)
    assert run.actions_sha256 == sha256(actions)
    assert len(set(actions[300:])) > 1
    # What was estimated is the same too, not only what was done with it.
    again = measure_run(environment, episode, seed, np.array(actions, np.int16), np.array(beliefs), 1)
    np.testing.assert_array_equal(run.pseudo_regret, again.pseudo_regret)
    np.testing.assert_array_equal(run.actual_regret, again.actual_regret)
    np.testing.assert_array_equal(run.action_shares, again.action_shares)
    if environment_name == "credit-card" and preset == "paper-complex":
        assert not np.allclose(beliefs[-1], 0.5)  # estimation did take place
        measured_from = compute_belief_error(np.array(beliefs)[299:], episode.beliefs[299:])
        assert run.belief_error == measured_from


def test_a_seed_reproduces_its_run_exactly() -> None:
    environment = load_environment("credit-card")
    first, again, other = (replay_seed(environment, "paper-complex", seed, 1500) for seed in (7, 7, 8))
    for mine, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(mine, same)
    assert first.actions_sha256 != other.actions_sha256
    assert not math.isnan(first.belief_error)


def test_the_reward_model_reaches_the_episode() -> None:
    environment = load_environment("credit-card")
    by_regime, by_belief = (
        replay_seed(environment, "plain-linucb", 7, 800, None, model) for model in ("regime", "belief")
    )
    assert by_regime.actions_sha256 != by_belief.actions_sha256


def test_the_oracle_preset_has_no_regret() -> None:
    environment = load_environment("three-regimes")
    run = replay_seed(environment, "oracle", 5, 600)
    assert (run.pseudo_regret == 0).all()
    assert (run.actual_regret == 0).all()
    assert math.isnan(run.belief_error)
    episode = environment.draw(600, np.random.default_rng(5))
    assert run.actions_sha256 == sha256(episode.oracle.tolist())


def test_known_parameters_leave_no_belief_error() -> None:
    run = replay_seed(load_environment("three-regimes"), "known-hmm", 5, 600)
    assert run.belief_error == pytest.approx(0, abs=1e-12)


def test_an_endless_warm_start_plays_uniformly() -> None:
    """The policy's own uniform draws pay what uniform play is expected to pay given the contexts."""
    environment = load_environment("credit-card")
    surplus, variance = 0.0, 0.0
    for seed in range(20):
        run = replay_seed(environment, "plain-linucb", seed, 2000, {"warm_start_rounds": 2000})
        values = environment.draw(2000, np.random.default_rng(seed)).values
        surplus += run.pseudo_regret[-1] - (values.max(axis=1) - values.mean(axis=1)).sum()
        variance += values.var(axis=1).sum()
    assert abs(surplus) <= 5 * variance**0.5


# --- measures ---------------------------------------------------------------------------------------------------------


def test_belief_error_uses_one_permutation_for_the_whole_run() -> None:
    true = np.tile([0.9, 0.1], (9, 1))
    assert compute_belief_error(true, true) == 0
    assert compute_belief_error(true[:, ::-1], true) == 0
    torn = true.copy()
    torn[:3] = torn[:3, ::-1]  # right two thirds of the time, and no renaming serves both parts
    assert compute_belief_error(torn, true) == pytest.approx(1.6 / 3)
    assert compute_belief_error(torn[:, ::-1], true) == pytest.approx(1.6 / 3)
    three = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    assert compute_belief_error(three[:, [1, 2, 0]], three) == 0
    assert compute_belief_error(three[:, [2, 0, 1]], three) == 0


def test_belief_error_counts_from_the_start_round() -> None:
    environment = load_environment("nelson")
    episode = environment.draw(100, np.random.default_rng(1))
    beliefs = episode.beliefs.copy()
    beliefs[:59] = 0.5
    actions = np.zeros(100, np.int16)
    assert measure_run(environment, episode, 1, actions, beliefs, 60).belief_error == 0
    assert measure_run(environment, episode, 1, actions, beliefs, 59).belief_error > 0
    assert math.isnan(measure_run(environment, episode, 1, actions, beliefs, 101).belief_error)
    assert math.isnan(measure_run(environment, episode, 1, actions, np.ones((100, 1)), 1).belief_error)  # H = 1


def test_action_shares_are_per_regime() -> None:
    environment = load_environment("nelson")
    episode = environment.draw(500, np.random.default_rng(1))
    actions = np.where(episode.regimes == 0, 2, np.arange(500) % 2).astype(np.int16)
    shares = measure_run(environment, episode, 1, actions, None, 1).action_shares
    busy = actions[episode.regimes == 1]
    np.testing.assert_allclose(shares, [[0, 0, 1], [1 - busy.mean(), busy.mean(), 0]], atol=1e-12)


def test_mean_and_two_standard_errors_by_hand() -> None:
    summary = average([1.0, 2.0, 3.0, 6.0])  # squares about the mean 3: 4 + 1 + 0 + 9 = 14
    assert summary.mean == 3
    assert summary.two_se == pytest.approx(2 * math.sqrt(14 / 3) / 2)
    assert summary.per_seed == [1, 2, 3, 6]
    assert average([5.0]).mean == 5


@pytest.mark.parametrize("rounds", [1, 7, 199, 200, 201, 1234, 50_000])
def test_checkpoints(rounds: int) -> None:
    marks = pick_checkpoints(rounds)
    assert marks[-1] == rounds
    assert marks.size == min(rounds, 200)
    assert marks[0] == -(-rounds // 200) or abs(marks[0] - rounds / 200) <= 0.5
    assert (np.diff(marks) > 0).all()


def test_summaries_are_plain_data() -> None:
    def run(seed: int, pseudo: float, actual: float, shares: list) -> Run:
        curves = np.array([1.0, pseudo]), np.array([0.5, actual])
        return Run(seed, *curves, 0.1 * seed, np.array(shares), f"hash{seed}", 0.3 * seed, 0.5)

    summary = summarise([run(1, 10, 4, [[1, 0], [0, 1]]), run(2, 14, -4, [[0, 1], [0, 1]])])
    assert summary == {
        "pseudo_regret": {"mean": 12, "two_se": pytest.approx(4), "per_seed": [10, 14]},
        "actual_regret": {"mean": 0, "two_se": pytest.approx(8), "per_seed": [4, -4]},
        "reward": {"mean": pytest.approx(0.45), "two_se": pytest.approx(0.3), "per_seed": [0.3, 0.6]},
        "gain": {"mean": 0.5, "two_se": 0, "per_seed": [0.5, 0.5]},
        "belief_error": {"mean": pytest.approx(0.15), "two_se": pytest.approx(0.1), "per_seed": [0.1, 0.2]},
        "action_shares": [[0.5, 0.5], [0, 1]],
        "actions_sha256": {"1": "hash1", "2": "hash2"},
    }


# --- the command ------------------------------------------------------------------------------------------------------


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The object that `replay --json` prints."""
    assert cli.main(["replay", "--jobs", "1", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "paper-complex", "--rounds", "1200", "--seeds", "3-4,9", "--stage-length", "15"]
    printed = replay(capsys, *options)
    assert (printed["preset"], printed["environment"], printed["rounds"]) == ("paper-complex", "credit-card", 1200)
    environment = load_environment("credit-card")
    runs = [replay_seed(environment, "paper-complex", seed, 1200, {"stage_length": 15}) for seed in (3, 4, 9)]
    expected = summarise(runs)
    for field, value in expected.items():
        assert printed[field] == value
    assert set(printed["pseudo_regret"]) == {"mean", "two_se", "per_seed"}
    assert list(printed["actions_sha256"]) == ["3", "4", "9"]
    assert printed["seconds"] > 0


@pytest.mark.parametrize(
    "options", [["--preset", "plain-linucb"], ["--preset", "oracle"], ["--preset", "known-hmm", "--seeds", "5"]]
)
def test_what_does_not_exist_is_null(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    """No belief, or no spread with one seed: JSON has no NaN."""

    def not_json(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert cli.main(["replay", "--jobs", "1", "--json", "--rounds", "60", "--seeds", "1-2", *options]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=not_json)
    if options[-1] == "5":
        assert printed["pseudo_regret"]["two_se"] is None
        assert printed["belief_error"]["mean"] == pytest.approx(0, abs=1e-12)
    else:
        assert printed["belief_error"]["mean"] is None
    if options[-1] == "oracle":
        assert printed["pseudo_regret"] == {"mean": 0, "two_se": 0, "per_seed": [0, 0]}
        assert printed["actual_regret"] == {"mean": 0, "two_se": 0, "per_seed": [0, 0]}


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--environment", "three-regimes", "--preset", "known-hmm", "--rounds", "500", "--seeds", "1,2"]
    printed = replay(capsys, *options)
    assert cli.main(["replay", "--jobs", "1", *options]) == 0
    text = capsys.readouterr().out
    regret = printed["pseudo_regret"]
    assert f"{regret['mean']:.1f} ± {regret['two_se']:.1f}" in text
    for word in ("three-regimes", "500 rounds", "2 seeds", "belief error", "Slump", "Voucher"):
        assert word in text
    assert f"{printed['action_shares'][1][2]:.1%}" in text


def test_seeds_over_processes_equal_seeds_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rounds", "400", "--seeds", "1-3"]
    assert cli.main(["replay", "--jobs", "2", "--json", *options]) == 0
    parallel, alone = json.loads(capsys.readouterr().out), replay(capsys, *options)
    assert parallel["actions_sha256"] == alone["actions_sha256"]
    assert parallel["pseudo_regret"] == alone["pseudo_regret"]


def test_curves_and_plots_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, plot = tmp_path / "made" / "here", tmp_path / "plots" / "regret"
    options = ["--preset", "known-hmm", "--rounds", "300", "--seeds", "1,2"]
    printed = replay(capsys, *options, "--out", str(out), "--plot", str(plot))
    assert json.loads((out / "summary.json").read_text(encoding="utf-8")) == printed
    with (out / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], int(row["round"])) for row in rows] == [
        (seed, t) for seed in ("1", "2") for t in pick_checkpoints(300).tolist()
    ]
    last = [row for row in rows if row["round"] == "300"]
    for field in ("pseudo_regret", "actual_regret"):
        assert [float(row[field]) for row in last] == pytest.approx(printed[field]["per_seed"], abs=1e-6)
    assert plot.with_suffix(".png").stat().st_size > 5000
    assert "known-hmm" in plot.with_suffix(".svg").read_text(encoding="utf-8")


# A value for every flag that sets a field of the configuration, on a preset that has the field.
FLAGS = {
    "--stage-length": ("5", 5, "paper-complex"),
    "--ridge": ("0.3", 0.3, "paper-complex"),
    "--warm-start-rounds": ("20", 20, "paper-complex"),
    "--regimes": ("3", 3, "paper-complex"),
    "--propensity-floor": ("0.1", 0.1, "paper-complex"),
    "--bonus-form": ("elliptical", "elliptical", "paper-complex"),
    "--bonus-scale": ("0.7", 0.7, "paper-complex"),
    "--bonus-risk": ("0.2", 0.2, "theory-general"),
    "--bonus-horizon": ("900", 900, "theory-general"),
    "--bonus-c-theta": ("2.5", 2.5, "theory-general"),
    "--bonus-gamma": ("0.4", 0.4, "theory-general"),
    "--bonus-c-eta": ("0.5", 0.5, "theory-general"),
    "--bonus-v-eta": ("0.6", 0.6, "theory-simplified"),
    "--beliefs-estimator": ("em", "em", "paper-complex"),
    "--beliefs-start-round": ("120", 120, "paper-complex"),
    "--beliefs-every": ('{"factor": 1.5}', {"factor": 1.5}, "paper-complex"),
    "--beliefs-statistics": ("refiltered", "refiltered", "paper-complex"),
    "--beliefs-estimation": ("auto", "auto", "paper-complex"),
    "--control-share": ("0.25", 0.25, "paper-complex"),
    "--control-kind": ("baseline", "baseline", "paper-complex"),
    "--features": (
        '{"shared": ["age"], "per_regime": ["intercept", "actions"]}',
        {"shared": ["age"], "per_regime": ["intercept", "actions"]},
        "paper-complex",
    ),
}


def test_every_hyper_parameter_is_a_flag() -> None:
    assert [flag for flag, _, _ in FIELDS] == list(FLAGS)
    # By the environment, or by --seeds; its rounds have no times; and no replay changes a campaign on the way.
    given = {"name", "actions", "variables", "signals", "rewards", "seed", "clock"}
    given |= {"regime_labels", "retired_actions", "paused", "alerts", "retention_days"}
    sections = {"bonus": Bonus, "beliefs": Beliefs, "control": Control}
    wanted = {(field,) for field in CampaignConfig.model_fields if field not in given | set(sections)}
    wanted |= {(name, field) for name, part in sections.items() for field in part.model_fields}
    assert {path for _, path, _ in FIELDS} == wanted - {("beliefs", "parameters")}
    for flag, path, _ in FIELDS:
        assert flag == "--" + "-".join(path).replace("_", "-")


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_reach_the_configuration(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    text, value, preset = FLAGS[flag]
    path = next(path for name, path, _ in FIELDS if name == flag)
    parser = argparse.ArgumentParser()
    add_replay(parser.add_subparsers())
    environment, rounds = load_environment("credit-card"), 320
    config = build_config(preset, environment, 4, read_overrides(parser.parse_args(["replay", flag, text])), rounds)
    dumped = config.model_dump(mode="json")
    assert (dumped[path[0]] if len(path) == 1 else dumped[path[0]][path[1]]) == value
    default = build_config(preset, environment, 4, None, rounds).model_dump(mode="json")
    others = {field for field in dumped if field != path[0] and dumped[field] != default[field]}
    assert not others
    # And the command plays that configuration.
    printed = replay(capsys, "--preset", preset, "--rounds", str(rounds), "--seeds", "4", flag, text)
    policy = StagedPolicy(config)
    episode = environment.draw(rounds, np.random.default_rng(4))
    actions = policy.play(policy.initial_state(), episode.contexts, episode.rewards).history.actions[:rounds]
    assert printed["actions_sha256"] == {"4": sha256(actions.tolist())}


def test_every_also_takes_a_number_of_rounds() -> None:
    parser = argparse.ArgumentParser()
    add_replay(parser.add_subparsers())
    given = read_overrides(parser.parse_args(["replay", "--beliefs-every", "50"]))
    assert build_config("paper-complex", load_environment("nelson"), 1, given).beliefs.every == 50


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--preset", "greedy"], 1, ["'greedy'", "paper-complex", "oracle"]),
        (["--environment", "weather"], 1, ["'weather'", "credit-card"]),
        (["--seeds", "9-5"], 2, ["--seeds", "9-5", "1951-1960"]),
        (["--seeds", "x"], 2, ["--seeds", "'x'"]),
        (["--seeds", "1,,2"], 2, ["--seeds", "1,,2"]),
        (["--seeds", "5-"], 2, ["--seeds", "5-"]),
        (["--seeds", str(2**53)], 1, ["seed"]),
        (["--rounds", "0"], 2, ["--rounds", "'0'"]),
        (["--ridge", "-1"], 1, ["ridge", "-1"]),
        (["--ridge", "much"], 2, ["--ridge", "'much'"]),
        (["--stage-length", "0"], 1, ["stage_length", "0"]),
        (["--regimes", "50"], 1, ["regimes", "50"]),
        (["--bonus-form", "bold"], 1, ["bonus.form", "bold", "elliptical"]),
        (["--bonus-risk", "0.1"], 1, ["bonus.risk", "complex"]),
        (["--beliefs-estimator", "magic"], 1, ["beliefs.estimator", "magic"]),
        (["--beliefs-every", "{"], 2, ["--beliefs-every", "'{'"]),
        (["--beliefs-every", '{"factor": 0.5}'], 1, ["beliefs.every", "0.5"]),
        (["--features", '{"shared": ["height"]}'], 1, ["features", "height"]),
        (["--features", "[1]"], 1, ["features"]),
        (["--control-share", "2"], 1, ["control.share", "2"]),
        (["--jobs", "0"], 1, ["jobs"]),
    ],
)
def test_mistakes_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: list[str]
) -> None:
    try:
        found = cli.main(["replay", "--rounds", "50", "--seeds", "1", "--jobs", "1", *arguments])
    except SystemExit as stop:
        found = stop.code
    out, err = capsys.readouterr()
    assert found == code
    assert out == ""
    assert all(word in err for word in words), err
    assert "Traceback" not in err


# --- the published numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "overrides", "published", "two_se"),
    [
        ("paper-complex", {"stage_length": 37, "ridge": 1.0, "bonus": {"scale": 0.5}}, 4227, 5),
        ("plain-linucb", {"ridge": 0.1, "bonus": {"scale": 0.5}}, 1454, 6),
    ],
)
def test_published_cells_come_out_again(preset: str, overrides: dict, published: float, two_se: float) -> None:
    """Cells that tell implementations apart: 72 or 84 columns instead of 51 give about 4019 or 3991.

    Over 100 runs two standard errors are 5 (6), so a run's deviation is 25 (30) and that of a mean of 4 is 12.5 (15).
    """
    environment = load_environment("credit-card")
    seeds = range(1951, 1955)
    runs = [replay_seed(environment, preset, seed, 50_000, overrides).pseudo_regret[-1] for seed in seeds]
    per_run = two_se / 2 * 100**0.5
    assert abs(np.mean(runs) - published) <= 4 * per_run / len(runs) ** 0.5


def test_the_number_of_regimes_may_be_auto(capsys: pytest.CaptureFixture[str]) -> None:
    """`--regimes auto` reaches the configuration, and what is neither a number nor auto gets its own message."""
    arguments = ["replay", "--jobs", "1", "--preset", "default", "--rounds", "60", "--seeds", "4001", "--regimes"]
    assert cli.main([*arguments, "auto"]) == 0
    assert cli.main([*arguments, "two"]) == 1
    assert "'two' is not a number of regimes (allowed: 'auto', or 1 to 8)" in capsys.readouterr().err
