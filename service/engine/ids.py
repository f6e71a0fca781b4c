"""Which rounds have which decision ids, without a query.

An index in the database would be the most expensive part of a durable decision: ids are random, so each new one changes
another page. A worker has the history of its campaigns in memory anyway. Some twenty bytes more for each round tell
where an id may be, and the row itself confirms it. The hashes of past rounds are stored in blocks, in the order of the
rounds, with each snapshot; later ones are read from the log.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numba
import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
EMPTY = -1  # an unused slot of the table


def hash_ids(ids: Iterable[str]) -> Hashes:
    """Hash each id to 64 bits. The hashes are stored, so they must never change."""
    return np.frombuffer(b"".join([blake2b(name.encode(), digest_size=8).digest() for name in ids]), "<u8")


class Ids:
    """The hashes of a campaign's ids by round, and a hash table (open addressing) from hash to round.

    It only grows, by committed rounds, which keep their ids for ever. Callers that extend it must hold a lock; lookups
    meanwhile are safe, since both arrays are replaced together.
    """

    __slots__ = ("_arrays", "count")

    def __init__(self) -> None:
        self._arrays = _allocate(0)
        self.count = 0  # rounds so far

    def find_rounds(self, hashes: Hashes) -> list[int]:
        """Find the rounds whose ids have one of the hashes; collisions are very rare."""
        if not self.count:
            return []
        arrays = self._arrays
        found = np.empty(hashes.size + 1, np.int64)
        while (count := _find(*arrays, hashes, found)) > found.size:
            found = np.empty(count, np.int64)
        rounds: list[int] = found[:count].tolist()
        return rounds

    def extend(self, after: int, hashes: Hashes) -> None:
        """Add the hashes of the rounds after `after`; those already here are skipped."""
        if after > self.count:
            raise ValueError(f"the ids of rounds {self.count + 1} to {after} are missing")
        new, (known, table) = hashes[self.count - after :], self._arrays
        count = self.count + new.size
        if count > known.size:
            larger, table = _allocate(count)
            larger[: self.count] = known[: self.count]
            larger[self.count : count] = new
            _insert(larger, table, 0, count)
            self._arrays = larger, table
        else:
            known[self.count : count] = new
            _insert(known, table, self.count, count)
        self.count = count

    @property
    def nbytes(self) -> int:
        """The memory that this takes, with some hundreds of bytes for the objects themselves."""
        return sum(array.nbytes for array in self._arrays) + 500

    def encode_block(self, after: int, last: int) -> bytes:
        """Encode the hashes of the rounds after `after` and up to `last` for storage, with a checksum."""
        if last > self.count:
            raise ValueError(f"the ids of rounds {self.count + 1} to {last} are missing")
        hashes = self._arrays[0][after:last].astype("<u8").tobytes()
        return hashes + _compute_checksum(hashes)


def decode_block(block: bytes) -> Hashes | None:
    """Decode what `Ids.encode_block` wrote; None if it is damaged."""
    hashes, checksum = block[:-8], block[-8:]
    return np.frombuffer(hashes, "<u8") if checksum == _compute_checksum(hashes) else None


def _compute_checksum(hashes: bytes) -> bytes:
    return blake2b(hashes, digest_size=8).digest()


def _allocate(rounds: int) -> tuple[Hashes, npt.NDArray[np.int32]]:
    """Allocate arrays for at least this many rounds: the hashes, and a table that is at most two thirds full."""
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
    """Write the rounds to `found`, as many as fit; return how many there are."""
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
