"""How a decide's cost grows with rounds, campaigns, actions, columns, regimes: python -m benchmarks.growth [--quick].

It runs in process, which is less noisy than sockets: the service's ASGI application on SQLite (synchronous=FULL), 16
requests at a time, timed in CPU seconds of the event loop's thread. Each point takes turns with the base of its panel;
the result is the median of their ratios. Writes benchmarks/growth.svg and growth.png, and results/growth.md.
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import matplotlib as mpl
import matplotlib.pyplot as plt
import uvloop
from tqdm import tqdm

from benchmarks import format_table
from policy import CampaignConfig, StagedPolicy
from service.base.settings import Settings
from service.cli.application import create_app
from service.storage.schema import upgrade
from service.storage.store import Store
from service.web.application import Application

GATHER = 16  # requests at a time
GATHERS = 5  # in one turn: 80 decides end 8 stages of 10 rounds
BATCH = 1_000
SYMBOLS = tuple("12345678")  # levels of the only signal; at least as many as regimes
LEVELS = tuple("1234")  # of every other variable
FIRST_ROUNDS = 1_000  # of a campaign, unless set otherwise
COLOUR = "#0072B2"


class Point(NamedTuple):
    """Campaigns that share the requests, and their sizes."""

    x: int
    campaigns: Sequence[str]
    rounds: int = FIRST_ROUNDS
    actions: int = 3
    variables: int = 3
    regimes: int = 2


class Panel(NamedTuple):
    title: str
    unit: str
    base: Point
    points: Sequence[Point]


def list_variables(point: Point) -> dict[str, Sequence[str]]:
    """Return the levels of each variable."""
    return {f"v{number}": LEVELS if number else SYMBOLS for number in range(point.variables)}


def describe_campaign(name: str, point: Point) -> dict[str, Any]:
    """Describe a campaign with a given HMM, so that it has exactly these regimes and never re-estimates."""
    stay, regimes = 0.9, range(point.regimes)
    others = max(1, point.regimes - 1)
    given = {
        "transition": [[stay if i == j else (1 - stay) / others for j in regimes] for i in regimes],
        "emission": [[(1 + (symbol + i) % 8) / 36 for symbol in range(8)] for i in regimes],
        "initial": [1 / point.regimes] * point.regimes,
    }
    return {
        "name": name,
        "actions": [f"action-{number}" for number in range(point.actions)],
        "variables": [{"name": name, "levels": levels} for name, levels in list_variables(point).items()],
        "signals": ["v0"],
        "regimes": point.regimes,
        "beliefs": {"estimator": "given", "parameters": given} if point.regimes > 1 else {"estimator": "none"},
        "seed": 7,
    }


def count_columns(point: Point) -> int:
    return int(StagedPolicy(CampaignConfig(**describe_campaign("x", point))).initial_state().statistics.theta.size)


def plan_panels(quick: bool) -> Iterator[Panel]:
    rounds = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    points = [Point(count, [f"rounds-{count}"], rounds=count) for count in rounds]
    yield Panel("rounds", "rounds of the campaign", Point(0, ["base"]), points)
    names = [f"campaign-{number}" for number in range(1_000)]
    counts = (1, 4, 16, 100) if quick else (1, 4, 16, 100, 1_000)
    few = [Point(count, names[:count], rounds=100) for count in counts]
    yield Panel("campaigns", "campaigns that share the requests", few[0], few)
    actions = [Point(count, [f"actions-{count}"], actions=count) for count in (2, 4, 8, 16, 32)]
    yield Panel("actions", "actions", Point(3, ["base"]), actions)
    wide = [Point(0, [f"variables-{count}"], variables=count) for count in (1, 3, 6, 12, 24)]
    wide = [point._replace(x=count_columns(point)) for point in wide]
    yield Panel("columns", "columns of the reward model (1 to 24 variables)", Point(0, ["base"]), wide)
    regimes = [Point(count, [f"regimes-{count}"], regimes=count) for count in (1, 2, 4, 8)]
    yield Panel("regimes", "regimes", Point(2, ["base"]), regimes)


class Caller:
    """Calls the application the way a server does, without sockets."""

    def __init__(self, app: Application, draws: random.Random) -> None:
        self._app, self._draws = app, draws

    async def post(self, path: str, body: Any) -> None:
        content, sent = json.dumps(body).encode(), []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 8_000),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        if sent[0]["status"] not in (200, 201):
            raise RuntimeError(f"POST {path} answered {sent[0]['status']}: {sent[1]['body'][:500]!r}")

    def draw_context(self, point: Point) -> dict[str, str]:
        return {name: self._draws.choice(levels) for name, levels in list_variables(point).items()}

    async def create(self, point: Point) -> None:
        """Create the campaigns and play their rounds in batches; the first batch is rewarded, then a tenth of each."""
        for name in tqdm(point.campaigns, desc="campaigns", leave=False, disable=len(point.campaigns) == 1):
            await self.post("/campaigns", describe_campaign(name, point))
            starts = range(0, point.rounds, BATCH)
            for start in tqdm(starts, desc=name, leave=False, disable=point.rounds <= 10 * BATCH):
                count = min(BATCH, point.rounds - start)
                items = [{"decision_id": uuid4().hex, "context": self.draw_context(point)} for _ in range(count)]
                await self.post("/decide/batch", {"campaign": name, "items": items})
                rewards = [
                    {"decision_id": item["decision_id"], "reward": self._draws.random()}
                    for item in items[: count if start == 0 else count // 10]
                ]
                await self.post("/reward/batch", {"campaign": name, "items": rewards})

    async def time_turn(self, point: Point) -> float:
        """Return the CPU seconds of 80 decides, 16 at a time. Their rewards are not timed."""
        seconds = 0.0
        for _ in range(GATHERS):
            named = [(self._draws.choice(point.campaigns), uuid4().hex) for _ in range(GATHER)]
            decides = [{"campaign": c, "decision_id": i, "context": self.draw_context(point)} for c, i in named]
            begun = time.thread_time()
            await asyncio.gather(*(self.post("/decide", body) for body in decides))
            seconds += time.thread_time() - begun
            rewards = [{"campaign": c, "decision_id": i, "reward": self._draws.random()} for c, i in named]
            await asyncio.gather(*(self.post("/reward", body) for body in rewards))
        return seconds


class Cost(NamedTuple):
    x: int
    ratio: float  # to the base
    microseconds: float  # CPU of one decide
    columns: int


Measured = list[tuple[Panel, list[Cost]]]


async def measure(panel: Panel, turns: int, folder: Path) -> list[Cost]:
    """Measure all points of a panel in one service, each in turns with the base."""
    url = f"sqlite:///{folder / panel.title}.db"
    store = Store(url)
    upgrade(store)
    store.close()
    app = create_app(Settings(database_url=url))
    caller = Caller(app, random.Random(7))
    async with app.api.router.lifespan_context(app.api):
        created: set[str] = set()
        for point in (panel.base, *panel.points):
            new = [name for name in point.campaigns if name not in created]
            created |= {*new}
            await caller.create(point._replace(campaigns=new))
        costs = []
        for point in tqdm(panel.points, desc=panel.title, leave=False):
            pairs = []
            for _ in range(turns + 2):
                gc.collect()
                pairs.append((await caller.time_turn(panel.base), await caller.time_turn(point)))
            del pairs[:2]  # the first turns load caches and compile
            ratio = statistics.median(own / base for base, own in pairs)
            seconds = statistics.median(own for _, own in pairs) / GATHER / GATHERS
            costs.append(Cost(point.x, ratio, 1e6 * seconds, count_columns(point)))
    return costs


def draw_figure(measured: Measured, out: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(1, len(measured), figsize=(15, 3.2), sharey=True, layout="constrained")
    for axis, (panel, costs) in zip(axes, measured, strict=True):
        axis.plot([cost.x for cost in costs], [cost.ratio for cost in costs], "o-", color=COLOUR, linewidth=1.8)
        axis.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
        axis.set(xscale="log", xlabel=panel.unit, title=panel.title)
        axis.minorticks_off()
        axis.set_xticks(
            [cost.x for cost in costs],
            [f"{cost.x:,}" if cost.x < 10_000 else f"{cost.x:.0e}".replace("e+0", "e") for cost in costs],
        )
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="CPU of a decide, × base", ylim=(0, None))
    figure.savefig(out.with_suffix(".png"), dpi=140)
    with mpl.rc_context({"svg.hashsalt": "undercurrent"}):
        figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


async def run(quick: bool, folder: Path) -> Measured:
    return [(panel, await measure(panel, 15 if quick else 40, folder)) for panel in plan_panels(quick)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: fewer turns, up to 100,000 rounds")
    parser.add_argument(
        "--plot", type=Path, default=Path(__file__).with_name("growth"), help="file without .svg and .png"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for growth.md")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="undercurrent-growth-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        measured = runner.run(run(options.quick, Path(folder)))
    rows = [
        [panel.title, f"{cost.x:,}", f"{cost.columns:,}", f"{cost.ratio:.2f}", f"{cost.microseconds:.0f}"]
        for panel, costs in measured
        for cost in costs
    ]
    report = format_table("Growth of a decide's CPU time", ("with more", "value", "columns", "× base", "CPU µs"), rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.md").write_text(report, encoding="utf-8")
    draw_figure(measured, options.plot)
    print(f"\n{report}\nWritten to {options.plot}.svg, {options.plot}.png and {options.out}/growth.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
