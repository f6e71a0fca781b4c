"""Replays through a real service: the same runs as in process, whatever happens to the service or to the client."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from simulator import cli
from simulator.agents import HttpAgent, LocalAgent
from simulator.client import Client, ClientError, UnreachableError
from simulator.delivery import Delivery
from simulator.environment import load_environment
from simulator.replay import Game, Run, Task, replay_seed
from simulator.runs import Remote, play_at_service
from tests.simulator.conftest import Server

CREDIT_CARD = load_environment("credit-card")
LATE = Delivery("geometric", 20.0, 0.1)


def assert_same(mine: Run | None, other: Run) -> None:
    """To the last digit."""
    assert mine is not None
    for field, first, second in zip(Run._fields, mine, other, strict=True):
        np.testing.assert_array_equal(first, second, err_msg=field)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# --- parity -----------------------------------------------------------------------------------------------------------


PRESETS = ("plain-linucb", "paper-complex", "paper-simplified", "known-hmm", "default")
EARLY = {preset: {"beliefs": {"start_round": 260}} for preset in ("paper-complex", "paper-simplified")}
STAGES = {"plain-linucb": {"stage_length": 20}}  # its own have one round: by stage is one by one


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_preset_plays_the_same_rounds_in_process_and_over_http(kind, launch, new_database):
    """One by one and by stage, several campaigns at once; with late and lost rewards too.

    One by one a round costs two requests: there the paper's presets begin to estimate early, and all play fewer rounds.
    """
    by_stage = [Task(CREDIT_CARD, preset, 1951, 2000, STAGES.get(preset)) for preset in PRESETS]
    one_by_one = [Task(CREDIT_CARD, preset, 1951, 300, EARLY.get(preset)) for preset in PRESETS]
    late = Task(CREDIT_CARD, "default", 1952, 300, delivery=LATE)
    database_url = new_database(kind)
    if kind == "postgresql":
        hasten(database_url)
    server = launch(database_url)
    played = {}
    for batch, tasks in ((True, by_stage), (False, one_by_one)):
        remote = Remote(server.url, batch=batch, name=f"batch-{batch}".lower(), concurrency=5)
        outcome = play_at_service(tasks, remote)
        rounds = tasks[0].rounds
        assert (outcome.problem, outcome.rounds, outcome.played) == (None, rounds, [rounds] * 5)
        played[batch] = [replay_seed(*task) for task in [*tasks, late]]
        for mine, expected in zip(outcome.runs + play_at_service([late], remote).runs, played[batch], strict=True):
            assert_same(mine, expected)
        # They did learn, each in its way, and late rewards made a difference.
        assert len({run.actions_sha256 for run in played[batch]}) == 6
    server.kill()
    assert played[True][4].gain > 0.6
    assert played[True][5].actions_sha256 != replay_seed(CREDIT_CARD, "default", 1952, 300).actions_sha256


def hasten(database_url: str) -> None:
    """Let PostgreSQL answer before its disk does: the test needs thousands of commits, and no crash."""
    engine = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{engine.url.database}" SET synchronous_commit = off'))
    engine.dispose()


def test_the_command_reports_the_same_over_http(embedded: Server, capsys, tmp_path):
    play = ["replay", "--json", "--preset", "paper-complex", "--rounds", "400", "--seeds", "5-7"]
    shape = ["--stage-length", "15", "--beliefs-start-round", "100", "--reward-delay", "exponential:8"]
    assert cli.main([*play, *shape, "--jobs", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    where = ["--url", embedded.url, "--name", "reports", "--concurrency", "3", "--batch", "stage"]
    files = ["--out", str(tmp_path / "out"), "--plot", str(tmp_path / "plot")]
    assert cli.main([*play, *shape, *where, *files]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {**printed, "seconds": 0, "rounds_per_second": 0} == {**alone, "seconds": 0, "rounds_per_second": 0}
    assert json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8")) == printed
    assert (tmp_path / "plot.svg").exists()
    with Client(embedded.url) as client:
        config = client.get_campaign("reports-6").config
    assert (config["seed"], config["stage_length"], config["beliefs"]["estimation"]) == (6, 15, "inline")


def test_campaigns_are_named_after_preset_environment_and_seed(embedded: Server, capsys):
    arguments = ["replay", "--environment", "nelson", "--preset", "plain-linucb", "--rounds", "20", "--seeds", "3"]
    assert cli.main([*arguments, "--url", embedded.url, "--beliefs-estimation", "auto"]) == 0
    assert "plain-linucb on nelson: 20 rounds" in capsys.readouterr().out
    assert embedded.round("plain-linucb-nelson-3") == 20
    with Client(embedded.url) as client:
        assert client.get_campaign("plain-linucb-nelson-3").config["beliefs"]["estimation"] == "auto"
    stored = httpx.get(f"{embedded.url}/campaigns/plain-linucb-nelson-3/decisions/plain-linucb-nelson-3-20").json()
    assert stored["round"] == 20
    assert stored["reward"] is not None


# --- interruptions ----------------------------------------------------------------------------------------------------


class Player(threading.Thread):
    """Plays a task in the background."""

    def __init__(self, task: Task, remote: Remote) -> None:
        super().__init__()
        self._task, self._remote, self.outcome = task, remote, None
        self.start()

    def run(self) -> None:
        self.outcome = play_at_service([self._task], self._remote)


def test_a_killed_service_is_waited_for(launch, new_database):
    """Nobody tells the client: it repeats the request that got no answer until there is a service again."""
    server = launch(new_database("sqlite"))
    tasks = [Task(CREDIT_CARD, "default", seed, rounds, delivery=LATE) for seed, rounds in ((1, 500), (2, 3000))]
    players = [Player(task, Remote(server.url, batch=i == 1, name="killed")) for i, task in enumerate(tasks)]
    for reached in (100, 300):
        wait_until(lambda reached=reached: server.round("killed-1") >= reached)
        server.kill()
        server.start()
    for task, player in zip(tasks, players, strict=True):
        player.join()
        assert player.outcome.problem is None
        assert_same(player.outcome.runs[0], replay_seed(*task))
    # Without a service for longer than it has patience, it says so, and keeps what ran.
    task = Task(CREDIT_CARD, "plain-linucb", 3, 20_000)
    player = Player(task, Remote(server.url, name="killed", patience=0.5))
    wait_until(lambda: server.round("killed-3") >= 50)
    server.kill()
    player.join()
    outcome = player.outcome
    assert isinstance(outcome.problem, UnreachableError)
    assert server.url in str(outcome.problem)
    assert 49 <= outcome.rounds == outcome.played[0] < 20_000
    assert outcome.runs[0].actions_sha256 == prefix(task, outcome.rounds).actions_sha256


def prefix(task: Task, rounds: int) -> Run:
    """What the task has given after so many rounds."""
    episode = task.draw_episode()
    game = Game(task, task.build_config(), episode, task.delivery.schedule(episode.delays, task.rounds, task.seed))
    game.play(LocalAgent(game.config), game.config.stage_length)
    return game.measure(rounds)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_reports_what_ran_and_the_next_run_goes_on(embedded: Server, capsys):
    """Stopped one by one, resumed by stage."""
    play = ["replay", "--json", "--url", embedded.url, "--name", "stopped", "--preset", "default"]
    play += ["--rounds", "1500", "--seeds", "8,9", "--reward-delay", "5", "--reward-loss", "0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator.cli", *play], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: embedded.round("stopped-8") >= 250)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    for words in ("of 1,500 rounds", "0 of 2 campaigns", "the same command continues"):
        assert words in err
    printed = json.loads(out)
    rounds = embedded.round("stopped-8")
    assert 250 <= printed["rounds"] <= rounds < 1500
    delivery = Delivery("geometric", 5.0, 0.2)
    tasks = [Task(CREDIT_CARD, "default", seed, 1500, delivery=delivery) for seed in (8, 9)]
    assert printed["actions_sha256"] == {"8": prefix(tasks[0], printed["rounds"]).actions_sha256}
    assert cli.main([*play, "--batch", "stage", "--concurrency", "2"]) == 0
    whole = json.loads(capsys.readouterr().out)
    for task, regret in zip(tasks, whole["pseudo_regret"]["per_seed"], strict=True):
        run = replay_seed(*task)
        assert whole["actions_sha256"][str(task.seed)] == run.actions_sha256
        assert regret == run.pseudo_regret[-1]


def test_a_finished_run_is_reported_again_without_a_new_round(embedded: Server):
    task = Task(load_environment("three-regimes"), "paper-simplified", 2, 1300)
    first, again = (play_at_service([task], Remote(embedded.url, batch=batch)) for batch in (True, False))
    assert_same(first.runs[0], again.runs[0])
    assert embedded.round("paper-simplified-three-regimes-2") == 1300


# --- errors -----------------------------------------------------------------------------------------------------------


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that fails says."""
    assert cli.main(["replay", "--preset", "plain-linucb", "--rounds", "60", "--seeds", "1", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


class Impostor(BaseHTTPRequestHandler):
    """Answers every GET with the given status and body."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def impostor():
    """Called with an answer, it starts a server that gives no other."""
    servers: list[HTTPServer] = []

    def start(status: int, body: str) -> str:
        handler = type("Handler", (Impostor,), {"status": status, "body": body.encode()})
        servers.append(HTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_no_service_at_the_address(capsys):
    err = failed(capsys, "--url", "http://127.0.0.1:1")
    assert "no service at http://127.0.0.1:1" in err
    assert "make run" in err


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "nonsense"])
def test_not_an_address(capsys, url):
    assert "is not the address of a service, like http://127.0.0.1:8000" in failed(capsys, "--url", url)


@pytest.mark.parametrize(
    ("status", "body"), [(200, "<html>"), (200, "[1]"), (200, '{"status": "ok"}'), (404, "gone"), (302, "")]
)
def test_something_else_answers(capsys, impostor, status, body):
    assert "not an Undercurrent service" in failed(capsys, "--url", impostor(status, body))


def test_another_version(capsys, impostor):
    err = failed(capsys, "--url", impostor(200, '{"status": "ok", "version": "9.8.7"}'))
    assert "9.8.7" in err
    assert version("undercurrent") in err


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key(capsys, impostor, status):
    url = impostor(status, '{"error": {"code": "unauthorized", "message": "This key is not known", "fields": []}}')
    err = failed(capsys, "--url", url, "--key", "secret")
    assert f"wrong key for {url}: This key is not known" in err
    assert "secret" not in err
    assert f"a key is needed for {url}" in failed(capsys, "--url", url)


def test_a_service_with_keys(launch, new_database, capsys, monkeypatch):
    """`--key` and its variable open it; without them, or with a key of too little, nothing is played."""
    database_url = new_database("sqlite")

    def key(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "service.cli.commands",
            "keys",
            "create",
            *arguments,
            "--database-url",
            database_url,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    admin, viewer = key("--role", "admin", "--campaign", "keyed-1"), key("--role", "viewer")
    server = launch(database_url)
    replay = ["replay", "--preset", "plain-linucb", "--rounds", "60", "--seeds", "1", "--name", "keyed"]
    assert "a key is needed" in failed(capsys, "--url", server.url)
    assert "needs a key of role admin" in failed(capsys, "--url", server.url, "--key", viewer)
    assert cli.main([*replay, "--url", server.url, "--key", admin]) == 0
    monkeypatch.setenv("UNDERCURRENT_KEY", admin)
    assert cli.main([*replay, "--url", server.url]) == 0
    with Client(server.url, viewer) as client:
        (name,) = [one["name"] for one in client._call("GET", "/campaigns")["campaigns"]]
        assert client.get_campaign(name).round == 60
    server.kill()


def test_a_campaign_with_another_configuration(embedded: Server, capsys):
    where = ["--url", embedded.url, "--name", "taken"]
    assert cli.main(["replay", "--preset", "plain-linucb", "--rounds", "60", "--seeds", "1", *where]) == 0
    capsys.readouterr()
    err = failed(capsys, *where, "--ridge", "7", "--stage-length", "3")
    assert "campaign taken-1 exists" in err
    assert "stage_length, ridge" in err
    assert "--name" in err
    assert embedded.round("taken-1") == 60


def test_a_campaign_that_was_described_in_other_words_is_the_same(embedded: Server):
    task = Task(CREDIT_CARD, "default", 4, 40)
    config = task.build_config("words-4")
    httpx.post(f"{embedded.url}/campaigns", json=config.model_dump(mode="json", exclude_unset=True)).raise_for_status()
    assert play_at_service([task], Remote(embedded.url, name="words")).problem is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--rounds", "50"], ["60 rewards in 60 rounds", "--rounds"]),
        (["--reward-model", "belief"], ["belongs to a different run", "--reward-model"]),
        (["--reward-delay", "30"], ["60 rewards in 60 rounds", "--reward-delay"]),
        (["--reward-loss", "1"], ["60 rewards in 60 rounds", "--reward-loss"]),
        (["--rounds", "70"], ["belongs to a different run"]),
    ],
)
def test_a_campaign_that_holds_another_run(embedded: Server, capsys, change, words):
    where = ["--url", embedded.url, "--name", "held"]
    assert cli.main(["replay", "--preset", "plain-linucb", "--rounds", "60", "--seeds", "1", *where]) == 0
    capsys.readouterr()
    err = failed(capsys, *where, *change)
    assert all(word in err for word in words), err
    assert "--name" in err
    assert embedded.round("held-1") == 60


def test_someone_else_decides_in_the_campaign(embedded: Server):
    task = Task(CREDIT_CARD, "plain-linucb", 1, 30)
    config, episode = task.build_config("shared-1"), task.draw_episode()
    with Client(embedded.url) as client:
        agent = HttpAgent(client, config)
        agent.decide([CREDIT_CARD.describe_context(episode, 0)])
        client.decide("shared-1", "order-7", CREDIT_CARD.describe_context(episode, 0))
        with pytest.raises(ClientError, match="another client is using"):
            agent.decide([CREDIT_CARD.describe_context(episode, 1)])


@pytest.mark.parametrize("flag", [["--key", "k"], ["--batch", "stage"], ["--name", "n"], ["--concurrency", "2"]])
def test_flags_of_a_service_need_one(capsys, flag):
    assert f"{flag[0]}: needs --url" in failed(capsys, *flag)


def test_the_oracle_is_no_campaign(capsys):
    assert "the oracle has no campaign" in failed(capsys, "--url", "http://127.0.0.1:1", "--preset", "oracle")


def test_the_key_may_come_from_the_environment(impostor, capsys, monkeypatch):
    monkeypatch.setenv("UNDERCURRENT_KEY", "from the environment")
    url = impostor(403, '{"error": {"code": "forbidden", "message": "Not yours", "fields": []}}')
    assert f"wrong key for {url}" in failed(capsys, "--url", url)


# --- a configuration of one's own -------------------------------------------------------------------------------------

OWN = {
    "name": "fewer-words",
    "actions": ["Email", "No action"],
    "variables": [{"name": "risk", "levels": ["5", "4", "3", "2", "1"]}, {"name": "age", "levels": list("12345")}],
    "signals": ["risk"],
    "warm_start_rounds": 40,
}


def written(folder: Path, config: Any, name: str = "my config.json") -> str:
    file = folder / name
    file.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(file)


def test_a_configuration_file_is_played_in_process_and_over_http(embedded: Server, capsys, tmp_path):
    """Its actions and variables may be fewer than the environment's, and in another order."""
    play = ["replay", "--json", "--config", written(tmp_path, OWN), "--rounds", "300", "--seeds", "1"]
    play += ["--stage-length", "12"]
    assert cli.main([*play, "--jobs", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert cli.main([*play, "--url", embedded.url]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["preset"] == alone["preset"] == "fewer-words"
    assert printed["actions_sha256"] == alone["actions_sha256"]
    assert printed["pseudo_regret"] == alone["pseudo_regret"]
    assert [shares[1] for shares in printed["action_shares"]] == [0, 0]  # nobody is called
    with Client(embedded.url) as client:
        campaign = client.get_campaign("fewer-words-1")
    assert (campaign.round, campaign.config["stage_length"], campaign.config["seed"]) == (300, 12, 1)
    assert campaign.config["beliefs"]["estimation"] == "inline"


def test_a_configuration_file_in_the_environments_own_words_is_a_preset(capsys, tmp_path):
    """The compiled way and the way through words give the same."""
    config = Task(CREDIT_CARD, "paper-complex", 1, 400).build_config().model_dump(mode="json", exclude={"name"})
    reordered = {**config, "actions": ["No action", "Email", "Call"]}
    digests = []
    for i, fields in enumerate((config, {**config, "variables": config["variables"][::-1]}, reordered)):
        file = written(tmp_path, fields, f"copy-{i}.json")
        play = ["replay", "--json", "--jobs", "1", "--config", file, "--rounds", "400", "--seeds", "1"]
        assert cli.main(play) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["preset"] == f"copy-{i}"
        digests.append(printed["actions_sha256"]["1"])
    assert digests[0] == digests[1] == replay_seed(CREDIT_CARD, "paper-complex", 1, 400).actions_sha256
    assert digests[2] != digests[0]  # uniform draws fall on other actions


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**OWN, "actions": ["Email", "Visit"]}, ["actions", "Visit", "No action"]),
        ({**OWN, "variables": [{"name": "height", "levels": ["a", "b"]}], "signals": []}, ["height", "marital_status"]),
        ({**OWN, "variables": [{"name": "risk", "levels": ["1", "2"]}]}, ["risk", "allowed"]),
        ({**OWN, "clock": {"period_seconds": 60}}, ["clock", "no times"]),
        ({**OWN, "ridge": -1}, ["ridge", "-1"]),
        ({**OWN, "beliefs": []}, ["beliefs"]),
        ("{", ["is not JSON"]),
        ("[]", ["object"]),
    ],
)
def test_mistakes_in_a_configuration_file_are_named(capsys, tmp_path, config, words):
    arguments = ["replay", "--jobs", "1", "--rounds", "60", "--seeds", "1", "--config", written(tmp_path, config)]
    assert cli.main(arguments) == 1
    err = capsys.readouterr().err
    assert all(word in err for word in words), err
    assert "Traceback" not in err


def test_a_configuration_file_that_is_missing(capsys, tmp_path):
    assert cli.main(["replay", "--jobs", "1", "--config", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
