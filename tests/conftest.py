"""Fixtures for every test that needs a database, and Hypothesis settings for all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.databases import KINDS, Databases

# No deadlines, because compiling a kernel takes seconds and machines may be busy. Every run uses the same examples.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def new_database() -> Iterator[Databases]:
    """Creates databases: `new_database("sqlite")` returns the URL of a new one with the current schema."""
    databases = Databases()
    yield databases
    databases.close()


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, new_database: Databases) -> str:
    """A new database with the current schema: the test runs once on SQLite and once on PostgreSQL."""
    return new_database(request.param)
