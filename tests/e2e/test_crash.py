"""Kill the server or its database at any instant: nothing acknowledged is lost or counted twice."""

import pytest

from tests.databases import Databases
from tests.e2e.lives import Torture
from tests.e2e.server import launch_servers


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
