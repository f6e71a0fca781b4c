"""SQLite's journal, written back to its file beside the writer.

SQLite does it inside whichever commit finds a thousand pages in the journal: every request waits for it, several
milliseconds each time, and batches lost a tenth of their time to it. Here a thread does it while commits go on. The
journal begins anew only when all of it is written back, which a busy writer never sees; so after more pages
(`LONGEST_JOURNAL`) the writer still writes back itself what is left, and its file is overwritten instead of growing.
"""

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

__all__ = ["LONGEST_JOURNAL", "Checkpoints"]

LONGEST_JOURNAL = 8_000  # pages: 32 MB
WORTH_BYTES = 4_000_000  # that a journal has at least: SQLite's own thousand pages
PAUSE_SECONDS = 0.25  # between a commit and the next time
EMPTYING_SECONDS = 10.0  # that emptying the journal is tried for
HOLD_SECONDS = 0.05  # that it may keep the writer from committing while it waits for readers


class Checkpoints:
    """Of one file. The thread begins with the first commit."""

    def __init__(self, file: str) -> None:
        path = Path(file).absolute()
        self._address, self._journal = f"{path.as_uri()}?mode=rw", path.with_name(f"{path.name}-wal")
        self._written, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()  # SQLite refuses a second one at once, whatever its time-out

    def written(self) -> None:
        """There was a commit."""
        if not self._written.is_set():
            self._written.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._written.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():  # asked after each clearing, which may undo what `close` has set
            self._written.wait()
            if self._ending.wait(PAUSE_SECONDS):
                return
            self._written.clear()
            with suppress(OSError, sqlite3.Error):  # what fails here the writer meets too
                if self._journal.stat().st_size >= WORTH_BYTES:
                    self._write_back()

    def empty(self) -> bool:
        """Write the whole journal back and leave nothing in it; False if others did not let go of it in time."""
        deadline = time.monotonic() + EMPTYING_SECONDS
        while not (emptied := self._write_back("TRUNCATE", HOLD_SECONDS)) and time.monotonic() < deadline:
            time.sleep(HOLD_SECONDS)
        return emptied

    def _write_back(self, how: str = "PASSIVE", patience: float = 0.0) -> bool:
        # A connection each time: none holds on to a file that was replaced, nor makes one that is gone.
        with self._turn, closing(sqlite3.connect(self._address, patience, uri=True)) as connection:
            busy, *_ = connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        return not busy
