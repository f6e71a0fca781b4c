"""Both databases for every test that asks for one: a new SQLite file, and a new database on a real PostgreSQL."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.databases import KINDS, Databases

# Compiling a kernel may take seconds, and a busy machine stalls: no deadlines. The same examples on every machine.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[str], str]]:
    """Called with a kind, it makes a new database with the current schema and gives its address."""
    databases = Databases()
    yield databases
    databases.close()


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> str:
    """A new database with the current schema, once on SQLite and once on PostgreSQL."""
    return new_database(request.param)
