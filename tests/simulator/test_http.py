"""Replays at a real service: the same runs as in process, even if the service or the client is stopped."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from simulator import cli
from simulator.agents import HttpAgent, LocalAgent
from simulator.delivery import Delivery
from simulator.environment import load_environment
from simulator.replay import Game, Run, Task, replay_seed
from simulator.runs import Remote, play_at_service
from tests.service.playing import eventually
from tests.simulator.conftest import Server
from undercurrent_client import Client, ClientError, UnreachableError

CREDIT_CARD = load_environment("credit-card")
LATE = Delivery("geometric", 20.0, 0.1)


def assert_same(mine: Run | None, other: Run) -> None:
    """Equal to the last digit."""
    assert mine is not None
    for field, first, second in zip(Run._fields, mine, other, strict=True):
        np.testing.assert_array_equal(first, second, err_msg=field)


# --- parity -----------------------------------------------------------------------------------------------------------


PRESETS = ("plain-linucb", "paper-complex", "paper-simplified", "known-hmm", "default")
EARLY = {preset: {"beliefs": {"start_round": 260}} for preset in ("paper-complex", "paper-simplified")}
STAGES = {"plain-linucb": {"stage_length": 20}}  # its own stage is one round, so batches would make no difference


def assert_parity(url: str, tasks: list[Task], batch: bool) -> list[Run]:
    """Play the tasks at the service and in process, compare the runs, and return them."""
    outcome = play_at_service(tasks, Remote(url, batch=batch, name=f"batch-{batch}".lower(), concurrency=len(tasks)))
    rounds = tasks[0].rounds
    assert (outcome.problem, outcome.rounds, outcome.played) == (None, rounds, [rounds] * len(tasks))
    expected = [replay_seed(task) for task in tasks]
    for mine, run in zip(outcome.runs, expected, strict=True):
        assert_same(mine, run)
    return expected


def test_every_preset_plays_the_same_rounds_in_process_and_over_http(embedded: Server):
    """Singly and by stage, several campaigns at a time, also with late and lost rewards.

    Singly, a round costs two requests, so those runs are short and the paper's presets start to estimate early.
    """
    runs = assert_parity(embedded.url, [Task(CREDIT_CARD, p, 1951, 1200, STAGES.get(p)) for p in PRESETS], batch=True)
    assert len({run.actions_sha256 for run in runs}) == 5
    assert runs[4].gain > 0.5  # it learned
    singly = [Task(CREDIT_CARD, preset, 1951, 280, EARLY.get(preset)) for preset in PRESETS]
    late = Task(CREDIT_CARD, "default", 1952, 280, delivery=LATE)
    runs = assert_parity(embedded.url, [*singly, late], batch=False)
    assert len({run.actions_sha256 for run in runs}) == 6
    assert runs[5].actions_sha256 != replay_seed(Task(CREDIT_CARD, "default", 1952, 280)).actions_sha256


def test_postgresql_plays_the_same_rounds_too(launch, new_database):
    database_url = new_database("postgresql")
    hasten(database_url)
    server = launch(database_url)
    for batch, rounds in ((True, 1200), (False, 100)):
        tasks = [Task(CREDIT_CARD, preset, 1951, rounds, delivery=LATE) for preset in ("paper-complex", "default")]
        assert_parity(server.url, tasks, batch)
    server.kill()


def hasten(database_url: str) -> None:
    """Let PostgreSQL answer before writing to disk: the test makes many commits and needs no crash safety."""
    engine = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{engine.url.database}" SET synchronous_commit = off'))
    engine.dispose()


def test_the_command_reports_the_same_over_http(embedded: Server, capsys, tmp_path):
    play = ["replay", "--json", "--preset", "paper-complex", "--rounds", "400", "--seeds", "5-7"]
    play += ["--stage-length", "15", "--beliefs-start-round", "100", "--reward-delay", "exponential:8"]
    assert cli.main([*play, "--jobs", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    where = ["--url", embedded.url, "--concurrency", "3", "--batch", "stage"]
    assert cli.main([*play, *where, "--out", str(tmp_path / "out"), "--plot", str(tmp_path / "plot")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {**printed, "seconds": 0, "rounds_per_second": 0} == {**alone, "seconds": 0, "rounds_per_second": 0}
    assert json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8")) == printed
    assert (tmp_path / "plot.svg").exists()
    name = "paper-complex-credit-card-6"  # preset, environment, seed
    with Client(embedded.url) as client:
        config = client.get_campaign(name).config
    assert (config["seed"], config["stage_length"], config["beliefs"]["estimation"]) == (6, 15, "inline")
    assert httpx.get(f"{embedded.url}/campaigns/{name}/decisions/{name}-20").json()["round"] == 20


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_the_client_waits_for_a_killed_service(launch, new_database):
    """It repeats the unanswered request until the service is back, or its patience runs out."""
    server = launch(new_database("sqlite"))
    tasks = [Task(CREDIT_CARD, "default", seed, rounds, delivery=LATE) for seed, rounds in ((1, 250), (2, 1500))]
    task = Task(CREDIT_CARD, "plain-linucb", 3, 20_000)
    with ThreadPoolExecutor(2) as pool:
        remotes = [Remote(server.url, batch=batch, name="killed") for batch in (False, True)]
        players = [pool.submit(play_at_service, [each], remote) for each, remote in zip(tasks, remotes, strict=True)]
        eventually(lambda: server.get_round("killed-1") >= 80, "played")
        server.kill()
        server.start()
        for each, player in zip(tasks, players, strict=True):
            assert player.result().problem is None
            assert_same(player.result().runs[0], replay_seed(each))
        player = pool.submit(play_at_service, [task], Remote(server.url, name="killed", patience=0.5))
        eventually(lambda: server.get_round("killed-3") >= 50, "played")
        server.kill()
        outcome = player.result()
    assert isinstance(outcome.problem, UnreachableError)
    assert server.url in str(outcome.problem)
    assert 49 <= outcome.rounds == outcome.played[0] < 20_000
    assert outcome.runs[0].actions_sha256 == play_prefix(task, outcome.rounds).actions_sha256


def play_prefix(task: Task, rounds: int) -> Run:
    """The task's run, cut after this many rounds."""
    game = Game(task, task.build_config())
    game.play(LocalAgent(game.config), game.config.stage_length)
    return game.measure(rounds)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.slow
def test_ctrl_c_reports_the_rounds_played_and_the_next_run_continues(embedded: Server, capsys):
    """Stopped while sending singly, resumed by stage."""
    play = ["replay", "--json", "--url", embedded.url, "--name", "stopped", "--preset", "default"]
    play += ["--rounds", "600", "--seeds", "8,9", "--reward-delay", "5", "--reward-loss", "0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator.cli", *play], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: embedded.get_round("stopped-8") >= 100, "played")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    for words in ("of 600 rounds", "0 of 2 campaigns", "the same command continues"):
        assert words in err
    printed = json.loads(out)
    rounds = embedded.get_round("stopped-8")
    assert 100 <= printed["rounds"] <= rounds < 600
    delivery = Delivery("geometric", 5.0, 0.2)
    tasks = [Task(CREDIT_CARD, "default", seed, 600, delivery=delivery) for seed in (8, 9)]
    assert printed["actions_sha256"] == {"8": play_prefix(tasks[0], printed["rounds"]).actions_sha256}
    assert cli.main([*play, "--batch", "stage", "--concurrency", "2"]) == 0
    whole = json.loads(capsys.readouterr().out)
    for task, regret in zip(tasks, whole["pseudo_regret"]["per_seed"], strict=True):
        run = replay_seed(task)
        assert whole["actions_sha256"][str(task.seed)] == run.actions_sha256
        assert regret == run.pseudo_regret[-1]


# --- errors -----------------------------------------------------------------------------------------------------------


SHORT = ["replay", "--preset", "plain-linucb", "--rounds", "60", "--seeds", "1"]


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails, and return its message."""
    assert cli.main([*SHORT, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.slow
def test_a_service_with_keys(launch, new_database, capsys, monkeypatch):
    """The key comes from `--key` or the variable; without one, nothing is played."""
    database_url = new_database("sqlite")
    command = [sys.executable, "-m", "service.cli", "keys", "create", "--role", "admin"]
    command += ["--campaign", "keyed-1", "--database-url", database_url]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    server = launch(database_url)
    replay = [*SHORT, "--name", "keyed"]
    assert "a key is needed" in fail(capsys, "--url", server.url)
    wrong = fail(capsys, "--url", server.url, "--key", "secret")
    assert f"wrong key for {server.url}" in wrong
    assert "secret" not in wrong
    assert cli.main([*replay, "--url", server.url, "--key", key]) == 0
    monkeypatch.setenv("UNDERCURRENT_KEY", key)
    assert cli.main([*replay, "--url", server.url]) == 0
    with Client(server.url, key) as client:
        assert client.get_campaign("keyed-1").round == 60
    server.kill()


def test_a_campaign_created_with_fewer_fields_is_the_same_and_a_finished_run_decides_nothing_new(embedded: Server):
    task = Task(CREDIT_CARD, "default", 4, 40)
    config = task.build_config("fewer-4")
    httpx.post(f"{embedded.url}/campaigns", json=config.model_dump(mode="json", exclude_unset=True)).raise_for_status()
    first, again = (play_at_service([task], Remote(embedded.url, name="fewer", batch=batch)) for batch in (True, False))
    assert first.problem is None
    assert_same(first.runs[0], again.runs[0])
    assert embedded.get_round("fewer-4") == 40


def test_a_campaign_of_another_run_is_refused(embedded: Server, capsys):
    where = ["--url", embedded.url, "--name", "held"]
    assert cli.main([*SHORT, *where]) == 0
    capsys.readouterr()
    for flags, reason in (
        (["--rounds", "50"], "60 rewards in 60 rounds"),
        (["--rounds", "70"], "belongs to a different run"),
        (["--reward-model", "belief"], "belongs to a different run"),
        (["--reward-delay", "30"], "60 rewards in 60 rounds"),
        (["--reward-loss", "1"], "60 rewards in 60 rounds"),
        (["--ridge", "7", "--stage-length", "3"], "exists at .* with a different configuration .*stage_length, ridge"),
    ):
        err = fail(capsys, *where, *flags)
        assert re.search(f"campaign held-1 .*{reason}.*choose another --name", err), err
        assert "configuration" in reason or flags[0] in err
    assert embedded.get_round("held-1") == 60


def test_another_client_in_the_same_campaign_is_noticed(embedded: Server):
    task = Task(CREDIT_CARD, "plain-linucb", 1, 30)
    config, episode = task.build_config("shared-1"), task.draw_episode()
    with Client(embedded.url) as client:
        agent = HttpAgent(client, config)
        agent.decide([CREDIT_CARD.describe_context(episode, 0)])
        client.decide("shared-1", CREDIT_CARD.describe_context(episode, 0), decision_id="order-7")
        with pytest.raises(ClientError, match="another client is using"):
            agent.decide([CREDIT_CARD.describe_context(episode, 1)])


# --- configuration files ---------------------------------------------------------------------------------------------

OWN = {
    "name": "fewer-actions",
    "actions": ["Email", "No action"],
    "variables": [{"name": "risk", "levels": ["5", "4", "3", "2", "1"]}, {"name": "age", "levels": list("12345")}],
    "signals": ["risk"],
    "warm_start_rounds": 40,
}


def write_config(folder: Path, config: Any, name: str = "my config.json") -> str:
    file = folder / name
    file.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(file)


def test_a_configuration_file_is_played_in_process_and_over_http(embedded: Server, capsys, tmp_path):
    """Its actions and variables may be fewer than the environment's, and in another order."""
    play = ["replay", "--json", "--config", write_config(tmp_path, OWN), "--rounds", "300", "--seeds", "1"]
    play += ["--stage-length", "12"]
    assert cli.main([*play, "--jobs", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert cli.main([*play, "--url", embedded.url]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["preset"] == alone["preset"] == "fewer-actions"
    assert printed["actions_sha256"] == alone["actions_sha256"]
    assert printed["pseudo_regret"] == alone["pseudo_regret"]
    assert [shares[1] for shares in printed["action_shares"]] == [0, 0]  # no calls
    with Client(embedded.url) as client:
        campaign = client.get_campaign("fewer-actions-1")
    assert (campaign.round, campaign.config["stage_length"], campaign.config["seed"]) == (300, 12, 1)
    assert campaign.config["beliefs"]["estimation"] == "inline"


def test_a_configuration_file_plays_like_the_same_preset(capsys, tmp_path):
    """With the environment's order of variables play is compiled, with another it is not; both give the same."""
    config = Task(CREDIT_CARD, "paper-complex", 1, 400).build_config().model_dump(mode="json", exclude={"name"})
    reordered = {**config, "actions": ["No action", "Email", "Call"]}
    digests = []
    for i, fields in enumerate((config, {**config, "variables": config["variables"][::-1]}, reordered)):
        file = write_config(tmp_path, fields, f"copy-{i}.json")
        play = ["replay", "--json", "--jobs", "1", "--config", file, "--rounds", "400", "--seeds", "1"]
        assert cli.main(play) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["preset"] == f"copy-{i}"
        digests.append(printed["actions_sha256"]["1"])
    assert digests[0] == digests[1] == replay_seed(Task(CREDIT_CARD, "paper-complex", 1, 400)).actions_sha256
    assert digests[2] != digests[0]  # the same uniform draws select other actions


def test_mistakes_in_a_configuration_file_are_named(capsys, tmp_path):
    for config, words in (
        ({**OWN, "actions": ["Email", "Visit"]}, ["actions", "Visit", "No action"]),
        ({**OWN, "variables": [{"name": "height", "levels": ["a", "b"]}], "signals": []}, ["height", "marital_status"]),
        ({**OWN, "variables": [{"name": "risk", "levels": ["1", "2"]}]}, ["risk", "allowed"]),
        ({**OWN, "clock": {"period_seconds": 60}}, ["clock", "no times"]),
        ({**OWN, "ridge": -1}, ["ridge", "-1"]),
        ({**OWN, "beliefs": []}, ["beliefs"]),
        ("{", ["is not JSON"]),
        ("[]", ["object"]),
    ):
        assert cli.main(["replay", "--rounds", "60", "--seeds", "1", "--config", write_config(tmp_path, config)]) == 1
        err = capsys.readouterr().err
        assert all(word in err for word in words), err
        assert "Traceback" not in err
