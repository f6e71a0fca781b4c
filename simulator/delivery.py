"""When rewards arrive: at once, late, or never. Delays have their own random numbers, so the episode is unchanged."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NEVER = -1
Delays = npt.NDArray[np.int64]  # rounds from a decision to its reward; 0: before the next decision


class Delivery(NamedTuple):
    """How rewards are delayed and lost. Without a law, the environment's own delays apply."""

    law: str | None = None  # geometric or exponential
    mean: float = 0.0  # rounds
    loss: float = 0.0  # share of the rewards that never arrive, in addition to the environment's own losses
    shuffle: bool = False  # rewards due at the same time arrive in random order

    def delay(self, delays: Delays, generator: np.random.Generator) -> Delays:
        """Draw delays and losses, given those that the rewards of an episode already have."""
        if self.law == "geometric":
            delays = np.where(delays == NEVER, NEVER, generator.geometric(1.0 / (1.0 + self.mean), delays.size) - 1)
        elif self.law == "exponential":
            drawn = np.rint(generator.exponential(self.mean, delays.size)).astype(np.int64)
            delays = np.where(delays == NEVER, NEVER, drawn)
        return np.where(generator.random(delays.size) < self.loss, NEVER, delays) if self.loss else delays

    def schedule(self, delays: Delays, seed: int) -> "Schedule":
        """Draw when each reward of an episode is due; `delays` are the episode's own."""
        generator = np.random.default_rng([seed, 1])
        return Schedule(self.delay(delays, generator), generator if self.shuffle else None)


AT_ONCE = Delivery()


class Schedule:
    """The rows of an episode, in the order in which their rewards are due."""

    def __init__(self, delays: Delays, shuffle: np.random.Generator | None = None) -> None:
        rows = np.flatnonzero(delays != NEVER)
        due = rows + delays[rows]  # the reward arrives after the decision of this row
        order = np.argsort(due, kind="stable")
        self._rows, self._due, self._shuffle = rows[order], due[order], shuffle
        self._taken = 0
        self.is_immediate = shuffle is None and bool((delays == 0).all())

    def count_due(self, decided: int) -> int:
        """Count the rewards that are due after `decided` rounds."""
        return int(np.searchsorted(self._due, decided))

    def take_due(self, decided: int) -> list[int]:
        """Return the rows whose rewards are due after `decided` rounds and were not taken before."""
        start, self._taken = self._taken, self.count_due(decided)
        rows = self._rows[start : self._taken]
        if self._shuffle is not None:
            rows = self._shuffle.permutation(rows)
        taken: list[int] = rows.tolist()
        return taken
