"""Compare policies on the same customers: a table, a figure, and a page that opens without a network."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Template

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
        return [
            (preset, *(format_mean(summary[field], form) for field, form in COLUMNS.values()))
            for preset, summary in self.summarise()["policies"].items()
        ]

    def format_table(self) -> str:
        """Lay out the table for a terminal."""
        lines = [TITLES, *self.format_rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(TITLES))]
        text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
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
        text = (resources.files("simulator") / "data" / "comparison.html").read_text(encoding="utf-8")
        template: Template = Template(text, autoescape=True, keep_trailing_newline=True)
        rows, figure = self.format_rows(), _strip_svg(figure)
        return template.render(titles=TITLES, rows=rows, about=ABOUT, ran=self.ran, figure=figure)


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
