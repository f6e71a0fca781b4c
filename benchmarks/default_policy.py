"""Measure the default policy against the paper's best cells and plain LinUCB: every figure of docs/policy.md.

    python -m benchmarks.default_policy [--quick] [--jobs 2] [--only credit-card …]

Each part replaces its rows in docs/policy/results.csv (mean, two standard errors, worst and median seed). --quick uses
a tenth of the seeds and only prints.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from policy import StagedPolicy, candidates, selection
from simulator import report
from simulator.environment import HOSTILE, load_environment
from simulator.presets import build_config
from simulator.replay import Task, average, replay_seed
from simulator.sweep import build_grid, load_results, sweep

RESULTS = Path(__file__).parent.parent / "docs" / "policy" / "results.csv"
PUBLISHED, TUNING = range(1951, 2051), range(3001, 3025)
SMOOTHED = {"estimator": "em", "statistics": "smoothed", "start_round": 51}
FIXED = {"form": "elliptical", "scale": 0.6}  # κσ with the true σ = 0.2; only joint statistics estimate σ
# Each ingredient removed in turn: overrides of the default, and changed constants (`change_constants`).
ABLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the default": ({}, {}),
    "H = 2 named, not found": ({"regimes": 2}, {}),
    "no trial of more regimes": ({}, {"TRIAL_GAIN": np.inf}),
    "joint always, no fall-back to smoothed": ({}, {"KINDS": np.inf}),
    "one start of EM a re-estimation, no fresh ones": ({}, {"RESTARTS_UNTIL": 0}),
    "statistics smoothed, H = 2 named": ({"regimes": 2, "bonus": FIXED, "beliefs": SMOOTHED}, {}),
    "statistics refiltered, H = 2 named": (
        {"regimes": 2, "bonus": FIXED, "beliefs": {**SMOOTHED, "statistics": "refiltered"}}, {}),
    "statistics as decided, H = 2 named": (
        {"regimes": 2, "bonus": FIXED, "beliefs": {**SMOOTHED, "statistics": "as_decided"}}, {}),
    "warm start of 250 rounds, as the paper": ({"warm_start_rounds": 250}, {}),
    "stages of 37 rounds, as the paper": ({"stage_length": 37}, {}),
    "κ = 2": ({"bonus": {"form": "noise", "scale": 2.0}}, {}),
    "κ = 4": ({"bonus": {"form": "noise", "scale": 4.0}}, {}),
    "ridge 0.1": ({"ridge": 0.1}, {}),
    "one regime": ({"regimes": 1}, {}),
}  # fmt: skip


class Row(NamedTuple):
    """One row of the results: pseudo-regret over seeds."""

    part: str
    policy: str
    seeds: str
    rounds: int
    mean: float
    two_se: float
    worst: float
    median: float
    note: str = ""


@contextmanager
def change_constants(changes: Mapping[str, Any]) -> Any:
    """Change constants of policy.selection and policy.candidates inside the block, for ablations."""
    places = [(module, name) for module in (selection, candidates) for name in changes if hasattr(module, name)]
    before = [getattr(*place) for place in places]
    for module, name in places:
        setattr(module, name, changes[name])
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def compute_regret(environment: str, preset: str, seed: int, rounds: int, overrides: Any, changes: Any) -> float:
    with change_constants(changes):
        run = replay_seed(Task(load_environment(environment), preset, seed, rounds, overrides))
    return float(run.pseudo_regret[-1])


def count_regimes(environment: str, seed: int, rounds: int) -> int:
    """Return the number of regimes that the default policy uses after these rounds."""
    world = load_environment(environment)
    episode = world.draw(rounds, np.random.default_rng(seed))
    policy = StagedPolicy(build_config("default", world, seed))
    return int(policy.play(policy.initial_state(), episode.contexts, episode.rewards).belief.size)


class Watched(StagedPolicy):
    """Records the number of regimes of every published model."""

    def publish(self, state: Any, estimate: Any) -> Any:
        published = super().publish(state, estimate)
        self.regimes = [*getattr(self, "regimes", []), published.belief.size]
        return published


def count_regime_changes(environment: str, seed: int, rounds: int) -> int:
    """Count how often the default policy changed its number of regimes."""
    world = load_environment(environment)
    episode = world.draw(rounds, np.random.default_rng(seed))
    policy = Watched(build_config("default", world, seed))
    policy.play(policy.initial_state(), episode.contexts, episode.rewards)
    return int(np.count_nonzero(np.diff(policy.regimes)))


def compare_rescaled(seed: int, rounds: int) -> tuple[float, float]:
    """Return the regret, and the regret of the same episode with rewards × 500 + 20."""
    world = load_environment("credit-card")
    episode = world.draw(rounds, np.random.default_rng(seed))
    policy = StagedPolicy(build_config("default", world, seed))
    plain = policy.play(policy.initial_state(), episode.contexts, episode.rewards)
    other = policy.play(policy.initial_state(), episode.contexts, 500.0 * episode.rewards + 20.0)
    first, second = (float(episode.compute_regrets(s.history.actions[:rounds])[0, -1]) for s in (plain, other))
    return first, second


class Bench:
    def __init__(self, jobs: int, quick: bool) -> None:
        self.jobs, self.quick, self.rows = jobs, quick, list[Row]()

    def map(self, function: Any, label: str, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        work = list(arguments)
        parallel = Parallel(self.jobs, return_as="generator")
        results = parallel(delayed(function)(*each) for each in work)
        return list(tqdm(results, total=len(work), desc=label, disable=None))

    def thin(self, seeds: range) -> range:
        return seeds[:: 10 if self.quick else 1]

    def measure_regrets(
        self, part: str, policy: str, environment: str, preset: str, seeds: range, rounds: int,
        overrides: Any = None, changes: Any = None, note: str = "",
    ) -> list[float]:  # fmt: skip
        seeds = self.thin(seeds)
        work = [(environment, preset, seed, rounds, overrides, changes or {}) for seed in seeds]
        regrets: list[float] = self.map(compute_regret, f"{part}: {policy}", work)
        self.add(part, policy, seeds, rounds, regrets, note)
        return regrets

    def add(self, part: str, policy: str, seeds: range, rounds: int, values: list[float], note: str = "") -> None:
        summary = average(values)
        row = Row(
            part, policy, f"{seeds[0]}-{seeds[-1]} ({len(seeds)})", rounds, round(summary.mean, 1),
            round(summary.two_se, 1), round(max(values), 1), round(float(np.median(values)), 1), note,
        )  # fmt: skip
        self.rows.append(row)
        print(" | ".join(str(cell) for cell in row), flush=True)

    def credit_card(self) -> None:
        self.measure_regrets("credit-card", "default, 51 columns", "credit-card", "default", PUBLISHED, 50_000)
        self.measure_regrets(
            "credit-card",
            "default, default feature map",
            "credit-card",
            "default",
            PUBLISHED,
            50_000,
            {"features": None},
        )

    def unit(self) -> None:
        seeds = self.thin(PUBLISHED[:20])
        pairs = self.map(compare_rescaled, "unit", ((seed, 50_000) for seed in seeds))
        same = sum(first == second for first, second in pairs)
        self.add("unit", "default", seeds, 50_000, [first for first, _ in pairs])
        note = f"the same regret in {same} of {len(pairs)} seeds"
        self.add("unit", "default, rewards × 500 + 20", seeds, 50_000, [second for _, second in pairs], note)

    def regimes(self) -> None:
        for environment, right in (("credit-card", 2), ("iid", 1), ("quiet-regimes", 1), ("three-regimes", 3)):
            seeds = self.thin(PUBLISHED)
            picked = self.map(count_regimes, f"regimes: {environment}", ((environment, s, 10_000) for s in seeds))
            counts = {int(h): picked.count(h) for h in sorted(set(picked))}
            note = f"picked {counts}; {right} in {picked.count(right)} of {len(picked)}"
            self.add("regimes", f"{environment} at t = 10,000", seeds, 10_000, [float(h) for h in picked], note)

    def flapping(self) -> None:
        for environment in ("credit-card", "three-regimes", "quiet-regimes", "iid"):
            seeds = self.thin(PUBLISHED[:20])
            work = ((environment, seed, 20_000) for seed in seeds)
            counts = self.map(count_regime_changes, f"changes: {environment}", work)
            self.add("changes of the number of regimes", environment, seeds, 20_000, [float(x) for x in counts])

    def others(self) -> None:
        """Compare with the paper's grid, tuned in hindsight: its best cell on the same seeds."""
        for environment in ("three-regimes", "nelson"):
            seeds = self.thin(PUBLISHED[:20])
            self.measure_regrets(
                "other environments", f"{environment}: default", environment, "default", PUBLISHED[:20], 50_000
            )
            with tempfile.TemporaryDirectory() as folder:
                sweep(environment, seeds, 50_000, build_grid(["paper-complex"]), Path(folder), jobs=self.jobs)
                finals = {key: curves[:, 0, -1] for key, curves in load_results(Path(folder)).items()}
            best = min(finals, key=lambda key: float(finals[key].mean()))
            name = f"{environment}: best of {len(finals)} cells, {best}"
            self.add("other environments", name, seeds, 50_000, finals[best].tolist())

    def hostile(self) -> None:
        for environment in HOSTILE:
            ours = self.measure_regrets("hostile", f"{environment}: default", environment, "default", PUBLISHED, 20_000)
            plain = self.measure_regrets(
                "hostile", f"{environment}: one regime", environment, "default", PUBLISHED, 20_000, {"regimes": 1}
            )
            paired = average(a - b for a, b in zip(ours, plain, strict=True))
            share, error = (100.0 * x / float(np.mean(plain)) for x in (paired.mean, paired.two_se))
            above = sum(x > 2.0 * float(np.median(ours)) for x in ours)
            note = f"{share:+.1f} % ± {error:.1f} of one regime's regret, paired; {above} seeds above twice the median"
            self.rows[-2] = self.rows[-2]._replace(note=note)
            print("   ", note, flush=True)

    def figure(self) -> None:
        """Draw regret over time with the paper's two policies at their best cells, on half of the seeds."""
        panel = []
        for preset in ("plain-linucb", "paper-complex", "default"):
            seeds = self.thin(PUBLISHED[:50])
            world = load_environment("credit-card")
            runs = self.map(replay_seed, f"figure: {preset}", ((Task(world, preset, seed, 50_000),) for seed in seeds))
            panel.append((preset, np.stack([run.pseudo_regret for run in runs])))
        report.plot_curves([("", panel)], 50_000, RESULTS.with_name("regret.png"))

    def ablation(self) -> None:
        for name, (overrides, changes) in ABLATIONS.items():
            self.measure_regrets("ablation", name, "credit-card", "default", TUNING, 50_000, overrides, changes)


PARTS = {
    "credit-card": Bench.credit_card,
    "unit": Bench.unit,
    "regimes": Bench.regimes,
    "changes": Bench.flapping,
    "hostile": Bench.hostile,
    "ablation": Bench.ablation,
    "figure": Bench.figure,
    "others": Bench.others,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the seeds; only print")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--show", action="store_true", help="only print the stored results, as in docs/policy.md")
    options = parser.parse_args()
    if options.show:
        print(format_results())
        return 0
    bench = Bench(options.jobs, options.quick)
    for part in options.only:
        PARTS[part](bench)
        if not options.quick:
            _save_results(bench.rows)
    return 0


def format_results() -> str:
    """Format the results in Markdown, one table per part."""
    lines: list[str] = []
    part = None
    for row in map(Row._make, _read_results()):
        if row.part != part:
            part = row.part
            lines += [
                "",
                f"### {part}",
                "",
                "| policy | seeds | rounds | mean | worst | median | |",
                "|---|---|---|---|---|---|---|",
            ]
        cells = (
            row.policy,
            row.seeds,
            f"{int(row.rounds):,}",
            f"{row.mean} ± {row.two_se}",
            row.worst,
            row.median,
            row.note,
        )
        lines.append("| " + " | ".join(str(cell).replace("|", ", ") for cell in cells) + " |")
    return "\n".join(lines).strip()


def _read_results() -> list[list[str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _save_results(rows: list[Row]) -> None:
    """Replace the rows of these parts in the results."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    done = {row.part for row in rows}
    kept = _read_results()
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([row for row in kept if row[0] not in done])
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
