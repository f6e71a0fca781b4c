"""The real PgBouncer between the service and PostgreSQL: it must be in session mode, and the service says so."""

import os
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from tests.e2e.load import wait_until
from tests.e2e.programs import find_program


@contextmanager
def run_pgbouncer(database_url, mode):
    """Run PgBouncer in front of a database's server, and yield the database's URL through it."""
    program, address = find_program("pgbouncer"), sa.make_url(database_url)
    host = address.query["host"]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n* = host={host} user={address.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\n"
        )
        # It refuses to run as root, and only the owner may use PostgreSQL's socket.
        as_owner = ["-u", Path(host).owner()] if os.geteuid() == 0 else []
        bouncer = subprocess.Popen([program, *as_owner, config], stderr=subprocess.DEVNULL)
        try:
            yield address.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
        finally:
            bouncer.terminate()
            bouncer.wait()


def accepts_connections(database_url):
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    try:
        engine.connect().close()
    except sa.exc.OperationalError:
        return False
    return True


def test_session_mode(new_database, launch, load):
    """R14, R18: the service works as without a pooler, also after a restart."""
    database_url = new_database("postgresql")
    with run_pgbouncer(database_url, "session") as pooled_url:
        wait_until(lambda: accepts_connections(pooled_url))
        for names in (["spring", "summer"], ["autumn"]):
            server = launch(pooled_url)
            load.start([server.url], load.create_campaigns(server.url, *names), max_steps=20)
            load.join()
            load.repeat_all(server.url)
            server.terminate()
            assert server.wait_for_exit() == 0
            assert "Traceback" not in server.read_stderr()
        assert load.unanswered == load.refusals == []
        assert load.check(database_url) == []


def test_transaction_mode(new_database, launch):
    """It cannot work with prepared statements: the service refuses to start and names the setting."""
    with run_pgbouncer(new_database("postgresql"), "transaction") as pooled_url:
        wait_until(lambda: accepts_connections(pooled_url))
        server = launch(pooled_url)
        assert server.wait_for_exit() == 1
        (line,) = server.read_stderr().splitlines()
        assert line.startswith("undercurrent: ")
        assert "pool_mode = session" in line
