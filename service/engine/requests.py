"""The bodies of requests to decide, reward and import: validated, with examples that work as they are."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, Strict

from policy.config import LARGEST_REWARD, MOST_ROUNDS, PLAIN_TEXT

MAX_BATCH = 1_000
MAX_IMPORT = 10_000  # rows in a request, which take some hundred milliseconds to write; files may have any number
# No control characters: ids and subjects are stored as text and shown to people.
Text = Annotated[str, Strict(), Field(min_length=1, max_length=200, pattern=PLAIN_TEXT)]
CampaignName = Annotated[str, Strict(), Field(min_length=1, max_length=64, pattern=PLAIN_TEXT)]
PathCampaign = Annotated[CampaignName | None, Field(description="not needed; if given, the same as in the path")]
Context = Annotated[dict[str, Any], Field(max_length=64)]  # as many variables as a campaign can have
Time = Annotated[AwareDatetime, Strict()]
# The same for a body that was parsed from JSON before: text, and never a number of seconds.
ReadTime = Annotated[AwareDatetime, BeforeValidator(lambda value: None if isinstance(value, int | float) else value)]
Reward = Annotated[float, Strict(), Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD, allow_inf_nan=False)]

CAMPAIGN_EXAMPLE: dict[str, Any] = {
    "name": "spring-offers",
    "actions": ["none", "email", "call"],
    "variables": [
        {"name": "risk", "levels": ["low", "middle", "high"]},
        {"name": "revenue", "cuts": [10_000, 36_000, 54_000]},
    ],
    "rewards": {"range": [-10, 100], "wait_seconds": 604_800, "default": 0, "correct_seconds": 2_592_000},
}
CONTEXT_EXAMPLE: dict[str, JsonValue] = {"risk": "low", "revenue": 36_000}
ITEMS_EXAMPLE: list[JsonValue] = [
    {"decision_id": "order-1002", "context": CONTEXT_EXAMPLE, "subject": "customer-4711"},
    {"decision_id": "order-1003", "context": {"risk": "high", "revenue": 8_500}, "excluded_actions": ["call"]},
]
REWARDS_EXAMPLE: list[JsonValue] = [
    {"decision_id": "order-1002", "reward": 0},
    {"decision_id": "order-1003", "reward": 12.5},
]


def _with_example(**body: JsonValue) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class RequestBody(BaseModel):
    # Ids never repeat, so caching them would only use memory.
    model_config = ConfigDict(extra="forbid", cache_strings="keys")


class Customer(RequestBody):
    """The customer to decide for."""

    context: Annotated[Context, Field(description="one value for each of the campaign's variables")]
    excluded_actions: Annotated[
        tuple[str, ...], Field(max_length=64, description="actions this customer must not get")
    ] = ()
    subject: Annotated[
        Text | None, Field(description="the person it is about: keeps the control assignment, and can be erased")
    ] = None
    at: Annotated[Time | None, Field(description="when it happened, if not now; with a time zone")] = None


class DecideItem(Customer):
    """One customer to decide for."""

    decision_id: Annotated[
        Text | None, Field(description="your id; the same one with the same request always gets the same answer")
    ] = None


class DecideByPath(DecideItem):
    """As for `/decide`, for the campaign that the path names."""

    model_config = _with_example(decision_id="order-1001", context=CONTEXT_EXAMPLE)

    campaign: PathCampaign = None


class DecideRequest(DecideByPath):
    model_config = _with_example(campaign="spring-offers", decision_id="order-1001", context=CONTEXT_EXAMPLE)

    campaign: CampaignName


class BatchItem(DecideItem):
    decision_id: Annotated[Text, Field(description="your id; required, so that a batch can be retried")]


class DecideBatchByPath(RequestBody):
    """As for `/decide/batch`, for the campaign that the path names."""

    model_config = _with_example(items=ITEMS_EXAMPLE)

    campaign: PathCampaign = None
    items: Annotated[list[BatchItem], Field(min_length=1, max_length=MAX_BATCH)]
    on_error: Annotated[
        Literal["fail", "skip"], Field(description="if items are bad: decide none, or leave them out and say so")
    ] = "fail"


class DecideBatch(DecideBatchByPath):
    model_config = _with_example(campaign="spring-offers", items=ITEMS_EXAMPLE)

    campaign: CampaignName


RewardId = Annotated[Text, Field(description="your id of this amount: repeated under it, it changes nothing")]


class RewardItem(RequestBody):
    decision_id: Text
    reward: Reward
    mode: Annotated[
        Literal["set", "add"],
        Field(description="set: the decision's only reward; add: one of several amounts, which add up"),
    ] = "set"
    reward_id: RewardId | None = None  # required to add


class RewardByPath(RewardItem):
    """As for `/reward`, for the campaign that the path names."""

    model_config = _with_example(decision_id="order-1001", reward=1.25)

    campaign: PathCampaign = None


class RewardRequest(RewardByPath):
    model_config = _with_example(campaign="spring-offers", decision_id="order-1001", reward=1.25)

    campaign: CampaignName


class RewardBatchByPath(RequestBody):
    """As for `/reward/batch`, for the campaign that the path names."""

    model_config = _with_example(items=REWARDS_EXAMPLE)

    campaign: PathCampaign = None
    items: Annotated[list[RewardItem], Field(min_length=1, max_length=MAX_BATCH)]


class RewardBatch(RewardBatchByPath):
    model_config = _with_example(campaign="spring-offers", items=REWARDS_EXAMPLE)

    campaign: CampaignName


class Correction(RequestBody):
    """What a decision earned after all."""

    decision_id: Text
    reward: Annotated[Reward, Field(description="what it is worth altogether, whatever was reported before")]
    reward_id: RewardId


class CorrectionByPath(Correction):
    """As for `/reward/correct`, for the campaign that the path names."""

    model_config = _with_example(decision_id="order-1003", reward=0, reward_id="cancellation-77")

    campaign: PathCampaign = None


class CorrectionRequest(CorrectionByPath):
    model_config = _with_example(
        campaign="spring-offers", decision_id="order-1003", reward=0, reward_id="cancellation-77"
    )

    campaign: CampaignName


class SubjectRewardByPath(RequestBody):
    """As for `/reward/subject`, for the campaign that the path names."""

    model_config = _with_example(subject="customer-4711", reward=20, reward_id="sale-5512")

    campaign: PathCampaign = None
    subject: Annotated[Text, Field(description="the person who earned it, as in /decide")]
    reward: Annotated[Reward, Field(description="is added to the rewards of the decisions that it is credited to")]
    reward_id: RewardId
    at: Annotated[Time | None, Field(description="when it was earned, if not now; with a time zone")] = None


class SubjectRewardRequest(SubjectRewardByPath):
    model_config = _with_example(campaign="spring-offers", subject="customer-4711", reward=20, reward_id="sale-5512")

    campaign: CampaignName


# Leaves room for the row's number, since decision ids may be built from both.
ImportId = Annotated[str, Strict(), Field(min_length=1, max_length=150, pattern=PLAIN_TEXT)]


# Excluded, so that the hash that recognizes an import does not depend on them.
IGNORED = Field(exclude=True, description="as exported; ignored")
IgnoredText = Annotated[str | None, Strict(), Field(max_length=200), IGNORED]
IgnoredNumber = Annotated[int | None, Strict(), Field(ge=0, le=MOST_ROUNDS), IGNORED]


class ImportRow(RequestBody):
    """A past decision that was made elsewhere."""

    context: Annotated[Context | None, Field(description="as in /decide; null if it is not known")]
    action: Annotated[str, Strict(), Field(min_length=1, max_length=100)]
    reward: Annotated[Reward | None, Field(description="if it is known")] = None
    propensity: Annotated[
        float | None, Strict(), Field(gt=0, le=1, description="the probability of the action, if it is known")
    ] = None
    at: Annotated[ReadTime | None, Field(description="when it happened; with a time zone")] = None
    decided_at: Annotated[ReadTime | None, Field(description="when it was decided, if not at that time")] = None
    decision_id: Annotated[Text | None, Field(description="by default the import_id and the row's number")] = None
    subject: Annotated[Text | None, Field(description="the person it was about, so that it can be erased")] = None
    round: Annotated[int | None, Strict(), Field(ge=1, le=MOST_ROUNDS, description="as exported")] = None
    reward_after_round: Annotated[
        int | None,
        Strict(),
        Field(ge=1, le=MOST_ROUNDS, description="as exported: the last round decided before the reward came"),
    ] = None
    # The other columns of an export, so that its lines can be sent as they are.
    mode: IgnoredText = None
    model_version: IgnoredNumber = None
    excluded_actions: Annotated[tuple[str, ...] | None, Field(max_length=64), IGNORED] = None
    belief: Annotated[tuple[Reward, ...] | None, Field(max_length=8), IGNORED] = None
    reward_source: IgnoredText = None
    reward_received_at: IgnoredText = None
    erased: Annotated[bool | None, Strict(), IGNORED] = None


class ImportRequest(RequestBody):
    model_config = _with_example(
        import_id="crm-2026-q3",
        rows=[
            {"context": CONTEXT_EXAMPLE, "action": "email", "reward": 1.25, "at": "2026-07-01T09:30:00Z"},
            {"context": {"risk": "high", "revenue": 8_500}, "action": "none", "reward": 0, "propensity": 0.5},
        ],
    )

    import_id: Annotated[
        ImportId, Field(description="your id: rows that are sent again under the same id are not imported again")
    ]
    rows: Annotated[list[ImportRow], Field(min_length=1, max_length=MAX_IMPORT)]
