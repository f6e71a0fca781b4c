"""The file of a reward queue: only ever appended to, so that killing the process at any instant loses nothing.

Each line is JSON: a reward that waits, `{"n": 7, "campaign": …, "item": …}`, or the numbers of rewards that the service
has answered, `{"done": [7]}`. A last line that is not complete was never reported as added, and is dropped.
"""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from undercurrent_client.errors import QueueError
from undercurrent_client.exchange import encode

if sys.platform != "win32":
    import fcntl

MOST_DONE = 10_000  # answered rewards in a file, before it is written anew without them


class Entry(NamedTuple):
    """A reward that waits, with its number."""

    number: int
    campaign: str
    item: Mapping[str, Any]


class _Line(msgspec.Struct):
    n: int = 0
    campaign: str = ""
    item: dict[str, Any] = {}
    done: list[int] = []


class Ledger:
    """The rewards that wait, in memory and in a file. With `durable`, a power failure loses none either."""

    def __init__(self, path: str | PathLike[str], durable: bool = False) -> None:
        self._path, self._durable = Path(path), durable
        self._lock = threading.Lock()
        self._guard = _lock_file(self._path)
        self._waiting: dict[int, Entry] = {}
        self._last = self._done = 0
        self._read()
        self._file = self._path.open("ab", buffering=0)

    def _read(self) -> None:
        """Read the file, and drop an incomplete last line."""
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content.rfind(b"\n") + 1
        for place, text in enumerate(content[:whole].splitlines(), 1):
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.DecodeError as error:
                raise QueueError(f"{self._path}, line {place}: {error}") from None
            self._last = max(self._last, line.n)
            if line.n:
                self._waiting[line.n] = Entry(line.n, line.campaign, line.item)
            for number in line.done:
                self._waiting.pop(number, None)
        if whole < len(content):
            os.truncate(self._path, whole)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, campaign: str, item: Mapping[str, Any]) -> None:
        """Add a reward. It is in the file when this returns."""
        with self._lock:
            number = self._last + 1
            self._append({"n": number, "campaign": campaign, "item": item})
            self._last = number
            self._waiting[number] = Entry(number, campaign, item)

    def list_waiting(self, most: int) -> list[Entry]:
        """List the oldest rewards that wait."""
        with self._lock:
            return [entry for entry, _ in zip(self._waiting.values(), range(most), strict=False)]

    def settle(self, entries: Sequence[Entry]) -> None:
        """Note that the service has answered these rewards."""
        with self._lock:
            self._append({"done": [entry.number for entry in entries]})
            for entry in entries:
                self._waiting.pop(entry.number, None)
            self._done += len(entries)
            if not self._waiting:
                self._file.truncate(0)
                self._done = 0
            elif self._done > max(MOST_DONE, len(self._waiting)):
                self._shorten()

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(encode(line) + b"\n")
        if self._durable:
            os.fsync(self._file.fileno())

    def _shorten(self) -> None:
        """Write the file anew with what waits, beside the old one, and then replace that."""
        beside = self._path.with_name(f"{self._path.name}.new")
        with beside.open("wb") as file:
            for entry in self._waiting.values():
                file.write(encode({"n": entry.number, "campaign": entry.campaign, "item": entry.item}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._file.close()
        beside.replace(self._path)
        self._file, self._done = self._path.open("ab", buffering=0), 0

    def close(self) -> None:
        """Close the file; another process may use it now."""
        with self._lock:
            self._file.close()
            os.close(self._guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _lock_file(path: Path) -> int:
    """Make sure that no other process uses the file: two would send each other's rewards, and lose some."""
    guard = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    if sys.platform != "win32":
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(guard)
            raise QueueError(f"{path} is in use by another reward queue") from None
    return guard
