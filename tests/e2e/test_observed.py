"""The process as those who watch it see it: metrics of all its workers together, logs that a program can read."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from service.metrics import SHARED_FOLDER
from tests.e2e.load import CAMPAIGN, client_of, wait_until
from tests.service.answers import good
from tests.service.scraping import Scrape

CONTEXT = {"risk": "low", "revenue": 20}


def workers(server):
    """The processes that answer: those that know of the shared folder."""
    found = []
    for child in psutil.Process(server.pid).children():
        try:
            if SHARED_FOLDER in child.environ() and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def decide(url, numbers):
    """Each on a connection of its own, so that every worker gets some; which workers answered."""

    def ask(number):
        body = {"campaign": "spring", "decision_id": f"d{number}", "context": CONTEXT}
        answer = httpx.post(f"{url}/decide", json=body, timeout=60)
        assert good(answer)["campaign"] == "spring"
        return answer.headers["x-request-id"].partition("-")[0]

    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(ask, numbers))


def totals(url):
    """What any worker says that all have done."""
    with client_of(url) as client:  # a new connection each time
        found = Scrape(client)
    return [
        found.by("decisions_total", "campaign").get("spring", 0),
        found.by("requests_total", "route", status="200").get("/decide", 0),
        found.by("request_seconds_count", "route").get("/decide", 0),
        found.value("gather_operations_sum") - 1,  # the creation
        found.value("campaign_rounds", campaign="spring"),
    ]


def test_counters_of_all_workers_add_up_and_never_go_back(new_database, launch):
    """Each sample once, whichever worker is asked; also after one was killed, and nothing is left behind."""
    server = launch(new_database("postgresql"), "--workers", "2")
    good(httpx.post(f"{server.url}/campaigns", json=CAMPAIGN | {"name": "spring"}, timeout=60), 201)
    answered = set()
    for first in range(0, 400, 40):
        answered |= decide(server.url, range(first, first + 40))
        sent = first + 40
        if len(answered) == 2:
            break
    assert len(answered) == 2, "one worker got everything"
    decide(server.url, range(10))  # known ones
    decisions, requests = sent, sent + 10
    expected = [decisions, requests, requests, requests, decisions]
    wait_until(lambda: totals(server.url) == expected)
    assert all(totals(server.url) == expected for _ in range(10))

    before = workers(server)
    assert len(before) == 2
    folder = Path(before[0].environ()[SHARED_FOLDER])
    assert folder.stat().st_mode & 0o077 == 0
    os.kill(before[0].pid, signal.SIGKILL)
    wait_until(lambda: len(workers(server)) == 2 and before[0].pid not in {each.pid for each in workers(server)})
    assert totals(server.url) == expected
    decide(server.url, range(1_000, 1_010))
    wait_until(lambda: totals(server.url) == [count + 10 for count in expected])
    server.terminate()
    assert server.exit_code() == 0
    assert not folder.exists()


@pytest.mark.parametrize(("kind", "workers"), [("sqlite", 1), ("postgresql", 2)])
def test_every_line_is_json(new_database, launch, kind, workers):
    """Ours and the server's, of every worker; with the id that the caller got."""
    flags = ["--log-format", "json", "--access-log", "--log-level", "debug", "--workers", str(workers)]
    server = launch(new_database(kind), *flags)
    with client_of(server.url) as client:
        made = client.post("/campaigns", json=CAMPAIGN | {"name": "spring"}, headers={"X-Request-ID": "mine"})
        good(made, 201)
        client.get("/nothing?token=swordfish")
    server.terminate()
    assert server.exit_code() == 0
    lines = [json.loads(line) for line in server.said().splitlines() if not line.startswith("Compiling ")]
    assert all(list(line)[:5] == ["ts", "level", "logger", "message", "request_id"] for line in lines)
    mine = [line for line in lines if line["request_id"] == "mine"]
    assert [(line["logger"], line["message"]) for line in mine] == [
        ("undercurrent.admin", "create"),
        ("undercurrent.request", "request"),
    ]
    assert mine[0]["campaign"] == "spring"
    assert mine[1]["status"] == 201
    assert "uvicorn.error" in {line["logger"] for line in lines}  # at level debug it tells of its start
    assert "swordfish" not in server.said()


def test_text_is_what_it_says_by_default(new_database, launch):
    """At level info an administrator's doings are told, a good decision is not."""
    server = launch(new_database("sqlite"))
    good(httpx.post(f"{server.url}/campaigns", json=CAMPAIGN | {"name": "spring"}), 201)
    decide(server.url, range(3))
    server.terminate()
    assert server.exit_code() == 0
    (line,) = [line for line in server.said().splitlines() if "undercurrent" in line]
    assert " INFO undercurrent.admin: create request_id=" in line
    assert line.endswith(" campaign=spring")
    assert server.complaints() == ""
