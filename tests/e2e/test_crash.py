"""The process is killed, or loses its database, at any instant: nothing acknowledged is lost or counted twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.databases import Databases
from tests.e2e.lives import Torture
from tests.e2e.load import client_of, wait_until
from tests.e2e.server import launching

CALLERS = 8


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 3), ("postgresql", 4)])
def test_killed_at_any_instant(kind, kills, tmp_path):
    """R14, R17, R18: a restart finds all that was acknowledged, and the rest as a whole or not at all.

    The first minutes of `make torture`: with a re-estimation under way; on SQLite while it starts; on PostgreSQL after
    the database itself was killed, and one of two workers.
    """
    databases = Databases(durable=True)  # a server of its own, because the test kills it
    try:
        with launching(tmp_path) as launch:
            *_, figures = Torture(kind, databases, launch, seed=1).run(kills, operations=600)
    finally:
        databases.close()
    assert figures.clean, figures.examples
    assert figures.kills >= kills
    assert figures.operations >= 600
    assert figures.asked_again > figures.operations / 3
    if kind == "sqlite":
        assert figures.kills_during_start > 0
    else:
        assert figures.database_kills == figures.kills_of_one_worker == 1
        assert figures.refused_503 > 0


@contextmanager
def away(database_url: str) -> Iterator[None]:
    """Throw everybody out of a PostgreSQL database, and let nobody in meanwhile."""
    url = sa.make_url(database_url)
    allow = f'ALTER DATABASE "{url.database}" WITH ALLOW_CONNECTIONS'
    throw_out = sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.database}'")
    admin = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.execute(sa.text(f"{allow} false"))
        try:
            wait_until(lambda: not connection.execute(throw_out).all())  # someone may have been at the door
            yield
        finally:
            connection.execute(sa.text(f"{allow} true"))


def test_database_goes_away_for_a_moment(shared, load):
    """R18, R24: 503 with Retry-After while PostgreSQL is away, no wrong answer, and on without a restart."""
    database_url, servers = shared["postgresql"]
    url = servers[0].url
    load.start([url], load.create(url, "march", "april"), CALLERS)
    with client_of(url) as client:
        for _ in range(2):
            load.wait_for(60)
            with away(database_url):
                load.wait_for_refusals(2 * CALLERS)
                ready = client.get("/readyz")
                assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
                assert client.get("/campaigns/march").status_code == 503
                assert client.get("/healthz").status_code == 200
        load.wait_for(60)
        load.stop()
        assert client.get("/readyz").status_code == 200
    assert load.unanswered == []
    for refusal in load.refusals:
        assert refusal.headers["retry-after"] == "1"
        assert refusal.json()["error"]["code"] == "unavailable"
    load.retry(url)
    assert load.check(database_url) == []
    assert "Traceback" not in servers[0].complaints()
