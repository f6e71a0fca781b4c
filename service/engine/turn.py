"""One campaign's turn in a transaction: the operations on it, and the unit of work that they share."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from service.engine.cache import Cache
from service.engine.ids import Ids
from service.engine.operations import Decide, Operation, Reward
from service.engine.unit import Unit
from service.storage.rows import LiveRow
from service.storage.transaction import Transaction

AnyOperation: TypeAlias = Operation[object]


class Turn:
    """A locked campaign and the operations on it. `clock` gives microseconds since 1970."""

    def __init__(
        self,
        tx: Transaction,
        row: LiveRow,
        operations: Sequence[AnyOperation],
        cache: Cache,
        owner: str,
        clock: Callable[[], int],
        now: int,
    ) -> None:
        self.tx, self.cache, self.owner, self.clock, self.now = tx, cache, owner, clock, now
        self.is_deleted = False
        self.loaded_unit: Unit | None = None  # None as long as no operation has needed it
        self.operations, self._row = operations, row
        self._ids: Ids | None = None

    @property
    def row(self) -> LiveRow:
        return self._row if self.loaded_unit is None else self.loaded_unit.row

    @property
    def unit(self) -> Unit:
        """The unit of work; the campaign's state is loaded when it is first needed."""
        if self.loaded_unit is None:
            entry, self._ids = self.cache.load_entry(self.tx, self._row), self.cache.load_ids(self.tx, self._row)
            self.loaded_unit = Unit(self.tx, self._row, entry, self.owner, self.now)
            self.look_up_ids()
        return self.loaded_unit

    def look_up_ids(self) -> None:
        """Load the decisions that the operations name."""
        if self.loaded_unit is not None and self._ids is not None:
            self.loaded_unit.look_up(self._ids, list_decision_ids(self.operations))


def list_decision_ids(operations: Sequence[AnyOperation]) -> list[str]:
    """List the decision ids that clients name."""
    ids: list[str] = []
    for operation in operations:
        if isinstance(operation, Decide):
            ids += [item.decision_id for item, _ in operation.items if item.decision_id is not None]
        elif isinstance(operation, Reward):
            ids += [item.decision_id for item in operation.items]
    return ids
