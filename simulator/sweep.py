"""Run grids over (policy, ℓ, λ, C): seed by seed, with the same episode and beliefs for every cell.

Beliefs are estimated from contexts alone (R3), so the beliefs of one run are exact for all cells of that seed. Each
seed has one .npz file; cells in it are not run again, so a sweep can be stopped and resumed at any time.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from policy import StagedPolicy
from policy.arrays import FloatArray
from simulator.environment import load_environment
from simulator.presets import build_config
from simulator.replay import pick_checkpoints

STAGE_LENGTHS = (1, 15, 37, 224)
RIDGES = (1e-9, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
SCALES = (5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1)
SAVE_EVERY = 50  # cells; a stop loses a few seconds of work per core


class Cell(NamedTuple):
    """One entry of the paper's tables."""

    policy: str
    stage_length: int
    ridge: float
    scale: float

    @property
    def key(self) -> str:
        numbers = (repr(float(number)).removesuffix(".0") for number in (self.ridge, self.scale))
        return "|".join([self.policy, str(self.stage_length), *numbers])

    @property
    def overrides(self) -> dict[str, Any]:
        return {"stage_length": self.stage_length, "ridge": self.ridge, "bonus": {"scale": self.scale}}


def build_grid(
    policies: Sequence[str] = ("plain-linucb", "paper-complex", "paper-simplified"),
    stage_lengths: Sequence[int] = STAGE_LENGTHS,
    ridges: Sequence[float] = RIDGES,
    scales: Sequence[float] = SCALES,
) -> list[Cell]:
    """Build the paper's grids (appendix sec:grids). Plain LinUCB updates every round, so its ℓ is always 1."""
    return [
        Cell(policy, length, ridge, scale)
        for policy in policies
        for length in ((1,) if policy == "plain-linucb" else stage_lengths)
        for ridge in ridges
        for scale in scales
    ]


def sweep_seed(environment_name: str, seed: int, rounds: int, cells: Sequence[Cell], folder: Path) -> int:
    """Run and store the seed's missing cells; return how many were run."""
    file = folder / f"seed-{seed}.npz"
    done = _load(file)
    missing = [cell for cell in cells if cell.key not in done]
    if not missing:
        return 0
    environment = load_environment(environment_name)
    episode = environment.draw(rounds, np.random.default_rng(seed))
    marks = pick_checkpoints(rounds) - 1
    beliefs: dict[str, FloatArray] = {}  # by the settings that determine them
    for count, cell in enumerate(missing, 1):
        config = build_config(cell.policy, environment, seed, cell.overrides, rounds)
        policy = StagedPolicy(config)
        settings = config.beliefs.model_dump_json() + str(config.regimes)
        actions, given = np.zeros(rounds, np.int16), beliefs.get(settings)
        state = policy.play(policy.initial_state(), episode.contexts, episode.rewards, given, chosen=actions)
        # With other statistics the history no longer has the beliefs as they were decided on.
        if config.beliefs.statistics == "as_decided" and settings not in beliefs:
            beliefs[settings] = state.history.beliefs[:rounds].copy()
        done[cell.key] = episode.compute_regrets(actions)[:, marks].astype(np.float32)
        if count % SAVE_EVERY == 0 or count == len(missing):
            _save(file, done)
    return len(missing)


def _save(file: Path, results: dict[str, npt.NDArray[np.float32]]) -> None:
    """Write to a second file and rename it, so that a stop never leaves half a file."""
    partial = file.with_suffix(".partial.npz")
    np.savez_compressed(partial, **results)  # type: ignore[arg-type]
    partial.replace(file)


def _load(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    if not file.exists():
        return {}
    with np.load(file) as stored:
        return {key: stored[key] for key in stored.files}


def sweep(
    environment_name: str,
    seeds: Sequence[int],
    rounds: int,
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = -1,
    dask: str | None = None,
) -> int:
    """Run all missing (seed, cell) pairs on the local cores or a Dask cluster; return how many were run."""
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, environment_name, rounds)
    for cell in cells:  # report a wrong configuration before starting workers
        build_config(cell.policy, load_environment(environment_name), seeds[0], cell.overrides, rounds)
    tasks = [(environment_name, seed, rounds, tuple(cells), folder) for seed in seeds]
    keys = {cell.key for cell in cells}
    missing = sum(len(keys - _load(folder / f"seed-{seed}.npz").keys()) for seed in seeds)
    total = 0
    with tqdm(total=missing, unit="run", desc="sweep", smoothing=0.05) as bar:
        for count in _run_tasks(tasks, jobs, dask):
            total += count
            bar.update(count)
    return total


def read_sweep(folder: Path) -> tuple[str, int]:
    """Return the environment and the number of rounds of a sweep's folder."""
    file = folder / "sweep.json"
    if not file.exists():
        raise FileNotFoundError(f"{folder} contains no sweep; run `undercurrent-sim sweep --out {folder}` first")
    description = json.loads(file.read_text(encoding="utf-8"))
    return description["environment"], description["rounds"]


def _claim(folder: Path, environment_name: str, rounds: int) -> None:
    """Bind a folder to one environment and number of rounds; other results must not count as finished cells."""
    file = folder / "sweep.json"
    if not file.exists():
        description = {"environment": environment_name, "rounds": rounds}
        file.write_text(json.dumps(description) + "\n", encoding="utf-8")
    stored = read_sweep(folder)
    if stored != (environment_name, rounds):
        raise ValueError(
            f"{folder} contains a sweep of {stored[0]} over {stored[1]} rounds, not of {environment_name} over"
            f" {rounds}; choose another folder"
        )


def _run_tasks(tasks: list[tuple[Any, ...]], jobs: int, dask: str | None) -> Iterable[int]:
    """Run the tasks and yield the result of each as it finishes."""
    if dask is None:
        from joblib import Parallel, delayed

        yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(sweep_seed)(*task) for task in tasks)
        return
    from distributed import Client, as_completed

    with Client(dask) as client:  # type: ignore[no-untyped-call]
        futures = [client.submit(sweep_seed, *task, pure=False) for task in tasks]
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            yield future.result()


def load_results(folder: Path) -> dict[str, FloatArray]:
    """Load the curves of all stored seeds by cell key: seeds × 2 (pseudo, actual) × checkpoints."""
    files = sorted(folder.glob("seed-*.npz"))
    stored = [_load(file) for file in files if not file.name.endswith(".partial.npz")]
    keys = sorted(set().union(*stored)) if stored else []
    return {key: np.stack([seed[key] for seed in stored if key in seed]).astype(np.float64) for key in keys}
