"""When the wait for a reward is over: known from the clock, and never written down (R20)."""

from typing import Any, NamedTuple

from service.base.times import SECOND


class Wait(NamedTuple):
    """The rule of a campaign at one moment. Without a default, a wait never ends."""

    default: float | None
    microseconds: int
    now: int

    @classmethod
    def build(cls, default: float | None, seconds: float | None, now: int) -> "Wait":
        return cls(default, int((seconds or 0.0) * SECOND), now)

    def get_end(self, decided_at: Any) -> Any:
        """Return when the wait for the reward of a decision ends; of an array of decisions, an array."""
        return decided_at + self.microseconds

    def is_over(self, decided_at: int) -> bool:
        """Does a decision without a reward count with the default by now?"""
        return self.default is not None and bool(self.get_end(decided_at) <= self.now)
