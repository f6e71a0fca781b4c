"""A thread checkpoints SQLite's journal, so that commits need not."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

import service.storage.checkpoints
from service.storage.checkpoints import LONGEST_JOURNAL, Checkpoints
from service.storage.store import Store
from tests.service.playing import eventually


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(service.storage.checkpoints, "PAUSE_SECONDS", 0.01)


def is_checkpointed(file: str) -> bool:
    """Is the table in the file itself, without the journal?"""
    with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?immutable=1", uri=True)) as alone:
        try:
            return bool(alone.execute("SELECT count(*) FROM sqlite_master WHERE name = 'new'").fetchone()[0])
        except sqlite3.DatabaseError:  # a checkpoint is under way
            return False


@pytest.mark.parametrize("serving", [True, False])
def test_commits_reach_the_file_without_the_writer(new_database, serving, monkeypatch):
    store = Store(new_database("sqlite"), serving=serving)
    file = store.engine.url.database
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (number INTEGER)")
        own = tx.connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar_one()
    assert own == (LONGEST_JOURNAL if serving else 1_000)
    assert not is_checkpointed(file)
    if serving:
        monkeypatch.setattr(service.storage.checkpoints, "WORTH_BYTES", 1)
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (3)")
        eventually(lambda: is_checkpointed(file), "checkpointed")
        with store.writing() as tx:  # the journal is used again
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (7)")
        with store.reading() as tx:
            assert tx.connection.exec_driver_sql("SELECT max(number) FROM new").scalar_one() == 7
    store.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    assert is_checkpointed(file)


def test_a_deleted_file_is_not_created_again(tmp_path, monkeypatch):
    monkeypatch.setattr(service.storage.checkpoints, "WORTH_BYTES", 1)
    journal = tmp_path / "none.db-wal"
    journal.write_bytes(b"left")
    checkpoints = Checkpoints(str(tmp_path / "none.db"))
    for _ in range(3):
        checkpoints.note_commit()
        eventually(lambda: not checkpoints._committed.is_set(), "tried")
    checkpoints.close()
    assert list(tmp_path.iterdir()) == [journal]


def test_the_thread_can_be_stopped_at_any_moment(tmp_path):
    """Even just before it waits for the next commit."""
    checkpoints = Checkpoints(str(tmp_path / "none.db"))
    clear = checkpoints._committed.clear

    def clear_and_end():
        checkpoints._ending.set()
        checkpoints._committed.set()
        clear()

    checkpoints._committed.clear = clear_and_end
    checkpoints.note_commit()
    assert checkpoints._thread is not None
    checkpoints._thread.join(30)
    assert not checkpoints._thread.is_alive()


def test_the_journal_can_be_emptied_during_a_checkpoint(new_database):
    """SQLite refuses a second checkpoint at once: erased data (R22) would stay in the journal."""
    store = Store(new_database("sqlite"), serving=True)
    journal = Path(f"{store.engine.url.database}-wal")
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (text BLOB)")
    for _ in range(5):
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (zeroblob(12000000))")
        other = threading.Thread(target=store._checkpoints._checkpoint)
        other.start()
        assert store.empty_journal()
        assert journal.stat().st_size == 0
        other.join()
    store.close()


def test_emptying_gives_up_while_a_reader_holds_the_journal(new_database, monkeypatch):
    """Meanwhile the writer can commit."""
    monkeypatch.setattr(service.storage.checkpoints, "EMPTYING_SECONDS", 0.3)
    store = Store(new_database("sqlite"), serving=True)
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (number INTEGER)")
    with store.reading() as reader:
        reader.connection.exec_driver_sql("SELECT count(*) FROM new").scalar_one()
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (3)")
        emptied = list[bool]()
        other = threading.Thread(target=lambda: emptied.append(store.empty_journal()))
        other.start()
        for number in range(20):
            with store.writing() as tx:
                tx.connection.exec_driver_sql(f"INSERT INTO new VALUES ({number})")
        other.join()
        assert emptied == [False]
    assert store.empty_journal()
    store.close()


def test_a_store_that_only_reads_has_no_thread(new_database):
    store = Store(new_database("sqlite"), serving=True)
    with store.reading():
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    store.close()
