"""Decision ids are unique in the database (R17), and what is in memory never speaks against it (R23)."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa
from alembic import command

import service.engine.recovery
from service.base.errors import ConflictError, UnavailableError
from service.engine.campaigns import Postponed
from service.engine.operations import KeepSnapshot, Snapshot
from service.engine.recovery import load_wait
from service.storage.reading import find_decision
from service.storage.schema import build_alembic_config, upgrade
from service.storage.tables import decisions, live, models, rewards, snapshots
from tests.service.playing import CONFIGS, Direct, Script, check_rounds, on_sqlite, operation

KIND = CONFIGS["one-regime"]
TWICE = sa.update(decisions).where(decisions.c.round == 9).values(decision_id="d3")


def check_ids(worker, script):
    """Check that every decision is found by its id, and no other id is."""
    row = worker.campaign(script.name)
    campaign = row.campaign_id
    with worker.store.reading() as tx:
        wait = load_wait(tx, row, 0)
        for answer in script.decisions:
            assert find_decision(tx, campaign, answer["decision_id"], wait).round == answer["round"]
        assert find_decision(tx, campaign, "never made", wait) is find_decision(tx, campaign, "nul\x00", wait) is None


def test_the_database_refuses_an_id_that_is_used_twice(direct, clock):
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 12)
    before = worker.rows(decisions)
    with pytest.raises(UnavailableError, match=r"(?i)unique"):
        worker.execute(TWICE)
    assert worker.rows(decisions) == before
    item = script._item(1) | {"decision_id": "d3"}
    with pytest.raises(ConflictError, match="used before"):
        worker.post("/decide", {"campaign": script.name, **item})
    check_ids(worker, script)


def test_ids_that_the_service_makes_are_in_the_order_of_time(direct, clock):
    worker = direct()
    script = Script(KIND, clock).create(worker.post)
    ids = []
    for number in range(1, 31):
        item = script._item(number)
        del item["decision_id"]
        ids.append(worker.post("/decide", {"campaign": script.name, **item})["decision_id"])
        clock.advance(0.000_001)
    assert ids == sorted(set(ids))
    assert {len(name) for name in ids} == {32}


def test_the_migration_names_ids_that_are_used_twice_and_stops(direct, clock):
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 12)
    with worker.store.migrating() as tx:
        command.downgrade(build_alembic_config(tx.connection), "0005")
    worker.execute(TWICE)
    with pytest.raises(UnavailableError) as refused:
        upgrade(worker.store)
    assert f"campaign '{script.name}', decision_id 'd3', rounds 3 and 9" in refused.value.message
    worker.execute(TWICE.values(decision_id="d9"))
    upgrade(worker.store)
    assert worker.differences(script.name) == []


def test_a_log_survives_the_migration_down_and_up(direct, clock):
    """SQLite rewrites the table of decisions, which must not delete the rewards."""
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 40)
    before = [worker.rows(table) for table in (decisions, rewards)]
    assert len(before[1]) > 10
    with worker.store.migrating() as tx:
        command.downgrade(build_alembic_config(tx.connection), "0004")
    upgrade(worker.store)
    assert [worker.rows(table) for table in (decisions, rewards)] == before
    if worker.store.embedded:
        with worker.store.writing() as tx:
            assert tx.connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
    later = direct()
    check_ids(later, script)
    script.play(later.post, 60)
    check_rounds(script.decisions)
    assert later.differences(script.name) == []


def test_a_migration_that_breaks_references_is_undone(new_database, clock):
    """On SQLite; PostgreSQL checks references itself."""
    worker = Direct(new_database("sqlite"), clock)
    script = Script(KIND, clock).create(worker.post).play(worker.post, 10)
    before = worker.rows(decisions)
    with pytest.raises(RuntimeError, match="missing references"), worker.store.migrating() as tx:
        tx.connection.exec_driver_sql("DELETE FROM decisions")
    assert worker.rows(decisions) == before
    assert worker.differences(script.name) == []
    worker.store.close()


def test_a_restored_backup_is_trusted(new_database, clock, tmp_path):
    """After a backup is restored under a running service, later ids are free again."""
    worker = Direct(new_database("sqlite"), clock)
    script = Script(KIND, clock).create(worker.post).play(worker.post, 10)
    file, copy = worker.store.engine.url.database, tmp_path / "backup.db"
    with closing(sqlite3.connect(file)) as now, closing(sqlite3.connect(copy)) as then:
        now.backup(then)
    round = script.round
    script.play(worker.post, 40)
    with closing(sqlite3.connect(file)) as now, closing(sqlite3.connect(copy)) as then:
        then.backup(now)
    context = script._item(1)["context"]
    bodies = [{"campaign": script.name, "decision_id": f"new {i}", "context": context} for i in range(5)]
    for _ in range(2):
        assert [worker.post("/decide", body)["round"] for body in bodies] == list(range(round + 1, round + 6))
    assert worker.differences(script.name) == []
    worker.store.close()


@pytest.mark.slow
def test_a_standby_without_the_last_commits_is_trusted(new_database, clock, monkeypatch):
    """Others decide there before a worker with newer memories returns; its memories are dropped (R17, R23)."""
    monkeypatch.setattr(service.engine.recovery, "SNAPSHOT_ROUNDS", 20)
    url = new_database("postgresql")
    first, second = Direct(url, clock), Direct(url, clock)
    script = Script(KIND, clock).create(first.post).play(first.post, 15)
    kept, row = script.round, first.campaign(script.name)
    (standing,) = first.rows(live)
    script.play(first.post, 40)
    assert [type(work) for work in first.work] == [Snapshot]
    first.execute(
        rewards.delete().where(rewards.c.arrival > row.arrived),
        decisions.delete().where(decisions.c.round > kept),
        models.delete().where(models.c.version > row.model_version),
        sa.update(live).values(standing),
    )
    context = script._item(1)["context"]
    bodies = [{"campaign": script.name, "decision_id": f"new {i}", "context": context} for i in range(50)]
    made = [second.post("/decide", body) for body in bodies]
    assert [answer["round"] for answer in made] == list(range(kept + 1, kept + 51))
    first.store.note_server("the one that took over")
    first.finish_all()
    assert first.rows(snapshots) == []
    assert [first.post("/decide", body) for body in bodies] == made
    assert first.post("/decide", bodies[0] | {"decision_id": "newer"})["round"] == kept + 51
    assert first.differences(script.name) == []
    for worker in (first, second):
        worker.store.close()


@on_sqlite
def test_a_snapshot_that_the_database_never_reached_is_not_kept(direct, clock, monkeypatch):
    monkeypatch.setattr(service.engine.recovery, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 20)
    (work,) = worker.work
    for beyond in ({"round": script.round + 1}, {"arrived": work.state.arrived + 40}):
        worker.process(KeepSnapshot(work.campaign, work._replace(state=work.state._replace(**beyond)), b"encoded"))
    assert worker.rows(snapshots) == []
    worker.finish(work)
    assert [row["round"] for row in worker.rows(snapshots)] == [work.state.round]


def decide(script, name):
    return operation("/decide", {"campaign": script.name, **script._item(1), "decision_id": name})


@on_sqlite
def test_what_was_prepared_is_written_only_if_nobody_has_changed_the_campaign(direct, clock):
    """Long work is done without SQLite's lock; another process may write meanwhile."""
    worker, other = direct(), direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 12)
    for process, expected in ((worker, 1), (other, 2)):  # with and without the campaign in memory
        prepared = process.campaigns.prepare([decide(script, f"late {expected}")])
        (made,) = worker.process(decide(script, f"early {expected}"))
        assert asyncio.run(process.campaigns.write(prepared)).outcomes == [Postponed.HELD]
        prepared = process.campaigns.prepare([decide(script, f"late {expected}")])
        assert asyncio.run(process.campaigns.write(prepared)).outcomes[0] != made
    assert [row["decision_id"] for row in worker.rows(decisions)][-4:] == ["early 1", "late 1", "early 2", "late 2"]
    assert worker.differences(script.name) == []


@on_sqlite
def test_a_gather_leaves_out_what_takes_long(direct, clock):
    """A campaign that must be loaded first is left out of the gather; the others are served."""
    worker = direct()
    known = Script(KIND, clock).create(worker.post).play(worker.post, 12)
    new = Script(KIND, clock, name="new").create(direct().post)
    operations = [decide(new, "a"), decide(known, "b"), decide(new, "c")]
    late, made, later = asyncio.run(worker.campaigns.gather(operations)).outcomes
    assert late is later is Postponed.LONG
    assert b'"decision_id":"b"' in made
    assert worker.campaign("new").round == 0


@on_sqlite
def test_a_gather_leaves_out_only_the_campaigns_that_the_database_refuses(direct, clock):
    """A repeated id and another process's change are found by the write itself; then the campaign is read."""
    worker, other = direct(), direct()
    one, two, three = (Script(KIND, clock, name=name).create(worker.post).play(worker.post, 5) for name in "abc")

    def gather(*operations):
        return asyncio.run(worker.campaigns.gather(operations)).outcomes

    rounds, new = worker.campaign("c").round, decide(two, "new")
    other.process(decide(three, "theirs"))
    repeated, made, moved = gather(decide(one, "d3"), new, decide(three, "mine"))
    assert repeated is moved is Postponed.HELD
    assert json.loads(made)["round"] == rounds + 1
    repeated, moved = gather(decide(one, "d3"), decide(three, "mine"))
    assert isinstance(repeated, ConflictError)  # it is another request
    assert json.loads(moved)["round"] == rounds + 2
    assert gather(new) == [Postponed.HELD]
    assert gather(new) == [made]
    assert [worker.differences(script.name) for script in (one, two, three)] == [[], [], []]
