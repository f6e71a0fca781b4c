"""Imports: a campaign warm-started from a log equals the one that wrote it; all rows or none, and only once."""

import json
from itertools import pairwise

import numpy as np
import pytest

from service.base.errors import ConflictError
from service.base.times import format_timestamp
from service.cli.commands import main
from service.engine.operations import Archive
from service.engine.preparation import prepare_import
from service.engine.requests import ImportRow
from service.storage.tables import decisions, events, models, rewards
from tests.service.answers import allowed_by_field, error_of, good
from tests.service.playing import CONFIGS, Direct, Script, on_sqlite, operation
from tests.service.test_subjects import assert_same_model, erase, state_of

ROUNDS = 95
SIMPLE = {
    "actions": ["none", "email"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}],
    "stage_length": 5,
    "rewards": {"range": [-1, 2]},
}
OTHER = {"name": "other", "variables": [{"name": "x", "levels": ["a", "b"]}], "signals": ["x"], "clock": None}
ROW = {"context": {"risk": "low"}, "action": "email"}


@pytest.fixture
def new(http):
    """A function that creates a new campaign and returns its name."""
    numbers = iter(range(1000))

    def new(**own):
        name = f"import-{next(numbers)}-{np.random.default_rng().integers(2**40)}"
        good(http.post("/campaigns", json=SIMPLE | {"name": name} | own), 201)
        return name

    return new


def export_rows(worker):
    """Yield the log in the form of an export."""
    rewarded = {row["round"]: row for row in worker.rows(rewards)}
    for row in worker.rows(decisions):
        came = rewarded.get(row["round"])
        yield ImportRow(
            context=None if row["erased"] else json.loads(row["context"]),
            action=row["action"],
            decision_id=row["decision_id"],
            propensity=row["propensity"],
            at=None if row["at"] is None else format_timestamp(row["at"]),
            decided_at=format_timestamp(row["decided_at"]),
            subject=row["subject"],
            round=row["round"],
            reward=came["reward"] if came else None,
            reward_after_round=came["after_round"] if came else None,
        )


def import_rows(worker, config, rows, clock):
    worker.post("/campaigns", config)
    made = prepare_import(worker.campaigns, config["name"], "again", rows)
    assert worker.process(made) == [None]
    return made.summary


@pytest.mark.parametrize(
    ("kind", "erasing"),
    [(kind, False) for kind in CONFIGS if kind != "waiting"]
    + [(kind, True) for kind in ("default", "smoothed", "clock", "online")],
)
def test_an_imported_log_gives_the_same_campaign(new_database, clock, kind, erasing):
    """The same model to the last bit, and the same decisions afterwards (R15); also after an erasure."""
    worker, other = (Direct(new_database("sqlite"), clock) for _ in range(2))
    script = Script(CONFIGS[kind], clock).create(worker.post).play(worker.post, ROUNDS)
    if erasing:
        assert erase(worker, script.name)
    told = import_rows(other, script.config, list(export_rows(worker)), clock)
    expected, found = state_of(worker, script.name), state_of(other, script.name)
    assert_same_model(found, expected)
    assert (told["rows"], told["rewards"]) == (expected.round, expected.history.get_arrivals(0, expected.arrived).size)
    assert (found.round, found.counted, found.next_update) == (expected.round, expected.counted, expected.next_update)
    assert other.differences(script.name) == []
    context = {"season": "autumn", "spend": 20, "tenure": 3}
    for number in range(30):
        body = {"campaign": script.name, "decision_id": f"next-{number}", "context": context}
        one, same = (each.post("/decide", body) for each in (worker, other))
        assert one == same | ({"model_version": one["model_version"]} if erasing else {})
    fresh = Direct(str(other.store.engine.url), clock)
    assert_same_model(state_of(fresh, script.name), state_of(other, script.name))
    assert other.differences(script.name) == []
    for one in (fresh, other, worker):
        one.store.close()


def test_imported_rounds_wait_for_nothing(new_database, clock):
    """R2, R20: they count at once, with their reward or the default, and a reward that still comes replaces it."""
    worker, other = (Direct(new_database("sqlite"), clock) for _ in range(2))
    script = Script(CONFIGS["waiting"], clock).create(worker.post).play(worker.post, ROUNDS)
    rows = list(export_rows(worker))
    missing = next(row.decision_id for row in reversed(rows) if row.reward is None)
    import_rows(other, script.config, rows, clock)
    assert state_of(other, script.name).counted >= ROUNDS - script.config["stage_length"]
    other.post("/reward", {"campaign": script.name, "decision_id": missing, "reward": 1.0})
    for number in range(12):
        item = {"decision_id": f"next-{number}", "context": {"season": "autumn", "spend": 20, "tenure": 3}}
        other.post("/decide", {"campaign": script.name, **item})
    assert other.differences(script.name) == []
    fresh = Direct(str(other.store.engine.url), clock)
    assert_same_model(state_of(fresh, script.name), state_of(other, script.name))
    for one in (fresh, other, worker):
        one.store.close()


@pytest.mark.parametrize(("format", "kind"), [("ndjson", "default"), ("csv", "clock"), ("parquet", "clock")])
def test_an_exported_file_gives_the_same_campaign(new_database, clock, capsys, tmp_path, kind, format):
    """By command line, after an erasure: the same model (R15); a second import changes nothing."""
    urls = [new_database("sqlite") for _ in range(2)]
    worker, other = (Direct(url, clock) for url in urls)
    script = Script(CONFIGS[kind], clock).create(worker.post).play(worker.post, ROUNDS)
    assert erase(worker, script.name)
    other.post("/campaigns", script.config)
    file = str(tmp_path / f"log.{format}")
    flags = ["--database-url", urls[0], "--format", format, "--output", file]
    assert main(["export", script.name, *flags]) == 0
    for told in ("rewards as 'file-", "already been imported"):
        assert main(["import", script.name, file, "--database-url", urls[1]]) == 0
        assert told in capsys.readouterr().out
    assert_same_model(state_of(other, script.name), state_of(worker, script.name))
    assert other.differences(script.name) == []
    for name, content in (("gone", None), ("broken", b"no table")):
        unread = tmp_path / f"{name}.{format}"
        if content is not None:
            unread.write_bytes(content)
        assert main(["import", script.name, str(unread), "--database-url", urls[1]]) == 1
        assert unread.name in capsys.readouterr().err
    assert main(["import", "nobody", file, "--database-url", urls[1]]) == 1
    assert "no campaign" in capsys.readouterr().err
    other.post("/campaigns", script.config | OTHER)
    assert main(["import", "other", file, "--database-url", urls[1]]) == 1
    assert "x" in capsys.readouterr().err
    for one in (worker, other):
        one.store.close()


@on_sqlite
def test_several_imports_equal_one(direct, clock):
    worker = direct()
    script = Script(CONFIGS["default"], clock).create(worker.post).play(worker.post, ROUNDS)
    rows = [row.model_copy(update={"round": None, "reward_after_round": None}) for row in export_rows(worker)]
    whole, parts = (script.config | {"name": name} for name in ("whole", "parts"))
    for config, cuts in ((whole, [0, len(rows)]), (parts, [0, 7, 40, 41, len(rows)])):
        worker.post("/campaigns", config)
        for number, (start, stop) in enumerate(pairwise(cuts)):
            made = prepare_import(worker.campaigns, config["name"], f"i{number}", rows[start:stop])
            assert worker.process(made) == [None]
    assert_same_model(state_of(worker, "parts"), state_of(worker, "whole"))
    for name in ("whole", "parts"):
        assert worker.differences(name) == []
    times = [row["decided_at"] for row in worker.rows(decisions) if row["campaign_id"] == 3]
    assert times == sorted(times)


def test_an_import_over_http(http, new):
    name = new()
    rows = [ROW | {"reward": 1.5 * (i % 2), "propensity": 0.5, "at": f"2026-01-01T00:00:{i:02}Z"} for i in range(12)]
    rows[3] |= {"decision_id": "mine", "subject": "customer 9"}
    rows[4] = {"context": None, "action": "none"}
    body = {"import_id": "crm", "rows": rows}
    told = {"campaign": name, "import_id": "crm", "rows": 12, "rewards": 11}
    assert good(http.post(f"/campaigns/{name}/import", json=body)) == told
    assert good(http.post(f"/campaigns/{name}/import", json=body)) == told  # once
    state = good(http.get(f"/campaigns/{name}"))
    assert (state["round"], state["rewards_received"], state["model_version"] > 0) == (12, 11, True)
    mine = good(http.get(f"/campaigns/{name}/decisions/mine"))
    assert (mine["mode"], mine["propensity"], mine["round"], mine["scores"]) == ("imported", 0.5, 4, [])
    assert mine["decided_at"] == mine["at"] == "2026-01-01T00:00:03.000000Z"
    assert mine["reward"] | {"received_at": ""} == {"reward": 1.5, "source": "import", "received_at": ""}
    unknown = good(http.get(f"/campaigns/{name}/decisions/crm-5"))
    assert (unknown["context"], unknown["propensity"], unknown["reward"]) == (None, None, None)
    # Its reward may still come; its id is taken.
    good(http.post("/reward", json={"campaign": name, "decision_id": "crm-5", "reward": 1}))
    again = {"campaign": name, "decision_id": "mine", "context": {"risk": "low"}}
    assert "imported" in error_of(http.post("/decide", json=again), 409)["message"]
    assert good(http.post("/decide", json=again | {"decision_id": "new"}))["round"] == 13
    other = {"import_id": "crm", "rows": rows[:-1]}
    assert "other rows" in error_of(http.post(f"/campaigns/{name}/import", json=other), 409)["message"]
    assert good(http.post("/subjects/erase", json={"subject": "customer 9"}))["erased_decisions"] == 1
    late = body | {"import_id": "late"}
    assert "already made decisions" in error_of(http.post(f"/campaigns/{name}/import", json=late), 409)["message"]
    good(http.post(f"/campaigns/{name}/archive"))
    assert good(http.post(f"/campaigns/{name}/import", json=body)) == told  # a retry is still answered


VALUES = {"action": ["fax"], "reward": [2.5, "1"], "propensity": [0, 1.5], "decision_id": ["i-1"], "rewards": [1]}
VALUES["at"] = ["2026-01-01", 1_767_225_600, "2999-01-01T00:00:00Z"]
WRONG = [
    *(({field: value}, field) for field, values in VALUES.items() for value in values),
    ({"context": {"risk": "none"}}, "context.risk"),
    ({"context": {}}, "context.risk"),
    ({"context": {"risk": "low", "x": 1}}, "context.x"),
    ({"reward": 1, "reward_after_round": 3}, "reward_after_round"),
    ({"reward": 1, "round": 9, "reward_after_round": 3}, "reward_after_round"),
]


def test_all_rows_or_none(http, new):
    """Every mistake is named by its row, and nothing is imported."""
    name = new()
    for wrong, field in WRONG:
        body = {"import_id": "i", "rows": [ROW, ROW, ROW | wrong, ROW, ROW | wrong | {"decision_id": "i-1"}]}
        found = allowed_by_field(http.post(f"/campaigns/{name}/import", json=body))
        assert f"rows[2].{field}" in found
        assert any(place.startswith("rows[4].") for place in found)
    long = {"import_id": "x" * 151, "rows": [ROW]}
    assert "import_id" in allowed_by_field(http.post(f"/campaigns/{name}/import", json=long))
    assert good(http.get(f"/campaigns/{name}"))["round"] == 0
    assert good(http.post(f"/campaigns/{name}/import", json={"import_id": "i", "rows": [ROW] * 5}))["rows"] == 5
    clocked = new(clock={"period_seconds": 60})  # it needs times
    body = {"import_id": "i", "rows": [ROW | {"at": "2026-01-01T00:00:00Z"}, ROW]}
    assert "rows[1].at" in allowed_by_field(http.post(f"/campaigns/{clocked}/import", json=body))


def test_an_archived_or_unknown_campaign(http, new):
    name, body = new(), {"import_id": "i", "rows": [ROW]}
    good(http.post(f"/campaigns/{name}/archive"))
    assert "archived" in error_of(http.post(f"/campaigns/{name}/import", json=body), 409)["message"]
    error_of(http.post("/campaigns/nobody/import", json=body), 404)


@on_sqlite
def test_a_reward_without_a_context_teaches_nothing(direct, clock):
    worker = direct()
    known = [ImportRow(context={"risk": "low"}, action="email", reward=1.0)] * 20
    unknown = ImportRow(context=None, action="email")
    for name, reward in (("with", -1.0), ("without", None)):
        worker.post("/campaigns", SIMPLE | {"name": name, "seed": 1})
        rows = [*known, *[unknown.model_copy(update={"reward": reward})] * 20, *known]
        assert worker.process(prepare_import(worker.campaigns, name, "i", rows)) == [None]
        assert worker.differences(name) == []
    assert_same_model(state_of(worker, "with"), state_of(worker, "without"))
    worker.post("/reward", {"campaign": "without", "decision_id": "i-21", "reward": -1})


def test_requests_of_the_same_transaction_know_the_imported_rows(direct, clock):
    worker = direct()
    for name in ("a", "b"):
        worker.post("/campaigns", SIMPLE | {"name": name})
    rows = [ImportRow(**ROW, decision_id=f"k{i}") for i in range(2)]
    made = prepare_import(worker.campaigns, "a", "i", rows)
    request = {"context": {"risk": "low"}}
    outcomes = worker.process(
        made,
        operation("/reward", {"campaign": "a", "decision_id": "k1", "reward": 1}),
        operation("/decide", {"campaign": "a", "decision_id": "k0", **request}),
        operation("/decide", {"campaign": "b", **request}),
    )
    assert outcomes[0] is None
    assert json.loads(outcomes[1])["reward"] == 1
    assert "imported" in outcomes[2].message
    assert json.loads(outcomes[3])["round"] == 1
    assert worker.differences("a") == []


@on_sqlite
def test_a_campaign_that_changes_meanwhile_imports_nothing(direct, clock):
    """And the refused import undoes nothing else: the same reward twice in one gather gets the same answer (R17)."""
    worker = direct()
    worker.post("/campaigns", SIMPLE | {"name": "busy"})
    made = prepare_import(worker.campaigns, "busy", "i", [ImportRow(**ROW)] * 3)
    worker.post("/decide", {"campaign": "busy", "decision_id": "d", "context": {"risk": "low"}})
    reward = operation("/reward", {"campaign": "busy", "decision_id": "d", "reward": 1})
    first, refused, second = worker.process(reward, made, reward)
    assert isinstance(refused, ConflictError)
    assert "meanwhile" in refused.message
    assert first == second
    worker.process(Archive("busy", True))
    assert "archived" in worker.process(made)[0].message
    assert len(worker.rows(decisions)) == 1
    assert not worker.rows(events)
    assert not worker.rows(models)
