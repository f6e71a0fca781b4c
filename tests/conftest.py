"""Fixtures for every test that needs a database, Hypothesis settings, and the choice of `make test-quick`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.databases import KINDS, Databases

# No deadlines, because compiling a kernel takes seconds and machines may be busy. Every run uses the same examples.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

E2E = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need PostgreSQL, a server process or a browser as slow: `make test-quick` leaves them out."""
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        needs_postgresql = any(isinstance(value, str) and value == "postgresql" for value in values)
        if needs_postgresql or E2E in item.path.parents or "launch" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


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
