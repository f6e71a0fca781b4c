"""Decision ids: the index in memory, the stored blocks, and the migration (R17, R23)."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from hypothesis import given
from hypothesis import strategies as st

import service.engine.cache
import service.engine.ids
import service.engine.snapshots
import service.engine.unit
from service.engine.ids import Ids, decode_block, hash_ids
from service.engine.operations import Archive, Delete, KeepSnapshot, Snapshot
from service.engine.unit import Unit
from service.storage.campaigns import find_campaign
from service.storage.schema import build_alembic_config, upgrade
from service.storage.tables import decisions, id_blocks, live, models, rewards, snapshots
from tests.service.playing import CONFIGS, Direct, Script, check_rounds, on_sqlite

KIND = CONFIGS["one-regime"]


def hash_to_few(count):
    """Hash to few values, to get collisions, which are very rare with 64 bits."""
    return lambda names: hash_ids(names) % np.uint64(count)


# --- in memory ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 7), max_size=90), max_size=6), st.integers(1, 2**64)
)
def test_every_round_is_found_by_its_hash(parts, modulus):
    """Compared with a plain list, with collisions in the table and equal hashes."""
    ids, known = Ids(), []
    for part in parts:
        new = [number % modulus for number in part]
        ids.extend(len(known), np.array(new, np.uint64))
        known += new
    assert ids.count == len(known)
    asked = [*known[::7], 3, 2**63]
    found = ids.find_rounds(np.array(asked, np.uint64))
    assert sorted(found) == sorted(i for one in asked for i, other in enumerate(known, 1) if one == other)
    assert decode_block(ids.encode_block(0, len(known))).tolist() == known


def test_known_rounds_are_not_added_again():
    ids, hashes = Ids(), hash_ids(map(str, range(50)))
    ids.extend(0, hashes[:30])
    ids.extend(10, hashes[10:40])  # another thread was faster with some of them
    ids.extend(20, hashes[20:30])
    assert ids.count == 40
    assert ids.find_rounds(hashes) == list(range(1, 41))
    with pytest.raises(ValueError, match="rounds 41 to 45 are missing"):
        ids.extend(45, hashes[45:])


def test_a_lookup_during_growth_stays_within_bounds():
    """A table never points beyond its own hashes; the kernels do not check bounds."""
    ids, hashes = Ids(), hash_ids(map(str, range(5_000)))
    for stop in range(0, 5_000, 50):
        known, table = ids._arrays
        ids.extend(ids.count, hashes[ids.count : stop])
        assert table.max() < known.size
        assert ids.find_rounds(hashes[:stop]) == list(range(1, stop + 1))


def test_a_damaged_block_is_recognized():
    ids = Ids()
    ids.extend(0, hash_ids(map(str, range(50))))
    block = ids.encode_block(10, 30)
    assert decode_block(block).tolist() == hash_ids(map(str, range(10, 30))).tolist()
    for wrong in (b"", block[8:], block[:-8], block[:-1], bytes([block[0] ^ 1]) + block[1:]):
        assert decode_block(wrong) is None


def test_hashes_never_change():
    """They are stored, so another function would not find them."""
    assert hash_ids(["order-1001", "ä"]).tolist() == [12056050167318755183, 4152366542966443504]


# --- in the service -----------------------------------------------------------------------------------------------


def check_ids(worker, script):
    """Check that every decision is found by its id, and no other id is."""
    with worker.store.reading() as tx:
        row = find_campaign(tx, script.name)
        for answer in script.decisions:
            stored = worker.campaigns.cache.get_decision(tx, row, answer["decision_id"])
            assert stored.round == answer["round"]
        assert worker.campaigns.cache.get_decision(tx, row, "never made") is None
        assert worker.campaigns.cache.get_decision(tx, row, "nul\x00") is None


@pytest.mark.parametrize(("database_url", "hashes"), [("sqlite", 16), ("postgresql", None)], indirect=["database_url"])
def test_ids_of_any_age_are_found_after_a_restart(direct, clock, monkeypatch, hashes):
    """In blocks, or in the log where there is no block; also with many equal hashes."""
    if hashes:
        for module in (service.engine.cache, service.engine.unit):
            monkeypatch.setattr(module, "hash_ids", hash_to_few(hashes))
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post)
    requests = []

    def post(path, body):
        requests.append((path, body))
        return worker.post(path, body)

    while script.round < 90:
        script.step(post)
        worker.finish_all()
    script.play(post, 100)
    blocks = worker.rows(id_blocks)
    assert len(blocks) > 2
    assert blocks[-1]["last_round"] < script.round  # some are only in the log
    for number in (1, 2):
        worker = direct()  # knows nothing
        for path, body in requests:
            if path.startswith("/decide"):
                first = worker.post(path, body)
                for decision in first.get("decisions", [first]):
                    known = next(d for d in script.decisions if d["decision_id"] == decision["decision_id"])
                    assert known == {name: value for name, value in decision.items() if name != "campaign"}
        assert worker.campaign(script.name).round == script.round
        check_ids(direct(), script)
        if number == 1:  # a block that is damaged is no answer
            worker.execute(sa.update(id_blocks).values(hashes=bytes(8 * 30)).where(id_blocks.c.last_round > 30))
    check_rounds(script.decisions)


def test_workers_learn_ids_from_each_other(direct, clock):
    first, second = direct(), direct()
    script = Script(KIND, clock).create(first.post)
    for turn in range(16):
        script.step((first if turn % 3 else second).post)
    for worker in (first, second):
        check_ids(worker, script)
    assert direct().differences(script.name) == []


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
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
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
    first.store._dispose()
    first.store._server = "the one that failed"
    first.finish_all()
    assert first.rows(snapshots) == first.rows(id_blocks) == []
    assert [first.post("/decide", body) for body in bodies] == made
    assert first.post("/decide", bodies[0] | {"decision_id": "newer"})["round"] == kept + 51
    assert first.differences(script.name) == []
    for worker in (first, second):
        worker.store.close()


@on_sqlite
def test_a_snapshot_that_the_database_never_reached_is_not_kept(direct, clock, monkeypatch):
    """Its ids are not known either."""
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 20)
    (work,) = worker.work
    for beyond in ({"round": script.round + 1}, {"arrived": work.state.arrived + 40}):
        worker.process(KeepSnapshot(work.campaign, work._replace(state=work.state._replace(**beyond)), b"encoded"))
    assert worker.rows(snapshots) == worker.rows(id_blocks) == []
    worker.finish(work)
    assert [row["round"] for row in worker.rows(snapshots)] == [row["last_round"] for row in worker.rows(id_blocks)]
    ids = Ids()
    ids.extend(0, hash_ids(map(str, range(9))))
    with pytest.raises(ValueError, match="rounds 10 to 11 are missing"):
        ids.encode_block(0, 11)


@on_sqlite
def test_the_ids_of_idle_campaigns_are_dropped(direct, clock, monkeypatch):
    """Reading a single decision loads them again."""
    monkeypatch.setattr(service.engine.cache, "MOST_BYTES_OF_IDS", 3_000)
    worker = direct()
    scripts = [Script(KIND, clock, name=f"c{n}").create(worker.post).play(worker.post, 10) for n in range(8)]
    reader = direct()
    for _ in range(2):
        for script in scripts:
            check_ids(reader, script)
    assert len(reader.campaigns.cache._ids) < 6
    assert len(worker.campaigns.cache._ids) == 8  # those are in use


@on_sqlite
def test_ids_that_fell_behind_during_a_transaction_are_read_again(direct, clock, monkeypatch):
    """Another thread may have replaced them with older ones; committed decisions are still found."""
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 10)
    write = Unit.write

    def replaced(unit):
        worker.campaigns.cache._ids[unit.row.campaign_id] = Ids()
        return write(unit)

    monkeypatch.setattr(Unit, "write", replaced)
    script.play(worker.post, 40)
    check_rounds(script.decisions)
    check_ids(worker, script)


@on_sqlite
def test_ids_without_a_block_get_one_with_the_next_snapshot(direct, clock, monkeypatch):
    """As after the migration, even if the next snapshot would not be due yet."""
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 90)
    worker.finish_all()
    worker.execute(sa.delete(id_blocks))
    later = direct()
    script.step(later.post)
    later.finish_all()
    (block,) = later.rows(id_blocks)
    assert block["last_round"] == script.round
    assert later.differences(script.name) == []


@on_sqlite
def test_verify_sees_ids_that_are_not_unique_and_blocks_that_are_wrong(direct, clock, monkeypatch):
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 40)
    worker.finish_all()
    (block,) = worker.rows(id_blocks)
    assert worker.differences(script.name) == []
    worker.execute(sa.update(decisions).where(decisions.c.round == 9).values(decision_id="d3"))
    assert sorted(worker.differences(script.name)) == [
        "decision_id 'd3' belongs to several decisions",
        f"the stored hashes of the ids of rounds 1 to {block['last_round']} are wrong",
    ]


def test_deleting_a_campaign_deletes_its_ids(direct, clock, monkeypatch):
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 40)
    worker.finish_all()
    worker.process(Archive(script.name, True))
    worker.process(Delete(script.name))
    assert worker.rows(id_blocks) == []
    assert not worker.campaigns.cache._ids
    new = Script(KIND, clock, seed=3).create(worker.post).play(worker.post, 30)
    check_rounds(new.decisions)


# --- the migration ------------------------------------------------------------------------------------------------


def test_a_log_survives_the_migration_down_and_up(direct, clock, monkeypatch):
    """SQLite rewrites the table of decisions, which must not delete the rewards."""
    monkeypatch.setattr(service.engine.snapshots, "SNAPSHOT_ROUNDS", 20)
    worker = direct()
    script = Script(KIND, clock).create(worker.post).play(worker.post, 40)
    worker.finish_all()
    before = [worker.rows(table) for table in (decisions, rewards)]
    assert len(before[1]) > 10
    with worker.store.migrating() as tx:
        command.downgrade(build_alembic_config(tx.connection), "0004")
    twice = "INSERT INTO decisions SELECT * FROM decisions WHERE round = 1"
    with pytest.raises(Exception, match=r"(?i)unique"):
        worker.execute(twice)
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
