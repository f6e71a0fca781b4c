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
    contextFeatures: list[Features] | None = Field(  # noqa: N815
        default=None,
        max_length=MOST_FEATURES,
        description="a value for each of the campaign's variables, nested or not",
    )
    excludedActions: list[str] | None = Field(  # noqa: N815
        default=None, max_length=MOST_ACTIONS, description="the actions that this customer must not get"
    )
    eventId: EventId | None = Field(  # noqa: N815
        default=None, description="your id; repeating it with the same request returns the same answer"
    )
    deferActivation: bool | None = Field(  # noqa: N815
        default=None, strict=True, description="the action may never be shown; for campaigns without a default reward"
    )


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
