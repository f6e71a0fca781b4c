"""These tests run on SQLite. The few that are about what a database computes ask for both."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.service.conftest import Clock, Worker


@pytest.fixture
def database_url(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> str:
    """A new SQLite database, or one of the kind that the test names."""
    return new_database(getattr(request, "param", "sqlite"))


@pytest.fixture(scope="module")
def shared(new_database: Callable[[str], str]) -> Iterator[httpx.Client]:
    """A client of one worker for all tests of a module to which only their own campaigns matter."""
    worker = Worker(new_database("sqlite"), Clock())
    yield worker.client
    worker.stop()
