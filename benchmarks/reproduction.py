"""Time the paper's experiment: `python -m benchmarks.reproduction [--quick]`.

One cell (ℓ = 37) over 100 seeds × 50,000 rounds, including drawing the episodes and estimating the beliefs, against the
15 minutes that the authors report for it on 8 cores; and the peak memory of all its processes together.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from joblib import Parallel, cpu_count, delayed

from simulator.replay import average
from simulator.sweep import Cell, load_results, sweep

AUTHORS_SECONDS = 15 * 60  # paper, "Computational costs": 100 runs of one (ℓ, λ, C) on 8 cores
CELL = Cell("paper-complex", 37, 1.0, 5e-4)


def measure_peak_memory() -> int:
    """Return the peak memory of this process, in KiB."""
    time.sleep(0.2)  # so that every worker gets one of these tasks
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def format_verdict(holds: bool) -> str:
    return "PASS" if holds else "FAIL"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 seeds instead of 100, scaled up")
    seeds = 10 if parser.parse_args().quick else 100
    with tempfile.TemporaryDirectory() as folder:
        # Start the workers and load the kernels before timing.
        sweep("credit-card", [1, 2], 1_500, [CELL], Path(folder) / "warm")
        began = time.perf_counter()
        sweep("credit-card", range(1951, 1951 + seeds), 50_000, [CELL], Path(folder) / "timed")
        seconds = (time.perf_counter() - began) * 100 / seeds
        regret = average(load_results(Path(folder) / "timed")[CELL.key][:, 0, -1])
    workers = Parallel(n_jobs=-1)(delayed(measure_peak_memory)() for _ in range(cpu_count()))
    mebibytes = (sum(workers) + measure_peak_memory()) / 1024
    share = AUTHORS_SECONDS / seconds
    print(f"\n100 runs × 50,000 rounds of {CELL.key}{' (scaled up from 10)' if seeds < 100 else ''}")
    print(f"  regret {regret.mean:.0f} ({regret.two_se:.0f}), published 246 (9)")
    print(f"  {seconds:.1f} s, 1/{share:.0f} of the authors' 15 minutes; target 1/60: {format_verdict(share >= 60)}")
    print(f"  {mebibytes:.0f} MiB in all processes together; target 4096: {format_verdict(mebibytes < 4096)}")


if __name__ == "__main__":
    main()
