"""Sweeps: shared beliefs are exact, finished cells are kept, and joblib and a real Dask cluster agree."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

from simulator import cli
from simulator.environment import load_environment
from simulator.replay import Task, replay_seed
from simulator.report import load_published
from simulator.sweep import Cell, build_grid, load_results, sweep, sweep_seed

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 1400  # estimation starts at round 1000
CELLS = [
    Cell("paper-complex", 37, 1.0, 5e-4),
    Cell("paper-complex", 1, 0.001, 0.05),
    Cell("paper-simplified", 224, 10.0, 0.05),
    Cell("plain-linucb", 1, 0.1, 0.05),
    Cell("known-hmm", 15, 1.0, 5e-3),
]


def assert_same_results(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    results, others = load_results(one), load_results(other)
    assert list(results) == list(others)
    for key, curves in results.items():
        np.testing.assert_array_equal(curves, others[key])


def test_the_grid_is_the_papers_and_can_be_cut() -> None:
    grid = build_grid()
    assert len(grid) == len({cell.key for cell in grid}) == 42 + 2 * 4 * 42
    assert set(grid) == set(load_published())
    blocks = [("paper-complex", 15), ("plain-linucb", 1)]
    expected = [Cell(*block, ridge, 0.05) for block in blocks for ridge in (0.1, 1.0)]
    assert build_grid(["paper-complex", "plain-linucb"], [15], [0.1, 1.0], [0.05]) == expected


def test_shared_beliefs_are_exact_for_every_cell(tmp_path: Path) -> None:
    """R3: beliefs depend on contexts alone, so the curves of every cell equal those of its own replay."""
    environment = load_environment("credit-card")
    assert sweep_seed("credit-card", 1951, ROUNDS, CELLS, tmp_path) == len(CELLS)
    results = load_results(tmp_path)
    assert set(results) == {cell.key for cell in CELLS}
    for cell in CELLS:
        run = replay_seed(Task(environment, cell.policy, 1951, ROUNDS, cell.overrides))
        expected = np.stack([run.pseudo_regret, run.actual_regret]).astype(np.float32)
        np.testing.assert_array_equal(results[cell.key][0], expected)
    assert len({curves[0, 0, -1] for curves in results.values()}) == len(CELLS)


def test_results_have_one_row_per_seed(tmp_path: Path) -> None:
    assert load_results(tmp_path) == {}
    assert sweep("nelson", [3, 1, 2], 500, CELLS[2:4], tmp_path / "new" / "folder", jobs=1) == 6
    results = load_results(tmp_path / "new" / "folder")
    assert set(results) == {cell.key for cell in CELLS[2:4]}
    environment, cell = load_environment("nelson"), CELLS[3]
    runs = [replay_seed(Task(environment, cell.policy, seed, 500, cell.overrides)) for seed in (1, 2, 3)]
    np.testing.assert_allclose(results[cell.key][:, 0], [run.pseudo_regret for run in runs], rtol=1e-6)  # float32
    np.testing.assert_allclose(results[cell.key][:, 1], [run.actual_regret for run in runs], rtol=1e-4)


# --- stopping and resuming --------------------------------------------------------------------------------------------


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    assert sweep("nelson", [1, 2], 400, CELLS[:2], tmp_path, jobs=1) == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("seed-*.npz")}
    assert sweep("nelson", [1, 2], 400, CELLS[:2], tmp_path, jobs=1) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("seed-*.npz")} == before
    assert sweep("nelson", [2], 400, CELLS[:3], tmp_path, jobs=1) == 1
    assert [load_results(tmp_path)[cell.key].shape[0] for cell in CELLS[:3]] == [2, 2, 1]
    (tmp_path / "seed-3.partial.npz").write_bytes(b"PK\x03\x04 stopped here")  # ignored and replaced
    assert load_results(tmp_path)[CELLS[0].key].shape[0] == 2
    assert sweep("nelson", [1, 2, 3], 400, CELLS[:3], tmp_path, jobs=1) == 4
    sweep("nelson", [1, 2, 3], 400, CELLS[:3], tmp_path / "at once", jobs=1)
    for key, curves in load_results(tmp_path / "at once").items():
        np.testing.assert_array_equal(load_results(tmp_path)[key], curves)
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.slow
def test_a_killed_sweep_continues_where_it_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simulator.cli", "sweep", "--environment", "nelson", "--rounds", "1000"]
    command += ["--seeds", "1-100000", "--jobs", "1", "--policies", "paper-complex", "--stage-lengths", "37"]
    command += ["--ridges", "1", "--scales", "5e-4,0.5", "--out", str(tmp_path / "killed")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 120
            while len(list((tmp_path / "killed").glob("seed-*.npz"))) < 5 and time.monotonic() < deadline:
                assert process.poll() is None
                time.sleep(0.002)
        finally:
            process.kill()
    finished = [path for path in (tmp_path / "killed").glob("seed-*.npz") if ".partial" not in path.name]
    assert len(finished) >= 4
    cells = build_grid(["paper-complex"], [37], [1.0], [5e-4, 0.5])
    for path in finished:
        with np.load(path) as stored:
            assert set(stored.files) == {cell.key for cell in cells}
    seeds = range(1, len(finished) + 4)  # one at a time, in order
    assert sweep("nelson", seeds, 1000, cells, tmp_path / "killed", jobs=1) == 3 * len(cells)
    sweep("nelson", seeds, 1000, cells, tmp_path / "whole", jobs=1)
    assert_same_results(tmp_path / "killed", tmp_path / "whole")


def test_a_folder_belongs_to_one_environment_and_one_number_of_rounds(tmp_path: Path) -> None:
    """Otherwise other curves would count as finished cells."""
    sweep("nelson", [1], 400, CELLS[:1], tmp_path, jobs=1)
    for environment, rounds in (("nelson", 800), ("three-regimes", 400)):
        with pytest.raises(ValueError, match="a sweep of nelson over 400 rounds"):
            sweep(environment, [1, 2], rounds, CELLS[:1], tmp_path, jobs=1)
    assert load_results(tmp_path)[CELLS[0].key].shape[0] == 1


# --- the command, in one process, in several, on a cluster ------------------------------------------------------------

ARGUMENTS = ["sweep", "--rounds", "1200", "--policies", "paper-complex,plain-linucb", "--stage-lengths", "15,37"]
ARGUMENTS += ["--ridges", "1", "--scales", "0.0005", "--seeds", "1-4"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of ARGUMENTS in this process."""
    folder = tmp_path_factory.mktemp("alone")
    assert cli.main([*ARGUMENTS, "--jobs", "1", "--out", str(folder)]) == 0
    assert len(load_results(folder)) == 3
    return folder


@pytest.mark.slow
def test_joblib_processes_give_the_same(alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ARGUMENTS, "--jobs", "2", "--out", str(tmp_path)]) == 0
    assert_same_results(alone, tmp_path)
    out, err = capsys.readouterr()
    assert "12 runs of 1,200 rounds" in out
    assert "12/12" in err  # the progress bar


@pytest.mark.slow
def test_a_dask_cluster_of_separate_processes_gives_the_same(alone: Path, tmp_path: Path) -> None:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=tmp_path / "dask"
    ) as cluster:
        with Client(cluster) as client:
            workers = set(client.run(os.getpid).values())
        assert len(workers - {os.getpid()}) == 2
        out = tmp_path / "out"
        assert cli.main([*ARGUMENTS, "--dask", cluster.scheduler_address, "--out", str(out)]) == 0
        assert_same_results(alone, out)
        cells = build_grid(["paper-complex", "plain-linucb"], [15, 37], [1.0], [5e-4])
        assert sweep("credit-card", [1, 2, 3, 4], 1200, cells, out, dask=cluster.scheduler_address) == 0
