"""Reports: every number recomputed from the tables; ranges, refusals, and rows with missing parts.

The campaign has two regimes, a control whose share changes, a floor, excluded actions, subjects, default rewards, an
added and a retired action.
"""

import json
import random
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
import pytest
import sqlalchemy as sa

from policy import CampaignConfig, StagedPolicy
from policy.evaluation import LiftSums, OffPolicySums, Rewarded
from policy.lift import ALONE, Compared
from service.api.reports import Report
from tests.service.answers import error_of, good
from tests.service.conftest import Clock, Worker

GIVEN = {
    "transition": [[0.95, 0.05], [0.1, 0.9]],
    "emission": [[0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]],
    "initial": [0.5, 0.5],
}
CONFIG = {
    "name": "demo",
    "actions": ["none", "mail", "call"],
    "variables": [{"name": "season", "levels": ["a", "b", "c", "d"]}, {"name": "spend", "cuts": [20, 50]}],
    "signals": ["season"],
    "regimes": 2,
    "regime_labels": ["calm"],
    "stage_length": 10,
    "warm_start_rounds": 30,
    "beliefs": {"estimator": "given", "parameters": GIVEN},
    "control": {"share": 0.25},
    "propensity_floor": 0.06,
    "rewards": {"wait_seconds": 1200, "default": 0.0},
    "seed": 11,
}
SOURCES = ["client", "correction", "subject", "default", "import"]
MODES = ["warm_start", "optimistic", "control", "imported"]
BATCH = 25
ADDED = 250  # the round before which an action is added


def play(client, clock, batches, *, config=CONFIG, excluding=(), begun=0, seed=3, rewarded=0.85):
    """Make batches of decisions, a minute apart. Most rewards come at once, some later by default or never."""
    chance, name = random.Random(seed), config["name"]
    for batch in range(begun, begun + batches):
        regime = batch // 5 % 2
        items = []
        for i in range(BATCH):
            season = chance.choice("ab" if (chance.random() < 0.8) != regime else "cd")
            context = {"season": season, "spend": chance.choice([3, 30, 80])}
            item = {"decision_id": f"d{batch * BATCH + i}", "context": context}
            if excluding and chance.random() < 0.15:
                item["excluded_actions"] = [chance.choice(excluding)]
            if chance.random() < 0.4:
                item["subject"] = f"customer {chance.randrange(40)}"
            items.append(item)
        made = good(client.post("/decide/batch", json={"campaign": name, "items": items}))["decisions"]
        rewards = []
        for one in made:
            if chance.random() < rewarded:
                value = 0.2 + 0.6 * ((one["action"] == "mail") == (regime == 0)) + chance.gauss(0, 0.4)
                rewards.append({"decision_id": one["decision_id"], "reward": round(value, 3)})
        if rewards:
            results = good(client.post("/reward/batch", json={"campaign": name, "items": rewards}))["results"]
            assert not any(result["error"] for result in results)
        clock.advance(60)


@pytest.fixture(scope="module", params=["sqlite"])
def demo(request, new_database):
    """A client, and an engine for the tables of its campaign."""
    address, clock = new_database(request.param), Clock()
    worker, engine = Worker(address, clock), sa.create_engine(address)
    client = worker.client
    good(client.post("/campaigns", json=CONFIG), 201)
    play(client, clock, 10, excluding=("none", "mail"))
    good(client.post("/campaigns/demo/actions", json={"action": "visit"}))
    play(client, clock, 10, begun=10, excluding=("mail",))
    good(client.patch("/campaigns/demo", json={"control": {"share": 0.4}}))
    good(client.post("/campaigns/demo/actions/retire", json={"action": "call"}))
    play(client, clock, 20, begun=20, excluding=("mail",))
    yield client, engine
    engine.dispose()
    worker.stop()


def format_time(micros):
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat().replace("+00:00", "Z")


# --- the same numbers, from the tables -------------------------------------------------------------------------------


def read_rows(engine):
    """Decisions with the rewards that count, and the configuration in force, by SQL; the clock is a minute further."""
    sql = """
        SELECT d.*, r.reward, r.source, l.clock + 60000000 AS now,
          (SELECT c.config FROM config_revisions c WHERE c.campaign_id = d.campaign_id AND c.round < d.round
           ORDER BY c.revision DESC LIMIT 1) AS config
        FROM decisions d LEFT JOIN rewards r ON r.campaign_id = d.campaign_id AND r.round = d.round
          JOIN live l ON l.campaign_id = d.campaign_id
        ORDER BY d.round
    """
    with engine.connect() as connection:
        rows = connection.execute(sa.text(sql)).mappings().all()
    return [
        dict(row)
        | get_counted(row)
        | {"config": json.loads(row["config"]), "belief": json.loads(row["explanation"])["belief"]}
        | {"scores": {score["action"]: score for score in json.loads(row["explanation"])["scores"]}}
        for row in rows
    ]


def get_counted(row):
    """The reward of a row if it counts by now (R20)."""
    rules = json.loads(row["config"])["rewards"]
    if row["decided_at"] + rules["wait_seconds"] * 1e6 > row["now"]:
        return {"open": True, "reward": None}
    if row["reward"] is None:
        return {"open": False, "reward": rules["default"], "source": "default"}
    return {"open": False}


def mean(pairs):
    weight = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / weight if weight else None


def clusters_of(rows):
    """A number for each subject; decisions without a subject are clusters of their own."""
    numbers = {subject: number for number, subject in enumerate({row["subject"] for row in rows} - {None})}
    return np.array([numbers.get(row["subject"], ALONE) for row in rows], np.intp)


def chances(row, actions):
    """The probability of each action in a row (R12), by hand; a trial raises the floor."""
    config, scores = row["config"], row["scores"]
    if row["mode"] == "warm_start":
        return [1 / len(scores) if name in scores else np.nan for name in actions]
    control, best = config["control"]["share"], max(scores, key=lambda name: scores[name]["score"])
    trial = 0.5 / (len(config["actions"]) - len(config["retired_actions"]))
    for floor in (config["propensity_floor"], trial):
        law = {
            name: control / len(scores) + (1 - control) * (floor + (1 - len(scores) * floor) * (name == best))
            for name in scores
        }
        if law[row["action"]] == pytest.approx(row["propensity"], rel=1e-9):
            return [law.get(name, np.nan) for name in actions]
    raise AssertionError("no law gives the propensity")


def expected_policy(rows, target):
    """The estimates for the policy that takes target(row), from rows; stage updates begin after round 10."""
    rows = [row for row in rows if row["reward"] is not None]
    actions = ["none", "mail", "call", "visit"]
    predictions = [
        [row["scores"][name]["estimate"] if name in row["scores"] and row["round"] > 10 else 0.0 for name in actions]
        for row in rows
    ]
    sums = OffPolicySums()
    rewarded = Rewarded(
        np.array([row["reward"] for row in rows]),
        np.array([actions.index(row["action"]) for row in rows]),
        np.array([row["propensity"] for row in rows]),
        np.array([chances(row, actions) for row in rows]),
        np.array(predictions),
        clusters_of(rows),
    )
    sums.add(rewarded, np.array([[float(name == target(row)) for name in actions] for row in rows]))
    estimates = sums.result()._asdict()
    assert estimates["refusal"] is None
    return estimates | {name: estimates[name]._asdict() for name in ("ips", "snips", "dr")}


def expected_lift(rows):
    rows = [row for row in rows if row["mode"] in ("optimistic", "control") and row["reward"] is not None]
    shares = np.array([row["config"]["control"]["share"] for row in rows])
    is_control = np.array([row["mode"] == "control" for row in rows])
    sums = LiftSums()
    sums.add(Compared(np.array([row["reward"] for row in rows]), is_control, shares, clusters_of(rows)))
    lift = sums.result()
    assert lift.refusal is lift.relative_refusal is None
    return {
        "control_kind": "uniform",
        "decided": {"rewards": lift.decided.rewards, "mean_reward": lift.decided.value},
        "control": {"rewards": lift.control.rewards, "mean_reward": lift.control.value},
        "difference": lift.difference._asdict(),
        "relative": lift.relative._asdict(),
        "refusal": None,
        "relative_refusal": None,
    }


def expected_tables(rows, actions):
    rewards = [row for row in rows if row["reward"] is not None]

    def table(weight, action=None):
        """Decisions, rewards and mean reward, each row counting by its weight."""
        mine = [(row, weight(row)) for row in rows if action in (None, row["action"])]
        return {
            "decisions": sum(w for _, w in mine),
            "rewards": sum(w for row, w in mine if row["reward"] is not None),
            "mean_reward": mean([(row["reward"], w) for row, w in mine if row["reward"] is not None]),
        }

    def count(key, rows, names):
        return {name: sum(row[key] == name for row in rows) for name in names}

    regimes = []
    for h, label in enumerate(("calm", None)):
        by_action = [{"action": a} | table(lambda row, h=h: row["belief"][h], a) for a in actions]
        whole = table(lambda row, h=h: row["belief"][h])
        regimes.append({"regime": h + 1, "label": label, **whole, "actions": by_action})
    return {
        "decisions": {"total": len(rows), "by_mode": count("mode", rows, MODES), "erased": 0},
        "rewards": {
            "counted": len(rewards),
            "awaited": len(rows) - len(rewards),
            "by_source": count("source", rewards, SOURCES),
            "open": sum(row["open"] for row in rows),
            "rate": len(rewards) / (len(rows) - sum(row["open"] for row in rows)),
            "mean": mean([(row["reward"], 1) for row in rewards]),
        },
        "actions": [{"action": a, "retired": a == "call"} | table(lambda row: 1, a) for a in actions],
        "regimes": {"left_out": 0, "regimes": regimes},
    }


def model_choice(engine, version):
    """The action that a model takes: argmax θ̂ᵀz, from its stored θ̂. The HMM is given, so beliefs are as decided."""
    with engine.connect() as connection:
        sql = sa.text("SELECT round, theta FROM models WHERE version = :version")
        round, theta = connection.execute(sql, {"version": version}).one()
    theta = np.frombuffer(theta, "<f8")
    actions = [*CONFIG["actions"], *(["visit"] if round >= ADDED else [])]
    features = StagedPolicy(CampaignConfig(**{**CONFIG, "actions": actions})).features
    assert features.dimension == theta.size

    def choose(row):
        encoded = features.encode([json.loads(row["context"])])
        values = {
            action: features.dense(np.array(row["belief"]), place, encoded) @ theta
            for place, action in enumerate(actions)
            if action in row["scores"]
        }
        return max(values, key=values.get)

    return round, choose


def check_close(found, wanted):
    """Check that `found` contains everything in `wanted`, numbers within 1e-9."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            check_close(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            check_close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    else:
        assert found == wanted


def get_policies(report):
    policies = report["off_policy"]["policies"]
    return {value["action"] or value["model_version"] or "baseline": value for value in policies}


@pytest.mark.parametrize("demo", ["sqlite", "postgresql"], indirect=True, scope="module")
def test_every_number_follows_from_the_tables(demo):
    client, engine = demo
    report = good(client.get("/campaigns/demo/report", params={"model_version": [7, 35]}))
    assert Report.model_validate(report).model_dump(mode="json", by_alias=True) == report
    rows = read_rows(engine)
    actions = ["none", "mail", "call", "visit"]
    assert report["rounds"] == {"first": 1, "last": 1000}
    check_close(report, expected_tables(rows, actions))
    for source, least in (("client", 400), ("default", 10)):
        assert report["rewards"]["by_source"][source] > least
    check_close(report["lift"], expected_lift(rows))
    values = get_policies(report)
    assert list(values) == ["none", "mail", "visit", "baseline", 7, 35]
    check_close(values["baseline"], expected_policy(rows, lambda row: next(a for a in actions if a in row["scores"])))
    for version in (7, 35):
        after, choose = model_choice(engine, version)
        assert values[version]["after_round"] == after
        check_close(values[version], expected_policy([row for row in rows if row["round"] > after], choose))
    # The baseline was excluded at times, mail still is, and visit was added later.
    for action in ("none", "mail", "visit"):
        refusal = values[action]["refusal"]
        assert (refusal["code"], values[action]["dr"]) == ("not_eligible", None)
        out = sum(action not in row["scores"] for row in rows if row["reward"] is not None)
        assert f"In {out} of {report['rewards']['counted']} decisions" in refusal["reason"]
    assert report["off_policy"]["left_out"] == {
        "erased": 0, "imported": 0, "awaited": report["rewards"]["awaited"], "unexplained": 0,
    }  # fmt: skip
    assert values["baseline"]["decisions"] == report["rewards"]["counted"]


def test_a_range_is_half_open_and_contains_only_its_decisions(demo):
    client, engine = demo
    rows = read_rows(engine)
    starts = [next(group)["decided_at"] for _, group in groupby(rows, key=lambda row: row["decided_at"])]
    ends = {"from": format_time(starts[10]), "to": format_time(starts[34])}
    report = good(client.get("/campaigns/demo/report", params=ends | {"model_version": 7}))
    inside = rows[250:850]
    assert (report["from"], report["to"]) == tuple(end.replace("Z", ".000000Z") for end in ends.values())
    assert report["rounds"] == {"first": 251, "last": 850}
    check_close(report, expected_tables(inside, ["none", "mail", "call", "visit"]))
    check_close(report["lift"], expected_lift(inside))
    values = get_policies(report)
    check_close(values["none"], expected_policy(inside, lambda row: "none"))
    check_close(values["visit"], expected_policy(inside, lambda row: "visit"))
    assert values["none"]["snips"] == values["baseline"]["snips"]
    # Contexts before the range change the beliefs of a model that was published before it.
    check_close(values[7], expected_policy(inside, model_choice(engine, 7)[1]))


# --- little or no data ------------------------------------------------------------------------------------------------


def test_without_decisions_there_is_no_number(demo):
    """A campaign without any, a range without any, and a model that few came after."""
    client, _ = demo
    good(client.post("/campaigns", json=CONFIG | {"name": "empty"}), 201)
    report = good(client.get("/campaigns/empty/report"))
    assert (report["from"], report["to"], report["rounds"]) == (None, None, None)
    assert (report["decisions"]["total"], set(report["decisions"]["by_mode"].values())) == (0, {0})
    assert (report["rewards"]["received"], report["rewards"]["rate"], report["rewards"]["mean"]) == (0, None, None)
    assert [row["mean_reward"] for row in report["actions"]] == [None] * 3
    assert [row["mean_reward"] for row in report["regimes"]["regimes"]] == [None] * 2
    assert (report["lift"]["refusal"]["code"], report["lift"]["control_kind"]) == ("no_control", None)
    assert {value["refusal"]["code"] for value in report["off_policy"]["policies"]} == {"no_rewards"}
    before = {"from": "2020-01-01T00:00:00Z", "to": "2020-02-01T00:00:00+01:00"}
    report = good(client.get("/campaigns/demo/report", params=before | {"model_version": 3}))
    assert (report["decisions"]["total"], report["rounds"], report["rewards"]["rate"]) == (0, None, None)
    assert get_policies(report)[3]["refusal"]["code"] == "no_rewards"
    # The model in force can be evaluated, but not on the rounds it learned from.
    newest = good(client.get("/campaigns/demo"))["model_version"]
    value = get_policies(good(client.get("/campaigns/demo/report", params={"model_version": newest})))[newest]
    assert (value["after_round"], "after round 990" in value["note"]) == (990, True)
    assert value["decisions"] <= 10
    assert value["refusal"]["code"] in ("no_rewards", "too_few")


def refusals(report):
    """The code of each refused policy."""
    return {name: value["refusal"]["code"] for name, value in get_policies(report).items() if value["refusal"]}


def test_early_rewards_do_not_count_before_the_wait_is_over(client, clock):
    """With a default reward only conversions are reported, so the rewards that come early are biased."""
    config = CONFIG | {"name": "shop", "rewards": {"wait_seconds": 600, "default": 0}}
    good(client.post("/campaigns", json=config), 201)
    chance = random.Random(3)

    def serve(start, count):
        items = [{"decision_id": f"{start + i}", "context": {"season": "a", "spend": 3}} for i in range(count)]
        made = good(client.post("/decide/batch", json={"campaign": "shop", "items": items}))["decisions"]
        bought = [one["decision_id"] for one in made if chance.random() < 0.2]
        rewards = [{"decision_id": name, "reward": 1} for name in bought]
        good(client.post("/reward/batch", json={"campaign": "shop", "items": rewards}))

    serve(0, 200)
    serve(200, 200)
    report = good(client.get("/campaigns/shop/report"))
    came = report["rewards"]["early"]
    assert (report["rewards"]["open"], report["rewards"]["mean"]) == (400, None)
    assert 50 < came < 120
    assert (report["rewards"]["received"], report["rewards"]["counted"]) == (came, 0)  # never "received 0"
    assert report["rewards"]["early_count_from"] <= report["rewards"]["complete_at"]
    told = f"{came} rewards have come, and none counts yet"
    assert told in report["lift"]["refusal"]["reason"]
    assert all(told in each["refusal"]["reason"] for each in report["off_policy"]["policies"])
    assert report["lift"]["refusal"]["code"] == "no_rewards"
    assert set(refusals(report).values()) == {"no_rewards"}
    clock.advance(700)  # the books close by the clock: no decision is needed
    closed = good(client.get("/campaigns/shop/report"))["rewards"]
    assert (closed["counted"], closed["open"], closed["early"], closed["complete_at"]) == (400, 0, 0, None)
    assert closed["by_source"] == dict.fromkeys(SOURCES, 0) | {"client": came, "default": 400 - came}
    assert closed["received"] == came
    assert closed["mean"] == pytest.approx(0.2, abs=0.06)
    serve(400, 110)
    report = good(client.get("/campaigns/shop/report"))
    assert report["rewards"]["counted"] == 400
    assert report["rewards"]["mean"] == closed["mean"]
    assert report["rewards"]["open"] == report["decisions"]["total"] - 400


def test_without_overlap_or_control_there_is_no_number(client, clock):
    """Without floor and control the model's choice is certain, so nothing is known about the other actions."""
    config = CONFIG | {"control": {"share": 0}, "propensity_floor": 0, "rewards": {}}
    good(client.post("/campaigns", json=config), 201)
    play(client, clock, 1)
    warm = good(client.get("/campaigns/demo/report"))
    assert warm["decisions"]["by_mode"]["warm_start"] == 25
    assert refusals(warm) == dict.fromkeys(["none", "mail", "call", "baseline"], "too_few")
    play(client, clock, 7, begun=1)
    report = good(client.get("/campaigns/demo/report"))
    assert refusals(report) == dict.fromkeys(["none", "mail", "call", "baseline"], "no_overlap")
    refusal = get_policies(report)["call"]["refusal"]
    assert "propensity_floor" in refusal["remedy"]
    assert report["lift"]["refusal"]["code"] == "no_control"
    assert "control" in report["lift"]["refusal"]["remedy"]
    # The remedy works.
    since = format_time(clock.now)
    good(client.patch("/campaigns/demo", json={"control": {"share": 0.3}, "propensity_floor": 0.1}))
    play(client, clock, 1, begun=8)
    assert good(client.get("/campaigns/demo/report"))["lift"]["refusal"]["code"] == "too_few"
    play(client, clock, 7, begun=9)
    helped = good(client.get("/campaigns/demo/report", params={"from": since}))
    assert refusals(helped) == {}
    assert helped["lift"]["difference"] is not None
    # Two kinds of control do not mix.
    changed = clock.now
    good(client.patch("/campaigns/demo", json={"control": {"kind": "baseline"}}))
    play(client, clock, 7, begun=16)
    mixed = good(client.get("/campaigns/demo/report", params={"from": since}))["lift"]
    assert (mixed["difference"], mixed["refusal"]["code"]) == (None, "mixed_control")
    assert f"from={format_time(changed)[:19]}" in mixed["refusal"]["remedy"]
    alone = good(client.get("/campaigns/demo/report", params={"from": format_time(changed)}))["lift"]
    assert alone["refusal"] is None
    assert alone["control_kind"] == "baseline"


def test_rows_with_missing_parts(start, clock, database_url):
    """Erased, imported and tampered rows, and rows with another number of regimes."""
    client = start().client
    good(client.post("/campaigns", json=CONFIG | {"rewards": {}}), 201)
    play(client, clock, 8, rewarded=1.0)
    whole = good(client.get("/campaigns/demo/report"))
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        for statement in (
            "UPDATE decisions SET erased = true, context = NULL, subject = NULL, request_hash = NULL,"
            " explanation = '{}' WHERE round = 150",
            "UPDATE rewards SET reward = NULL, source = 'erased' WHERE round = 150",
            "UPDATE decisions SET mode = 'imported', propensity = 0, request_hash = NULL,"
            """ explanation = '{"belief":[0.25,0.75],"scores":[]}' WHERE round IN (1, 2, 3)""",
            "UPDATE rewards SET source = 'import' WHERE round IN (1, 2)",
            "DELETE FROM rewards WHERE round IN (3, 180)",
            "UPDATE decisions SET propensity = 0.123 WHERE round = 100",
            """UPDATE decisions SET explanation = '{"belief":[1.0],"scores":[]}' WHERE round IN (101, 102)""",
        ):
            connection.execute(sa.text(statement))
    report = good(client.get("/campaigns/demo/report", params={"model_version": 1}))
    assert report["decisions"]["total"] == sum(report["decisions"]["by_mode"].values()) == 200
    assert (report["decisions"]["erased"], report["decisions"]["by_mode"]["imported"]) == (1, 3)
    sources = dict.fromkeys(SOURCES, 0) | {"client": 195, "import": 2}
    expected = {"received": 197, "counted": 197, "awaited": 2, "open": 0, "by_source": sources, "rate": 197 / 199}
    assert {name: report["rewards"][name] for name in expected} == expected
    assert report["regimes"]["left_out"] == 2
    assert sum(row["decisions"] for row in report["regimes"]["regimes"]) == pytest.approx(197)
    assert sum(row["rewards"] for row in report["regimes"]["regimes"]) == pytest.approx(195)
    assert report["off_policy"]["left_out"] == {"erased": 1, "imported": 3, "awaited": 1, "unexplained": 3}
    values = get_policies(report)
    assert values["baseline"]["decisions"] == 200 - 1 - 3 - 1 - 3
    assert get_policies(whole)["baseline"]["decisions"] == 200
    assert values[1]["decisions"] == 190 - 1 - 1 - 3  # after its round, 10
    # An erasure makes a new model; the models before it cannot be rebuilt.
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE models SET kind = 'erasure' WHERE version = 12"))
    engine.dispose()
    values = get_policies(good(client.get("/campaigns/demo/report", params={"model_version": [1, 11]})))
    for version in (1, 11):
        assert (values[version]["refusal"]["code"], values[version]["decisions"]) == ("erased", 0)


def test_a_wrong_parameter_is_named(demo):
    client, _ = demo
    wrong = {
        "from": ["2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00"],
        "to": ["9999-12-31T23:59:59-12:00", "yesterday"],
        "model_version[0]": [0, "x"],
        "model_version": [10_000, [1, 2, 3, 4, 5, 6]],
    }
    queries = [({field.removesuffix("[0]"): value}, field) for field, values in wrong.items() for value in values]
    queries.append(({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"))
    for query, field in queries:
        error = error_of(client.get("/campaigns/demo/report", params=query), 422)
        assert [problem["field"] for problem in error["fields"]] == [field]
    assert good(client.get("/campaigns/demo/report", params={"to": "9999-12-31T23:59:59.999999Z"}))["to"][:4] == "9999"
    assert "1 to " in error_of(client.get("/campaigns/demo/report?model_version=10000"))["fields"][0]["allowed"]


def test_a_report_counts_sums_corrections_and_credit(client, clock):
    """By the source of the reward in force; a decision counts once, however often it was rewarded."""
    rules = {"wait_seconds": 600, "default": 0, "correct_seconds": 6_000}
    good(client.post("/campaigns", json=CONFIG | {"name": "shop", "rewards": rules}), 201)
    context = {"season": "a", "spend": 3}
    items = [{"decision_id": f"{i}", "context": context, "subject": f"person {i}"} for i in range(6)]
    good(client.post("/decide/batch", json={"campaign": "shop", "items": items}))
    amount = {"campaign": "shop", "mode": "add"}
    for i, name in enumerate("0001"):
        good(client.post("/reward", json=amount | {"decision_id": name, "reward": 2, "reward_id": f"sale {i}"}))
    credit = {"campaign": "shop", "subject": "person 2", "reward": 3, "reward_id": "by phone"}
    good(client.post("/reward/subject", json=credit))
    clock.advance(700)
    for name, reward in (("1", 0), ("3", 10)):  # a cancelled sale, and one after the wait
        correction = {"campaign": "shop", "decision_id": name, "reward": reward, "reward_id": "correction"}
        good(client.post("/reward/correct", json=correction))
    told = good(client.get("/campaigns/shop/report"))["rewards"]
    assert told["by_source"] == {"client": 1, "correction": 2, "subject": 1, "default": 2, "import": 0}
    assert (told["received"], told["counted"], told["mean"]) == (4, 6, (6 + 0 + 3 + 10) / 6)
