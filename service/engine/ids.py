"""The ids of a campaign's decisions: which rounds have one, without asking the database.

An index of ids in the database was what durable decisions cost most: ids are random, so every new one changes a page
of its own. A worker has the history of the campaigns it decides in memory anyway, and some twenty bytes a round more
say where an id may be; the row itself says if it is there. The hashes of past rounds are stored in blocks, in the order
of their rounds, whenever a snapshot is; those since then are read from the log.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["Hashes", "Ids", "hash_ids", "read_block"]

Hashes = npt.NDArray[np.uint64]
EMPTY = -1  # place of the table


def hash_ids(ids: Iterable[str]) -> Hashes:
    """64 bits of each id; the same everywhere and for ever, for they are stored."""
    return np.frombuffer(b"".join([blake2b(name.encode(), digest_size=8).digest() for name in ids]), "<u8")


class Ids:
    """The hashes of a campaign's ids by round, and a hash table (open addressing) from hash to round.

    It only grows, by what is committed: a round once decided keeps its id. Whoever extends it must hold a lock; looking
    up meanwhile is safe, since both arrays are replaced together.
    """

    __slots__ = ("_kept", "count")

    def __init__(self) -> None:
        self._kept = _room(0)
        self.count = 0  # rounds so far

    def rounds_of(self, hashes: Hashes) -> list[int]:
        """The rounds whose ids have one of the hashes: nearly always those of the ids themselves."""
        if not self.count:
            return []
        kept = self._kept
        found = np.empty(hashes.size + 1, np.int64)
        while (count := _find(*kept, hashes, found)) > found.size:
            found = np.empty(count, np.int64)
        rounds: list[int] = found[:count].tolist()
        return rounds

    def extend(self, after: int, hashes: Hashes) -> None:
        """The rounds after one; of those that are here already there is nothing to do."""
        if after > self.count:
            raise ValueError(f"the ids of rounds {self.count + 1} to {after} are missing")
        new, (known, table) = hashes[self.count - after :], self._kept
        count = self.count + new.size
        if count > known.size:
            larger, table = _room(count)
            larger[: self.count] = known[: self.count]
            larger[self.count : count] = new
            _insert(larger, table, 0, count)
            self._kept = larger, table
        else:
            known[self.count : count] = new
            _insert(known, table, self.count, count)
        self.count = count

    @property
    def nbytes(self) -> int:
        """In memory; the objects themselves take some hundreds too."""
        return sum(array.nbytes for array in self._kept) + 500

    def block(self, after: int, last: int) -> bytes:
        """The hashes of the rounds after one, up to the last, as they are stored: with a checksum."""
        if last > self.count:
            raise ValueError(f"the ids of rounds {self.count + 1} to {last} are missing")
        hashes = self._kept[0][after:last].astype("<u8").tobytes()
        return hashes + _checksum(hashes)


def read_block(block: bytes) -> Hashes | None:
    """What `Ids.block` wrote; None if it is damaged."""
    hashes, checksum = block[:-8], block[-8:]
    return np.frombuffer(hashes, "<u8") if checksum == _checksum(hashes) else None


def _checksum(hashes: bytes) -> bytes:
    return blake2b(hashes, digest_size=8).digest()


def _room(rounds: int) -> tuple[Hashes, npt.NDArray[np.int32]]:
    """For the hashes of so many rounds and more, and a table that is never more than two thirds full."""
    size = max(32, 1 << (2 * rounds).bit_length())
    return np.empty(2 * size // 3, np.uint64), np.full(size, EMPTY, np.int32)


@numba.njit(cache=True)
def _insert(hashes, table, start, stop):  # type: ignore[no-untyped-def]
    mask = np.uint64(table.size - 1)
    for i in range(start, stop):
        place = hashes[i] & mask
        while table[place] != EMPTY:
            place = (place + np.uint64(1)) & mask
        table[place] = i


@numba.njit(cache=True)
def _find(hashes, table, wanted, found):  # type: ignore[no-untyped-def]
    """Rounds into `found` as far as there is room; how many there are."""
    mask, count = np.uint64(table.size - 1), 0
    for one in wanted:
        place = one & mask
        while table[place] != EMPTY:
            if hashes[table[place]] == one:
                if count < found.size:
                    found[count] = table[place] + 1
                count += 1
            place = (place + np.uint64(1)) & mask
    return count
