"""The paper's three tables and its figures from a sweep's results, each cell beside the published value."""

import csv
import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from policy.arrays import FloatArray
from simulator.replay import Run, average, pick_checkpoints
from simulator.sweep import RIDGES, SCALES, STAGE_LENGTHS, Cell, load_results, read_sweep

TITLES = {
    "plain-linucb": "Plain LinUCB",
    "paper-complex": "LinUCB-Belief-Complex",
    "paper-simplified": "LinUCB-Belief-Simplified",
}
# Okabe–Ito colours, which colour-blind readers can distinguish; line styles differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#8C510A")
STYLES = ("-", "--", "-.", ":")
Curve = tuple[str, FloatArray]  # label, seeds × checkpoints


class Published(NamedTuple):
    mean: float
    two_se: float
    best: bool


class CellComparison(NamedTuple):
    """One cell: ours, the paper's, and their difference in combined standard errors."""

    cell: Cell
    mean: float
    two_se: float
    seeds: int
    published: Published
    deviation: float


def load_published() -> dict[Cell, Published]:
    """Load the paper's tables (data/paper_tables.csv)."""
    text = (resources.files("simulator") / "data" / "paper_tables.csv").read_text(encoding="utf-8")
    return {
        Cell(row["policy"], int(row["stage_length"]), float(row["ridge"]), float(row["scale"])): Published(
            float(row["mean"]), float(row["two_se"]), row["best"] == "1"
        )
        for row in csv.DictReader(text.splitlines())
    }


def compare_with_paper(results: dict[str, FloatArray]) -> list[CellComparison]:
    """Compare every published cell that was run."""
    rows = []
    for cell, theirs in load_published().items():
        if cell.key in results:
            ours = average(results[cell.key][:, 0, -1])
            combined = np.hypot(ours.two_se, theirs.two_se) / 2.0
            deviation = (ours.mean - theirs.mean) / combined
            rows.append(CellComparison(cell, ours.mean, ours.two_se, len(ours.per_seed), theirs, float(deviation)))
    return rows


def write_report(folder: Path, out: Path) -> str:
    """Write tables (md, csv, tex), figures (png, svg) and a summary to `out`; return the summary."""
    environment, rounds = read_sweep(folder)
    if environment != "credit-card":
        raise ValueError(f"{folder} is a sweep of {environment}; the paper's tables are for credit-card")
    results = load_results(folder)
    rows = compare_with_paper(results)
    if not rows:
        raise FileNotFoundError(f"no finished cells in {folder}; run `undercurrent-sim sweep --out {folder}` first")
    out.mkdir(parents=True, exist_ok=True)
    summary = _format_summary(rows)
    tables = [_format_markdown(policy, rows) for policy in TITLES]
    (out / "tables.md").write_text("\n\n".join([summary, *tables]) + "\n", encoding="utf-8")
    latex = [_format_latex(policy, rows) for policy in TITLES]
    (out / "tables.tex").write_text("\n\n".join(latex) + "\n", encoding="utf-8")
    _write_csv(rows, out / "tables.csv")
    _draw_figures(results, rows, out, rounds)
    return summary


def _write_csv(rows: Sequence[CellComparison], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [*Cell._fields, "mean", "two_se", "seeds", "published_mean", "published_two_se", "deviation_in_se"]
        )
        for row in rows:
            theirs = row.published
            ours = [f"{row.mean:.1f}", f"{row.two_se:.1f}", row.seeds]
            writer.writerow([*row.cell, *ours, theirs.mean, theirs.two_se, f"{row.deviation:.2f}"])


def _select(rows: Sequence[CellComparison], policy: str, length: int) -> list[CellComparison]:
    return [row for row in rows if (row.cell.policy, row.cell.stage_length) == (policy, length)]


def _pick_best(rows: Sequence[CellComparison]) -> CellComparison | None:
    """Pick the lowest mean: in hindsight, as in the paper."""
    return min(rows, key=lambda row: row.mean, default=None)


def _get_stage_lengths(policy: str) -> tuple[int, ...]:
    return (1,) if policy == "plain-linucb" else STAGE_LENGTHS


def _format_value(value: CellComparison | Published) -> str:
    return f"{value.mean:.0f} ({value.two_se:.0f})"


def _format_summary(rows: Sequence[CellComparison]) -> str:
    within = sum(abs(row.deviation) <= 3.0 for row in rows)
    seeds = sorted({row.seeds for row in rows})
    lines = [
        f"{within} of {len(rows)} cells ({within / len(rows):.1%}) lie within 3 combined standard errors of the"
        f" published value ({seeds[0] if len(seeds) == 1 else f'{seeds[0]}–{seeds[-1]}'} seeds per cell).",
        "",
        "| policy | ℓ | best λ, C | ours (2 s.e.) | published best (2 s.e.) | best inside the grid |",
        "|---|---|---|---|---|---|",
    ]
    for policy, title in TITLES.items():
        for length in _get_stage_lengths(policy):
            best = _pick_best(mine := _select(rows, policy, length))
            theirs = next((row for row in mine if row.published.best), None)
            if best is None or theirs is None:
                continue
            inside = best.cell.ridge not in (RIDGES[0], RIDGES[-1]) and best.cell.scale not in (SCALES[0], SCALES[-1])
            lines.append(
                f"| {title} | {length} | {best.cell.ridge:g}, {best.cell.scale:g} | {_format_value(best)}"
                f" | {_format_value(theirs.published)} at {theirs.cell.ridge:g}, {theirs.cell.scale:g}"
                f" | {'yes' if inside else 'no: at its edge'} |"
            )
    return "\n".join(lines)


def _format_lines(
    policy: str, rows: Sequence[CellComparison], separator: str, format_entry: Callable[[CellComparison | None], str]
) -> list[str]:
    """Format the lines of one table, a line per ℓ and λ, a column per C."""
    by_cell = {row.cell: row for row in rows}
    lines = []
    for length in _get_stage_lengths(policy):
        for ridge in RIDGES:
            entries = [format_entry(by_cell.get(Cell(policy, length, ridge, scale))) for scale in SCALES]
            lines.append(separator.join([str(length), f"{ridge:g}", *entries]))
    return lines


def _format_markdown(policy: str, rows: Sequence[CellComparison]) -> str:
    """Format one table: ours (2 s.e.), published (2 s.e.), difference in combined standard errors."""

    def format_entry(entry: CellComparison | None) -> str:
        if entry is None:
            return "–"
        text = f"{_format_value(entry)} · {_format_value(entry.published)} · [{entry.deviation:+.1f}]"
        return f"**{text}**" if entry.published.best else text

    lines = [
        f"### {TITLES[policy]}: ours (2 s.e.) · published (2 s.e.) · [difference in standard errors]",
        "",
        "| ℓ | λ \\ C | " + " | ".join(f"{scale:g}" for scale in SCALES) + " |",
        "|---" * (2 + len(SCALES)) + "|",
    ]
    return "\n".join([*lines, *(f"| {line} |" for line in _format_lines(policy, rows, " | ", format_entry))])


def _format_latex(policy: str, rows: Sequence[CellComparison]) -> str:
    """Format one table like `_format_markdown`, as LaTeX."""

    def format_entry(entry: CellComparison | None) -> str:
        if entry is None:
            return "--"
        return f"{_format_value(entry)} / {_format_value(entry.published)} [{entry.deviation:+.1f}]"

    lines = [
        r"\begin{tabular}{@{}c l" + "c" * len(SCALES) + "@{}}",
        r"\toprule",
        rf"\multicolumn{{{2 + len(SCALES)}}}{{c}}{{\emph{{{TITLES[policy]}}}}} \\",
        r"\midrule",
        r"$\ell$ & $\lambda$ / $C$ & " + " & ".join(f"{scale:g}" for scale in SCALES) + r" \\",
        r"\midrule",
        *(line + r" \\" for line in _format_lines(policy, rows, " & ", format_entry)),
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _draw_figures(results: dict[str, FloatArray], rows: Sequence[CellComparison], out: Path, rounds: int) -> None:
    """Draw fig:simulation-final, fig:overall-performance, fig:plain-linucb-by-c, fig:linucb-by-c (a) and (b)."""
    overall: dict[tuple[str, int], Curve] = {}  # the best cell by policy and ℓ
    for policy, title in TITLES.items():
        panels = []
        for length in _get_stage_lengths(policy):
            mine, suffix = _select(rows, policy, length), f"ℓ = {length}" if policy != "plain-linucb" else ""
            if best := _pick_best(mine):
                overall[policy, length] = ", ".join(filter(None, (title, suffix))), results[best.cell.key][:, 0]
            by_scale = (_pick_best([row for row in mine if row.cell.scale == scale]) for scale in SCALES)
            kept = [row.cell for row in by_scale if row]
            curves = [(f"C = {cell.scale:g} (λ = {cell.ridge:g})", results[cell.key][:, 0]) for cell in kept]
            panels.append((suffix or title, curves))
        plot_curves(panels, rounds, out / f"figure-{policy.removeprefix('paper-')}-by-c")
    shown = (("plain-linucb", 1), ("paper-complex", 1), ("paper-complex", 37))
    final = [overall[each] for each in shown if each in overall]
    plot_curves([("", final)], rounds, out / "figure-simulation-final")
    plot_curves([("", list(overall.values()))], rounds, out / "figure-overall-performance")


def plot_curves(panels: Sequence[tuple[str, Sequence[Curve]]], rounds: int, path: Path) -> None:
    """Plot mean curves with ±2 s.e. bands as PNG and SVG, one panel per title."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    size = (6.4 * columns, 4.2 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    marks = pick_checkpoints(rounds)
    for axis, (title, curves) in zip(axes.flat, panels, strict=True):
        for i, (label, sample) in enumerate(curves):
            mean = sample.mean(axis=0)
            band = 2.0 * sample.std(axis=0, ddof=1) / len(sample) ** 0.5 if len(sample) > 1 else np.zeros_like(mean)
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
            axis.plot(marks, mean, style, color=colour, label=label, linewidth=1.8)
            axis.fill_between(marks, mean - band, mean + band, color=colour, alpha=0.18, linewidth=0)
        axis.set(title=title, xlabel="round t", ylabel="pseudo-regret (mean ± 2 s.e.)", xlim=(0, rounds))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        if curves:
            axis.legend(fontsize=8, frameon=False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".png").removesuffix(".svg")  # other dots are part of the name, as in scale-0.5
    figure.savefig(path.with_name(f"{name}.png"), dpi=140)
    with mpl.rc_context({"svg.hashsalt": "undercurrent"}):
        figure.savefig(path.with_name(f"{name}.svg"), metadata={"Date": None})
    plt.close(figure)


def write_curves(out: Path, summary: dict[str, Any], runs: Sequence[Run]) -> None:
    """Write the files of `replay --out`: summary.json and curves.csv (seed, round, pseudo_regret, actual_regret)."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    marks = pick_checkpoints(summary["rounds"]).tolist()
    with (out / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "round", "pseudo_regret", "actual_regret"])
        for run in runs:
            for t, pseudo, actual in zip(marks, run.pseudo_regret, run.actual_regret, strict=True):
                writer.writerow([run.seed, t, f"{pseudo:.6f}", f"{actual:.6f}"])
