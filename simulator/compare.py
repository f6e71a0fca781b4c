"""Compare policies on the same customers: a table, a figure, and a page that opens without a network."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.replay import Run, format_mean, summarise
from simulator.report import plot_curves

POLICIES = ("plain-linucb", "paper-complex", "paper-simplified", "default")
ABOUT = {
    "plain-linucb": "ignores regimes",
    "paper-complex": "the paper's method, tuned in hindsight",
    "paper-simplified": "the paper's method with its simpler bonus, tuned in hindsight",
    "default": "the policy of a campaign that does not configure one",
}
COLUMNS = {  # title: field of the summary, format
    "pseudo-regret": ("pseudo_regret", "{:,.1f}"),
    "regret on rewards": ("actual_regret", "{:,.1f}"),
    "reward per decision": ("reward", "{:.4f}"),
    "gain captured": ("gain", "{:.1%}"),
}
TITLES = ("policy", *COLUMNS)
LEGEND = (
    ("pseudo-regret", "expected reward lost compared with an oracle that knows every parameter"),
    ("regret on rewards", "the same for the rewards actually drawn, luck included"),
    ("gain captured", "share of what the oracle earns beyond random choice: 100 % is the oracle, 0 % is random choice"),
    ("±", "two standard errors over the seeds"),
)
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
table { border-collapse: collapse; margin: 1.5rem 0; width: 100%; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
td small, dd { opacity: .75; }
td small { display: block; }
.figure { background: #fff; border-radius: .3rem; }
.figure svg { width: 100%; height: auto; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; }
"""


class Comparison(NamedTuple):
    """The runs of each policy; `ran` describes the experiment for readers."""

    runs: Mapping[str, Sequence[Run]]
    rounds: int
    ran: Mapping[str, str]

    def summarise(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        policies = {preset: summarise(runs) for preset, runs in self.runs.items()}
        return {"ran": dict(self.ran), "rounds": self.rounds, "policies": policies}

    def format_rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, one row per policy."""
        rows = []
        for preset, runs in self.runs.items():
            summary = summarise(runs)
            rows.append((preset, *(format_mean(summary[field], form) for field, form in COLUMNS.values())))
        return rows

    def format_table(self) -> str:
        """Lay out the table for a terminal."""
        lines = [TITLES, *self.format_rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(TITLES))]
        text = [
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
            for pairs in (tuple(zip(line, widths, strict=True)) for line in lines)
        ]
        return "\n".join([text[0], "-" * len(text[0]), *text[1:]])

    def write(self, out: Path) -> Path:
        """Write comparison.json, the figure (png, svg) and the page to `out`; return the path of the page."""
        out.mkdir(parents=True, exist_ok=True)
        (out / "comparison.json").write_text(json.dumps(self.summarise(), indent=2) + "\n", encoding="utf-8")
        curves = [(preset, np.stack([run.pseudo_regret for run in runs])) for preset, runs in self.runs.items()]
        plot_curves([("", curves)], self.rounds, out / "regret")
        page = out / "index.html"
        page.write_text(self.render_page((out / "regret.svg").read_text(encoding="utf-8")), encoding="utf-8")
        return page

    def render_page(self, figure: str) -> str:
        """Return one HTML file that contains everything; `figure` is the text of an SVG file."""
        head = "".join(f"<th scope=col>{escape(column)}</th>" for column in TITLES)
        body = ""
        for preset, *cells in self.format_rows():
            about = f"<small>{escape(ABOUT[preset])}</small>" if preset in ABOUT else ""
            values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            body += f"<tr><td>{escape(preset)}{about}</td>{values}</tr>\n"
        ran = "".join(f"<dt>{escape(term)}</dt><dd>{escape(value)}</dd>\n" for term, value in self.ran.items())
        legend = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>\n" for term, meaning in LEGEND)
        return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Undercurrent: policies compared</title>
<style>{STYLE}</style>
<h1>Policies compared</h1>
<p>{len(self.runs)} policies on the same simulated customers.</p>
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table>
<div class="figure" role="img" aria-label="Pseudo-regret by round, one curve per policy">
{_strip_svg(figure)}</div>
<h2>What the columns mean</h2>
<dl>{legend}</dl>
<h2>What was run</h2>
<dl>{ran}</dl>
</html>
"""


def compare_runs(runs: Mapping[str, Sequence[Run | None]], rounds: int, ran: Mapping[str, str]) -> Comparison | None:
    """Compare policies on the seeds that all of them finished; return None if there is no such seed."""
    finished = [all(run is not None for run in same_seed) for same_seed in zip(*runs.values(), strict=True)]
    if not any(finished):
        return None
    kept = {
        preset: [run for run, keep in zip(mine, finished, strict=True) if keep and run is not None]
        for preset, mine in runs.items()
    }
    seeds = [str(run.seed) for run in next(iter(kept.values()))]
    return Comparison(kept, rounds, {**ran, "rounds": f"{rounds:,}", "seeds": ", ".join(seeds)})


def _strip_svg(svg: str) -> str:
    """Prepare an SVG file for inclusion in a page: drop the prologue, comments, and metadata that name other hosts."""
    drawing = svg[svg.index("<svg") :]
    return re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
