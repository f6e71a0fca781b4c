"""Grids over (policy, ℓ, λ, C): seed by seed, every cell on the same episode and the same belief path.

Beliefs are estimated from contexts alone (R3), so one path per seed serves all cells exactly. A seed's results
are one .npz file; what it holds is not run again, so a sweep can be stopped and resumed at any time.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from tqdm import tqdm

from policy import StagedPolicy
from simulator.environment import load_environment
from simulator.presets import campaign
from simulator.replay import checkpoints

__all__ = [
    "RIDGES",
    "SCALES",
    "STAGE_LENGTHS",
    "Cell",
    "described",
    "load_results",
    "paper_grid",
    "sweep",
    "sweep_seed",
]

STAGE_LENGTHS = (1, 15, 37, 224)
RIDGES = (1e-9, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
SCALES = (5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1)
SAVE_EVERY = 50  # cells: a stop loses a few seconds' work a core
FloatArray = npt.NDArray[np.float64]


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


def paper_grid(
    policies: Sequence[str] = ("plain-linucb", "paper-complex", "paper-simplified"),
    stage_lengths: Sequence[int] = STAGE_LENGTHS,
    ridges: Sequence[float] = RIDGES,
    scales: Sequence[float] = SCALES,
) -> list[Cell]:
    """The paper's grids (appendix sec:grids): plain LinUCB updates every round, the others by stage length."""
    return [
        Cell(policy, length, ridge, scale)
        for policy in policies
        for length in ((1,) if policy == "plain-linucb" else stage_lengths)
        for ridge in ridges
        for scale in scales
    ]


def sweep_seed(environment_name: str, seed: int, rounds: int, cells: Sequence[Cell], folder: Path) -> int:
    """Run the seed's missing cells and store them; returns how many were run."""
    file = folder / f"seed-{seed}.npz"
    done = _load(file)
    missing = [cell for cell in cells if cell.key not in done]
    if not missing:
        return 0
    environment = load_environment(environment_name)
    episode = environment.draw(rounds, np.random.default_rng(seed))
    marks = checkpoints(rounds) - 1
    paths: dict[str, FloatArray] = {}
    ran = 0
    for cell in missing:
        config = campaign(cell.policy, environment, seed, cell.overrides, rounds)
        policy = StagedPolicy(config)
        way = config.beliefs.model_dump_json() + str(config.regimes)
        state = policy.play(policy.initial_state(), episode.contexts, episode.rewards, paths.get(way))
        if config.beliefs.statistics == "as_decided" and way not in paths:  # others overwrite the beliefs of record
            paths[way] = state.history.beliefs[:rounds].copy()
        actions = state.history.actions[:rounds]
        curves = np.stack([episode.pseudo_regret(actions)[marks], episode.actual_regret(actions)[marks]])
        done[cell.key] = curves.astype(np.float32)
        ran += 1
        if ran % SAVE_EVERY == 0 or ran == len(missing):
            _save(file, done)
    return ran


def _save(file: Path, results: dict[str, npt.NDArray[np.float32]]) -> None:
    """Write beside, then rename: a stop in the middle never leaves half a file."""
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
    """Run all missing (seed, cell) pairs on the local cores, or on a Dask cluster; returns how many were run."""
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, environment_name, rounds)
    for cell in cells:  # fail before the work, not in a worker
        campaign(cell.policy, load_environment(environment_name), seeds[0], cell.overrides, rounds)
    tasks = [(environment_name, seed, rounds, tuple(cells), folder) for seed in seeds]
    total = 0
    with tqdm(total=_missing(folder, seeds, cells), unit="run", desc="sweep", smoothing=0.05) as bar:
        for ran in _results(tasks, jobs, dask):
            total += ran
            bar.update(ran)
    return total


def _missing(folder: Path, seeds: Sequence[int], cells: Sequence[Cell]) -> int:
    """How many runs are left, so that the bar's time left is about those."""
    keys = {cell.key for cell in cells}
    return sum(len(keys - _load(folder / f"seed-{seed}.npz").keys()) for seed in seeds)


def described(folder: Path) -> tuple[str, int]:
    """(environment, rounds) of a sweep's folder."""
    file = folder / "sweep.json"
    if not file.exists():
        raise FileNotFoundError(f"{folder} holds no sweep; run `undercurrent-sim sweep --out {folder}` first")
    found = json.loads(file.read_text(encoding="utf-8"))
    return found["environment"], found["rounds"]


def _claim(folder: Path, environment_name: str, rounds: int) -> None:
    """A folder belongs to one environment and one number of rounds: others must not pass for finished cells."""
    file, mine = folder / "sweep.json", {"environment": environment_name, "rounds": rounds}
    if not file.exists():
        file.write_text(json.dumps(mine) + "\n", encoding="utf-8")
    held, horizon = described(folder)
    if (held, horizon) != (environment_name, rounds):
        raise ValueError(
            f"{folder} holds {held} over {horizon} rounds, not {environment_name} over {rounds}; choose another folder"
        )


def _results(tasks: list[tuple[Any, ...]], jobs: int, dask: str | None) -> Iterable[int]:
    """One number a finished task, as they finish."""
    if dask is None:
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(sweep_seed)(*task) for task in tasks)
        return
    from distributed import Client, as_completed

    with Client(dask) as client:  # type: ignore[no-untyped-call]
        futures = [client.submit(sweep_seed, *task, pure=False) for task in tasks]
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            yield future.result()


def load_results(folder: Path) -> dict[str, FloatArray]:
    """Per cell key the curves of all seeds found: seeds × 2 (pseudo, actual) × checkpoints."""
    files = sorted(folder.glob("seed-*.npz"))
    stored = [_load(file) for file in files if not file.name.endswith(".partial.npz")]
    keys = sorted(set().union(*stored)) if stored else []
    return {key: np.stack([seed[key] for seed in stored if key in seed]).astype(np.float64) for key in keys}
