"""The programs of docs/integrate.md, as they stand but for the address and the deadlines: machines may be slow."""

import re
from pathlib import Path
from typing import Any

import httpx

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


def load_decision(service: Server, decision_id: str) -> Any:
    return good(httpx.get(f"{service.url}/campaigns/spring-offers/decisions/{decision_id}", verify=False, timeout=60))


def check(service: Server, printed: str, decision_id: str, reward: float | None) -> None:
    """The program printed the action that was decided, and reported its reward."""
    stored = load_decision(service, decision_id)
    assert printed.split()[0] == stored["action"]
    assert stored["context"] == {"risk": "low", "revenue": 36_000}
    assert (stored["reward"] and stored["reward"]["reward"]) == reward
