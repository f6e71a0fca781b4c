"""The log is the truth: restarts, several workers, `verify`, failures, snapshots and gathered batches (R14–R23)."""

import itertools
import json
from contextlib import suppress

import numpy as np
import pytest
import sqlalchemy as sa

import service.engine.boundaries
import service.engine.recovery
from policy import StagedPolicy
from policy.changes import patch_config
from service.base.errors import ApiError, ConflictError, InvalidError, NotFoundError, UnavailableError
from service.engine import operations
from service.engine.handlers import HANDLERS
from service.engine.operations import Change, Operation
from service.engine.warm_up import warm_up
from service.storage.rows import REGIME_CHANGE
from service.storage.tables import campaigns, decisions, events, jobs, live, models, rewards, snapshots
from service.storage.transaction import Transaction
from tests.service.playing import (
    CONFIGS,
    Script,
    check_rounds,
    http_post,
    on_sqlite,
    one_by_one,
    operation,
    verify_campaign,
)
from tests.service.scraping import Scrape

ROUNDS = 95  # the default policy says something about regimes from round 75 on


# --- batches ----------------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize("inline", [1_000_000_000, 0], ids=["inline", "jobs"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_batch_over_many_stages_equals_single_requests(direct, clock, config, inline, monkeypatch):
    """Stages whose updates have nothing to fold are decided together, and each still gets its model."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", inline)
    monkeypatch.setattr(Script, "sizes", (1, 9, 33, 64))  # stages have ten rounds
    worker = direct()
    scripts = [Script(CONFIGS[config], clock, name=name) for name in ("together", "singly")]
    for script, post in zip(scripts, (worker.post, one_by_one(worker.post)), strict=True):
        script.create(worker.post)
        while script.round < 250:
            script.step(post)
            worker.finish_all()
    together, singly = scripts
    assert together.answers == singly.answers
    numbers = {row["name"]: row["id"] for row in worker.rows(campaigns)}
    kept = [
        [
            {key: value for key, value in row.items() if key not in ("campaign_id", "seconds")}
            for row in worker.rows(models)
            if row["campaign_id"] == numbers[script.name]
        ]
        for script in scripts
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) >= together.round // 10
    assert [worker.differences(script.name) for script in scripts] == [[], []]


# --- restarts and several workers ---------------------------------------------------------------------------------


def test_a_worker_that_falls_behind_reads_only_what_is_new(direct, clock, monkeypatch):
    """Two workers take turns: catching up with decisions and rewards takes two queries, other changes take more."""
    workers = direct(), direct()
    script = Script(CONFIGS["one-regime"], clock).create(workers[0].post)
    for worker in workers:
        script.step(worker.post)
    queries = []
    for query in ("read_jobs", "read_events", "read_revisions", "get_newest_job"):
        real = getattr(Transaction, query)

        def counted(self, *arguments, real=real, query=query):
            queries.append(query)
            return real(self, *arguments)

        monkeypatch.setattr(Transaction, query, counted)
    for turn in range(20):
        script.step(workers[turn % 2].post)
    assert queries == []
    workers[0].process(Change(script.name, lambda config: patch_config(config, {"propensity_floor": 0.1})))
    queries.clear()
    script.step(workers[1].post)
    assert "read_revisions" in queries
    check_rounds(script.decisions)
    assert direct().differences(script.name) == []


def test_a_restart_changes_no_digit(start, direct, clock, subtests):
    """R15: half by one worker and half by a new one equals all by one worker; some are sent one by one."""
    first, log, played = start(), direct(), {}
    post = http_post(first.client)
    for name, config in CONFIGS.items():
        asking = one_by_one(log.post) if name in ("clock", "waiting") else log.post
        rounds = ROUNDS if name in ("default", "waiting") else 60
        whole = Script(config, clock, name=f"{name}-whole").create(asking).play(asking, rounds)
        played[name] = whole, Script(config, clock, name=f"{name}-halves").create(post).play(post, rounds // 2)
    first.stop()
    post = http_post(start().client)
    assert log.rows(jobs) == []  # R16: they are all small
    for name, (whole, halves) in played.items():
        with subtests.test(name):
            halves.play(post, whole.round)
            assert halves.answers == whole.answers
            check_rounds(halves.decisions)
            assert log.differences(halves.name) == []  # R14
            one, other = (log.campaign(script.name) for script in (whole, halves))
            same = ("round", "arrived", "folded", "model_version", "belief", "clock", "last_at", "failure")
            assert [getattr(one, field) for field in same] == [getattr(other, field) for field in same]
            theta = [[m["theta"] for m in rows_of(log, models, row)] for row in (one, other)]
            assert theta[0] == theta[1]
            assert len(theta[0]) == one.model_version
            check_script(log, name, whole)


def rows_of(worker, table, row):
    """A campaign's rows."""
    return [found for found in worker.rows(table) if found["campaign_id"] == row.campaign_id]


def check_script(log, name, script):
    """Check that the script covers its cases: late, missing and default rewards, re-estimations, several regimes."""
    assert {decision["mode"] for decision in script.decisions} == {"warm_start", "control", "optimistic"}
    row = log.campaign(script.name)
    made, taken = rows_of(log, models, row), rows_of(log, rewards, row)
    assert row.arrived < row.round
    assert any(reward["after_round"] > reward["round"] + 15 for reward in taken)
    order = [reward["round"] for reward in sorted(taken, key=lambda reward: reward["arrival"])]
    assert order != sorted(order)
    assert (sum(model["kind"] == "estimation" for model in made) >= 2) == (name != "given")
    assert (max(model["regimes"] for model in made) > 1) == (name != "one-regime")
    defaults = name == "waiting"
    assert {reward["source"] for reward in taken} == {"client"}
    assert any(answer.get("error") for answer in script.answers) == defaults  # came after the default


# --- verify -------------------------------------------------------------------------------------------------------


def build_update(table, where, **values):
    return sa.update(table).where(where).values(values)


def shift_explanation(tx, field):
    """Build the update that changes a number in the stored explanation of round 40."""
    explanation = json.loads(tx.connection.execute(sa.select(decisions.c.explanation).where(at_40)).scalar_one())
    part, key = (explanation["belief"], 0) if field == "belief" else (explanation["scores"][-1], field)
    part[key] += 1e-6
    return build_update(decisions, at_40, explanation=json.dumps(explanation))


def shift_theta(tx):
    theta = np.frombuffer(tx.connection.execute(sa.select(models.c.theta).where(model_9)).scalar_one(), "<f8").copy()
    theta[-1] += 1e-6
    return build_update(models, model_9, theta=theta.tobytes())


at_40, model_9, reward_3, alive = (
    decisions.c.round == 40, models.c.version == 9, rewards.c.round == 3, live.c.round > 0,
)  # fmt: skip
COPIED_MODEL = sa.select(*(sa.literal(999) if c.name == "version" else c for c in models.c)).where(model_9)
UPDATES = [  # what `verify` must say, the changed rows, and their new values
    ("round 40: action", at_40, {"action": sa.case((decisions.c.action == "mail", "call"), else_="mail")}),
    ("round 40: mode", at_40, {"mode": "elsewhere"}),
    ("round 40: model_version", at_40, {"model_version": 3}),
    ("round 40: propensity", at_40, {"propensity": decisions.c.propensity + 1e-6}),
    ("round 40: ", at_40, {"context": '{"season":"winter","spend":1,"tenure":7.9}'}),
    ("round 40", at_40, {"context": '{"season":"monsoon"}'}),
    ("model 9: folded", model_9, {"folded": 1}),
    ("model 1: kind", models.c.version == 1, {"kind": "estimation"}),
    ("coefficients", reward_3, {"reward": rewards.c.reward + 0.01}),
    ("round 3", reward_3, {"reward": 1e300}),
    ("live round", alive, {"round": live.c.round + 1}),
    ("live belief", alive, {"belief": "[0.25,0.75]"}),
    *((f"live {field}", alive, {field: 1}) for field in ("arrived", "folded", "model_version")),
]
TAMPERINGS = [  # what `verify` must say of a statement
    *((said, lambda tx, rows=rows, new=new: build_update(rows.left.table, rows, **new)) for said, rows, new in UPDATES),
    *((f"round 40: {field}", lambda tx, field=field: shift_explanation(tx, field))
      for field in ("belief", "estimate", "bonus", "score")),
    ("model 9: its coefficients", shift_theta),
    ("model 9 is missing", lambda tx: sa.delete(models).where(model_9)),
    ("model 999 is stored", lambda tx: sa.insert(models).from_select(models.c.keys(), COPIED_MODEL)),
    ("live arrived", lambda tx: sa.delete(rewards).where(reward_3)),
    ("round 46: round", lambda tx: sa.delete(decisions).where(decisions.c.round == 45)),
]  # fmt: skip


class Undone(Exception):  # noqa: N818 - not an error
    """Rolls a transaction back."""


def find_differences_after(store, name, change):
    """Return what `verify` finds after a change, and undo the change."""
    found = []
    with suppress(Undone), store.writing() as tx:
        tx.connection.execute(change(tx))
        found += verify_campaign(tx, name)
        raise Undone
    return found


@pytest.fixture
def played(direct, clock):
    """A worker and a campaign of 60 rounds."""
    worker = direct()
    Script(CONFIGS["smoothed"], clock).create(worker.post).play(worker.post, 50)
    return worker, "smoothed"


@on_sqlite
def test_verify_finds_every_change(played, subtests):
    """R14: `verify` notices any change to the log or the models."""
    worker, name = played
    for said, change in TAMPERINGS:
        with subtests.test(said):
            found = find_differences_after(worker.store, name, change)
            assert any(said in difference for difference in found), found
            assert len(found) == 1 or "missing" not in said  # there is no other difference
    other_machine = build_update(decisions, at_40, propensity=decisions.c.propensity + 1e-12)
    assert find_differences_after(worker.store, name, lambda tx: other_machine) == []  # R15: 1e-9 is allowed
    assert worker.differences(name) == []


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """`broken(method, round)`: the method fails once in each campaign, at the first call from that round on."""

    def arm(method, round):
        warm_up()  # which must not fail
        works = getattr(StagedPolicy, method)
        failed = {}

        def sometimes(policy, state):
            if state.round >= round and failed.setdefault(policy.config.name, state.round) == state.round:
                raise ArithmeticError("a bad day")
            return works(policy, state)

        monkeypatch.setattr(StagedPolicy, method, sometimes)
        return failed

    return arm


FAILURES = {
    "update": ("update", "failed_update", "given"),
    "estimation": ("reestimate", "failed_estimation", "smoothed"),
    "estimation at a stage's end": ("reestimate", "failed_estimation", "default"),
}


def failures(worker):
    """Return the events that are not regime alerts."""
    return [row for row in worker.rows(events) if row["kind"] != REGIME_CHANGE]


@on_sqlite
@pytest.mark.parametrize(("method", "kind", "config"), FAILURES.values(), ids=FAILURES)
def test_a_failed_step_is_logged_and_decisions_go_on(start, direct, clock, broken, method, kind, config):
    """R14: decisions use the last model; the failure is logged with its round and shown in the API."""
    failed, shown = broken(method, 40), []
    client = start().client

    def watched(path, body):
        answer = http_post(client)(path, body)
        if failed and not shown:
            findings = client.get(f"/campaigns/{config}/diagnostics").json()["findings"]
            shown.append(client.get(f"/campaigns/{config}").json()["failure"])
            shown.append([finding["code"] for finding in findings])
            shown.append(Scrape(client).value("campaign_failing", campaign=config))
        return answer

    script = Script(CONFIGS[config], clock).create(watched).play(watched, 36).play(one_by_one(watched), 50)
    script.play(watched, 60)
    at, log = failed[config], direct()
    (event,) = failures(log)
    assert (event["round"], event["kind"]) == (at, kind)
    assert "a bad day" in event["body"]
    versions = [decision["model_version"] for decision in script.decisions]
    updates = (at % 5 == 0) and method != "update"
    assert versions[at] == versions[at - 1] + updates  # of the rounds after and before
    assert versions[-1] > versions[at]
    assert client.get(f"/campaigns/{config}").json()["failure"] is None  # several have worked since
    script.play(log.post, 65)  # a restart, whose fold must not retry the failed step (R15)
    assert log.differences(config) == []
    assert str(shown[0]).startswith(f"{kind} before round {at + 1}: ")
    assert "a bad day" in shown[0]
    assert "update_failed" in shown[1]
    scrape, counted = Scrape(client), {(config, kind.removeprefix("failed_")): 1}
    assert scrape.counted("failed_updates_total", "campaign", "kind") == counted
    assert (shown[2], scrape.value("campaign_failing", campaign=config)) == (1, 0)


# --- snapshots ----------------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch):
    """Take a snapshot every few rounds."""
    monkeypatch.setattr(service.engine.recovery, "SNAPSHOT_ROUNDS", 4)


def play_with_snapshots(worker, script, until):
    """Play and store snapshots as they come; return the rounds of all of them."""
    made = []
    while script.round < until:
        script.step(worker.post)
        made += [work.state.round for work in worker.work]
        worker.finish_all()
    return made


@on_sqlite
def test_snapshots_are_the_last_few_and_a_geometric_set(direct, clock, often):
    """R21: few enough to keep for ever, and a damaged one is never far from an older one."""
    worker = direct()
    script = Script(CONFIGS["given"], clock).create(worker.post)
    made = play_with_snapshots(worker, script, 250)
    kept = [row["round"] for row in worker.rows(snapshots)]
    assert len(made) > 15
    assert set(kept) < set(made)
    assert kept[-3:] == made[-3:]
    assert worker.campaign("given").snapshot_round == made[-1]
    assert len(kept) <= 3 + np.log2(made[-1])
    assert all(newer <= 4 * older for older, newer in itertools.pairwise(kept)), kept
    assert kept[0] <= 4 * made[0]


def garble(worker, name, contexts, last):
    """Make the rounds up to `last` unreadable, so that a fold over them fails, and later ones readable again."""
    mine = decisions.c.campaign_id == worker.campaign(name).campaign_id
    contexts |= {row["round"]: row["context"] for row in worker.rows(decisions) if row["context"] != "gone"}
    restored = sa.case(contexts, value=decisions.c.round, else_=decisions.c.context)
    worker.execute(
        build_update(decisions, mine & (decisions.c.round > last), context=restored),
        build_update(decisions, mine & (decisions.c.round <= last), context="gone"),
    )


@on_sqlite
def test_a_restart_starts_at_the_newest_sound_snapshot(direct, clock, often):
    """R21: earlier rounds are not read; damaged snapshots are skipped; without any, the whole log is folded."""
    first, config = direct(), CONFIGS["default"]
    parts = Script(config, clock, name="parts").create(first.post)
    play_with_snapshots(first, parts, 50)
    kept = {row["round"]: row["state"] for row in first.rows(snapshots)}
    *_, last_but_one, newest = sorted(kept)
    contexts = {}

    def damage(round):
        state = kept[round]
        first.execute(build_update(snapshots, snapshots.c.round == round, state=state[:-1] + bytes([state[-1] ^ 1])))

    garble(first, "parts", contexts, newest)
    parts.play(direct().post, 60)
    damage(newest)
    (unread,) = direct().process(decide_operation("parts", 1))
    assert isinstance(unread, ValueError)  # the snapshot before it needs rounds that cannot be read
    garble(first, "parts", contexts, last_but_one)
    parts.play(direct().post, 68)
    garble(first, "parts", contexts, 0)
    assert f"snapshot of round {newest}: " in first.differences("parts")[0]
    for round in kept:
        damage(round)
    parts.play(direct().post, 76)
    first.execute(sa.delete(snapshots))
    parts.play(direct().post, ROUNDS)
    assert first.differences("parts") == []
    whole = Script(config, clock, name="whole").create(first.post).play(first.post, ROUNDS)
    assert parts.answers == whole.answers


# --- gathered batches ---------------------------------------------------------------------------------------------


def decide_operation(campaign, number, **more):
    """Build a valid request for a decision."""
    context = {"season": "spring", "spend": 10 * number % 70, "tenure": 4}
    return operation("/decide", {"campaign": campaign, "decision_id": f"d{number}", "context": context} | more)


def reward_operation(campaign, number, reward):
    return operation("/reward", {"campaign": campaign, "decision_id": f"d{number}", "reward": reward})


def batch_operation(campaign, *numbers, **more):
    items = [
        {"decision_id": f"d{n}", "context": {"season": "winter", "spend": n, "tenure": 1}, **more} for n in numbers
    ]
    return operation("/decide/batch", {"campaign": campaign, "items": items})


UNKNOWN_LEVEL = {"context": {"season": "monsoon", "spend": 1, "tenure": 1}}
TOO_LARGE = {"context": {"season": "spring", "spend": 10**30, "tenure": 1}}


def list_requests():
    """List requests for two campaigns in one gather, each with the error that it must get."""
    return [
        (decide_operation("one", 1), None),
        (decide_operation("one", 2, **UNKNOWN_LEVEL), InvalidError),
        (decide_operation("two", 1), None),
        (reward_operation("one", 1, 0.5), None),  # decided a moment ago, in this very batch
        (decide_operation("one", 1), None),  # a twin
        (decide_operation("one", 1, subject="someone"), ConflictError),
        (reward_operation("one", 1, 0.5), None),
        (reward_operation("one", 1, 0.75), ConflictError),
        (reward_operation("one", 77, 1), NotFoundError),
        (decide_operation("nowhere", 1), NotFoundError),
        (reward_operation("two", 1, 1e6), InvalidError),
        (batch_operation("two", 2, 3, 4, 5, 6, 7), None),  # over a stage's end
        (batch_operation("two", 8, 9, excluded_actions=["none", "mail", "call"]), InvalidError),
        (batch_operation("one", 3, 4), None),
        (decide_operation("one", 5, **TOO_LARGE), InvalidError),
        (decide_operation("two", 8, at="2100-01-01T00:00:00Z"), InvalidError),
        (decide_operation("two", 9), None),
        (decide_operation("one", 6), None),
        (reward_operation("two", 9, -1), None),
        (decide_operation("two", 10, excluded_actions=["fax"]), InvalidError),
    ]


def test_every_operation_has_a_handler():
    kinds = {kind for kind in vars(operations).values() if isinstance(kind, type) and issubclass(kind, Operation)}
    assert HANDLERS.keys() == kinds - {Operation}


def create_two(worker):
    for name in ("one", "two"):
        worker.post("/campaigns", CONFIGS["waiting"] | {"name": name})


def make_comparable(outcome):
    """Return an outcome in a form that can be compared."""
    return outcome.message if isinstance(outcome, ApiError) else json.loads(outcome)


@on_sqlite
def test_a_bad_request_in_a_gathered_batch_fails_alone(direct):
    """R17, R18: the others get the same answers as when sent alone, and no round is missing."""
    worker = direct()
    create_two(worker)
    requests = list_requests()
    outcomes = worker.process(*(request for request, _ in requests))
    for (request, error), outcome in zip(requests, outcomes, strict=True):
        assert isinstance(outcome, error or bytes), (request, outcome)
    assert outcomes[4] == outcomes[0]
    assert outcomes[6] == outcomes[3]
    assert [row["round"] for row in worker.rows(decisions)] == [1, 2, 3, 4, *range(1, 9)]
    assert [worker.differences(name) for name in ("one", "two")] == [[], []]

    worker.execute(sa.delete(campaigns))
    create_two(worker)
    alone = [worker.process(request)[0] for request, _ in requests]
    assert [make_comparable(outcome) for outcome in outcomes] == [make_comparable(outcome) for outcome in alone]


@on_sqlite
def test_a_failed_decision_undoes_its_stage_end(direct, clock, monkeypatch):
    """R18: what the stage's end did in memory is undone with the request that triggered it."""
    worker, decide, armed = direct(), StagedPolicy.decide_prepared, True
    script = Script(CONFIGS["waiting"], clock, name="one").create(worker.post).play(worker.post, 45)
    worker.post("/campaigns", CONFIGS["given"] | {"name": "two"})
    unrewarded = max(set(range(1, script.round + 1)) - {row["round"] for row in worker.rows(rewards)})

    def bad_day(policy, state, prepared, now):
        if armed and policy.config.name == "one" and state.round >= 50:
            raise ArithmeticError("a bad day")
        return decide(policy, state, prepared, now)

    monkeypatch.setattr(StagedPolicy, "decide_prepared", bad_day)
    again, before = batch_operation("one", *range(100, 110)), worker.campaign("one")
    failed, reward, other = worker.process(again, reward_operation("one", unrewarded, 0.5), decide_operation("two", 1))
    assert isinstance(failed, ArithmeticError)
    assert json.loads(other)["round"] == 1
    after = worker.campaign("one")
    assert (after.round, after.model_version) == (before.round, before.model_version)
    assert worker.differences("one") == []
    armed = False
    (answer,) = worker.process(again)
    check_rounds(script.decisions + json.loads(answer)["decisions"])
    assert worker.campaign("one").model_version > before.model_version
    assert worker.differences("one") == []
    assert isinstance(reward, bytes), reward


@on_sqlite
def test_a_campaign_is_created_among_requests_for_it(direct):
    """R18: only a request before the creation fails."""
    worker = direct()
    create = operation("/campaigns", CONFIGS["given"])
    early, made, again, late = worker.process(
        decide_operation("given", 1), create, create, decide_operation("given", 1)
    )
    assert isinstance(early, NotFoundError)
    assert isinstance(made, bytes), made
    assert again == made
    assert json.loads(late)["round"] == 1


# --- a database that fails ----------------------------------------------------------------------------------------

DEFERRED = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
    "CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
)
SABOTAGE = {  # by place, and whether it is SQLite: statements that make every transaction on a campaign fail there
    ("in the middle", True): (
        "CREATE TRIGGER broken BEFORE UPDATE ON live BEGIN SELECT RAISE(ABORT, 'sabotage'); END",
    ),
    ("in the middle", False): (
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'sabotage'; END $$",
        "CREATE TRIGGER broken BEFORE UPDATE ON live FOR EACH ROW EXECUTE FUNCTION broken()",
    ),
    ("at the commit", True): (
        *DEFERRED,
        "CREATE TRIGGER broken AFTER UPDATE ON live BEGIN INSERT INTO child VALUES (1); END",
    ),
    ("at the commit", False): (
        *DEFERRED,
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO child VALUES (1); RETURN NEW; END $$",
        "CREATE TRIGGER broken AFTER UPDATE ON live FOR EACH ROW EXECUTE FUNCTION broken()",
    ),
}
LOG = (campaigns, decisions, rewards, models, events, jobs, live, snapshots)


def after_23_rounds(worker, clock, name):
    """Prepare a campaign just before a stage's end; return requests for it and for another campaign."""
    Script(CONFIGS["waiting"], clock, name=name).create(worker.post).play(worker.post, 23)
    worker.post("/campaigns", CONFIGS["given"] | {"name": f"{name}-other"})
    return [
        *(decide_operation(name, number) for number in range(100, 108)),
        reward_operation(name, 101, 1),
        decide_operation(f"{name}-other", 1),
        decide_operation(f"{name}-other", 2, **UNKNOWN_LEVEL),
    ]


@pytest.mark.parametrize("place", ["in the middle", "at the commit"])
def test_a_database_error_fails_the_gather_and_leaves_no_trace(direct, clock, place):
    """R18: all get 503, nothing is written or cached, and a retry gets the right answer."""
    worker, saboteur = direct(), direct()
    expected = worker.process(*after_23_rounds(worker, clock, "twin"))
    requests = after_23_rounds(worker, clock, "main")
    before = [worker.rows(table) for table in LOG]
    saboteur.execute(*SABOTAGE[place, worker.store.embedded])
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"(?i)sabotage|foreign key"):
            worker.process(*requests)
    assert [worker.rows(table) for table in LOG] == before
    assert worker.campaigns.cache._entries.keys().isdisjoint(
        {worker.campaign(n).campaign_id for n in ("main", "main-other")}
    )
    saboteur.execute("DROP TRIGGER broken" + ("" if worker.store.embedded else " ON live"))
    retried = worker.process(*requests)
    assert [make_comparable(outcome) for outcome in retried] == [
        json.loads(json.dumps(make_comparable(outcome)).replace("twin", "main")) for outcome in expected
    ]
    assert worker.differences("main") == worker.differences("main-other") == []


def test_a_database_error_while_one_request_is_decided_fails_them_all(direct, clock, monkeypatch):
    """R18: the database failed, not the request: 503."""
    monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker, saboteur = direct(), direct()
    script = Script(CONFIGS["smoothed"], clock).create(worker.post).play(worker.post, 33)
    assert [row["status"] for row in worker.rows(jobs)] == ["waiting"]  # so that the next stage's end reads the table
    numbers = range(100, 106)
    saboteur.execute("ALTER TABLE jobs RENAME TO elsewhere")
    for requests in (
        [decide_operation("smoothed", number) for number in numbers],
        [batch_operation("smoothed", *numbers)],
    ):
        with pytest.raises(UnavailableError):
            worker.process(*requests)
    saboteur.execute("ALTER TABLE elsewhere RENAME TO jobs")
    (answer,) = worker.process(batch_operation("smoothed", *numbers))
    check_rounds(script.decisions + json.loads(answer)["decisions"])
    assert worker.differences("smoothed") == []


# --- one name, two campaigns --------------------------------------------------------------------------------------


def test_a_new_campaign_with_an_old_name_starts_afresh(direct, clock):
    """R23: a worker that has the old one cached uses the new one, even if both rows have the same version."""
    first, second = direct(), direct()
    old = Script(CONFIGS["default"], clock, name="spring").create(first.post)
    old.play(first.post, 40)
    version = first.campaign("spring").version
    second.execute(sa.delete(campaigns).where(campaigns.c.name == "spring"))
    assert [second.rows(table) for table in LOG] == [[] for _ in LOG]
    (gone,) = first.process(decide_operation("spring", 1))
    assert isinstance(gone, NotFoundError)

    expected = Script(CONFIGS["given"], clock, name="expected", seed=2).create(second.post)
    new = Script(CONFIGS["given"], clock, name="spring", seed=2).create(second.post)
    while second.campaign("spring").version < version:
        expected.step(second.post)
        new.step(second.post)
    expected.play(second.post, new.round + 20)
    new.play(first.post, new.round + 20)
    assert new.answers == expected.answers
    assert first.differences("spring") == []
