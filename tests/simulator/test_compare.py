"""Comparing policies: the table, the page that opens offline, and the demo with its own service."""

import json
import re
import signal
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import httpx
import numpy as np
import pytest

from simulator import cli
from simulator.compare import POLICIES, Comparison, compare_runs
from simulator.environment import load_environment
from simulator.replay import Run, Task, replay_seed
from tests.simulator.conftest import Server

HOSTILE_NAME = "<script src=http://evil.test/x.js></script>&"


def make_run(seed: int, regret: float, reward: float = 0.5) -> Run:
    curve = np.linspace(regret / 200, regret, 200)
    return Run(seed, curve, curve - 1.0, float("nan"), np.eye(2), "hash", reward, 1.0 - regret / 100.0)


def columns(table: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in table.splitlines()]


class Page(HTMLParser):
    """The contents of a page, and every address from which a browser would load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)
        self.loads += re.findall(r"@import|url\((?!#)[^)]*\)", text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "data", "srcset", "action", "poster"):
                self.loads += [] if (value or "").startswith("#") else [f"{tag} {name}={value}"]
            assert not name.startswith("on"), f"{tag} runs a script"

    def handle_data(self, data: str) -> None:
        self.text += data


# --- the comparison ---------------------------------------------------------------------------------------------------


def test_the_table_by_hand():
    runs = {"plain-linucb": [make_run(1, 10.0), make_run(2, 14.0)], "default": [make_run(1, 4.0), make_run(2, 4.0)]}
    title, _, plain, default = columns(Comparison(runs, 400, {}).format_table())
    assert title == ["policy", "pseudo-regret", "regret on rewards", "reward per decision", "gain captured"]
    assert plain == ["plain-linucb", "12.0 ± 4.0", "11.0 ± 4.0", "0.5000 ± 0.0000", "88.0% ± 4.0%"]
    assert default == ["default", "4.0 ± 0.0", "3.0 ± 0.0", "0.5000 ± 0.0000", "96.0% ± 0.0%"]
    alone = {"default": [make_run(1, 4.0)._replace(gain=float("nan"))]}
    assert columns(Comparison(alone, 400, {}).format_table())[2] == ["default", "4.0", "3.0", "0.5000", "–"]


def test_only_seeds_that_every_policy_finished_are_compared():
    runs = {
        "plain-linucb": [make_run(1, 10.0), make_run(2, 14.0), None],
        "default": [None, make_run(2, 4.0), make_run(3, 4.0)],
    }
    comparison = compare_runs(runs, 400, {"environment": "here"})
    assert comparison is not None
    assert [[run.seed for run in comparison.runs[preset]] for preset in ("plain-linucb", "default")] == [[2], [2]]
    assert comparison.ran == {"environment": "here", "rounds": "400", "seeds": "2"}
    assert compare_runs({"a": [make_run(1, 10.0), None], "b": [None, make_run(2, 4.0)]}, 400, {}) is None


def test_the_page_loads_nothing(tmp_path):
    ran = {"environment": HOSTILE_NAME, "played": "<b>there</b>"}
    comparison = Comparison({"default": [make_run(1, 4.0)]}, 400, ran)
    page = Page(comparison.write(tmp_path / "new" / "folder").read_text(encoding="utf-8"))
    assert page.loads == []
    assert {"table", "svg", "path"} <= set(page.tags)
    assert not {"script", "link", "img", "iframe", "object", "b"} & set(page.tags)
    assert all(text in page.text for text in (HOSTILE_NAME, "<b>there</b>", "4.0"))
    names = {file.name for file in (tmp_path / "new" / "folder").iterdir()}
    assert names == {"comparison.json", "index.html", "regret.png", "regret.svg"}
    # The page's reader finds loads.
    assert Page('<img src="http://x.test/a.png">').loads
    assert Page("<style>@import 'x.css'; a { background: url(http://x.test) }</style>").loads
    assert Page('<svg><use xlink:href="#a"/></svg>').loads == []


# --- the command ------------------------------------------------------------------------------------------------------

SHORT = ["compare", "--environment", "nelson", "--rounds", "150", "--seeds", "1-2", "--reward-delay", "4"]


def test_compare_in_process_and_over_http(embedded: Server, capsys, tmp_path):
    assert cli.main([*SHORT, "--jobs", "1", "--out", str(tmp_path / "here")]) == 0
    alone = capsys.readouterr().out
    where = ["--url", embedded.url, "--batch", "stage", "--concurrency", "4", "--name", "side-by-side"]
    assert cli.main([*SHORT, *where, "--out", str(tmp_path / "there")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:6] == alone.splitlines()[:6]
    assert [row[0] for row in columns(out)[2:6]] == list(POLICIES)
    assert str(tmp_path / "there" / "index.html") in out
    here, there = (
        json.loads((tmp_path / folder / "comparison.json").read_text(encoding="utf-8")) for folder in ("here", "there")
    )
    assert here["policies"] == there["policies"]
    assert there["ran"]["played"] == f"as campaigns of the service at {embedded.url}"
    assert there["ran"]["rewards"] == "geometric delay, 4 rounds on average"
    assert (there["ran"]["seeds"], there["rounds"]) == ("1, 2", 150)
    for preset in POLICIES:
        assert embedded.get_round(f"side-by-side-{preset}-2") == 150
    immediate = replay_seed(Task(load_environment("nelson"), "default", 2, 150))
    assert there["policies"]["default"]["actions_sha256"]["2"] != immediate.actions_sha256


# --- the demo ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("interruptible")
@pytest.mark.slow
def test_the_demo_leaves_a_service_that_ctrl_c_stops(tmp_path):
    command = [sys.executable, "-m", "simulator.cli", "demo", "--environment", "nelson", "--rounds", "60"]
    process = subprocess.Popen(
        [*command, "--seeds", "1", "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    timeout = threading.Timer(300, process.terminate)
    timeout.start()
    output = ""
    for line in process.stdout:
        output += line
        if "Ctrl-C stops it" in line:
            break
    timeout.cancel()
    assert process.poll() is None, output
    (url,) = re.findall(r"The service is at (\S+) with", output)
    names = {campaign["name"]: campaign["round"] for campaign in httpx.get(f"{url}/campaigns").json()["campaigns"]}
    assert names == {f"{preset}-nelson-1": 60 for preset in POLICIES}
    assert all(preset in output for preset in POLICIES)
    assert Page((tmp_path / "index.html").read_text(encoding="utf-8")).loads == []
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "Stopping the service" in out
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_the_demo_needs_a_free_port(embedded: Server, capfd, tmp_path):
    port = embedded.url.rsplit(":", 1)[1]
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    assert cli.main(["demo", "--port", port, "--out", str(tmp_path)]) == 1
    err = capfd.readouterr().err
    assert f"cannot listen on 127.0.0.1 port {port}" in err
    assert "the service did not start" in err
    assert {number: signal.getsignal(number) for number in before} == before


def test_make_demo_runs_the_demo():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert "$(BIN)/undercurrent-sim demo $(if $(PORT),--port $(PORT))" in makefile
