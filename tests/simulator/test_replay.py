"""Replays: compiled play against one decision at a time, seeds, measures, summaries and the `replay` command."""

import csv
import hashlib
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy import CampaignConfig, StagedPolicy
from policy.config import Beliefs, Bonus, Control
from simulator import cli
from simulator.commands import read_overrides
from simulator.environment import load_environment
from simulator.presets import build_config
from simulator.replay import (
    Run,
    Task,
    average,
    compute_belief_error,
    measure_run,
    pick_checkpoints,
    replay_seed,
    summarise,
)

EARLY = {"beliefs": {"start_round": 300, "every": {"factor": 1.2}}}


def sha256(actions: list[int]) -> str:
    return hashlib.sha256(np.array(actions, "<i2").tobytes()).hexdigest()


# --- one run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "environment_name", "overrides"),
    [
        ("paper-complex", "credit-card", EARLY),
        ("paper-simplified", "three-regimes", EARLY),
        ("plain-linucb", "credit-card", {}),
        ("known-hmm", "nelson", {"stage_length": 5}),
    ],
)
def test_compiled_play_equals_one_by_one(preset: str, environment_name: str, overrides: dict) -> None:
    rounds, seed = 1200, 1951
    environment = load_environment(environment_name)
    run = replay_seed(Task(environment, preset, seed, rounds, overrides))
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
    # The estimates are the same too, not only the actions.
    start_round = policy.config.beliefs.start_round
    again = measure_run(environment, episode, seed, np.array(actions, np.int16), np.array(beliefs), start_round)
    for mine, same in zip(run, again, strict=True):
        np.testing.assert_array_equal(mine, same)
    if preset == "paper-complex":
        assert not np.allclose(beliefs[-1], 0.5)  # beliefs were estimated
        assert run.belief_error == compute_belief_error(np.array(beliefs)[299:], episode.beliefs[299:])


def test_a_seed_reproduces_its_run_exactly() -> None:
    environment = load_environment("credit-card")
    first, again, other = (replay_seed(Task(environment, "paper-complex", seed, 1500)) for seed in (7, 7, 8))
    for mine, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(mine, same)
    assert first.actions_sha256 != other.actions_sha256
    by_belief = replay_seed(Task(environment, "paper-complex", 7, 1500, None, "belief"))
    assert first.actions_sha256 != by_belief.actions_sha256


def test_the_oracle_has_no_regret_and_known_parameters_no_belief_error() -> None:
    environment = load_environment("three-regimes")
    run = replay_seed(Task(environment, "oracle", 5, 600))
    assert not run.pseudo_regret.any()
    assert not run.actual_regret.any()
    assert math.isnan(run.belief_error)
    assert run.actions_sha256 == sha256(environment.draw(600, np.random.default_rng(5)).oracle.tolist())
    assert replay_seed(Task(environment, "known-hmm", 5, 600)).belief_error == pytest.approx(0, abs=1e-12)


def test_an_endless_warm_start_plays_uniformly() -> None:
    """The policy's own uniform draws earn what uniform play is expected to earn given the contexts."""
    environment = load_environment("credit-card")
    surplus, variance = 0.0, 0.0
    for seed in range(20):
        run = replay_seed(Task(environment, "plain-linucb", seed, 2000, {"warm_start_rounds": 2000}))
        values = environment.draw(2000, np.random.default_rng(seed)).values
        surplus += run.pseudo_regret[-1] - (values.max(axis=1) - values.mean(axis=1)).sum()
        variance += values.var(axis=1).sum()
    assert abs(surplus) <= 5 * variance**0.5


# --- measures ---------------------------------------------------------------------------------------------------------


def test_belief_error_uses_one_permutation_for_the_whole_run() -> None:
    true = np.tile([0.9, 0.1], (9, 1))
    assert compute_belief_error(true[:, ::-1], true) == 0
    torn = true.copy()
    torn[:3] = torn[:3, ::-1]  # right two thirds of the time; no permutation fits both parts
    assert compute_belief_error(torn, true) == pytest.approx(1.6 / 3)
    assert compute_belief_error(torn[:, ::-1], true) == pytest.approx(1.6 / 3)
    three = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    assert compute_belief_error(three[:, [1, 2, 0]], three) == 0


def test_belief_error_counts_from_the_start_round() -> None:
    environment = load_environment("nelson")
    episode = environment.draw(100, np.random.default_rng(1))
    beliefs = episode.beliefs.copy()
    beliefs[:59] = 0.5

    def measure(beliefs: np.ndarray, start_round: int) -> float:
        return measure_run(environment, episode, 1, np.zeros(100, np.int16), beliefs, start_round).belief_error

    assert measure(beliefs, 60) == 0
    assert measure(beliefs, 59) > 0
    assert math.isnan(measure(beliefs, 101))
    assert math.isnan(measure(np.ones((100, 1)), 1))  # H = 1


def test_action_shares_are_per_regime() -> None:
    environment = load_environment("nelson")
    episode = environment.draw(500, np.random.default_rng(1))
    actions = np.where(episode.regimes == 0, 2, np.arange(500) % 2).astype(np.int16)
    shares = measure_run(environment, episode, 1, actions, None, 1).action_shares
    odd = actions[episode.regimes == 1].mean()
    np.testing.assert_allclose(shares, [[0, 0, 1], [1 - odd, odd, 0]], atol=1e-12)


def test_checkpoints_are_evenly_spaced_and_end_at_the_last_round() -> None:
    for rounds in [*range(1, 420), 1234, 50_000]:
        marks = pick_checkpoints(rounds)
        assert (marks[-1], marks.size) == (rounds, min(rounds, 200))
        assert np.ptp(np.diff(marks, prepend=0)) <= 1


def test_summaries_are_plain_data() -> None:
    """Means and two standard errors, by hand."""

    def make_run(seed: int, pseudo: float, actual: float, shares: list) -> Run:
        curves = np.array([1.0, pseudo]), np.array([0.5, actual])
        return Run(seed, *curves, 0.1 * seed, np.array(shares), f"hash{seed}", 0.3 * seed, 0.5)

    summary = summarise([make_run(1, 10, 4, [[1, 0], [0, 1]]), make_run(2, 14, -4, [[0, 1], [0, 1]])])
    assert summary == {
        "pseudo_regret": {"mean": 12, "two_se": pytest.approx(4), "per_seed": [10, 14]},
        "actual_regret": {"mean": 0, "two_se": pytest.approx(8), "per_seed": [4, -4]},
        "reward": {"mean": pytest.approx(0.45), "two_se": pytest.approx(0.3), "per_seed": [0.3, 0.6]},
        "gain": {"mean": 0.5, "two_se": 0, "per_seed": [0.5, 0.5]},
        "belief_error": {"mean": pytest.approx(0.15), "two_se": pytest.approx(0.1), "per_seed": [0.1, 0.2]},
        "action_shares": [[0.5, 0.5], [0, 1]],
        "actions_sha256": {"1": "hash1", "2": "hash2"},
    }
    # Squares about the mean 3: 4 + 1 + 0 + 9 = 14.
    assert average([1.0, 2.0, 3.0, 6.0]) == (3, pytest.approx(2 * math.sqrt(14 / 3) / 2), [1, 2, 3, 6])


# --- the command ------------------------------------------------------------------------------------------------------


def refuse_nan(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The object that `replay --json` prints."""
    assert cli.main(["replay", "--jobs", "1", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=refuse_nan)


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "paper-complex", "--rounds", "1200", "--seeds", "3-4,9", "--stage-length", "15"]
    printed = replay(capsys, *options, "--jobs", "2")
    assert (printed["preset"], printed["environment"], printed["rounds"]) == ("paper-complex", "credit-card", 1200)
    environment = load_environment("credit-card")
    runs = [replay_seed(Task(environment, "paper-complex", seed, 1200, {"stage_length": 15})) for seed in (3, 4, 9)]
    expected = summarise(runs)
    assert {field: printed[field] for field in expected} == expected
    assert printed["seconds"] > 0


def test_missing_numbers_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no NaN: plain LinUCB and the oracle have no beliefs, one seed has no spread."""
    options = ["--rounds", "60", "--seeds"]
    assert replay(capsys, *options, "1-2", "--preset", "plain-linucb")["belief_error"]["mean"] is None
    oracle = replay(capsys, *options, "1-2", "--preset", "oracle")
    assert oracle["belief_error"]["mean"] is None
    assert oracle["pseudo_regret"] == {"mean": 0, "two_se": 0, "per_seed": [0, 0]}
    assert replay(capsys, *options, "5", "--preset", "known-hmm")["pseudo_regret"]["two_se"] is None


def test_the_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--environment", "three-regimes", "--preset", "known-hmm", "--rounds", "500", "--seeds", "1,2"]
    printed = replay(capsys, *options)
    assert cli.main(["replay", "--jobs", "1", *options]) == 0
    text = capsys.readouterr().out
    regret = printed["pseudo_regret"]
    assert f"{regret['mean']:.1f} ± {regret['two_se']:.1f}" in text
    for word in ("three-regimes", "500 rounds", "2 seeds", "belief error", "Slump", "Voucher"):
        assert word in text
    assert f"{printed['action_shares'][1][2]:.1%}" in text


def test_curves_and_plots_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "folder", tmp_path / "plots" / "regret"
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


# --- flags for the fields of the configuration ------------------------------------------------------------------------

# A value for every flag, on a preset that has the field. A text is itself, anything else is written as JSON.
MAP = {"shared": ["age"], "per_regime": ["actions"]}
COMPLEX = f"""
--stage-length 5 --ridge 0.3 --warm-start-rounds 20 --propensity-floor 0.1 --bonus-form elliptical --bonus-scale 0.7
--beliefs-estimator em --beliefs-start-round 120 --beliefs-every '{{"factor": 1.5}}' --beliefs-statistics refiltered
--beliefs-estimation auto --control-share 0.25 --control-kind baseline --features '{json.dumps(MAP)}'
"""
PRESETS = {
    "paper-complex": f"{COMPLEX} --regimes 3 --beliefs-every 50",
    "theory-general": "--bonus-risk 0.2 --bonus-horizon 900 --bonus-c-theta 2.5 --bonus-gamma 0.4 --bonus-c-eta 0.5",
    "theory-simplified": "--bonus-v-eta 0.6",
    "default": "--regimes auto --beliefs-window-rounds 5000",
}
WORDS = [(preset, word) for preset, line in PRESETS.items() for word in shlex.split(line)]
FLAGS = [(preset, flag, text) for (preset, flag), (_, text) in zip(WORDS[::2], WORDS[1::2], strict=True)]


def parse_overrides(*arguments: str) -> dict[str, Any]:
    return read_overrides(cli.build_parser().parse_args(["replay", *arguments]))


def test_every_hyper_parameter_has_a_flag() -> None:
    # Set by the environment or --seeds, or without meaning in a replay.
    without = {"name", "actions", "variables", "signals", "rewards", "seed", "clock"}
    without |= {"regime_labels", "retired_actions", "paused", "alerts", "retention_days", "extra_variables"}
    without |= {"bulk_evaluation"}
    sections = {"bonus": Bonus, "beliefs": Beliefs, "control": Control}
    paths = {(field,) for field in CampaignConfig.model_fields if field not in without | set(sections)}
    paths |= {(name, field) for name, part in sections.items() for field in part.model_fields}
    assert {tuple(field.split(".")) for field in cli.FIELDS} == paths - {("beliefs", "parameters")}
    assert {"--" + re.sub(r"[._]", "-", field) for field in cli.FIELDS} == {flag for _, flag, _ in FLAGS}


def test_a_flag_sets_its_field_and_no_other() -> None:
    environment = load_environment("credit-card")
    paths = {"--" + re.sub(r"[._]", "-", field): field.split(".") for field in cli.FIELDS}
    for preset, flag, text in FLAGS:
        path, value = paths[flag], text if text.isalpha() else json.loads(text)
        plain, changed = (
            build_config(preset, environment, 4, overrides, 320).model_dump(mode="json")
            for overrides in (None, parse_overrides(flag, text))
        )
        assert (changed[path[0]] if len(path) == 1 else changed[path[0]][path[1]]) == value, flag
        assert not {field for field in changed if field != path[0] and changed[field] != plain[field]}, flag


def test_the_command_plays_the_configuration_of_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = shlex.split(COMPLEX)
    printed = replay(capsys, "--preset", "paper-complex", "--rounds", "320", "--seeds", "4", *flags)
    environment = load_environment("credit-card")
    policy = StagedPolicy(build_config("paper-complex", environment, 4, parse_overrides(*flags), 320))
    episode = environment.draw(320, np.random.default_rng(4))
    actions = policy.play(policy.initial_state(), episode.contexts, episode.rewards).history.actions[:320]
    assert printed["actions_sha256"] == {"4": sha256(actions.tolist())}
