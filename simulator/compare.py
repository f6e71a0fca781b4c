"""Policies side by side on the same customers: one table, one figure, one page that opens without a network."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.replay import Run, summarise
from simulator.report import plot_curves

__all__ = ["POLICIES", "Comparison", "compared"]

POLICIES = ("plain-linucb", "paper-complex", "paper-simplified", "default")
ABOUT = {
    "plain-linucb": "knows of no regimes",
    "paper-complex": "the paper's method, tuned in hindsight",
    "paper-simplified": "the paper's method with its simpler bonus, tuned in hindsight",
    "default": "what a campaign gets that says nothing about its policy",
}
COLUMNS = ("policy", "pseudo-regret", "regret on rewards", "reward per decision", "gain captured")
LEGEND = (
    ("pseudo-regret", "expected reward missed because the policy, unlike an oracle, does not know everything"),
    ("regret on rewards", "the same on the rewards as they fell, luck included"),
    ("gain captured", "of what the oracle earns more than choosing blindly: 100 % is all of it, 0 % none"),
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
    """The runs of each policy, and what was run, in words."""

    runs: Mapping[str, Sequence[Run]]
    rounds: int
    ran: Mapping[str, str]

    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        policies = {preset: summarise(list(runs)) for preset, runs in self.runs.items()}
        return {"ran": dict(self.ran), "rounds": self.rounds, "policies": policies}

    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells, a row for each policy."""
        rows = []
        for preset, runs in self.runs.items():
            found = summarise(list(runs))
            cells = [
                _cell(found["pseudo_regret"], "{:,.1f}"),
                _cell(found["actual_regret"], "{:,.1f}"),
                _cell(found["reward"], "{:.4f}"),
                _cell(found["gain"], "{:.1%}"),
            ]
            rows.append((preset, *cells))
        return rows

    def table(self) -> str:
        """For the terminal."""
        lines = [COLUMNS, *self.rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        text = [
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
            for pairs in (tuple(zip(line, widths, strict=True)) for line in lines)
        ]
        return "\n".join([text[0], "-" * len(text[0]), *text[1:]])

    def write(self, out: Path) -> Path:
        """comparison.json, the figure (png, svg) and the page into `out`; returns the page's path."""
        out.mkdir(parents=True, exist_ok=True)
        (out / "comparison.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        curves = [(preset, np.stack([run.pseudo_regret for run in runs])) for preset, runs in self.runs.items()]
        plot_curves([("", curves)], self.rounds, out / "regret")
        page = out / "index.html"
        page.write_text(self.page((out / "regret.svg").read_text(encoding="utf-8")), encoding="utf-8")
        return page

    def page(self, figure: str) -> str:
        """One HTML file with everything in it; `figure` is an SVG file's text."""
        head = "".join(f"<th scope=col>{escape(column)}</th>" for column in COLUMNS)
        body = ""
        for preset, *cells in self.rows():
            about = f"<small>{escape(ABOUT[preset])}</small>" if preset in ABOUT else ""
            values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            body += f"<tr><td>{escape(preset)}{about}</td>{values}</tr>\n"
        ran = "".join(f"<dt>{escape(term)}</dt><dd>{escape(value)}</dd>\n" for term, value in self.ran.items())
        legend = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>\n" for term, meaning in LEGEND)
        return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Undercurrent: policies side by side</title>
<style>{STYLE}</style>
<h1>Policies side by side</h1>
<p>The same simulated customers, decided for by {len(self.runs)} policies.</p>
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table>
<div class="figure" role="img" aria-label="Pseudo-regret over the rounds, a curve for each policy">
{_inline(figure)}</div>
<h2>What the columns say</h2>
<dl>{legend}</dl>
<h2>What was run</h2>
<dl>{ran}</dl>
</html>
"""


def compared(runs: Mapping[str, Sequence[Run | None]], rounds: int, ran: Mapping[str, str]) -> Comparison | None:
    """Policies on the seeds that all of them have finished; None without any."""
    common = [i for i, both in enumerate(zip(*runs.values(), strict=True)) if all(run is not None for run in both)]
    if not common:
        return None
    kept = {preset: [run for i, run in enumerate(found) if run and i in common] for preset, found in runs.items()}
    seeds = [str(run.seed) for run in next(iter(kept.values()))]
    return Comparison(kept, rounds, {**ran, "rounds": f"{rounds:,}", "seeds": ", ".join(seeds)})


def _cell(found: Mapping[str, Any], form: str) -> str:
    if found["mean"] is None:
        return "–"
    spread = "" if found["two_se"] is None else f" ± {form.format(found['two_se'])}"
    return form.format(found["mean"]) + spread


def _inline(svg: str) -> str:
    """An SVG file as a part of a page: without prologue, comments, and metadata that name other hosts."""
    drawing = svg[svg.index("<svg") :]
    return re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
