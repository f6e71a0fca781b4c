"""Migrations: one chain, up and down on both databases, that leads to service/storage/tables.py."""

import json

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from service.storage.schema import build_alembic_config, get_head, get_schema_revision, require_current, upgrade
from service.storage.store import Store
from service.storage.tables import config_revisions, metadata
from tests.service.playing import CONFIGS, Direct, Script
from tests.service.test_subjects import state_of


@pytest.fixture
def store(database_url):
    opened = Store(database_url)
    yield opened
    opened.close()


def run(store, action, *arguments):
    """Run one of Alembic's commands in one transaction."""
    with store.migrating() as tx:
        action(build_alembic_config(tx.connection), *arguments)


def read_schema(store):
    """The schema according to the database's own catalogue."""
    with store.reading() as tx:
        inspector = sa.inspect(tx.connection)
        return {
            table: (
                sorted((c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)),
                inspector.get_pk_constraint(table)["constrained_columns"],
                sorted((k["name"], k["options"].get("ondelete")) for k in inspector.get_foreign_keys(table)),
                sorted(unique["name"] for unique in inspector.get_unique_constraints(table)),
                sorted(check["name"] for check in inspector.get_check_constraints(table)),
                sorted(index["name"] for index in inspector.get_indexes(table)),
            )
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }


def read_revision(store):
    with store.reading() as tx:
        return get_schema_revision(tx)


def test_the_chain_has_one_head():
    scripts = ScriptDirectory.from_config(build_alembic_config())
    assert scripts.get_heads() == [get_head()]
    assert len(scripts.get_bases()) == 1


def test_every_step_can_be_undone_and_done_again(store):
    """Down to nothing, where each revision is also applied again, and up in one go."""
    migrated = read_schema(store)
    assert migrated.keys() == set(metadata.tables)
    for _ in ScriptDirectory.from_config(build_alembic_config()).walk_revisions():
        before = read_schema(store)
        run(store, command.downgrade, "-1")
        assert read_schema(store) != before
        run(store, command.upgrade, "+1")
        assert read_schema(store) == before
        run(store, command.downgrade, "-1")
    assert read_schema(store) == {}
    assert read_revision(store) is None
    upgrade(store)
    require_current(store)
    upgrade(store)  # does nothing
    assert read_schema(store) == migrated
    assert read_revision(store) == get_head()


def test_tables_and_migrations_agree(store):
    run(store, command.check)
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE decisions ADD COLUMN mood TEXT"))
    with pytest.raises(CommandError, match="New upgrade operations detected"):
        run(store, command.check)


def test_a_failed_migration_leaves_nothing(store):
    """A table that is in the way makes it fail before anything is created."""
    run(store, command.downgrade, "base")
    with store.writing() as tx:
        tx.connection.execute(sa.text("CREATE TABLE rewards (mine INTEGER)"))  # the last one that the chain creates
    with pytest.raises(Exception, match="rewards"):
        upgrade(store)
    assert read_schema(store).keys() == {"rewards"}
    assert read_revision(store) is None


def test_a_running_worker_notices_another_schema_and_goes_on(client, store):
    """During an upgrade: /readyz tells the load balancer, and connected clients are still served."""
    config = {"name": "spring", "actions": ["none", "call"], "variables": [{"name": "risk", "levels": ["low", "high"]}]}
    assert client.post("/campaigns", json=config).status_code == 201
    assert client.get("/readyz").status_code == 200
    with store.writing() as tx:
        tx.connection.execute(sa.text("ALTER TABLE decisions ADD COLUMN mood TEXT"))
        tx.connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert f"is at revision 9999, not {get_head()}" in ready.json()["error"]["message"]
    request = {"campaign": "spring", "decision_id": "1", "context": {"risk": "low"}}
    assert client.post("/decide", json=request).status_code == 200


@pytest.mark.parametrize("kind", ["waiting", "default"])
def test_campaigns_of_earlier_versions_learn_while_they_wait(database_url, clock, kind):
    """0008: what was decided before is replayed as it was; from one more revision on, rounds that wait count."""
    worker, rules = Direct(database_url, clock), CONFIGS["waiting"]["rewards"]
    config = CONFIGS[kind] | {"rewards": rules | {"while_waiting": "leave_out"}}
    script = Script(config, clock).create(worker.post).play(worker.post, 90)
    counted = state_of(worker, script.name).counted
    assert counted <= worker.campaign(script.name).arrived
    run(worker.store, command.downgrade, "0007")
    for row in worker.rows(config_revisions):
        assert "while_waiting" not in json.loads(row["config"])["rewards"]
    run(worker.store, command.upgrade, "head")
    worker.store.close()
    worker = Direct(database_url, clock)
    assert worker.differences(script.name) == []
    assert [json.loads(row["config"])["rewards"]["while_waiting"] for row in worker.rows(config_revisions)] == [
        "leave_out",
        "provisional",
    ]
    script.play(worker.post, 140)
    assert state_of(worker, script.name).exposure is not None
    assert state_of(worker, script.name).counted > counted + 20
    assert worker.differences(script.name) == []
    with pytest.raises(CommandError, match="learns from rounds that wait"):
        run(worker.store, command.downgrade, "0007")
    worker.store.close()
