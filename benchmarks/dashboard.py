"""Load a campaign's page in Chromium, with many and with few decisions: python -m benchmarks.dashboard [--rounds N].

Both campaigns are in one service on SQLite. Their pages are loaded in turns, each time in a browser with an empty
cache. `charts` is the time from the navigation until the belief chart is drawn and reacts to a key, measured by the
page itself; `all` is the time until every card is filled.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright
from tqdm import tqdm

from benchmarks import Verdict, print_table, print_verdicts
from benchmarks.limits import fill, wait_until_quiet
from benchmarks.load import describe_campaign
from benchmarks.measure import open_client, post
from benchmarks.servers import build_serve_command, run_server

FEW = 1_000
REPETITIONS = 7
LONGEST_MS = 1_000.0
PATIENCE_MS = 120_000
# Checks every frame. Once there is a chart, it presses a key until the chart reacts.
WATCH = """
const seen = {};
const look = () => {
  const chart = document.querySelector("#belief .chart");
  if (!seen.charts && chart?.querySelector(".tick")) {
    chart.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true, cancelable: true }));
    if (chart.querySelector(".cursor rect")) seen.charts = performance.now();
  }
  if (["#policies table", "#now .verdict"].every((part) => document.querySelector(part))) seen.all = performance.now();
  if (seen.charts && seen.all) document.documentElement.dataset.seen = JSON.stringify(seen);
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


class Load(NamedTuple):
    """Milliseconds since the navigation."""

    charts: float
    all: float


def load_page(browser: Browser, url: str) -> Load:
    """Load the page once, in a new browser context."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(url)
    page.wait_for_selector("html[data-seen]", timeout=PATIENCE_MS)
    seen = json.loads(page.locator("html").get_attribute("data-seen") or "")
    context.close()
    return Load(**seen)


def measure_pages(folder: Path, rounds: int) -> dict[int, list[Load]]:
    """Return the loads by number of decisions. The first load is after a restart, with the campaign not in memory."""
    url = f"sqlite:///{folder / 'dashboard.db'}"
    sizes = (FEW, rounds)
    with run_server("play", build_serve_command(url), folder) as at, open_client(at) as client:
        for size in sizes:
            post(client, "/campaigns", describe_campaign(f"page-{size}") | {"control": {"share": 0.1}, "regimes": 2})
            fill(client, f"page-{size}", size, rewarded=0.9)
        wait_until_quiet(at)
    with (
        run_server("show", build_serve_command(url), folder) as at,
        open_client(at) as client,
        sync_playwright() as playwright,
    ):
        wait_until_quiet(at)
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        loads: dict[int, list[Load]] = {size: [] for size in sizes}
        for _ in tqdm(range(REPETITIONS + 1), desc="loads", leave=False):
            for size in sizes:
                loads[size].append(load_page(browser, f"{client.base_url}/view/page-{size}"))
        browser.close()
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100_000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as temporary:
        loads = measure_pages(Path(temporary), rounds)
    rows, charts = [], {}
    for size, (first, *later) in loads.items():
        charts[size] = statistics.median(one.charts for one in later)
        everything = statistics.median(one.all for one in later)
        slowest = max(one.charts for one in later)
        figures = (first.charts, charts[size], slowest, first.all, everything)
        rows.append((f"{size:,}", *(f"{figure:.0f}" for figure in figures)))
    title = f"ms to load the page, {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f})"
    print_table(title, ("decisions", "charts, first", "charts", "slowest", "all, first", "all"), rows)
    ratio = charts[rounds] / charts[FEW]
    result = f"{charts[rounds]:.0f} ms, {ratio:.2f} × the page with {FEW:,}"
    print_verdicts([Verdict(f"charts react within {LONGEST_MS:.0f} ms", result, charts[rounds] < LONGEST_MS)])


if __name__ == "__main__":
    main()
