"""Every program of docs/integrate.md, run as it stands but for the address and the deadlines: machines may be slow."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.answers import good
from tests.simulator.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
HERE = "http://127.0.0.1:8000"
PATIENT = {
    f'Client("{HERE}")': 'Client("{url}", deadline=600)',
    f'new Client("{HERE}")': 'new Client("{url}", {{ deadlineMs: 600000 }})',
    "timeout=0.25": "timeout=600",
    "--max-time 0.25": "--max-time 600",
}


def read_programs(language: str) -> list[str]:
    page = (ROOT / "docs" / "integrate.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def make_patient(program: str, url: str) -> str:
    """Replace the address, and the deadlines that a busy machine could miss."""
    for brief in sorted(PATIENT, key=len, reverse=True):
        program = program.replace(brief, PATIENT[brief].format(url=url))
    return program.replace(HERE, url)


@pytest.fixture(scope="module")
def service(new_database) -> Iterator[Server]:
    """A service with the page's campaign."""
    server = Server(new_database("sqlite"))
    server.start()
    (create,) = read_programs("sh")
    run(["bash", "-euc", make_patient(create, server.url)])
    yield server
    server.kill()


def run(command: list[str], folder: Path | None = None) -> str:
    """Run a program; return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_decision(service: Server, decision_id: str) -> Any:
    return good(httpx.get(f"{service.url}/campaigns/spring-offers/decisions/{decision_id}", verify=False, timeout=60))


def check(service: Server, printed: str, decision_id: str, reward: float | None) -> None:
    """The program printed the action that was decided, and reported its reward."""
    stored = load_decision(service, decision_id)
    assert printed.split()[0] == stored["action"]
    assert stored["context"] == {"risk": "low", "revenue": 36_000}
    assert (stored["reward"] and stored["reward"]["reward"]) == reward


def test_programs_have_about_ten_lines():
    for language, count in (("python", 2), ("typescript", 2), ("bash", 1)):
        programs = read_programs(language)
        assert len(programs) == count
        assert all(len(list(filter(None, program.splitlines()))) <= 10 for program in programs)


@pytest.mark.slow
def test_python(service):
    client, openfeature = (make_patient(program, service.url) for program in read_programs("python"))
    check(service, run([sys.executable, "-c", client]), "order-2001", 1.25)
    printed = run([sys.executable, "-c", openfeature])
    check(service, printed, "order-2004", None)
    assert "propensity" in printed


@pytest.mark.slow
def test_curl(service):
    (program,) = read_programs("bash")
    check(service, run(["bash", "-euc", make_patient(program, service.url)]), "order-2003", 1.25)
