"""The client of Undercurrent: decide, report rewards, manage campaigns.

    with Client("http://127.0.0.1:8000") as client:
        decision = client.decide("spring-offers", {"risk": "low"}, baseline="none")
        client.reward("spring-offers", decision.decision_id, 1.25)

`AsyncClient` has the same methods for asyncio. Every request can be repeated: its ids are made before it is sent.
"""

from undercurrent_client.async_client import AsyncClient
from undercurrent_client.errors import (
    AccessError,
    ClientError,
    ConflictError,
    FieldProblem,
    GoneError,
    InvalidError,
    MismatchError,
    NotFoundError,
    QueueError,
    ServiceError,
    TooLargeError,
    TooManyRequestsError,
    UnavailableError,
    UnreachableError,
)
from undercurrent_client.messages import (
    BATCH_LIMIT,
    Campaign,
    Decision,
    DecisionBatch,
    Item,
    RewardAnswer,
    RewardItem,
    RewardMode,
    RewardResult,
    Score,
    SkippedItem,
)
from undercurrent_client.queues import AsyncRewardQueue, RewardQueue, Sent
from undercurrent_client.reports import Estimate, Report
from undercurrent_client.sync_client import Client
from undercurrent_client.version import __version__

__all__ = [
    "BATCH_LIMIT",
    "AccessError",
    "AsyncClient",
    "AsyncRewardQueue",
    "Campaign",
    "Client",
    "ClientError",
    "ConflictError",
    "Decision",
    "DecisionBatch",
    "Estimate",
    "FieldProblem",
    "GoneError",
    "InvalidError",
    "Item",
    "MismatchError",
    "NotFoundError",
    "QueueError",
    "Report",
    "RewardAnswer",
    "RewardItem",
    "RewardMode",
    "RewardQueue",
    "RewardResult",
    "Score",
    "Sent",
    "ServiceError",
    "SkippedItem",
    "TooLargeError",
    "TooManyRequestsError",
    "UnavailableError",
    "UnreachableError",
    "__version__",
]
