"""Checkpoints of SQLite's write-ahead log by a thread, so that commits need not do them.

SQLite checkpoints within the commit that finds a thousand pages in the log. Requests then wait for several
milliseconds; batches lost a tenth of their time to it. Here a thread does it while commits go on. The log starts again
from the beginning only when it is completely checkpointed, which does not happen under a busy writer. So after
`LONGEST_JOURNAL` pages the writer checkpoints the rest itself, and the file is reused instead of growing.
"""

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

LONGEST_JOURNAL = 8_000  # pages: 32 MB
WORTH_BYTES = 4_000_000  # shorter journals are left alone: SQLite's own thousand pages
PAUSE_SECONDS = 0.25  # after a commit
EMPTYING_SECONDS = 10.0  # limit for emptying the journal
HOLD_SECONDS = 0.05  # that it may block the writer while it waits for readers


class Checkpoints:
    """The checkpoints of one database file. The thread starts with the first commit."""

    def __init__(self, file: str) -> None:
        path = Path(file).absolute()
        self._address, self._journal = f"{path.as_uri()}?mode=rw", path.with_name(f"{path.name}-wal")
        self._committed, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()  # SQLite refuses a concurrent one at once, whatever its timeout

    def note_commit(self) -> None:
        """Wake the thread after a commit."""
        if not self._committed.is_set():
            self._committed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._committed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():  # tested after `clear`, which may undo the `set` of `close`
            self._committed.wait()
            if self._ending.wait(PAUSE_SECONDS):
                return
            self._committed.clear()
            with suppress(OSError, sqlite3.Error):  # the writer gets the same error
                if self._journal.stat().st_size >= WORTH_BYTES:
                    self._checkpoint()

    def empty(self) -> bool:
        """Checkpoint and truncate the whole journal; False if readers or the writer held it for too long."""
        deadline = time.monotonic() + EMPTYING_SECONDS
        while not (emptied := self._checkpoint("TRUNCATE", HOLD_SECONDS)) and time.monotonic() < deadline:
            time.sleep(HOLD_SECONDS)
        return emptied

    def _checkpoint(self, mode: str = "PASSIVE", patience: float = 0.0) -> bool:
        # A new connection each time: it neither keeps a file that was replaced nor creates one that is gone.
        with self._turn, closing(sqlite3.connect(self._address, patience, uri=True)) as connection:
            busy, *_ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return not busy
