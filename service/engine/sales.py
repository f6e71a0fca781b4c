"""A reward for a subject, and a reward as it was taken."""

from typing import NamedTuple


class Sale(NamedTuple):
    """A reward for one of a subject's decisions, or several."""

    subject: str
    reward: float
    reward_id: str
    at: int  # microseconds since 1970


class Taken(NamedTuple):
    """A reward as it was committed: that of the decision, and the amount that was sent, if it has an id."""

    decision_id: str
    round: int
    reward: float
    source: str
    received_at: int
    amount: float | None = None
    reward_id: str | None = None
