"""No NaN and no infinity in anything that a campaign answers or shows."""

import io
import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest

from policy import StagedPolicy
from policy.config import LARGEST_REWARD
from service.storage.tables import events
from tests.service.answers import allowed_by_field, good
from tests.service.conftest import Clock, Worker
from tests.service.documented import Documented
from tests.service.playing import CONFIGS, GIVEN, SEASONS, Direct, Script, on_sqlite, verify_campaign

SPECIMEN: dict[str, Any] = {
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "season", "levels": list(SEASONS)},
        {"name": "twin", "levels": list(SEASONS)},  # always the same as the season
        {"name": "spend", "cuts": [20, 50]},  # never beyond the first
        {"name": "tenure", "range": [0, 8]},  # never another than 8
    ],
    "signals": ["season"],
    "stage_length": 5,
    "warm_start_rounds": 15,
    "control": {"share": 0.45},
    "propensity_floor": 0.02,
    "seed": 7,
}
KINDS: dict[str, dict[str, Any]] = {
    "joint": {"regimes": 2},
    "smoothed": {"regimes": 2, "beliefs": {"estimator": "em", "statistics": "smoothed", "start_round": 20}},
    "spectral": {"regimes": 2, "beliefs": {"estimator": "spectral", "start_round": 20, "every": 30}},
    "given": {"regimes": 2, "beliefs": {"estimator": "given", "parameters": GIVEN}},
    "extreme": {"ridge": 1e-12, "bonus": {"scale": 1e12}},
}
REWARDS: dict[str, list[float]] = {
    "zero": [0.0],
    "largest": [LARGEST_REWARD, -LARGEST_REWARD],
    "large": [1e80, 3e80, 1e81],
    "tiny": [1e-300, 2e-300, 5e-324],
    "mixed": [LARGEST_REWARD, 1.0, 1e-300, -1e50, 0.0],
    "none": [],
}
ROUNDS = 130
# Each kind with some rewards, each rewards with some kind.
PAIRS = [
    ("joint", "largest"), ("joint", "tiny"), ("smoothed", "zero"), ("spectral", "large"), ("given", "none"),
    ("extreme", "mixed"),
]  # fmt: skip
SHOWN = ("", "/model", "/stages", "/diagnostics", "/regimes", "/report", "/series", "/series?beliefs=now", "/alerts")


@pytest.fixture(scope="module")
def worker(new_database: Callable[[str], str]):
    worker = Worker(new_database("sqlite"), Clock())
    yield worker
    worker.stop()


def context(number: int) -> dict[str, Any]:
    season = SEASONS[number // 20 % 2 * 2 + number % 2 if number < ROUNDS - 10 else 3]
    return {"season": season, "twin": season, "spend": 3, "tenure": 8}


def played(client: httpx.Client, name: str, values: list[float]) -> None:
    for start in range(0, ROUNDS, 10):
        items = [
            {"decision_id": f"d{i}", "subject": f"s{i % 90}", "context": context(i)} for i in range(start, start + 10)
        ]
        good(client.post("/decide/batch", json={"campaign": name, "items": items}))
        if values:
            rewards = [
                {"decision_id": item["decision_id"], "reward": values[(start * 7 + i * 3) % len(values)]}
                for i, item in enumerate(items)
            ]
            answer = good(client.post("/reward/batch", json={"campaign": name, "items": rewards}))
            assert all(result["error"] is None for result in answer["results"])


@pytest.mark.parametrize(("kind", "rewards"), PAIRS)
def test_all_numbers_in_answers_are_finite(worker, kind, rewards):
    client, name = worker.client, f"{kind}-{rewards}"
    documented = Documented(good(client.get("/openapi.json")))
    good(client.post("/campaigns", json=SPECIMEN | KINDS[kind] | {"name": name}), 201)
    played(client, name, REWARDS[rewards])
    answers = [client.get(f"/campaigns/{name}{what}") for what in SHOWN]
    answers += [
        client.get(f"/campaigns/{name}/report?model_version=1&model_version=5"),
        client.get(f"/campaigns/{name}/decisions/d{ROUNDS - 1}"),
        client.post("/decide", json={"campaign": name, "context": context(0)}),
        client.post(f"/campaigns/{name}/preview", json={"context": context(1)}),
        client.post(f"/campaigns/{name}/explain", json={"decision_id": f"d{ROUNDS - 1}"}),
        client.post("/subjects/export", json={"subject": "s1"}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        documented(answer)
    assert answers[0].json()["failure"] is None
    check_exports(client, name)
    for line in client.get("/metrics").text.splitlines():
        assert line.startswith("#") or math.isfinite(float(line.rpartition(" ")[2])), line
    with worker.service.store.reading() as tx:
        assert verify_campaign(tx, name) == []


def check_exports(client: httpx.Client, name: str) -> None:
    """Check that no export format contains a NaN or an infinity."""
    path = f"/campaigns/{name}/decisions"
    for line in client.get(f"{path}?format=ndjson").text.splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["propensity"] > 0
    cells = client.get(f"{path}?format=csv").text.replace("\n", ",").lower().split(",")
    assert not {"nan", "inf", "-inf", "infinity"} & {cell.strip() for cell in cells}
    table = pq.read_table(io.BytesIO(client.get(f"{path}?format=parquet").content))
    for column in table.columns:
        if str(column.type) == "double":
            assert np.isfinite(column.drop_null().to_numpy()).all()


def test_a_reward_that_is_too_large_is_refused(worker):
    """The error says what is allowed, and the decision still waits for its reward."""
    client, name = worker.client, "told"
    good(client.post("/campaigns", json=SPECIMEN | {"name": name}), 201)
    decision = good(client.post("/decide", json={"campaign": name, "context": context(0)}))
    body = {"campaign": name, "decision_id": decision["decision_id"]}
    for reward, allowed in ((1.01e100, "≤ 1e+100"), (-1e308, "≥ -1e+100")):
        assert allowed_by_field(client.post("/reward", json=body | {"reward": reward})) == {"reward": allowed}
    assert good(client.post("/reward", json=body | {"reward": -LARGEST_REWARD}))["reward"] == -1e100


@on_sqlite
@pytest.mark.parametrize(
    ("step", "part", "number"),
    [
        ("update", "theta", math.inf),
        ("update", "inverse", math.nan),
        ("reestimate", "moment", math.nan),
        ("reestimate", "units", -math.inf),
    ],
)
def test_a_model_that_is_not_finite_is_not_published(direct, clock, monkeypatch, step, part, number):
    """R14: the step fails, the failure is logged, and the campaign keeps its model."""
    worker: Direct = direct()
    made = getattr(StagedPolicy, step)

    def broken(policy, state):
        after = made(policy, state)
        if not 31 <= state.round < 36:
            return after
        array = getattr(after.statistics, part).copy()
        array.flat[-1] = number
        return after._replace(statistics=after.statistics._replace(**{part: array}))

    monkeypatch.setattr(StagedPolicy, step, broken)
    script = Script(CONFIGS["smoothed"], clock).create(worker.post).play(worker.post, 60)
    failed = [row for row in worker.rows(events) if row["kind"].startswith("failed")]
    assert [row["kind"] for row in failed] == ["failed_update" if step == "update" else "failed_estimation"]
    assert "not finite" in failed[0]["body"]
    for decision in script.decisions:
        assert all(math.isfinite(score["score"]) for score in decision["scores"])
    assert worker.differences("smoothed") == []
