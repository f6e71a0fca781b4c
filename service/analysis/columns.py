"""A campaign's log as columns in memory, for charts: read once, then only what is new.

The log only grows, so columns stay valid; only an erasure (R22) makes them be read again. They hold no ids, contexts or
names: a subject is a number that means nothing outside this process.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from policy import CampaignConfig
from policy.lift import ALONE
from service.storage.reading import DecisionColumns, read_decision_columns, read_model_summaries, read_reward_columns
from service.storage.rows import LiveRow, RevisionRow
from service.storage.transaction import Transaction

CHUNK = 50_000  # rows read at a time
MAX_ROUNDS = 2_000_000  # in memory, of all campaigns together: about 100 MB
MIN_ROUNDS = 10_000  # that any campaign counts for: many short or deleted campaigns take memory too
MODES = ("warm_start", "optimistic", "control", "imported")
KINDS = ("update", "estimation", "actions", "rollback", "erasure")
_MODE = {mode: code for code, mode in enumerate(MODES)}
_MODEL = np.dtype([("version", "i8"), ("round", "i8"), ("published_at", "i8"), ("regimes", "i8"), ("kind", "U10")])


class Columns:
    """The rounds of one campaign that have been read. Hold the lock while using them."""

    def __init__(self, regimes: int) -> None:
        self.lock = threading.Lock()
        self.max_regimes = regimes
        self._clear(0)

    def _clear(self, erasure: int) -> None:
        self._erasure = erasure  # the revision of the last erasure
        self._rounds, self._arrived = 0, 0
        self._rows = np.zeros(
            0,
            [
                ("decided_at", "i8"),
                ("cluster", "i8"),
                ("reward", "f8"),  # NaN where there is none or it was erased
                ("belief", "f8", (self.max_regimes,)),  # of the decision; 0 beyond the regimes in use
                ("action", "i2"),
                ("mode", "i1"),
                ("regimes", "i1"),  # in use; 0 if erased
            ],
        )
        self.models = np.zeros(0, _MODEL)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """One row per round."""
        return self._rows[: self._rounds]

    def read(self, tx: Transaction, row: LiveRow, revisions: list[RevisionRow], config: CampaignConfig) -> None:
        """Read what is new up to this live row; nothing if a later row has been read already."""
        erasure = max((revision.revision for revision in revisions if revision.erased is not None), default=0)
        if erasure > self._erasure:
            self._clear(erasure)
        if row.round > self._rows.size:
            grown = np.zeros(max(row.round, self._rows.size * 5 // 4), self._rows.dtype)
            grown[: self._rounds] = self.rows
            self._rows = grown
        places = {action: place for place, action in enumerate(config.actions)}
        while self._rounds < row.round:
            last = min(self._rounds + CHUNK, row.round)
            self._append(read_decision_columns(tx, row.campaign_id, self._rounds, last), places, last)
        while self._arrived < row.arrived:
            last = min(self._arrived + CHUNK, row.arrived)
            rounds, values = read_reward_columns(tx, row.campaign_id, self._arrived, last)
            self._rows["reward"][np.array(rounds, np.int64) - 1] = np.array(values, np.float64)  # None becomes NaN
            self._arrived = last
        version = int(self.models["version"][-1]) if self.models.size else 0
        if version < row.model_version:
            new = read_model_summaries(tx, row.campaign_id, version, row.model_version)
            self.models = np.concatenate([self.models, np.array(new, _MODEL)])

    def _append(self, new: DecisionColumns, places: dict[str, int], last: int) -> None:
        at = np.array(new.round, np.int64) - 1
        if at.size != last - self._rounds or at.min() != self._rounds or at.max() != last - 1:
            raise RuntimeError(f"the log has no rounds {self._rounds + 1} to {last}; run `undercurrent verify`")
        rows = np.zeros(at.size, self._rows.dtype)
        rows["decided_at"] = new.decided_at
        rows["cluster"] = [ALONE if subject is None else hash(subject) & (2**62 - 1) for subject in new.subject]
        rows["reward"] = np.nan
        rows["action"] = [places[action] for action in new.action]
        rows["mode"] = [_MODE[mode] for mode in new.mode]
        rows["regimes"] = list(map(len, new.belief))
        in_use = np.arange(self.max_regimes) < rows["regimes"][:, None]
        rows["belief"][in_use] = np.fromiter(chain.from_iterable(new.belief), np.float64, int(in_use.sum()))
        self._rows[at] = rows
        self._rounds = last


class ColumnCache:
    """The columns of the campaigns that were used last, by the campaign's id (R23)."""

    def __init__(self) -> None:
        self._columns: dict[int, Columns] = {}
        self._lock = threading.Lock()

    @contextmanager
    def read(
        self, tx: Transaction, row: LiveRow, revisions: list[RevisionRow], config: CampaignConfig
    ) -> Iterator[Columns]:
        """A campaign's columns up to its live row or later, for one reader at a time."""
        with self._lock:
            columns, most = self._columns.pop(row.campaign_id, None), config.regime_counts[-1]
            if columns is None or columns.max_regimes < most:  # more symbols allow more regimes
                columns = Columns(most)
            self._columns[row.campaign_id] = columns
        with columns.lock:
            columns.read(tx, row, revisions, config)
            self._evict()
            yield columns

    def _evict(self) -> None:
        """Drop the campaigns that were not used for longest while there are too many rounds in memory."""
        with self._lock:
            sizes = {campaign: max(columns.rows.size, MIN_ROUNDS) for campaign, columns in self._columns.items()}
            total = sum(sizes.values())
            for campaign in list(sizes)[:-1]:
                if total <= MAX_ROUNDS:
                    break
                total -= sizes[campaign]
                del self._columns[campaign]
