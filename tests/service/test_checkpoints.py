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


@pytest.fixture
def store(request, new_database):
    """A store whose journal a thread checkpoints, unless a test says otherwise."""
    opened = Store(new_database("sqlite"), serving=getattr(request, "param", True))
    yield opened
    opened.close()


def write(store: Store, statement: str) -> None:
    with store.writing() as tx:
        tx.connection.exec_driver_sql(statement)


def list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "checkpoints"]


def is_checkpointed(file: str) -> bool:
    """Is the table in the file itself, without the journal?"""
    with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?immutable=1", uri=True)) as alone:
        try:
            return bool(alone.execute("SELECT count(*) FROM sqlite_master WHERE name = 'new'").fetchone()[0])
        except sqlite3.DatabaseError:  # a checkpoint is under way
            return False


@pytest.mark.parametrize(("store", "pages"), [(True, LONGEST_JOURNAL), (False, 1_000)], indirect=["store"])
def test_commits_reach_the_file_without_the_writer(store, pages, monkeypatch):
    file = store.engine.url.database
    with store.reading():
        assert not list_threads()  # a store that only reads needs none
    with store.writing() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE new (number INTEGER)")
        assert tx.connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar_one() == pages
    assert not is_checkpointed(file)
    if list_threads():
        monkeypatch.setattr(service.storage.checkpoints, "WORTH_BYTES", 1)
        write(store, "INSERT INTO new VALUES (3)")
        eventually(lambda: is_checkpointed(file), "checkpointed")
        write(store, "INSERT INTO new VALUES (7)")  # the journal is used again
        with store.reading() as tx:
            assert tx.connection.exec_driver_sql("SELECT max(number) FROM new").scalar_one() == 7
    assert bool(list_threads()) == (pages == LONGEST_JOURNAL)
    store.close()
    assert not list_threads()
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


def test_the_journal_can_be_emptied_during_a_checkpoint(store):
    """SQLite refuses a second checkpoint at once: erased data (R22) would stay in the journal."""
    journal = Path(f"{store.engine.url.database}-wal")
    write(store, "CREATE TABLE new (text BLOB)")
    for _ in range(5):
        write(store, "INSERT INTO new VALUES (zeroblob(12000000))")
        other = threading.Thread(target=store._checkpoints._checkpoint)
        other.start()
        assert store.empty_journal()
        assert journal.stat().st_size == 0
        other.join()


def test_emptying_gives_up_while_a_reader_holds_the_journal(store, monkeypatch):
    """Meanwhile the writer can commit."""
    monkeypatch.setattr(service.storage.checkpoints, "EMPTYING_SECONDS", 0.3)
    write(store, "CREATE TABLE new (number INTEGER)")
    with store.reading() as reader:
        reader.connection.exec_driver_sql("SELECT count(*) FROM new").scalar_one()
        write(store, "INSERT INTO new VALUES (3)")
        emptied = list[bool]()
        other = threading.Thread(target=lambda: emptied.append(store.empty_journal()))
        other.start()
        for number in range(20):
            write(store, f"INSERT INTO new VALUES ({number})")
        other.join()
        assert emptied == [False]
    assert store.empty_journal()
