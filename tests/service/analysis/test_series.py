"""Series: every number recomputed from the rows, and every regime change at its round."""

import itertools
import json
import math
import random
from collections import Counter

import numpy as np
import pytest
import sqlalchemy as sa

import service.analysis.columns
import service.analysis.series
from policy.lift import ALONE, Compared, cumulative_lift
from service.analysis.series import bucket_starts, find_lasting_changes
from service.api.series import Series
from service.base.times import format_timestamp
from service.storage.campaigns import find_campaign
from service.storage.reading import read_decision_pages
from service.storage.tables import models
from tests.service.answers import error_of, good, shaped
from tests.service.conftest import Clock, Worker
from tests.service.playing import CONFIGS, Script, http_post

ALERTS = {"alerts": {"rounds": 4}}
PLAYED = {
    "given": CONFIGS["given"] | ALERTS | {"regime_labels": ["calm", "storm"]},
    "smoothed": CONFIGS["smoothed"] | ALERTS,
    "default": CONFIGS["default"] | ALERTS,
}


def play_everything(client, clock, name):
    """With changes of the configuration, a rollback, an added action, an erasure and late rewards."""
    post = http_post(client)
    script = Script(PLAYED[name], clock).create(post).play(post, 40)
    good(client.patch(f"/campaigns/{name}", json={"control": {"share": 0.4}}))
    script.play(post, 75)
    good(client.post(f"/campaigns/{name}/rollback", json={"model_version": 5}))
    good(client.post(f"/campaigns/{name}/actions", json={"action": "visit"}))
    script.play(post, 105)
    if name == "given":
        good(client.post("/subjects/erase", json={"subject": "customer 2"}))
        good(client.patch(f"/campaigns/{name}", json={"control": {"share": 0.3, "kind": "baseline"}}))
    script.play(post, 130)


@pytest.fixture(scope="module")
def played(new_database):
    """A worker on SQLite with every campaign."""
    clock = Clock()
    worker = Worker(new_database("sqlite"), clock)
    for name in PLAYED:
        play_everything(worker.client, clock, name)
    yield worker
    worker.stop()


def read_rows(worker, name):
    """The rows of decisions, models and revisions."""
    with worker.service.store.reading() as tx:
        row = find_campaign(tx, name)
        rows = [one for page in read_decision_pages(tx, row.campaign_id) for one in page]
        query = sa.select(models).where(models.c.campaign_id == row.campaign_id).order_by(models.c.version)
        found = tx.connection.execute(query).mappings()
        return rows, [dict(model) for model in found], tx.read_revisions(row.campaign_id, 0)


def get_belief(row):
    return json.loads(row.explanation)["belief"]


def find_changes(beliefs, least):
    """The rule of alerts, round by round: (first round, before, after), regimes from 1. An empty belief is unknown."""
    changes, current, streak, regime, in_use, begun = [], None, 0, None, 0, False
    for number, law in enumerate(beliefs, 1):
        if law:
            begun = begun or max(law) > 1 / len(law) + 1e-12
            if len(law) != in_use:
                current, regime, in_use = None, None, len(law)
            likeliest = law.index(max(law))
        elif regime is not None:
            likeliest = regime
        else:
            continue
        if not begun or in_use < 2:
            regime = None
            continue
        if likeliest != regime:
            regime, streak, first = likeliest, 0, number
        streak += 1
        if streak == least and regime != current:
            if current is not None:
                changes.append((first, current + 1, regime + 1))
            current = regime
    return changes


def get_series(worker, name, **query):
    return shaped(Series, worker.client.get(f"/campaigns/{name}/series", params=query))


def list_changes(series):
    return [(one["since_round"], one["before"], one["after"]) for one in series["regime_changes"]]


@pytest.mark.parametrize("points", [10, 400])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.3, 0.7)])
@pytest.mark.parametrize("name", PLAYED)
def test_every_number_follows_from_the_rows(played, name, span, points):
    check_series(played, name, span, points)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_gives_the_same_numbers(start, clock):
    worker = start()
    play_everything(worker.client, clock, "given")
    check_series(worker, "given", (0.0, 1.0), 33)


def check_series(played, name, span, points):
    rows, published, revisions = read_rows(played, name)
    times = sorted({row.decided_at for row in rows})
    begin, end = (times[int(part * (len(times) - 1))] + (part == 1.0) for part in span)
    series = get_series(played, name, points=points, **{"from": format_timestamp(begin), "to": format_timestamp(end)})
    inside = [row for row in rows if begin <= row.decided_at < end]
    assert series["round"] == len(rows)
    check_buckets(series, inside, points)
    beliefs = [get_belief(row) for row in rows]
    expected = find_changes(beliefs, 4)
    assert list_changes(series) == [one for one in expected if inside[0].round <= one[0] <= inside[-1].round]
    for change in series["regime_changes"]:
        assert change["decided_at"] == format_timestamp(rows[change["since_round"] - 1].decided_at)
        assert change["round"] == change["since_round"] + 3
        assert change["before_label"] == (("calm", "storm")[change["before"] - 1] if name == "given" else None)
    check_lift(series, inside, revisions)
    known = [(row.round, len(get_belief(row))) for row in inside if not row.erased]
    switched = [known[0], *(b for a, b in itertools.pairwise(known) if a[1] != b[1])]
    assert [(one["round"], one["regimes"]) for one in series["regimes_in_use"]] == switched
    check_marks(series, published, revisions, inside, len(rows))


def check_buckets(series, inside, points):
    buckets = series["buckets"]
    assert [bucket["first_round"] for bucket in buckets[1:]] == [bucket["last_round"] + 1 for bucket in buckets[:-1]]
    assert (buckets[0]["first_round"], buckets[-1]["last_round"]) == (inside[0].round, inside[-1].round)
    assert len(buckets) <= max(points, len(series["regime_changes"]) + 1)
    assert (series["first_round"], series["last_round"]) == (inside[0].round, inside[-1].round)
    assert {change["since_round"] for change in series["regime_changes"]} <= {b["first_round"] for b in buckets}
    most = max(len(get_belief(row)) for row in inside)
    for bucket in buckets:
        rows = [row for row in inside if bucket["first_round"] <= row.round <= bucket["last_round"]]
        assert bucket["first_decided_at"] == format_timestamp(rows[0].decided_at)
        assert bucket["last_decided_at"] == format_timestamp(rows[-1].decided_at)
        laws = [(get_belief(row) + [0.0] * most)[:most] for row in rows if not row.erased]
        assert bucket["belief"] == (pytest.approx(np.mean(laws, axis=0).tolist(), abs=1e-12) if laws else None)
        last = (get_belief(rows[-1]) + [0.0] * most)[:most]
        assert bucket["last_belief"] == (None if rows[-1].erased else last)
        assert sum(bucket["actions"].values()) == sum(bucket["modes"].values()) == len(rows)
        assert Counter(row.action for row in rows) == +Counter(bucket["actions"])
        assert Counter(row.mode for row in rows) == +Counter(bucket["modes"])
        for field, mode in (("rewards", None), ("decided", "optimistic"), ("control", "control")):
            values = [row.reward for row in rows if row.reward is not None and mode in (None, row.mode)]
            assert bucket[field] == {"count": len(values), "sum": pytest.approx(sum(values), abs=1e-9)}


def check_lift(series, inside, revisions):
    """From the start of the range to the end of each bucket, while control was on and of its last kind."""

    def control_of(row):
        return json.loads([revision.config for revision in revisions if revision.round < row.round][-1])["control"]

    rows = [row for row in inside if row.reward is not None and row.mode in ("optimistic", "control")]
    rows = [row for row in rows if control_of(row)["share"] > 0]
    kind = control_of(rows[-1])["kind"] if rows else None
    rows = [row for row in rows if control_of(row)["kind"] == kind]
    people = {subject: place for place, subject in enumerate({row.subject for row in rows} - {None})}
    compared = Compared(
        np.array([row.reward for row in rows]),
        np.array([row.mode == "control" for row in rows], np.bool_),
        np.array([control_of(row)["share"] for row in rows]),
        np.array([people.get(row.subject, ALONE) for row in rows], np.int64),
    )
    ends = np.array([sum(row.round <= bucket["last_round"] for row in rows) for bucket in series["buckets"]])
    lifts = cumulative_lift(compared, ends)
    for i, bucket in enumerate(series["buckets"]):
        expected = {name: getattr(lifts, name)[i] for name in ("difference", "low", "high")}
        for name, arm in (("decided", lifts.decided), ("control", lifts.control)):
            expected |= {f"{name}_rewards": arm.rewards[i], f"{name}_mean": arm.mean[i]}
        found = {name: math.nan if value is None else value for name, value in bucket["lift"].items()}
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


def check_marks(series, published, revisions, inside, rounds):
    first, last = inside[0].round - 1, inside[-1].round

    def within(round):
        return first <= round < last or round == last == rounds

    shown = [model for model in published if within(model["round"])]
    assert series["models"] == dict(Counter(model["kind"] for model in shown))
    assert sum(bucket["models"] for bucket in series["buckets"]) == len(shown)
    for bucket in series["buckets"]:
        mine = range(bucket["first_round"], bucket["last_round"] + 1)
        assert bucket["models"] == sum(min(model["round"] + 1, last) in mine for model in shown)
    others = [(model["version"], model["kind"], model["round"]) for model in shown if model["kind"] != "update"]
    assert [(one["model_version"], one["kind"], one["round"]) for one in series["publications"]] == others
    notes = [revision for revision in revisions if within(revision.round)]
    assert [(one["revision"], one["round"]) for one in series["revisions"]] == [(r.revision, r.round) for r in notes]


def test_changes_made_by_people_are_listed(played):
    series = get_series(played, "given", points=2000)
    revisions = [(one["kind"], *one["changed"]) for one in series["revisions"]]
    assert revisions[:3] == [("created",), ("configuration", "control"), ("rollback",)]
    assert revisions[3:] == [("configuration", "actions"), ("erasure",), ("configuration", "control")]
    assert {"rollback", "actions", "erasure"} <= series["models"].keys()
    # The other tests have something to compare.
    assert len(series["regime_changes"]) >= 3
    assert any(bucket["last_belief"] is None for bucket in series["buckets"])


@pytest.mark.parametrize("name", PLAYED)
def test_todays_beliefs_about_the_same_rounds(played, name):
    """Beliefs of record (R4): recomputed ones where the campaign's statistics are."""
    series = get_series(played, name, beliefs="now", points=25)
    then = get_series(played, name, points=25)
    with played.service.store.reading() as tx:
        row = find_campaign(tx, name)
        state = played.service.campaigns.cache.read_entry(tx, row).state
    regimes = state.belief.size
    beliefs = state.history.beliefs[: state.round, :regimes]
    assert list_changes(series) == find_changes(beliefs.tolist(), 4)
    for bucket in series["buckets"]:
        part = beliefs[bucket["first_round"] - 1 : bucket["last_round"]]
        assert bucket["belief"] == pytest.approx(part.mean(axis=0).tolist(), abs=1e-12)
        assert bucket["last_belief"] == part[-1].tolist()
    if name == "smoothed":
        assert [bucket["belief"] for bucket in series["buckets"]] != [bucket["belief"] for bucket in then["buckets"]]
    same = ("round", "first_round", "last_round", "models", "publications", "revisions")
    assert {field: series[field] for field in same} == {field: then[field] for field in same}


def test_the_range_is_half_open_and_may_be_empty(played):
    rows, _, _ = read_rows(played, "given")
    middle = rows[70].decided_at
    before = get_series(played, "given", to=format_timestamp(middle))
    after = get_series(played, "given", **{"from": format_timestamp(middle)})
    assert before["last_round"] + 1 == after["first_round"] == next(r.round for r in rows if r.decided_at == middle)
    nothing = get_series(played, "given", **{"from": "2001-01-01T00:00:00Z", "to": "2001-01-02T00:00:00+01:00"})
    assert (nothing["first_round"], nothing["last_round"], nothing["buckets"]) == (None, None, [])
    assert nothing["round"] == len(rows)
    new = PLAYED["given"] | {"name": "new"}
    good(played.client.post("/campaigns", json=new), 201)
    for beliefs in ("as_decided", "now"):
        empty = get_series(played, "new", beliefs=beliefs)
        assert (empty["round"], empty["buckets"], empty["regime_changes"]) == (0, [], [])


def test_a_wrong_parameter_is_named(played):
    for query, field in (
        ({"points": 9}, "points"),
        ({"points": 2001}, "points"),
        ({"beliefs": "later"}, "beliefs"),
        ({"to": "2026-01-01T00:00:00"}, "to"),
        ({"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
    ):
        error = error_of(played.client.get("/campaigns/given/series", params=query), 422)
        assert [one["field"] for one in error["fields"]] == [field]


# --- columns in memory ----------------------------------------------------------------------------------------------


def test_columns_are_read_once(start, clock, monkeypatch):
    """While the campaign continues, with late rewards and an erasure, the series is the one that a new worker gives."""
    monkeypatch.setattr(service.analysis.columns, "CHUNK", 7)
    worker = start()
    post = http_post(worker.client)
    script = Script(PLAYED["smoothed"], clock).create(post)
    reads, real = [], service.analysis.columns.read_decision_columns

    def count_reads(tx, campaign, after, last):
        reads.append((after, last))
        return real(tx, campaign, after, last)

    for until in range(10, 91, 10):
        script.play(post, until)
        if until == 70:
            good(worker.client.post("/subjects/erase", json={"subject": "customer 1"}))
        with monkeypatch.context() as patch:
            patch.setattr(service.analysis.columns, "read_decision_columns", count_reads)
            reads.clear()
            series = get_series(worker, "smoothed", points=20)
            assert (reads[0][0] > 0) == (until not in (10, 70))
            assert reads[-1][1] == script.round
        if until in (70, 90):
            assert get_series(start(), "smoothed", points=20) == series
        check_buckets(series, read_rows(worker, "smoothed")[0], 20)


@pytest.mark.parametrize(("least", "campaigns"), [(1, 2), (45, 1)])  # rounds that a campaign counts for
def test_memory_is_bounded(start, clock, monkeypatch, least, campaigns):
    monkeypatch.setattr(service.analysis.columns, "MAX_ROUNDS", 50)
    monkeypatch.setattr(service.analysis.columns, "MIN_ROUNDS", least)
    sizes = []
    real = service.analysis.columns.ColumnCache._evict

    def evict(cache):
        real(cache)
        sizes.append([columns.rows.size for columns in cache._columns.values()])

    monkeypatch.setattr(service.analysis.columns.ColumnCache, "_evict", evict)
    worker = start()
    post = http_post(worker.client)
    for number in range(4):
        Script(PLAYED["given"], clock, name=f"c{number}").create(post).play(post, 20)
    for number in (0, 1, 2, 3, 3, 0):
        assert get_series(worker, f"c{number}")["round"] >= 20
    assert all(sum(rows) <= 50 or len(rows) == 1 for rows in sizes)
    assert max(map(len, sizes)) == campaigns


# --- down-sampling --------------------------------------------------------------------------------------------------


def test_buckets_cover_the_range_and_begin_at_every_change():
    chance = random.Random(1)
    for _ in range(500):
        first = chance.randrange(50)
        end = first + chance.randrange(1, 400)
        changes = np.array(sorted(chance.sample(range(500), chance.randrange(0, 60))), np.int64)
        points = chance.choice((10, 17, 400))
        starts = bucket_starts(first, end, points, changes)
        inner = {int(c) for c in changes if first < c < end}
        assert starts[0] == first
        assert (np.diff(starts) > 0).all()
        assert starts[-1] < end
        assert inner <= set(starts.tolist())
        assert len(starts) <= max(points, len(inner) + 1)
        assert len(starts) >= min(end - first, points - len(inner) - 1)  # and not far fewer than `points`
    assert bucket_starts(5, 5, 10, np.empty(0, np.int64)).size == 0


def test_regime_changes_follow_the_rule_of_alerts():
    """Random walks with changing numbers of regimes and unknown beliefs, compared with the rule round by round."""
    chance = random.Random(2)
    for _ in range(300):
        beliefs, in_use, regime = [], chance.choice((1, 2, 3)), 0
        beliefs += [[1 / in_use] * in_use] * chance.randrange(0, 5)  # before the first estimate
        for _ in range(chance.randrange(1, 150)):
            if chance.random() < 0.02:
                in_use = chance.choice((1, 2, 3))
            if chance.random() < 0.15:
                regime = chance.randrange(3)
            law = [0.1 + 0.9 * (h == regime % in_use) for h in range(in_use)]
            beliefs.append([] if chance.random() < 0.05 else [p / sum(law) for p in law])
        least = chance.choice((1, 2, 5))
        table = np.array([(law + [0.0] * 3)[:3] for law in beliefs])
        found = find_lasting_changes(table, np.array([len(law) for law in beliefs], np.int8), least)
        listed = [(since + 1, before + 1, after + 1) for since, before, after in found.tolist()]
        assert listed == find_changes(beliefs, least)


def test_the_longest_regime_changes_are_kept(played, monkeypatch):
    """Beyond the most that an answer contains, the shortest-lived are left out; each of the others starts a bucket."""
    changes = list_changes(get_series(played, "given"))
    monkeypatch.setattr(service.analysis.series, "MAX_POINTS", 2)
    series = get_series(played, "given", points=10)
    ends = [*(since for since, _, _ in changes[1:]), series["round"] + 1]
    by_duration = sorted(changes, key=lambda change: change[0] - ends[changes.index(change)])
    assert list_changes(series) == sorted(by_duration[:2])
    assert series["regime_changes_left_out"] == len(changes) - 2
    monkeypatch.undo()
    first = bucket_starts(0, 5_000, 10, np.arange(1, 5_000))  # more changes than points
    assert first.tolist() == [*range(5_000)]
