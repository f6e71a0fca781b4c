"""The cache of compiled kernels: it is used, and it notices every edit of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from policy import kernels

PROGRAM = """
import numpy as np
from policy.kernels import sample_path
regimes, symbols = np.zeros(3, np.int64), np.zeros(3, np.int64)
sample_path(np.eye(2), np.eye(2), np.array([0.0, 1.0]), np.full((3, 2), 0.5), regimes, symbols)
print(symbols.tolist(), sum(sample_path.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path):
    """Run PROGRAM on a copy of the package; returns what it prints."""
    source, package = Path(kernels.__file__).parent, tmp_path / "policy" / "kernels"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source.parent / "arrays.py", package.parent)
    (package.parent / "__init__.py").touch()  # the kernels need nothing else of policy, and start faster without it

    def run(**environment):
        variables = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        variables |= {"PYTHONPATH": str(tmp_path), **environment}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(
            command, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True
        ).stdout.strip()

    run.package = package
    return run


@pytest.mark.slow
def test_an_edited_helper_recompiles_its_callers_in_other_files(run):
    assert run() == "[1, 1, 1] 0"
    assert run() == "[1, 1, 1] 1"  # from the cache
    helper = run.package / "chance.py"
    source = helper.read_text(encoding="utf-8")
    edited = source.replace("law[i] > 0.0 and number >= total", "i == 0")
    assert edited != source
    helper.write_text(edited, encoding="utf-8")
    assert run() == "[0, 0, 0] 0"


@pytest.mark.slow
def test_the_cache_goes_where_numba_is_told(run, tmp_path):
    assert run(NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "[1, 1, 1] 0"
    assert len(list((tmp_path / "cache").glob("undercurrent-*/**/*sample_path*.nbi"))) == 1
    assert not list(run.package.glob("**/*.nbi"))
