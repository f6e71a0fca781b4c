"""A clock that can be moved, so that a wait of weeks is rehearsed in seconds. Never used in production."""

from collections.abc import Callable

from service.base.times import SECOND


class RehearsalClock:
    """A clock (microseconds since 1970) that runs ahead by as much as it was told to."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock, self._ahead = clock, 0

    def __call__(self) -> int:
        return self._clock() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += int(seconds * SECOND)
