"""Measure the default policy against other policies on worlds that it was not made for (docs/policy.md).

    python -m benchmarks.against [--quick] [--choosing] [--worlds …] [--policies …] [--seeds 1951-1962] [--jobs 2]

Rivals are tuned in hindsight: of each one's grid, the setting with the least mean regret on these very seeds counts.
Ours has no settings, and whoever changes it looks at the seeds of --choosing only. Figures are mean regrets, ± one
standard error. The rows measured replace those in docs/policy/against.csv, and the table is printed from all its rows;
with --choosing, --quick (3 seeds, a quarter of the rounds) or --seeds nothing is written unless --results names a file.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks import print_table
from benchmarks.rivals import OURS, RIVALS
from benchmarks.worlds import load_worlds

RESULTS = Path(__file__).parent.parent / "docs" / "policy" / "against.csv"
TESTING, CHOOSING, QUICK = "1951-1962", "3001-3012", "3001-3003"
OURSELVES = OURS[0]


class Row(NamedTuple):
    """A policy in a world, with its best setting."""

    world: str
    policy: str
    seeds: str
    rounds: int
    mean: float
    standard_error: float
    worst: float
    setting: str


Regrets = dict[tuple[str, int], float]  # by policy, and the place of the setting in its grid


def play_seed(name: str, rounds: int, seed: int, policies: Sequence[str]) -> Regrets:
    """Play every setting of some policies on one episode."""
    world = load_worlds()[name]
    episode = world.draw(rounds, seed)
    return {
        (policy, place): episode.compute_regret(RIVALS[policy].play(world, episode, setting, seed))
        for policy in policies
        for place, setting in enumerate(RIVALS[policy].settings)
    }


def pick_settings(world: str, seeds: str, rounds: int, runs: Sequence[Regrets]) -> list[Row]:
    """Return a row for each policy, with the setting that has the least mean regret."""
    rows = []
    for policy in dict.fromkeys(policy for policy, _ in runs[0]):
        settings = RIVALS[policy].settings
        table = np.array([[run[policy, place] for place in range(len(settings))] for run in runs])
        best = int(table.mean(axis=0).argmin())
        regrets, chosen = table[:, best], settings[best]
        error = float(regrets.std(ddof=1)) / math.sqrt(len(regrets)) if len(regrets) > 1 else math.nan
        described = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        figures = (round(float(value), 1) for value in (regrets.mean(), error, regrets.max()))
        rows.append(Row(world, policy, seeds, rounds, *figures, described))
    return rows


def measure(world: str, policies: Sequence[str], seeds: str, share: float, jobs: int) -> list[Row]:
    """Play some policies in a world over seeds; `share` of the world's rounds."""
    first, last = (int(seed) for seed in seeds.split("-"))
    rounds = round(share * load_worlds()[world].rounds)
    numbers = range(first, last + 1)
    outcomes = Parallel(jobs, return_as="generator")(
        delayed(play_seed)(world, rounds, seed, policies) for seed in numbers
    )
    runs = list(tqdm(outcomes, total=len(numbers), desc=world, disable=None))
    return pick_settings(world, seeds, rounds, runs)


def merge_rows(kept: Iterable[Row], measured: Iterable[Row]) -> list[Row]:
    """Replace rows of the same world and policy, and sort as the worlds and policies are listed."""
    rows = {(row.world, row.policy): row for row in (*kept, *measured)}
    worlds, policies = list(load_worlds()), list(RIVALS)
    return sorted(rows.values(), key=lambda row: (worlds.index(row.world), policies.index(row.policy)))


def read_rows(file: Path) -> list[Row]:
    """Read a results file; none if it does not exist."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            Row(
                line["world"], line["policy"], line["seeds"], int(line["rounds"]), float(line["mean"]),
                float(line["standard_error"]), float(line["worst"]), line["setting"],
            )
            for line in csv.DictReader(lines)
        ]  # fmt: skip


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def format_rows(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the table's header and cells: a line a world, a column a policy, the best rival and how ours compares."""
    policies = [policy for policy in RIVALS if any(row.policy == policy for row in rows)]
    lines = []
    for world in dict.fromkeys(row.world for row in rows):
        found = {row.policy: row for row in rows if row.world == world}
        cells = [f"{found[p].mean:.0f} ± {found[p].standard_error:.0f}" if p in found else "–" for p in policies]
        rivals = [row for row in found.values() if row.policy not in OURS]
        best, own, last = min(rivals, key=lambda row: row.mean, default=None), found.get(OURSELVES), ["–", "–"]
        if best is not None:
            ratio = f"{own.mean / best.mean:.2f}" if own is not None else "–"
            last = [f"{best.policy}{f' ({best.setting})' if best.setting else ''}", ratio]
        lines.append([world, *cells, *last])
    return ["world", *policies, "best rival", f"{OURSELVES} / best rival"], lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=list(load_worlds()), default=list(load_worlds()))
    parser.add_argument("--policies", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--seeds", help="first-last")
    parser.add_argument("--choosing", action="store_true", help=f"seeds {CHOOSING}, for choices about our policy")
    parser.add_argument("--quick", action="store_true", help=f"seeds {QUICK}, a quarter of the rounds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a file to merge the rows into")
    options = parser.parse_args()
    seeds = options.seeds or (QUICK if options.quick else CHOOSING if options.choosing else TESTING)
    is_for_docs = not (options.seeds or options.quick or options.choosing)
    file = options.results or (RESULTS if is_for_docs else None)
    rows = list[Row]()
    for world in options.worlds:
        rows += measure(world, options.policies, seeds, 0.25 if options.quick else 1.0, options.jobs)
        if file is not None:  # after each world, so that a run may be stopped
            write_rows(file, merge_rows(read_rows(file), rows))
    if file is not None:
        rows = read_rows(file)
    print_table(f"Mean regret, seeds {' and '.join(dict.fromkeys(row.seeds for row in rows))}", *format_rows(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
