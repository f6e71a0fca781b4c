"""SQLite's journal is written back beside the writer."""

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
def at_once(monkeypatch):
    monkeypatch.setattr(service.storage.checkpoints, "PAUSE_SECONDS", 0.01)


def written_back(file: str) -> bool:
    """Does the file have the table without its journal?"""
    with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?immutable=1", uri=True)) as alone:
        try:
            return bool(alone.execute("SELECT count(*) FROM sqlite_master WHERE name = 'new'").fetchone()[0])
        except sqlite3.DatabaseError:  # just now, and not all of it
            return False


@pytest.mark.parametrize("serving", [True, False])
def test_what_is_committed_reaches_the_file_without_the_writer(new_database, serving, monkeypatch):
    store = Store(new_database("sqlite"), serving=serving)
    file = store.engine.url.database
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (number INTEGER)")
        own = tx.connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar_one()
    assert own == (LONGEST_JOURNAL if serving else 1_000)
    assert not written_back(file)
    if serving:
        monkeypatch.setattr(service.storage.checkpoints, "WORTH_BYTES", 1)
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (3)")
        eventually(lambda: written_back(file), "written back")
        with store.writing() as tx:  # and the journal goes on
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (7)")
        with store.reading() as tx:
            assert tx.connection.exec_driver_sql("SELECT max(number) FROM new").scalar_one() == 7
    store.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    assert written_back(file)


def test_a_file_that_is_gone_stays_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(service.storage.checkpoints, "WORTH_BYTES", 1)
    journal = tmp_path / "none.db-wal"
    journal.write_bytes(b"left")
    checkpoints = Checkpoints(str(tmp_path / "none.db"))
    for _ in range(3):
        checkpoints.note_commit()
        eventually(lambda: not checkpoints._committed.is_set(), "tried")
    checkpoints.close()
    assert list(tmp_path.iterdir()) == [journal]


def test_it_ends_at_whatever_moment_it_is_told_to(tmp_path):
    """Also just before it waits for the next commit."""
    checkpoints = Checkpoints(str(tmp_path / "none.db"))
    clear = checkpoints._committed.clear

    def ending_meanwhile():
        checkpoints._ending.set()
        checkpoints._committed.set()
        clear()

    checkpoints._committed.clear = ending_meanwhile
    checkpoints.note_commit()
    assert checkpoints._thread is not None
    checkpoints._thread.join(30)
    assert not checkpoints._thread.is_alive()


def test_the_journal_is_emptied_also_while_it_is_written_back(new_database):
    """SQLite refuses a second one at once: what is erased (R22) would stay in the journal."""
    store = Store(new_database("sqlite"), serving=True)
    journal = Path(f"{store.engine.url.database}-wal")
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (text BLOB)")
    for _ in range(5):
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (zeroblob(12000000))")
        beside = threading.Thread(target=store._checkpoints._checkpoint)
        beside.start()
        assert store.empty_journal()
        assert journal.stat().st_size == 0
        beside.join()
    store.close()


def test_a_journal_that_is_read_is_not_waited_for_for_ever(new_database, monkeypatch):
    """And meanwhile the writer commits."""
    monkeypatch.setattr(service.storage.checkpoints, "EMPTYING_SECONDS", 0.3)
    store = Store(new_database("sqlite"), serving=True)
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (number INTEGER)")
    with store.reading() as reader:
        reader.connection.exec_driver_sql("SELECT count(*) FROM new").scalar_one()
        with store.writing() as tx:
            tx.connection.exec_driver_sql("INSERT INTO new VALUES (3)")
        emptied = list[bool]()
        beside = threading.Thread(target=lambda: emptied.append(store.empty_journal()))
        beside.start()
        for number in range(20):
            with store.writing() as tx:
                tx.connection.exec_driver_sql(f"INSERT INTO new VALUES ({number})")
        beside.join()
        assert emptied == [False]
    assert store.empty_journal()
    store.close()


def test_who_has_nothing_to_checkpoint_needs_no_thread(new_database):
    store = Store(new_database("sqlite"), serving=True)
    with store.reading():
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    store.close()
