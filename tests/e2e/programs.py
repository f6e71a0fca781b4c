"""Programs from Debian's packages that some tests need."""

import os
import shutil

import pytest


def find_program(*names: str) -> str:
    """The path of the first of these programs. If there is none, the test is skipped, except in CI, where it fails."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        message = f"This test needs {names[0]}: apt-get install {names[0]} (`make test` does this for root)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return path
