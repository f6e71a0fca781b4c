"""The requests and answers of Azure Personalizer 1.0, in its own words."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict

from service.engine.requests import Reward
from service.engine.requests import Text as EventId

MOST_ACTIONS = 64  # that a campaign can have
MOST_FEATURES = 5_000  # values in a request's features, nested ones included
Features = Annotated[dict[str, Any], Field(max_length=MOST_FEATURES)]
RANK_EXAMPLE: dict[str, Any] = {
    "eventId": "75269AD0-BFEE-4598-8196-C57383D38E10",
    "contextFeatures": [{"customer": {"risk": "low", "revenue": 36_000}}, {"device": {"mobile": True}}],
    "actions": [
        {"id": "none", "features": []},
        {"id": "email", "features": [{"channel": "online"}]},
        {"id": "call", "features": [{"channel": "phone"}]},
    ],
    "excludedActions": ["call"],
    "deferActivation": False,
}
ANSWER_EXAMPLE: dict[str, Any] = {
    "ranking": [
        {"id": "email", "probability": 0.95},
        {"id": "none", "probability": 0.05},
        {"id": "call", "probability": 0.0},
    ],
    "eventId": "75269AD0-BFEE-4598-8196-C57383D38E10",
    "rewardActionId": "email",
}


class RankableAction(BaseModel):
    """One of the campaign's actions."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Strict(), Field(min_length=1, max_length=256)]
    features: list[Any] | None = Field(
        default=None, max_length=MOST_FEATURES, description="accepted but not used: campaigns have no action features"
    )


class RankRequest(BaseModel):
    """Actions to choose from, and the features of the customer."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [RANK_EXAMPLE]})

    actions: list[RankableAction] = Field(min_length=1, max_length=MOST_ACTIONS)
    contextFeatures: Annotated[  # noqa: N815
        list[Features] | None,
        Field(
            max_length=MOST_FEATURES,
            description="objects, nested or not, with a value for each of the campaign's variables",
        ),
    ] = None
    excludedActions: Annotated[  # noqa: N815
        list[str] | None, Field(max_length=MOST_ACTIONS, description="the actions that this customer must not get")
    ] = None
    eventId: Annotated[  # noqa: N815
        EventId | None, Field(description="your id; repeating it with the same request returns the same answer")
    ] = None
    deferActivation: Annotated[  # noqa: N815
        bool | None,
        Strict(),
        Field(description="true if the action may never be shown; only for a campaign without a default reward"),
    ] = None


class RankedAction(BaseModel):
    id: str
    probability: float = Field(description="of being the answer; 0 if it was excluded")


class RankResponse(BaseModel):
    """The action to show, and how likely each was."""

    model_config = ConfigDict(json_schema_extra={"examples": [ANSWER_EXAMPLE]})

    ranking: list[RankedAction] = Field(
        description="the chosen one, then the others by probability; excluded ones keep their place"
    )
    eventId: str  # noqa: N815
    rewardActionId: str  # noqa: N815


class EventReward(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"value": 1.0}]})

    value: Reward
