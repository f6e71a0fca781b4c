"""Metrics: counted once, after the commit, by any worker; the Grafana dashboard and the docs name what exists."""

import json
import math
import re
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import service.engine.boundaries
import service.engine.metrics
from tests.service.answers import error_of, good
from tests.service.playing import CONFIGS, Script, eventually, fail_until, http_post, on_sqlite
from tests.service.scraping import Scrape

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGN = {
    "name": "spring",
    "actions": ["none", "email", "call"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}],
    "regimes": 1,
    "beliefs": {"estimator": "none"},
    "warm_start_rounds": 4,
    "stage_length": 4,
    "control": {"share": 0.3},
    "seed": 5,
}


def item(number, risk="low"):
    return {"decision_id": f"d{number}", "context": {"risk": risk}}


def decide(client, number, **more):
    return client.post("/decide", json={"campaign": "spring", **item(number), **more})


def reward(client, number, value, name="spring"):
    return client.post("/reward", json={"campaign": name, "decision_id": f"d{number}", "reward": value})


def test_counters_equal_what_was_sent(client):
    """A repeated request is not counted as a decision; a batch counts all its items, as one operation."""
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    made = [good(decide(client, number)) for number in range(4)]
    for number in range(3):  # so that the model may decide from now on
        good(reward(client, number, 1.0))
    made += [good(decide(client, number)) for number in range(4, 10)]
    assert good(decide(client, 3)) == made[3]
    batch = {"campaign": "spring", "items": [item(number) for number in (9, 10, 11, 12, 12)]}
    made += good(client.post("/decide/batch", json=batch))["decisions"][1:4]
    good(reward(client, 12, 1.0))
    good(reward(client, 1, 1.0))
    results = {"campaign": "spring", "items": [{"decision_id": f"d{n}", "reward": 2.0} for n in (1, 3, 12, 99)]}
    good(client.post("/reward/batch", json=results))
    error_of(reward(client, 0, 3.0), 409)
    error_of(reward(client, 98, 3.0), 404)
    error_of(decide(client, 50, context={"risk": "none"}), 422)
    error_of(decide(client, 50, campaign="autumn"), 404)
    error_of(reward(client, 0, 1.0, name="autumn"), 404)
    error_of(client.post("/decide", content=b"{"), 422)

    found = Scrape(client)
    assert len(made) == 13
    assert found.by("decisions_total", "action", campaign="spring") == Counter(one["action"] for one in made)
    assert found.by("decisions_total", "mode", campaign="spring") == Counter(one["mode"] for one in made)
    assert len({one["mode"] for one in made}) > 1
    assert found.by("rewards_total", "campaign") == {"spring": 11}
    assert found.by("rewards_total", "outcome") == {"accepted": 5, "repeated": 1, "refused": 5}
    requests = {
        ("/campaigns", "POST", "201"): 1,
        ("/decide", "POST", "200"): 11,
        ("/decide", "POST", "404"): 1,
        ("/decide", "POST", "422"): 2,
        ("/decide/batch", "POST", "200"): 1,
        ("/healthz", "GET", "200"): 1,  # when the worker was started
        ("/reward", "POST", "200"): 5,
        ("/reward", "POST", "404"): 2,
        ("/reward", "POST", "409"): 1,
        ("/reward/batch", "POST", "200"): 1,
    }
    assert found.by("requests_total", "route", "method", "status") == requests
    by_route = Counter()
    for (route, _, _), count in requests.items():
        by_route[route] += count
    assert found.by("request_seconds_count", "route") == by_route
    assert all(seconds > 0 for seconds in found.by("request_seconds_sum", "route").values())
    gathered = sum(requests.values()) - 2  # without /healthz and what is no JSON
    assert found.value("gather_operations_sum") == gathered
    assert found.value("gather_operations_count") == found.value("transaction_seconds_count") == gathered
    assert found.value("transaction_seconds_sum") < found.by("request_seconds_sum")[()]
    assert found.by("update_seconds_count", "kind") == {"update": 3}  # before rounds 5, 9 and 13
    assert found.value("database_failures_total") == 0
    assert found.value("database_up") == 1


@on_sqlite
def test_default_rewards_are_not_received(client, clock):
    """R20: nothing comes when a wait is over."""
    good(client.post("/campaigns", json=CAMPAIGN | {"rewards": {"wait_seconds": 5, "default": 0}}), 201)
    for number in range(4):
        good(decide(client, number))
    good(reward(client, 0, 1.0))
    clock.advance(10)
    good(decide(client, 4))  # ends the stage
    found = Scrape(client)
    assert found.by("rewards_total", "outcome", campaign="spring") == {"accepted": 1}
    assert found.value("campaign_rewards", campaign="spring") == 1


@on_sqlite
@pytest.mark.parametrize(("inline_operations", "kind"), [(0, "estimation_job"), (10**9, "estimation")])
def test_updates_and_reestimations_are_timed(start, clock, monkeypatch, inline_operations, kind):
    """R1, R3, R16: each under its kind."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", inline_operations)
    client = start().client
    post = http_post(client)
    script = Script(CONFIGS["smoothed"], clock).create(post).play(post, 42)  # estimates before round 32
    eventually(lambda: kind in Scrape(client).by("update_seconds_count", "kind"), kind)
    found = Scrape(client)
    assert found.by("update_seconds_count", "kind") == {"update": (script.round - 1) // 5, kind: 1}
    assert all(seconds > 0 for seconds in found.by("update_seconds_sum", "kind").values())


@on_sqlite
def test_gauges_show_the_state_of_every_campaign(start, direct, clock):
    """On any worker, even for campaigns that it has never used; its counters are its own."""
    busy, idle = start(), start()
    post = http_post(busy.client)
    for name in ("given", "one-regime"):
        Script(CONFIGS[name], clock).create(post).play(post, 40)
    direct().execute("UPDATE live SET guarded = true")
    for worker in (busy, idle):
        found = Scrape(worker.client)
        for name in ("given", "one-regime"):
            state = good(worker.client.get(f"/campaigns/{name}"))
            expected = {
                "rounds": state["round"],
                "rewards": state["rewards_received"],
                "rewards_waiting": state["rewards_waiting"],
                "model_version": state["model_version"],
                "regimes": len(state["belief"]),
                "belief_entropy_nats": -sum(p * math.log(p) for p in state["belief"]),
                "guarded": 1,
                "failing": 0,
            }
            assert {k: found.value(f"campaign_{k}", campaign=name) for k in expected} == pytest.approx(expected)
        assert found.value("campaign_regimes", campaign="given") == 2
        assert found.value("campaign_belief_entropy_nats", campaign="given") > 0
    assert sum(Scrape(busy.client).by("decisions_total", "campaign").values()) >= 80
    assert Scrape(idle.client).labels("decisions_total") == []


@on_sqlite
def test_callers_cannot_invent_labels(client):
    """Unknown paths, mounted files and unknown methods share a label each; ids never become labels."""
    for number in range(5):
        client.get(f"/nothing-{number}")
        client.get(f"/docs-assets/nothing-{number}")
        client.get(f"/campaigns/c{number}/decisions/d{number}")
        client.request("PURGE", f"/campaigns/c{number}")
        client.request("MKCOL", "/healthz")
    found = Scrape(client).by("requests_total", "route", "method", "status")
    assert found == {
        ("other", "GET", "404"): 10,
        ("/campaigns/{name}/decisions/{decision_id}", "GET", "404"): 5,
        ("/campaigns/{name}", "other", "405"): 5,
        ("/healthz", "other", "405"): 5,
        ("/healthz", "GET", "200"): 1,
    }


def test_a_deleted_campaign_leaves_no_series(start):
    """On any worker, once it is scraped; the name can be used again."""
    deleting, other = start(), start()
    for name in ("spring", "summer"):
        good(deleting.client.post("/campaigns", json=CAMPAIGN | {"name": name}), 201)
    for number, worker in enumerate((deleting, other)):
        good(decide(worker.client, number))
        good(reward(worker.client, number, 1.0))
        assert Scrape(worker.client).by("decisions_total", "campaign") == {"spring": 1}
    good(deleting.client.post("/campaigns/spring/archive"))
    assert deleting.client.delete("/campaigns/spring", params={"confirm": "spring"}).status_code == 204
    assert deleting.service.metrics.list_campaigns() == set()
    assert other.service.metrics.list_campaigns() == {"spring"}
    for worker in (deleting, other):
        named = {dict(labels).get("campaign") for _, labels in Scrape(worker.client).samples}
        assert named == {None, "summer"}
        assert worker.service.metrics.list_campaigns() == set()
    good(deleting.client.post("/campaigns", json=CAMPAIGN), 201)
    good(decide(deleting.client, 0))
    assert Scrape(deleting.client).by("decisions_total", "campaign") == {"spring": 1}


@on_sqlite
def test_the_format_is_negotiated(client):
    """As Prometheus' client library does."""
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"undercurrent_requests", "undercurrent_database_up"} <= families


def test_a_failing_database_is_shown(start, direct):
    """The counters still come, failures are counted, and the gauge shows when the database is back."""
    client, database = start().client, direct()
    good(client.post("/campaigns", json=CAMPAIGN), 201)
    good(decide(client, 0))
    database.execute("ALTER TABLE live RENAME TO hidden")
    error_of(decide(client, 1), 503)
    error_of(client.get("/campaigns/spring"), 503)
    found = Scrape(client)
    assert (found.value("database_up"), found.labels("campaign_rounds")) == (0, [])
    assert found.by("decisions_total", "campaign") == {"spring": 1}
    assert found.by("requests_total", "route", status="503") == {"/decide": 1, "/campaigns/{name}": 1}
    assert found.value("database_failures_total") == 3  # the scrape's own too
    assert found.value("gather_operations_count") == 2  # one that is rolled back has gathered nothing
    database.execute("ALTER TABLE hidden RENAME TO live")
    good(decide(client, 1))
    found = Scrape(client)
    assert (found.value("database_up"), found.value("campaign_rounds", campaign="spring")) == (1, 2)
    assert found.value("database_failures_total") == 3


@contextmanager
def held(database_url):
    """Block all readers of live rows."""
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE live IN ACCESS EXCLUSIVE MODE"))
        yield
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_hanging_database_delays_neither_scrapes_nor_the_service(start, database_url, monkeypatch):
    monkeypatch.setattr(service.engine.metrics, "DATABASE_SECONDS", 4.0)  # time enough for what is answered meanwhile
    worker, found = start(), []
    client = worker.client
    good(client.post("/campaigns", json=CAMPAIGN), 201)

    def scrape():
        with worker.open_client() as own:
            found.append(Scrape(own))

    with held(database_url):
        scrapes = [threading.Thread(target=scrape) for _ in range(4)]
        for thread in scrapes:
            thread.start()
        for _ in range(20):
            good(client.get("/healthz"))
        assert found == []  # all of these were answered meanwhile
        for thread in scrapes:
            thread.join(8)
        assert [scrape.value("database_up") for scrape in found] == [0] * 4
    eventually(lambda: Scrape(client).value("database_up") == 1, "up again")


# --- the dashboard, Prometheus' configuration, the docs --------------------------------------------------------------

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "undercurrent.json").read_text(encoding="utf-8"))
DOCS = (ROOT / "docs" / "service.md").read_text(encoding="utf-8").partition("## Metrics and logs")[2]
METRIC = re.compile(r"\b(undercurrent_\w+)(?:\{([^}]*)\})?")


def queries():
    """Return (panel, query, legend) of every target."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return [(panel["title"], target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]


@pytest.fixture
def seen(start, clock, monkeypatch):
    """The labels of every sample, after traffic of all kinds."""
    fail_until(monkeypatch, "update", 6)
    client = start().client
    post = http_post(client)
    Script(CONFIGS["waiting"], clock).create(post).play(post, 30)
    Script(CONFIGS["given"] | {"alerts": {"rounds": 3}}, clock).create(post).play(post, 60)
    error_of(client.post("/decide", json={"campaign": "given", "context": {"season": "monsoon"}}), 422)
    labels = {}
    for name, items in Scrape(client).samples:
        labels.setdefault(name, set()).update(key for key, _ in items)
    return labels


@on_sqlite
def test_dashboard_and_docs_name_what_exists(seen):
    assert len(queries()) >= 20
    used = set()
    for panel, query, legend in queries():
        found = METRIC.findall(query)
        assert found, panel
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        for name, selector in found:
            used.add(name)
            chosen = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert grouped | chosen <= seen.get(name, set()), f"{panel}: {name}"
        assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped, panel
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in seen}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} == families, "a metric is on no panel"

    documented = dict(re.findall(r"^\| `(undercurrent_\w+)` \|([^|]*)\|", DOCS, re.MULTILINE))
    assert documented.keys() == families
    for name, text in documented.items():
        real = set().union(*(found for sample, found in seen.items() if sample.startswith(name))) - {"le"}
        assert set(re.findall(r"`(\w+)`", text)) == (seen.get(name) or real), name
    assert {name for name, _ in METRIC.findall(DOCS)} <= families | seen.keys()


def test_the_dashboard_can_be_imported():
    """Without the id of one Grafana instance, with a data source to choose, and without overlapping panels."""
    assert "id" not in DASHBOARD
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["campaign"]["query"]["query"] == "label_values(undercurrent_campaign_rounds, campaign)"
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in (panel for panel in panels if panel["type"] != "row"):
        assert {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in panel["targets"])} == {"${datasource}"}
    places = [panel["gridPos"] for panel in panels]
    squares = Counter(
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert max(squares.values()) == 1
    assert max(x for x, _ in squares) < 24


@on_sqlite
def test_prometheus_scrapes_the_right_path(client):
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["service:8000", "service-2:8000"]}]
    assert httpx.get(client.base_url.join(job["metrics_path"])).status_code == 200
