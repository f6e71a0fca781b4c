"""Kill the server or its database at any instant: nothing acknowledged is lost or counted twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.databases import Databases
from tests.e2e.lives import Torture
from tests.e2e.load import open_client, wait_until
from tests.e2e.server import launch_servers

CALLERS = 8


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 3), ("postgresql", 4)])
def test_killed_at_any_instant(kind, kills, tmp_path):
    """R14, R17, R18: after a restart every acknowledged request is there, and every other one completely or not at all.

    The first kills of `make torture`: during a re-estimation; on SQLite during a start; on PostgreSQL after a kill of
    the database, and one of two workers.
    """
    databases = Databases(durable=True)  # a server of its own, because the test kills it
    try:
        with launch_servers(tmp_path) as launch:
            *_, figures = Torture(kind, databases, launch, seed=1, large=["smoothed"]).run(kills, operations=600)
    finally:
        databases.close()
    assert figures.clean, figures.examples
    assert figures.kills >= kills
    assert figures.operations >= 600
    assert figures.repeated > figures.operations / 3
    if kind == "sqlite":
        assert figures.kills_during_start > 0
    else:
        assert figures.database_kills == figures.kills_of_one_worker == 1
        assert figures.refused_503 > 0


@contextmanager
def make_unavailable(database_url: str) -> Iterator[None]:
    """End all connections to a PostgreSQL database and refuse new ones."""
    url = sa.make_url(database_url)
    allow = f'ALTER DATABASE "{url.database}" WITH ALLOW_CONNECTIONS'
    terminate = sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.database}'")
    admin = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.execute(sa.text(f"{allow} false"))
        try:
            wait_until(lambda: not connection.execute(terminate).all())  # a connection may have been under way
            yield
        finally:
            connection.execute(sa.text(f"{allow} true"))


def test_database_is_unavailable_for_a_moment(shared, load):
    """R18, R24: 503 with Retry-After while PostgreSQL is away, no wrong answer, and recovery without a restart."""
    database_url, servers = shared["postgresql"]
    url = servers[0].url
    load.start([url], load.create_campaigns(url, "march", "april"), CALLERS)
    with open_client(url) as client:
        for _ in range(2):
            load.wait_for_answers(60)
            with make_unavailable(database_url):
                load.wait_for_refusals(2 * CALLERS)
                ready = client.get("/readyz")
                assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
                assert client.get("/campaigns/march").status_code == 503
                assert client.get("/healthz").status_code == 200
        load.wait_for_answers(60)
        load.stop()
        assert client.get("/readyz").status_code == 200
    assert load.unanswered == []
    for refusal in load.refusals:
        assert refusal.headers["retry-after"] == "1"
        assert refusal.json()["error"]["code"] == "unavailable"
    load.repeat_all(url)
    assert load.check(database_url) == []
    assert "Traceback" not in servers[0].read_complaints()
