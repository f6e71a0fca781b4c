"""When rewards become known: at once, late, or never. Drawn apart from the episode, which stays as it is."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["AT_ONCE", "LAWS", "Delivery", "Schedule"]

LAWS = ("geometric", "exponential")
NEVER = -1
Delays = npt.NDArray[np.int64]  # rounds from a decision to its reward; 0 is before the next decision


class Delivery(NamedTuple):
    """What becomes of rewards on their way; without a law, the environment's own delays stay."""

    law: str | None = None
    mean: float = 0.0  # rounds
    loss: float = 0.0  # share of the rewards that never come, besides those the environment loses
    shuffle: bool = False  # rewards that are handed over together come in random order

    @classmethod
    def parsed_delay(cls, text: str) -> tuple[str, float]:
        """ "50" and "geometric:50" → ("geometric", 50.0)."""
        law, colon, mean = text.rpartition(":")
        law = law if colon else LAWS[0]
        try:
            rounds = float(mean)
        except ValueError:
            rounds = -1.0
        if law not in LAWS or not 0.0 <= rounds <= 1e9:
            raise ValueError(f"{text!r}: a mean number of rounds, like 50, geometric:50 or exponential:50")
        return law, rounds

    def schedule(self, delays: Delays, rounds: int, seed: int) -> "Schedule":
        """When each reward of an episode is due; `delays` are the episode's own, empty if all are at once."""
        generator = np.random.default_rng([seed, 1])
        drawn = delays if delays.size else np.zeros(rounds, np.int64)
        if self.law is not None:
            drawn = np.where(drawn == NEVER, NEVER, self._drawn(rounds, generator))
        if self.loss:
            drawn = np.where(generator.random(rounds) < self.loss, NEVER, drawn)
        return Schedule(drawn, generator if self.shuffle else None)

    def _drawn(self, rounds: int, generator: np.random.Generator) -> Delays:
        if self.law == "geometric":
            return generator.geometric(1.0 / (1.0 + self.mean), rounds) - 1
        return np.rint(generator.exponential(self.mean, rounds)).astype(np.int64)


AT_ONCE = Delivery()


class Schedule:
    """The rows of an episode in the order in which their rewards are due."""

    def __init__(self, delays: Delays, shuffle: np.random.Generator | None = None) -> None:
        rows = np.flatnonzero(delays != NEVER)
        due = rows + delays[rows]  # the row after whose decision it is known
        order = np.argsort(due, kind="stable")
        self._rows, self._due, self._shuffle = rows[order], due[order], shuffle
        self._handed = 0
        self.at_once = shuffle is None and bool((delays == 0).all())

    def count(self, decided: int) -> int:
        """How many rewards are due once so many rounds are decided."""
        return int(np.searchsorted(self._due, decided))

    def due(self, decided: int) -> list[int]:
        """The rows whose rewards are due once so many rounds are decided, and were not handed out before."""
        start, self._handed = self._handed, self.count(decided)
        rows = self._rows[start : self._handed]
        if self._shuffle is not None:
            rows = self._shuffle.permutation(rows)
        found: list[int] = rows.tolist()
        return found
