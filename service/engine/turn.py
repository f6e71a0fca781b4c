"""One campaign's turn in a transaction: the operations on it, and the unit of work that they share."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from policy.costs import is_quick
from service.engine.cache import Cache
from service.engine.operations import Decide, Operation, Reward, count_items
from service.engine.unit import Unit
from service.storage.rows import KnownDecision, KnownReward, LiveRow
from service.storage.transaction import LongWorkError, Transaction

AnyOperation: TypeAlias = Operation[object]
MOST_QUICK_ITEMS = 250  # decisions and rewards of one campaign in a transaction: some milliseconds


class Turn:
    """A locked campaign and the operations on it. `clock` gives microseconds since 1970.

    `known` are the decisions that the operations name and the log has, `rewards` those with the reward
    ids that they name. A turn that `is_quick` raises `LongWorkError` instead of doing what takes more than a few
    milliseconds.
    """

    def __init__(
        self,
        tx: Transaction,
        row: LiveRow,
        operations: Sequence[AnyOperation],
        cache: Cache,
        owner: str,
        clock: Callable[[], int],
        now: int,
        known: dict[str, KnownDecision],
        rewards: Sequence[KnownReward],
        is_quick: bool,
    ) -> None:
        self.tx, self.cache, self.owner, self.clock, self.now = tx, cache, owner, clock, now
        self.is_deleted = False
        self.loaded_unit: Unit | None = None  # None as long as no operation has needed it
        self.operations, self._row, self._known, self._is_quick = operations, row, known, is_quick
        self._rewards = rewards

    @property
    def row(self) -> LiveRow:
        return self._row if self.loaded_unit is None else self.loaded_unit.row

    @property
    def unit(self) -> Unit:
        """The unit of work; the campaign's state is loaded when it is first needed."""
        if self.loaded_unit is None:
            entry = self.cache.load_entry(self.tx, self._row, self._is_quick)
            unit = Unit(self.tx, self._row, entry, self.owner, self.now, self._known, self._rewards)
            if self._is_quick and self._is_long(unit):
                raise LongWorkError
            self.loaded_unit = unit
        return self.loaded_unit

    def _is_long(self, unit: Unit) -> bool:
        """Will the requests take more than a few milliseconds, or do they name decisions newer than what was read?"""
        if self._known and any(decision.round > self._row.round for decision in self._known.values()):
            return True
        items = sum(map(count_items, self.operations))
        if items > MOST_QUICK_ITEMS:
            return True
        if items <= unit.state.rounds_ahead:
            return False
        rounds = sum(count_items(operation) for operation in self.operations if isinstance(operation, Decide))
        if rounds <= unit.state.rounds_ahead:
            return False
        return not is_quick(unit.policy, unit.state, rounds, unit.now) or unit.look_ahead()

    def look_up_again(self) -> None:
        """Load the decisions that the operations name once more, because new ones were imported."""
        names = [(self.row.campaign_id, name) for name in list_decision_ids(self.operations)]
        self.unit.add_known({decision.decision_id: decision for decision in self.tx.get_known_decisions(names)})


def list_decision_ids(operations: Sequence[AnyOperation], with_new: bool = True) -> list[str]:
    """List the decision ids that clients name; without `with_new`, only those that must be in the log already."""
    ids: list[str] = []
    for operation in operations:
        if isinstance(operation, Decide) and with_new:
            ids += [item.decision_id for item, _ in operation.items if item.decision_id is not None]
        elif isinstance(operation, Reward):
            ids += [item.decision_id for item in operation.items]
    return ids


def list_reward_ids(operations: Sequence[AnyOperation]) -> list[tuple[str, str]]:
    """List the decision ids and reward ids that clients name together."""
    return [
        (item.decision_id, item.reward_id)
        for operation in operations
        if isinstance(operation, Reward)
        for item in operation.items
        if item.reward_id is not None
    ]
